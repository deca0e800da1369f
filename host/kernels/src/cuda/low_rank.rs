//! Low-rank additions (LoRA) to a layer's matrices, different ones for different rows.
//!
//! Owns an adapter's factors on the GPU and the kernels' arguments. Must not know which request has which.

use cudarc::driver::CudaSlice;
use rayon::prelude::*;

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check, check_rows, holds};
use crate::{AdapterLayer, AdapterView, LowRank};

const OP: &str = "low-rank additions";
/// Matrices of a layer; as in `low_rank.cu`, in the order of [`matrices`].
const MATRICES: usize = 7;
/// Words of a matrix in an adapter's table.
const ENTRY: usize = 3;
/// Up to so many rows each has blocks of its own; beyond, a block takes so many together; as in `low_rank.cu`.
const FEW: usize = 512;
const TILE: usize = 8;
/// Matrices that are added to at a time; as in `low_rank.cu`.
const MOST_PARTS: usize = 3;

fn matrices(layer: &AdapterLayer) -> [&Option<LowRank>; MATRICES] {
    [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down]
}

/// An adapter's factors, and the table by which kernels find them.
pub struct LowRanks<T> {
    table: CudaSlice<u64>,
    rank: usize,
    _factors: Vec<CudaSlice<T>>,
}

impl<T: Element> LowRanks<T> {
    /// Brings an adapter to the GPU.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(c: &Context, adapter: AdapterView<'_>) -> Result<Self, CudaError> {
        let entries = adapter.dims().layers * MATRICES * ENTRY;
        let (mut table, mut factors, mut most) = (vec![0u64; entries], Vec::new(), 0);
        let pairs = adapter.layers().iter().flat_map(matrices);
        for (entry, pair) in table.chunks_exact_mut(ENTRY).zip(pairs) {
            let Some(LowRank { a, b, rank }) = pair else { continue };
            for (word, factor) in entry.iter_mut().zip([a, b]) {
                let factor = c.upload(&factor.par_iter().map(|x| T::from_f32(*x)).collect::<Vec<_>>())?;
                *word = c.address_of(&factor);
                factors.push(factor);
            }
            entry[2] = *rank as u64;
            most = most.max(*rank);
        }
        Ok(Self { table: c.upload(&table)?, rank: most, _factors: factors })
    }

    /// Its largest rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Address of its table.
    pub fn table(&self, c: &Context) -> u64 {
        c.address_of(&self.table)
    }
}

/// Which rows have which adapters.
#[derive(Clone, Copy)]
pub struct LowRankRows<'a> {
    /// Address of each sequence's adapter's table, or 0.
    pub adapters: In<'a, u64>,
    /// Each row's sequence.
    pub seq: In<'a, i32>,
    /// At least the largest rank of all.
    pub rank: usize,
    /// The layer.
    pub layer: usize,
}

/// Matrices of a layer that take the same rows and write to the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedTo {
    /// Queries, keys and values side by side, of these widths.
    Qkv([usize; 3]),
    /// The output projection.
    O(usize),
    /// Gate and up side by side.
    GateUp(usize),
    /// The down projection.
    Down(usize),
}

/// As `Parts` in `low_rank.cu`.
#[repr(C)]
struct Parts {
    first: i32,
    count: i32,
    start: [i32; MOST_PARTS],
    width: [i32; MOST_PARTS],
}

impl AddedTo {
    fn parts(self) -> Result<Parts, CudaError> {
        let (first, widths) = match self {
            Self::Qkv(widths) => (0, widths.to_vec()),
            Self::O(width) => (3, vec![width]),
            Self::GateUp(width) => (4, vec![width, width]),
            Self::Down(width) => (6, vec![width]),
        };
        let mut parts = Parts { first, count: int(OP, widths.len())?, start: [0; MOST_PARTS], width: [0; MOST_PARTS] };
        let mut at = 0;
        for (i, width) in widths.into_iter().enumerate() {
            (parts.start[i], parts.width[i]) = (int(OP, at)?, int(OP, width)?);
            at += width;
        }
        Ok(parts)
    }
}

impl Context {
    /// Elements of f32 scratch that [`Context::add_low_rank`] needs.
    pub fn low_rank_scratch(&self, rows: usize, rank: usize) -> usize {
        rows * MOST_PARTS * rank
    }

    /// `y += B · (A · x)` with each row's own factors, of each of the matrices that `to` names, whose results lie side by side
    /// in y; rows of x are `width` at a stride. Rows without an adapter stay as they are.
    ///
    /// # Errors
    /// If a buffer is too short.
    ///
    /// # Safety
    /// Each of `at.adapters` is 0 or [`LowRanks::table`] of an adapter of this context that lives and was made for a decoder of
    /// these widths and of more layers than `at.layer`.
    pub unsafe fn add_low_rank<T: Element>(
        &self,
        rows: usize,
        at: LowRankRows<'_>,
        (x, x_stride, width): (In<'_, T>, usize, usize),
        (y, y_stride): (Out<'_, T>, usize),
        to: AddedTo,
        low: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        let parts = to.parts()?;
        let wide: i32 = parts.width.iter().sum();
        check_rows(OP, "x", x.len(), rows, x_stride, width)?;
        check_rows(OP, "y", y.len(), rows, y_stride, wide as usize)?;
        check(OP, width.is_multiple_of(8), || format!("rows of {width}; widths must be multiples of 8"))?;
        holds(OP, "sequences of rows", at.seq.len(), rows)?;
        holds(OP, "scratch", low.len(), self.low_rank_scratch(rows, at.rank))?;
        let source = Source::LowRank(T::PRECISION);
        let (adapters, seq, low) = (self.address(at.adapters), self.address(at.seq), self.address_mut(low));
        let (sequences, layer) = (int(OP, at.adapters.len())?, int(OP, at.layer)?);
        let (count, rank) = (int(OP, rows)?, int(OP, at.rank)?);
        let (down, up, tile) = match rows {
            ..=FEW => ("low_rank_down_few", "low_rank_up_few", 1),
            _ => ("low_rank_down_many", "low_rank_up_many", TILE),
        };
        let blocks = grid(OP, rows.div_ceil(tile))?;
        let widest = parts.width.iter().copied().max().unwrap_or(0) as u32;
        // SAFETY: arguments are those of the kernels; buffers were checked, and the factors are the caller's.
        unsafe {
            self.launch(
                (source, down),
                (blocks, parts.count as u32),
                (256, 1),
                0,
                args![
                    self.address(x),
                    adapters,
                    seq,
                    low,
                    count,
                    sequences,
                    layer,
                    int(OP, width)?,
                    x_stride as i64,
                    rank,
                    parts
                ],
            )?;
            self.launch(
                (source, up),
                (blocks, parts.count as u32 * widest.div_ceil(256)),
                (256, 1),
                0,
                args![self.address_mut(y), adapters, seq, low, count, sequences, layer, y_stride as i64, rank, parts],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_lie_side_by_side_in_the_order_of_an_adapter() {
        let parts = |to: AddedTo| {
            let Parts { first, count, start, width } = to.parts().unwrap();
            (first, count, start, width)
        };
        assert_eq!(parts(AddedTo::Qkv([64, 16, 16])), (0, 3, [0, 64, 80], [64, 16, 16]));
        assert_eq!(parts(AddedTo::O(8)), (3, 1, [0; 3], [8, 0, 0]));
        assert_eq!(parts(AddedTo::GateUp(24)), (4, 2, [0, 24, 0], [24, 24, 0]));
        assert_eq!(parts(AddedTo::Down(8)), (6, 1, [0; 3], [8, 0, 0]));
    }
}
