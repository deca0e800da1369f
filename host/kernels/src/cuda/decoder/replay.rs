//! Decode steps recorded once and enqueued as a whole ever after.
//!
//! Owns the recordings: what each reads and writes besides the memory that every pass uses, and when one still holds. Must
//! not know what a step computes.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use cudarc::driver::{CudaGraph, sys};

use crate::cuda::context::driver;
use crate::cuda::{Context, CudaError, CudaSlice, Pinned};

use super::inputs::Counts;

/// Recordings that are kept; the one that was used longest ago goes first.
const MOST: usize = 96;

/// Read while weights are set up, written while a step is recorded.
static SETTING_UP: RwLock<()> = RwLock::new(());

/// Keeps steps from being recorded as long as it lives: for who allocates, copies and frees weights on another thread than
/// the one that samples.
pub fn setting_up() -> RwLockReadGuard<'static, ()> {
    SETTING_UP.read().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that a recording depends on. Addresses are of memory that the step of this moment uses, so whatever was
/// recorded with the same ones reads and writes the same.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    pub counts: Counts,
    /// Positions that the longest sequence may have.
    pub longest: usize,
    /// Of weights, scratch memory and the rotation's table.
    pub addresses: [u64; 4],
}

/// What a recording has for itself.
pub(super) struct Buffers {
    pub inputs: CudaSlice<u8>,
    /// Drawn tokens, and behind them the bits of their log-probabilities.
    pub drawn: CudaSlice<i32>,
    pub on_host: Pinned<i32>,
}

/// A step that was seen once, or recorded.
struct Step {
    buffers: Buffers,
    recorded: Option<Recorded>,
    used: u64,
}

struct Recorded(CudaGraph);

// SAFETY: the driver allows graphs on any thread, one at a time; whoever has the steps has them alone.
unsafe impl Send for Recorded {}

/// All recordings.
#[derive(Default)]
pub(super) struct Replays {
    steps: HashMap<Key, Step>,
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
    /// Enqueues the step of `key` on `packed` inputs, and gives its buffers. `enqueue` does it by hand: the first time, when
    /// kernels may still have to be loaded and products planned, and the second time, when it is recorded.
    pub fn run(
        &mut self,
        c: &Context,
        key: Key,
        packed: &[u8],
        mut enqueue: impl FnMut(&mut Buffers) -> Result<(), CudaError>,
    ) -> Result<&mut Buffers, CudaError> {
        self.clock += 1;
        if !self.steps.contains_key(&key) {
            if self.steps.len() >= MOST
                && let Some(oldest) = self.steps.iter().min_by_key(|(_, step)| step.used).map(|(key, _)| key.clone())
            {
                self.steps.remove(&oldest);
            }
            let buffers = Buffers {
                inputs: c.alloc(key.counts.bytes())?,
                drawn: c.alloc(2 * key.counts.wanted)?,
                on_host: c.pinned(2 * key.counts.wanted)?,
            };
            let mut step = Step { buffers, recorded: None, used: self.clock };
            c.upload_into(packed, &mut step.buffers.inputs)?;
            enqueue(&mut step.buffers)?;
            return Ok(&mut self.steps.entry(key).or_insert(step).buffers);
        }
        let missing = || CudaError::Shape { op: "sampling", what: "a recorded step is missing".to_owned() };
        let step = self.steps.get_mut(&key).ok_or_else(missing)?;
        step.used = self.clock;
        c.upload_into(packed, &mut step.buffers.inputs)?;
        if step.recorded.is_none() {
            // A driver was seen to crash in a recording while another thread set weights up: then the step is enqueued by hand.
            let Ok(_alone) = SETTING_UP.try_write() else {
                enqueue(&mut step.buffers)?;
                return Ok(&mut step.buffers);
            };
            step.recorded = Some(record(c, || enqueue(&mut step.buffers))?);
        }
        let Recorded(graph) = step.recorded.as_ref().ok_or_else(missing)?;
        graph.launch().map_err(driver("enqueueing a recorded step"))?;
        Ok(&mut step.buffers)
    }
}

/// Records what `enqueue` enqueues, without running it.
fn record(c: &Context, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Recorded, CudaError> {
    let failed = || driver("recording a step");
    // What other threads do meanwhile is their own.
    c.stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed())?;
    let enqueued = enqueue();
    // Ended in any case: a stream that records takes nothing else.
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = c.stream.end_capture(flags);
    enqueued?;
    match graph.map_err(failed())? {
        Some(graph) => Ok(Recorded(graph)),
        None => Err(CudaError::Shape { op: "sampling", what: "nothing was recorded".to_owned() }),
    }
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
