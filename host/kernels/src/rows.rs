//! Elementwise and per-row operations of the decoder, forward and backward.
//!
//! Owns RMSNorm, rotation, SwiGLU and the row reductions, each over a run of rows on the calling thread. Must not know
//! about layers, documents or threads. Every reduction has a fixed order, so a row's bits depend on the row only.

use crate::simd::{LANES, exp, fma, simd_fn, sin_cos, sum_lanes};
use crate::weights::{Dims, LayerView, Rope};

/// Cosines and sines, one row of `head_dim / 2` per entry.
pub(crate) struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for the given positions, angles in f32 as `transformers` computes them.
    pub fn new(rope: &Rope, positions: impl ExactSizeIterator<Item = usize>) -> Self {
        let half = rope.inv_freq.len();
        let mut cos = vec![0.0; half * positions.len()];
        let mut sin = vec![0.0; half * positions.len()];
        for (p, (c, s)) in positions.zip(cos.chunks_exact_mut(half).zip(sin.chunks_exact_mut(half))) {
            angles(&rope.inv_freq, p as f32, rope.attention_factor, c, s);
        }
        Self { half, cos, sin }
    }

    fn row(&self, entry: u32) -> (&[f32], &[f32]) {
        let r = entry as usize * self.half..(entry as usize + 1) * self.half;
        (&self.cos[r.clone()], &self.sin[r])
    }
}

simd_fn! {
    fn angles(inv_freq: &[f32], position: f32, factor: f32, cos: &mut [f32], sin: &mut [f32]) {
        let _ = FMA;
        for ((f, c), s) in inv_freq.iter().zip(cos.iter_mut()).zip(sin.iter_mut()) {
            let (a, b) = sin_cos(position * f);
            *s = a * factor;
            *c = b * factor;
        }
    }
}

/// Σ aᵢ·bᵢ in lanes.
#[inline(always)]
fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (ca, cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (ra, rb) = (ca.remainder(), cb.remainder());
    for (x, y) in ca.zip(cb) {
        for l in 0..LANES {
            lanes[l] = fma::<FMA>(x[l], y[l], lanes[l]);
        }
    }
    for (l, (x, y)) in ra.iter().zip(rb).enumerate() {
        lanes[l] = fma::<FMA>(*x, *y, lanes[l]);
    }
    sum_lanes(lanes)
}

/// 1 / sqrt(mean(x²) + eps)
#[inline(always)]
fn rstd<const FMA: bool>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot::<FMA>(x, x) / x.len() as f32 + eps).sqrt()
}

/// Adds to dx the gradient of RMSNorm at x and to dw that of its weight.
#[inline(always)]
fn norm_grad<const FMA: bool>(x: &[f32], w: &[f32], eps: f32, dy: &[f32], dx: &mut [f32], dw: &mut [f32]) {
    let r = rstd::<FMA>(x, eps);
    let mut lanes = [0.0f32; LANES];
    for ((dy, w), x) in dy.chunks(LANES).zip(w.chunks(LANES)).zip(x.chunks(LANES)) {
        for (((lane, dy), w), x) in lanes.iter_mut().zip(dy).zip(w).zip(x) {
            *lane = fma::<FMA>(dy * w, *x, *lane);
        }
    }
    let c = sum_lanes(lanes) * r * r / x.len() as f32;
    for ((((x, w), dy), dx), dw) in x.iter().zip(w).zip(dy).zip(dx).zip(dw) {
        *dw = fma::<FMA>(*dy, x * r, *dw);
        *dx += r * fma::<FMA>(-c, *x, dy * w);
    }
}

simd_fn! {
    /// `y = x · rstd(x) · w` for each row of `w.len()`.
    pub(crate) fn norm_rows(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
        let h = w.len();
        for (x, y) in x.chunks_exact(h).zip(y.chunks_exact_mut(h)) {
            let r = rstd::<FMA>(x, eps);
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * r * w;
            }
        }
    }
}

simd_fn! {
    /// For each row: dx += the gradient of RMSNorm at x towards x, dw += that towards the weight.
    pub(crate) fn norm_rows_backward(x: &[f32], w: &[f32], eps: f32, dy: &[f32], dx: &mut [f32], dw: &mut [f32]) {
        let h = w.len();
        for ((x, dy), dx) in x.chunks_exact(h).zip(dy.chunks_exact(h)).zip(dx.chunks_exact_mut(h)) {
            norm_grad::<FMA>(x, w, eps, dy, dx, dw);
        }
    }
}

simd_fn! {
    /// `y += x`
    pub(crate) fn add(x: &[f32], y: &mut [f32]) {
        let _ = FMA;
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

simd_fn! {
    /// `y = a + b`
    pub(crate) fn sum(a: &[f32], b: &[f32], y: &mut [f32]) {
        let _ = FMA;
        for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
    }
}

simd_fn! {
    /// `h = silu(gate) · up` for rows `[gate | up]` of twice `width`.
    pub(crate) fn swiglu_rows(gate_up: &[f32], width: usize, h: &mut [f32]) {
        for (gu, h) in gate_up.chunks_exact(2 * width).zip(h.chunks_exact_mut(width)) {
            let (g, u) = gu.split_at(width);
            for ((h, g), u) in h.iter_mut().zip(g).zip(u) {
                *h = g / (1.0 + exp::<FMA>(-g)) * u;
            }
        }
    }
}

simd_fn! {
    /// Gradient of [`swiglu_rows`]: turns `dh` into h itself and writes the gradient towards `[gate | up]`.
    pub(crate) fn swiglu_rows_backward(gate_up: &[f32], width: usize, dh: &mut [f32], d_gate_up: &mut [f32]) {
        let rows = gate_up.chunks_exact(2 * width).zip(d_gate_up.chunks_exact_mut(2 * width));
        for ((gu, dgu), dh) in rows.zip(dh.chunks_exact_mut(width)) {
            let (g, u) = gu.split_at(width);
            let (dg, du) = dgu.split_at_mut(width);
            for i in 0..width {
                let sigmoid = 1.0 / (1.0 + exp::<FMA>(-g[i]));
                let silu = g[i] * sigmoid;
                let d = dh[i];
                dh[i] = silu * u[i];
                du[i] = d * silu;
                dg[i] = d * u[i] * fma::<FMA>(silu, 1.0 - sigmoid, sigmoid);
            }
        }
    }
}

simd_fn! {
    /// Bias, head norm and rotation of rows `[q | k | v]`. `raw`, if given, keeps `[q | k]` before the norm.
    pub(crate) fn heads_rows(
        dims: &Dims,
        layer: &LayerView<'_>,
        table: &RopeTable,
        entries: &[u32],
        qkv: &mut [f32],
        raw: Option<&mut [f32]>,
    ) {
        let (q, kv) = (dims.q_width(), dims.kv_width());
        let mut raw = raw.map(|r| r.chunks_exact_mut(q + kv));
        for (row, entry) in qkv.chunks_exact_mut(q + 2 * kv).zip(entries) {
            if let (Some(qb), Some(kb), Some(vb)) = (layer.q_bias, layer.k_bias, layer.v_bias) {
                row[..q].iter_mut().zip(qb).for_each(|(x, b)| *x += b);
                row[q..q + kv].iter_mut().zip(kb).for_each(|(x, b)| *x += b);
                row[q + kv..].iter_mut().zip(vb).for_each(|(x, b)| *x += b);
            }
            if let Some(keep) = raw.as_mut().and_then(Iterator::next) {
                keep.copy_from_slice(&row[..q + kv]);
            }
            let (cos, sin) = table.row(*entry);
            for (i, head) in row[..q + kv].chunks_exact_mut(dims.head_dim).enumerate() {
                let norm = if i < dims.heads { layer.q_norm } else { layer.k_norm };
                if let Some(w) = norm {
                    let r = rstd::<FMA>(head, dims.norm_eps);
                    head.iter_mut().zip(w).for_each(|(x, w)| *x = *x * r * w);
                }
                let (a, b) = head.split_at_mut(cos.len());
                for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    let (x, y) = (*a, *b);
                    *a = fma::<FMA>(x, *c, -(y * s));
                    *b = fma::<FMA>(y, *c, x * s);
                }
            }
        }
    }
}

/// Sums of per-head norm gradients of a run of rows.
pub(crate) struct HeadNormGrads {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
}

simd_fn! {
    /// Gradient of [`heads_rows`] (bias apart): turns dqkv towards rotated heads into dqkv towards the projections.
    pub(crate) fn heads_rows_backward(
        dims: &Dims,
        layer: &LayerView<'_>,
        table: &RopeTable,
        entries: &[u32],
        raw: &[f32],
        dqkv: &mut [f32],
        norms: &mut HeadNormGrads,
    ) {
        let (q, kv, hd) = (dims.q_width(), dims.kv_width(), dims.head_dim);
        let mut scratch = vec![0.0f32; hd];
        for (t, (row, entry)) in dqkv.chunks_exact_mut(q + 2 * kv).zip(entries).enumerate() {
            let (cos, sin) = table.row(*entry);
            for (i, head) in row[..q + kv].chunks_exact_mut(hd).enumerate() {
                let (a, b) = head.split_at_mut(cos.len());
                for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    let (x, y) = (*a, *b);
                    *a = fma::<FMA>(x, *c, y * s);
                    *b = fma::<FMA>(y, *c, -(x * s));
                }
                let (norm, dw) = if i < dims.heads { (layer.q_norm, &mut norms.q) } else { (layer.k_norm, &mut norms.k) };
                if let Some(w) = norm {
                    let x = &raw[t * (q + kv) + i * hd..][..hd];
                    scratch.fill(0.0);
                    norm_grad::<FMA>(x, w, dims.norm_eps, head, &mut scratch, dw);
                    head.copy_from_slice(&scratch);
                }
            }
        }
    }
}

/// Running softmax statistics of one row of logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowStats {
    max: f32,
    sum: f32,
    weighted: f32,
}

impl RowStats {
    /// Of no logits yet.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0, weighted: 0.0 };

    /// ln Σ exp(z)
    pub fn log_z(&self) -> f32 {
        self.max + self.sum.ln()
    }

    /// −Σ p ln p
    pub fn entropy(&self) -> f32 {
        self.sum.ln() - self.weighted / self.sum
    }
}

simd_fn! {
    /// Takes in one block of logits at the given inverse temperature. The result depends on how a row is cut into
    /// blocks, so every caller cuts at multiples of [`crate::head::HEAD_BLOCK`].
    pub(crate) fn stats_block(stats: &mut RowStats, logits: &[f32], inv_temp: f32) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let chunks = logits.chunks_exact(LANES);
        let rest = chunks.remainder();
        for c in chunks.clone() {
            for l in 0..LANES {
                let z = c[l] * inv_temp;
                lanes[l] = if z > lanes[l] { z } else { lanes[l] };
            }
        }
        for (l, x) in rest.iter().enumerate() {
            let z = x * inv_temp;
            lanes[l] = if z > lanes[l] { z } else { lanes[l] };
        }
        let block_max = crate::simd::max_lanes(lanes);
        let max = if block_max > stats.max { block_max } else { stats.max };
        if max == f32::NEG_INFINITY {
            stats.sum = if logits.iter().any(|x| x.is_nan()) { f32::NAN } else { stats.sum };
            return;
        }
        let (mut sum, mut weighted) = ([0.0f32; LANES], [0.0f32; LANES]);
        for c in chunks {
            for l in 0..LANES {
                let z = c[l] * inv_temp - max;
                let e = exp::<FMA>(z);
                sum[l] += e;
                // A logit of minus infinity has weight zero, not NaN.
                let z = if z == f32::NEG_INFINITY { 0.0 } else { z };
                weighted[l] = fma::<FMA>(e, z, weighted[l]);
            }
        }
        for (l, x) in rest.iter().enumerate() {
            let z = x * inv_temp - max;
            let e = exp::<FMA>(z);
            sum[l] += e;
            let z = if z == f32::NEG_INFINITY { 0.0 } else { z };
            weighted[l] = fma::<FMA>(e, z, weighted[l]);
        }
        // Moves the earlier blocks to the new maximum: Σ e·(z − new) = scale · (Σ e·(z − old) + Σ e·(old − new)).
        if stats.sum > 0.0 {
            let shift = stats.max - max;
            let scale = exp::<FMA>(shift);
            stats.weighted = scale * fma::<FMA>(stats.sum, shift, stats.weighted);
            stats.sum *= scale;
        }
        stats.max = max;
        stats.sum += sum_lanes(sum);
        stats.weighted += sum_lanes(weighted);
    }
}

simd_fn! {
    /// Turns logits of columns `first..` into the gradient towards them, given the row's statistics:
    /// `inv_temp · (dlogprob · (1[label] − p) − dentropy · p · (ln p + entropy))`.
    pub(crate) fn logits_gradient(
        logits: &mut [f32],
        label: usize,
        inv_temp: f32,
        log_z: f32,
        entropy: f32,
        dlogprob: f32,
        dentropy: f32,
    ) {
        for x in logits.iter_mut() {
            let log_p = *x * inv_temp - log_z;
            let p = exp::<FMA>(log_p);
            let log_p = if log_p == f32::NEG_INFINITY { 0.0 } else { log_p };
            *x = -(inv_temp * p) * fma::<FMA>(dentropy, log_p + entropy, dlogprob);
        }
        if let Some(x) = logits.get_mut(label) {
            *x += inv_temp * dlogprob;
        }
    }
}

simd_fn! {
    /// Scores of one query to unnormalised probabilities, in place: the first `count` entries become
    /// `exp((s − max) · scale)`, the rest 0. Returns their sum. The length is a multiple of the lane count.
    pub(crate) fn softmax_row(scores: &mut [f32], count: usize, scale: f32) -> f32 {
        scores[count..].fill(f32::NEG_INFINITY);
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for c in scores.chunks_exact(LANES) {
            for l in 0..LANES {
                lanes[l] = if c[l] > lanes[l] { c[l] } else { lanes[l] };
            }
        }
        let max = crate::simd::max_lanes(lanes);
        let mut sum = [0.0f32; LANES];
        for c in scores.chunks_exact_mut(LANES) {
            for l in 0..LANES {
                let e = exp::<FMA>((c[l] - max) * scale);
                c[l] = e;
                sum[l] += e;
            }
        }
        sum_lanes(sum)
    }
}

simd_fn! {
    /// `y = x · factor`, with −0 made +0.
    pub(crate) fn scale_into(x: &[f32], factor: f32, y: &mut [f32]) {
        let _ = FMA;
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * factor + 0.0;
        }
    }
}

simd_fn! {
    /// `p ← p · inv_sum` and `dp ← p · (dp − Σ p · dp) · scale` over one query's keys: the softmax's gradient.
    pub(crate) fn softmax_row_backward(p: &mut [f32], dp: &mut [f32], inv_sum: f32, scale: f32) {
        let mut lanes = [0.0f32; LANES];
        for (p, dp) in p.chunks_exact_mut(LANES).zip(dp.chunks_exact(LANES)) {
            for l in 0..LANES {
                p[l] *= inv_sum;
                lanes[l] = fma::<FMA>(p[l], dp[l], lanes[l]);
            }
        }
        let mean = sum_lanes(lanes);
        for (p, dp) in p.iter().zip(dp.iter_mut()) {
            *dp = p * (*dp - mean) * scale;
        }
    }
}
