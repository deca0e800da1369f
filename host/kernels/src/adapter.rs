//! Low-rank additions to a decoder's matrices, different ones for different sequences of a batch.
//!
//! Owns their shapes and their products. Must not know files or which request has which. LoRA (Hu et al. 2021, equation 3):
//! a matrix W with an addition gives `W·x + B·(A·x)`, the scale `alpha / r` being part of B here.

use std::ops::Range;

use crate::gemm::nt;
use crate::weights::{Dims, KernelError};

/// An addition of rank `r` to a matrix `[out, in]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// `[r, in]`.
    pub a: Vec<f32>,
    /// `[out, r]`, times the scale.
    pub b: Vec<f32>,
    /// r, at least 1.
    pub rank: usize,
}

/// The additions of one layer, by matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterLayer {
    /// To the query projection.
    pub q: Option<LowRank>,
    /// To the key projection.
    pub k: Option<LowRank>,
    /// To the value projection.
    pub v: Option<LowRank>,
    /// To the output projection of the attention.
    pub o: Option<LowRank>,
    /// To the gate projection.
    pub gate: Option<LowRank>,
    /// To the up projection.
    pub up: Option<LowRank>,
    /// To the down projection.
    pub down: Option<LowRank>,
}

impl AdapterLayer {
    /// Checks the additions against a decoder's dimensions.
    ///
    /// # Errors
    /// Names the first that does not fit.
    pub fn validate(&self, d: &Dims) -> Result<(), KernelError> {
        let (h, q, kv, f) = (d.hidden, d.q_width(), d.kv_width(), d.ffn);
        for (name, pair, out, input) in [
            ("q", &self.q, q, h),
            ("k", &self.k, kv, h),
            ("v", &self.v, kv, h),
            ("o", &self.o, h, q),
            ("gate", &self.gate, f, h),
            ("up", &self.up, f, h),
            ("down", &self.down, h, f),
        ] {
            let Some(LowRank { a, b, rank }) = pair else { continue };
            if *rank == 0 || a.len() != rank * input || b.len() != out * rank {
                return Err(KernelError::Adapter { name, rank: *rank, got: [a.len(), b.len()], shape: [out, input] });
            }
        }
        Ok(())
    }
}

/// Which rows of a batch have which additions in a layer.
pub(crate) type RowAdapters<'a> = Vec<(Range<usize>, &'a AdapterLayer)>;

/// Adds to the rows of y what the additions chosen by `which` make of the rows of x.
///
/// # Safety
/// x and y must hold the rows at their strides, as wide as the matrix that was validated; nobody else may use y.
pub(crate) unsafe fn add(
    adapters: &RowAdapters<'_>,
    which: fn(&AdapterLayer) -> &Option<LowRank>,
    (x, ldx, input): (*const f32, usize, usize),
    (y, ldy, out): (*mut f32, usize, usize),
) {
    for (rows, layer) in adapters {
        let Some(LowRank { a, b, rank }) = which(layer) else { continue };
        let mut low = vec![0.0f32; rows.len() * rank];
        let mut high = vec![0.0f32; rows.len() * out];
        // SAFETY: by the caller's word; the buffers have the products' shapes.
        unsafe {
            nt(false, rows.len(), *rank, input, x.add(rows.start * ldx), ldx, a.as_ptr(), low.as_mut_ptr(), *rank);
            nt(false, rows.len(), out, *rank, low.as_ptr(), *rank, b.as_ptr(), high.as_mut_ptr(), out);
            for (row, high) in rows.clone().zip(high.chunks_exact(out)) {
                let y = std::slice::from_raw_parts_mut(y.add(row * ldy), out);
                y.iter_mut().zip(high).for_each(|(y, x)| *y += x);
            }
        }
    }
}
