//! Where and how a run computes: the device, the kernels, and an opened GPU. Owns the way from the configuration's words to
//! a learner; must not know what is trained.

use crate::failure::Failure;
use crate::logging;
use prl_config::{AcMode, AcTarget, MatmulPrecision, Optim, TrainerModel};
use prl_kernels::libraries::LibraryError;
use prl_model::{
    Arithmetic, Bits, Decoder, Device, Gpu, GpuOptions, Kernels, Learner, LoraPlan, ModelConfig, ModelError, Recompute,
};
use std::path::{Path, PathBuf};

/// The device and the implementation that a run computes with.
#[derive(Clone)]
pub struct Compute {
    /// The device.
    pub device: Device,
    /// The implementation.
    pub kernels: Kernels,
    /// Open where our own kernels run on a GPU.
    gpu: Option<Gpu>,
    /// Whether the configuration leaves the device open.
    auto: bool,
    bits: Bits,
}

impl Compute {
    /// Opens what the configuration names. `auto` is the first GPU that can be used, else the CPU, which keeps all
    /// of [`Bits`] in any case.
    ///
    /// # Errors
    /// A device that is not there, or that this binary cannot use.
    pub fn open(device: prl_config::Device, kernels: prl_config::Kernels, bits: Bits) -> Result<Compute, Failure> {
        let kernels = match kernels {
            prl_config::Kernels::Fast => Kernels::Fast,
            prl_config::Kernels::Reference => Kernels::Reference,
        };
        let on = |device| Self::on(device, kernels, bits).map_err(|e| Failure::input(format_args!("`device`: {e}")));
        match device {
            prl_config::Device::Cpu => on(Device::Cpu),
            prl_config::Device::Cuda(index) => on(Device::Cuda(index)),
            prl_config::Device::Auto => match Self::on(Device::Cuda(0), kernels, bits) {
                Ok(compute) => Ok(Compute { auto: true, ..compute }),
                Err(reason) => {
                    // Nobody without a driver expects a GPU; whoever has one should know why it is not used.
                    match prl_kernels::libraries::driver() {
                        Err(LibraryError::Missing { .. }) => tracing::debug!("no GPU: {reason}"),
                        _ => tracing::warn!(target: "prl_trainer", "{reason}; this run uses the CPU"),
                    }
                    on(Device::Cpu)
                }
            },
        }
    }

    fn on(device: Device, kernels: Kernels, bits: Bits) -> Result<Compute, ModelError> {
        let gpu = match (device, kernels) {
            (Device::Cuda(index), Kernels::Fast) => Some(Gpu::open(index, kernel_cache().as_deref(), bits)?),
            _ => {
                device.open()?;
                None
            }
        };
        Ok(Compute { device, kernels, gpu, auto: false, bits })
    }

    /// Whether our own kernels run on a GPU.
    pub fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// The GPU that our own kernels run on, if they do.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Tokens of a training pass over rows of at most `row`, as [`prl_model::pass_tokens`] has it.
    pub fn pass_tokens(&self, row: usize) -> usize {
        prl_model::pass_tokens(row, self.on_gpu())
    }

    /// Whether the optimiser at `key` is to be had here.
    ///
    /// # Errors
    /// One that our GPU kernels do not have.
    pub fn check_optim(&self, key: &str, optim: &Optim) -> Result<(), Failure> {
        if self.on_gpu() { optim_of_gpu(key, optim) } else { Ok(()) }
    }

    /// The same, with what the configuration left open decided: a model that does not fit is an error from now on.
    pub fn settled(&self) -> Compute {
        Compute { auto: false, ..self.clone() }
    }

    /// Model, device and kernels in a line.
    pub fn says(&self, model_dir: &Path, model: &ModelConfig) -> String {
        let kernels = logging::kernels(self.kernels);
        format!(
            "Model {} | {} | device {} | {kernels} kernels",
            model_dir.display(),
            logging::shape(model),
            self.device
        )
    }

    /// Where burn holds a model's tensors: our own GPU kernels take them from main memory.
    pub fn home(&self) -> Device {
        if self.gpu.is_some() { Device::Cpu } else { self.device }
    }

    /// A model made ready to sample from, of sequences of up to `context` tokens, and never to train.
    ///
    /// # Errors
    /// As [`Compute::learner`].
    pub fn sampler(&mut self, decoder: Decoder, context: usize) -> Result<Learner, Failure> {
        let model = TrainerModel::default();
        self.learner((decoder, None), &model, MatmulPrecision::High, context.min(model.seq_len))
    }

    /// A model made ready to train in passes of up to `tokens` tokens. Where the configuration left the device open and
    /// the GPU cannot compute such a model, it is the CPU after all. With a plan and a seed an adapter is trained, which takes
    /// the CPU.
    ///
    /// # Errors
    /// A model that the device cannot compute or hold.
    pub fn learner(
        &mut self,
        (decoder, lora): (Decoder, Option<(LoraPlan, u64)>),
        model: &TrainerModel,
        precision: MatmulPrecision,
        tokens: usize,
    ) -> Result<Learner, Failure> {
        let head_chunk = model.fused_lm_head_token_chunk_size;
        let Some(gpu) = &self.gpu else {
            let learner = match lora {
                Some(lora) => Learner::with_lora(decoder, self.kernels, head_chunk, lora),
                None => Learner::new(decoder, self.kernels, head_chunk),
            };
            return learner.map_err(Failure::input);
        };
        let arithmetic = match precision {
            MatmulPrecision::Highest => Arithmetic::F32,
            MatmulPrecision::High | MatmulPrecision::Medium => Arithmetic::Bf16,
        };
        if self.bits.exact && arithmetic == Arithmetic::F32 {
            return Err(Failure::input(
                "`exact = true` is not supported with `matmul_precision = \"highest\"` on a GPU: leave one of them out, or set \
                 `device = \"cpu\"`",
            ));
        }
        let options = GpuOptions { arithmetic, recompute: recompute(model), head_chunk, tokens };
        match Learner::on_gpu(decoder.clone(), gpu, &options) {
            Ok(learner) => Ok(learner),
            Err(e @ ModelError::Device { .. }) if self.auto => {
                tracing::warn!(
                    target: "prl_trainer",
                    "{e}; this run uses the CPU (`device = \"cuda\"` insists on the GPU)"
                );
                (self.device, self.gpu) = (Device::Cpu, None);
                Learner::new(decoder, self.kernels, head_chunk).map_err(Failure::input)
            }
            Err(ModelError::Memory(e)) => Err(Failure::input(format_args!(
                "{e}; use a shorter `seq_len`, a smaller `micro_batch_size`, or recompute activations (`[model.ac]`, in \
                 `prl rl` `[trainer.model.ac]`)"
            ))),
            Err(e) => Err(Failure::input(e)),
        }
    }
}

/// A GPU's kernels take AdamW's steps and no others.
fn optim_of_gpu(key: &str, optim: &Optim) -> Result<(), Failure> {
    match optim {
        Optim::AdamW(_) => Ok(()),
        Optim::Sgd(_) | Optim::Muon(_) | Optim::SignSgd(_) => Err(Failure::input(format_args!(
            "`{key}.type = \"{}\"` is not supported on a GPU yet; use `{key}.type = \"adamw\"`, or train on the CPU with \
             `device = \"cpu\"`",
            optim.tag()
        ))),
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
    crate::caches::folder("kernels")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_adamw_alone() {
        assert!(optim_of_gpu("optim", &Optim::AdamW(prl_config::AdamW::default())).is_ok());
        for optim in [
            Optim::Sgd(prl_config::Sgd::default()),
            Optim::Muon(prl_config::Muon::default()),
            Optim::SignSgd(prl_config::SignSgd::default()),
        ] {
            let error = optim_of_gpu("trainer.optim", &optim).unwrap_err();
            assert_eq!(error.code, 2);
            for naming in [optim.tag(), "`trainer.optim.type = \"adamw\"`", "`device = \"cpu\"`"] {
                assert!(error.text.contains(naming), "{}", error.text);
            }
        }
    }
}
