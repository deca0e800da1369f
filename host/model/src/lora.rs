//! Low-rank adapters under training: which matrices have one, their factors, and PEFT's files. Owns what is trained and what is
//! frozen; what additions do to a forward pass is prl-kernels' business, and steps are the optimiser's.

mod files;
mod plan;

pub use plan::{LoraOptions, LoraPlan};

use crate::decoder::Matrix;
use crate::fast::dims;
use crate::{Adapter, ModelConfig};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use prl_kernels::{AdapterLayer, LowRank, Projection, gemm_nn};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::sync::{Arc, OnceLock};

/// The factors of one addition.
#[derive(Module, Debug)]
pub(crate) struct Pair {
    /// `[rank, in]`.
    pub a: Matrix,
    /// `[out, rank]`, without the scale.
    pub b: Matrix,
}

/// A trained adapter: in the order of [`LoraPlan::targets`].
#[derive(Module, Debug)]
pub(crate) struct Lora {
    pub pairs: Vec<Pair>,
    #[module(skip)]
    pub plan: Arc<LoraPlan>,
    /// The checksum of what is frozen, once it was asked for: of all models that training makes of this one.
    #[module(skip)]
    pub frozen: Arc<OnceLock<u32>>,
}

impl Lora {
    /// As PEFT begins: A uniform within ±1/√in (Kaiming's, with a = √5), B 0, so that nothing is added yet. Every A has a stream of
    /// its own of the run's seed. `first` is the id of the first factor.
    pub fn init(plan: Arc<LoraPlan>, config: &ModelConfig, seed: u64, first: usize, device: &Device) -> Lora {
        let dims = dims(config);
        let pair = |(i, (layer, which)): (usize, &(usize, Projection))| {
            let [out, input] = which.shape(&dims);
            let stream = (layer * Projection::ALL.len() + *which as usize) as u64;
            let a = uniform(seed, stream, plan.rank() * input, (input as f32).sqrt().recip());
            let (a, b) = ((a, [plan.rank(), input]), (vec![0.0; out * plan.rank()], [out, plan.rank()]));
            Pair { a: matrix(first + 2 * i, a, device), b: matrix(first + 2 * i + 1, b, device) }
        };
        let pairs = plan.targets().iter().enumerate().map(pair).collect();
        Lora { pairs, plan, frozen: Arc::default() }
    }

    /// The factors as what is added to matrices: copies, B with its scale.
    pub fn layers(&self) -> Vec<AdapterLayer> {
        let (scale, rank) = (self.plan.scale(), self.plan.rank());
        let mut layers = Vec::new();
        for ((layer, which), pair) in self.plan.targets().iter().zip(&self.pairs) {
            if layers.len() <= *layer {
                layers.resize_with(layer + 1, AdapterLayer::default);
            }
            let (a, mut b) = (values(&pair.a), values(&pair.b));
            b.iter_mut().for_each(|x| *x *= scale);
            *layers[*layer].slot(*which) = Some(LowRank { a, b, rank });
        }
        layers
    }

    /// The same, to sample with.
    pub fn adapter(&self) -> Adapter {
        Adapter::new(self.layers())
    }

    /// Adds to a matrix of the name `name` what the adapter adds to it.
    pub fn merge(&self, name: &str, matrix: &mut [f32]) {
        let of = |(layer, which): &(usize, Projection)| which.weight(*layer) == name;
        let Some(at) = self.plan.targets().iter().position(of) else { return };
        let (a, mut b) = (values(&self.pairs[at].a), values(&self.pairs[at].b));
        b.iter_mut().for_each(|x| *x *= self.plan.scale());
        let rank = self.plan.rank();
        gemm_nn(b.len() / rank, a.len() / rank, rank, &b, &a, matrix, true);
    }
}

/// A parameter's numbers. Adapters are trained in main memory, where reading does not fail.
fn values(matrix: &Matrix) -> Vec<f32> {
    matrix.val().try_into_vec_as::<f32>().unwrap_or_default()
}

/// A trainable matrix with an id.
fn matrix(id: usize, (values, shape): (Vec<f32>, [usize; 2]), device: &Device) -> Matrix {
    let device = device.clone().without_autodiff();
    let tensor = Tensor::from_data(TensorData::new(values, shape), &device);
    Param::initialized(ParamId::from(id as u64), tensor).set_require_grad(true)
}

/// `n` draws uniform in [-bound, bound).
fn uniform(seed: u64, stream: u64, n: usize, bound: f32) -> Vec<f32> {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(b"lora.A  ");
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(stream);
    let mut unit = || (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32;
    (0..n).map(|_| (2.0 * unit() - 1.0) * bound).collect()
}
