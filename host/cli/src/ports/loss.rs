//! A plug-in's loss as the trainer's. Owns how `[trainer.loss]` becomes one; must not know any formula.

use crate::failure::{Failure, input};
use crate::ports::swap::Wanted;
use prl_algorithm::{Algorithm, Hook, Reference, Registry, Trial};
use prl_config::Loss;
use prl_model::Learner;
use prl_trainer::{CustomLoss, Trainer, TrainerParts};
use prl_types::{LossBatch, LossGradient, Step};
use serde_json::Value;
use std::sync::Arc;

/// An instance of a plug-in whose loss is called.
pub struct PluginLoss {
    algorithm: Algorithm,
    /// Its keys.
    config: Value,
    /// The step that it works for.
    step: Step,
    wanted: Arc<Wanted>,
    /// The references that it needs.
    reference: Reference,
}

impl PluginLoss {
    /// The plug-in that `loss` names, tried with its keys; `None` for a built-in loss. `section` is where it stands in the
    /// configuration, `registry` is asked for only when there is something to look up.
    ///
    /// # Errors
    /// No such plug-in, one without a loss, keys that it does not take.
    pub fn open(
        (section, loss): (&str, &Loss),
        registry: impl FnOnce() -> Result<Registry, Failure>,
        seed: u64,
    ) -> Result<Option<Self>, Failure> {
        let Loss::Custom(custom) = loss else { return Ok(None) };
        let plugin = registry()?.open(&custom.name).map_err(input(format_args!("`{section}.name`")))?;
        let metadata = plugin.metadata();
        if !metadata.hooks.contains(&Hook::Loss) {
            return Err(Failure::input(format_args!("`{section}.name`: the plug-in `{}` has no loss", metadata.name)));
        }
        let reference = metadata.reference;
        let keys = Value::Object(custom.config.clone());
        let algorithm = plugin.create_loss(&keys, seed).map_err(input(format_args!("`[{section}]`")))?;
        Ok(Some(PluginLoss { algorithm, config: keys, step: 0, wanted: Arc::default(), reference }))
    }

    /// Which build is to take over before the first micro-batch of the next step.
    pub fn wanted(&self) -> Arc<Wanted> {
        self.wanted.clone()
    }

    /// Holds the references that the loss needs against those that the algorithms of the run bring: name and kind of each.
    ///
    /// # Errors
    /// An algorithm that brings others or none.
    pub fn check_references<'a>(&self, algorithms: impl Iterator<Item = (&'a str, Reference)>) -> Result<(), Failure> {
        let own = self.reference;
        match algorithms.into_iter().find(|(_, brings)| own != Reference::None && *brings != own) {
            Some((algorithm, _)) => Err(Failure::input(format_args!(
                "`trainer.loss.name`: the loss `{}` needs reference log-probabilities ({own:?}), and the algorithm \
                 `{algorithm}` brings none of these",
                self.name()
            ))),
            None => Ok(()),
        }
    }
}

impl CustomLoss for PluginLoss {
    fn name(&self) -> &str {
        self.algorithm.name()
    }

    fn loss(&mut self, batch: &LossBatch) -> Result<LossGradient, String> {
        if self.step != batch.step {
            self.step = batch.step;
            self.wanted.grant(&mut self.algorithm, &self.config, Trial::Loss(batch), batch.step);
        }
        self.algorithm.loss(batch).map_err(|e| e.to_string())
    }

    fn save_state(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.algorithm.has(Hook::State) {
            true => self.algorithm.save_state().map(Some).map_err(|e| e.to_string()),
            false => Ok(None),
        }
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        self.algorithm.load_state(state).map_err(|e| e.to_string())
    }
}

/// A trainer with the loss of a plug-in, or with a built-in one.
pub fn trainer(learner: Learner, parts: TrainerParts, loss: Option<PluginLoss>) -> Result<Trainer, Failure> {
    let trainer = match loss {
        Some(loss) => Trainer::with_loss(learner, parts, Box::new(loss)),
        None => Trainer::new(learner, parts),
    };
    trainer.map_err(Failure::input)
}
