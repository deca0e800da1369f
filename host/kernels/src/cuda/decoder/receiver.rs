//! Weights to sample from that come from another process, over a nccl.
//!
//! Owns what such weights have in common with those they follow. Must not know who sends them or when.

use std::sync::Arc;

use crate::cuda::{Communicator, Context, CudaError, Element};
use crate::weights::Rope;

use super::layout::Layout;
use super::sampling::{Sampling, Workspace};
use super::weights::Copies;

/// Makes weights of one model's shape out of what is sent over a communicator.
pub struct Receiver<T: Element> {
    c: Arc<Context>,
    layout: Layout,
    rope: Rope,
    work: Workspace,
    copies: Copies<T>,
}

impl<T: Element> Sampling<T> {
    /// For the weights that come after these.
    pub fn receiver(&self) -> Receiver<T> {
        let (layout, rope) = (self.weights.layout.clone(), self.weights.rope.clone());
        Receiver { c: self.c.clone(), layout, rope, work: self.work.clone(), copies: Copies::default() }
    }

    /// As [`super::Weights::send`].
    ///
    /// # Errors
    /// As there.
    pub fn send(&self, nccl: &Communicator, number: u64) -> Result<(), CudaError> {
        self.weights.send(nccl, number)
    }
}

impl<T: Element> Receiver<T> {
    /// Waits for the weights that are sent under a number.
    ///
    /// # Errors
    /// Not enough memory; as of [`Communicator::receive`]; weights of another shape or number.
    pub fn receive(&self, nccl: &Communicator, number: u64) -> Result<Sampling<T>, CudaError> {
        let weights = self.copies.received(&self.c, self.layout.clone(), self.rope.clone(), nccl, number)?;
        Sampling::new(self.c.clone(), weights, self.work.clone())
    }
}
