//! Attention of packed documents and its gradients.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{Attention, AttentionGrads, Context, Element, HeadLayout};

use crate::bench::{EXACT, Random, Table, empty, error, f64s, read};
use crate::reference;

use super::{Done, Only};

/// Attention over every set of documents, or the small ones only.
pub fn attentions<T: Element>(c: &Context, r: &mut Random, t: &mut Table, only: Only<'_>) -> Done {
    let many: Vec<usize> = (0..60).map(|_| 1 + r.below(9)).collect();
    let more: Vec<usize> = (0..90).map(|_| 1 + r.below(140)).collect();
    let cases: [(&[usize], usize, usize); 10] = [
        (&[1], 2, 1),
        (&[1, 2, 3, 1, 1, 7, 0, 5], 3, 3),
        (&[127, 128, 129, 64, 65, 63], 4, 2),
        (&[300, 1, 17, 200], 4, 1),
        (&many, 2, 1),
        (&more, 8, 4), // more tiles than multiprocessors
        (&[511, 513], 16, 8),
        (&[1100, 3], 4, 2),
        (&[129, 70, 256], 3, 1),
        (&[190, 1, 65, 128], 8, 1),
    ];
    for dim in only.dims() {
        // All documents for the dimensions that models have most.
        let few = if only.small {
            3
        } else if matches!(dim, 64 | 96 | 128) {
            cases.len()
        } else {
            5
        };
        for (docs, heads, kv_heads) in cases.into_iter().take(few) {
            for scale in [1.0, 2.0] {
                attention::<T>(c, r, t, docs, [heads, kv_heads, dim], scale)?;
            }
        }
    }
    Ok(())
}

fn attention<T: Element>(
    c: &Context,
    r: &mut Random,
    t: &mut Table,
    docs: &[usize],
    dims: [usize; 3],
    spread: f32,
) -> Done {
    let [heads, kv_heads, dim] = dims;
    let tokens: usize = docs.iter().sum();
    let shape = format!("{tokens} tokens in {} x{heads}/{kv_heads}x{dim}", docs.len());
    let (wide, narrow) = (heads * dim, kv_heads * dim);
    // v lies inside rows [q | k | v], q and k apart, as after rotation.
    let (q, k, v, dout) = (
        r.values::<T>(tokens * wide, spread),
        r.values::<T>(tokens * narrow, 1.0),
        r.values::<T>(tokens * narrow, 1.0),
        r.values::<T>(tokens * wide, 1.0),
    );
    let stride = wide + 2 * narrow;
    let mut qkv = vec![T::from_f32(f32::NAN); tokens * stride];
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
    let (mut out, mut lse) = (empty::<T>(c, tokens * wide)?, empty::<f32>(c, heads * tokens)?);
    c.attention(&tiles, x, &mut out, wide, &mut lse)?;
    t.of::<T>(&format!("attention{dim} out{long}"), &shape, error(read(c, &out)?, &want.out), 3e-3);
    t.of::<T>(&format!("attention{dim} lse{long}"), &shape, error(read(c, &lse)?, &want.lse), EXACT);
    let mut delta = c.alloc(heads * tokens)?;
    let need = c.attention_backward_scratch::<T>(layout, tokens);
    let mut first: Option<Vec<Vec<f64>>> = None;
    for _ in 0..2 {
        let (mut gq, mut gk, mut gqkv) =
            (empty::<T>(c, tokens * wide)?, empty::<T>(c, tokens * narrow)?, empty::<T>(c, tokens * stride)?);
        let mut gv = gqkv.slice_mut(wide + narrow..);
        let grads = AttentionGrads { dq: &mut gq, dk: &mut gk, dv: &mut gv, strides: [wide, narrow, stride] };
        let mut sums = empty::<f32>(c, need)?;
        let mut own = sums.slice_mut(..need);
        c.attention_backward(&tiles, x, (&out, &ddout, wide), &lse, (&mut delta, Some(&mut own)), grads)?;
        let rows = read(c, &gqkv)?;
        let untouched = rows.chunks(stride).all(|r| r[..wide + narrow].iter().all(|x| x.is_nan()));
        let gv: Vec<f64> = rows.chunks(stride).flat_map(|r| r[wide + narrow..].to_vec()).collect();
        let got = vec![read(c, &gq)?, read(c, &gk)?, gv];
        if let Some(first) = &first {
            // The sums towards queries have no fixed order where they are scratch.
            let same = first[1..] == got[1..] && (need > 0 || first[0] == got[0]);
            t.holds("attention repeats", &shape, same);
            break;
        }
        let untouched = untouched && read(c, &sums)?.iter().all(|x| !x.is_nan());
        t.holds("attention stays inside", &shape, untouched);
        // A document of one token has no gradient towards q and k but rounding.
        if docs.iter().any(|d| *d > 1) {
            t.of::<T>(&format!("attention{dim} dq{long}"), &shape, error(got[0].iter().copied(), &want.dq), 6e-3);
            t.of::<T>(&format!("attention{dim} dk{long}"), &shape, error(got[1].iter().copied(), &want.dk), 6e-3);
        }
        t.of::<T>(&format!("attention{dim} dv{long}"), &shape, error(got[2].iter().copied(), &want.dv), 6e-3);
        first = Some(got);
    }
    Ok(())
}
