//! Attention and its gradients over documents of up to 65,536 tokens, at some of the rows.
//!
//! Owns which rows. Must not know how errors are measured.

use prl_kernels::cuda::{Attention, AttentionGrads, Context, Element, HeadLayout};
use rayon::prelude::*;

use crate::bench::{EXACT, Random, Table, empty, error, f64s, read};

use super::Done;

/// Rows of each head that are held against a reference, beside those at the borders of tiles.
const ROWS: usize = 24;

/// One pair of heads' inputs as a reference reads them, [tokens, dim] each.
struct Head<'a> {
    dim: usize,
    scale: f64,
    x: [&'a [f64]; 4],
}

impl Head<'_> {
    /// Row `t` of q, k, v or dout.
    fn row(&self, which: usize, t: usize) -> &[f64] {
        &self.x[which][t * self.dim..][..self.dim]
    }

    fn dot(&self, a: (usize, usize), b: (usize, usize)) -> f64 {
        self.row(a.0, a.1).iter().zip(self.row(b.0, b.1)).map(|(a, b)| a * b).sum()
    }

    /// lse, out and dq of row `i` of a document that begins at `start`.
    fn query(&self, start: usize, i: usize) -> (f64, Vec<f64>, Vec<f64>) {
        let s: Vec<f64> = (start..=i).map(|j| self.scale * self.dot((0, i), (1, j))).collect();
        let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + s.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
        let p: Vec<f64> = s.iter().map(|s| (s - lse).exp()).collect();
        let dp: Vec<f64> = (start..=i).map(|j| self.dot((3, i), (2, j))).collect();
        let mean: f64 = p.iter().zip(&dp).map(|(p, d)| p * d).sum();
        let (mut out, mut dq) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        for (n, j) in (start..=i).enumerate() {
            let ds = p[n] * (dp[n] - mean) * self.scale;
            for c in 0..self.dim {
                out[c] += p[n] * self.row(2, j)[c];
                dq[c] += ds * self.row(1, j)[c];
            }
        }
        (lse, out, dq)
    }

    /// dk and dv of row `j` of a document that ends at `end`, from what the forward pass gave of all rows.
    fn key(&self, j: usize, end: usize, lse: &[f64], delta: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut dk, mut dv) = (vec![0.0; self.dim], vec![0.0; self.dim]);
        for i in j..end {
            let p = (self.scale * self.dot((0, i), (1, j)) - lse[i]).exp();
            let ds = p * (self.dot((3, i), (2, j)) - delta[i]) * self.scale;
            for c in 0..self.dim {
                dk[c] += ds * self.row(0, i)[c];
                dv[c] += p * self.row(3, i)[c];
            }
        }
        (dk, dv)
    }
}

/// Attention of one key/value head and one query head.
pub fn far<T: Element>(c: &Context, r: &mut Random, t: &mut Table, docs: &[usize], dim: usize) -> Done {
    let tokens: usize = docs.iter().sum();
    let shape = format!("{tokens} tokens in {} x{dim}", docs.len());
    let x: [Vec<T>; 4] = std::array::from_fn(|_| r.values(tokens * dim, 1.0));
    let [q, k, v, dout] = [c.upload(&x[0])?, c.upload(&x[1])?, c.upload(&x[2])?, c.upload(&x[3])?];
    let tiles = c.tiles(docs)?;
    let layout = HeadLayout { heads: 1, kv_heads: 1, dim, q_stride: dim, k_stride: dim, v_stride: dim };
    let a = Attention { q: &q, k: &k, v: &v, layout, scale: 1.0 / (dim as f32).sqrt() };
    let (mut out, mut lse, mut delta) = (empty::<T>(c, tokens * dim)?, empty::<f32>(c, tokens)?, c.alloc(tokens)?);
    c.attention(&tiles, a, &mut out, dim, &mut lse)?;
    let (mut dq, mut dk, mut dv) =
        (empty::<T>(c, tokens * dim)?, empty::<T>(c, tokens * dim)?, empty::<T>(c, tokens * dim)?);
    let mut sums = c.alloc(c.attention_backward_scratch::<T>(layout, tokens).max(1))?;
    let grads = AttentionGrads { dq: &mut dq, dk: &mut dk, dv: &mut dv, strides: [dim; 3] };
    c.attention_backward(&tiles, a, (&out, &dout, dim), &lse, (&mut delta, Some(&mut sums)), grads)?;

    let x64: [Vec<f64>; 4] = std::array::from_fn(|i| f64s(&x[i]));
    let head = Head { dim, scale: 1.0 / (dim as f64).sqrt(), x: std::array::from_fn(|i| x64[i].as_slice()) };
    let (out, lse) = (read(c, &out)?, read(c, &lse)?);
    let grads = [read(c, &dq)?, read(c, &dk)?, read(c, &dv)?];
    let delta: Vec<f64> =
        out.chunks(dim).zip(x64[3].chunks(dim)).map(|(o, d)| o.iter().zip(d).map(|(o, d)| o * d).sum()).collect();
    let mut picked = Vec::new(); // (row, start of its document, end)
    let mut start = 0;
    for len in docs {
        let edges = [0, 63, 64, 127, 128, len / 2, len - 2, len - 1];
        let some = (0..ROWS).map(|_| r.below(*len));
        picked.extend(edges.into_iter().chain(some).filter(|i| i < len).map(|i| (start + i, start, start + len)));
        start += len;
    }
    let queries: Vec<_> = picked.par_iter().map(|(i, start, _)| head.query(*start, *i)).collect();
    let keys: Vec<_> = picked.par_iter().map(|(j, _, end)| head.key(*j, *end, &lse, &delta)).collect();
    let at = |x: &[f64]| -> Vec<f64> { picked.iter().flat_map(|(i, ..)| x[i * dim..][..dim].to_vec()).collect() };
    let all = |rows: &mut dyn Iterator<Item = &Vec<f64>>| -> Vec<f64> { rows.flatten().copied().collect() };
    let want_lse: Vec<f64> = queries.iter().map(|q| q.0).collect();
    let got_lse = picked.iter().map(|(i, ..)| lse[*i]);
    t.of::<T>(&format!("attention{dim} lse far"), &shape, error(got_lse, &want_lse), EXACT);
    let [dq, dk, dv] = &grads;
    for (what, got, want, limit) in [
        ("out", &out, all(&mut queries.iter().map(|q| &q.1)), 3e-3),
        ("dq", dq, all(&mut queries.iter().map(|q| &q.2)), 6e-3),
        ("dk", dk, all(&mut keys.iter().map(|k| &k.0)), 6e-3),
        ("dv", dv, all(&mut keys.iter().map(|k| &k.1)), 6e-3),
    ] {
        t.of::<T>(&format!("attention{dim} {what} far"), &shape, error(at(got), &want), limit);
    }
    Ok(())
}
