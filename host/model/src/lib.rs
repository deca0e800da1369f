//! The decoder as a burn module, Hugging Face folders, and the one forward shared by trainer and inference.
//!
//! Owns what a model *is* and how it is computed, in two implementations held against each other. Must not know
//! rewards, losses, sampling, optimisers or run directories.

mod adapter;
mod communicator;
mod config;
mod decoder;
mod device;
mod error;
mod fast;
mod folder;
mod fused;
mod gpu;
mod host;
mod hub;
mod learner;
mod lora;
pub mod names;
mod reference;
mod rope;
mod sample;
mod trained;

pub use adapter::{Adapter, SETTINGS as ADAPTER_CONFIG_FILE};
pub use communicator::{Communicator, Receiver};
pub use config::{CONFIG_FILE, Family, ModelConfig};
pub use decoder::{Decoder, Layer, Matrix, ParamRef, Vector};
pub use device::Device;
pub use error::ModelError;
pub use folder::{COMPANION_FILES, Precision, SaveOptions};
pub use fused::{AdamWNumbers, FusedAdamW, FusedStep, Moments};
pub use gpu::{Arithmetic, Bits, Gpu, GpuOptions, Recompute};
pub use hub::{name_of, resolve};
// The products of the CPU's kernels, for whoever computes with a model's matrices.
pub use host::HostLearner;
pub use learner::{Kernels, Learner, Packed, Stepper, TokenStats, pass_tokens};
pub use lora::{LoraOptions, LoraPlan};
pub use prl_kernels::{COMMUNICATOR_ID_BYTES, Seat};
pub use prl_kernels::{gemm_nn, gemm_nt};
pub use rope::{RopeConfig, RopeScaling};
pub use sample::{Answer, Cache, Draw, Extend, Score, Snapshot, Underway, Want};
pub use trained::Trained;
