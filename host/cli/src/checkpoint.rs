//! When and how a step is saved: `checkpoints/step_N/` to resume from and `weights/step_N/` to use elsewhere. Owns the
//! contents of both; the store owns how they get on disk.

use crate::failure::Failure;
use prl_model::{Decoder, Device, ModelConfig, ModelError, SaveOptions};
use prl_orchestrator::{Due, Progress, State};
use prl_store::{Checkpoints, Keep, Marks, RunDir};
use prl_trainer::{Skip, TrainerError, TrainerState};
use prl_types::Step;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Folder of the trainer's part of a checkpoint.
pub const TRAINER: &str = "trainer";
/// The orchestrator's part: how far it is, what it has in hand, and how long the records of that are.
const PROGRESS: &str = "orchestrator/progress.json";
const STATE: &str = "orchestrator/state.json";
const MARKS: &str = "orchestrator/records.json";

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
    pub trainer: Result<(Decoder, TrainerState), String>,
    /// The orchestrator's part, where there is one.
    pub orchestrator: Option<(State, Marks)>,
}

impl Saved {
    /// The trainer's part of a step.
    pub fn new(step: Step, decoder: Result<Decoder, ModelError>, state: Result<TrainerState, TrainerError>) -> Self {
        let trainer = decoder.map_err(|e| e.to_string()).and_then(|d| Ok((d, state.map_err(|e| e.to_string())?)));
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
    /// The folder the tokenizer is copied from.
    pub companions: PathBuf,
}

impl Plan {
    /// The plan of a `[ckpt]` section.
    pub fn new(ckpt: &prl_config::TrainerCkpt, max_steps: Option<u64>, companions: &Path) -> Self {
        Plan {
            interval: ckpt.interval,
            max_steps,
            keep: Keep { last: ckpt.keep_last.map(|n| n as usize), interval: ckpt.keep_interval },
            weights_only: ckpt.weights_only,
            companions: companions.to_path_buf(),
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
        let (decoder, trainer) = saved.trainer.as_ref().map_err(String::clone)?;
        write_weights(&to.weights, saved.step, decoder, &self.companions, self.keep)?;
        if self.weights_only {
            return Ok(());
        }
        let checkpoint = to.checkpoints.begin(saved.step).map_err(|e| e.to_string())?;
        let dir = checkpoint.dir().join(TRAINER);
        std::fs::create_dir(&dir).map_err(|e| format!("cannot create `{}`: {e}", dir.display()))?;
        save_hf(decoder, &dir, &self.companions)?;
        trainer.write(&dir).map_err(|e| e.to_string())?;
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

/// Writes a step's weights for use elsewhere, whole or not at all, and drops what is not to be `keep`t. `companions` is the
/// folder that the tokenizer is copied from.
pub fn write_weights(
    folder: &Checkpoints,
    step: Step,
    decoder: &Decoder,
    companions: &Path,
    keep: Keep,
) -> Result<(), String> {
    let weights = folder.begin(step).map_err(|e| e.to_string())?;
    save_hf(decoder, weights.dir(), companions)?;
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

fn save_hf(decoder: &Decoder, dir: &Path, companions: &Path) -> Result<(), String> {
    let options = SaveOptions { companions: Some(companions.to_path_buf()), ..SaveOptions::default() };
    decoder.save_hf(dir, &options).map_err(|e| e.to_string())
}

/// Whether a checkpoint was written by `prl rl`.
pub fn is_of_rl(checkpoint: &Path) -> bool {
    checkpoint.join(PROGRESS).exists()
}

/// Gives weight files the permissions of the folder's other files: they are written aside under ones of their own.
fn share_weights(dir: &Path) -> std::io::Result<()> {
    let permissions = std::fs::metadata(dir.join(prl_model::CONFIG_FILE))?.permissions();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            std::fs::set_permissions(&path, permissions.clone())?;
        }
    }
    Ok(())
}

/// The model of a checkpoint in place of `start`, which it must have the shape of.
///
/// # Errors
/// Another shape, or weights that cannot be read.
pub fn decoder(checkpoint: &Path, start: Decoder, device: Device) -> Result<Decoder, Failure> {
    let wanted = ModelConfig { raw: Default::default(), ..ModelConfig::clone(start.config()) };
    // Two models at once may be more than the machine holds.
    drop(start);
    let decoder = crate::assets::decoder(&checkpoint.join(TRAINER), None, device)?;
    if (ModelConfig { raw: Default::default(), ..ModelConfig::clone(decoder.config()) }) != wanted {
        return Err(Failure::input(format_args!(
            "`ckpt.resume_step`: the checkpoint holds another model ({}) than the one configured ({})",
            crate::logging::shape(decoder.config()),
            crate::logging::shape(&wanted)
        )));
    }
    Ok(decoder)
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
