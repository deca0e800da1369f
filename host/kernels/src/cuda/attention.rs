//! Causal attention of packed documents.
//!
//! Owns which kernels run and their arguments. Must not know how documents are cut, rotation, norms or projections.

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::element::{Element, bf16};
use super::tensor_map::TensorMap;
use super::tiles::{KEY_ROWS, QUERY_ROWS, Tiles, WIDE_KEY_ROWS};
use super::{CudaError, check, check_dim, check_rows, holds};

const OP: &str = "attention";
/// Rows of queries that the fused backward pass of Hopper's kernels takes at a time.
const STEP_ROWS: usize = 64;
/// Rows of a tile that one block of `attention_f32.cu` takes; blocks share a tile.
const EXACT_ROWS: usize = 32;

/// How one storage type and head dimension are computed: the kernels, which tiles of keys they take, the blocks that share
/// a tile, the threads of a block and the bytes of shared memory that each kernel uses.
struct Variant {
    source: Source,
    wide_keys: bool,
    parts: u32,
    threads: u32,
    forward_bytes: u32,
    keys_bytes: u32,
    queries_bytes: u32,
    fused_bytes: u32,
}

impl Variant {
    /// Blocks for so many tiles and heads: Hopper's blocks fill the GPU and walk over their work.
    fn blocks(&self, c: &Context, work: u32) -> (u32, u32) {
        if self.hopper() { (c.blocks(1, work as usize).min(work), 1) } else { (work, self.parts) }
    }

    fn hopper(&self) -> bool {
        matches!(self.source, Source::AttentionHopper(_))
    }

    fn forward<T: Element>(c: &Context, dim: usize) -> Self {
        Self::of(c.attention_forward_source(T::PRECISION, dim), dim)
    }

    fn new<T: Element>(c: &Context, dim: usize) -> Self {
        Self::of(c.attention_source(T::PRECISION, dim), dim)
    }

    fn of(source: Source, dim: usize) -> Self {
        // Rows in shared memory, bytes of a row, and bytes beside them.
        let bytes = |rows: usize, row: usize, more: usize| (rows * row + more) as u32;
        match source {
            Source::AttentionHopper(_) => Self {
                source,
                wide_keys: true,
                parts: 1,
                threads: 384,
                forward_bytes: bytes(2 * QUERY_ROWS + 4 * 128, dim * 2, 1024),
                keys_bytes: bytes(2 * WIDE_KEY_ROWS + 6 * 64, dim * 2, 1024),
                queries_bytes: bytes(2 * QUERY_ROWS + 6 * 64, dim * 2, 1024),
                // Beside keys, values and queries: weights twice and sums in f32.
                fused_bytes: bytes(
                    2 * WIDE_KEY_ROWS + 6 * STEP_ROWS,
                    dim * 2,
                    2 * WIDE_KEY_ROWS * STEP_ROWS * 2 + 1024,
                ),
            },
            Source::AttentionFull(_) => {
                let (row, pieces) = (dim * 4 + 16, 2 * EXACT_ROWS * (EXACT_ROWS + 1) * 4 + 2 * EXACT_ROWS * 4);
                Self {
                    source,
                    wide_keys: true,
                    parts: (QUERY_ROWS / EXACT_ROWS) as u32,
                    threads: 256,
                    forward_bytes: bytes(3 * EXACT_ROWS, row, pieces),
                    keys_bytes: bytes(4 * EXACT_ROWS, row, pieces),
                    queries_bytes: bytes(4 * EXACT_ROWS, row, pieces),
                    fused_bytes: 0,
                }
            }
            _ => Self {
                source,
                wide_keys: false,
                parts: 1,
                threads: 128,
                forward_bytes: bytes(QUERY_ROWS + 4 * 64, dim * 2 + 16, 0),
                keys_bytes: bytes(2 * KEY_ROWS + 4 * 64, dim * 2 + 16, 2 * 128 * 4),
                queries_bytes: bytes(2 * QUERY_ROWS + 4 * 32, dim * 2 + 16, 0),
                fused_bytes: 0,
            },
        }
    }
}

impl Context {
    /// Whether the attention kernels for a head dimension find the shared memory they need on this GPU.
    pub(super) fn check_shared_memory(&self, dim: usize, half: bool) -> Result<(), CudaError> {
        if !half {
            return Ok(());
        }
        let v = Variant::new::<bf16>(self, dim);
        let need = Variant::forward::<bf16>(self, dim).forward_bytes;
        let need = need.max(v.keys_bytes).max(v.queries_bytes).max(v.fused_bytes) as usize;
        let most = self.shared_memory_bytes()?;
        check(OP, need <= most, || {
            format!("heads of {dim} need {need} bytes of shared memory a block, and this GPU has {most}")
        })
    }
}
/// How heads lie in the rows of q, k, v and the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head: a multiple of 16, at most 128.
    pub dim: usize,
    /// Elements from one token's q to the next one's.
    pub q_stride: usize,
    /// The same for k.
    pub k_stride: usize,
    /// The same for v.
    pub v_stride: usize,
}

/// Inputs of attention: rows of one token each, heads side by side. Rows of these and of all results in bf16 begin at
/// multiples of 16 bytes.
#[derive(Clone, Copy)]
pub struct Attention<'a, T> {
    /// Rotated queries.
    pub q: In<'a, T>,
    /// Rotated keys.
    pub k: In<'a, T>,
    /// Values.
    pub v: In<'a, T>,
    /// How they lie.
    pub layout: HeadLayout,
    /// Factor of the scores, 1 / √dim as a rule.
    pub scale: f32,
}

/// Where attention's gradients go, rows as the inputs' with strides of their own.
pub struct AttentionGrads<'a, T> {
    /// Towards the queries.
    pub dq: Out<'a, T>,
    /// Towards the keys.
    pub dk: Out<'a, T>,
    /// Towards the values.
    pub dv: Out<'a, T>,
    /// Elements from one token's row to the next one's, of dq, dk and dv.
    pub strides: [usize; 3],
}

impl<T> Attention<'_, T> {
    fn check(&self, tokens: usize) -> Result<(usize, usize), CudaError> {
        let l = self.layout;
        check_dim(OP, l.dim)?;
        check(OP, l.kv_heads > 0 && l.heads.is_multiple_of(l.kv_heads), || {
            format!("{} heads do not share {} key/value heads evenly", l.heads, l.kv_heads)
        })?;
        let (wide, narrow) = (l.heads * l.dim, l.kv_heads * l.dim);
        check_rows(OP, "q", self.q.len(), tokens, l.q_stride, wide)?;
        check_rows(OP, "k", self.k.len(), tokens, l.k_stride, narrow)?;
        check_rows(OP, "v", self.v.len(), tokens, l.v_stride, narrow)?;
        Ok((wide, narrow))
    }
}

impl Context {
    /// `out[t] = Σ softmax(scale · q[t] · k[..=t]) · v` within each document, rows `[heads · dim]` at `out_stride`, and
    /// `lse[head, t] = ln Σ exp(scale · q · k)`.
    ///
    /// # Errors
    /// If a buffer is too short for the documents or the head dimension is not supported.
    pub fn attention<T: Element>(
        &self,
        tiles: &Tiles,
        x: Attention<'_, T>,
        out: Out<'_, T>,
        out_stride: usize,
        lse: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        let (l, n) = (x.layout, tiles.tokens());
        let (wide, _) = x.check(n)?;
        check_rows(OP, "out", out.len(), n, out_stride, wide)?;
        holds(OP, "lse", lse.len(), l.heads * n)?;
        let (heads, group, tokens) = (int(OP, l.heads)?, int(OP, l.heads / l.kv_heads)?, int(OP, n)?);
        let variant = Variant::forward::<T>(self, l.dim);
        let work = grid(OP, tiles.queries.1 * l.heads)?;
        if variant.hopper() && work > 0 {
            let [q, k, v] = self.maps(&x, n, QUERY_ROWS)?;
            let (blocks, threads) = (variant.blocks(self, work), (variant.threads, 1));
            let (out, lse, list) = (self.address_mut(out), self.address_mut(lse), self.address(&tiles.queries.0));
            let stride = out_stride as i64;
            // SAFETY: arguments are those of Hopper's `attention_forward`; buffers were checked as below.
            return unsafe {
                self.launch(
                    (variant.source, "attention_forward"),
                    blocks,
                    threads,
                    variant.forward_bytes,
                    args![q, k, v, out, lse, list, work, heads, group, tokens, stride, x.scale],
                )
            };
        }
        // SAFETY: arguments are those of `attention_forward`; buffers were checked against tokens, heads and strides.
        unsafe {
            self.launch(
                (variant.source, "attention_forward"),
                variant.blocks(self, work),
                (variant.threads, 1),
                variant.forward_bytes,
                args![
                    self.address(x.q),
                    self.address(x.k),
                    self.address(x.v),
                    self.address_mut(out),
                    self.address_mut(lse),
                    self.address(&tiles.queries.0),
                    work,
                    heads,
                    group,
                    tokens,
                    l.q_stride as i64,
                    l.k_stride as i64,
                    l.v_stride as i64,
                    out_stride as i64,
                    x.scale
                ],
            )
        }
    }

    /// Inputs as Hopper's copies see them, queries in boxes of so many rows.
    fn maps<T>(&self, x: &Attention<'_, T>, tokens: usize, rows: usize) -> Result<[TensorMap; 3], CudaError> {
        let l = x.layout;
        let map = |a: In<'_, T>, heads: usize, stride: usize, rows: usize| {
            self.tensor_map(self.address(a), [tokens, heads * l.dim], stride, rows as u32)
        };
        Ok([
            map(x.q, l.heads, l.q_stride, rows)?,
            map(x.k, l.kv_heads, l.k_stride, WIDE_KEY_ROWS)?,
            map(x.v, l.kv_heads, l.v_stride, WIDE_KEY_ROWS)?,
        ])
    }

    /// Elements of the scratch for sums that [`Context::attention_backward`] needs: one for each of the queries' and a
    /// counter, or none where its sums have a fixed order.
    pub fn attention_backward_scratch<T: Element>(&self, layout: HeadLayout, tokens: usize) -> usize {
        if self.attention_fused(T::PRECISION, layout.dim) { layout.heads * layout.dim * tokens + 1 } else { 0 }
    }

    /// Gradients of [`Context::attention`] given its results and the gradient `dout` towards `out`, both at
    /// `out_stride`. Scratch is `delta`, `[heads, tokens]`, and sums of [`Context::attention_backward_scratch`].
    ///
    /// # Errors
    /// If a buffer is too short for the documents or the head dimension is not supported.
    pub fn attention_backward<T: Element>(
        &self,
        tiles: &Tiles,
        x: Attention<'_, T>,
        (out, dout, out_stride): (In<'_, T>, In<'_, T>, usize),
        lse: In<'_, f32>,
        (delta, sums): (Out<'_, f32>, Option<Out<'_, f32>>),
        grads: AttentionGrads<'_, T>,
    ) -> Result<(), CudaError> {
        let (l, n) = (x.layout, tiles.tokens());
        let (wide, narrow) = x.check(n)?;
        check_rows(OP, "out", out.len(), n, out_stride, wide)?;
        check_rows(OP, "dout", dout.len(), n, out_stride, wide)?;
        check_rows(OP, "dq", grads.dq.len(), n, grads.strides[0], wide)?;
        check_rows(OP, "dk", grads.dk.len(), n, grads.strides[1], narrow)?;
        check_rows(OP, "dv", grads.dv.len(), n, grads.strides[2], narrow)?;
        holds(OP, "lse", lse.len(), l.heads * n)?;
        holds(OP, "delta", delta.len(), l.heads * n)?;
        let need = self.attention_backward_scratch::<T>(l, n);
        holds(OP, "the sums' scratch", sums.as_ref().map_or(0, |s| s.len()), need)?;
        let (heads, kv_heads, group) = (int(OP, l.heads)?, int(OP, l.kv_heads)?, int(OP, l.heads / l.kv_heads)?);
        let (tokens, stride) = (int(OP, n)?, out_stride as i64);
        let strides = grads.strides.map(|s| s as i64);
        let (q, k, v) = (self.address(x.q), self.address(x.k), self.address(x.v));
        let (out, dout, lse, delta) =
            (self.address(out), self.address(dout), self.address(lse), self.address_mut(delta));
        let (dq, dk, dv) = (self.address_mut(grads.dq), self.address_mut(grads.dk), self.address_mut(grads.dv));
        let (qs, ks, vs) = (l.q_stride as i64, l.k_stride as i64, l.v_stride as i64);
        let variant = Variant::new::<T>(self, l.dim);
        let keys = if variant.wide_keys { &tiles.wide_keys } else { &tiles.keys };
        let (key_work, work) = (grid(OP, keys.1 * l.kv_heads)?, grid(OP, tiles.queries.1 * l.heads)?);
        if let Some(sums) = sums.filter(|_| need > 0 && key_work > 0) {
            let sums = self.address_mut(sums);
            let [q, k, v] = self.maps(&x, n, STEP_ROWS)?;
            let d = self.tensor_map(dout, [n, wide], out_stride, STEP_ROWS as u32)?;
            let rows = (grid(OP, (n * wide / 8).div_ceil(256))?, 1);
            let list = self.address(&tiles.near_keys.0);
            // SAFETY: arguments are those of the three kernels; buffers were checked against tokens, heads and strides.
            return unsafe {
                self.launch(
                    (variant.source, "attention_backward_begin"),
                    rows,
                    (256, 1),
                    0,
                    args![out, dout, delta, sums, heads, tokens, stride],
                )?;
                self.launch(
                    (variant.source, "attention_backward"),
                    variant.blocks(self, key_work),
                    (variant.threads, 1),
                    variant.fused_bytes,
                    args![
                        q, k, v, d, lse, delta, sums, dk, dv, list, key_work, kv_heads, group, tokens, strides[1],
                        strides[2], x.scale
                    ],
                )?;
                self.launch(
                    (variant.source, "attention_backward_end"),
                    rows,
                    (256, 1),
                    0,
                    args![sums, dq, heads, tokens, strides[0], x.scale],
                )
            };
        }
        // SAFETY: arguments are those of the three kernels; buffers were checked against tokens, heads and strides.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "attention_delta"),
                (grid(OP, (n * l.heads).div_ceil(8))?, 1),
                (256, 1),
                0,
                args![out, dout, delta, heads, tokens, int(OP, l.dim)?, stride, stride],
            )?;
            self.launch(
                (variant.source, "attention_backward_kv"),
                variant.blocks(self, key_work),
                (variant.threads, 1),
                variant.keys_bytes,
                args![
                    q,
                    k,
                    v,
                    dout,
                    lse,
                    delta,
                    dk,
                    dv,
                    self.address(&keys.0),
                    key_work,
                    kv_heads,
                    group,
                    tokens,
                    qs,
                    ks,
                    vs,
                    stride,
                    strides[1],
                    strides[2],
                    x.scale
                ],
            )?;
            self.launch(
                (variant.source, "attention_backward_q"),
                variant.blocks(self, work),
                (variant.threads, 1),
                variant.queries_bytes,
                args![
                    q,
                    k,
                    v,
                    dout,
                    lse,
                    delta,
                    dq,
                    self.address(&tiles.queries.0),
                    work,
                    heads,
                    group,
                    tokens,
                    qs,
                    ks,
                    vs,
                    stride,
                    strides[0],
                    x.scale
                ],
            )
        }
    }
}
