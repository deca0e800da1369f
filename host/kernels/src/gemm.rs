//! The only matrix products of the CPU path.
//!
//! Owns packing, blocking and the split over threads. Must not know any model.
//! Every output element is a sum over stretches of [`CHAIN`] ascending k, each one chain `acc = fma(x, w, acc)`, so its
//! bits depend on its own row and column only: not on m or n, not on the path taken for a shape, not on the number of
//! threads.
//! Threads are those of the rayon pool that the caller runs in; only rows or columns are split, never k.

use std::ops::Range;

use rayon::prelude::*;

use crate::micro::{CHAIN, Kernel, LANE_GROUP, LANES_MAX, NARROW, Tile, kernel};
use crate::shared::{Shared, for_ranges};
use crate::transpose::transpose;

/// Longest stretch of k for which a packed panel is kept near the core.
const K_BLOCK: usize = 4 * CHAIN;
/// Most output rows per task of a transposed product, and its stretch of k.
const TN_ROWS: usize = 288;
const TN_K_BLOCK: usize = 2 * CHAIN;
/// Columns of a token-lane product gathered before they are transposed into place: a multiple of every row count.
const COLUMNS: usize = 24;
/// Below this many multiply-adds a product stays on the calling thread.
const PARALLEL_MIN: usize = 1 << 19;

/// `y[m, n] = x[m, k] · w[n, k]ᵀ`, all row-major and dense: a linear layer with weights in the [out, in] layout.
///
/// # Panics
/// If a slice is shorter than its shape.
pub fn gemm_nt(m: usize, n: usize, k: usize, x: &[f32], w: &[f32], y: &mut [f32]) {
    assert!(x.len() >= m * k && w.len() >= n * k && y.len() >= m * n, "gemm_nt: a slice is shorter than its shape");
    // SAFETY: checked above; y is a distinct mutable slice.
    unsafe { nt(true, m, n, k, x.as_ptr(), k, w.as_ptr(), y.as_mut_ptr(), n) }
}

/// `y[m, n] = x[m, k] · w[k, n]`, or `y += …` if `accumulate`.
///
/// # Panics
/// If a slice is shorter than its shape.
pub fn gemm_nn(m: usize, n: usize, k: usize, x: &[f32], w: &[f32], y: &mut [f32], accumulate: bool) {
    assert!(x.len() >= m * k && w.len() >= k * n && y.len() >= m * n, "gemm_nn: a slice is shorter than its shape");
    let y = Shared::new(y);
    let threads = if m * n * k < PARALLEL_MIN { 1 } else { rayon::current_num_threads() };
    let step = m.div_ceil(threads).max(1);
    for_ranges(threads > 1, m, step, |r| {
        // SAFETY: tasks own disjoint rows of y; shapes checked above.
        unsafe { nn(r.len(), n, k, x.as_ptr().add(r.start * k), k, w.as_ptr(), n, y.at(r.start * n), n, accumulate) }
    });
}

/// `y[m, n] += x[k, m]ᵀ · w[k, n]`: the gradient of a weight matrix.
///
/// # Panics
/// If a slice is shorter than its shape.
pub fn gemm_tn_acc(m: usize, n: usize, k: usize, x: &[f32], w: &[f32], y: &mut [f32]) {
    assert!(x.len() >= k * m && w.len() >= k * n && y.len() >= m * n, "gemm_tn_acc: a slice is shorter than its shape");
    tn_acc_many(&[TnJob { m, n, k, x, ldx: m, w, ldw: n, y: Shared::new(y) }]);
}

/// One product of [`tn_acc_many`]: `y[m, n] += x[k, m]ᵀ · w[k, n]` with rows of x and w `ldx` and `ldw` apart.
pub(crate) struct TnJob<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub x: &'a [f32],
    pub ldx: usize,
    pub w: &'a [f32],
    pub ldw: usize,
    pub y: Shared<'a, f32>,
}

/// Several transposed products as one parallel region.
pub(crate) fn tn_acc_many(jobs: &[TnJob<'_>]) {
    let threads = rayon::current_num_threads();
    let work: usize = jobs.iter().map(|j| j.m * j.n * j.k).sum();
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (i, j) in jobs.iter().enumerate() {
        if j.k > 0 && j.m > 0 {
            assert!(j.x.len() >= (j.k - 1) * j.ldx + j.m && j.w.len() >= (j.k - 1) * j.ldw + j.n);
        }
        assert!(j.y.len() >= j.m * j.n);
        // About three tasks a thread in all, so that they even out.
        let share = if threads == 1 { 1 } else { (3 * threads * j.m * j.n * j.k).div_ceil(work.max(1)) };
        let pieces = share.max(j.m.div_ceil(TN_ROWS));
        let rows = j.m.div_ceil(pieces).next_multiple_of(12);
        tasks.extend((0..j.m).step_by(rows.max(1)).map(|r| (i, r..(r + rows).min(j.m))));
    }
    let run = |(i, r): &(usize, Range<usize>)| {
        let j = &jobs[*i];
        // SAFETY: tasks own disjoint rows of their y; extents checked above.
        unsafe {
            tn_acc(r.len(), j.n, j.k, j.x.as_ptr().add(r.start), j.ldx, j.w.as_ptr(), j.ldw, j.y.at(r.start * j.n), j.n)
        }
    };
    if work < PARALLEL_MIN || threads == 1 {
        tasks.iter().for_each(run);
    } else {
        tasks.par_iter().with_max_len(1).for_each(run);
    }
}

/// A matrix packed for the lane side of the kernel: panel p holds its lanes of every k, contiguous.
pub(crate) struct Panels {
    n: usize,
    k: usize,
    data: Vec<f32>,
}

impl Panels {
    /// Packs `w[n, k]` (so that the product is `x · wᵀ`).
    pub fn of_rows(n: usize, k: usize, w: &[f32]) -> Self {
        Self::pack(n, k, |panel, lane0, width, lanes| {
            // SAFETY: the panel's rows lie in w.
            unsafe { transpose(w[lane0 * k..].as_ptr(), k, width, k, panel.as_mut_ptr(), lanes) }
        })
    }

    /// Packs `w[k, n]` (so that the product is `x · w`).
    pub fn of_columns(n: usize, k: usize, w: &[f32]) -> Self {
        Self::pack(n, k, |panel, lane0, width, lanes| {
            for (i, row) in panel.chunks_exact_mut(lanes).enumerate() {
                row[..width].copy_from_slice(&w[i * n + lane0..][..width]);
            }
        })
    }

    fn pack(n: usize, k: usize, fill: impl Fn(&mut [f32], usize, usize, usize) + Sync) -> Self {
        let lanes = kernel().lanes;
        let mut data = vec![0.0f32; n.div_ceil(lanes) * lanes * k];
        if k > 0 {
            let each = |(p, panel): (usize, &mut [f32])| fill(panel, p * lanes, lanes.min(n - p * lanes), lanes);
            if n * k < PARALLEL_MIN {
                data.chunks_exact_mut(lanes * k).enumerate().for_each(each);
            } else {
                data.par_chunks_exact_mut(lanes * k).enumerate().for_each(each);
            }
        }
        Self { n, k, data }
    }

    /// `y[m, n] (+)= x[m, k] · panels` on the calling thread.
    ///
    /// # Safety
    /// x must hold m rows of k elements `ldx` apart, y m rows of n elements `ldy` apart.
    pub unsafe fn mul(&self, m: usize, x: *const f32, ldx: usize, y: *mut f32, ldy: usize, accumulate: bool) {
        let kern = kernel();
        let mut k0 = 0;
        while k0 < self.k || k0 == 0 {
            let depth = K_BLOCK.min(self.k - k0);
            for p in 0..self.n.div_ceil(kern.lanes) {
                let lane0 = p * kern.lanes;
                let width = kern.lanes.min(self.n - lane0);
                // SAFETY: panel and rows are inside their buffers.
                unsafe {
                    let t = Tile {
                        k: depth,
                        a: self.data.as_ptr().add((p * self.k + k0) * kern.lanes),
                        a_k: kern.lanes,
                        b: x.add(k0),
                        b_row: ldx,
                        b_k: 1,
                        c: y.add(lane0),
                        c_row: ldy,
                        accumulate: accumulate || k0 > 0,
                    };
                    block_any(kern, width, m, &t);
                }
            }
            k0 += depth.max(1);
        }
    }
}

/// [`Kernel::block`] for any number of lanes: a ragged last group goes through a small buffer. The lane-side operand
/// must be readable up to the next multiple of [`LANE_GROUP`].
///
/// # Safety
/// As [`Kernel::block`].
pub(crate) unsafe fn block_any(kern: &Kernel, lanes: usize, rows: usize, t: &Tile) {
    let whole = lanes / LANE_GROUP * LANE_GROUP;
    let rest = lanes - whole;
    // SAFETY: the whole groups are the caller's; the rest is copied in and out of a buffer of one lane group.
    unsafe {
        if whole > 0 {
            kern.block(whole, rows, t);
        }
        if rest > 0 {
            let mut buffer = [0.0f32; LANE_GROUP * 6];
            let mut r = 0;
            while r < rows {
                let height = kern.rows.min(rows - r);
                let c = t.c.add(r * t.c_row + whole);
                if t.accumulate {
                    for i in 0..height {
                        std::ptr::copy_nonoverlapping(
                            c.add(i * t.c_row),
                            buffer.as_mut_ptr().add(i * LANE_GROUP),
                            rest,
                        );
                    }
                }
                let edge = Tile {
                    a: t.a.add(whole),
                    b: t.b.add(r * t.b_row),
                    c: buffer.as_mut_ptr(),
                    c_row: LANE_GROUP,
                    ..*t
                };
                kern.block(LANE_GROUP, height, &edge);
                for i in 0..height {
                    std::ptr::copy_nonoverlapping(buffer.as_ptr().add(i * LANE_GROUP), c.add(i * t.c_row), rest);
                }
                r += height;
            }
        }
    }
}

/// `y[m, n] = x[m, k] · w[n, k]ᵀ` with rows of x and y `ldx` and `ldy` apart; over the pool's threads if `parallel`.
///
/// Few rows: x is packed and w streams through unpacked, so that a decode step never touches the weights twice.
/// Many rows: w is packed.
///
/// # Safety
/// The operands must hold what shapes and strides say; y must not overlap them.
pub(crate) unsafe fn nt(
    parallel: bool,
    m: usize,
    n: usize,
    k: usize,
    x: *const f32,
    ldx: usize,
    w: *const f32,
    y: *mut f32,
    ldy: usize,
) {
    if m == 0 || n == 0 {
        return;
    }
    let threads = if parallel && m * n * k >= PARALLEL_MIN { rayon::current_num_threads() } else { 1 };
    let (x, w, y) = (Shared::of(x.cast_mut()), Shared::of(w.cast_mut()), Shared::of(y));
    if m * (n + k) <= 2 * n * k / 3 {
        let kern = kernel();
        let width = if m <= NARROW { NARROW } else { kern.lanes.min(m.next_multiple_of(LANE_GROUP)) };
        let mut packed = vec![0.0f32; m.div_ceil(width) * width * k];
        for (p, panel) in packed.chunks_exact_mut(width * k.max(1)).enumerate() {
            let row0 = p * width;
            // SAFETY: rows row0.. of x.
            unsafe { transpose(x.at(row0 * ldx), ldx, width.min(m - row0), k, panel.as_mut_ptr(), width) }
        }
        let step = n.div_ceil(threads * 2).next_multiple_of(2 * COLUMNS);
        let step = if threads == 1 { n } else { step };
        for_ranges(threads > 1, n, step, |r| {
            // SAFETY: tasks own disjoint columns of y.
            unsafe { nt_lanes(kern, width, m, r, k, &packed, w.at(0), y.at(0), ldy) }
        });
    } else {
        // SAFETY: w holds n rows of k.
        let panels = Panels::of_rows(n, k, unsafe { std::slice::from_raw_parts(w.at(0), n * k) });
        let step = if threads == 1 { m } else { m.div_ceil(threads * 4).next_multiple_of(12) };
        for_ranges(threads > 1, m, step, |r| {
            // SAFETY: tasks own disjoint rows of y.
            unsafe { panels.mul(r.len(), x.at(r.start * ldx), ldx, y.at(r.start * ldy), ldy, false) }
        });
    }
}

/// Columns `cols` of `y = x · wᵀ`, tokens on the lane side: x is packed `width` lanes to a panel, w streams through.
///
/// # Safety
/// As [`nt`]; `packed` must hold whole panels.
unsafe fn nt_lanes(
    kern: &Kernel,
    width: usize,
    m: usize,
    cols: Range<usize>,
    k: usize,
    packed: &[f32],
    w: *const f32,
    y: *mut f32,
    ldy: usize,
) {
    let mut buffer = [0.0f32; COLUMNS * LANES_MAX];
    for col in cols.clone().step_by(COLUMNS) {
        let height = COLUMNS.min(cols.end - col);
        for p in 0..m.div_ceil(width) {
            let row0 = p * width;
            let rows = width.min(m - row0);
            // SAFETY: the panel is whole, the weight rows and the output columns are inside their matrices.
            unsafe {
                let t = Tile {
                    k,
                    a: packed.as_ptr().add(p * k * width),
                    a_k: width,
                    b: w.add(col * k),
                    b_row: k,
                    b_k: 1,
                    c: buffer.as_mut_ptr(),
                    c_row: width,
                    accumulate: false,
                };
                if width == NARROW {
                    kern.narrow(height, &t);
                } else {
                    kern.block(rows.next_multiple_of(LANE_GROUP), height, &t);
                }
                transpose(buffer.as_ptr(), width, height, rows, y.add(row0 * ldy + col), ldy);
            }
        }
    }
}

/// `y[m, n] (+)= x[m, k] · w[k, n]` on the calling thread.
///
/// # Safety
/// As [`nt`].
pub(crate) unsafe fn nn(
    m: usize,
    n: usize,
    k: usize,
    x: *const f32,
    ldx: usize,
    w: *const f32,
    ldw: usize,
    y: *mut f32,
    ldy: usize,
    accumulate: bool,
) {
    let kern = kernel();
    let mut panel = vec![0.0f32; kern.lanes * K_BLOCK.min(k.max(1))];
    let mut k0 = 0;
    while k0 < k || k0 == 0 {
        let depth = K_BLOCK.min(k - k0);
        let mut lane0 = 0;
        while lane0 < n {
            let width = kern.lanes.min(n - lane0);
            // SAFETY: inside the operands by the caller's word.
            unsafe {
                for i in 0..depth {
                    let from = w.add((k0 + i) * ldw + lane0);
                    std::ptr::copy_nonoverlapping(from, panel.as_mut_ptr().add(i * kern.lanes), width);
                }
                let t = Tile {
                    k: depth,
                    a: panel.as_ptr(),
                    a_k: kern.lanes,
                    b: x.add(k0),
                    b_row: ldx,
                    b_k: 1,
                    c: y.add(lane0),
                    c_row: ldy,
                    accumulate: accumulate || k0 > 0,
                };
                block_any(kern, width, m, &t);
            }
            lane0 += width;
        }
        k0 += depth.max(1);
    }
}

/// `y[m, n] += x[k, m]ᵀ · w[k, n]` on the calling thread.
///
/// # Safety
/// As [`nt`].
unsafe fn tn_acc(
    m: usize,
    n: usize,
    k: usize,
    x: *const f32,
    ldx: usize,
    w: *const f32,
    ldw: usize,
    y: *mut f32,
    ldy: usize,
) {
    let kern = kernel();
    let mut panel = vec![0.0f32; kern.lanes * TN_K_BLOCK.min(k.max(1))];
    let mut rows = vec![0.0f32; m * TN_K_BLOCK.min(k.max(1))];
    let mut k0 = 0;
    while k0 < k {
        let depth = TN_K_BLOCK.min(k - k0);
        // SAFETY: inside the operands by the caller's word.
        unsafe {
            for i in 0..depth {
                std::ptr::copy_nonoverlapping(x.add((k0 + i) * ldx), rows.as_mut_ptr().add(i * m), m);
            }
            let mut lane0 = 0;
            while lane0 < n {
                let width = kern.lanes.min(n - lane0);
                for i in 0..depth {
                    let from = w.add((k0 + i) * ldw + lane0);
                    std::ptr::copy_nonoverlapping(from, panel.as_mut_ptr().add(i * kern.lanes), width);
                }
                let t = Tile {
                    k: depth,
                    a: panel.as_ptr(),
                    a_k: kern.lanes,
                    b: rows.as_ptr(),
                    b_row: 1,
                    b_k: m,
                    c: y.add(lane0),
                    c_row: ldy,
                    accumulate: true,
                };
                block_any(kern, width, m, &t);
                lane0 += width;
            }
        }
        k0 += depth;
    }
}
