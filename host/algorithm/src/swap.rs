//! Replacing a running algorithm by another build of it. Owns what must hold before the old instance goes; must not know
//! who asks, or when no call is under way.

use crate::{Algorithm, AlgorithmError, Hook, Metadata, Plugin};
use prl_types::{LossBatch, Rollout};
use serde_json::Value;
use std::path::Path;

/// What a new build is tried on: what it is needed for.
#[derive(Clone, Copy)]
pub enum Trial<'a> {
    /// A group to score, whose rollouts carry the reference log-probabilities that the algorithm needs.
    Group(&'a [&'a Rollout]),
    /// A micro-batch for its loss.
    Loss(&'a LossBatch<'a>),
}

impl Algorithm {
    /// Loads a file, tries it, and goes on with it in place of this instance: same name, configuration and random numbers,
    /// and the state where both have one. An instance that is thrown away afterwards sees `trial` in every function that a
    /// run would call with it. The old
    /// instance ends only when all of this has worked; its library stays mapped. Gives what the new file says about itself.
    ///
    /// # Errors
    /// [`AlgorithmError::Swap`]; this instance is as it was then.
    pub fn swap(&mut self, path: &Path, config: &Value, trial: Trial<'_>) -> Result<Metadata, AlgorithmError> {
        let refused =
            |reason: String| AlgorithmError::Swap { name: self.metadata.name.clone(), path: path.into(), reason };
        let text = |error: AlgorithmError| refused(error.to_string());
        let plugin = Plugin::load(path).map_err(text)?;
        if let Some(reason) = difference(&self.metadata, plugin.metadata()) {
            return Err(refused(reason));
        }
        let (had, has) = (self.has(Hook::State), plugin.metadata().hooks.contains(&Hook::State));
        let mut make = || -> Result<Algorithm, AlgorithmError> {
            let mut made = plugin.create(config, self.seed)?;
            if had && has {
                made.load_state(&self.save_state()?)?;
            }
            Ok(made)
        };
        let made = make().and_then(|tried| conform(tried, trial)).and_then(|()| make());
        let name = self.metadata.name.clone();
        *self = made.map_err(|error| AlgorithmError::Swap { name, path: path.into(), reason: error.to_string() })?;
        if had && !has {
            tracing::warn!("algorithm {}: the new plug-in keeps no state, so that of the old one is gone", self.name());
        }
        Ok(self.metadata.clone())
    }
}

/// What the host was set up for and must not change while it runs.
fn difference(old: &Metadata, new: &Metadata) -> Option<String> {
    let other = |what: &str, old: String, new: String| (old != new).then(|| format!("its {what} is {new}, not {old}"));
    other("name", format!("`{}`", old.name), format!("`{}`", new.name))
        .or_else(|| other("action loss", format!("{:?}", old.action_loss), format!("{:?}", new.action_loss)))
        .or_else(|| other("reference", format!("{:?}", old.reference), format!("{:?}", new.reference)))
        .or_else(|| other("source", format!("{:?}", old.source), format!("{:?}", new.source)))
}

/// Calls everything that a run would call for a group or a batch.
fn conform(mut algorithm: Algorithm, trial: Trial<'_>) -> Result<(), AlgorithmError> {
    match trial {
        Trial::Group(group) => {
            for rollout in group {
                algorithm.reference(rollout)?;
            }
            algorithm.score_whole_group(group)?;
        }
        Trial::Loss(batch) => drop(algorithm.loss(batch)?),
    }
    if algorithm.has(Hook::State) {
        algorithm.save_state()?;
    }
    Ok(())
}
