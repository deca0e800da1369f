//! A plug-in's instance as the orchestrator's algorithm. Owns when it is replaced by another build, and the form of its state
//! in checkpoints.

use crate::ports::swap::Wanted;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prl_algorithm::{Hook, Trial};
use prl_orchestrator::{Algorithm, Scored};
use prl_types::{Message, Rollout, Step};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// One instance of a plug-in. Calls are serialised.
pub struct PluginAlgorithm {
    running: Mutex<Running>,
    /// Its name, which no build changes.
    name: String,
    /// Its options.
    config: Value,
    wanted: Wanted,
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
        PluginAlgorithm { running, name, config, wanted: Wanted::default() }
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

    /// Which build is to take over before the first group of the next step.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Algorithm for PluginAlgorithm {
    fn score_group(&self, step: Step, group: &[&Rollout]) -> Result<Scored, String> {
        let mut running = self.running();
        if running.step != step {
            running.step = step;
            self.wanted.grant(&mut running.algorithm, &self.config, Trial::Group(group), step);
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
