//! Muon's step of a matrix. Owns the orthogonalisation and its constants; must not know which parameters are matrices.

use prl_model::{gemm_nn, gemm_nt};

/// The momentum in the file.
pub(super) const SLOT: &str = super::sgd::SLOT;

/// Coefficients (a, b, c) of the five iterations x ← a·x + b·x³ + c·x⁵ on singular values: those of Dion's Muon
/// (github.com/microsoft/dion, `newton_schulz_triton.py`), which prime-rl trains with. The first ones lift small values,
/// the last ones gather all of them around 1.
const ITERATIONS: [[f32; 3]; 5] = [
    [4.0848, -6.8946, 2.9270],
    [3.9505, -6.3029, 2.6377],
    [3.7418, -5.5913, 2.3037],
    [2.8769, -3.1427, 1.2046],
    [2.8366, -3.0525, 1.2012],
];

/// Keeps the division by the norm of a matrix of zeros finite; Dion's.
const EPSILON: f64 = 1e-8;

/// Root mean square that an update is scaled to, about AdamW's, so that both can share a learning rate (Liu et al. 2025,
/// "Muon is scalable for LLM training", section 2.2; Dion's and prime-rl's `rms_norm`).
const RMS: f64 = 0.2;

/// Momentum, made orthogonal (Jordan et al. 2024): b = μ·b + d; p −= lr·λ·p + lr·0.2·√max(out, in)·U, where U has b's
/// singular vectors and singular values near 1. No look ahead, as in prime-rl.
#[derive(Clone, Copy, Debug)]
pub(super) struct Muon {
    pub mu: f64,
    pub weight_decay: f64,
}

impl Muon {
    /// A step of one matrix `[out, in]`.
    pub fn step(
        &self,
        lr: f64,
        [rows, columns]: [usize; 2],
        weights: &mut [f32],
        grad: &[f32],
        buffer: &mut Option<Vec<f32>>,
    ) {
        let buffer = buffer.get_or_insert_with(|| vec![0.0; grad.len()]);
        let mu = self.mu as f32;
        for (b, d) in buffer.iter_mut().zip(grad) {
            *b = mu * *b + d;
        }
        let update = orthogonal(rows, columns, buffer);
        let decay = (lr * self.weight_decay) as f32;
        let rate = (lr * RMS * (rows.max(columns) as f64).sqrt()) as f32;
        for (p, u) in weights.iter_mut().zip(&update) {
            *p -= decay * *p + rate * u;
        }
    }
}

/// The matrix of the same singular vectors whose singular values are near 1, where those of `matrix` are not tiny beside
/// its norm; zeros of zeros. In f32, sums in a fixed order.
pub(super) fn orthogonal(rows: usize, columns: usize, matrix: &[f32]) -> Vec<f32> {
    if rows > columns {
        let wide = orthogonal(columns, rows, &transposed(rows, columns, matrix));
        return transposed(columns, rows, &wide);
    }
    let norm = matrix.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = 1.0 / (norm + EPSILON);
    let (m, n) = (rows, columns);
    let mut x: Vec<f32> = matrix.iter().map(|v| (f64::from(*v) * scale) as f32).collect();
    let (mut gram, mut square, mut next) = (vec![0.0; m * m], vec![0.0; m * m], vec![0.0; m * n]);
    for [a, b, c] in ITERATIONS {
        gemm_nt(m, m, n, &x, &x, &mut gram);
        gemm_nn(m, m, m, &gram, &gram, &mut square, false);
        for (s, g) in square.iter_mut().zip(&gram) {
            *s = b * g + c * *s;
        }
        for (y, v) in next.iter_mut().zip(&x) {
            *y = a * v;
        }
        gemm_nn(m, n, m, &square, &x, &mut next, true);
        std::mem::swap(&mut x, &mut next);
    }
    x
}

fn transposed(rows: usize, columns: usize, matrix: &[f32]) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
}
