//! The decoder on a GPU: the layer-wise schedule of its training passes, and sampling over cached keys and values.
//!
//! Owns which operation runs when, on which buffer. Must not know burn, files, losses or sampling rules.

mod arena;
mod cache;
mod head;
mod inputs;
mod layer;
mod layout;
mod memory;
mod pass;
mod receiver;
mod regions;
mod replay;
mod rotation;
mod sampling;
mod self_test;
mod training;
mod underway;
mod weights;

use super::{Context, CudaError, Element};

pub use super::context::setting_up;
pub use cache::Cache;
pub use head::{RowStats, Targets};
pub use layer::Keep;
pub use memory::Recompute;
pub use receiver::Receiver;
pub use sampling::{Answer, Draw, Item, Sampling, Score, Want, Workspace};
pub use self_test::{SelfTest, self_test};
pub use training::{StepNumbers, Stepped, Training, TrainingOptions};
pub use underway::Underway;
pub use weights::Weights;

/// Compiles and loads what a decoder with such heads needs.
fn prepare<T: Element>(c: &Context, head_dim: usize) -> Result<(), CudaError> {
    let half = size_of::<T>() == 2;
    c.prepare(&[head_dim], half, !half)
}
