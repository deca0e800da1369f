//! Groups under way: opening them, starting their members within the limit on concurrency, and taking results in or
//! writing them off. Knows nothing of batches beyond how many rollouts are wanted.

use super::{Action, Machine};
use crate::rollout::{FirstPrompt, Plan};
use crate::scoring::Verdict;
use crate::seed::{derive, fnv1a};
use crate::tasks::task_seed;
use crate::{Error, Finished, Mode, Purpose};
use prl_types::{ErrorKind, GroupId, PolicyVersion, Rollout, RolloutError, RolloutId, Step, Task};
use std::sync::Arc;

/// A group in this process. Evaluation comes first in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupKey {
    pub purpose: Purpose,
    pub seq: u64,
}

pub(super) enum Member {
    /// Not started.
    Waiting,
    Running(Plan),
    Done(Box<Finished>),
}

pub(super) struct Group {
    pub env: usize,
    pub step: Step,
    pub members: Vec<Member>,
    index: u64,
    seed: u64,
    task: Option<Arc<Task>>,
    first: Arc<FirstPrompt>,
    version: PolicyVersion,
    left: usize,
}

impl Group {
    /// The index of its task.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// The policy that was visible when it was opened.
    pub(super) fn version(&self) -> PolicyVersion {
        self.version
    }

    /// What is to be reported of a group that ends here: finished members as they are, running ones as cancelled.
    pub(super) fn end(self, why: &str) -> impl Iterator<Item = Rollout> {
        self.members.into_iter().filter_map(move |member| match member {
            Member::Waiting => None,
            Member::Running(plan) => Some(plan.failed(ErrorKind::Cancelled, why).rollout),
            Member::Done(finished) => Some(finished.rollout),
        })
    }
}

impl Machine {
    /// The groups in training that are not yet scored.
    pub(super) fn train_groups(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        self.groups.range(GroupKey { purpose: Purpose::Train, seq: 0 }..)
    }

    /// The lowest of them.
    pub(super) fn first_train_group(&self) -> Option<u64> {
        self.train_groups().next().map(|(key, _)| key.seq)
    }

    /// Takes a training group out.
    pub(super) fn remove_train_group(&mut self, seq: u64) -> Option<Group> {
        let group = self.groups.remove(&GroupKey { purpose: Purpose::Train, seq })?;
        self.train_members -= group.members.len();
        Some(group)
    }

    pub(super) fn open_groups(&mut self, out: &mut Vec<Action>) {
        while self.inflight + self.flow.eval_waiting < self.max_inflight && self.open_eval_group(out) {}
        while self.outstanding < self.max_inflight && self.mode() == Mode::PreferTrain && self.wants_train_group() {
            self.open_train_group(out);
        }
    }

    fn open_eval_group(&mut self, out: &mut Vec<Action>) -> bool {
        let (visible, now) = (PolicyVersion(self.visible), self.now);
        let Some(run) = self.evals.front_mut() else { return false };
        let Some((env, index)) = run.next(visible, now) else { return false };
        let step = run.step;
        let settings = &self.settings.eval[env];
        let key = GroupKey { purpose: Purpose::Eval, seq: self.eval_seq };
        self.eval_seq += 1;
        let (size, task) = (settings.group_size, task_seed(self.settings.seed, "eval-task", &settings.name, index));
        let seed = derive(self.settings.seed, "eval", fnv1a(&settings.name), step);
        self.open_group(key, env, index, size, step, derive(seed, "group", index, 0));
        out.push(Action::FetchTask { key, env, index, seed: task });
        true
    }

    fn wants_train_group(&self) -> bool {
        if !self.open || self.settings.deterministic {
            return self.open && self.missing > 0;
        }
        if self.arrived.len() > self.max_inflight {
            return false;
        }
        // The newest batch that the visible policy may begin.
        let newest = self.last.min((self.visible + 1).saturating_add(self.settings.max_async_level));
        let scoring = self.scoring.as_ref().map_or(0, |scoring| scoring.members.len());
        self.batcher.wants((newest + 1).saturating_sub(self.step), self.train_members + scoring)
    }

    fn open_train_group(&mut self, out: &mut Vec<Action>) {
        let pick = self.source.pick();
        let size = self.settings.train[pick.env].group_size;
        let key = GroupKey { purpose: Purpose::Train, seq: pick.group.0 };
        self.missing = self.missing.saturating_sub(size as usize);
        self.open_group(
            key,
            pick.env,
            pick.index,
            size,
            self.step,
            derive(self.settings.seed, "group", pick.group.0, 0),
        );
        out.push(Action::FetchTask { key, env: pick.env, index: pick.index, seed: pick.seed });
    }

    fn open_group(&mut self, key: GroupKey, env: usize, index: u64, size: u32, step: Step, seed: u64) {
        let group = Group {
            env,
            step,
            members: (0..size).map(|_| Member::Waiting).collect(),
            index,
            seed,
            task: None,
            first: Arc::default(),
            version: PolicyVersion(self.visible),
            left: size as usize,
        };
        self.firsts.entry((key.purpose, env)).or_insert(key);
        self.outstanding += group.left;
        match key.purpose {
            Purpose::Eval => self.flow.eval_waiting += group.left,
            Purpose::Train => self.train_members += group.left,
        }
        self.groups.insert(key, group);
    }

    pub(super) fn dispatch(&mut self, out: &mut Vec<Action>) {
        while let Some((key, member)) = self.next_start() {
            if let Err(at) = self.flow.take(self.now) {
                out.push(Action::WakeAt(at));
                return;
            }
            self.ready.remove(&(key, member));
            let again = self.flow.again.remove(&(key, member));
            let Some(group) = self.groups.get_mut(&key) else { continue };
            if again {
                if let Member::Running(plan) = &group.members[member as usize] {
                    out.push(Action::Start { key, env: group.env, plan: plan.clone() });
                }
                continue;
            }
            let Some(task) = group.task.clone() else { continue };
            let size = group.members.len() as u32;
            let plan = Plan {
                purpose: key.purpose,
                id: id(key, group.index, member),
                attempt: 0,
                group_size: size,
                task,
                first: group.first.clone(),
                seed: derive(group.seed, "member", u64::from(member), 0),
                step: group.step,
                version: group.version,
            };
            group.members[member as usize] = Member::Running(plan.clone());
            self.inflight += 1;
            if key.purpose == Purpose::Eval {
                self.flow.eval_waiting -= 1;
            }
            out.push(Action::Start { key, env: group.env, plan });
        }
    }

    pub(super) fn on_task(&mut self, key: GroupKey, task: Result<Box<Task>, String>) -> Result<(), Error> {
        let Some(group) = self.groups.get_mut(&key) else { return Ok(()) };
        let (name, split) = match key.purpose {
            Purpose::Train => (&self.settings.train[group.env].name, &self.settings.train[group.env].split),
            Purpose::Eval => (&self.settings.eval[group.env].name, &self.settings.eval[group.env].split),
        };
        match task {
            Ok(task) => {
                group.task = Some(Arc::new(Task { env: name.clone(), ..*task }));
                self.ready.extend((0..group.members.len() as u32).map(|member| (key, member)));
                Ok(())
            }
            Err(message) => {
                let task = Arc::new(missing_task(name, split, group.index));
                for (member, slot) in group.members.iter_mut().enumerate() {
                    let plan = Plan {
                        purpose: key.purpose,
                        id: id(key, group.index, member as u32),
                        attempt: 0,
                        group_size: 0,
                        task: task.clone(),
                        first: Arc::default(),
                        seed: 0,
                        step: group.step,
                        version: group.version,
                    };
                    let message = format!("no task {} of split `{split}`: {message}", group.index);
                    *slot = Member::Done(Box::new(plan.failed(ErrorKind::EnvError, message)));
                }
                let left = std::mem::take(&mut group.left);
                self.outstanding -= left;
                if key.purpose == Purpose::Eval {
                    self.flow.eval_waiting -= left;
                }
                self.complete(key)
            }
        }
    }

    pub(super) fn on_rollout(&mut self, key: GroupKey, member: u32, finished: Box<Finished>) -> Result<(), Error> {
        let again = self.tries_again(&finished.rollout);
        let Some(group) = self.groups.get_mut(&key) else { return Ok(()) };
        if finished.ended.is_none()
            && again
            && let Member::Running(plan) = &mut group.members[member as usize]
        {
            plan.attempt += 1;
            tracing::debug!("Rollout {} failed and starts again: {:?}", plan.id, finished.rollout.error);
            self.flow.again.insert((key, member));
            return Ok(());
        }
        self.flow.count(key.purpose, &finished.rollout);
        let ended = finished.ended.clone();
        group.members[member as usize] = Member::Done(finished);
        group.left -= 1;
        self.inflight -= 1;
        self.outstanding -= 1;
        if let Some(message) = ended {
            return Err(Error::PolicyEnded { message });
        }
        if group.left == 0 { self.complete(key) } else { Ok(()) }
    }

    fn complete(&mut self, key: GroupKey) -> Result<(), Error> {
        self.check_first(key)?;
        match key.purpose {
            Purpose::Train => self.arrived.push_back(key.seq),
            Purpose::Eval => match self.groups.get(&key) {
                Some(group) if self.eval_grouped[group.env] => self.eval_complete.push(key),
                _ => self.end_eval_group(key),
            },
        }
        Ok(())
    }

    fn end_eval_group(&mut self, key: GroupKey) {
        if let (Some(group), Some(run)) = (self.groups.remove(&key), self.evals.front_mut()) {
            run.take(group.env, group.end(""));
        }
    }

    /// Has complete groups of evaluations scored by their environments; until then they stay as they are.
    pub(super) fn score_evals(&mut self, out: &mut Vec<Action>) {
        for key in std::mem::take(&mut self.eval_complete) {
            let Some(group) = self.groups.get(&key) else { continue };
            let members = group.members.iter().filter_map(|member| match member {
                Member::Done(finished) => Some(finished.as_ref().clone()),
                _ => None,
            });
            out.push(Action::ScoreEval { key, env: group.env, members: Arc::new(members.collect()) });
        }
    }

    pub(super) fn on_eval_scored(&mut self, key: GroupKey, verdicts: Vec<Verdict>) {
        if let Some(group) = self.groups.get_mut(&key) {
            for (member, verdict) in group.members.iter_mut().zip(verdicts) {
                if let Member::Done(finished) = member {
                    verdict.apply(&mut finished.rollout);
                }
            }
        }
        self.end_eval_group(key);
    }

    /// An environment whose first group fails before any turn will not do better later. The first that was opened, not
    /// the first that ended: otherwise it would be a matter of timing.
    fn check_first(&mut self, key: GroupKey) -> Result<(), Error> {
        let Some(group) = self.groups.get(&key) else { return Ok(()) };
        let of = (key.purpose, group.env);
        if self.proven.contains(&of) || self.firsts.get(&of) != Some(&key) {
            return Ok(());
        }
        let mut first = None;
        for member in &group.members {
            let Member::Done(finished) = member else { return Ok(()) };
            match &finished.rollout.error {
                Some(RolloutError { kind: ErrorKind::EnvError, message }) if finished.rollout.turns.is_empty() => {
                    first = first.or(Some(message));
                }
                _ => {
                    self.proven.insert(of);
                    return Ok(());
                }
            }
        }
        let env = match key.purpose {
            Purpose::Train => &self.settings.train[group.env].name,
            Purpose::Eval => &self.settings.eval[group.env].name,
        };
        match first {
            Some(message) => {
                let (env, message) = (env.clone(), message.clone());
                Err(Error::EnvFailedAtStart { purpose: key.purpose, env, message })
            }
            None => Ok(()),
        }
    }

    /// Cancels training groups under way that are too old to train.
    pub(super) fn cancel_stale(&mut self, out: &mut Vec<Action>) {
        let oldest = self.oldest_allowed();
        let frozen = self.frozen.clone();
        self.cancel_train(out, |group| group.version < oldest && !frozen[group.env]);
    }

    /// Cancels training groups; members that had been started are reported as cancelled.
    pub(super) fn cancel_train(&mut self, out: &mut Vec<Action>, pick: impl Fn(&Group) -> bool) {
        let keys: Vec<GroupKey> = self.train_groups().filter(|(_, g)| pick(g)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(group) = self.remove_train_group(key.seq) else { continue };
            self.firsts.retain(|_, first| *first != key);
            self.arrived.retain(|seq| *seq != key.seq);
            self.outstanding -= group.left;
            for (member, slot) in group.members.iter().enumerate() {
                self.ready.remove(&(key, member as u32));
                self.flow.again.remove(&(key, member as u32));
                if matches!(slot, Member::Running(_)) {
                    self.inflight -= 1;
                    out.push(Action::Cancel { key, member: member as u32 });
                }
            }
            let why = "dropped by the scheduler: its policy is too old, or the run has enough rollouts";
            for mut rollout in group.end(why) {
                if rollout.error.is_none() {
                    rollout.fail(RolloutError { kind: ErrorKind::Cancelled, message: why.into() });
                }
                self.flow.count(Purpose::Train, &rollout);
                self.batcher.cancelled(&rollout);
                self.observer.rollout(Purpose::Train, self.step.min(self.last), &rollout);
            }
        }
    }
}

fn id(key: GroupKey, index: u64, member: u32) -> RolloutId {
    // Evaluation groups are numbered by their task, training groups by their order in the run.
    let group = if key.purpose == Purpose::Eval { index } else { key.seq };
    RolloutId { group: GroupId(group), member }
}

/// Stands in for a task that the environment could not make.
fn missing_task(env: &str, split: &str, index: u64) -> Task {
    Task {
        env: env.to_owned(),
        split: split.to_owned(),
        index,
        seed: 0,
        key: String::new(),
        prompt: Vec::new(),
        tools: Vec::new(),
        answer: None,
        payload: Default::default(),
        max_turns: None,
        tags: Vec::new(),
    }
}
