//! One decoder layer over packed documents: forward, what of it is computed again, backward.
//!
//! Owns the order of operations in a layer. Must not know which activations are kept where, or other layers.

use crate::cuda::{
    Attention, AttentionGrads, Context, CudaError, CudaSlice, CudaView, CudaViewMut, Element, In, Matrix, NormGrads,
    Onto, Out, RopeTable, Tiles,
};

use super::arena::{Arena, bytes};
use super::layout::{LayerSpans, Layout};
use super::weights::LayerWeights;

/// A batch and what every layer needs of it.
pub(super) struct Pass<'a> {
    pub c: &'a Context,
    pub layout: &'a Layout,
    pub tiles: &'a Tiles,
    pub positions: CudaView<'a, i32>,
    pub table: &'a RopeTable,
    /// Of [`Context::norm_scratch`] for the widest rows.
    pub scratch: &'a mut CudaSlice<f32>,
}

/// Where a layer's activations are, its own or shared ones; rows of one token each.
pub(super) struct Slots<'a, T> {
    /// Residual stream into the layer, `[hidden]`.
    pub x: CudaView<'a, T>,
    /// Of the norm before attention.
    pub rstd1: CudaViewMut<'a, f32>,
    /// `[q | k | v]` before head norm and rotation.
    pub qkv: CudaViewMut<'a, T>,
    /// Attention's result, `[q]`.
    pub out: CudaViewMut<'a, T>,
    /// Its `[heads, tokens]` normalisers.
    pub lse: CudaViewMut<'a, f32>,
    /// Residual stream behind attention, `[hidden]`.
    pub mid: CudaViewMut<'a, T>,
    /// Of the norm before the feed-forward block.
    pub rstd2: CudaViewMut<'a, f32>,
    /// `[gate | up]`.
    pub gate_up: CudaViewMut<'a, T>,
}

/// Which activations a layer keeps from its forward pass; the rest is computed again for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Queries, keys and values.
    pub qkv: bool,
    /// Attention's result.
    pub attention: bool,
    /// The residual stream behind attention.
    pub mid: bool,
    /// Gate and up.
    pub gate_up: bool,
}

impl Keep {
    /// Everything.
    pub const ALL: Keep = Keep { qkv: true, attention: true, mid: true, gate_up: true };
    /// Only the layer's input.
    pub const NONE: Keep = Keep { qkv: false, attention: false, mid: false, gate_up: false };
}

/// Rows of `[hidden]` that all layers of a pass share.
pub(super) struct Rows<T> {
    /// Normed rows.
    pub y: CudaSlice<T>,
    /// Gradient towards them.
    pub dy: CudaSlice<T>,
    /// Gradient towards the stream behind attention.
    pub dmid: CudaSlice<T>,
    /// Gradient towards the layer's output, and then its input.
    pub dx: CudaSlice<T>,
}

/// Bytes of scratch that a layer's passes need for so many tokens.
pub(super) fn scratch_bytes<T: Element>(c: &Context, layout: &Layout, n: usize) -> usize {
    let (q, kv, f) = (layout.dims.q_width(), layout.dims.kv_width(), layout.dims.ffn);
    let rows = |width: usize| n * width * size_of::<T>();
    let mlp = bytes(&[rows(f), rows(f), rows(2 * f)]);
    let attention = [rows(q), rows(kv), rows(q), rows(q), rows(kv), rows(layout.qkv_width())];
    let sums = c.attention_backward_scratch::<T>(layout.head_layout(), n);
    mlp.max(bytes(&attention) + bytes(&[n * layout.dims.heads * 4, sums * 4]))
}

impl Pass<'_> {
    fn n(&self) -> usize {
        self.tiles.tokens()
    }

    /// RMSNorm of the residual stream.
    pub fn norm<T: Element>(&self, x: In<'_, T>, w: In<'_, f32>, y: Out<'_, T>, rstd: Out<'_, f32>) -> Done {
        let d = &self.layout.dims;
        self.c.rms_norm([self.n(), d.hidden], d.norm_eps, x, None, w, y, rstd)
    }

    fn rotate<T: Element>(&self, w: &LayerWeights<'_, T>, qkv: In<'_, T>, q: Out<'_, T>, k: Out<'_, T>) -> Done {
        let norms = w.head_norms.as_ref().map(|n| [&n[0] as In<'_, f32>, &n[1]]);
        self.c.rope(self.layout.heads(), qkv, norms, self.table, &self.positions, (q, k))
    }

    /// Computes the activations that `have` lacks, from the layer's input on.
    pub fn fill<T: Element>(
        &self,
        w: &LayerWeights<'_, T>,
        s: &mut Slots<'_, T>,
        have: Keep,
        y: &mut CudaSlice<T>,
        arena: &mut Arena,
    ) -> Done {
        let (c, d, n) = (self.c, &self.layout.dims, self.n());
        let (h, q_width, kv_width, width) = (d.hidden, d.q_width(), d.kv_width(), self.layout.qkv_width());
        if !have.qkv {
            self.norm(&s.x, &w.input_norm, y, &mut s.rstd1)?;
            c.gemm([n, width, h], Matrix::new(y, h), Matrix::t(&w.qkv, h), &mut s.qkv, width, Onto::Nothing)?;
            if let Some(bias) = &w.bias {
                c.add_bias([n, width], &mut s.qkv, bias)?;
            }
        }
        if !have.attention {
            let mut carver = arena.carve();
            let (mut q, mut k) = (carver.take(n * q_width)?, carver.take(n * kv_width)?);
            self.rotate(w, &s.qkv, &mut q, &mut k)?;
            let v = s.qkv.slice(q_width + kv_width..);
            let x = Attention { q: &q, k: &k, v: &v, layout: self.layout.head_layout(), scale: self.layout.scale() };
            c.attention(self.tiles, x, &mut s.out, q_width, &mut s.lse)?;
        }
        if !have.mid {
            let (out, o) = (Matrix::new(&s.out, q_width), Matrix::t(&w.o, q_width));
            c.gemm([n, h, q_width], out, o, &mut s.mid, h, Onto::Other(&s.x))?;
        }
        if !have.gate_up {
            self.norm(&s.mid, &w.post_norm, y, &mut s.rstd2)?;
            let (y, w) = (Matrix::new(&*y, h), Matrix::t(&w.gate_up, h));
            c.gemm([n, 2 * d.ffn, h], y, w, &mut s.gate_up, 2 * d.ffn, Onto::Nothing)?;
        }
        Ok(())
    }

    /// The layer's output from its activations.
    pub fn finish<T: Element>(
        &self,
        w: &LayerWeights<'_, T>,
        s: &Slots<'_, T>,
        next: Out<'_, T>,
        arena: &mut Arena,
    ) -> Done {
        let (c, d, n) = (self.c, &self.layout.dims, self.n());
        let mut act = arena.carve().take(n * d.ffn)?;
        c.swiglu([n, d.ffn], &s.gate_up, &mut act)?;
        let (act, down) = (Matrix::new(&act, d.ffn), Matrix::t(&w.down, d.ffn));
        c.gemm([n, d.hidden, d.ffn], act, down, next, d.hidden, Onto::Other(&s.mid))
    }

    /// Turns `rows.dx`, the gradient towards the layer's output, into that towards its input, and adds the weights'
    /// gradients to the flat buffer `grad`.
    pub fn backward<T: Element>(
        &mut self,
        w: &LayerWeights<'_, T>,
        s: &Slots<'_, T>,
        spans: &LayerSpans,
        rows: &mut Rows<T>,
        grad: &mut CudaSlice<f32>,
        arena: &mut Arena,
    ) -> Done {
        let (c, n) = (self.c, self.n());
        let (h, f) = (self.layout.dims.hidden, self.layout.dims.ffn);
        let (q_width, kv_width) = (self.layout.dims.q_width(), self.layout.dims.kv_width());
        let width = self.layout.qkv_width();
        let Rows { y, dy, dmid, dx } = rows;
        {
            let mut carver = arena.carve();
            let (mut act, mut d_act, mut d_gate_up) =
                (carver.take(n * f)?, carver.take(n * f)?, carver.take(n * 2 * f)?);
            c.gemm([n, f, h], Matrix::new(dx, h), Matrix::new(&w.down, f), &mut d_act, f, Onto::Nothing)?;
            c.swiglu_backward([n, f], &s.gate_up, &d_act, &mut d_gate_up, Some(&mut act))?;
            let mut dw = grad.slice_mut(spans.down.clone());
            c.gemm([h, f, n], Matrix::t(dx, h), Matrix::new(&act, f), &mut dw, f, Onto::Itself)?;
            let (d, weight) = (Matrix::new(&d_gate_up, 2 * f), Matrix::new(&w.gate_up, h));
            c.gemm([n, h, 2 * f], d, weight, dy, h, Onto::Nothing)?;
            let mut dw = grad.slice_mut(spans.post_norm.clone());
            let grads = NormGrads { dw: &mut dw, scratch: self.scratch };
            let at = (&s.mid as In<'_, T>, &s.rstd2 as In<'_, f32>);
            c.rms_norm_backward([n, h], at, &w.post_norm, dy, Some(dx), dmid, Some(y), grads)?;
            let mut dw = grad.slice_mut(spans.gate_up.clone());
            c.gemm([2 * f, h, n], Matrix::t(&d_gate_up, 2 * f), Matrix::new(y, h), &mut dw, h, Onto::Itself)?;
        }
        let mut carver = arena.carve();
        let (mut q, mut k) = (carver.take(n * q_width)?, carver.take(n * kv_width)?);
        let (mut dout, mut dq, mut dk) =
            (carver.take(n * q_width)?, carver.take(n * q_width)?, carver.take(n * kv_width)?);
        let mut dqkv = carver.take(n * width)?;
        let mut delta = carver.take(n * self.layout.dims.heads)?;
        let mut sums = carver.take(c.attention_backward_scratch::<T>(self.layout.head_layout(), n))?;
        c.gemm([n, q_width, h], Matrix::new(dmid, h), Matrix::new(&w.o, q_width), &mut dout, q_width, Onto::Nothing)?;
        let mut dw = grad.slice_mut(spans.o.clone());
        let out = Matrix::new(&s.out as In<'_, T>, q_width);
        c.gemm([h, q_width, n], Matrix::t(dmid, h), out, &mut dw, q_width, Onto::Itself)?;
        self.rotate(w, &s.qkv, &mut q, &mut k)?;
        {
            let v = s.qkv.slice(q_width + kv_width..);
            let x = Attention { q: &q, k: &k, v: &v, layout: self.layout.head_layout(), scale: self.layout.scale() };
            let mut dv = dqkv.behind_mut(q_width + kv_width);
            let grads = AttentionGrads { dq: &mut dq, dk: &mut dk, dv: &mut dv, strides: [q_width, kv_width, width] };
            let scratch = (&mut delta as Out<'_, f32>, Some(&mut sums as Out<'_, f32>));
            c.attention_backward(self.tiles, x, (&s.out, &dout, q_width), &s.lse, scratch, grads)?;
        }
        self.rotate_back(w, s, spans, (&dq, &dk), &mut dqkv, grad)?;
        if let Some(bias) = &spans.bias {
            let mut dw = grad.slice_mut(bias.clone());
            c.column_sums([n, width], &dqkv, &mut dw, self.scratch)?;
        }
        c.gemm([n, h, width], Matrix::new(&dqkv, width), Matrix::new(&w.qkv, h), dy, h, Onto::Nothing)?;
        let mut dw = grad.slice_mut(spans.input_norm.clone());
        let grads = NormGrads { dw: &mut dw, scratch: self.scratch };
        let at = (&s.x as In<'_, T>, &s.rstd1 as In<'_, f32>);
        c.rms_norm_backward([n, h], at, &w.input_norm, dy, Some(dmid), dx, Some(y), grads)?;
        let mut dw = grad.slice_mut(spans.qkv.clone());
        c.gemm([width, h, n], Matrix::t(&dqkv, width), Matrix::new(y, h), &mut dw, h, Onto::Itself)
    }

    fn rotate_back<T: Element>(
        &mut self,
        w: &LayerWeights<'_, T>,
        s: &Slots<'_, T>,
        spans: &LayerSpans,
        (dq, dk): (In<'_, T>, In<'_, T>),
        dqkv: Out<'_, T>,
        grad: &mut CudaSlice<f32>,
    ) -> Done {
        let (c, heads) = (self.c, self.layout.heads());
        let (table, positions) = (self.table, &self.positions);
        let (Some([wq, wk]), Some([q, k])) = (&w.head_norms, &spans.head_norms) else {
            return c.rope_backward(heads, &s.qkv, None, table, positions, (dq, dk), dqkv);
        };
        let mut both = grad.slice_mut(q.start..k.end);
        let (mut dwq, mut dwk) = both.split_at_mut(q.len());
        let norms = Some(([wq as In<'_, f32>, wk], [&mut dwq as Out<'_, f32>, &mut dwk], self.scratch as Out<'_, f32>));
        c.rope_backward(heads, &s.qkv, norms, table, positions, (dq, dk), dqkv)
    }
}

type Done = Result<(), CudaError>;
