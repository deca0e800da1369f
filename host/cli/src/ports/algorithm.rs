//! A plug-in's instance as the orchestrator's algorithm.

use prl_orchestrator::{Algorithm, Scored};
use prl_types::{Message, Rollout};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};

/// One instance of a plug-in. Calls are serialised.
pub struct PluginAlgorithm(Mutex<prl_algorithm::Algorithm>);

impl PluginAlgorithm {
    /// Wraps an instance.
    pub fn new(algorithm: prl_algorithm::Algorithm) -> Self {
        PluginAlgorithm(Mutex::new(algorithm))
    }
}

impl PluginAlgorithm {
    /// What stands before each sample when the live policy is to score it; nothing for a sample that it is not to score.
    pub fn reference(&self, rollout: &Rollout) -> Result<Vec<Option<Vec<Message>>>, String> {
        let mut algorithm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let prefixes = algorithm.reference(rollout).map_err(|e| e.to_string())?;
        let read = |prefix: Option<Value>| prefix.map(serde_json::from_value).transpose();
        let name = algorithm.name();
        let bad = |e| format!("algorithm {name}: the messages before a sample: {e}");
        prefixes.into_iter().map(read).collect::<Result<_, _>>().map_err(bad)
    }
}

impl Algorithm for PluginAlgorithm {
    fn score_group(&self, group: &[&Rollout]) -> Result<Scored, String> {
        let mut algorithm = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scored = algorithm.score_whole_group(group).map_err(|e| e.to_string())?;
        let prl_algorithm::Scored { streams, dropped, mut metrics, .. } = scored;
        metrics.iter_mut().for_each(|m| m.name = format!("{}/{}", algorithm.name(), m.name));
        for (rollout, reason) in group.iter().zip(&dropped) {
            if let Some(reason) = reason {
                tracing::debug!(target: "prl_orchestrator", "{} dropped rollout {}: {reason}", algorithm.name(), rollout.id);
            }
        }
        let kept = streams.into_iter().zip(dropped).map(|(s, dropped)| dropped.is_none().then_some(s));
        Ok(Scored { streams: kept.collect(), metrics })
    }
}
