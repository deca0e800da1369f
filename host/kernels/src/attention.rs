//! Causal attention of a few query rows over one head's keys, forward and backward.
//!
//! Owns the layout of packed keys and values. Must not know where the rows come from (a packed batch or a cache): both
//! go through the same functions, so both give the same bits. Keys are taken in ascending order in blocks of
//! [`KEY_BLOCK`]; a row's result depends on its query and the keys up to its own position only.

use crate::micro::{LANE_GROUP, Tile, kernel};
use crate::rows::{scale_into, softmax_row, softmax_row_backward};
use crate::transpose::transpose;

/// Keys per block of the packed layout.
pub(crate) const KEY_BLOCK: usize = 32;
/// Query rows scored at a time.
pub(crate) const QUERY_BLOCK: usize = 60;

/// `head_dim` rounded up to whole lane groups.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANE_GROUP)
}

/// Elements of the keys, and of the values, of one block of one head.
pub(crate) fn block_sizes(head_dim: usize) -> (usize, usize) {
    (head_dim * KEY_BLOCK, KEY_BLOCK * padded(head_dim))
}

/// One head's packed keys and values: per block, keys `[head_dim][KEY_BLOCK]` and values `[KEY_BLOCK][padded]`.
pub(crate) trait PackedHead {
    /// The keys of block `b`.
    fn keys(&self, b: usize) -> *const f32;
    /// The values of block `b`.
    fn values(&self, b: usize) -> *const f32;
}

/// Rows of one head inside a wider matrix.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub data: *const f32,
    pub stride: usize,
}

/// Buffers of one attention task.
#[derive(Default)]
pub(crate) struct Scratch {
    scores: Vec<f32>,
    dscores: Vec<f32>,
    tile: Vec<f32>,
    keys_t: Vec<f32>,
    values_t: Vec<f32>,
    keys: Vec<f32>,
    queries: Vec<f32>,
    dout: Vec<f32>,
    dkeys: Vec<f32>,
    dvalues: Vec<f32>,
}

fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}

/// Attention of `rows` queries; row r sees the keys `0..=first + r * step`. Writes `head_dim` elements per row.
///
/// # Safety
/// Queries, packed blocks up to the last position, and output rows must be valid; the output must not overlap them.
pub(crate) unsafe fn attend(
    queries: Rows,
    rows: usize,
    first: usize,
    step: usize,
    head: &impl PackedHead,
    head_dim: usize,
    out: *mut f32,
    out_stride: usize,
    scratch: &mut Scratch,
) {
    let kern = kernel();
    let wide = padded(head_dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let seen = |r: usize| first + r * step + 1;
    let ld = seen(rows - 1).next_multiple_of(KEY_BLOCK);
    grow(&mut scratch.scores, rows * ld);
    grow(&mut scratch.tile, kern.rows * wide);
    // SAFETY: the caller vouches for operands; scratch is large enough.
    unsafe {
        scores(queries, rows, first, step, |b| head.keys(b), head_dim, &mut scratch.scores, ld);
        let mut r = 0;
        while r < rows {
            let height = kern.rows.min(rows - r);
            let mut inv = [0.0f32; 16];
            let last = seen(r + height - 1);
            for i in 0..height {
                let row = &mut scratch.scores[(r + i) * ld..][..last.next_multiple_of(LANE_GROUP)];
                inv[i] = 1.0 / softmax_row(row, seen(r + i), scale);
            }
            for b in 0..last.div_ceil(KEY_BLOCK) {
                let t = Tile {
                    k: KEY_BLOCK.min(last - b * KEY_BLOCK),
                    a: head.values(b),
                    a_k: wide,
                    b: scratch.scores.as_ptr().add(r * ld + b * KEY_BLOCK),
                    b_row: ld,
                    b_k: 1,
                    c: scratch.tile.as_mut_ptr(),
                    c_row: wide,
                    accumulate: b > 0,
                };
                kern.block(wide, height, &t);
            }
            for i in 0..height {
                let to = std::slice::from_raw_parts_mut(out.add((r + i) * out_stride), head_dim);
                scale_into(&scratch.tile[i * wide..][..head_dim], inv[i], to);
            }
            r += height;
        }
    }
}

/// `out[r][j] = rows[r] · column j`, columns packed in blocks, skipping the blocks that a row does not see.
unsafe fn scores(
    left: Rows,
    rows: usize,
    first: usize,
    step: usize,
    block: impl Fn(usize) -> *const f32,
    head_dim: usize,
    out: &mut [f32],
    ld: usize,
) {
    let kern = kernel();
    for b in 0..ld / KEY_BLOCK {
        // First row whose position reaches the block.
        let r0 = if step == 0 { 0 } else { (b * KEY_BLOCK).saturating_sub(first) };
        // SAFETY: by the caller's word; out holds rows × ld.
        unsafe {
            let t = Tile {
                k: head_dim,
                a: block(b),
                a_k: KEY_BLOCK,
                b: left.data.add(r0 * left.stride),
                b_row: left.stride,
                b_k: 1,
                c: out.as_mut_ptr().add(r0 * ld + b * KEY_BLOCK),
                c_row: ld,
                accumulate: false,
            };
            kern.block(KEY_BLOCK, rows - r0, &t);
        }
    }
}

/// Keys and values of one document's head, packed as a cache would hold them.
pub(crate) struct Document {
    head_dim: usize,
    data: Vec<f32>,
}

impl Document {
    /// Packs `len` rows.
    ///
    /// # Safety
    /// `len` rows of `head_dim` must be valid on both sides.
    pub unsafe fn pack(keys: Rows, values: Rows, len: usize, head_dim: usize) -> Self {
        let (ks, vs) = block_sizes(head_dim);
        let mut data = vec![0.0f32; len.div_ceil(KEY_BLOCK) * (ks + vs)];
        for (b, block) in data.chunks_exact_mut(ks + vs).enumerate() {
            let count = KEY_BLOCK.min(len - b * KEY_BLOCK);
            let (k, v) = block.split_at_mut(ks);
            // SAFETY: the block's rows are below len.
            unsafe {
                let from = keys.data.add(b * KEY_BLOCK * keys.stride);
                transpose(from, keys.stride, count, head_dim, k.as_mut_ptr(), KEY_BLOCK);
                copy_rows(Rows { data: values.data.add(b * KEY_BLOCK * values.stride), ..values }, count, head_dim, v);
            }
        }
        Self { head_dim, data }
    }
}

impl PackedHead for Document {
    fn keys(&self, b: usize) -> *const f32 {
        let (ks, vs) = block_sizes(self.head_dim);
        self.data[b * (ks + vs)..].as_ptr()
    }

    fn values(&self, b: usize) -> *const f32 {
        let (ks, vs) = block_sizes(self.head_dim);
        self.data[b * (ks + vs) + ks..].as_ptr()
    }
}

/// Copies rows of `head_dim` into rows of the padded width (whose padding stays as it is).
unsafe fn copy_rows(from: Rows, rows: usize, head_dim: usize, to: &mut [f32]) {
    let wide = padded(head_dim);
    for (r, to) in to.chunks_exact_mut(wide).take(rows).enumerate() {
        // SAFETY: the caller vouches for the rows.
        unsafe { std::ptr::copy_nonoverlapping(from.data.add(r * from.stride), to.as_mut_ptr(), head_dim) }
    }
}

/// Gradients of one head over one document: probabilities are computed anew, block of queries by block of queries.
/// Writes dq, dk and dv rows of `head_dim`, `d_stride` apart.
///
/// # Safety
/// `len` rows must be valid for every operand; the outputs must not overlap anything.
pub(crate) unsafe fn attend_backward(
    (queries, keys, values, dout): (Rows, Rows, Rows, Rows),
    len: usize,
    head_dim: usize,
    (dq, dk, dv): (*mut f32, *mut f32, *mut f32),
    d_stride: usize,
    s: &mut Scratch,
) {
    let kern = kernel();
    let wide = padded(head_dim);
    let scale = 1.0 / (head_dim as f32).sqrt();
    let blocks = len.div_ceil(KEY_BLOCK);
    let side = head_dim * KEY_BLOCK;
    let full = len.next_multiple_of(KEY_BLOCK);
    // Padding lanes must be finite; they are zero from here on because copies leave them alone.
    for b in [&mut s.keys_t, &mut s.values_t] {
        b.clear();
        b.resize(blocks * side, 0.0);
    }
    for b in [&mut s.keys, &mut s.dkeys, &mut s.dvalues] {
        b.clear();
        b.resize(full * wide, 0.0);
    }
    for b in [&mut s.queries, &mut s.dout] {
        b.clear();
        b.resize(QUERY_BLOCK * wide, 0.0);
    }
    grow(&mut s.scores, QUERY_BLOCK * full);
    grow(&mut s.dscores, QUERY_BLOCK * full);
    grow(&mut s.tile, kern.rows * wide);
    // SAFETY: the caller vouches for the operands; scratch was sized above.
    unsafe {
        for b in 0..blocks {
            let count = KEY_BLOCK.min(len - b * KEY_BLOCK);
            let at = b * KEY_BLOCK;
            transpose(
                keys.data.add(at * keys.stride),
                keys.stride,
                count,
                head_dim,
                s.keys_t.as_mut_ptr().add(b * side),
                KEY_BLOCK,
            );
            transpose(
                values.data.add(at * values.stride),
                values.stride,
                count,
                head_dim,
                s.values_t.as_mut_ptr().add(b * side),
                KEY_BLOCK,
            );
        }
        copy_rows(keys, len, head_dim, &mut s.keys);
        let mut first = 0;
        while first < len {
            let rows = QUERY_BLOCK.min(len - first);
            let q = Rows { data: queries.data.add(first * queries.stride), ..queries };
            let d = Rows { data: dout.data.add(first * dout.stride), ..dout };
            copy_rows(q, rows, head_dim, &mut s.queries);
            copy_rows(d, rows, head_dim, &mut s.dout);
            let seen = first + rows;
            let ld = seen.next_multiple_of(KEY_BLOCK);
            let (keys_t, values_t) = (s.keys_t.as_ptr(), s.values_t.as_ptr());
            scores(q, rows, first, 1, |b| keys_t.add(b * side), head_dim, &mut s.scores, ld);
            scores(d, rows, first, 1, |b| values_t.add(b * side), head_dim, &mut s.dscores, ld);
            for r in 0..rows {
                let own = first + r + 1;
                let p = &mut s.scores[r * ld..][..ld];
                let dp = &mut s.dscores[r * ld..][..ld];
                dp[own..].fill(0.0);
                let inv = 1.0 / softmax_row(p, own, scale);
                softmax_row_backward(p, dp, inv, scale);
            }
            // dq = ds · keys
            let mut r = 0;
            while r < rows {
                let height = kern.rows.min(rows - r);
                let t = Tile {
                    k: first + r + height,
                    a: s.keys.as_ptr(),
                    a_k: wide,
                    b: s.dscores.as_ptr().add(r * ld),
                    b_row: ld,
                    b_k: 1,
                    c: s.tile.as_mut_ptr(),
                    c_row: wide,
                    accumulate: false,
                };
                kern.block(wide, height, &t);
                for i in 0..height {
                    let to = dq.add((first + r + i) * d_stride);
                    std::ptr::copy_nonoverlapping(s.tile.as_ptr().add(i * wide), to, head_dim);
                }
                r += height;
            }
            // dk += dsᵀ · queries and dv += pᵀ · dout; a key is seen by the rows from its own position on.
            let mut j = 0;
            while j < seen {
                let height = kern.rows.min(seen - j);
                let r0 = j.saturating_sub(first);
                for (weights, a, c) in [
                    (s.dscores.as_ptr(), s.queries.as_ptr(), s.dkeys.as_mut_ptr()),
                    (s.scores.as_ptr(), s.dout.as_ptr(), s.dvalues.as_mut_ptr()),
                ] {
                    let t = Tile {
                        k: rows - r0,
                        a: a.add(r0 * wide),
                        a_k: wide,
                        b: weights.add(r0 * ld + j),
                        b_row: 1,
                        b_k: ld,
                        c: c.add(j * wide),
                        c_row: wide,
                        accumulate: true,
                    };
                    kern.block(wide, height, &t);
                }
                j += height;
            }
            first += rows;
        }
        for j in 0..len {
            std::ptr::copy_nonoverlapping(s.dkeys.as_ptr().add(j * wide), dk.add(j * d_stride), head_dim);
            std::ptr::copy_nonoverlapping(s.dvalues.as_ptr().add(j * wide), dv.add(j * d_stride), head_dim);
        }
    }
}
