//! Norms, SwiGLU and biases.
//!
//! Owns the arguments of their kernels in `rows.cu`, and the sums of columns. Must not know layers or documents. Row widths
//! are multiples of 8.

use super::compile::{Precision, Source};
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check, holds};

/// Where a norm's weight gradient is added, and scratch of [`Context::norm_scratch`] elements.
pub struct NormGrads<'a> {
    /// The gradient, f32, added to.
    pub dw: Out<'a, f32>,
    /// Scratch.
    pub scratch: Out<'a, f32>,
}

pub(super) fn check_width(op: &'static str, width: usize) -> Result<(), CudaError> {
    check(op, width > 0 && width.is_multiple_of(8), || format!("rows of {width} elements; a multiple of 8 is needed"))
}

/// The kernel for rows of a width, of one for narrow and one for wide rows, and its threads, whole warps.
fn for_width(
    op: &'static str,
    [narrow, wide]: [&'static str; 2],
    hidden: usize,
) -> Result<(&'static str, u32), CudaError> {
    const MOST: usize = 512;
    check_width(op, hidden)?;
    let units = hidden / 8;
    check(op, units <= 2 * MOST, || format!("rows of {hidden} elements; at most {} are supported", 16 * MOST))?;
    let (name, threads) = if units <= MOST { (narrow, units) } else { (wide, units.div_ceil(2)) };
    Ok((name, threads.next_multiple_of(32) as u32))
}

fn null_or(x: Option<u64>) -> u64 {
    x.unwrap_or(0)
}

impl Context {
    /// RMSNorm of rows: `y = h · rstd · w`, `rstd = 1 / √(mean(h²) + eps)`, where `h = x`, or `h = x + add` rounded to
    /// the storage type and written to `sum` if those are given.
    ///
    /// # Errors
    /// If a buffer is too short or the row's width is not supported.
    pub fn rms_norm<T: Element>(
        &self,
        [rows, hidden]: [usize; 2],
        eps: f32,
        x: In<'_, T>,
        residual: Option<(In<'_, T>, Out<'_, T>)>,
        w: In<'_, f32>,
        y: Out<'_, T>,
        rstd: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "RMSNorm";
        let (kernel, threads) = for_width(OP, ["rms_norm_narrow", "rms_norm_wide"], hidden)?;
        let all = rows * hidden;
        for (name, len) in [("x", x.len()), ("y", y.len())] {
            holds(OP, name, len, all)?;
        }
        holds(OP, "w", w.len(), hidden)?;
        holds(OP, "rstd", rstd.len(), rows)?;
        let (mut add, mut sum) = (None, None);
        if let Some((a, s)) = residual {
            holds(OP, "add", a.len(), all)?;
            holds(OP, "sum", s.len(), all)?;
            (add, sum) = (Some(self.address(a)), Some(self.address_mut(s)));
        }
        // SAFETY: arguments are those of `rms_norm`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), kernel),
                (grid(OP, rows)?, 1),
                (threads, 1),
                0,
                args![
                    self.address(x),
                    null_or(add),
                    self.address(w),
                    null_or(sum),
                    self.address_mut(y),
                    self.address_mut(rstd),
                    int(OP, hidden)?,
                    eps
                ],
            )
        }
    }

    pub(super) fn norm_blocks(&self, rows: usize) -> u32 {
        self.blocks(8, rows)
    }

    /// Elements of scratch that a norm's backward pass over rows or heads of `width` needs, and [`Context::column_sums`].
    pub fn norm_scratch(&self, width: usize) -> usize {
        self.norm_blocks(usize::MAX) as usize * width.max(256)
    }

    /// Gradient of [`Context::rms_norm`] at `h`: `dx = through + rstd · (dy · w − h · rstd² · mean(dy · w · h))`, and the
    /// weight's gradient is added to `grads.dw`. Writes the forward's `y = h · rstd · w` again to `y` if given, so that it
    /// need not be kept.
    ///
    /// # Errors
    /// If a buffer is too short or the row's width is not supported.
    pub fn rms_norm_backward<T: Element>(
        &self,
        [rows, hidden]: [usize; 2],
        (h, rstd): (In<'_, T>, In<'_, f32>),
        w: In<'_, f32>,
        dy: In<'_, T>,
        through: Option<In<'_, T>>,
        dx: Out<'_, T>,
        y: Option<Out<'_, T>>,
        grads: NormGrads<'_>,
    ) -> Result<(), CudaError> {
        const OP: &str = "RMSNorm's gradient";
        let (kernel, threads) = for_width(OP, ["rms_norm_backward_narrow", "rms_norm_backward_wide"], hidden)?;
        for (name, len) in [("h", h.len()), ("dy", dy.len()), ("dx", dx.len())] {
            holds(OP, name, len, rows * hidden)?;
        }
        if let Some(t) = through {
            holds(OP, "through", t.len(), rows * hidden)?;
        }
        let y = match y {
            Some(y) => {
                holds(OP, "y", y.len(), rows * hidden)?;
                self.address_mut(y)
            }
            None => 0,
        };
        holds(OP, "w", w.len(), hidden)?;
        holds(OP, "dw", grads.dw.len(), hidden)?;
        holds(OP, "rstd", rstd.len(), rows)?;
        let blocks = self.norm_blocks(rows);
        holds(OP, "scratch", grads.scratch.len(), blocks as usize * hidden)?;
        if rows == 0 {
            return Ok(());
        }
        let partial = self.address_mut(grads.scratch);
        // SAFETY: arguments are those of `rms_norm_backward`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), kernel),
                (blocks, 1),
                (threads, 1),
                0,
                args![
                    self.address(h),
                    self.address(rstd),
                    self.address(w),
                    self.address(dy),
                    null_or(through.map(|t| self.address(t))),
                    self.address_mut(dx),
                    y,
                    partial,
                    int(OP, rows)?,
                    int(OP, hidden)?
                ],
            )?;
        }
        self.sum_columns(T::PRECISION, partial, self.address_mut(grads.dw), [blocks as usize, hidden, hidden])
    }

    /// Adds the sums of `columns` columns of `[rows, stride]` at the address `x` to those at `out`, in a fixed order.
    pub(super) fn sum_columns(
        &self,
        precision: Precision,
        x: u64,
        out: u64,
        [rows, stride, columns]: [usize; 3],
    ) -> Result<(), CudaError> {
        const OP: &str = "sum of columns";
        // SAFETY: all callers made the buffers for these sizes.
        unsafe {
            self.launch(
                (Source::Rows(precision), "sum_columns"),
                (grid(OP, columns.div_ceil(32))?, 1),
                (32, 16),
                0,
                args![x, out, int(OP, rows)?, int(OP, stride)?, int(OP, columns)?],
            )
        }
    }

    /// Adds a bias to each row: `x[r, :] += bias`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn add_bias<T: Element>(
        &self,
        [rows, width]: [usize; 2],
        x: Out<'_, T>,
        bias: In<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "bias";
        check_width(OP, width)?;
        holds(OP, "x", x.len(), rows * width)?;
        holds(OP, "bias", bias.len(), width)?;
        let units = rows * width / 8;
        // SAFETY: arguments are those of `add_bias`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "add_bias"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![self.address_mut(x), self.address(bias), units as i64, int(OP, width)?],
            )
        }
    }

    /// Adds the sum of all rows to `out`, `[width]`: a bias's gradient. `scratch` is of [`Context::norm_scratch`] elements.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn column_sums<T: Element>(
        &self,
        [rows, width]: [usize; 2],
        x: In<'_, T>,
        out: Out<'_, f32>,
        scratch: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "sums of columns";
        check_width(OP, width)?;
        holds(OP, "x", x.len(), rows * width)?;
        holds(OP, "out", out.len(), width)?;
        if rows == 0 {
            return Ok(());
        }
        let blocks = self.norm_blocks(rows);
        holds(OP, "scratch", scratch.len(), blocks as usize * width)?;
        let partial = self.address_mut(scratch);
        // SAFETY: arguments are those of `row_sums`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "row_sums"),
                (blocks, grid(OP, width.div_ceil(8 * 128))?),
                (128, 1),
                0,
                args![self.address(x), partial, int(OP, rows)?, int(OP, width)?],
            )?;
        }
        self.sum_columns(T::PRECISION, partial, self.address_mut(out), [blocks as usize, width, width])
    }

    /// `h = silu(gate) · up` of rows `[gate | up]`, each of `width`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn swiglu<T: Element>(
        &self,
        [rows, width]: [usize; 2],
        gate_up: In<'_, T>,
        h: Out<'_, T>,
    ) -> Result<(), CudaError> {
        const OP: &str = "SwiGLU";
        check_width(OP, width)?;
        holds(OP, "rows [gate | up]", gate_up.len(), rows * 2 * width)?;
        holds(OP, "h", h.len(), rows * width)?;
        let units = rows * width / 8;
        // SAFETY: arguments are those of `swiglu`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "swiglu"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![self.address(gate_up), self.address_mut(h), units as i64, int(OP, width)?],
            )
        }
    }

    /// Gradient of [`Context::swiglu`] towards `[gate | up]`; writes h again to `h` if given.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn swiglu_backward<T: Element>(
        &self,
        [rows, width]: [usize; 2],
        gate_up: In<'_, T>,
        dh: In<'_, T>,
        d_gate_up: Out<'_, T>,
        h: Option<Out<'_, T>>,
    ) -> Result<(), CudaError> {
        const OP: &str = "SwiGLU's gradient";
        check_width(OP, width)?;
        holds(OP, "rows [gate | up]", gate_up.len().min(d_gate_up.len()), rows * 2 * width)?;
        holds(OP, "dh", dh.len(), rows * width)?;
        let h = match h {
            Some(h) => {
                holds(OP, "h", h.len(), rows * width)?;
                self.address_mut(h)
            }
            None => 0,
        };
        let units = rows * width / 8;
        // SAFETY: arguments are those of `swiglu_backward`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "swiglu_backward"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(gate_up),
                    self.address(dh),
                    self.address_mut(d_gate_up),
                    h,
                    units as i64,
                    int(OP, width)?
                ],
            )
        }
    }
}
