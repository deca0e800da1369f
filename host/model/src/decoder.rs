//! The decoder as a burn module: parameters in Hugging Face layout, nothing computed. Owns their ids, order and random
//! initialisation; must not know files, forward passes or RL.

use crate::names::{self, Kind, ParameterInfo};
use crate::{ModelConfig, ModelError};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use std::sync::Arc;

/// A vector parameter, `[n]`.
pub type Vector = Param<Tensor<1>>;
/// A matrix parameter, `[out, in]`.
pub type Matrix = Param<Tensor<2>>;

/// One decoder layer. Shapes: see [`names::parameters`].
#[derive(Module, Debug)]
pub struct Layer {
    /// Scale of the norm before attention.
    pub input_norm: Vector,
    /// Query projection.
    pub q: Matrix,
    /// Key projection.
    pub k: Matrix,
    /// Value projection.
    pub v: Matrix,
    /// Output projection of the attention.
    pub o: Matrix,
    /// Query bias (Qwen2).
    pub q_bias: Option<Vector>,
    /// Key bias (Qwen2).
    pub k_bias: Option<Vector>,
    /// Value bias (Qwen2).
    pub v_bias: Option<Vector>,
    /// Scale of the norm on each query head (Qwen3).
    pub q_norm: Option<Vector>,
    /// Scale of the norm on each key head (Qwen3).
    pub k_norm: Option<Vector>,
    /// Scale of the norm before the feed-forward block.
    pub post_norm: Vector,
    /// Gate projection.
    pub gate: Matrix,
    /// Up projection.
    pub up: Matrix,
    /// Down projection.
    pub down: Matrix,
}

/// A causal language model of one of the supported families. Cloning shares the parameters. They are f32 and never
/// carry an autodiff graph; whoever differentiates makes its own leaves.
#[derive(Module, Debug)]
pub struct Decoder {
    /// Embedding, `[vocab, hidden]`; also the output projection if the model is tied.
    pub embed: Matrix,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Scale of the last norm.
    pub norm: Vector,
    /// Output projection of an untied model, `[vocab, hidden]`.
    pub lm_head: Option<Matrix>,
    #[module(skip)]
    config: Arc<ModelConfig>,
}

/// A borrowed parameter of either rank.
#[derive(Clone, Copy, Debug)]
pub enum ParamRef<'a> {
    /// A bias or the scale of a norm.
    Vector(&'a Vector),
    /// A matrix.
    Matrix(&'a Matrix),
}

impl ParamRef<'_> {
    /// The id under which burn keeps gradients and optimiser state: the parameter's place in [`names::parameters`],
    /// so that it is the same in every process.
    pub fn id(&self) -> ParamId {
        match self {
            ParamRef::Vector(p) => p.id,
            ParamRef::Matrix(p) => p.id,
        }
    }

    /// The values, copied to the host.
    ///
    /// # Errors
    /// The device failed.
    pub fn to_vec(&self) -> Result<Vec<f32>, ModelError> {
        let read = match self {
            ParamRef::Vector(p) => p.val().try_into_vec_as::<f32>(),
            ParamRef::Matrix(p) => p.val().try_into_vec_as::<f32>(),
        };
        read.map_err(ModelError::execution)
    }
}

impl Decoder {
    /// Random weights: matrices N(0, `initializer_range`), norms 1, biases 0. Drawn on the host from one ChaCha stream
    /// per parameter, so that a seed gives the same model on every device and for any number of threads.
    pub fn init(config: ModelConfig, seed: u64, device: &Device) -> Decoder {
        let infos = names::parameters(&config);
        let values: Vec<Vec<f32>> = infos
            .par_iter()
            .enumerate()
            .map(|(i, info)| {
                let n = info.shape.iter().product();
                match info.kind {
                    Kind::Norm => vec![1.0; n],
                    Kind::Bias => vec![0.0; n],
                    Kind::Matrix => normal(seed, i as u64, n, config.initializer_range),
                }
            })
            .collect();
        let pairs = infos.iter().zip(values).map(|(info, values)| (info.shape.clone(), values));
        Decoder::assemble(config.clone(), pairs, device)
    }

    /// Builds the module from the values of [`names::parameters`], in that order. Zero copy on the CPU.
    pub(crate) fn assemble(
        config: ModelConfig,
        parameters: impl Iterator<Item = (Vec<usize>, Vec<f32>)>,
        device: &Device,
    ) -> Decoder {
        let device = device.clone().without_autodiff();
        let mut source = Source { parameters: parameters.enumerate(), device: &device };
        let embed = source.matrix();
        let layers = (0..config.layers)
            .map(|_| Layer {
                input_norm: source.vector(),
                q: source.matrix(),
                k: source.matrix(),
                v: source.matrix(),
                o: source.matrix(),
                q_bias: config.qkv_bias().then(|| source.vector()),
                k_bias: config.qkv_bias().then(|| source.vector()),
                v_bias: config.qkv_bias().then(|| source.vector()),
                q_norm: config.qk_norm().then(|| source.vector()),
                k_norm: config.qk_norm().then(|| source.vector()),
                post_norm: source.vector(),
                gate: source.matrix(),
                up: source.matrix(),
                down: source.matrix(),
            })
            .collect();
        let norm = source.vector();
        let lm_head = (!config.tied).then(|| source.matrix());
        Decoder { embed, layers, norm, lm_head, config: Arc::new(config) }
    }

    /// The model's shape.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.config
    }

    /// Where the parameters are.
    pub fn device(&self) -> Device {
        self.embed.val().device()
    }

    /// The output projection: the head, or the embedding of a tied model.
    pub fn head(&self) -> &Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed)
    }

    /// Names and shapes, in the order of [`Decoder::parameters`].
    pub fn infos(&self) -> Vec<ParameterInfo> {
        names::parameters(&self.config)
    }

    /// Every parameter, in the order of [`names::parameters`].
    pub fn parameters(&self) -> Vec<ParamRef<'_>> {
        let mut all = vec![ParamRef::Matrix(&self.embed)];
        for l in &self.layers {
            all.push(ParamRef::Vector(&l.input_norm));
            all.extend([&l.q, &l.k, &l.v, &l.o].map(ParamRef::Matrix));
            let optional = [&l.q_bias, &l.k_bias, &l.v_bias, &l.q_norm, &l.k_norm];
            all.extend(optional.into_iter().flatten().map(ParamRef::Vector));
            all.push(ParamRef::Vector(&l.post_norm));
            all.extend([&l.gate, &l.up, &l.down].map(ParamRef::Matrix));
        }
        all.push(ParamRef::Vector(&self.norm));
        all.extend(self.lm_head.as_ref().map(ParamRef::Matrix));
        all
    }
}

struct Source<'a, I> {
    parameters: std::iter::Enumerate<I>,
    device: &'a Device,
}

impl<I: Iterator<Item = (Vec<usize>, Vec<f32>)>> Source<'_, I> {
    fn next<const D: usize>(&mut self) -> Param<Tensor<D>> {
        let (i, (shape, values)) = self.parameters.next().expect("as many parameters as names::parameters lists");
        let tensor = Tensor::from_data(TensorData::new(values, shape), self.device);
        let param = Param::initialized(ParamId::from(i as u64), tensor);
        param.set_require_grad(true)
    }

    fn matrix(&mut self) -> Matrix {
        self.next::<2>()
    }

    fn vector(&mut self) -> Vector {
        self.next::<1>()
    }
}

/// `n` draws of N(0, `std`) by the Box-Muller transform.
fn normal(seed: u64, stream: u64, n: usize, std: f32) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    // (0, 1], so that the logarithm is finite.
    let mut uniform = || ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    let mut out = Vec::with_capacity(n + 1);
    while out.len() < n {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        let scale = f64::from(std) * radius;
        out.push((scale * angle.cos()) as f32);
        out.push((scale * angle.sin()) as f32);
    }
    out.truncate(n);
    out
}
