//! How far training has come, and its file. Owns `trainer.json`; must not know weights or moments.

use crate::{Fingerprint, TrainerError};
use prl_types::Step;
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "trainer.json";

/// Counters that survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Steps done; also the policy version.
    pub step: Step,
    /// Tokens trained on, prompts included.
    pub total_tokens: u64,
    /// Samples or documents trained on.
    pub total_samples: u64,
    /// Steps left out because loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Steps whose batch had no trainable token.
    pub zero_trainable_batches: u64,
    /// Draws from the source of documents that are used up (supervised fine-tuning).
    pub documents: u64,
    /// The step after which the learning rate's schedule begins: other than 0 where a run left out that of the run before.
    #[serde(default)]
    pub schedule_from: Step,
    /// Documents that were left out because they had no target.
    #[serde(default)]
    pub skipped_documents: u64,
    /// Of each of several sources that are trained on together; nothing where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mixed: Vec<Share>,
    /// The data that draws are counted in (supervised fine-tuning).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Fingerprint>,
}

/// What was trained on of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Documents.
    pub samples: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// What a run that goes on leaves out of what it goes on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skip {
    /// Begins with an optimiser that has seen nothing.
    pub optimizer: bool,
    /// Begins the learning rate's schedule anew.
    pub scheduler: bool,
    /// Begins at the first document.
    pub dataloader: bool,
    /// Begins the totals of tokens, samples and skipped steps at 0; the step stays.
    pub progress: bool,
}

impl Progress {
    /// Writes `trainer.json` in `dir`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&self, dir: &Path) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        let text = serde_json::to_string_pretty(self).map_err(|e| TrainerError::file("write", &path, e))?;
        std::fs::write(&path, text + "\n").map_err(|e| TrainerError::file("write", &path, e))
    }

    /// Without what is left out.
    pub(crate) fn without(self, skip: Skip) -> Self {
        let step = self.step;
        let mut kept = match skip.progress {
            true => {
                let Progress { documents, schedule_from, data, .. } = self;
                Progress { step, documents, schedule_from, data, ..Progress::default() }
            }
            false => self,
        };
        if skip.dataloader {
            kept.documents = 0;
        }
        if skip.scheduler {
            kept.schedule_from = step;
        }
        kept
    }

    /// Reads `trainer.json` from `dir`.
    ///
    /// # Errors
    /// The file cannot be read or has another shape.
    pub(crate) fn load(dir: &Path) -> Result<Self, TrainerError> {
        let path = dir.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| TrainerError::file("read", &path, e))?;
        serde_json::from_str(&text).map_err(|e| TrainerError::file("read", &path, e))
    }
}
