//! Builds that are to take over from running plug-ins. Owns who waits for a swap and what is told about one; must not know
//! what is swapped.

use prl_algorithm::{Algorithm, Metadata, Trial};
use prl_types::Step;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// What came of a swap: what the new file says of itself, and the first step that it works for.
pub type Swapped = Result<(Metadata, Step), String>;

/// The build that takes over at the next step, and who waits for that.
#[derive(Default)]
pub struct Wanted(Mutex<Option<(PathBuf, oneshot::Sender<Swapped>)>>);

impl Wanted {
    /// Has the build at `path` take over. One that was wanted before is forgotten.
    pub fn ask(&self, path: PathBuf) -> oneshot::Receiver<Swapped> {
        let (answer, swapped) = oneshot::channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, answer));
        swapped
    }

    /// At the beginning of `step`: the build that is wanted takes over from `running`, if it does well on `trial`.
    pub fn grant(&self, running: &mut Algorithm, config: &Value, trial: Trial<'_>, step: Step) {
        let wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((path, answer)) = wanted else { return };
        let swapped = running.swap(&path, config, trial).map_err(|e| e.to_string());
        match &swapped {
            Ok(new) => {
                let what = if matches!(trial, Trial::Loss(_)) { "the loss" } else { "algorithm" };
                tracing::info!(
                    target: "prl_orchestrator",
                    "From step {step} on {what} {} is {} from {}", new.name, new.version, path.display()
                );
            }
            Err(error) => tracing::warn!(target: "prl_orchestrator", "{error}; it stays as it was"),
        }
        // Nobody may wait any more.
        let _ = answer.send(swapped.map(|new| (new, step)));
    }
}
