//! Processes that hand weights on from GPU to GPU. Owns what weights need for it; must not know how processes
//! find each other, or which weights are sent when.

use crate::{ModelError, Snapshot};
use std::sync::Arc;

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
