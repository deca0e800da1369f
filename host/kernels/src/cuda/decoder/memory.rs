//! The activations of a pass: planned for a number of tokens, allocated once, used again by every later pass.
//!
//! Owns which layer keeps what and the shared places of what is computed again. Must not know operations.

use crate::cuda::{Context, CudaError, CudaSlice, Element};

use super::arena::Arena;
use super::head;
use super::layer::{self, Keep, Rows, Slots};
use super::layout::Layout;

/// Which layers keep what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompute {
    /// Every so many layers, beginning with the first, one keeps only `keep`; 0 is none.
    pub every: usize,
    /// What such a layer keeps.
    pub keep: Keep,
}

impl Recompute {
    /// Every layer keeps everything.
    pub const NOTHING: Recompute = Recompute { every: 0, keep: Keep::ALL };

    pub(super) fn of(&self, layer: usize) -> Keep {
        if self.every > 0 && layer.is_multiple_of(self.every) { self.keep } else { Keep::ALL }
    }
}

/// A layer's activations; absent ones are in [`Spare`] while they are needed.
struct Saved<T> {
    x: CudaSlice<T>,
    rstd: [CudaSlice<f32>; 2],
    qkv: Option<CudaSlice<T>>,
    attention: Option<(CudaSlice<T>, CudaSlice<f32>)>,
    mid: Option<CudaSlice<T>>,
    gate_up: Option<CudaSlice<T>>,
}

/// Places that all layers without their own share.
struct Spare<T> {
    qkv: Option<CudaSlice<T>>,
    attention: Option<(CudaSlice<T>, CudaSlice<f32>)>,
    mid: Option<CudaSlice<T>>,
    gate_up: Option<CudaSlice<T>>,
}

/// Everything a pass over at most `tokens` tokens writes besides gradients of weights.
pub(super) struct Memory<T> {
    pub tokens: usize,
    layers: Vec<Saved<T>>,
    spare: Spare<T>,
    /// Residual stream behind the last layer.
    pub last: CudaSlice<T>,
    /// Of the final norm.
    pub rstd: CudaSlice<f32>,
    /// Hidden states behind the final norm.
    pub hidden: CudaSlice<T>,
    pub rows: Rows<T>,
    pub arena: Arena,
}

/// Bytes of [`Memory`].
pub(super) fn bytes<T: Element>(
    c: &Context,
    layout: &Layout,
    recompute: Recompute,
    head_chunk: usize,
    tokens: usize,
) -> usize {
    let d = &layout.dims;
    let sizes = [layout.qkv_width(), d.q_width(), d.hidden, 2 * d.ffn].map(|w| w * size_of::<T>());
    let lse = 4 * d.heads;
    let of = |k: Keep| {
        let [qkv, out, mid, gate_up] = sizes;
        [(k.qkv, qkv), (k.attention, out + lse), (k.mid, mid), (k.gate_up, gate_up)]
    };
    let sum = |k: Keep, kept: bool| of(k).iter().filter(|(has, _)| *has == kept).map(|(_, b)| b).sum::<usize>();
    let row = d.hidden * size_of::<T>();
    let layers: usize = (0..d.layers).map(|i| row + 8 + sum(recompute.of(i), true)).sum();
    let spare = if (0..d.layers).any(|i| recompute.of(i) != Keep::ALL) { sum(recompute.keep, false) } else { 0 };
    tokens * (layers + spare + 6 * row + 4) + arena_bytes::<T>(c, layout, head_chunk, tokens)
}

fn arena_bytes<T: Element>(c: &Context, layout: &Layout, head_chunk: usize, tokens: usize) -> usize {
    let d = &layout.dims;
    let head = head::scratch_bytes::<T>([d.hidden, d.vocab], head_chunk.min(tokens));
    layer::scratch_bytes::<T>(c, layout, tokens).max(head)
}

impl<T: Element> Memory<T> {
    pub fn new(
        c: &Context,
        layout: &Layout,
        recompute: Recompute,
        head_chunk: usize,
        tokens: usize,
    ) -> Result<Self, CudaError> {
        let d = &layout.dims;
        let row = |width: usize| c.alloc::<T>(tokens * width);
        let attention = || Ok::<_, CudaError>((row(d.q_width())?, c.alloc(tokens * d.heads)?));
        let layers = (0..d.layers)
            .map(|i| {
                let keep = recompute.of(i);
                Ok(Saved {
                    x: row(d.hidden)?,
                    rstd: [c.alloc(tokens)?, c.alloc(tokens)?],
                    qkv: keep.qkv.then(|| row(layout.qkv_width())).transpose()?,
                    attention: keep.attention.then(attention).transpose()?,
                    mid: keep.mid.then(|| row(d.hidden)).transpose()?,
                    gate_up: keep.gate_up.then(|| row(2 * d.ffn)).transpose()?,
                })
            })
            .collect::<Result<Vec<_>, CudaError>>()?;
        let lacks = |what: fn(Keep) -> bool| (0..d.layers).any(|i| !what(recompute.of(i)));
        let spare = Spare {
            qkv: lacks(|k| k.qkv).then(|| row(layout.qkv_width())).transpose()?,
            attention: lacks(|k| k.attention).then(attention).transpose()?,
            mid: lacks(|k| k.mid).then(|| row(d.hidden)).transpose()?,
            gate_up: lacks(|k| k.gate_up).then(|| row(2 * d.ffn)).transpose()?,
        };
        Ok(Self {
            tokens,
            layers,
            spare,
            last: row(d.hidden)?,
            rstd: c.alloc(tokens)?,
            hidden: row(d.hidden)?,
            rows: Rows { y: row(d.hidden)?, dy: row(d.hidden)?, dmid: row(d.hidden)?, dx: row(d.hidden)? },
            arena: Arena::new(c, arena_bytes::<T>(c, layout, head_chunk, tokens))?,
        })
    }

    /// The parts that one layer's passes over `n` tokens use at a time.
    pub fn layer<'a>(&'a mut self, layout: &Layout, i: usize, n: usize) -> Option<LayerParts<'a, T>> {
        let d = &layout.dims;
        let (before, after) = self.layers.split_at_mut(i + 1);
        let saved = before.last_mut()?;
        let next = after.first_mut().map_or(&mut self.last, |s| &mut s.x);
        let [rstd1, rstd2] = &mut saved.rstd;
        let (out, lse) = saved.attention.as_mut().or(self.spare.attention.as_mut())?;
        let qkv = saved.qkv.as_mut().or(self.spare.qkv.as_mut())?;
        let mid = saved.mid.as_mut().or(self.spare.mid.as_mut())?;
        let gate_up = saved.gate_up.as_mut().or(self.spare.gate_up.as_mut())?;
        let slots = Slots {
            x: saved.x.slice(..n * d.hidden),
            rstd1: rstd1.slice_mut(..n),
            qkv: qkv.slice_mut(..n * layout.qkv_width()),
            out: out.slice_mut(..n * d.q_width()),
            lse: lse.slice_mut(..n * d.heads),
            mid: mid.slice_mut(..n * d.hidden),
            rstd2: rstd2.slice_mut(..n),
            gate_up: gate_up.slice_mut(..n * 2 * d.ffn),
        };
        Some(LayerParts { slots, next, rows: &mut self.rows, arena: &mut self.arena })
    }

    /// The first layer's input.
    pub fn first(&mut self) -> Option<&mut CudaSlice<T>> {
        self.layers.first_mut().map(|s| &mut s.x)
    }
}

/// See [`Memory::layer`].
pub(super) struct LayerParts<'a, T> {
    pub slots: Slots<'a, T>,
    /// Where the layer's output goes.
    pub next: &'a mut CudaSlice<T>,
    pub rows: &'a mut Rows<T>,
    pub arena: &'a mut Arena,
}
