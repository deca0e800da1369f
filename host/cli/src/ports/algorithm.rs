//! A plug-in's instance as the orchestrator's algorithm. Owns when it is replaced by another build, and the form of its state
//! in checkpoints.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prl_algorithm::{Hook, Metadata};
use prl_orchestrator::{Algorithm, Scored};
use prl_types::{Message, Rollout, Step};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// What came of a swap: what the new file says of itself, and the first step that it scores for.
pub type Swapped = Result<(Metadata, Step), String>;

/// One instance of a plug-in. Calls are serialised.
pub struct PluginAlgorithm {
    running: Mutex<Running>,
    /// Its name, which no build changes.
    name: String,
    /// Its options.
    config: Value,
    /// The build that takes over at the next step, and who waits for that.
    wanted: Mutex<Option<(PathBuf, oneshot::Sender<Swapped>)>>,
}

struct Running {
    algorithm: prl_algorithm::Algorithm,
    /// The step it scores for.
    step: Step,
}

impl PluginAlgorithm {
    /// Wraps an instance that was made with `config`.
    pub fn new(algorithm: prl_algorithm::Algorithm, config: Value) -> Self {
        let name = algorithm.name().to_owned();
        let running = Mutex::new(Running { algorithm, step: 0 });
        PluginAlgorithm { running, name, config, wanted: Mutex::default() }
    }

    /// Goes on from a state that [`Algorithm::state`] gave.
    pub fn resume(&self, state: &str) -> Result<(), String> {
        let state = BASE64_STANDARD.decode(state).map_err(|e| format!("the state of the algorithm: {e}"))?;
        self.running().algorithm.load_state(&state).map_err(|e| e.to_string())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What stands before each sample when the live policy is to score it; nothing for a sample that it is not to score.
    pub fn reference(&self, rollout: &Rollout) -> Result<Vec<Option<Vec<Message>>>, String> {
        let prefixes = self.running().algorithm.reference(rollout).map_err(|e| e.to_string())?;
        let read = |prefix: Option<Value>| prefix.map(serde_json::from_value).transpose();
        let bad = |e| format!("algorithm {}: the messages before a sample: {e}", self.name);
        prefixes.into_iter().map(read).collect::<Result<_, _>>().map_err(bad)
    }

    /// Has the build at `path` take over before the first group of the next step. One that was wanted before is forgotten.
    pub fn swap(&self, path: PathBuf) -> oneshot::Receiver<Swapped> {
        let (answer, swapped) = oneshot::channel();
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, answer));
        swapped
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// Another build takes over, if it does well on the group that is next.
    fn swap(&mut self, (path, answer): (PathBuf, oneshot::Sender<Swapped>), config: &Value, group: &[&Rollout]) {
        let step = self.step;
        let swapped = self.algorithm.swap(&path, config, group).map_err(|e| e.to_string());
        match &swapped {
            Ok(new) => tracing::info!(
                target: "prl_orchestrator",
                "From step {step} on algorithm {} is {} from {}", new.name, new.version, path.display()
            ),
            Err(error) => tracing::warn!(target: "prl_orchestrator", "{error}; the algorithm stays as it was"),
        }
        // Nobody may wait any more.
        let _ = answer.send(swapped.map(|new| (new, step)));
    }
}

impl Algorithm for PluginAlgorithm {
    fn score_group(&self, step: Step, group: &[&Rollout]) -> Result<Scored, String> {
        let mut running = self.running();
        if running.step != step {
            running.step = step;
            let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(wanted) = wanted {
                running.swap(wanted, &self.config, group);
            }
        }
        let scored = running.algorithm.score_whole_group(group).map_err(|e| e.to_string())?;
        let name = &self.name;
        let prl_algorithm::Scored { streams, dropped, mut metrics, .. } = scored;
        metrics.iter_mut().for_each(|m| m.name = format!("{name}/{}", m.name));
        for (rollout, reason) in group.iter().zip(&dropped) {
            if let Some(reason) = reason {
                tracing::debug!(target: "prl_orchestrator", "{name} dropped rollout {}: {reason}", rollout.id);
            }
        }
        let kept = streams.into_iter().zip(dropped).map(|(s, dropped)| dropped.is_none().then_some(s));
        Ok(Scored { streams: kept.collect(), metrics })
    }

    fn state(&self) -> Result<Option<String>, String> {
        let algorithm = &mut self.running().algorithm;
        if !algorithm.has(Hook::State) {
            return Ok(None);
        }
        let state = algorithm.save_state().map_err(|e| e.to_string())?;
        Ok(Some(BASE64_STANDARD.encode(state)))
    }
}
