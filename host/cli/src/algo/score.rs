//! `prl algo score`: what an algorithm makes of recorded groups. Owns the order of its calls and the form of its results.

use super::group::Group;
use super::input::{self, exact};
use super::{Score, open};
use crate::failure::Failure;
use prl_algorithm::{Algorithm, AlgorithmError, Hook, Reference, Scored};
use prl_types::{Rollout, Streams};
use serde_json::{Value, json};

/// Runs the command.
pub fn run(asked: &Score) -> Result<u8, Failure> {
    let plugin = asked.asked.plugin()?;
    let config = open::config(&asked.config)?;
    let inputs = input::read::<Group>(&asked.input)?;
    let mut groups = Vec::new();
    for (name, group) in &inputs.items {
        let rollouts = group.rollouts().map_err(|error| Failure::input(format_args!("{name}: {error}")))?;
        let lacks = |rollout: &Rollout| rollout.streams.iter().any(|s| s.ref_logprobs.is_none());
        if plugin.metadata().reference != Reference::None && rollouts.iter().any(lacks) {
            return Err(Failure::input(format_args!(
                "{name}: `{}` needs reference log-probabilities: give each rollout its `ref_logprobs`",
                plugin.metadata().name
            )));
        }
        groups.push((name, rollouts));
    }
    let mut algorithm = plugin.create(&config, asked.seed).map_err(Failure::input)?;
    let mut results = Vec::new();
    for (name, rollouts) in groups {
        let whole = Whole::of(&mut algorithm, rollouts).map_err(|e| Failure::run(format_args!("{name}: {e}")))?;
        results.push(whole.json(&algorithm));
    }
    inputs.print(&results)
}

/// A group from its references to its streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole {
    rollouts: Vec<Rollout>,
    /// By rollout, by sample: the messages of its reference.
    prefixes: Option<Vec<Vec<Option<Value>>>>,
    /// Of the group, with what was said of single rollouts.
    pub scored: Scored,
}

impl Whole {
    /// Calls an algorithm as a run does: each rollout for its reference and alone, then the group.
    ///
    /// # Errors
    /// Those of the plug-in.
    pub fn of(algorithm: &mut Algorithm, rollouts: Vec<Rollout>) -> Result<Self, AlgorithmError> {
        let prefixes = match algorithm.has(Hook::Reference) {
            true => Some(rollouts.iter().map(|rollout| algorithm.reference(rollout)).collect::<Result<_, _>>()?),
            false => None,
        };
        let scored = algorithm.score_whole_group(&rollouts.iter().collect::<Vec<_>>())?;
        Ok(Whole { rollouts, prefixes, scored })
    }

    /// Everything it gave, but for the time it took.
    pub fn json(&self, algorithm: &Algorithm) -> Value {
        let advantages: Vec<Option<f64>> = (0..self.rollouts.len()).map(|i| self.advantage(i)).collect();
        let streams: Vec<Vec<Value>> =
            self.scored.streams.iter().map(|samples| samples.iter().map(stream_json).collect()).collect();
        let metrics: Vec<Value> =
            self.scored.metrics.iter().map(|metric| json!({ "name": metric.name, "value": metric.value })).collect();
        let mut all = json!({ "algorithm": algorithm.name(), "action_loss": algorithm.action_loss(),
                              "advantages": advantages, "streams": streams, "dropped": self.scored.dropped,
                              "metrics": metrics });
        if let (Some(prefixes), Some(map)) = (&self.prefixes, all.as_object_mut()) {
            map.insert("prefixes".into(), json!(prefixes));
        }
        all
    }

    /// The advantage of a rollout's sampled tokens, where they all have the same one.
    fn advantage(&self, i: usize) -> Option<f64> {
        let mut sampled = self.rollouts[i].samples.iter().zip(&self.scored.streams[i]).flat_map(|(sample, streams)| {
            let advantages = streams.advantages.iter().flatten();
            sample.mask().iter().zip(advantages).filter(|(sampled, _)| **sampled).map(|(_, advantage)| *advantage)
        });
        let first = sampled.next()?;
        sampled.all(|other| other == first).then_some(f64::from(first))
    }
}

fn stream_json(streams: &Streams) -> Value {
    let list = |values: &Option<Vec<f32>>| values.as_deref().map(exact);
    json!({
        "advantages": list(&streams.advantages), "rl_weights": list(&streams.rl_weights),
        "ce_weights": list(&streams.ce_weights), "ref_kl_weights": list(&streams.ref_kl_weights),
        "ref_logprobs": list(&streams.ref_logprobs),
    })
}
