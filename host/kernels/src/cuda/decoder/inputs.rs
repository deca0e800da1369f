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
    /// Rows whose logits are computed.
    pub wanted: usize,
}

/// The contents, on the host.
#[derive(Default)]
pub(super) struct Inputs {
    /// Of each row.
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    pub seq: Vec<i32>,
    /// Of each sequence.
    pub bases: Vec<u64>,
    pub capacities: Vec<i32>,
    /// Rows that tokens are drawn from, and behind them rows whose logits are wanted.
    pub wanted: Vec<i32>,
    /// Of each of those.
    pub inv_temp: Vec<f32>,
    pub uniform: Vec<f64>,
}

/// The contents, on the GPU.
pub(super) struct Views<'a> {
    pub ids: CudaView<'a, i32>,
    pub positions: CudaView<'a, i32>,
    pub seq: CudaView<'a, i32>,
    pub bases: CudaView<'a, u64>,
    pub capacities: CudaView<'a, i32>,
    pub wanted: CudaView<'a, i32>,
    pub inv_temp: CudaView<'a, f32>,
    pub uniform: CudaView<'a, f64>,
}

impl Counts {
    /// Bytes of the parts in the order in which they lie, the widest elements first.
    fn parts(self) -> [usize; 8] {
        let Counts { rows, sequences, wanted } = self;
        [8 * sequences, 8 * wanted, 4 * rows, 4 * rows, 4 * rows, 4 * sequences, 4 * wanted, 4 * wanted]
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        self.parts().iter().sum()
    }
}

impl Inputs {
    pub fn counts(&self) -> Counts {
        Counts { rows: self.ids.len(), sequences: self.bases.len(), wanted: self.wanted.len() }
    }

    /// Adds rows of no sequence until there are as many of everything as `rows`.
    pub fn pad(&mut self, rows: usize) {
        self.ids.resize(rows, 0);
        self.positions.resize(rows, 0);
        self.seq.resize(rows, -1);
        self.bases.resize(rows, 0);
        self.capacities.resize(rows, 0);
        self.wanted.resize(rows, 0);
        self.inv_temp.resize(rows, 1.0);
        self.uniform.resize(rows, 0.0);
    }

    /// The block.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.counts().bytes());
        out.extend(self.bases.iter().flat_map(|x| x.to_ne_bytes()));
        out.extend(self.uniform.iter().flat_map(|x| x.to_ne_bytes()));
        for part in [&self.ids, &self.positions, &self.seq, &self.capacities, &self.wanted] {
            out.extend(part.iter().flat_map(|x| x.to_ne_bytes()));
        }
        out.extend(self.inv_temp.iter().flat_map(|x| x.to_ne_bytes()));
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
        let [bases, uniform, ids, positions, seq, capacities, wanted, inv_temp] = counts.parts().map(&mut next);
        Ok(Views {
            bases: part(block, bases)?,
            uniform: part(block, uniform)?,
            ids: part(block, ids)?,
            positions: part(block, positions)?,
            seq: part(block, seq)?,
            capacities: part(block, capacities)?,
            wanted: part(block, wanted)?,
            inv_temp: part(block, inv_temp)?,
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
        let mut inputs = Inputs { ids: vec![1, 2, 3], bases: vec![9], wanted: vec![2], ..Inputs::default() };
        inputs.pad(5);
        assert_eq!(inputs.counts(), Counts { rows: 5, sequences: 5, wanted: 5 });
        assert_eq!(inputs.pack().len(), inputs.counts().bytes());
        assert_eq!(inputs.seq, [-1; 5]);
        // Eight bytes each come before four each.
        assert_eq!(inputs.pack()[..8], 9u64.to_ne_bytes());
    }
}
