//! Where and how a run computes: the device, the kernels, and an opened GPU. Owns the way from the configuration's words to
//! a learner; must not know what is trained.

use crate::failure::Failure;
use prl_config::{AcMode, AcTarget, MatmulPrecision, TrainerModel};
use prl_model::{Arithmetic, Decoder, Device, Gpu, GpuOptions, Kernels, Learner, Recompute};
use std::path::PathBuf;

/// The device and the implementation that a run computes with.
#[derive(Clone)]
pub struct Compute {
    /// The device.
    pub device: Device,
    /// The implementation.
    pub kernels: Kernels,
    /// Open where our own kernels run on a GPU.
    gpu: Option<Gpu>,
}

impl Compute {
    /// Opens what the configuration names. `auto` is the first GPU that can be used, else the CPU.
    ///
    /// # Errors
    /// A device that is not there, or that this binary cannot use.
    pub fn open(device: prl_config::Device, kernels: prl_config::Kernels) -> Result<Compute, Failure> {
        let kernels = match kernels {
            prl_config::Kernels::Fast => Kernels::Fast,
            prl_config::Kernels::Reference => Kernels::Reference,
        };
        let on = |device| Self::on(device, kernels).map_err(|e| Failure::input(format_args!("`device`: {e}")));
        match device {
            prl_config::Device::Cpu => on(Device::Cpu),
            prl_config::Device::Cuda(index) => on(Device::Cuda(index)),
            prl_config::Device::Auto => match Self::on(Device::Cuda(0), kernels) {
                Ok(compute) => Ok(compute),
                Err(reason) => {
                    tracing::debug!("no GPU: {reason}");
                    on(Device::Cpu)
                }
            },
        }
    }

    fn on(device: Device, kernels: Kernels) -> Result<Compute, prl_model::ModelError> {
        let gpu = match (device, kernels) {
            (Device::Cuda(index), Kernels::Fast) => Some(Gpu::open(index, kernel_cache().as_deref())?),
            _ => {
                device.open()?;
                None
            }
        };
        Ok(Compute { device, kernels, gpu })
    }

    /// Where burn holds a model's tensors: our own GPU kernels take them from main memory.
    pub fn home(&self) -> Device {
        if self.gpu.is_some() { Device::Cpu } else { self.device }
    }

    /// A model made ready to train.
    ///
    /// # Errors
    /// A model that the device cannot compute or hold.
    pub fn learner(
        &self,
        decoder: Decoder,
        model: &TrainerModel,
        precision: MatmulPrecision,
    ) -> Result<Learner, Failure> {
        let head_chunk = model.fused_lm_head_token_chunk_size;
        let learner = match &self.gpu {
            None => Learner::new(decoder, self.kernels, head_chunk),
            Some(gpu) => {
                let arithmetic = match precision {
                    MatmulPrecision::Highest => Arithmetic::F32,
                    MatmulPrecision::High | MatmulPrecision::Medium => Arithmetic::Bf16,
                };
                let options = GpuOptions { arithmetic, recompute: recompute(model), head_chunk };
                Learner::on_gpu(decoder, gpu, &options)
            }
        };
        learner.map_err(Failure::input)
    }
}

/// Norms are computed again in any case, so that a layer that names only them keeps everything.
fn recompute(model: &TrainerModel) -> Recompute {
    let Some(ac) = &model.ac else { return Recompute::NOTHING };
    let has = |target: AcTarget| ac.targets.contains(&target);
    Recompute {
        every: ac.freq,
        all: ac.mode == AcMode::Full,
        attention_projections: has(AcTarget::AttnProj),
        feed_forward: has(AcTarget::Mlp),
    }
}

/// The folder for compiled kernels; none without a home.
pub fn kernel_cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("prl").join("kernels"))
}
