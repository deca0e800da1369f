//! What may start next, and where dispatching stands: evaluations before training, failed rollouts again, the pace, and
//! numbers about all of it. Knows nothing of batches beyond how full the next one is.

use super::pace::Pace;
use super::{GroupKey, Machine, Member};
use crate::{Mode, Purpose, Settings, Status};
use prl_types::{ErrorKind, Rollout};
use std::collections::{BTreeMap, BTreeSet};

/// State of dispatching beside groups.
pub(super) struct Flow {
    pace: Option<Pace>,
    /// Members that failed and start again; they keep their place among those under way.
    pub again: BTreeSet<(GroupKey, u32)>,
    /// Members of opened evaluation groups that were not started yet.
    pub eval_waiting: usize,
    cancelled: BTreeMap<String, u64>,
    errored: BTreeMap<String, u64>,
}

impl Flow {
    pub(super) fn new(settings: &Settings) -> Self {
        Flow {
            pace: settings.tasks_per_minute.map(Pace::new),
            again: BTreeSet::new(),
            eval_waiting: 0,
            cancelled: BTreeMap::new(),
            errored: BTreeMap::new(),
        }
    }

    /// Counts a start at `now`, or says when it may be.
    pub(super) fn take(&mut self, now: f64) -> Result<(), f64> {
        self.pace.as_mut().map_or(Ok(()), |pace| pace.take(now))
    }

    /// Counts a rollout that failed for good.
    pub(super) fn count(&mut self, purpose: Purpose, rollout: &Rollout) {
        let counts = match rollout.error.as_ref().map(|error| error.kind) {
            None => return,
            Some(ErrorKind::Cancelled) => &mut self.cancelled,
            Some(_) => &mut self.errored,
        };
        for name in [label(purpose).to_owned(), format!("{}/{}", label(purpose), rollout.task.env)] {
            *counts.entry(name).or_default() += 1;
        }
    }
}

fn label(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Train => "train",
        Purpose::Eval => "eval",
    }
}

impl Machine {
    /// Evaluation, until every rollout of the one that is due was started, and training otherwise. What is under way
    /// goes on in either.
    pub(crate) fn mode(&self) -> Mode {
        let opening = self.evals.front().is_some_and(|run| run.queued() > 0);
        if opening || self.flow.eval_waiting > 0 { Mode::PreferEval } else { Mode::PreferTrain }
    }

    /// The next member to start, if there is one and a place for it.
    pub(super) fn next_start(&self) -> Option<(GroupKey, u32)> {
        if self.setting {
            return None;
        }
        if let Some(again) = self.flow.again.first() {
            return Some(*again);
        }
        let next = self.ready.first().filter(|_| self.inflight < self.max_inflight)?;
        (next.0.purpose == Purpose::Eval || self.mode() == Mode::PreferTrain).then_some(*next)
    }

    /// Whether a rollout that ended like this is started again.
    pub(super) fn tries_again(&self, rollout: &Rollout) -> bool {
        let failed = |kind| matches!(kind, ErrorKind::EnvError | ErrorKind::ProviderError);
        !self.stopped
            && rollout.attempt < self.settings.max_retries
            && rollout.error.as_ref().is_some_and(|error| failed(error.kind))
    }

    /// Where dispatching stands.
    pub(crate) fn status(&self) -> Status {
        let running = |group: &super::Group| group.members.iter().filter(|m| matches!(m, Member::Running(_))).count();
        let (mut inflight, mut groups, mut levels) = (BTreeMap::from([("train", 0), ("eval", 0)]), 0, Vec::new());
        for (key, group) in &self.groups {
            let count = running(group);
            *inflight.entry(label(key.purpose)).or_default() += count;
            groups += usize::from(count > 0);
            if key.purpose == Purpose::Train && !self.frozen[group.env] {
                let level = self.visible.saturating_sub(group.version().0) as f64;
                levels.extend(std::iter::repeat_n(level, count));
            }
        }
        let queued: usize = self.evals.iter().map(|run| run.queued()).sum();
        let mode = self.mode();
        let mut metrics = BTreeMap::from([
            ("dispatcher/inflight_train".to_owned(), inflight["train"] as f64),
            ("dispatcher/inflight_eval".to_owned(), inflight["eval"] as f64),
            ("dispatcher/queued/eval".to_owned(), queued as f64),
            ("dispatcher/mode".to_owned(), f64::from(u8::from(mode == Mode::PreferEval))),
            ("dispatcher/groups_in_flight".to_owned(), groups as f64),
            ("dispatcher/off_policy_level_max".to_owned(), levels.iter().copied().fold(0.0, f64::max)),
            ("dispatcher/off_policy_level_mean".to_owned(), levels.iter().sum::<f64>() / levels.len().max(1) as f64),
        ]);
        for (what, counts) in [("cancelled", &self.flow.cancelled), ("errored", &self.flow.errored)] {
            metrics.extend(["train", "eval"].map(|name| (format!("dispatcher/{what}/{name}"), 0.0)));
            metrics.extend(counts.iter().map(|(name, n)| (format!("dispatcher/{what}/{name}"), *n as f64)));
        }
        let (waiting, batch) = self.batcher.filled();
        let (inflight_train, inflight_eval) = (inflight["train"], inflight["eval"]);
        Status { step: self.step.min(self.last), mode, inflight_train, inflight_eval, waiting, batch, metrics }
    }
}
