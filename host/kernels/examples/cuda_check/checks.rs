//! Every operation against its reference, on odd sizes, one token and many short documents.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{
    AdamStep, Attention, AttentionGrads, Context, CudaError, HeadLayout, HeadRows, HeadShape, Matrix, NormGrads, Read,
    Write, bf16,
};

use crate::bench::{Random, Table, error, f64s, out_floats, out_halves, read_floats, read_halves, wide};
use crate::reference;

type Done = Result<(), CudaError>;
/// One rounding to bf16 is off by 2⁻⁸ at most, 1.7e-3 as a rule; sums in f32 stay far below 1e-5.
const ROUNDED: f64 = 1.0 / 256.0;
const EXACT: f64 = 1e-5;

pub fn all(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    products(c, r, t)?;
    norms(c, r, t)?;
    ropes(c, r, t)?;
    swiglu(c, r, t)?;
    embeddings(c, r, t)?;
    head(c, r, t)?;
    steps(c, r, t)?;
    attentions(c, r, t)
}

fn products(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [m, n, k] in [[1, 8, 8], [1, 1, 1], [37, 61, 53], [128, 192, 64], [70, 8, 200]] {
        for (ta, tb) in [(false, false), (false, true), (true, false)] {
            let shape = format!("{m}x{n}x{k} {ta} {tb}");
            let (lda, ldb) = (if ta { m } else { k }, if tb { k } else { n });
            let (a, b) = (r.halves(m * k, 1.0), r.halves(k * n, 1.0));
            let at = |i: usize, p: usize| if ta { p * m + i } else { i * k + p };
            let bt = |p: usize, j: usize| if tb { j * k + p } else { p * n + j };
            let (a64, b64) = (f64s(&a), f64s(&b));
            let want = reference::product(m, n, k, |i, p| a64[at(i, p)], |p, j| b64[bt(p, j)]);
            let (da, db) = (c.upload(&a)?, c.upload(&b)?);
            let mat = |x, stride, transposed| Matrix { data: x, stride, transposed };
            let mut y = out_halves(c, m * n)?;
            c.gemm([m, n, k], mat(&da, lda, ta), mat(&db, ldb, tb), &mut y, n, false)?;
            t.note("gemm bf16", &shape, error(read_halves(c, &y)?, &want), ROUNDED);
            let mut y = out_floats(c, m * n, 0.5)?;
            c.gemm([m, n, k], mat(&da, lda, ta), mat(&db, ldb, tb), &mut y, n, true)?;
            let sum: Vec<f64> = want.iter().map(|x| x + 0.5).collect();
            t.note("gemm f32 += bf16", &shape, error(read_floats(c, &y)?, &sum), EXACT);
            let (fa, fb): (Vec<f32>, Vec<f32>) = (r.floats(m * k, 1.0), r.floats(k * n, 1.0));
            let (a64, b64) = (wide(&fa), wide(&fb));
            let want = reference::product(m, n, k, |i, p| a64[at(i, p)], |p, j| b64[bt(p, j)]);
            let (da, db) = (c.upload(&fa)?, c.upload(&fb)?);
            let mut y = out_floats(c, m * n, f32::NAN)?;
            let (a, b) =
                (Matrix { data: &da, stride: lda, transposed: ta }, Matrix { data: &db, stride: ldb, transposed: tb });
            c.gemm([m, n, k], a, b, &mut y, n, false)?;
            t.note("gemm f32", &shape, error(read_floats(c, &y)?, &want), EXACT);
        }
    }
    Ok(())
}

fn norms(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, hidden] in [[1, 8], [1, 64], [7, 576], [301, 1024], [33, 4096], [3, 8192]] {
        let shape = format!("{rows}x{hidden}");
        let eps = 1e-6f32;
        let (x, add, dy, through) = (
            r.halves(rows * hidden, 1.5),
            r.halves(rows * hidden, 1.0),
            r.halves(rows * hidden, 1.0),
            r.halves(rows * hidden, 1.0),
        );
        let w: Vec<f32> = r.floats(hidden, 0.3).iter().map(|w| 1.0 + w).collect();
        let (dx, dadd, ddy, dthrough, dw) =
            (c.upload(&x)?, c.upload(&add)?, c.upload(&dy)?, c.upload(&through)?, c.upload(&w)?);
        let w64 = wide(&w);
        for residual in [false, true] {
            let h: Vec<bf16> = if residual {
                x.iter().zip(&add).map(|(x, a)| bf16::from_f32(x.to_f32() + a.to_f32())).collect()
            } else {
                x.clone()
            };
            let h64 = f64s(&h);
            let (mut sum, mut y, mut rstd) =
                (out_halves(c, rows * hidden)?, out_halves(c, rows * hidden)?, out_floats(c, rows, f32::NAN)?);
            let extra: Option<(&dyn Read<bf16>, _)> = residual.then_some((&dadd as _, &mut sum as _));
            c.rms_norm([rows, hidden], eps, &dx, extra, &dw, &mut y, &mut rstd)?;
            let want: Vec<f64> = h64.chunks(hidden).flat_map(|h| reference::norm(h, &w64, f64::from(eps)).0).collect();
            let want_r: Vec<f64> = h64.chunks(hidden).map(|h| reference::norm(h, &w64, f64::from(eps)).1).collect();
            t.note("rms_norm y", &shape, error(read_halves(c, &y)?, &want), ROUNDED);
            t.note("rms_norm rstd", &shape, error(read_floats(c, &rstd)?, &want_r), EXACT);
            if residual {
                t.note("rms_norm sum", &shape, error(read_halves(c, &sum)?, &h64), 0.0);
            }
            let dh = c.upload(&h)?;
            let (mut gx, mut gw) = (out_halves(c, rows * hidden)?, out_floats(c, hidden, 0.25)?);
            let mut scratch = c.alloc(c.norm_scratch(hidden))?;
            let skip: Option<&dyn Read<bf16>> = residual.then_some(&dthrough as _);
            let grads = NormGrads { dw: &mut gw, scratch: &mut scratch };
            c.rms_norm_backward([rows, hidden], (&dh, &rstd), &dw, &ddy, skip, &mut gx, grads)?;
            let mut want_w = vec![0.25; hidden];
            let (dy64, skip64) = (f64s(&dy), f64s(&through));
            let mut want: Vec<f64> = h64
                .chunks(hidden)
                .zip(dy64.chunks(hidden))
                .flat_map(|(h, d)| reference::norm_grad(h, &w64, f64::from(eps), d, &mut want_w))
                .collect();
            if residual {
                want.iter_mut().zip(&skip64).for_each(|(x, s)| *x += s);
            }
            t.note("rms_norm dx", &shape, error(read_halves(c, &gx)?, &want), ROUNDED);
            t.note("rms_norm dw", &shape, error(read_floats(c, &gw)?, &want_w), EXACT);
        }
    }
    Ok(())
}

fn ropes(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for (tokens, heads, kv_heads, dim) in [(1, 2, 1, 64), (37, 3, 1, 96), (129, 16, 8, 128), (5, 9, 3, 64)] {
        let shape = format!("{tokens}x{heads}/{kv_heads}x{dim}");
        let inv_freq: Vec<f32> = (0..dim / 2).map(|i| 1e6f32.powf(-(2.0 * i as f32) / dim as f32)).collect();
        let table = c.rope_table(&inv_freq, 1.0, 40000)?;
        let positions: Vec<i32> = (0..tokens).map(|_| r.below(40000) as i32).collect();
        let width = (heads + 2 * kv_heads) * dim;
        let (qkv, dq, dk) = (
            r.halves(tokens * width, 1.0),
            r.halves(tokens * heads * dim, 1.0),
            r.halves(tokens * kv_heads * dim, 1.0),
        );
        let w: [Vec<f32>; 2] = std::array::from_fn(|_| r.floats(dim, 0.3).iter().map(|w| 1.0 + w).collect());
        let w64 = [wide(&w[0]), wide(&w[1])];
        let (x64, dq64, dk64) = (f64s(&qkv), f64s(&dq), f64s(&dk));
        let (dev, dpos, ddq, ddk) = (c.upload(&qkv)?, c.upload(&positions)?, c.upload(&dq)?, c.upload(&dk)?);
        let (w0, w1) = (c.upload(&w[0])?, c.upload(&w[1])?);
        for normed in [false, true] {
            let s = HeadShape { heads, kv_heads, dim, eps: 1e-6 };
            let (mut q, mut k) = (out_halves(c, tokens * heads * dim)?, out_halves(c, tokens * kv_heads * dim)?);
            let weights: Option<[&dyn Read<f32>; 2]> = normed.then_some([&w0, &w1]);
            c.rope(s, &dev, weights, &table, &dpos, (&mut q, &mut k))?;
            let mut dqkv = out_halves(c, tokens * width)?;
            let (mut gq, mut gk) = (out_floats(c, dim, 0.5)?, out_floats(c, dim, 0.5)?);
            let mut scratch = c.alloc(c.norm_scratch(2 * dim))?;
            let back = weights.map(|w| (w, [&mut gq as _, &mut gk as _], &mut scratch as _));
            c.rope_backward(s, &dev, back, &table, &dpos, (&ddq, &ddk), &mut dqkv)?;
            let (mut want_q, mut want_k, mut want_d) = (Vec::new(), Vec::new(), vec![0.0; tokens * width]);
            let mut want_w = [vec![0.5; dim], vec![0.5; dim]];
            for tok in 0..tokens {
                let p = positions[tok] as usize;
                for h in 0..heads + kv_heads {
                    let x = &x64[tok * width + h * dim..][..dim];
                    let (i, to, d) = if h < heads {
                        (0, &mut want_q, &dq64[(tok * heads + h) * dim..][..dim])
                    } else {
                        (1, &mut want_k, &dk64[(tok * kv_heads + h - heads) * dim..][..dim])
                    };
                    let y = if normed { reference::norm(x, &w64[i], 1e-6).0 } else { x.to_vec() };
                    to.extend(reference::rotate(&y, p, &inv_freq, false));
                    let d = reference::rotate(d, p, &inv_freq, true);
                    let d = if normed { reference::norm_grad(x, &w64[i], 1e-6, &d, &mut want_w[i]) } else { d };
                    want_d[tok * width + h * dim..][..dim].copy_from_slice(&d);
                }
            }
            t.note("rope q", &shape, error(read_halves(c, &q)?, &want_q), ROUNDED);
            t.note("rope k", &shape, error(read_halves(c, &k)?, &want_k), ROUNDED);
            let got = read_halves(c, &dqkv)?;
            let untouched = got.chunks(width).all(|r| r[(heads + kv_heads) * dim..].iter().all(|x| x.is_nan()));
            let part = |x: &[f64]| -> Vec<f64> {
                x.chunks(width).flat_map(|r| r[..(heads + kv_heads) * dim].to_vec()).collect()
            };
            t.note("rope dqk", &shape, error(part(&got), &part(&want_d)), ROUNDED);
            t.note("rope leaves dv alone", &shape, f64::from(u8::from(!untouched)), 0.0);
            if normed {
                t.note("rope dwq", &shape, error(read_floats(c, &gq)?, &want_w[0]), EXACT);
                t.note("rope dwk", &shape, error(read_floats(c, &gk)?, &want_w[1]), EXACT);
            }
        }
    }
    Ok(())
}

fn swiglu(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, width] in [[1, 8], [3, 1536], [77, 3072]] {
        let shape = format!("{rows}x{width}");
        let (gu, dh) = (r.halves(rows * 2 * width, 2.0), r.halves(rows * width, 1.0));
        let (x, d) = (f64s(&gu), f64s(&dh));
        let (dgu, ddh) = (c.upload(&gu)?, c.upload(&dh)?);
        let (mut h, mut again, mut grad) =
            (out_halves(c, rows * width)?, out_halves(c, rows * width)?, out_halves(c, rows * 2 * width)?);
        c.swiglu([rows, width], &dgu, &mut h)?;
        c.swiglu_backward([rows, width], &dgu, &ddh, &mut grad, Some(&mut again))?;
        let (mut want, mut want_g) = (vec![0.0; rows * width], vec![0.0; rows * 2 * width]);
        for i in 0..rows {
            for j in 0..width {
                let (g, u, d) = (x[i * 2 * width + j], x[(i * 2 + 1) * width + j], d[i * width + j]);
                let (s, ds) = reference::silu(g);
                want[i * width + j] = s * u;
                want_g[i * 2 * width + j] = d * u * ds;
                want_g[(i * 2 + 1) * width + j] = d * s;
            }
        }
        t.note("swiglu h", &shape, error(read_halves(c, &h)?, &want), ROUNDED);
        t.note("swiglu h again", &shape, error(read_halves(c, &again)?, &want), ROUNDED);
        t.note("swiglu dgate_up", &shape, error(read_halves(c, &grad)?, &want_g), ROUNDED);
    }
    Ok(())
}

fn embeddings(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for (tokens, vocab, hidden) in [(1, 5, 8), (301, 40, 264), (1000, 5000, 1024)] {
        let shape = format!("{tokens}/{vocab}x{hidden}");
        let (table, dx) = (r.halves(vocab * hidden, 1.0), r.halves(tokens * hidden, 1.0));
        let ids: Vec<u32> = (0..tokens).map(|_| r.below(vocab) as u32).collect();
        let (table64, dx64) = (f64s(&table), f64s(&dx));
        let signed: Vec<i32> = ids.iter().map(|i| *i as i32).collect();
        let (dtable, dids, ddx) = (c.upload(&table)?, c.upload(&signed)?, c.upload(&dx)?);
        let mut x = out_halves(c, tokens * hidden)?;
        c.embed(hidden, &dtable, &dids, &mut x)?;
        let want: Vec<f64> = ids.iter().flat_map(|i| table64[*i as usize * hidden..][..hidden].to_vec()).collect();
        t.note("embed", &shape, error(read_halves(c, &x)?, &want), 0.0);
        let mut grad = out_floats(c, vocab * hidden, 0.125)?;
        c.embed_backward(hidden, &c.embed_order(&ids, vocab)?, &ddx, &mut grad)?;
        let mut want = vec![0.125; vocab * hidden];
        for (i, id) in ids.iter().enumerate() {
            (0..hidden).for_each(|j| want[*id as usize * hidden + j] += dx64[i * hidden + j]);
        }
        t.note("embed gradient", &shape, error(read_floats(c, &grad)?, &want), EXACT);
    }
    Ok(())
}

fn head(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, vocab] in [[1, 1], [5, 1000], [3, 4099], [9, 151_936]] {
        let shape = format!("{rows}x{vocab}");
        let logits = r.floats(rows * vocab, 3.0);
        let labels: Vec<i32> = (0..rows).map(|_| r.below(vocab) as i32).collect();
        let temps: Vec<f32> = (0..rows).map(|i| 1.0 + 0.25 * i as f32).collect();
        let (dl, de) = (r.floats(rows, 1.0), r.floats(rows, 0.3));
        let x = wide(&logits);
        let (dlogits, dlabels, dtemps) = (c.upload(&logits)?, c.upload(&labels)?, c.upload(&temps)?);
        let (ddl, dde) = (c.upload(&dl)?, c.upload(&de)?);
        let of = HeadRows { labels: &dlabels, inv_temp: &dtemps };
        let mut out = [out_floats(c, rows, f32::NAN)?, out_floats(c, rows, f32::NAN)?, out_floats(c, rows, f32::NAN)?];
        let [a, b, z] = &mut out;
        c.head_stats([rows, vocab], &dlogits, of, [a, b, z])?;
        let want: Vec<[f64; 3]> = (0..rows)
            .map(|i| reference::head(&x[i * vocab..][..vocab], labels[i] as usize, f64::from(temps[i])))
            .collect();
        for (i, name) in ["head logprob", "head entropy", "head logz"].into_iter().enumerate() {
            let want: Vec<f64> = want.iter().map(|w| w[i]).collect();
            t.note(name, &shape, error(read_floats(c, &out[i])?, &want), EXACT);
        }
        for with in [false, true] {
            let mut grad = out_halves(c, rows * vocab)?;
            let de_of = |i: usize| if with { f64::from(de[i]) } else { 0.0 };
            let dentropy: Option<&dyn Read<f32>> = with.then_some(&dde as _);
            c.head_gradient([rows, vocab], &dlogits, of, [&out[2], &out[1]], &ddl, dentropy, &mut grad)?;
            let want: Vec<f64> = (0..rows)
                .flat_map(|i| {
                    let row = &x[i * vocab..][..vocab];
                    reference::head_gradient(row, labels[i] as usize, f64::from(temps[i]), [f64::from(dl[i]), de_of(i)])
                })
                .collect();
            if vocab == 1 {
                t.note("head dlogits, one word", &shape, error(read_halves(c, &grad)?, &want), 1e-6);
            } else {
                t.note("head dlogits", &shape, error(read_halves(c, &grad)?, &want), ROUNDED);
            }
        }
    }
    Ok(())
}

fn steps(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for n in [1usize, 3, 1003, 1_000_002] {
        let shape = format!("{n}");
        let (p, g, other) = (r.floats(n, 1.0), r.floats(n, 2.0), r.floats(77, 1.0));
        let norm = g.iter().chain(&other).map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let (dg, dother) = (c.upload(&g)?, c.upload(&other)?);
        let (mut scratch, mut clipped) = (c.alloc::<f64>(c.grad_norm_scratch(2))?, out_floats(c, 2, f32::NAN)?);
        c.grad_norm(&[&dg, &dother], 1.0, &mut scratch, &mut clipped)?;
        let factor = (1.0 / (norm + 1e-6)).min(1.0);
        t.note("grad norm", &shape, error(read_floats(c, &clipped)?, &[norm, factor]), 1e-6);
        let (mut dp, mut dm, mut dv) = (out_floats(c, n, 0.0)?, out_floats(c, n, 0.0)?, out_floats(c, n, 0.0)?);
        let mut copy = out_halves(c, n)?;
        let fresh = c.upload(&p)?;
        c.copy(&fresh, &mut dp.slice_mut(..n))?;
        let (mut p64, mut m64, mut v64) = (wide(&p), vec![0.0f64; n], vec![0.0f64; n]);
        for step in 1..=3u32 {
            let s = AdamStep { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, step };
            let masters: [&mut dyn Write<f32>; 3] =
                [&mut dp.slice_mut(..n), &mut dm.slice_mut(..n), &mut dv.slice_mut(..n)];
            c.adamw(s, masters, &dg, &mut copy.slice_mut(..n), &clipped)?;
            let beta = [f64::from(s.beta1), f64::from(s.beta2)];
            for i in 0..n {
                let gi = f64::from(g[i]) * factor;
                m64[i] = beta[0] * m64[i] + (1.0 - beta[0]) * gi;
                v64[i] = beta[1] * v64[i] + (1.0 - beta[1]) * gi * gi;
                let (m, v) = (m64[i] / (1.0 - beta[0].powi(step as i32)), v64[i] / (1.0 - beta[1].powi(step as i32)));
                p64[i] -= f64::from(s.lr) * (f64::from(s.decay) * p64[i] + m / (v.sqrt() + f64::from(s.eps)));
            }
        }
        let got = read_floats(c, &dp)?;
        t.note("adamw master", &shape, error(got.iter().copied(), &p64), 1e-6);
        t.note("adamw copy", &shape, error(read_halves(c, &copy)?, &p64), ROUNDED);
        // A gradient that is not finite changes nothing.
        let bad = c.upload(&vec![f32::INFINITY; n])?;
        c.grad_norm(&[&bad], 1.0, &mut scratch, &mut clipped)?;
        let s = AdamStep { lr: 1.0, beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, step: 4 };
        let masters: [&mut dyn Write<f32>; 3] =
            [&mut dp.slice_mut(..n), &mut dm.slice_mut(..n), &mut dv.slice_mut(..n)];
        c.adamw(s, masters, &bad, &mut copy.slice_mut(..n), &clipped)?;
        t.note("adamw skips", &shape, error(read_floats(c, &dp)?, &got), 0.0);
    }
    Ok(())
}

pub fn attentions(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    let many: Vec<usize> = (0..60).map(|_| 1 + r.below(9)).collect();
    let more: Vec<usize> = (0..90).map(|_| 1 + r.below(140)).collect();
    let cases: [(&[usize], usize, usize); 8] = [
        (&[1], 2, 1),
        (&[1, 2, 3, 1, 1, 7, 0, 5], 3, 3),
        (&[127, 128, 129, 64, 65, 63], 4, 2),
        (&[300, 1, 17, 200], 4, 1),
        (&many, 2, 1),
        (&more, 8, 4), // more tiles than multiprocessors
        (&[511, 513], 16, 8),
        (&[1100, 3], 4, 2),
    ];
    for dim in [64, 96, 128] {
        for (docs, heads, kv_heads) in cases {
            for scale in [1.0, 2.0] {
                attention(c, r, t, docs, [heads, kv_heads, dim], scale)?;
            }
        }
    }
    Ok(())
}

fn attention(c: &Context, r: &mut Random, t: &mut Table, docs: &[usize], dims: [usize; 3], spread: f32) -> Done {
    let [heads, kv_heads, dim] = dims;
    let tokens: usize = docs.iter().sum();
    let shape = format!("{tokens} tokens in {} x{heads}/{kv_heads}x{dim}", docs.len());
    let (wide, narrow) = (heads * dim, kv_heads * dim);
    // v lies inside rows [q | k | v], q and k apart, as after rotation.
    let (q, k, v, dout) = (
        r.halves(tokens * wide, spread),
        r.halves(tokens * narrow, 1.0),
        r.halves(tokens * narrow, 1.0),
        r.halves(tokens * wide, 1.0),
    );
    let stride = wide + 2 * narrow;
    let mut qkv = vec![bf16::from_f32(f32::NAN); tokens * stride];
    for (row, v) in qkv.chunks_exact_mut(stride).zip(v.chunks_exact(narrow)) {
        row[wide + narrow..].copy_from_slice(v);
    }
    // The long documents apart: short ones have few gradients that do not cancel.
    let long = if docs.iter().all(|d| *d > 500) { " long" } else { "" };
    let scale = 1.0 / (dim as f32).sqrt();
    let want = reference::attention(docs, dims, f64::from(scale), [&f64s(&q), &f64s(&k), &f64s(&v), &f64s(&dout)]);
    let (dq, dk, dqkv, ddout) = (c.upload(&q)?, c.upload(&k)?, c.upload(&qkv)?, c.upload(&dout)?);
    let tiles = c.tiles(docs)?;
    let layout = HeadLayout { heads, kv_heads, dim, q_stride: wide, k_stride: narrow, v_stride: stride };
    let values = dqkv.slice(wide + narrow..);
    let x = Attention { q: &dq, k: &dk, v: &values, layout, scale };
    let (mut out, mut lse) = (out_halves(c, tokens * wide)?, out_floats(c, heads * tokens, f32::NAN)?);
    c.attention(&tiles, x, &mut out, wide, &mut lse)?;
    t.note(&format!("attention{dim} out{long}"), &shape, error(read_halves(c, &out)?, &want.out), 3e-3);
    t.note(&format!("attention{dim} lse{long}"), &shape, error(read_floats(c, &lse)?, &want.lse), EXACT);
    let mut delta = c.alloc(heads * tokens)?;
    let mut first: Option<Vec<Vec<f64>>> = None;
    for _ in 0..2 {
        let (mut gq, mut gk, mut gqkv) =
            (out_halves(c, tokens * wide)?, out_halves(c, tokens * narrow)?, out_halves(c, tokens * stride)?);
        let mut gv = gqkv.slice_mut(wide + narrow..);
        let grads = AttentionGrads { dq: &mut gq, dk: &mut gk, dv: &mut gv, strides: [wide, narrow, stride] };
        c.attention_backward(&tiles, x, (&out, &ddout, wide), &lse, &mut delta, grads)?;
        let rows = read_halves(c, &gqkv)?;
        let untouched = rows.chunks(stride).all(|r| r[..wide + narrow].iter().all(|x| x.is_nan()));
        let gv: Vec<f64> = rows.chunks(stride).flat_map(|r| r[wide + narrow..].to_vec()).collect();
        let got = vec![read_halves(c, &gq)?, read_halves(c, &gk)?, gv];
        if let Some(first) = &first {
            t.note("attention repeats", &shape, f64::from(u8::from(*first != got)), 0.0);
            break;
        }
        t.note("attention stays inside", &shape, f64::from(u8::from(!untouched)), 0.0);
        // A document of one token has no gradient towards q and k but rounding.
        if docs.iter().any(|d| *d > 1) {
            t.note(&format!("attention{dim} dq{long}"), &shape, error(got[0].iter().copied(), &want.dq), 6e-3);
            t.note(&format!("attention{dim} dk{long}"), &shape, error(got[1].iter().copied(), &want.dk), 6e-3);
        }
        t.note(&format!("attention{dim} dv{long}"), &shape, error(got[2].iter().copied(), &want.dv), 6e-3);
        first = Some(got);
    }
    Ok(())
}
