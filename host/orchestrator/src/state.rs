//! All that a run must remember to go on after a step as if it had not ended. Owns what is in it and how it is written;
//! must not know when it is taken, nor where it is kept.

use crate::Progress;
use crate::batcher::{Cut, Kept};
use prl_types::{Rollout, Sample, Step, Streams};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};

/// The orchestrator's state after a step: the batches that had been sampled for later steps, with the versions that these
/// are due, rollouts that wait for a batch, groups under way (by their tasks: these are sampled anew), and all counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// After the step.
    pub(crate) progress: Progress,
    /// After the newest batch.
    pub(crate) totals: Progress,
    /// Batches of the steps that follow, in order, and how far the run was after each of them.
    pub(crate) batches: Vec<(Cut, Progress)>,
    pub(crate) kept: Kept,
    /// Training groups that were open and are not in any batch.
    pub(crate) open: Vec<Open>,
    /// Training and evaluation environments that have worked before, by name.
    pub(crate) proven: [BTreeSet<String>; 2],
}

/// A group under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Open {
    pub group: u64,
    /// The training environment.
    pub env: String,
    /// The task.
    pub index: u64,
}

impl State {
    /// How far the run had come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// States of the algorithms by training environment, after the last group that was scored.
    pub fn algorithms(&self) -> &BTreeMap<String, String> {
        &self.totals.algorithms
    }

    /// Whether it can be of `step`: of that step, with the batches that come next.
    ///
    /// # Errors
    /// What contradicts that.
    pub fn check(&self, step: Step) -> Result<(), String> {
        if self.progress.step != step {
            return Err(format!("it is of step {}, the checkpoint of step {step}", self.progress.step));
        }
        for (next, (cut, after)) in (step + 1..).zip(&self.batches) {
            if cut.batch.step != next || after.step != next {
                return Err(format!("where the batch of step {next} is due it holds that of step {}", cut.batch.step));
            }
        }
        Ok(())
    }

    /// Begins the totals of tokens, rollouts and tasks at 0.
    pub fn forget_totals(&mut self) {
        let after = self.batches.iter_mut().map(|(_, progress)| progress);
        for progress in after.chain([&mut self.progress, &mut self.totals]) {
            (progress.total_tokens, progress.total_rollouts, progress.total_tasks) = (0, 0, 0);
        }
    }

    /// The newest step whose batch is in it.
    pub fn newest_batch(&self) -> Step {
        self.progress.step + self.batches.len() as Step
    }
}

impl From<Progress> for State {
    fn from(progress: Progress) -> Self {
        State { totals: progress.clone(), progress, ..State::default() }
    }
}

/// Rollouts with their samples and streams, which records of rollouts leave out.
pub(crate) mod whole {
    use super::*;
    use std::collections::VecDeque;

    #[derive(Serialize)]
    struct Ref<'a> {
        rollout: &'a Rollout,
        samples: &'a [Sample],
        streams: &'a [Streams],
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Owned {
        rollout: Rollout,
        samples: Vec<Sample>,
        streams: Vec<Streams>,
    }

    pub fn serialize<S: Serializer>(rollouts: &VecDeque<Rollout>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(rollouts.iter().map(|r| Ref { rollout: r, samples: &r.samples, streams: &r.streams }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<VecDeque<Rollout>, D::Error> {
        let written = VecDeque::<Owned>::deserialize(from)?.into_iter();
        Ok(written.map(|Owned { rollout, samples, streams }| Rollout { samples, streams, ..rollout }).collect())
    }
}

/// A map whose keys are no texts.
pub(crate) mod pairs {
    use super::*;

    pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<K, V>, D::Error> {
        Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
    }
}
