//! Norms, rotation, SwiGLU and embeddings.
//!
//! Owns the arguments of the kernels in `rows.cu`. Must not know layers or documents. Row widths are multiples of 8.
//! Out-of-range ids and positions give NaN.

use super::element::bf16;
use cudarc::driver::CudaSlice;

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::{CudaError, check, holds};

/// Heads that one warp holds; as in `rows.cu`.
const HEADS: usize = 4;

/// Cosines and sines of positions on the GPU.
pub struct RopeTable {
    cos: CudaSlice<f32>,
    sin: CudaSlice<f32>,
    positions: usize,
    half: usize,
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
        check(op, dim.is_multiple_of(16) && (16..=128).contains(&dim), || {
            format!("head dimension {dim} is not a multiple of 16 up to 128")
        })?;
        int(op, self.warps(tokens))?;
        holds(op, "rows [q | k | v]", qkv, tokens * (heads + 2 * kv_heads) * dim)?;
        holds(op, "q", q, tokens * heads * dim)?;
        holds(op, "k", k, tokens * kv_heads * dim)
    }
}

/// Where a norm's weight gradient is added, and scratch of [`Context::norm_scratch`] elements.
pub struct NormGrads<'a> {
    /// The gradient, f32, added to.
    pub dw: Out<'a, f32>,
    /// Scratch.
    pub scratch: Out<'a, f32>,
}

/// Tokens of a batch ordered by id, so that an embedding's gradient is summed in a fixed order.
pub struct EmbedOrder {
    order: CudaSlice<i32>,
    starts: CudaSlice<i32>,
    ids: CudaSlice<i32>,
    segments: usize,
    tokens: usize,
    vocab: usize,
}

fn check_width(op: &'static str, width: usize) -> Result<(), CudaError> {
    check(op, width > 0 && width.is_multiple_of(8), || format!("rows of {width} elements; a multiple of 8 is needed"))
}

/// The kernel for rows of a width, of one for narrow and one for wide rows, and its threads, whole warps.
fn for_width(
    op: &'static str,
    [narrow, wide]: [&'static str; 2],
    hidden: usize,
) -> Result<((Source, &'static str), u32), CudaError> {
    const MOST: usize = 512;
    check_width(op, hidden)?;
    let units = hidden / 8;
    check(op, units <= 2 * MOST, || format!("rows of {hidden} elements; at most {} are supported", 16 * MOST))?;
    let (name, threads) = if units <= MOST { (narrow, units) } else { (wide, units.div_ceil(2)) };
    Ok(((Source::Rows, name), threads.next_multiple_of(32) as u32))
}

fn null_or(x: Option<u64>) -> u64 {
    x.unwrap_or(0)
}

impl Context {
    /// RMSNorm of rows: `y = h · rstd · w`, `rstd = 1 / √(mean(h²) + eps)`, where `h = x`, or `h = x + add` rounded to
    /// bf16 and written to `sum` if those are given.
    ///
    /// # Errors
    /// If a buffer is too short or the row's width is not supported.
    pub fn rms_norm(
        &self,
        [rows, hidden]: [usize; 2],
        eps: f32,
        x: In<'_, bf16>,
        residual: Option<(In<'_, bf16>, Out<'_, bf16>)>,
        w: In<'_, f32>,
        y: Out<'_, bf16>,
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
                kernel,
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

    fn norm_blocks(&self, rows: usize) -> u32 {
        self.blocks(8, rows)
    }

    /// Elements of scratch that a norm's backward pass over rows or heads of `width` needs.
    pub fn norm_scratch(&self, width: usize) -> usize {
        self.norm_blocks(usize::MAX) as usize * width.max(256)
    }

    /// Gradient of [`Context::rms_norm`] at `h`: `dx = through + rstd · (dy · w − h · rstd² · mean(dy · w · h))`, and the
    /// weight's gradient is added to `grads.dw`.
    ///
    /// # Errors
    /// If a buffer is too short or the row's width is not supported.
    pub fn rms_norm_backward(
        &self,
        [rows, hidden]: [usize; 2],
        (h, rstd): (In<'_, bf16>, In<'_, f32>),
        w: In<'_, f32>,
        dy: In<'_, bf16>,
        through: Option<In<'_, bf16>>,
        dx: Out<'_, bf16>,
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
                kernel,
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
                    partial,
                    int(OP, rows)?,
                    int(OP, hidden)?
                ],
            )?;
        }
        self.sum_columns(partial, self.address_mut(grads.dw), blocks as usize, hidden, hidden)
    }

    /// Adds the sums of `columns` columns of `[rows, stride]` at the address `x` to those at `out`, in a fixed order.
    fn sum_columns(&self, x: u64, out: u64, rows: usize, stride: usize, columns: usize) -> Result<(), CudaError> {
        const OP: &str = "sum of columns";
        // SAFETY: both callers made the buffers for these sizes.
        unsafe {
            self.launch(
                (Source::Rows, "sum_columns"),
                (grid(OP, columns.div_ceil(32))?, 1),
                (32, 16),
                0,
                args![x, out, int(OP, rows)?, int(OP, stride)?, int(OP, columns)?],
            )
        }
    }

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
                (Source::Rows, "rope_table"),
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
    pub fn rope(
        &self,
        shape: HeadShape,
        qkv: In<'_, bf16>,
        weights: Option<[In<'_, f32>; 2]>,
        table: &RopeTable,
        positions: In<'_, i32>,
        (q, k): (Out<'_, bf16>, Out<'_, bf16>),
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
                (Source::Rows, "rope"),
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
    pub fn rope_backward(
        &self,
        shape: HeadShape,
        qkv: In<'_, bf16>,
        weights: Option<([In<'_, f32>; 2], [Out<'_, f32>; 2], Out<'_, f32>)>,
        table: &RopeTable,
        positions: In<'_, i32>,
        (dq, dk): (In<'_, bf16>, In<'_, bf16>),
        dqkv: Out<'_, bf16>,
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
                (Source::Rows, "rope_backward"),
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
                self.sum_columns(x, dw, blocks as usize, 2 * shape.dim, shape.dim)?;
            }
        }
        Ok(())
    }

    /// `h = silu(gate) · up` of rows `[gate | up]`, each of `width`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn swiglu(&self, [rows, width]: [usize; 2], gate_up: In<'_, bf16>, h: Out<'_, bf16>) -> Result<(), CudaError> {
        const OP: &str = "SwiGLU";
        check_width(OP, width)?;
        holds(OP, "rows [gate | up]", gate_up.len(), rows * 2 * width)?;
        holds(OP, "h", h.len(), rows * width)?;
        let units = rows * width / 8;
        // SAFETY: arguments are those of `swiglu`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Rows, "swiglu"),
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
    pub fn swiglu_backward(
        &self,
        [rows, width]: [usize; 2],
        gate_up: In<'_, bf16>,
        dh: In<'_, bf16>,
        d_gate_up: Out<'_, bf16>,
        h: Option<Out<'_, bf16>>,
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
                (Source::Rows, "swiglu_backward"),
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

    /// `x[t] = table[ids[t]]` for a table of rows of `hidden`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn embed(
        &self,
        hidden: usize,
        table: In<'_, bf16>,
        ids: In<'_, i32>,
        x: Out<'_, bf16>,
    ) -> Result<(), CudaError> {
        const OP: &str = "embedding";
        check_width(OP, hidden)?;
        holds(OP, "x", x.len(), ids.len() * hidden)?;
        let units = ids.len() * hidden / 8;
        // SAFETY: arguments are those of `embed`; buffers were checked and the kernel checks ids.
        unsafe {
            self.launch(
                (Source::Rows, "embed"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(table),
                    self.address(ids),
                    self.address_mut(x),
                    units as i64,
                    int(OP, hidden)?,
                    int(OP, table.len() / hidden)?
                ],
            )
        }
    }

    /// Orders a batch's tokens by id for [`Context::embed_backward`].
    ///
    /// # Errors
    /// If an id is not below `vocab` or there is not enough memory.
    pub fn embed_order(&self, ids: &[u32], vocab: usize) -> Result<EmbedOrder, CudaError> {
        const OP: &str = "embedding's gradient";
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(CudaError::Shape { op: OP, what: format!("token {id} is not in a vocabulary of {vocab}") });
        }
        let mut order: Vec<i32> = (0..int(OP, ids.len())?).collect();
        order.sort_by_key(|t| ids[*t as usize]);
        let (mut starts, mut unique) = (Vec::new(), Vec::new());
        for (i, t) in order.iter().enumerate() {
            let id = ids[*t as usize] as i32;
            if unique.last() != Some(&id) {
                unique.push(id);
                starts.push(i as i32);
            }
        }
        starts.push(order.len() as i32);
        Ok(EmbedOrder {
            segments: unique.len(),
            tokens: ids.len(),
            vocab,
            order: self.upload(&order)?,
            starts: self.upload(&starts)?,
            ids: self.upload(&unique)?,
        })
    }

    /// Adds the gradient `dx` of a batch's embeddings to `grad`, `[vocab, hidden]`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn embed_backward(
        &self,
        hidden: usize,
        order: &EmbedOrder,
        dx: In<'_, bf16>,
        grad: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "embedding's gradient";
        check_width(OP, hidden)?;
        holds(OP, "dx", dx.len(), order.tokens * hidden)?;
        holds(OP, "grad", grad.len(), order.vocab * hidden)?;
        // SAFETY: arguments are those of `embed_backward`; buffers were checked, the order comes from `embed_order`.
        unsafe {
            self.launch(
                (Source::Rows, "embed_backward"),
                (grid(OP, order.segments)?, grid(OP, hidden.div_ceil(256))?),
                (128, 1),
                0,
                args![
                    self.address(dx),
                    self.address(&order.order),
                    self.address(&order.starts),
                    self.address(&order.ids),
                    self.address_mut(grad),
                    int(OP, hidden)?
                ],
            )
        }
    }
}
