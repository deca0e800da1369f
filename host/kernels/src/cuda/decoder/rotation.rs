//! The table of cosines and sines that passes take, long enough for the longest document so far.
//!
//! Owns when it grows. Must not know documents.

use crate::cuda::{Context, CudaError, RopeTable};
use crate::weights::Rope;

/// Positions of the smallest table; larger ones are powers of two.
const SMALLEST: usize = 1024;

/// The table, absent before the first pass.
#[derive(Default)]
pub(super) struct Rotation(Option<(RopeTable, usize)>);

impl Rotation {
    /// A table of at least `longest` positions.
    pub fn table(&mut self, c: &Context, rope: &Rope, longest: usize) -> Result<&RopeTable, CudaError> {
        let short = self.0.as_ref().is_none_or(|(_, positions)| *positions < longest);
        if short {
            let positions = longest.next_power_of_two().max(SMALLEST);
            let table = c.rope_table(&rope.inv_freq, rope.attention_factor, positions)?;
            return Ok(&self.0.insert((table, positions)).0);
        }
        self.last().ok_or_else(|| CudaError::Shape { op: "rotation", what: "there is no table".to_owned() })
    }

    /// The table of the last pass.
    pub fn last(&self) -> Option<&RopeTable> {
        self.0.as_ref().map(|(table, _)| table)
    }
}
