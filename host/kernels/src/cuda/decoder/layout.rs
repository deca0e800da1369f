//! Where each parameter of a decoder lies in one flat buffer: matrices first, then norms and biases.
//!
//! Owns the order and what of it the GPU's kernels can take. Must not know values. Queries, keys and values of a layer
//! are neighbours, and so are gate and up, so that each group is one matrix of a product.

use std::ops::Range;

use crate::cuda::{CudaError, CudaView, HeadLayout, HeadShape, check};
use crate::weights::{Dims, shapes};

/// A stretch of the flat buffer, in elements.
pub(super) type Span = Range<usize>;

/// Parameters of one layer.
#[derive(Clone, Debug)]
pub(super) struct LayerSpans {
    /// `[q + 2 kv, hidden]`.
    pub qkv: Span,
    /// `[hidden, q]`.
    pub o: Span,
    /// `[2 ffn, hidden]`.
    pub gate_up: Span,
    /// `[hidden, ffn]`.
    pub down: Span,
    /// `[hidden]`.
    pub input_norm: Span,
    /// `[q + 2 kv]`.
    pub bias: Option<Span>,
    /// `[head_dim]` each, of queries and of keys.
    pub head_norms: Option<[Span; 2]>,
    /// `[hidden]`.
    pub post_norm: Span,
}

/// Parameters of a whole decoder.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub dims: Dims,
    /// Every parameter in the order of their Hugging Face names, as [`crate::Grads::iter_mut`] has it.
    pub parameters: Vec<Span>,
    /// Elements of all matrices, which come first.
    pub matrices: usize,
    /// Elements of everything.
    pub total: usize,
    pub layers: Vec<LayerSpans>,
    /// `[vocab, hidden]`.
    pub embed: Span,
    /// `[vocab, hidden]`; the embedding again if tied.
    pub head: Span,
    /// `[hidden]`.
    pub final_norm: Span,
}

/// Widest row of a norm.
const HIDDEN_MOST: usize = 8192;
/// Most entries of a row that tokens are drawn from.
const VOCAB_MOST: usize = 1 << 20;
/// Query heads that decoding takes together.
const GROUP_MOST: usize = 16;
/// Slots of a layer among its parameters' shapes.
const SLOTS: usize = 14;
const VECTORS: [usize; 7] = [0, 5, 6, 7, 8, 9, 10];

impl Layout {
    pub fn new(dims: &Dims) -> Result<Self, CudaError> {
        let width = |name: &str, x: usize| {
            check("decoder", x > 0 && x.is_multiple_of(8), || {
                format!("{name} is {x}; the GPU's kernels need a multiple of 8")
            })
        };
        width("the hidden size", dims.hidden)?;
        width("the feed-forward width", dims.ffn)?;
        check("decoder", dims.head_dim.is_multiple_of(16) && (16..=128).contains(&dims.head_dim), || {
            format!("the head dimension is {}; the GPU's kernels need a multiple of 16, at most 128", dims.head_dim)
        })?;
        check("decoder", dims.kv_heads > 0 && dims.heads.is_multiple_of(dims.kv_heads), || {
            format!("{} heads do not share {} key/value heads evenly", dims.heads, dims.kv_heads)
        })?;
        check("decoder", dims.layers > 0 && dims.vocab > 0, || "it has no layers or no vocabulary".to_owned())?;
        for (name, is, most) in [
            ("the hidden size", dims.hidden, HIDDEN_MOST),
            ("the vocabulary", dims.vocab, VOCAB_MOST),
            ("the number of query heads to a key/value head", dims.heads / dims.kv_heads, GROUP_MOST),
        ] {
            check("decoder", is <= most, || format!("{name} is {is}; the GPU's kernels need at most {most}"))?;
        }

        let lens: Vec<Option<usize>> = shapes(dims).into_iter().map(|(_, len)| len).collect();
        // Slot 0 is the embedding, the last two are the final norm and the head.
        let is_vector = |slot: usize| match slot {
            0 => false,
            s if s + 2 == lens.len() => true,
            s if s + 1 == lens.len() => false,
            s => VECTORS.contains(&((s - 1) % SLOTS)),
        };
        let mut spans: Vec<Option<Span>> = vec![None; lens.len()];
        let mut at = 0;
        let mut matrices = 0;
        for vectors in [false, true] {
            for (slot, len) in lens.iter().enumerate() {
                if let Some(len) = len.filter(|_| is_vector(slot) == vectors) {
                    spans[slot] = Some(at..at + len);
                    at += len;
                }
            }
            if !vectors {
                matrices = at;
            }
        }
        let span = |slot: usize| spans[slot].clone().unwrap_or(0..0);
        let join = |first: usize, last: usize| span(first).start..span(last).end;
        let layers = (0..dims.layers)
            .map(|i| {
                let s = |slot| 1 + i * SLOTS + slot;
                LayerSpans {
                    qkv: join(s(1), s(3)),
                    o: span(s(4)),
                    gate_up: join(s(11), s(12)),
                    down: span(s(13)),
                    input_norm: span(s(0)),
                    bias: dims.qkv_bias.then(|| join(s(5), s(7))),
                    head_norms: dims.qk_norm.then(|| [span(s(8)), span(s(9))]),
                    post_norm: span(s(10)),
                }
            })
            .collect();
        let last = lens.len() - 1;
        let embed = span(0);
        Ok(Self {
            dims: dims.clone(),
            matrices,
            total: at,
            layers,
            head: if dims.tied { embed.clone() } else { span(last) },
            embed,
            final_norm: span(last - 1),
            parameters: spans.into_iter().flatten().collect(),
        })
    }

    /// Heads of a row `[q | k | v]`.
    pub fn heads(&self) -> HeadShape {
        let d = &self.dims;
        HeadShape { heads: d.heads, kv_heads: d.kv_heads, dim: d.head_dim, eps: d.norm_eps }
    }

    /// Rotated queries and keys apart, values inside `[q | k | v]`.
    pub fn head_layout(&self) -> HeadLayout {
        let d = &self.dims;
        HeadLayout {
            heads: d.heads,
            kv_heads: d.kv_heads,
            dim: d.head_dim,
            q_stride: d.q_width(),
            k_stride: d.kv_width(),
            v_stride: self.qkv_width(),
        }
    }

    /// Factor of attention's scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.dims.head_dim as f32).sqrt()
    }

    /// One of `vectors`, which begin where the matrices end.
    pub fn vector<'a>(&self, vectors: &CudaView<'a, f32>, span: &Span) -> CudaView<'a, f32> {
        vectors.slice(span.start - self.matrices..span.end - self.matrices)
    }

    /// Width of a row `[q | k | v]`.
    pub fn qkv_width(&self) -> usize {
        self.dims.q_width() + 2 * self.dims.kv_width()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(tied: bool) -> Dims {
        Dims {
            layers: 2,
            hidden: 16,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 24,
            vocab: 10,
            norm_eps: 1e-6,
            qk_norm: true,
            qkv_bias: true,
            tied,
        }
    }

    #[test]
    fn parameters_cover_the_buffer_once_and_groups_are_neighbours() {
        for tied in [false, true] {
            let l = Layout::new(&dims(tied)).unwrap();
            let mut sorted = l.parameters.clone();
            sorted.sort_by_key(|s| s.start);
            assert!(sorted.windows(2).all(|w| w[0].end == w[1].start));
            assert_eq!((sorted[0].start, sorted.last().unwrap().end), (0, l.total));
            assert_eq!(l.total, dims(tied).parameters());
            assert_eq!(l.layers[1].qkv.len(), (64 + 2 * 32) * 16);
            assert_eq!(l.layers[1].gate_up.len(), 2 * 24 * 16);
            assert_eq!(l.layers[0].bias.clone().unwrap().len(), 64 + 2 * 32);
            assert_eq!(l.head == l.embed, tied);
            assert!(l.head.end <= l.matrices && l.final_norm.start >= l.matrices);
            assert_eq!(l.parameters[1], l.layers[0].input_norm);
        }
    }

    #[test]
    fn what_the_kernels_cannot_take_is_named() {
        let error = |d: Dims| Layout::new(&d).unwrap_err().to_string();
        assert!(error(Dims { hidden: 20, ..dims(true) }).contains("hidden size is 20"));
        assert!(error(Dims { head_dim: 24, ..dims(true) }).contains("head dimension is 24"));
        assert!(error(Dims { hidden: 8200, ..dims(true) }).contains("at most 8192"));
        assert!(error(Dims { vocab: 2_000_000, ..dims(true) }).contains("vocabulary is 2000000"));
        assert!(error(Dims { heads: 34, kv_heads: 1, ..dims(true) }).contains("key/value head is 34"));
    }
}
