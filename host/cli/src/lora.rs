//! `[model.lora]` made out for a model. Owns the way from the configuration's words to what is trained; must not know how.

use crate::checkpoint;
use crate::compute::Compute;
use crate::failure::{Failure, input};
use prl_config::{MatmulPrecision, TrainerModel};
use prl_model::{Decoder, Learner, LoraOptions, LoraPlan, ModelConfig, ModelError};
use std::path::Path;

/// What an adapter of the model in `dir` trains; none where the whole model is trained. `prefix` is `trainer.` or empty.
///
/// # Errors
/// A device that adapters cannot be trained on; modules that the model does not have.
pub fn plan(prefix: &str, model: &TrainerModel, compute: &Compute, dir: &Path) -> Result<Option<LoraPlan>, Failure> {
    let Some(lora) = &model.lora else { return Ok(None) };
    let key = format!("{prefix}model.lora");
    if compute.on_gpu() {
        return Err(Failure::input(format_args!(
            "`{key}` is not supported on a GPU yet: set `device = \"cpu\"`, or leave it out to train the whole model"
        )));
    }
    let shape = ModelConfig::load(dir).map_err(input(format_args!("model `{}`", dir.display())))?;
    let options = LoraOptions {
        rank: lora.rank,
        alpha: lora.alpha,
        dropout: lora.dropout,
        target_modules: lora.target_modules.clone(),
        modules_to_save: lora.modules_to_save.clone(),
    };
    let plan = LoraPlan::new(options, &shape).map_err(|e| match e {
        ModelError::Lora { key: own, reason } => Failure::input(format_args!("`{key}.{own}` {reason}")),
        other => Failure::input(other),
    })?;
    Ok(Some(plan))
}

/// How many numbers are trained.
pub fn parameters(plan: &LoraPlan, shape: &ModelConfig) -> usize {
    plan.parameters(shape).iter().map(|info| info.shape.iter().product::<usize>()).sum()
}

/// A model ready to train, wholly or by an adapter, which is a checkpoint's where the run goes on from one. Says what is trained, where
/// it is not all. `train` as [`Compute::learner`] has it: the model's settings, the precision and the tokens of a pass.
///
/// # Errors
/// A model that the device cannot compute or hold; a checkpoint of another adapter or other weights.
pub fn learner(
    compute: &mut Compute,
    (decoder, plan, seed): (Decoder, Option<LoraPlan>, u64),
    (model, precision, tokens): (&TrainerModel, MatmulPrecision, usize),
    resume: Option<&Path>,
) -> Result<Learner, Failure> {
    tell(plan.as_ref(), decoder.config());
    let mut learner = compute.learner((decoder, plan.map(|plan| (plan, seed))), model, precision, tokens)?;
    resume.map_or(Ok(()), |path| checkpoint::adapter(path, &mut learner))?;
    Ok(learner)
}

fn tell(plan: Option<&LoraPlan>, shape: &ModelConfig) {
    let Some(plan) = plan else { return };
    let (trained, all) = (parameters(plan, shape), shape.parameters());
    tracing::info!(
        target: "prl_trainer",
        "Adapter of rank {} on {} matrices: {trained} numbers are trained, the model has {all}",
        plan.rank(), plan.targets().len()
    );
}
