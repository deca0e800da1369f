//! Products of few rows, which stream the weights once.
//!
//! Owns when the kernels of `few.cu` can take a product and which of them does. Must not know what is multiplied.

use super::compile::{Precision, Source};
use super::context::{Context, In, Out};
use super::element::Element;
use super::forward::{Forward, Places};
use super::{CudaError, check_rows, holds};

/// Most rows; beyond that every block's reading of all rows takes longer than the weights.
const MOST_ROWS: usize = 8;
/// Products of at least so many columns have enough blocks with sixteen columns each.
const WIDE: usize = 8192;

impl Forward {
    /// Whether the kernels of `few.cu` can take it.
    pub fn is_of_few(&self) -> bool {
        (1..=MOST_ROWS).contains(&self.shape[0]) && self.is_whole()
    }
}

impl Context {
    /// `out = onto + x · wᵀ`.
    ///
    /// # Safety
    /// Addresses are of buffers of this context that hold what shape and strides say, and it fits.
    pub(super) unsafe fn few(&self, p: &Forward) -> Result<(), CudaError> {
        let (name, columns) = match (p.float, p.shape[1] >= WIDE) {
            (true, _) => ("few_float", 16),
            (false, true) => ("few_wide", 16),
            (false, false) => ("few_narrow", 8),
        };
        // SAFETY: the caller's.
        unsafe { self.launch_forward((Source::Few, name), [p.shape[1].div_ceil(columns), 1], 256, 0, p) }
    }

    /// `out = silu(x · gateᵀ) · (x · upᵀ)`, both products rounded to bf16 first, where the rows of `w` are gate's `n` and up's
    /// `n`; `false`, and nothing done, where that is not a product of few rows of the kernels' kind.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub(super) fn few_swiglu<T: Element>(
        &self,
        [m, n, k]: [usize; 3],
        x: In<'_, T>,
        w: In<'_, T>,
        out: Out<'_, T>,
    ) -> Result<bool, CudaError> {
        const OP: &str = "gate and up";
        check_rows(OP, "x", x.len(), m, k, k)?;
        check_rows(OP, "w", w.len(), 2 * n, k, k)?;
        holds(OP, "out", out.len(), m * n)?;
        let places = Places { a: self.address(x), b: self.address(w), onto: 0, c: self.address_mut(out) };
        let p = Forward { shape: [m, n, k], places, strides: [k, k, n], float: false };
        if T::PRECISION != Precision::Half || !p.is_of_few() || !n.is_multiple_of(8) {
            return Ok(false);
        }
        // SAFETY: buffers were checked against the shape.
        unsafe { self.launch_forward((Source::Few, "few_swiglu"), [n / 8, 1], 256, 0, &p) }.map(|()| true)
    }
}
