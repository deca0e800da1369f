//! What a pass over new tokens reads besides weights and caches, in one block of memory, so that it takes one copy.
//!
//! Owns where everything lies in the block. Must not know what it is for.

use std::ops::Range;

use crate::cuda::{CudaError, CudaSlice, CudaView, holds};

/// How much there is of everything; passes of the same counts have blocks of the same layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Counts {
    pub rows: usize,
    pub sequences: usize,
    /// Rows whose logits are computed and kept.
    pub wanted: usize,
    /// Rows whose logits are only looked at.
    pub scored: usize,
    /// A power of two that no adapter's rank is above, or 0 without adapters.
    pub rank: usize,
}

/// The contents, on the host.
#[derive(Default)]
pub(super) struct Inputs {
    /// Of each row; below 0 for a token that was drawn before, as [`crate::cuda::Context::take`] has it.
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    pub seq: Vec<i32>,
    /// Of each sequence: the address of its table of pages, and the positions they have room for.
    pub tables: Vec<u64>,
    pub capacities: Vec<i32>,
    /// Of each sequence: the address of its adapter's table, or 0.
    pub adapters: Vec<u64>,
    /// A power of two that none of their ranks is above, or 0.
    pub rank: usize,
    /// Rows that tokens are drawn from, and behind them rows whose logits are wanted.
    pub wanted: Vec<i32>,
    /// How tokens are drawn from each of the former.
    pub inv_temp: Vec<f32>,
    pub uniform: Vec<f64>,
    pub top_k: Vec<i32>,
    pub top_p: Vec<f32>,
    pub min_p: Vec<f32>,
    /// Rows by which labels are scored.
    pub scored: Vec<i32>,
    pub labels: Vec<i32>,
    pub scored_inv_temp: Vec<f32>,
}

/// The contents, on the GPU.
pub(super) struct Views<'a> {
    pub ids: CudaView<'a, i32>,
    pub positions: CudaView<'a, i32>,
    pub seq: CudaView<'a, i32>,
    pub tables: CudaView<'a, u64>,
    pub capacities: CudaView<'a, i32>,
    pub adapters: CudaView<'a, u64>,
    pub wanted: CudaView<'a, i32>,
    pub inv_temp: CudaView<'a, f32>,
    pub uniform: CudaView<'a, f64>,
    pub top_k: CudaView<'a, i32>,
    pub top_p: CudaView<'a, f32>,
    pub min_p: CudaView<'a, f32>,
    pub scored: CudaView<'a, i32>,
    pub labels: CudaView<'a, i32>,
    pub scored_inv_temp: CudaView<'a, f32>,
}

impl Counts {
    /// Bytes of the parts in the order in which they lie, the widest elements first.
    fn parts(self) -> [usize; 15] {
        let Counts { rows, sequences, wanted, scored, .. } = self;
        let (r, s, w, l) = (4 * rows, 4 * sequences, 4 * wanted, 4 * scored);
        [2 * s, 2 * s, 2 * w, r, r, r, s, w, w, w, w, w, l, l, l]
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.parts().iter().sum()
    }
}

impl Inputs {
    pub fn counts(&self) -> Counts {
        Counts {
            rows: self.ids.len(),
            sequences: self.tables.len(),
            wanted: self.wanted.len(),
            scored: self.scored.len(),
            rank: self.rank,
        }
    }

    /// Adds rows of no sequence, sequences without rows, and rows that nobody wants until there are as many as `to` says.
    pub fn pad(&mut self, to: Counts) {
        self.ids.resize(to.rows, 0);
        self.positions.resize(to.rows, 0);
        self.seq.resize(to.rows, -1);
        self.tables.resize(to.sequences, 0);
        self.capacities.resize(to.sequences, 0);
        self.adapters.resize(to.sequences, 0);
        self.wanted.resize(to.wanted, 0);
        self.scored.resize(to.scored, 0);
        self.complete();
    }

    /// Gives rows of which only the number counts the numbers that change nothing.
    pub fn complete(&mut self) {
        let (wanted, scored) = (self.wanted.len(), self.scored.len());
        self.inv_temp.resize(wanted, 1.0);
        self.uniform.resize(wanted, -1.0);
        self.top_k.resize(wanted, 0);
        self.top_p.resize(wanted, 1.0);
        self.min_p.resize(wanted, 0.0);
        self.labels.resize(scored, 0);
        self.scored_inv_temp.resize(scored, 1.0);
    }

    /// The block.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.counts().bytes());
        out.extend(self.tables.iter().flat_map(|x| x.to_ne_bytes()));
        out.extend(self.adapters.iter().flat_map(|x| x.to_ne_bytes()));
        out.extend(self.uniform.iter().flat_map(|x| x.to_ne_bytes()));
        let ints = |out: &mut Vec<u8>, part: &[i32]| out.extend(part.iter().flat_map(|x| x.to_ne_bytes()));
        let floats = |out: &mut Vec<u8>, part: &[f32]| out.extend(part.iter().flat_map(|x| x.to_ne_bytes()));
        for part in [&self.ids, &self.positions, &self.seq, &self.capacities, &self.wanted, &self.top_k] {
            ints(&mut out, part);
        }
        for part in [&self.inv_temp, &self.top_p, &self.min_p] {
            floats(&mut out, part);
        }
        ints(&mut out, &self.scored);
        ints(&mut out, &self.labels);
        floats(&mut out, &self.scored_inv_temp);
        out
    }
}

impl<'a> Views<'a> {
    /// The parts of a block.
    pub fn new(block: &'a CudaSlice<u8>, counts: Counts) -> Result<Self, CudaError> {
        holds("sampling", "the block of inputs", cudarc::driver::DeviceSlice::len(block), counts.bytes())?;
        let mut at = 0;
        let mut next = |bytes: usize| {
            at += bytes;
            at - bytes..at
        };
        let [
            tables,
            adapters,
            uniform,
            ids,
            positions,
            seq,
            capacities,
            wanted,
            top_k,
            inv_temp,
            top_p,
            min_p,
            scored,
            labels,
            scored_inv_temp,
        ] = counts.parts().map(&mut next);
        Ok(Views {
            tables: part(block, tables)?,
            adapters: part(block, adapters)?,
            uniform: part(block, uniform)?,
            ids: part(block, ids)?,
            positions: part(block, positions)?,
            seq: part(block, seq)?,
            capacities: part(block, capacities)?,
            wanted: part(block, wanted)?,
            top_k: part(block, top_k)?,
            inv_temp: part(block, inv_temp)?,
            top_p: part(block, top_p)?,
            min_p: part(block, min_p)?,
            scored: part(block, scored)?,
            labels: part(block, labels)?,
            scored_inv_temp: part(block, scored_inv_temp)?,
        })
    }
}

fn part<T>(block: &CudaSlice<u8>, bytes: Range<usize>) -> Result<CudaView<'_, T>, CudaError> {
    let len = bytes.len() / size_of::<T>();
    // SAFETY: `pack` wrote elements of this type there, in multiples of their size from the block's start.
    let view = unsafe { block.slice(bytes).transmute::<T>(len) };
    view.ok_or_else(|| CudaError::Shape { op: "sampling", what: "the block of inputs is too short".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_long_as_their_counts_say_and_aligned() {
        let mut inputs = Inputs {
            ids: vec![1, 2, 3],
            tables: vec![9],
            adapters: vec![0],
            wanted: vec![2],
            scored: vec![1],
            ..Inputs::default()
        };
        let to = Counts { rows: 5, sequences: 4, wanted: 3, scored: 2, rank: 0 };
        inputs.pad(to);
        assert_eq!(inputs.counts(), to);
        assert_eq!(inputs.pack().len(), to.bytes());
        assert_eq!(inputs.seq, [-1; 5]);
        // Eight bytes each come before four each.
        assert_eq!(inputs.pack()[..8], 9u64.to_ne_bytes());
    }
}
