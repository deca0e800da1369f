//! The decoder as a burn module, Hugging Face folders, and the one forward shared by trainer and inference.
//!
//! Owns what a model *is* and how it is computed, in two implementations held against each other. Must not know
//! rewards, losses, sampling, optimisers or run directories.

mod config;
mod decoder;
mod device;
mod error;
mod fast;
mod folder;
mod hub;
pub mod names;
mod policy;
mod reference;
mod rope;

pub use config::{CONFIG_FILE, Family, ModelConfig};
pub use decoder::{Decoder, Layer, Matrix, ParamRef, Vector};
pub use device::Device;
pub use error::ModelError;
pub use folder::{COMPANION_FILES, Precision, SaveOptions};
pub use hub::{HubOptions, resolve};
pub use policy::{Cache, Extend, Kernels, Learner, Packed, Snapshot, TokenStats};
pub use rope::{RopeConfig, RopeScaling};
