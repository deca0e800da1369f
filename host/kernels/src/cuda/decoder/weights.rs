//! A decoder's weights: those of one layer as operations take them, and a whole copy to sample from that nothing changes.
//!
//! Owns the buffers of the copy. Must not know who made it or what reads it.

use crate::cuda::{Context, CudaError, CudaSlice, CudaView, Element};
use crate::weights::Rope;

use super::layout::{LayerSpans, Layout, Span};

/// The weights.
pub struct Weights<T> {
    pub(super) layout: Layout,
    pub(super) rope: Rope,
    pub(super) matrices: CudaSlice<T>,
    /// Norms and biases.
    pub(super) vectors: CudaSlice<f32>,
}

impl<T: Element> Weights<T> {
    pub(super) fn copy_of(
        c: &Context,
        layout: Layout,
        rope: Rope,
        matrices: &CudaView<'_, T>,
        vectors: &CudaView<'_, f32>,
    ) -> Result<Self, CudaError> {
        let (mut m, mut v) = (c.alloc(layout.matrices)?, c.alloc(layout.total - layout.matrices)?);
        c.copy(matrices, &mut m)?;
        c.copy(vectors, &mut v)?;
        c.synchronize()?;
        Ok(Self { layout, rope, matrices: m, vectors: v })
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
