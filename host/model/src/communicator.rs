//! Processes that hand weights on from GPU to GPU. Owns a process's place among them and what weights need for it; must not
//! know how processes find each other, or which weights are sent when.

use crate::{ModelError, Snapshot};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Bytes of a communicator's id.
pub const COMMUNICATOR_ID_BYTES: usize = 128;

/// A process's place in a communicator that is to be.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The communicator's, from [`crate::Gpu::communicator_id`] in one of its processes.
    pub id: [u8; COMMUNICATOR_ID_BYTES],
    /// From 0, which is the one that sends.
    pub rank: usize,
    /// Its processes.
    pub size: usize,
    /// How long the others are waited for, each time.
    pub patience: Duration,
    /// Set to end every wait.
    pub called_off: Arc<AtomicBool>,
}

/// A process's part in an NCCL communicator. What failed once has left it.
pub struct Communicator {
    #[cfg(feature = "cuda")]
    pub(crate) inner: prl_kernels::cuda::Communicator,
}

/// Makes snapshots of one model's shape out of the weights that come over a communicator.
pub trait Receiver: Send + Sync {
    /// Waits for the weights that are sent under a number, ready to sample from.
    ///
    /// # Errors
    /// They do not come in time, are of another shape or number, or do not fit the device.
    fn receive(&self, from: &Communicator, number: u64) -> Result<Arc<dyn Snapshot>, ModelError>;
}
