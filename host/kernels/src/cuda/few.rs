//! Products of few rows, which stream the weights once.
//!
//! Owns when the kernels of `few.cu` can take a product and which of them does. Must not know what is multiplied.

use super::compile::{Precision, Source};
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check_rows, holds};

/// Most rows; beyond that every block's reading of all rows takes longer than the weights.
const MOST_ROWS: usize = 8;
/// Products of at least so many columns have enough blocks with sixteen columns each.
const WIDE: usize = 8192;

/// A product as addresses, checked by whoever has the buffers.
pub(super) struct Few {
    pub shape: [usize; 3],
    pub x: (u64, usize),
    /// Rows are the product's columns.
    pub w: (u64, usize),
    /// 0 for nothing.
    pub onto: u64,
    pub out: (u64, usize),
    pub float: bool,
}

impl Few {
    /// Whether the kernels can take it: whole chunks of sixteen bytes.
    pub fn fits(&self) -> bool {
        let [m, n, k] = self.shape;
        let whole = |(address, stride): (u64, usize)| address.is_multiple_of(16) && stride.is_multiple_of(8);
        (1..=MOST_ROWS).contains(&m)
            && n > 0
            && k.is_multiple_of(8)
            && whole(self.x)
            && whole(self.w)
            && !(self.float && self.onto != 0)
    }
}

impl Context {
    /// `out = onto + x · wᵀ`.
    ///
    /// # Safety
    /// Addresses are of buffers of this context that hold what shape and strides say, and it fits.
    pub(super) unsafe fn few(&self, p: &Few) -> Result<(), CudaError> {
        let (name, columns) = match (p.float, p.shape[1] >= WIDE) {
            (true, _) => ("few_float", 16),
            (false, true) => ("few_wide", 16),
            (false, false) => ("few_narrow", 8),
        };
        // SAFETY: the caller's.
        unsafe { self.launch_few(name, p.shape[1].div_ceil(columns), p) }
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
        let (x, w, out) = ((self.address(x), k), (self.address(w), k), (self.address_mut(out), n));
        let p = Few { shape: [m, n, k], x, w, onto: 0, out, float: false };
        if T::PRECISION != Precision::Half || !p.fits() || !n.is_multiple_of(8) {
            return Ok(false);
        }
        // SAFETY: buffers were checked against the shape.
        unsafe { self.launch_few("few_swiglu", n / 8, &p) }.map(|()| true)
    }

    unsafe fn launch_few(&self, name: &'static str, blocks: usize, p: &Few) -> Result<(), CudaError> {
        const OP: &str = "product of few rows";
        let [m, n, k] = p.shape;
        // SAFETY: arguments are those of the kernels; the rest is the caller's.
        unsafe {
            self.launch(
                (Source::Few, name),
                (grid(OP, blocks)?, 1),
                (256, 1),
                0,
                args![
                    p.x.0,
                    p.w.0,
                    p.onto,
                    p.out.0,
                    int(OP, m)?,
                    int(OP, n)?,
                    int(OP, k)?,
                    int(OP, p.x.1)?,
                    int(OP, p.w.1)?,
                    int(OP, p.out.1)?
                ],
            )
        }
    }
}
