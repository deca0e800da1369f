//! How far training has come, and its file. Owns `trainer.json`; must not know weights or moments.

use crate::TrainerError;
use prl_types::Step;
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "trainer.json";

/// Counters that survive a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
