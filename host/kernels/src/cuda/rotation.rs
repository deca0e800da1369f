//! Head norms and rotation.
//!
//! Owns the arguments of their kernels in `rows.cu` and the table of angles. Must not know layers or documents. Positions
//! outside the table give NaN.

use cudarc::driver::CudaSlice;

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check, check_dim, holds};

/// Heads that one warp holds; as in `rows.cu`.
const HEADS: usize = 4;

/// Cosines and sines of positions on the GPU.
pub struct RopeTable {
    cos: CudaSlice<f32>,
    sin: CudaSlice<f32>,
    positions: usize,
    half: usize,
}

impl RopeTable {
    /// Its first buffer.
    pub(super) fn start(&self) -> &CudaSlice<f32> {
        &self.cos
    }
}

/// Heads of a row `[q | k | v]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head: a multiple of 16, at most 128.
    pub dim: usize,
    /// The head norms' epsilon.
    pub eps: f32,
}

impl HeadShape {
    fn warps(&self, tokens: usize) -> usize {
        tokens * (self.heads + self.kv_heads).div_ceil(HEADS)
    }

    fn check(&self, op: &'static str, tokens: usize, qkv: usize, q: usize, k: usize) -> Result<(), CudaError> {
        let Self { heads, kv_heads, dim, .. } = *self;
        check_dim(op, dim)?;
        int(op, self.warps(tokens))?;
        holds(op, "rows [q | k | v]", qkv, tokens * (heads + 2 * kv_heads) * dim)?;
        holds(op, "q", q, tokens * heads * dim)?;
        holds(op, "k", k, tokens * kv_heads * dim)
    }
}

impl Context {
    /// Cosines and sines of `position · inv_freq` times `factor` for positions `0..positions`.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn rope_table(&self, inv_freq: &[f32], factor: f32, positions: usize) -> Result<RopeTable, CudaError> {
        const OP: &str = "rotation's table";
        let half = inv_freq.len();
        let (mut cos, mut sin) = (self.alloc(positions * half)?, self.alloc(positions * half)?);
        let freq = self.upload(inv_freq)?;
        // SAFETY: arguments are those of `rope_table`; the buffers were made for them.
        unsafe {
            self.launch(
                (self.either(Source::Rows), "rope_table"),
                (grid(OP, (positions * half).div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(&freq),
                    self.address_mut(&mut cos),
                    self.address_mut(&mut sin),
                    int(OP, positions)?,
                    int(OP, half)?,
                    factor
                ],
            )?;
        }
        Ok(RopeTable { cos, sin, positions, half })
    }

    /// Head norm (if weights for q and k are given) and rotation of rows `[q | k | v]`, written to `[tokens, heads · dim]`
    /// and `[tokens, kv_heads · dim]`.
    ///
    /// # Errors
    /// If a buffer is too short or the head dimension is not supported.
    pub fn rope<T: Element>(
        &self,
        shape: HeadShape,
        qkv: In<'_, T>,
        weights: Option<[In<'_, f32>; 2]>,
        table: &RopeTable,
        positions: In<'_, i32>,
        (q, k): (Out<'_, T>, Out<'_, T>),
    ) -> Result<(), CudaError> {
        const OP: &str = "rotation";
        let tokens = positions.len();
        shape.check(OP, tokens, qkv.len(), q.len(), k.len())?;
        check(OP, table.half * 2 == shape.dim, || "the table is for another head dimension".to_owned())?;
        for w in weights.into_iter().flatten() {
            holds(OP, "norm weight", w.len(), shape.dim)?;
        }
        let [wq, wk] = weights.map_or([0, 0], |w| w.map(|w| self.address(w)));
        let warps = shape.warps(tokens);
        // SAFETY: arguments are those of `rope`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "rope"),
                (grid(OP, warps.div_ceil(8))?, 1),
                (256, 1),
                0,
                args![
                    self.address(qkv),
                    wq,
                    wk,
                    self.address(&table.cos),
                    self.address(&table.sin),
                    self.address(positions),
                    self.address_mut(q),
                    self.address_mut(k),
                    int(OP, tokens)?,
                    int(OP, shape.heads)?,
                    int(OP, shape.kv_heads)?,
                    int(OP, shape.dim)?,
                    int(OP, table.positions)?,
                    shape.eps
                ],
            )
        }
    }

    /// Gradient of [`Context::rope`] given `dq` and `dk`, written to the q and k parts of `dqkv`. With norm weights,
    /// `grads` holds where their gradients are added, and scratch.
    ///
    /// # Errors
    /// If a buffer is too short or the head dimension is not supported.
    pub fn rope_backward<T: Element>(
        &self,
        shape: HeadShape,
        qkv: In<'_, T>,
        weights: Option<([In<'_, f32>; 2], [Out<'_, f32>; 2], Out<'_, f32>)>,
        table: &RopeTable,
        positions: In<'_, i32>,
        (dq, dk): (In<'_, T>, In<'_, T>),
        dqkv: Out<'_, T>,
    ) -> Result<(), CudaError> {
        const OP: &str = "rotation's gradient";
        let tokens = positions.len();
        shape.check(OP, tokens, qkv.len().min(dqkv.len()), dq.len(), dk.len())?;
        check(OP, table.half * 2 == shape.dim, || "the table is for another head dimension".to_owned())?;
        let warps = shape.warps(tokens);
        if warps == 0 {
            return Ok(());
        }
        let blocks = self.norm_blocks(warps.div_ceil(8));
        let (mut w, mut dw, mut partial) = ([0, 0], [0, 0], 0);
        if let Some((weights, grads, scratch)) = weights {
            for len in [weights[0].len(), weights[1].len(), grads[0].len(), grads[1].len()] {
                holds(OP, "norm weight", len, shape.dim)?;
            }
            holds(OP, "scratch", scratch.len(), blocks as usize * 2 * shape.dim)?;
            w = weights.map(|w| self.address(w));
            dw = grads.map(|g| self.address_mut(g));
            partial = self.address_mut(scratch);
        }
        // SAFETY: arguments are those of `rope_backward`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "rope_backward"),
                (blocks, 1),
                (256, 1),
                0,
                args![
                    self.address(qkv),
                    w[0],
                    w[1],
                    self.address(&table.cos),
                    self.address(&table.sin),
                    self.address(positions),
                    self.address(dq),
                    self.address(dk),
                    self.address_mut(dqkv),
                    partial,
                    int(OP, tokens)?,
                    int(OP, shape.heads)?,
                    int(OP, shape.kv_heads)?,
                    int(OP, shape.dim)?,
                    int(OP, table.positions)?,
                    shape.eps
                ],
            )?;
        }
        if partial != 0 {
            for (i, dw) in dw.into_iter().enumerate() {
                let x = partial + (i * shape.dim * size_of::<f32>()) as u64;
                self.sum_columns(T::PRECISION, x, dw, [blocks as usize, 2 * shape.dim, shape.dim])?;
            }
        }
        Ok(())
    }
}
