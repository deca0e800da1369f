//! Decode steps recorded once and enqueued as a whole ever after.
//!
//! Owns the recordings, and when one still holds. Must not know what a step computes.

use std::collections::{HashMap, HashSet};

use cudarc::driver::{CudaGraph, sys};

use crate::cuda::context::{driver, recording};
use crate::cuda::{Context, CudaError};

use super::inputs::Counts;

/// Recordings that are kept; the one that was used longest ago goes first.
const MOST: usize = 256;

/// Everything that a recording depends on. Addresses are of memory that the step of this moment uses, so whatever was
/// recorded with the same ones reads and writes the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub counts: Counts,
    /// Positions that the longest sequence may have.
    pub longest: usize,
    /// Of weights, inputs, scratch memory, drawn tokens and the rotation's table.
    pub addresses: [u64; 6],
}

struct Recorded {
    graph: CudaGraph,
    used: u64,
}

// SAFETY: the driver allows graphs on any thread, one at a time; whoever has the steps has them alone.
unsafe impl Send for Recorded {}

/// All recordings.
#[derive(Default)]
pub(super) struct Replays {
    steps: HashMap<Key, Recorded>,
    /// Shapes of steps that were enqueued by hand, so that kernels are loaded and products planned.
    known: HashSet<(Counts, usize)>,
    clock: u64,
}

/// The number of rows that a step of `rows` is recorded with; `None` for steps that are not worth it.
pub(super) fn bucket(rows: usize) -> Option<usize> {
    match rows {
        0 => None,
        1..=8 => Some(rows.next_power_of_two()),
        9..=256 => Some(rows.next_multiple_of(16)),
        257..=1024 => Some(rows.next_multiple_of(64)),
        _ => None,
    }
}

impl Replays {
    /// Enqueues the step of `key`. `enqueue` does it by hand: the first time that there is one of its shape, and then to
    /// record it.
    pub fn run(
        &mut self,
        c: &Context,
        key: Key,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        self.clock += 1;
        let shape = (key.counts, key.longest);
        if !self.steps.contains_key(&key) {
            // A driver was seen to crash in a recording while another thread set weights up: then, too, it is done by hand.
            let alone = recording();
            if alone.is_none() || !self.known.contains(&shape) {
                drop(alone);
                enqueue()?;
                self.known.insert(shape);
                return Ok(());
            }
            if self.steps.len() >= MOST
                && let Some(oldest) = self.steps.iter().min_by_key(|(_, step)| step.used).map(|(key, _)| key.clone())
            {
                // It may be under way.
                c.synchronize()?;
                self.steps.remove(&oldest);
            }
            let graph = record(c, enqueue)?;
            self.steps.insert(key.clone(), Recorded { graph, used: 0 });
        }
        let missing = || CudaError::Shape { op: "sampling", what: "a recorded step is missing".to_owned() };
        let step = self.steps.get_mut(&key).ok_or_else(missing)?;
        step.used = self.clock;
        step.graph.launch().map_err(driver("enqueueing a recorded step"))
    }
}

/// Records what `enqueue` enqueues, without running it.
fn record(c: &Context, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<CudaGraph, CudaError> {
    let failed = || driver("recording a step");
    // What other threads do meanwhile is their own.
    c.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed())?;
    let enqueued = enqueue();
    // Ended in any case: a stream that records takes nothing else.
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = c.stream.end_capture(flags);
    enqueued?;
    graph.map_err(failed())?.ok_or_else(|| CudaError::Shape { op: "sampling", what: "nothing was recorded".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_their_rows_and_waste_little() {
        for rows in 1..=1024 {
            let bucket = bucket(rows).unwrap();
            assert!(bucket >= rows && (bucket - rows < 16 || bucket * 4 <= rows * 5), "{rows} in {bucket}");
        }
        assert_eq!((bucket(0), bucket(1025)), (None, None));
    }
}
