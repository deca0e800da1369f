//! When and how a step is saved: `checkpoints/step_N/` to resume from and `weights/step_N/` to use elsewhere. Owns the
//! contents of both; the store owns how they get on disk.

use crate::companions::Companions;
use crate::failure::{Failure, input};
use prl_model::{ADAPTER_CONFIG_FILE, Decoder, Device, Learner, ModelConfig, ModelError, Trained};
use prl_orchestrator::{Due, Progress, State};
use prl_store::{Checkpoints, Keep, Marks, RunDir};
use prl_trainer::{Skip, TrainerError, TrainerState};
use prl_types::Step;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Folder of the trainer's part of a checkpoint.
pub const TRAINER: &str = "trainer";
/// The orchestrator's part: how far it is, what it has in hand, and how long the records of that are.
const PROGRESS: &str = "orchestrator/progress.json";
const STATE: &str = "orchestrator/state.json";
const MARKS: &str = "orchestrator/records.json";

/// Of a run that trains an adapter: which model is below it.
const BASE: &str = "trainer/base.json";

/// Folder of an adapter beside the weights that it is merged into.
const ADAPTERS: &str = "lora_adapters";

/// What tells the model below an adapter from another one.
#[derive(Serialize, Deserialize)]
struct Base {
    /// CRC-32 of all numbers that are frozen.
    frozen_crc32: u32,
}

/// What a run that goes on leaves out, as the configuration says it.
pub fn skips(ckpt: Option<&prl_config::TrainerCkpt>) -> Skip {
    let said = |of: fn(&prl_config::TrainerCkpt) -> bool| ckpt.is_some_and(of);
    Skip {
        optimizer: said(|c| c.skip_optimizer),
        scheduler: said(|c| c.skip_scheduler),
        dataloader: said(|c| c.skip_dataloader),
        progress: said(|c| c.skip_progress),
    }
}

/// What is saved of a step.
pub struct Saved {
    /// The step.
    pub step: Step,
    /// Weights and the trainer's state, or why they are not to be had.
    pub trainer: Result<(Trained, TrainerState), String>,
    /// The orchestrator's part, where there is one.
    pub orchestrator: Option<(State, Marks)>,
}

impl Saved {
    /// The trainer's part of a step.
    pub fn new(step: Step, weights: Result<Trained, ModelError>, state: Result<TrainerState, TrainerError>) -> Self {
        let trainer = weights.map_err(|e| e.to_string()).and_then(|w| Ok((w, state.map_err(|e| e.to_string())?)));
        Saved { step, trainer, orchestrator: None }
    }
}

/// Where steps go.
pub struct Folders {
    /// What runs go on from.
    pub checkpoints: Checkpoints,
    /// Weights for use elsewhere.
    pub weights: Checkpoints,
}

impl From<&RunDir> for Folders {
    fn from(run: &RunDir) -> Self {
        Folders { checkpoints: run.checkpoints(), weights: run.weights() }
    }
}

/// What is saved and when.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Steps between checkpoints; `None` is only the last.
    pub interval: Option<u64>,
    /// The last step.
    pub max_steps: Option<u64>,
    /// Which are kept.
    pub keep: Keep,
    /// Weights without the state needed to resume.
    pub weights_only: bool,
    /// What is put beside weights.
    pub companions: Companions,
    /// Whether an adapter is put beside weights for use elsewhere.
    pub adapter: bool,
}

impl Plan {
    /// The plan of a `[ckpt]` section.
    pub fn new(ckpt: &prl_config::TrainerCkpt, max_steps: Option<u64>, companions: &Companions) -> Self {
        Plan {
            interval: ckpt.interval,
            max_steps,
            keep: Keep { last: ckpt.keep_last.map(|n| n as usize), interval: ckpt.keep_interval },
            weights_only: ckpt.weights_only,
            companions: companions.clone(),
            adapter: ckpt.weights.save_adapter_separately,
        }
    }

    /// Whether `step` is saved.
    pub fn is_due(&self, step: Step) -> bool {
        Due { interval: self.interval }.includes(step, self.max_steps)
    }

    /// Writes a step: weights for use elsewhere, then what is needed to go on.
    ///
    /// # Errors
    /// A text for the user. An earlier checkpoint is still there.
    pub fn write(&self, to: &Folders, saved: &Saved) -> Result<(), String> {
        let (model, trainer) = saved.trainer.as_ref().map_err(String::clone)?;
        write_weights(&to.weights, (saved.step, model), (&self.companions, self.adapter), self.keep)?;
        if self.weights_only {
            return Ok(());
        }
        let checkpoint = to.checkpoints.begin(saved.step).map_err(|e| e.to_string())?;
        let dir = checkpoint.dir().join(TRAINER);
        std::fs::create_dir(&dir).map_err(|e| format!("cannot create `{}`: {e}", dir.display()))?;
        match model.frozen_checksum().map_err(|e| e.to_string())? {
            // What is frozen is in the model that the run began with.
            Some(frozen_crc32) => {
                save_adapter(model, &dir, &self.companions.model)?;
                let base = serde_json::to_vec_pretty(&Base { frozen_crc32 }).map_err(|e| e.to_string())?;
                checkpoint.write(BASE, &base).map_err(|e| e.to_string())?;
            }
            None => self.companions.save(model, &dir)?,
        }
        trainer.write(&dir).map_err(|e| e.to_string())?;
        // The optimiser's file is there by now.
        share_weights(&dir).map_err(|e| e.to_string())?;
        if let Some((state, marks)) = &saved.orchestrator {
            for (name, text) in [
                (PROGRESS, serde_json::to_vec_pretty(state.progress())),
                (STATE, serde_json::to_vec(state)),
                (MARKS, serde_json::to_vec(marks)),
            ] {
                checkpoint.write(name, &text.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
            }
        }
        checkpoint.commit().map_err(|e| e.to_string())?;
        prune(&to.checkpoints, self.keep);
        Ok(())
    }
}

/// Writes a step's weights for use elsewhere, whole or not at all, and drops what is not to be `keep`t. `companions` are put
/// beside; `adapter` puts the adapter beside as well.
pub fn write_weights(
    folder: &Checkpoints,
    (step, model): (Step, &Trained),
    (companions, adapter): (&Companions, bool),
    keep: Keep,
) -> Result<(), String> {
    let weights = folder.begin(step).map_err(|e| e.to_string())?;
    companions.save(model, weights.dir())?;
    share_weights(weights.dir()).map_err(|e| e.to_string())?;
    if adapter {
        let dir = weights.dir().join(ADAPTERS);
        std::fs::create_dir(&dir).map_err(|e| format!("cannot create `{}`: {e}", dir.display()))?;
        save_adapter(model, &dir, &companions.model)?;
        share_weights(&dir).map_err(|e| e.to_string())?;
    }
    weights.commit().map_err(|e| e.to_string())?;
    prune(folder, keep);
    Ok(())
}

/// As [`write_weights`], of the adapter alone.
pub fn write_adapter(
    folder: &Checkpoints,
    (step, model): (Step, &Trained),
    base: &Path,
    keep: Keep,
) -> Result<(), String> {
    let weights = folder.begin(step).map_err(|e| e.to_string())?;
    save_adapter(model, weights.dir(), base)?;
    share_weights(weights.dir()).map_err(|e| e.to_string())?;
    weights.commit().map_err(|e| e.to_string())?;
    prune(folder, keep);
    Ok(())
}

/// Old steps that stay cost room and no checkpoint.
fn prune(folder: &Checkpoints, keep: Keep) {
    if let Err(error) = folder.prune(keep) {
        tracing::warn!(target: "prl_trainer", "old steps stay: {error}");
    }
}

fn save_adapter(model: &Trained, dir: &Path, base: &Path) -> Result<(), String> {
    model.save_adapter(dir, &prl_model::name_of(base)).map_err(|e| e.to_string())
}

/// Whether a checkpoint was written by `prl rl`.
pub fn is_of_rl(checkpoint: &Path) -> bool {
    checkpoint.join(PROGRESS).exists()
}

/// The weights for use elsewhere of the step of a checkpoint: `weights/step_N` beside `checkpoints/step_N`.
pub fn weights_beside(checkpoint: &Path, step: Step) -> PathBuf {
    let root = checkpoint.parent().and_then(Path::parent).unwrap_or(checkpoint);
    root.join(format!("weights/step_{step}"))
}

/// Gives weight files the permissions of the folder's other files: they are written aside under ones of their own.
fn share_weights(dir: &Path) -> std::io::Result<()> {
    let like = [prl_model::CONFIG_FILE, ADAPTER_CONFIG_FILE].map(|name| dir.join(name));
    let like = if like[0].exists() { &like[0] } else { &like[1] };
    let permissions = std::fs::metadata(like)?.permissions();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            std::fs::set_permissions(&path, permissions.clone())?;
        }
    }
    Ok(())
}

/// The model of a checkpoint in place of `start`, which it must have the shape of; `start` itself where the run trains an
/// `adapter` over it, see [`adapter`].
///
/// # Errors
/// Another shape, weights that cannot be read, a run that trains what the checkpoint does not hold.
pub fn decoder(checkpoint: &Path, start: Decoder, adapter: bool, device: Device) -> Result<Decoder, Failure> {
    let folder = checkpoint.join(TRAINER);
    match (folder.join(ADAPTER_CONFIG_FILE).exists(), adapter) {
        (true, true) => return Ok(start),
        (true, false) => {
            return Err(Failure::input(format_args!(
                "`ckpt.resume_step`: the checkpoint holds an adapter, and this run trains the whole model; set `model.lora` (in \
                 `prl rl` `trainer.model.lora`) as in `{}`",
                folder.join(ADAPTER_CONFIG_FILE).display()
            )));
        }
        (false, true) => {
            return Err(Failure::input(format_args!(
                "`ckpt.resume_step`: the checkpoint holds a whole model, and this run trains an adapter; start a run of its own \
                 from its weights, with `model.name` = `{}`",
                folder.display()
            )));
        }
        (false, false) => {}
    }
    let wanted = ModelConfig { raw: Default::default(), ..ModelConfig::clone(start.config()) };
    // Two models at once may be more than the machine holds.
    drop(start);
    let decoder = crate::assets::decoder(&folder, None, device)?;
    if (ModelConfig { raw: Default::default(), ..ModelConfig::clone(decoder.config()) }) != wanted {
        return Err(Failure::input(format_args!(
            "`ckpt.resume_step`: the checkpoint holds another model ({}) than the one configured ({})",
            crate::logging::shape(decoder.config()),
            crate::logging::shape(&wanted)
        )));
    }
    Ok(decoder)
}

/// The adapter of a checkpoint, where the run trains one.
///
/// # Errors
/// Files that cannot be read or are of another adapter; an adapter to another model.
pub fn adapter(checkpoint: &Path, learner: &mut Learner) -> Result<(), Failure> {
    let frozen = learner.weights().and_then(|model| model.frozen_checksum()).map_err(Failure::input)?;
    let Some(frozen) = frozen else { return Ok(()) };
    learner.load_adapter(&checkpoint.join(TRAINER)).map_err(input("`ckpt.resume_step`"))?;
    let base: Base = read(checkpoint, BASE).map_err(input("`ckpt.resume_step`"))?;
    match base.frozen_crc32 == frozen {
        true => Ok(()),
        false => Err(Failure::input(
            "`ckpt.resume_step`: the adapter of the checkpoint is one to other weights than those of `model.name`: name the \
             model that the run began with",
        )),
    }
}

/// The orchestrator's state in a checkpoint, and the lengths of the records that belong to it. One that an earlier version of
/// this program wrote says only how far the run was.
///
/// # Errors
/// A file is missing or of another shape.
pub fn orchestrator((step, checkpoint): (Step, &Path)) -> Result<(State, Marks), String> {
    let (state, marks) = match checkpoint.join(STATE).exists() {
        true => (read::<State>(checkpoint, STATE)?, read(checkpoint, MARKS)?),
        false => (read::<Progress>(checkpoint, PROGRESS)?.into(), Marks::default()),
    };
    state.check(step).map_err(|reason| format!("`{}`: {reason}", checkpoint.join(STATE).display()))?;
    Ok((state, marks))
}

/// Whether the trainer's part is of the checkpoint's step.
///
/// # Errors
/// It is of another.
pub fn check_trainer(step: Step, trained: Step) -> Result<(), Failure> {
    match trained == step {
        true => Ok(()),
        false => Err(Failure::input(format_args!(
            "`ckpt.resume_step`: {TRAINER}/trainer.json is of step {trained}, the checkpoint of step {step}"
        ))),
    }
}

fn read<T: DeserializeOwned>(checkpoint: &Path, name: &str) -> Result<T, String> {
    let path = checkpoint.join(name);
    let text = std::fs::read(&path).map_err(|e| format!("cannot read `{}`: {e}", path.display()))?;
    serde_json::from_slice(&text).map_err(|e| format!("`{}`: {e}", path.display()))
}
