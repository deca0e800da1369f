//! A GPU to train and sample on with our own kernels. Owns opening it and its options; must not know losses or requests.

use crate::learner::GpuPasses;
use crate::{COMMUNICATOR_ID_BYTES, Communicator, Decoder, ModelError, Seat};
use std::path::Path;

#[cfg(feature = "cuda")]
mod exchange;
#[cfg(feature = "cuda")]
mod passes;

/// What activations and products are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// bf16 activations and products with f32 sums; master weights, gradients and moments in f32.
    #[default]
    Bf16,
    /// f32 throughout, without TF32: slow, to check exactness.
    F32,
}

/// Which activations the backward pass computes again instead of keeping them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recompute {
    /// Every so many layers one keeps less; 0 is none.
    pub every: usize,
    /// Such a layer keeps nothing but its input. Otherwise the two below say what it leaves out.
    pub all: bool,
    /// Queries, keys and values before attention, and the residual stream behind it.
    pub attention_projections: bool,
    /// Gate and up.
    pub feed_forward: bool,
}

impl Recompute {
    /// Everything is kept.
    pub const NOTHING: Recompute =
        Recompute { every: 0, all: false, attention_projections: false, feed_forward: false };
}

/// How a model is trained on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// What products are computed in.
    pub arithmetic: Arithmetic,
    /// What is computed twice to save memory.
    pub recompute: Recompute,
    /// How many rows of logits exist at a time.
    pub head_chunk: usize,
    /// Tokens of a pass that memory is planned for at the start; larger ones are planned when they come.
    pub tokens: usize,
}

/// What the bits of a GPU's results must not depend on, at some cost; by default nothing is promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    /// The same inputs give the same bits each time.
    pub deterministic: bool,
    /// In a forward pass a token's bits depend on its document's prefix only: not on what else is in the batch, how the prompt was
    /// split, or whether it is sampled or trained. For [`Arithmetic::Bf16`].
    pub exact: bool,
}

/// An opened GPU with a stream to train and one to sample on.
#[derive(Clone)]
pub struct Gpu {
    #[cfg(feature = "cuda")]
    opened: passes::Opened,
}

impl Gpu {
    /// Opens a GPU by its index. `cache` is a folder for compiled kernels; without it they are compiled at each start.
    ///
    /// # Errors
    /// A build without CUDA, a missing library, no such GPU.
    #[cfg(feature = "cuda")]
    pub fn open(index: usize, cache: Option<&Path>, bits: Bits) -> Result<Gpu, ModelError> {
        Ok(Gpu { opened: passes::Opened::new(index, cache, bits)? })
    }

    /// Opens a GPU by its index: not in this build.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "cuda"))]
    pub fn open(index: usize, _cache: Option<&Path>, _bits: Bits) -> Result<Gpu, ModelError> {
        Err(ModelError::Device {
            device: format!("cuda:{index}"),
            reason: "this binary was built without CUDA; build it with `--features cuda`, or use the device `cpu`"
                .into(),
        })
    }

    /// A new communicator's id, for all processes that are to join it.
    ///
    /// # Errors
    /// NCCL is missing or finds no interface to listen on.
    pub fn communicator_id(&self) -> Result<[u8; COMMUNICATOR_ID_BYTES], ModelError> {
        #[cfg(feature = "cuda")]
        return exchange::communicator_id();
        #[cfg(not(feature = "cuda"))]
        Err(not_open())
    }

    /// Waits until all processes have joined a communicator.
    ///
    /// # Errors
    /// NCCL is missing or refuses, others do not come in time.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn join(&self, seat: Seat) -> Result<Communicator, ModelError> {
        #[cfg(feature = "cuda")]
        return self.opened.join(seat);
        #[cfg(not(feature = "cuda"))]
        Err(not_open())
    }

    /// Does what allocates, copies and frees weights on a GPU beside one that samples: steps are not recorded meanwhile.
    pub fn setting_up<T>(work: impl FnOnce() -> T) -> T {
        #[cfg(feature = "cuda")]
        let _alone = prl_kernels::cuda::decoder::setting_up();
        work()
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn learner(&self, decoder: Decoder, options: &GpuOptions) -> Result<Box<dyn GpuPasses>, ModelError> {
        self.opened.learner(decoder, options)
    }

    #[cfg(not(feature = "cuda"))]
    pub(crate) fn learner(&self, _decoder: Decoder, _options: &GpuOptions) -> Result<Box<dyn GpuPasses>, ModelError> {
        Err(not_open())
    }
}

/// A build without CUDA opens none.
#[cfg(not(feature = "cuda"))]
fn not_open() -> ModelError {
    ModelError::Input("no GPU is open".into())
}
