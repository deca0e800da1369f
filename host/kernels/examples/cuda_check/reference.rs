//! Plain f64 references of the operations, written from their formulas.
//!
//! Owns nothing but arithmetic. Must not know the GPU.

use rayon::prelude::*;

/// `[m, k] · [k, n]`, each given by an element function.
pub fn product(
    m: usize,
    n: usize,
    k: usize,
    a: impl Fn(usize, usize) -> f64,
    b: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let mut out = Vec::with_capacity(m * n);
    for i in 0..m {
        for j in 0..n {
            out.push((0..k).map(|p| a(i, p) * b(p, j)).sum());
        }
    }
    out
}

/// RMSNorm of one row: `(y, rstd)`.
pub fn norm(x: &[f64], w: &[f64], eps: f64) -> (Vec<f64>, f64) {
    let r = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt();
    (x.iter().zip(w).map(|(x, w)| x * r * w).collect(), r)
}

/// Gradient of [`norm`] towards x; adds that towards w.
pub fn norm_grad(x: &[f64], w: &[f64], eps: f64, dy: &[f64], dw: &mut [f64]) -> Vec<f64> {
    let r = norm(x, w, eps).1;
    let mean = x.iter().zip(w).zip(dy).map(|((x, w), d)| x * w * d).sum::<f64>() / x.len() as f64;
    for ((dw, x), d) in dw.iter_mut().zip(x).zip(dy) {
        *dw += d * x * r;
    }
    x.iter().zip(w).zip(dy).map(|((x, w), d)| r * (d * w - x * r * r * mean)).collect()
}

/// Rotates a head by the angles of a position; `back` turns the other way.
pub fn rotate(x: &[f64], position: usize, inv_freq: &[f32], back: bool) -> Vec<f64> {
    let half = inv_freq.len();
    let mut out = vec![0.0; 2 * half];
    for (i, f) in inv_freq.iter().enumerate() {
        let (s, c) = f64::from(position as f32 * f).sin_cos();
        let s = if back { -s } else { s };
        out[i] = x[i] * c - x[half + i] * s;
        out[half + i] = x[half + i] * c + x[i] * s;
    }
    out
}

/// silu(g) and its derivative.
pub fn silu(g: f64) -> (f64, f64) {
    let s = 1.0 / (1.0 + (-g).exp());
    (g * s, s * (1.0 + g * (1.0 - s)))
}

/// Results of [`attention`], heads of a token side by side; `lse` is `[heads, tokens]`.
pub struct AttentionResult {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

/// Causal attention of packed documents and its gradients given `dout`.
pub fn attention(
    docs: &[usize],
    [heads, kv_heads, dim]: [usize; 3],
    scale: f64,
    [q, k, v, dout]: [&[f64]; 4],
) -> AttentionResult {
    let tokens: usize = docs.iter().sum();
    let group = heads / kv_heads;
    let row = |x: &'_ [f64], n: usize, t: usize, h: usize| -> Vec<f64> { x[(t * n + h) * dim..][..dim].to_vec() };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let per_head: Vec<_> = (0..heads)
        .into_par_iter()
        .map(|h| {
            let g = h / group;
            let mut out = vec![0.0; tokens * dim];
            let (mut dq, mut dk, mut dv) = (out.clone(), out.clone(), out.clone());
            let mut lse = vec![0.0; tokens];
            let mut start = 0;
            for len in docs {
                for i in start..start + len {
                    let (qi, di) = (row(q, heads, i, h), row(dout, heads, i, h));
                    let s: Vec<f64> =
                        (start..=i).map(|j| scale * dot(&qi, &k[(j * kv_heads + g) * dim..][..dim])).collect();
                    let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    lse[i] = top + s.iter().map(|s| (s - top).exp()).sum::<f64>().ln();
                    let p: Vec<f64> = s.iter().map(|s| (s - lse[i]).exp()).collect();
                    let dp: Vec<f64> = (start..=i).map(|j| dot(&di, &v[(j * kv_heads + g) * dim..][..dim])).collect();
                    let mean = dot(&p, &dp);
                    for (n, j) in (start..=i).enumerate() {
                        let ds = p[n] * (dp[n] - mean) * scale;
                        let (kj, vj) = (&k[(j * kv_heads + g) * dim..][..dim], &v[(j * kv_heads + g) * dim..][..dim]);
                        for c in 0..dim {
                            out[i * dim + c] += p[n] * vj[c];
                            dq[i * dim + c] += ds * kj[c];
                            dk[j * dim + c] += ds * qi[c];
                            dv[j * dim + c] += p[n] * di[c];
                        }
                    }
                }
                start += len;
            }
            (out, lse, dq, dk, dv)
        })
        .collect();
    let mut r = AttentionResult {
        out: vec![0.0; tokens * heads * dim],
        lse: Vec::new(),
        dq: vec![0.0; tokens * heads * dim],
        dk: vec![0.0; tokens * kv_heads * dim],
        dv: vec![0.0; tokens * kv_heads * dim],
    };
    for (h, (out, lse, dq, dk, dv)) in per_head.into_iter().enumerate() {
        r.lse.extend(lse);
        for t in 0..tokens {
            for c in 0..dim {
                r.out[(t * heads + h) * dim + c] = out[t * dim + c];
                r.dq[(t * heads + h) * dim + c] = dq[t * dim + c];
                r.dk[(t * kv_heads + h / group) * dim + c] += dk[t * dim + c];
                r.dv[(t * kv_heads + h / group) * dim + c] += dv[t * dim + c];
            }
        }
    }
    r
}

/// Attention of one query head to all entries of key/value head `head` of `heads`.
pub fn attend(q: &[f64], k: &[f64], v: &[f64], [heads, head]: [usize; 2], scale: f64) -> Vec<f64> {
    let of = |x: &'_ [f64], j: usize| -> Vec<f64> { x[(j * heads + head) * q.len()..][..q.len()].to_vec() };
    let count = k.len() / (heads * q.len());
    let s: Vec<f64> = (0..count).map(|j| scale * of(k, j).iter().zip(q).map(|(a, b)| a * b).sum::<f64>()).collect();
    let top = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = s.iter().map(|s| (s - top).exp()).sum();
    let mut out = vec![0.0; q.len()];
    for (j, s) in s.iter().enumerate() {
        let p = (s - top).exp() / sum;
        out.iter_mut().zip(of(v, j)).for_each(|(o, v)| *o += p * v);
    }
    out
}

/// ln p(label), entropy and ln Σ exp of one row.
pub fn head(logits: &[f64], label: usize, inv_temp: f64) -> [f64; 3] {
    let top = logits.iter().map(|x| x * inv_temp).fold(f64::NEG_INFINITY, f64::max);
    let logz = top + logits.iter().map(|x| (x * inv_temp - top).exp()).sum::<f64>().ln();
    let entropy = logits.iter().map(|x| x * inv_temp - logz).map(|l| -l.exp() * l).sum();
    [logits[label] * inv_temp - logz, entropy, logz]
}

/// Gradient of `dl · logprob + de · entropy` towards the logits.
pub fn head_gradient(logits: &[f64], label: usize, inv_temp: f64, [dl, de]: [f64; 2]) -> Vec<f64> {
    let [_, entropy, logz] = head(logits, label, inv_temp);
    let one = |j, x: &f64| {
        let l = x * inv_temp - logz;
        inv_temp * (dl * (f64::from(u8::from(j == label)) - l.exp()) - de * l.exp() * (l + entropy))
    };
    logits.iter().enumerate().map(|(j, x)| one(j, x)).collect()
}
