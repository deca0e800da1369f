//! A decoder's weights: those of one layer as operations take them, and a whole copy to sample from that nothing changes.
//!
//! Owns the buffers of the copy. Must not know who made it or what reads it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::{Communicator, Context, CudaError, CudaSlice, CudaView, Element, check};
use crate::weights::Rope;

use super::layout::{LayerSpans, Layout, Span};

/// The weights.
pub struct Weights<T> {
    pub(super) layout: Layout,
    pub(super) rope: Rope,
    buffers: Arc<Buffers<T>>,
}

struct Buffers<T> {
    matrices: CudaSlice<T>,
    /// Norms and biases.
    vectors: CudaSlice<f32>,
}

/// Buffers of copies, in use and not: the next copy takes those of one that is gone, so that few addresses come again and
/// again, and steps that were recorded over them hold.
pub(super) struct Copies<T>(Mutex<Vec<Arc<Buffers<T>>>>);

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Element> Copies<T> {
    /// A copy of these weights.
    pub fn of(
        &self,
        c: &Context,
        layout: Layout,
        rope: Rope,
        matrices: &CudaView<'_, T>,
        vectors: &CudaView<'_, f32>,
    ) -> Result<Weights<T>, CudaError> {
        self.filled(c, layout, rope, |own| {
            c.copy(matrices, &mut own.matrices)?;
            c.copy(vectors, &mut own.vectors)?;
            c.synchronize()
        })
    }

    /// What rank 0 of a communicator [sends](Weights::send) under a number.
    pub fn received(
        &self,
        c: &Context,
        layout: Layout,
        rope: Rope,
        nccl: &Communicator,
        number: u64,
    ) -> Result<Weights<T>, CudaError> {
        let head = head::<T>(&layout, number);
        self.filled(c, layout, rope, |own| {
            // A fresh buffer is there once its allocation is.
            c.synchronize()?;
            let sent = nccl.receive_numbers(head.len())?;
            check("weights", sent == head, || format!("those sent are {sent:?}, awaited were {head:?}"))?;
            nccl.receive(&mut own.matrices)?;
            nccl.receive(&mut own.vectors)
        })
    }

    fn filled(
        &self,
        c: &Context,
        layout: Layout,
        rope: Rope,
        fill: impl FnOnce(&mut Buffers<T>) -> Result<(), CudaError>,
    ) -> Result<Weights<T>, CudaError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that nobody else has is free, and one free one is enough.
        let free = all.iter().position(|b| Arc::strong_count(b) == 1).map(|at| all.swap_remove(at));
        all.retain(|b| Arc::strong_count(b) > 1);
        let mut buffers = match free {
            Some(buffers) => buffers,
            None => Arc::new(Buffers {
                matrices: c.alloc(layout.matrices)?,
                vectors: c.alloc(layout.total - layout.matrices)?,
            }),
        };
        let taken = || CudaError::Shape { op: "weights", what: "buffers that are in use".to_owned() };
        fill(Arc::get_mut(&mut buffers).ok_or_else(taken)?)?;
        all.push(buffers.clone());
        Ok(Weights { layout, rope, buffers })
    }
}

/// What goes before weights: how large they are, and which.
fn head<T>(layout: &Layout, number: u64) -> [u64; 4] {
    [size_of::<T>() as u64, layout.matrices as u64, layout.total as u64, number]
}

impl<T: Element> Weights<T> {
    /// Sends them to all others of a nccl, under a number that they await.
    ///
    /// # Errors
    /// As of [`Communicator::send`].
    pub fn send(&self, nccl: &Communicator, number: u64) -> Result<(), CudaError> {
        nccl.send_numbers(&head::<T>(&self.layout, number))?;
        nccl.send(&self.buffers.matrices)?;
        nccl.send(&self.buffers.vectors)
    }
}

impl<T> Weights<T> {
    pub(super) fn matrices(&self) -> &CudaSlice<T> {
        &self.buffers.matrices
    }

    pub(super) fn vectors(&self) -> &CudaSlice<f32> {
        &self.buffers.vectors
    }
}

/// A layer's weights.
pub(super) struct LayerWeights<'a, T> {
    pub qkv: CudaView<'a, T>,
    pub o: CudaView<'a, T>,
    pub gate_up: CudaView<'a, T>,
    pub down: CudaView<'a, T>,
    pub input_norm: CudaView<'a, f32>,
    pub bias: Option<CudaView<'a, f32>>,
    pub head_norms: Option<[CudaView<'a, f32>; 2]>,
    pub post_norm: CudaView<'a, f32>,
}

impl<'a, T: Element> LayerWeights<'a, T> {
    /// Of one layer; `vectors` begin where the matrices end.
    pub fn new(layout: &Layout, spans: &LayerSpans, matrices: &CudaView<'a, T>, vectors: &CudaView<'a, f32>) -> Self {
        let vector = |s: &Span| layout.vector(vectors, s);
        Self {
            qkv: matrices.slice(spans.qkv.clone()),
            o: matrices.slice(spans.o.clone()),
            gate_up: matrices.slice(spans.gate_up.clone()),
            down: matrices.slice(spans.down.clone()),
            input_norm: vector(&spans.input_norm),
            bias: spans.bias.as_ref().map(vector),
            head_norms: spans.head_norms.as_ref().map(|n| [vector(&n[0]), vector(&n[1])]),
            post_norm: vector(&spans.post_norm),
        }
    }
}
