//! When the state of a step is taken, and from what. Owns the conditions under which it is all there; must not know what is
//! written where.

use super::{Action, Machine, Shipped};
use crate::state::Open;
use crate::{Error, Purpose, Settings, State};
use prl_types::Step;
use std::collections::BTreeSet;

/// The last step that is sampled. The state of the last step that is trained needs the batches which a longer run would have
/// sampled by then.
pub(super) fn sampled(settings: &Settings, start: Step, last: Step) -> Step {
    let ahead = settings.deterministic && settings.checkpoints.is_some() && last > start;
    last.saturating_add(if ahead { settings.max_async_level } else { 0 })
}

fn names(settings: &Settings, purpose: Purpose) -> Vec<&str> {
    match purpose {
        Purpose::Train => settings.train.iter().map(|env| env.name.as_str()).collect(),
        Purpose::Eval => settings.eval.iter().map(|env| env.name.as_str()).collect(),
    }
}

const PURPOSES: [Purpose; 2] = [Purpose::Train, Purpose::Eval];

/// Environments that have worked before, by their place in the settings.
pub(super) fn proven(settings: &Settings, by_name: &[BTreeSet<String>; 2]) -> BTreeSet<(Purpose, usize)> {
    let of = |(purpose, known): (Purpose, &BTreeSet<String>)| {
        let places = names(settings, purpose).into_iter().enumerate().filter(|(_, name)| known.contains(*name));
        places.map(|(place, _)| (purpose, place)).collect::<Vec<_>>()
    };
    PURPOSES.into_iter().zip(by_name).flat_map(of).collect()
}

impl Machine {
    /// Whether a checkpoint of a step that is trained or in training is not complete.
    pub(crate) fn owes_checkpoint(&self) -> bool {
        self.lacks_checkpoint() || self.training.is_some_and(|step| self.is_saved(step))
    }

    /// The same, of a step that is trained.
    pub(crate) fn lacks_checkpoint(&self) -> bool {
        !self.owed.is_empty() || !self.taken.is_empty()
    }

    pub(super) fn is_saved(&self, step: Step) -> bool {
        self.settings.checkpoints.is_some_and(|due| due.includes(step, self.settings.max_steps))
    }

    /// Takes the state of `step` if that is due. Everything that belongs to it must have happened, and nothing that does not.
    pub(super) fn take(&mut self, step: Step) {
        let Some((_, progress)) = self.owed.pop_front_if(|(due, _)| *due == step) else { return };
        let later: Vec<&Shipped> = self.shipped.range(step + 1..).map(|(_, shipped)| shipped).collect();
        let open = self.open_train_groups().map(|(group, env, index)| Open {
            group,
            env: self.settings.train[env].name.clone(),
            index,
        });
        let known = |purpose| {
            let names = names(&self.settings, purpose);
            let places = self.proven.iter().filter(|(of, _)| *of == purpose);
            places.filter_map(|(_, place)| names.get(*place).map(|name| (*name).to_owned())).collect()
        };
        let state = State {
            progress,
            totals: crate::Progress {
                next_group: self.source.next_group(),
                tasks_taken: self.source.taken(),
                algorithms: self.states.clone(),
                rewards: self.source.rewards(),
                ..self.totals.clone()
            },
            batches: later.iter().map(|shipped| (shipped.cut.clone(), shipped.progress.clone())).collect(),
            kept: self.batcher.kept().clone(),
            open: open.collect(),
            proven: PURPOSES.map(known),
        };
        self.observer.mark(step);
        self.taken.push_back(state);
    }

    /// Whether an error is about a batch that is sampled for a checkpoint only.
    pub(super) fn is_ahead(&self, error: &Error) -> bool {
        let of_sampling = matches!(
            error,
            Error::NothingToTrain { .. }
                | Error::ErrorRate { .. }
                | Error::EnvFailedAtStart { purpose: Purpose::Train, .. }
        );
        of_sampling && self.step > self.last && self.step <= self.sampled
    }

    /// Leaves what is not trained in this run to a run that goes on.
    pub(super) fn leave_ahead(&mut self, error: &Error, out: &mut Vec<Action>) {
        tracing::warn!("{error}; this is about step {}, which this run does not train", self.step);
        self.sampled = self.step - 1;
        (self.open, self.missing) = (false, 0);
        self.cancel_train(out, |_| true);
    }

    /// Outside deterministic mode a state is taken as soon as no group is between its environment and a batch.
    pub(super) fn take_free(&mut self) {
        if self.settings.deterministic || self.scoring.is_some() {
            return;
        }
        while let Some(step) = self.owed.front().map(|(step, _)| *step) {
            self.take(step);
        }
    }

    /// Hands out states whose step has been reported, so that what a checkpoint says to have happened is on record.
    pub(super) fn keep(&mut self, out: &mut Vec<Action>) {
        while let Some(state) = self.taken.pop_front_if(|state| state.progress.step <= self.reported) {
            out.push(Action::Keep(Box::new(state)));
        }
    }

    /// Leaves the training groups under way to a run that goes on.
    pub(super) fn put_back(&mut self) {
        let open: Vec<_> = self.under_way().collect();
        open.into_iter().for_each(|(group, env, index)| self.source.put_back(group, env, index));
    }

    /// Training groups under way: each one's id, environment and task.
    fn under_way(&self) -> impl Iterator<Item = (u64, usize, u64)> {
        self.train_groups().map(|(key, group)| (key.seq, group.env, group.index()))
    }

    /// Training groups that are in no batch: those under way, then those that are still to be picked again.
    fn open_train_groups(&self) -> impl Iterator<Item = (u64, usize, u64)> {
        self.under_way().chain(self.source.again().map(|pick| (pick.group.0, pick.env, pick.index)))
    }
}
