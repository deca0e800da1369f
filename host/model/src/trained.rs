//! A model as it is trained: a decoder, all of it or with an adapter over frozen weights. Owns what of it is trained, and its ids;
//! must not know passes or optimisers.

use crate::decoder::Decoder;
use crate::lora::{Lora, LoraPlan};
use crate::names::ParameterInfo;
use crate::{Kernels, ModelError, ParamRef, SaveOptions, Snapshot, fast, reference};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Cloning shares the parameters.
#[derive(Module, Debug)]
pub struct Trained {
    /// The model; without what an adapter adds.
    pub decoder: Decoder,
    pub(crate) lora: Option<Lora>,
}

impl Trained {
    /// All of a model.
    pub fn whole(decoder: Decoder) -> Trained {
        Trained { decoder, lora: None }
    }

    /// An adapter that adds nothing yet, drawn from `seed`; all of the model is frozen but the modules that are trained whole.
    pub fn adapter(decoder: Decoder, plan: LoraPlan, seed: u64) -> Trained {
        let parameters = decoder.parameters();
        let frozen = parameters.iter().enumerate().filter(|(i, _)| !plan.saves(*i));
        let mut freeze = Freeze(frozen.map(|(_, parameter)| parameter.id().val()).collect());
        let (count, device, plan) = (parameters.len(), decoder.device(), Arc::new(plan));
        let lora = Lora::init(plan, decoder.config(), seed, count, &device);
        Trained { decoder: decoder.map(&mut freeze), lora: Some(lora) }
    }

    /// What an adapter trains; none where all is trained.
    pub fn plan(&self) -> Option<&LoraPlan> {
        self.lora.as_ref().map(|lora| lora.plan.as_ref())
    }

    /// Everything that is trained: parameters of the model in the order of [`crate::names::parameters`], then an adapter's factors.
    pub fn parameters(&self) -> Vec<(ParameterInfo, ParamRef<'_>)> {
        let whole = self.decoder.infos().into_iter().zip(self.decoder.parameters()).enumerate();
        let whole = whole.filter(|(i, _)| self.plan().is_none_or(|plan| plan.saves(*i))).map(|(_, both)| both);
        let Some(lora) = &self.lora else { return whole.collect() };
        let factors = lora.pairs.iter().flat_map(|pair| [&pair.a, &pair.b]).map(ParamRef::Matrix);
        whole.chain(lora.plan.factors(self.decoder.config()).into_iter().zip(factors)).collect()
    }

    /// A checksum of what is frozen, which tells a model from another one; none where nothing is. The weights are read once for
    /// this model and all that training makes of it.
    ///
    /// # Errors
    /// The device failed.
    pub fn frozen_checksum(&self) -> Result<Option<u32>, ModelError> {
        let Some(lora) = &self.lora else { return Ok(None) };
        if let Some(known) = lora.frozen.get() {
            return Ok(Some(*known));
        }
        let mut all = crc32fast::Hasher::new();
        for (i, parameter) in self.decoder.parameters().into_iter().enumerate().filter(|(i, _)| !lora.plan.saves(*i)) {
            all.update(&(i as u64).to_le_bytes());
            let values = parameter.to_vec()?;
            if cfg!(target_endian = "little") {
                all.update(bytemuck::cast_slice(&values));
            } else {
                values.iter().for_each(|x| all.update(&x.to_le_bytes()));
            }
        }
        Ok(Some(*lora.frozen.get_or_init(|| all.finalize())))
    }

    /// These weights, to sample from. Frozen ones are shared; of an adapter there is a copy.
    ///
    /// # Errors
    /// The fast kernels and a device other than the CPU.
    pub fn snapshot(&self, kernels: Kernels) -> Result<Arc<dyn Snapshot>, ModelError> {
        Ok(match kernels {
            Kernels::Fast => Arc::new(fast::FastSnapshot::new(self)?),
            Kernels::Reference => Arc::new(reference::ReferenceSnapshot::new(self)),
        })
    }

    /// Writes the model as [`Decoder::save_hf`] does, with what an adapter adds merged into its matrices.
    ///
    /// # Errors
    /// Names the file that could not be written or copied.
    pub fn save_hf(&self, dir: &Path, options: &SaveOptions) -> Result<(), ModelError> {
        self.decoder.save_with(dir, options, |name, values| {
            if let Some(lora) = &self.lora {
                lora.merge(name, values);
            }
        })
    }
}

/// Marks parameters as such that have no gradient.
struct Freeze(BTreeSet<u64>);

impl ModuleMapper for Freeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.contains(&param.id.val()) {
            true => param.set_require_grad(false),
            false => param,
        }
    }
}
