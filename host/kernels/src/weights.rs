//! Borrowed weights of a decoder and its dimensions, and gradients of the same structure.
//!
//! Owns shapes, names and their checks. Must not know where weights come from or what optimises them.

use rayon::prelude::*;
use thiserror::Error;

use crate::adapter::{AdapterLayer, LowRank};
use crate::projection::Projection;

/// Sizes and variants of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Dims {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Rows of the embedding and of the head.
    pub vocab: usize,
    /// Added to the mean square in every RMSNorm.
    pub norm_eps: f32,
    /// RMSNorm over each query and key head before rotation (Qwen3).
    pub qk_norm: bool,
    /// Bias on the query, key and value projections (Qwen2).
    pub qkv_bias: bool,
    /// The head shares the embedding's weights.
    pub tied: bool,
}

impl Dims {
    /// Width of the concatenated queries.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of the concatenated keys (or values).
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Trainable parameters.
    pub fn parameters(&self) -> usize {
        let (q, kv) = (self.q_width(), self.kv_width());
        let mut layer = 2 * self.hidden + self.hidden * (2 * q + 2 * kv) + 3 * self.hidden * self.ffn;
        layer += if self.qkv_bias { q + 2 * kv } else { 0 };
        layer += if self.qk_norm { 2 * self.head_dim } else { 0 };
        let tables = if self.tied { 1 } else { 2 };
        self.layers * layer + tables * self.vocab * self.hidden + self.hidden
    }
}

/// Rotary position embedding in the rotate-half convention of Hugging Face.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position, one for each pair; `head_dim / 2` of them.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine (1 unless the scaling variant says otherwise).
    pub attention_factor: f32,
}

/// Weights of one layer, row-major [out, in] as Hugging Face stores them.
#[derive(Clone, Copy, Debug)]
pub struct LayerView<'a> {
    /// `input_layernorm` [hidden].
    pub input_norm: &'a [f32],
    /// `q_proj` [heads · head_dim, hidden].
    pub q: &'a [f32],
    /// `k_proj` [kv_heads · head_dim, hidden].
    pub k: &'a [f32],
    /// `v_proj` [kv_heads · head_dim, hidden].
    pub v: &'a [f32],
    /// `o_proj` [hidden, heads · head_dim].
    pub o: &'a [f32],
    /// Bias of `q_proj`, present iff `qkv_bias`.
    pub q_bias: Option<&'a [f32]>,
    /// Bias of `k_proj`, present iff `qkv_bias`.
    pub k_bias: Option<&'a [f32]>,
    /// Bias of `v_proj`, present iff `qkv_bias`.
    pub v_bias: Option<&'a [f32]>,
    /// `q_norm` [head_dim], present iff `qk_norm`.
    pub q_norm: Option<&'a [f32]>,
    /// `k_norm` [head_dim], present iff `qk_norm`.
    pub k_norm: Option<&'a [f32]>,
    /// `post_attention_layernorm` [hidden].
    pub post_norm: &'a [f32],
    /// `gate_proj` [ffn, hidden].
    pub gate: &'a [f32],
    /// `up_proj` [ffn, hidden].
    pub up: &'a [f32],
    /// `down_proj` [hidden, ffn].
    pub down: &'a [f32],
}

/// Weights of a whole decoder.
#[derive(Clone, Debug)]
pub struct WeightsView<'a> {
    /// Sizes that all slices follow.
    pub dims: &'a Dims,
    /// Position embedding.
    pub rope: &'a Rope,
    /// `embed_tokens` [vocab, hidden].
    pub embed: &'a [f32],
    /// Layers, first to last.
    pub layers: Vec<LayerView<'a>>,
    /// `norm` [hidden].
    pub final_norm: &'a [f32],
    /// `lm_head` [vocab, hidden]; `None` iff tied to the embedding.
    pub lm_head: Option<&'a [f32]>,
}

/// What can be wrong with a set of weights.
#[derive(Debug, Error, PartialEq)]
pub enum KernelError {
    /// A dimension breaks a rule.
    #[error("dimensions {dims:?}: {rule}")]
    Dims {
        /// The offending dimensions.
        dims: Box<Dims>,
        /// The rule that they break.
        rule: &'static str,
    },
    /// A slice has the wrong length.
    #[error("weight `{name}` has {got} elements, its shape needs {want}")]
    Length {
        /// Parameter name as Hugging Face spells it.
        name: String,
        /// Elements given.
        got: usize,
        /// Elements needed.
        want: usize,
    },
    /// A low-rank addition does not fit its matrix.
    #[error(
        "the addition of rank {rank} to {name} has {} and {} elements; its matrix is {} by {}",
        got[0], got[1], shape[0], shape[1]
    )]
    Adapter {
        /// The matrix.
        name: &'static str,
        /// The rank.
        rank: usize,
        /// Elements of the two factors.
        got: [usize; 2],
        /// The matrix's shape, `[out, in]`.
        shape: [usize; 2],
    },
    /// Additions for layers that are not there.
    #[error("additions to {got} layers; the decoder has {most}")]
    AdapterLayers {
        /// Layers given.
        got: usize,
        /// Layers of the decoder.
        most: usize,
    },
    /// The scale of low-rank additions.
    #[error("low-rank additions are times {0}, which is no number")]
    Scale(f32),
    /// The share that training leaves out.
    #[error("training leaves out a share of {0}; it must be at least 0 and below 1")]
    Dropout(f32),
    /// An optional weight is there but should not be, or the other way round.
    #[error("weight `{name}` is {}, but the dimensions say otherwise", if *present { "present" } else { "missing" })]
    Presence {
        /// Parameter name as Hugging Face spells it.
        name: String,
        /// Whether it was given.
        present: bool,
    },
}

impl<'a> WeightsView<'a> {
    /// The head's matrix [vocab, hidden].
    pub fn head(&self) -> &'a [f32] {
        self.lm_head.unwrap_or(self.embed)
    }

    /// Checks every length and presence against the dimensions. The other functions of this crate take weights that
    /// pass and panic or misread none; call it once when weights are taken in.
    ///
    /// # Errors
    /// The first weight that does not fit.
    pub fn validate(&self) -> Result<(), KernelError> {
        let d = self.dims;
        let rule = if [d.hidden, d.heads, d.kv_heads, d.head_dim, d.ffn, d.vocab].contains(&0) {
            Some("every size must be at least 1")
        } else if !d.heads.is_multiple_of(d.kv_heads) {
            Some("heads must be a multiple of kv_heads")
        } else if !d.head_dim.is_multiple_of(2) {
            Some("head_dim must be even")
        } else if self.rope.inv_freq.len() != d.head_dim / 2 {
            Some("the rope must have head_dim / 2 frequencies")
        } else if self.layers.len() != d.layers {
            Some("layers must equal the number of layers given")
        } else {
            None
        };
        if let Some(rule) = rule {
            return Err(KernelError::Dims { dims: Box::new(d.clone()), rule });
        }
        let check = |name: &str, given: Option<&[f32]>, want: Option<usize>| match (given, want) {
            (Some(g), Some(w)) if g.len() == w => Ok(()),
            (Some(g), Some(w)) => Err(KernelError::Length { name: name.to_owned(), got: g.len(), want: w }),
            (None, None) => Ok(()),
            (g, _) => Err(KernelError::Presence { name: name.to_owned(), present: g.is_some() }),
        };
        let shapes = shapes(d);
        let mut given: Vec<Option<&[f32]>> = vec![Some(self.embed)];
        for l in &self.layers {
            given.extend([
                Some(l.input_norm),
                Some(l.q),
                Some(l.k),
                Some(l.v),
                Some(l.o),
                l.q_bias,
                l.k_bias,
                l.v_bias,
            ]);
            given.extend([l.q_norm, l.k_norm, Some(l.post_norm), Some(l.gate), Some(l.up), Some(l.down)]);
        }
        given.extend([Some(self.final_norm), self.lm_head]);
        shapes.iter().zip(given).try_for_each(|((name, want), g)| check(name, g, *want))
    }
}

const EMBED: &str = "model.embed_tokens.weight";
const NORM: &str = "model.norm.weight";
const HEAD: &str = "lm_head.weight";

/// The names of a layer's parameter slots, in the order of [`Grads::iter_mut`].
fn layer_names(layer: usize) -> [String; 14] {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let norm = |name: &str| format!("model.layers.{layer}.{name}.weight");
    let weight = |which: Projection| which.weight(layer);
    let bias = |which: Projection| which.bias(layer);
    [
        norm("input_layernorm"),
        weight(Q),
        weight(K),
        weight(V),
        weight(O),
        bias(Q),
        bias(K),
        bias(V),
        norm("self_attn.q_norm"),
        norm("self_attn.k_norm"),
        norm("post_attention_layernorm"),
        weight(Gate),
        weight(Up),
        weight(Down),
    ]
}

/// Name and length of every parameter slot in the order of [`Grads::iter_mut`]; `None` where the variant has none.
pub(crate) fn shapes(d: &Dims) -> Vec<(String, Option<usize>)> {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let matrix = |which: Projection| Some(which.shape(d).iter().product());
    let bias = |which: Projection| d.qkv_bias.then_some(which.shape(d)[0]);
    let (width, head) = (Some(d.hidden), d.qk_norm.then_some(d.head_dim));
    let mut out = vec![(EMBED.to_owned(), Some(d.vocab * d.hidden))];
    for i in 0..d.layers {
        let lengths = [
            width,
            matrix(Q),
            matrix(K),
            matrix(V),
            matrix(O),
            bias(Q),
            bias(K),
            bias(V),
            head,
            head,
            width,
            matrix(Gate),
            matrix(Up),
            matrix(Down),
        ];
        out.extend(layer_names(i).into_iter().zip(lengths));
    }
    out.push((NORM.to_owned(), width));
    out.push((HEAD.to_owned(), (!d.tied).then_some(d.vocab * d.hidden)));
    out
}

/// Gradients of one layer, each shaped as its weight in [`LayerView`].
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct LayerGrads {
    pub input_norm: Vec<f32>,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub o: Vec<f32>,
    pub q_bias: Option<Vec<f32>>,
    pub k_bias: Option<Vec<f32>>,
    pub v_bias: Option<Vec<f32>>,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub post_norm: Vec<f32>,
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    pub down: Vec<f32>,
}

/// Gradients of a whole decoder, owned. Those of frozen weights are empty and never computed.
#[derive(Clone, Debug)]
pub struct Grads {
    /// Of the embedding; holds the head's gradient too when tied.
    pub embed: Vec<f32>,
    /// Of the layers, first to last.
    pub layers: Vec<LayerGrads>,
    /// Of the final norm.
    pub final_norm: Vec<f32>,
    /// Of the head, unless tied.
    pub lm_head: Option<Vec<f32>>,
    /// Of low-rank additions, in their shapes, by layer; empty where there are none.
    pub adapter: Vec<AdapterLayer>,
}

/// Elements per partial sum of [`Grads::norm`]; fixed, so that the norm's bits do not depend on threads.
const NORM_CHUNK: usize = 1 << 14;

impl Grads {
    /// All zero, in the shape of `dims`.
    pub fn zeros(dims: &Dims) -> Self {
        Self::of(dims, |_| true, &[])
    }

    /// All zero, of the weights whose names are `trained`, and of `adapter`.
    pub fn of(dims: &Dims, trained: impl Fn(&str) -> bool, adapter: &[AdapterLayer]) -> Self {
        let zeros = |name: &str, n: usize| vec![0.0f32; if trained(name) { n } else { 0 }];
        let mut slots = shapes(dims).into_iter().map(|(name, len)| len.map(|n| zeros(&name, n)));
        let mut next = || slots.next().flatten();
        let embed = next().unwrap_or_default();
        let layers = (0..dims.layers)
            .map(|_| LayerGrads {
                input_norm: next().unwrap_or_default(),
                q: next().unwrap_or_default(),
                k: next().unwrap_or_default(),
                v: next().unwrap_or_default(),
                o: next().unwrap_or_default(),
                q_bias: next(),
                k_bias: next(),
                v_bias: next(),
                q_norm: next(),
                k_norm: next(),
                post_norm: next().unwrap_or_default(),
                gate: next().unwrap_or_default(),
                up: next().unwrap_or_default(),
                down: next().unwrap_or_default(),
            })
            .collect();
        let final_norm = next().unwrap_or_default();
        let lm_head = next();
        let adapter = adapter.iter().map(AdapterLayer::zeros).collect();
        Self { embed, layers, final_norm, lm_head, adapter }
    }

    /// Every gradient with its Hugging Face parameter name, in a fixed order; those of additions last.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (String, &mut Vec<f32>)> {
        let mut out: Vec<(String, &mut Vec<f32>)> = vec![(EMBED.to_owned(), &mut self.embed)];
        for (i, l) in self.layers.iter_mut().enumerate() {
            let slots = [
                Some(&mut l.input_norm),
                Some(&mut l.q),
                Some(&mut l.k),
                Some(&mut l.v),
                Some(&mut l.o),
                l.q_bias.as_mut(),
                l.k_bias.as_mut(),
                l.v_bias.as_mut(),
                l.q_norm.as_mut(),
                l.k_norm.as_mut(),
                Some(&mut l.post_norm),
                Some(&mut l.gate),
                Some(&mut l.up),
                Some(&mut l.down),
            ];
            out.extend(layer_names(i).into_iter().zip(slots).filter_map(|(name, slot)| Some((name, slot?))));
        }
        out.push((NORM.to_owned(), &mut self.final_norm));
        out.extend(self.lm_head.as_mut().map(|s| (HEAD.to_owned(), s)));
        for (i, layer) in self.adapter.iter_mut().enumerate() {
            for (which, LowRank { a, b, .. }) in layer.iter_mut() {
                out.extend(which.factors(i).into_iter().zip([a, b]));
            }
        }
        out.into_iter()
    }

    /// The same numbers as weights.
    pub fn as_weights<'a>(&'a self, dims: &'a Dims, rope: &'a Rope) -> WeightsView<'a> {
        let layer = |l: &'a LayerGrads| LayerView {
            input_norm: &l.input_norm,
            q: &l.q,
            k: &l.k,
            v: &l.v,
            o: &l.o,
            q_bias: l.q_bias.as_deref(),
            k_bias: l.k_bias.as_deref(),
            v_bias: l.v_bias.as_deref(),
            q_norm: l.q_norm.as_deref(),
            k_norm: l.k_norm.as_deref(),
            post_norm: &l.post_norm,
            gate: &l.gate,
            up: &l.up,
            down: &l.down,
        };
        let layers = self.layers.iter().map(layer).collect();
        let (final_norm, lm_head) = (&self.final_norm, self.lm_head.as_deref());
        WeightsView { dims, rope, embed: &self.embed, layers, final_norm, lm_head }
    }

    /// Every gradient, in the order of [`Grads::iter_mut`].
    pub fn slices(&self) -> Vec<&[f32]> {
        let mut out: Vec<&[f32]> = vec![&self.embed];
        for l in &self.layers {
            out.extend([&l.input_norm, &l.q, &l.k, &l.v, &l.o].map(|v| v.as_slice()));
            out.extend(
                [&l.q_bias, &l.k_bias, &l.v_bias, &l.q_norm, &l.k_norm].into_iter().flatten().map(|v| v.as_slice()),
            );
            out.extend([&l.post_norm, &l.gate, &l.up, &l.down].map(|v| v.as_slice()));
        }
        out.push(&self.final_norm);
        out.extend(self.lm_head.as_deref());
        for (_, LowRank { a, b, .. }) in self.adapter.iter().flat_map(AdapterLayer::iter) {
            out.extend([a.as_slice(), b]);
        }
        out
    }

    /// Sets every gradient to zero, keeping the memory.
    pub fn zero(&mut self) {
        self.iter_mut().for_each(|(_, g)| g.par_chunks_mut(NORM_CHUNK).for_each(|c| c.fill(0.0)));
    }

    /// Multiplies every gradient.
    pub fn scale(&mut self, factor: f32) {
        self.iter_mut()
            .for_each(|(_, g)| g.par_chunks_mut(NORM_CHUNK).for_each(|c| c.iter_mut().for_each(|x| *x *= factor)));
    }

    /// Euclidean norm of all gradients together: squares summed in double precision in a fixed order.
    pub fn norm(&self) -> f64 {
        let partial = |chunk: &[f32]| {
            let mut lanes = [0.0f64; 8];
            for (i, x) in chunk.iter().enumerate() {
                lanes[i % 8] += f64::from(*x) * f64::from(*x);
            }
            lanes.iter().sum::<f64>()
        };
        let sum = |g: &[f32]| g.par_chunks(NORM_CHUNK).map(partial).collect::<Vec<f64>>().iter().sum::<f64>();
        self.slices().into_iter().map(sum).sum::<f64>().sqrt()
    }

    /// How many gradient elements are exactly zero.
    pub fn zeros_count(&self) -> usize {
        let count = |c: &[f32]| c.iter().filter(|x| **x == 0.0).count();
        self.slices().into_iter().map(|g| g.par_chunks(NORM_CHUNK).map(count).sum::<usize>()).sum()
    }

    /// Number of gradient elements.
    pub fn len(&self) -> usize {
        self.slices().iter().map(|g| g.len()).sum()
    }

    /// Whether there is no element at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
