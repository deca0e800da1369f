//! Forward passes whose bits depend on a token's prefix only: products of any number of rows, attention however it is cut.
//!
//! Owns the shapes. Must not know how bits come about.

use std::path::Path;

use prl_kernels::cuda::{Attention, CacheLayout, Context, HeadLayout, Matrix, Onto, Span, bf16};

use crate::bench::{EXACT, ROUNDED, Random, Table, empty, error, f64s, read};
use crate::reference;

use super::decode::Caches;
use super::{Done, Only};

pub fn exact(cache: Option<&Path>, r: &mut Random, t: &mut Table, only: Only<'_>) -> Done {
    let c = Context::new(0, cache)?.exact();
    c.prepare(&super::HEAD_DIMS, true, false)?;
    for [n, k] in [[8, 8], [48, 40], [521, 128], [1024, 3072], [1536, 576], [4096, 1024]] {
        products(&c, r, t, [n, k])?;
    }
    for shape in [[4096, 151_936, 1024], [5000, 6144, 1024], [16_384, 1024, 3072]] {
        large(&c, r, t, shape)?;
    }
    for dim in only.dims() {
        for (lens, heads, kv_heads) in
            [(&[1usize, 63, 64, 65, 130][..], 4, 2), (&[300, 700], 9, 3), (&[257, 5], 16, 1), (&[1500], 2, 2)]
        {
            attention(&c, r, t, lens, CacheLayout { heads, kv_heads, dim })?;
        }
    }
    for [n, k] in [[4096, 1024], [1024, 2048], [6144, 1024], [1024, 3072], [151_936, 1024], [576, 1536]] {
        for m in [128, 512, 4096, 16_384] {
            let float = n > 100_000;
            let [same, all] = c.exact_algorithms([m, n, k], float)?;
            println!("EXACT {m} x {n} x {k}: {same} of {all} algorithms of the library's give the same bits");
            t.holds("exact: the library has an algorithm", &format!("{m}x{n}x{k}"), same > 0);
        }
    }
    Ok(())
}

fn products(c: &Context, r: &mut Random, t: &mut Table, [n, k]: [usize; 2]) -> Done {
    const MOST: usize = 700;
    let (a, b, other) =
        (r.values::<bf16>(MOST * k, 1.0), r.values::<bf16>(n * k, 1.0), r.values::<bf16>(MOST * n, 3.0));
    let (da, db, dother) = (c.upload(&a)?, c.upload(&b)?, c.upload(&other)?);
    let mut whole: [Vec<f64>; 3] = Default::default();
    for m in [MOST, 513, 128, 65, 64, 63, 33, 17, 16, 5, 1] {
        let shape = format!("{m}x{n}x{k}");
        let (x, w) = (Matrix::new(&da, k), Matrix::t(&db, k));
        let (mut y, mut onto, mut float) =
            (empty::<bf16>(c, m * n)?, empty::<bf16>(c, m * n)?, empty::<f32>(c, m * n)?);
        c.gemm([m, n, k], x, w, &mut y, n, Onto::Nothing)?;
        c.gemm([m, n, k], x, w, &mut onto, n, Onto::Other(&dother))?;
        c.gemm([m, n, k], x, w, &mut float, n, Onto::Nothing)?;
        let got = [read(c, &y)?, read(c, &onto)?, read(c, &float)?];
        if m == MOST {
            let (a64, b64) = (f64s(&a), f64s(&b));
            let want = reference::product(m, n, k, |i, p| a64[i * k + p], |p, j| b64[j * k + p]);
            t.note("exact product", &shape, error(got[0].clone(), &want), ROUNDED);
            t.note("exact product, f32", &shape, error(got[2].clone(), &want), EXACT);
            let sum: Vec<f64> = want.iter().zip(f64s(&other)).map(|(w, o)| w + o).collect();
            t.note("exact product onto", &shape, error(got[1].clone(), &sum), ROUNDED);
            whole = got;
        } else {
            for (got, whole) in got.iter().zip(&whole) {
                t.holds("exact product: rows alone", &shape, *got == whole[..m * n]);
            }
        }
    }
    Ok(())
}

/// A product of many rows against some of its rows alone, to the bit.
fn large(c: &Context, r: &mut Random, t: &mut Table, [m, n, k]: [usize; 3]) -> Done {
    let noise = r.values::<bf16>(1 << 20, 1.0);
    let values = |len: usize| noise.iter().cycle().take(len).copied().collect::<Vec<_>>();
    let (x, w) = (c.upload(&values(m * k))?, c.upload(&values(n * k))?);
    let mut whole = c.alloc::<f32>(m * n)?;
    c.gemm([m, n, k], Matrix::new(&x, k), Matrix::t(&w, k), &mut whole, n, Onto::Nothing)?;
    for row in [0, m / 2 + 3, m - 1] {
        let mut alone = c.alloc::<f32>(n)?;
        let own = x.slice(row * k..(row + 1) * k);
        c.gemm([1, n, k], Matrix::new(&own, k), Matrix::t(&w, k), &mut alone, n, Onto::Nothing)?;
        let right = c.download(&alone)? == c.download(&whole.slice(row * n..(row + 1) * n))?;
        t.holds("exact product: one of many rows", &format!("row {row} of {m}x{n}x{k}"), right);
    }
    Ok(())
}

/// Documents at once, token by token over caches, and cut into spans.
fn attention(c: &Context, r: &mut Random, t: &mut Table, lens: &[usize], layout: CacheLayout) -> Done {
    let CacheLayout { heads, kv_heads, dim } = layout;
    let (wide, narrow, tokens) = (heads * dim, kv_heads * dim, lens.iter().sum::<usize>());
    let shape = format!("{lens:?} x{heads}/{kv_heads}x{dim}");
    let caches = Caches::<bf16>::fill(c, r, lens, layout)?;
    let (q, scale) = (r.values::<bf16>(tokens * wide, 1.5), 1.0 / (dim as f32).sqrt());
    let (dq, dk, dv) = (c.upload(&q)?, c.upload(&caches.k)?, c.upload(&caches.v)?);
    let heads = HeadLayout { heads, kv_heads, dim, q_stride: wide, k_stride: narrow, v_stride: narrow };
    let (mut out, mut lse) = (empty::<bf16>(c, tokens * wide)?, empty::<f32>(c, tokens * heads.heads)?);
    let tiles = c.tiles(lens)?;
    c.attention(&tiles, Attention { q: &dq, k: &dk, v: &dv, layout: heads, scale }, &mut out, wide, &mut lse)?;
    let packed = read(c, &out)?;
    let rows: Vec<(i32, i32)> =
        lens.iter().enumerate().flat_map(|(s, len)| (0..*len).map(move |p| (s as i32, p as i32))).collect();
    let alone = caches.attend(c, layout, &rows, &q, scale)?;
    t.holds("exact attention: token by token", &shape, alone == packed);
    let (mut spans, mut row) = (Vec::new(), 0);
    for (seq, len) in lens.iter().enumerate() {
        let mut position = 0;
        while position < *len {
            let rows = (1 + r.below(200)).min(len - position);
            spans.push(Span { row, rows, position, seq });
            (row, position) = (row + rows, position + rows);
        }
    }
    let cut = caches.attend_together(c, layout, &spans, &q, scale)?;
    t.holds("exact attention: spans", &shape, cut == packed);
    Ok(())
}
