//! A process's place among those that hand buffers on from GPU to GPU. Owns what it takes to join them; must not know how that
//! is done, so that builds without CUDA have it too.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Bytes of a communicator's id.
pub const COMMUNICATOR_ID_BYTES: usize = 128;

/// A process's place in a communicator that is to be.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The communicator's, which one of its processes makes.
    pub id: [u8; COMMUNICATOR_ID_BYTES],
    /// From 0, which is the one that sends.
    pub rank: usize,
    /// Its processes.
    pub size: usize,
    /// How long the others are waited for, in joining and in each operation.
    pub patience: Duration,
    /// Set to end every wait.
    pub called_off: Arc<AtomicBool>,
}
