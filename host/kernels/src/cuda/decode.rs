//! Attention of new tokens over caches of keys and values, for decoding.
//!
//! Owns how contexts are cut into chunks and the kernels' arguments. Must not know which sequences are decoded together or
//! who owns their caches. A cache is pages of memory, `[layers][2 = keys, values][PAGE][kv_heads · dim]` of the storage type
//! each, whose addresses stand in a table on the GPU, in order. The bits of a row that attends by itself do not depend on the rows
//! beside it: chunks have a fixed length.

use std::cmp::Reverse;

use cudarc::driver::CudaSlice;

use super::compile::{Precision, Source};
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check, check_dim, check_rows, holds};
use crate::pages::PAGE;
use crate::passes::Span;

const OP: &str = "attention over caches";
/// Entries of a context that one block attends to; as in `caches.cuh`.
const CHUNK: usize = 512;
/// Query heads that may share a key/value head; as in `caches.cuh`.
const MOST_GROUP: usize = 16;
/// Tokens of a sequence that one block takes together, where there are many tiles of so many, and where not; as in
/// `queries.cu`.
const QUERY_ROWS: [usize; 2] = [128, 64];

/// How heads lie in caches and in the rows of new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLayout {
    /// Query heads; at most 16 for each key/value head.
    pub heads: usize,
    /// Key/value heads; a divisor of `heads`.
    pub kv_heads: usize,
    /// Elements of a head: a multiple of 16, at most 128.
    pub dim: usize,
}

/// The caches of sequences, and where in them each row of a batch of new tokens belongs.
#[derive(Clone, Copy)]
pub struct CacheRows<'a> {
    /// Address of each sequence's table, see [`Context::address_of`]: the addresses of its pages.
    pub tables: In<'a, u64>,
    /// Entries that each sequence's pages have room for.
    pub capacities: In<'a, i32>,
    /// Each row's sequence.
    pub seq: In<'a, i32>,
    /// Each row's position in its sequence.
    pub position: In<'a, i32>,
}

impl CacheRows<'_> {
    fn check(&self, rows: usize) -> Result<i32, CudaError> {
        holds(OP, "sequences of rows", self.seq.len(), rows)?;
        holds(OP, "positions of rows", self.position.len(), rows)?;
        self.sequences()
    }

    fn sequences(&self) -> Result<i32, CudaError> {
        holds(OP, "capacities", self.capacities.len(), self.tables.len())?;
        int(OP, self.tables.len())
    }
}

/// Consecutive new tokens of sequences, cut into the tiles that [`Context::cache_tiles`] takes.
pub struct QueryTiles {
    tiles: CudaSlice<i32>,
    count: usize,
    /// Most tokens of a tile.
    most: usize,
    /// Behind the last row of any tile.
    rows: usize,
}

impl CacheLayout {
    fn check(&self) -> Result<(usize, usize), CudaError> {
        let Self { heads, kv_heads, dim } = *self;
        check_dim(OP, dim)?;
        check(OP, kv_heads > 0 && heads.is_multiple_of(kv_heads) && heads / kv_heads <= MOST_GROUP, || {
            format!("{heads} heads for {kv_heads} key/value heads; 1 to {MOST_GROUP} heads share one evenly")
        })?;
        Ok((heads * dim, kv_heads * dim))
    }
}

/// Tiles of at most so many rows, the most expensive first.
fn cut(spans: &[Span], most: usize) -> Vec<Span> {
    let mut tiles: Vec<Span> = Vec::new();
    for span in spans {
        tiles.extend((0..span.rows).step_by(most).map(|at| Span {
            row: span.row + at,
            rows: most.min(span.rows - at),
            position: span.position + at,
            seq: span.seq,
        }));
    }
    tiles.sort_by_key(|t| Reverse(t.position));
    tiles
}

impl Context {
    /// Writes addresses into tables of pages: pairs of the address of an entry and what it becomes.
    ///
    /// # Errors
    /// If there are no whole pairs.
    ///
    /// # Safety
    /// The entries are in live buffers of this context that nothing else borrows.
    pub unsafe fn cache_pages<T: Element>(&self, dim: usize, pairs: In<'_, u64>) -> Result<(), CudaError> {
        check(OP, pairs.len().is_multiple_of(2), || "half a pair".to_owned())?;
        let count = pairs.len() / 2;
        // SAFETY: arguments are those of `cache_pages`; the entries are the caller's.
        unsafe {
            self.launch(
                (Source::Decode(T::PRECISION, dim), "cache_pages"),
                (grid(OP, count.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![self.address(pairs), int(OP, count)?],
            )
        }
    }

    /// Cuts consecutive tokens, which so many heads attend for, into tiles, the most expensive first.
    ///
    /// # Errors
    /// If there is no memory for the list.
    pub fn query_tiles(&self, spans: &[Span], heads: usize) -> Result<QueryTiles, CudaError> {
        // Blocks of wide tiles that would not fill the GPU twice are better cut in half.
        let wide: usize = spans.iter().map(|span| span.rows.div_ceil(QUERY_ROWS[0])).sum();
        let fills = wide * heads >= 2 * self.blocks(2, usize::MAX) as usize;
        let most = QUERY_ROWS[usize::from(!fills)];
        let tiles = cut(spans, most);
        let mut list = Vec::with_capacity(4 * tiles.len());
        for t in &tiles {
            list.extend([int(OP, t.row)?, int(OP, t.rows)?, int(OP, t.position)?, int(OP, t.seq)?]);
        }
        let rows = spans.iter().map(|s| s.row + s.rows).max().unwrap_or(0);
        Ok(QueryTiles { tiles: self.upload(&list)?, count: tiles.len(), most, rows })
    }

    /// [`Context::cache_attention`] for many tokens of a sequence at a time, in bf16; rows of q and `out` as there. A tile of an
    /// unknown sequence, or that goes beyond its capacity, becomes NaN. A row's bits are those that
    /// [`Context::attention`] gives it where [`Context::exact`] was asked for, however its sequence is cut.
    ///
    /// # Errors
    /// If a buffer is too short or the layout is not supported.
    ///
    /// # Safety
    /// As for [`Context::cache_attention`].
    pub unsafe fn cache_tiles<T: Element>(
        &self,
        layer: usize,
        layout: CacheLayout,
        tiles: &QueryTiles,
        (q, q_stride): (In<'_, T>, usize),
        at: CacheRows<'_>,
        scale: f32,
        out: Out<'_, T>,
    ) -> Result<(), CudaError> {
        let (wide, _) = layout.check()?;
        check(OP, T::PRECISION == Precision::Half, || "tiles of queries are of bf16 only".to_owned())?;
        check_rows(OP, "q", q.len(), tiles.rows, q_stride, wide)?;
        holds(OP, "out", out.len(), tiles.rows * wide)?;
        let sequences = at.sequences()?;
        let wide_tiles = tiles.most == QUERY_ROWS[0];
        // SAFETY: arguments are those of both kernels; buffers were checked, the kernel checks sequences and positions, and the
        // caches are the caller's.
        unsafe {
            self.launch(
                (
                    Source::Decode(T::PRECISION, layout.dim),
                    if wide_tiles { "cache_tiles_128" } else { "cache_tiles_64" },
                ),
                (grid(OP, tiles.count * layout.heads)?, 1),
                (128, 1),
                ((tiles.most + 4 * PAGE) * (layout.dim + 8) * 2) as u32,
                args![
                    self.address(q),
                    self.address(at.tables),
                    self.address(at.capacities),
                    sequences,
                    int(OP, layer)?,
                    self.address(&tiles.tiles),
                    self.address_mut(out),
                    int(OP, layout.heads)?,
                    int(OP, layout.kv_heads)?,
                    q_stride as i64,
                    scale
                ],
            )
        }
    }

    /// Writes the keys and values of new tokens to their sequences' caches, at each row's position. Rows of k and v are
    /// `kv_heads · dim` at a stride. Rows whose sequence is unknown or whose position is outside its cache are left out.
    ///
    /// # Errors
    /// If a buffer is too short or the layout is not supported.
    ///
    /// # Safety
    /// Each of `at.tables` is the address of `capacity / PAGE` addresses of pages: of live buffers of this context on its GPU,
    /// 16-byte aligned, that hold at least `(2 · layer + 2) · PAGE · kv_heads · dim` elements of `T` and that nothing else
    /// borrows. No two rows are written to the same place of the same page.
    pub unsafe fn cache_store<T: Element>(
        &self,
        layer: usize,
        layout: CacheLayout,
        rows: usize,
        (k, k_stride): (In<'_, T>, usize),
        (v, v_stride): (In<'_, T>, usize),
        at: CacheRows<'_>,
    ) -> Result<(), CudaError> {
        let (_, narrow) = layout.check()?;
        check_rows(OP, "k", k.len(), rows, k_stride, narrow)?;
        check_rows(OP, "v", v.len(), rows, v_stride, narrow)?;
        let sequences = at.check(rows)?;
        let units = rows * narrow / 8;
        // SAFETY: arguments are those of `cache_store`; buffers were checked, the kernel checks sequences and positions,
        // and the caches are the caller's.
        unsafe {
            self.launch(
                (Source::Decode(T::PRECISION, layout.dim), "cache_store"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(k),
                    self.address(v),
                    self.address(at.tables),
                    self.address(at.capacities),
                    self.address(at.seq),
                    self.address(at.position),
                    sequences,
                    int(OP, layer)?,
                    units as i64,
                    int(OP, narrow)?,
                    k_stride as i64,
                    v_stride as i64
                ],
            )
        }
    }

    /// Elements of f32 scratch that [`Context::cache_attention`] needs for rows that attend to at most `longest` entries.
    pub fn cache_attention_scratch<T: Element>(&self, layout: CacheLayout, rows: usize, longest: usize) -> usize {
        let chunks = longest.div_ceil(CHUNK);
        let cut = !(self.is_exact() && T::PRECISION == Precision::Half);
        if cut && chunks > 1 { rows * layout.heads * chunks * (layout.dim + 2) } else { 0 }
    }

    /// `out[r] = Σ softmax(scale · q[r] · k[..=p]) · v` over the entries of the row's sequence up to its own position p,
    /// rows of `heads · dim`, those of q at a stride. `longest` is at least the largest p + 1. A row whose sequence is
    /// unknown, or whose position is outside its cache or not below `longest`, becomes NaN.
    ///
    /// # Errors
    /// If a buffer is too short or the layout is not supported.
    ///
    /// # Safety
    /// As for [`Context::cache_store`], though others may read the caches too.
    pub unsafe fn cache_attention<T: Element>(
        &self,
        layer: usize,
        layout: CacheLayout,
        rows: usize,
        (q, q_stride): (In<'_, T>, usize),
        at: CacheRows<'_>,
        longest: usize,
        scale: f32,
        out: Out<'_, T>,
        scratch: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        let (wide, _) = layout.check()?;
        check_rows(OP, "q", q.len(), rows, q_stride, wide)?;
        holds(OP, "out", out.len(), rows * wide)?;
        holds(OP, "scratch", scratch.len(), self.cache_attention_scratch::<T>(layout, rows, longest))?;
        let sequences = at.check(rows)?;
        // A block takes the whole context then.
        let exact = self.is_exact() && T::PRECISION == Precision::Half;
        let chunks = if exact { 1 } else { longest.div_ceil(CHUNK).max(1) };
        let source = Source::Decode(T::PRECISION, layout.dim);
        let (heads, kv_heads, longest) = (int(OP, layout.heads)?, int(OP, layout.kv_heads)?, int(OP, longest)?);
        let (at_out, scratch) = (self.address_mut(out), self.address_mut(scratch));
        let places =
            [self.address(at.tables), self.address(at.capacities), self.address(at.seq), self.address(at.position)];
        // Queries, then two pages of keys and of values; four warps' two stages of both; or queries and weights.
        let (name, threads, shared) = match T::PRECISION {
            Precision::Half if exact => ("cache_exact", 32, (MOST_GROUP + 4 * PAGE) * (layout.dim + 8) * 2),
            Precision::Half => ("cache_attention", 128, (MOST_GROUP + 4 * 2 * 2 * 16) * (layout.dim + 8) * 2),
            Precision::Full => ("cache_attention", 128, MOST_GROUP * (layout.dim + CHUNK) * 4),
        };
        // The first index counts fastest: a row's heads run together.
        let blocks = grid(OP, rows * layout.kv_heads)?;
        check(OP, chunks <= 65535, || format!("contexts of {longest} entries are not supported"))?;
        // SAFETY: arguments are those of the two kernels; buffers were checked, the kernels check sequences and positions,
        // and the caches are the caller's.
        unsafe {
            self.launch(
                (source, name),
                (blocks, chunks as u32),
                (threads, 1),
                shared as u32,
                args![
                    self.address(q),
                    places[0],
                    places[1],
                    places[2],
                    places[3],
                    sequences,
                    int(OP, layer)?,
                    at_out,
                    scratch,
                    heads,
                    kv_heads,
                    longest,
                    q_stride as i64,
                    scale
                ],
            )?;
            if chunks == 1 {
                return Ok(());
            }
            self.launch(
                (source, "cache_combine"),
                (grid(OP, rows * layout.heads)?, 1),
                (128, 1),
                0,
                args![places[1], places[2], places[3], sequences, at_out, scratch, heads, int(OP, chunks)?, longest],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_cut_into_tiles_that_end_with_them_the_latest_first() {
        let span = |row, rows, position, seq| Span { row, rows, position, seq };
        let tiles = cut(&[span(0, 130, 7, 0), span(130, 1, 500, 3), span(131, 64, 0, 1)], 64);
        let want =
            [span(130, 1, 500, 3), span(128, 2, 135, 0), span(64, 64, 71, 0), span(0, 64, 7, 0), span(131, 64, 0, 1)];
        assert_eq!(tiles, want);
        assert_eq!(cut(&[], 64), []);
    }
}
