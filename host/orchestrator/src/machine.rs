//! The orchestrator's state machine: what to start next, given what has happened. Events come in, actions go out; no
//! clock, no threads, no randomness but the task source's. Every result depends on the contents of events only, and in
//! deterministic mode not on their order.

use crate::batcher::{Batcher, Cut};
use crate::eval::{self, EvalRun};
use crate::rollout::Plan;
use crate::scoring::{Judged, Verdict};
use crate::tasks::TaskSource;
use crate::{Error, Finished, Observer, Progress, Purpose, Settings, State, StepReport, TrainReport};
use prl_types::{Batch, GroupId, PolicyVersion, Rollout, Step, Task};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

mod checkpoint;
mod dispatch;
mod groups;
mod pace;

use dispatch::Flow;
pub(crate) use groups::GroupKey;
use groups::{Group, Member};

/// What has happened.
pub(crate) enum Event {
    Task {
        key: GroupKey,
        task: Result<Box<Task>, String>,
    },
    Rollout {
        key: GroupKey,
        member: u32,
        finished: Box<Finished>,
    },
    /// The environment's scores of an evaluation's group.
    EvalScored {
        key: GroupKey,
        verdicts: Vec<Verdict>,
    },
    Scored {
        group: u64,
        judged: Result<Judged, String>,
    },
    Trained {
        step: Step,
        result: Result<TrainReport, String>,
    },
    /// Sampling goes on with the version of the last [`Action::SetPolicy`].
    PolicySet {
        version: PolicyVersion,
        result: Result<(), String>,
    },
    /// The moment of the last [`Action::WakeAt`], in seconds after the start, has come.
    Tick,
}

/// What to do now, in this order.
pub(crate) enum Action {
    FetchTask { key: GroupKey, env: usize, index: u64, seed: u64 },
    Start { key: GroupKey, env: usize, plan: Plan },
    Cancel { key: GroupKey, member: u32 },
    ScoreEval { key: GroupKey, env: usize, members: Arc<Vec<Finished>> },
    Score { group: u64, env: usize, step: Step, members: Arc<Vec<Finished>> },
    SetPolicy(PolicyVersion),
    Train(Arc<Batch>),
    Keep(Box<State>),
    WakeAt(f64),
}

struct Scoring {
    group: u64,
    env: usize,
    members: Arc<Vec<Finished>>,
}

/// A cut batch on its way through the trainer, until it is reported.
struct Shipped {
    cut: Cut,
    progress: Progress,
    trained: Option<TrainReport>,
}

pub(crate) struct Machine {
    settings: Settings,
    observer: Arc<dyn Observer>,
    source: TaskSource,
    batcher: Batcher,
    max_inflight: usize,
    eval_counts: Vec<u64>,
    start: Step,
    /// The last step that is trained, and the last that is sampled.
    last: Step,
    sampled: Step,
    groups: BTreeMap<GroupKey, Group>,
    /// Members of training groups among them.
    train_members: usize,
    ready: BTreeSet<(GroupKey, u32)>,
    flow: Flow,
    inflight: usize,
    outstanding: usize,
    /// The first group of each environment, and environments of which it worked.
    firsts: BTreeMap<(Purpose, usize), GroupKey>,
    proven: BTreeSet<(Purpose, usize)>,
    // Sampling.
    step: Step,
    open: bool,
    missing: usize,
    arrived: VecDeque<u64>,
    scoring: Option<Scoring>,
    /// The version that is sampled with from here on; nothing starts until the engine has it, and the next waits for that.
    visible: Step,
    setting: bool,
    closed_at: f64,
    opened_at: f64,
    // Training.
    training: Option<Step>,
    trained: Step,
    shipped: BTreeMap<Step, Shipped>,
    reported: Step,
    reported_at: f64,
    totals: Progress,
    /// Of the algorithms, by environment.
    states: BTreeMap<String, String>,
    saved: Progress,
    // Checkpoints.
    owed: VecDeque<(Step, Progress)>,
    taken: VecDeque<State>,
    ending: bool,
    // Evaluation.
    evals: VecDeque<EvalRun>,
    /// Which training environments are sampled from a model outside the run.
    frozen: Vec<bool>,
    /// Which evaluation environments score whole groups, and the complete groups that wait for it.
    eval_grouped: Vec<bool>,
    eval_complete: Vec<GroupKey>,
    eval_seq: u64,
    evaluated: Option<Step>,
    now: f64,
    stopped: bool,
}

impl Machine {
    /// `sizes` and `eval_counts` are the numbers of tasks of the training and evaluation environments, `eval_grouped`
    /// says which of the latter score whole groups, `frozen` which of the former are not the policy's.
    pub(crate) fn new(
        settings: Settings,
        sizes: &[Option<u64>],
        eval_counts: Vec<u64>,
        (eval_grouped, frozen): (Vec<bool>, Vec<bool>),
        observer: Arc<dyn Observer>,
    ) -> Self {
        let start = settings.start_step();
        let mut settings = settings;
        let batcher = Batcher::new(&settings);
        let state = settings.resume.take();
        let resume = state.as_ref().map(|state| (&state.totals, state.open.as_slice()));
        let source = TaskSource::new(settings.seed, &settings.train, sizes, resume);
        let State { progress, mut totals, batches, kept, proven, .. } = state.unwrap_or_default();
        totals.tasks_taken = source.taken();
        let last = settings.max_steps.unwrap_or(u64::MAX);
        let step = start + batches.len() as Step + 1;
        let batches = (start + 1..).zip(batches);
        let shipped: BTreeMap<Step, Shipped> =
            batches.map(|(step, (cut, progress))| (step, Shipped { cut, progress, trained: None })).collect();
        Machine {
            batcher: batcher.with(kept),
            flow: Flow::new(&settings),
            max_inflight: settings.max_inflight(),
            last,
            sampled: checkpoint::sampled(&settings, start, last),
            source,
            observer,
            eval_counts,
            start,
            groups: BTreeMap::new(),
            train_members: 0,
            ready: BTreeSet::new(),
            inflight: 0,
            outstanding: 0,
            firsts: BTreeMap::new(),
            proven: checkpoint::proven(&settings, &proven),
            step,
            open: false,
            missing: 0,
            arrived: VecDeque::new(),
            scoring: None,
            visible: start,
            setting: false,
            closed_at: 0.0,
            opened_at: 0.0,
            training: None,
            trained: start,
            shipped,
            reported: start,
            reported_at: 0.0,
            saved: progress,
            states: totals.algorithms.clone(),
            totals,
            owed: VecDeque::new(),
            taken: VecDeque::new(),
            ending: false,
            evals: VecDeque::new(),
            eval_grouped,
            frozen,
            eval_complete: Vec::new(),
            eval_seq: 0,
            evaluated: None,
            now: 0.0,
            stopped: false,
            settings,
        }
    }

    /// The first actions.
    pub(crate) fn begin(&mut self) -> Result<Vec<Action>, Error> {
        let mut out = Vec::new();
        self.queue_evals(self.start);
        self.pump(&mut out)?;
        Ok(out)
    }

    /// Takes an event in, `now` seconds after the start.
    pub(crate) fn handle(&mut self, event: Event, now: f64) -> Result<Vec<Action>, Error> {
        self.now = now;
        let mut out = Vec::new();
        match self.on(event, &mut out).and_then(|()| self.pump(&mut out)) {
            Err(error) if self.is_ahead(&error) => {
                self.leave_ahead(&error, &mut out);
                self.pump(&mut out)?;
            }
            done => done?,
        }
        Ok(out)
    }

    fn on(&mut self, event: Event, out: &mut Vec<Action>) -> Result<(), Error> {
        match event {
            Event::Task { key, task } => self.on_task(key, task),
            Event::Rollout { key, member, finished } => self.on_rollout(key, member, finished),
            Event::EvalScored { key, verdicts } => {
                self.on_eval_scored(key, verdicts);
                Ok(())
            }
            Event::Scored { group, judged } => self.on_scored(group, judged),
            Event::Trained { step, result } => self.on_trained(step, result, out),
            Event::PolicySet { version, result } => {
                result.map_err(|message| Error::Policy { version: version.0, message })?;
                self.setting = false;
                self.follow(out);
                Ok(())
            }
            Event::Tick => Ok(()),
        }
    }

    /// Whether the run is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.step > self.sampled
            && self.reported >= self.last.max(self.start)
            && !self.setting
            && !self.owes_checkpoint()
            && self.evals.is_empty()
            && self.next_tail_eval().is_none()
            && self.scoring.is_none()
            && self.groups.is_empty()
    }

    /// The step being trained, if any.
    pub(crate) fn training(&self) -> Option<Step> {
        self.training
    }

    /// State after the last trained step.
    pub(crate) fn progress(&self) -> &Progress {
        &self.saved
    }

    /// Starts nothing from now on; training results are still taken in.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Trains nothing from now on but what is under way; the rest goes on until the checkpoints are complete that are owed.
    pub(crate) fn wind_down(&mut self) {
        self.ending = true;
    }

    fn pump(&mut self, out: &mut Vec<Action>) -> Result<(), Error> {
        while !self.stopped {
            let mut moved = self.report();
            moved |= self.finish_eval();
            self.take_free();
            moved |= self.advance(out);
            self.keep(out);
            self.open_groups(out);
            self.dispatch(out);
            self.score_evals(out);
            moved |= self.score_next(out);
            moved |= self.cut(out)?;
            self.train(out);
            if !moved {
                break;
            }
        }
        Ok(())
    }

    fn evals_due(&self, step: Step) -> Vec<usize> {
        let last = (self.last != u64::MAX).then_some(self.last);
        eval::due(&self.settings.eval, step, self.start, last, self.settings.skip_first_eval)
    }

    /// Opens the next batch for sampling once the policy it is to be sampled with is there.
    fn advance(&mut self, out: &mut Vec<Action>) -> bool {
        if self.open {
            return false;
        }
        let wanted = match self.step > self.sampled {
            // What is still to be evaluated or saved of versions that no batch is sampled with.
            true if self.settings.deterministic && (self.next_tail_eval().is_some() || self.owes_checkpoint()) => {
                self.last
            }
            true => return false,
            false => self.start.max((self.step - 1).saturating_sub(self.settings.max_async_level)),
        };
        if wanted > self.visible {
            // Version by version: an evaluation is of one, and the next waits for its end.
            let next = self.visible + 1;
            if !self.settings.deterministic || self.setting || self.trained < next || !self.evals.is_empty() {
                return false;
            }
            self.take(next);
            self.make_visible(next, out);
            return true;
        }
        if self.step > self.sampled {
            return false;
        }
        self.open = true;
        self.opened_at = self.now;
        self.batcher.drop_stale(self.oldest_allowed());
        self.cancel_stale(out);
        self.source.open_batch();
        self.missing = self.batcher.missing();
        true
    }

    /// Versions that no batch was sampled with may still have to be evaluated at the end.
    fn next_tail_eval(&self) -> Option<Step> {
        if !self.settings.deterministic || self.step <= self.sampled {
            return None;
        }
        (self.visible + 1..=self.last).find(|step| !self.evals_due(*step).is_empty())
    }

    /// Outside deterministic mode the newest version is sampled with as soon as the engine can take it; one that is to be
    /// evaluated is not passed over.
    fn follow(&mut self, out: &mut Vec<Action>) {
        if self.settings.deterministic || self.stopped || self.setting {
            return;
        }
        let next = (self.visible + 1..=self.trained).find(|v| *v == self.trained || !self.evals_due(*v).is_empty());
        if let Some(version) = next {
            self.make_visible(version, out);
        }
    }

    fn make_visible(&mut self, version: Step, out: &mut Vec<Action>) {
        self.visible = version;
        self.setting = true;
        tracing::debug!("Sampling goes on with policy v{version}");
        out.push(Action::SetPolicy(PolicyVersion(version)));
        self.queue_evals(version);
    }

    fn queue_evals(&mut self, step: Step) {
        let mut envs = self.evals_due(step);
        if step == self.start {
            envs.retain(|env| !self.settings.evaluated.contains(&self.settings.eval[*env].name));
            self.evaluated = Some(step);
        }
        if !envs.is_empty() {
            self.evaluated = self.evaluated.filter(|done| *done < step);
            let counts: Vec<u64> = envs.iter().map(|env| self.eval_counts[*env]).collect();
            self.evals.push_back(EvalRun::new(step, envs, &counts));
        }
    }

    fn oldest_allowed(&self) -> PolicyVersion {
        PolicyVersion((self.step - 1).saturating_sub(self.settings.max_off_policy_steps))
    }

    fn on_scored(&mut self, group: u64, judged: Result<Judged, String>) -> Result<(), Error> {
        let Some(scoring) = self.scoring.take_if(|s| s.group == group) else { return Ok(()) };
        let env = self.settings.train[scoring.env].name.clone();
        let Judged { verdicts, metrics, state } = match judged {
            Ok(judged) => judged,
            Err(message) => {
                self.scoring = Some(scoring);
                return Err(Error::Algorithm { env, group: GroupId(group), message });
            }
        };
        self.batcher.note(metrics);
        self.states.extend(state.map(|state| (env, state)));
        let members = Arc::try_unwrap(scoring.members).unwrap_or_else(|shared| shared.as_ref().clone());
        let rollouts = members.into_iter().zip(verdicts).map(|(member, verdict)| {
            let mut rollout = member.rollout;
            verdict.apply(&mut rollout);
            rollout
        });
        let mut rollouts: Vec<Rollout> = rollouts.collect();
        self.source.learn(scoring.env, &mut rollouts);
        self.batcher.accept(rollouts, self.step, self.observer.as_ref())?;
        if self.open && !self.settings.deterministic {
            self.batcher.drop_stale(self.oldest_allowed());
        }
        Ok(())
    }

    fn score_next(&mut self, out: &mut Vec<Action>) -> bool {
        if self.scoring.is_some() {
            return false;
        }
        let next = if self.settings.deterministic { self.first_train_group() } else { self.arrived.front().copied() };
        let Some(group) = next.filter(|group| self.arrived.contains(group)) else { return false };
        self.arrived.retain(|g| *g != group);
        let Some(Group { env, members, .. }) = self.remove_train_group(group) else { return false };
        let finished = members.into_iter().filter_map(|m| match m {
            Member::Done(finished) => Some(*finished),
            _ => None,
        });
        let members = Arc::new(finished.collect::<Vec<_>>());
        out.push(Action::Score { group, env, step: self.step, members: members.clone() });
        self.scoring = Some(Scoring { group, env, members });
        true
    }

    /// Cuts a batch, or asks for more groups when the ones it was planned with left it short.
    fn cut(&mut self, out: &mut Vec<Action>) -> Result<bool, Error> {
        if !self.open || self.scoring.is_some() {
            return Ok(false);
        }
        if self.settings.deterministic {
            if self.missing > 0 || self.first_train_group().is_some() {
                return Ok(false);
            }
            self.missing = self.batcher.missing();
            if self.missing > 0 {
                return Ok(true);
            }
        } else if !self.batcher.is_full() {
            return Ok(false);
        }
        let mut cut = self.batcher.cut(self.step, self.observer.as_ref())?;
        self.open = false;
        let wait_for_policy = self.opened_at - self.closed_at;
        self.closed_at = self.now;
        self.totals = Progress {
            step: self.step,
            next_group: self.source.next_group(),
            tasks_taken: self.source.taken(),
            total_tokens: self.totals.total_tokens + cut.tokens,
            total_rollouts: self.totals.total_rollouts + cut.rollouts,
            total_tasks: self.totals.total_tasks + cut.tasks,
            algorithms: self.states.clone(),
            lengths: cut.lengths,
            rewards: self.source.rewards(),
        };
        cut.metrics.extend(self.source.metrics());
        for (name, value) in [
            ("progress/total_tokens", self.totals.total_tokens as f64),
            ("progress/total_rollouts", self.totals.total_rollouts as f64),
            ("progress/total_tasks", self.totals.total_tasks as f64),
            ("time/wait_for_policy", wait_for_policy),
            ("time/sample", self.closed_at - self.opened_at),
        ] {
            cut.metrics.insert(name.to_owned(), value);
        }
        self.shipped.insert(self.step, Shipped { cut, progress: self.totals.clone(), trained: None });
        self.step += 1;
        if self.step > self.sampled {
            self.put_back();
            self.cancel_train(out, |_| true);
        }
        Ok(true)
    }

    fn train(&mut self, out: &mut Vec<Action>) {
        let step = self.trained + 1;
        if self.training.is_some() || self.ending || step > self.last {
            return;
        }
        if let Some(shipped) = self.shipped.get(&step) {
            self.training = Some(step);
            out.push(Action::Train(shipped.cut.batch.clone()));
        }
    }

    fn on_trained(
        &mut self,
        step: Step,
        result: Result<TrainReport, String>,
        out: &mut Vec<Action>,
    ) -> Result<(), Error> {
        self.training = None;
        let report = result.map_err(|message| Error::Trainer { step, message })?;
        self.trained = step;
        if let Some(shipped) = self.shipped.get_mut(&step) {
            self.saved = shipped.progress.clone();
            shipped.trained = Some(report);
        }
        if self.is_saved(step) {
            self.owed.push_back((step, self.saved.clone()));
        }
        self.follow(out);
        Ok(())
    }

    /// Reports the next step if it is trained and the evaluation of the step before is out.
    fn report(&mut self) -> bool {
        let waits = !self.evals_due(self.reported).is_empty() && self.evaluated.is_none_or(|step| step < self.reported);
        // A state is handed out once its step is reported, and an evaluation may take long.
        let waits = waits && self.taken.front().is_none_or(|state| state.progress.step <= self.reported);
        // A state holds the batches that come after its step.
        let held = self.owed.front().is_some_and(|(due, _)| *due <= self.reported);
        if waits || held { false } else { self.report_now() }
    }

    fn report_now(&mut self) -> bool {
        let step = self.reported + 1;
        if self.shipped.get(&step).is_none_or(|s| s.trained.is_none()) {
            return false;
        }
        let Some(Shipped { mut cut, trained, .. }) = self.shipped.remove(&step) else { return false };
        let seconds = self.now - self.reported_at;
        cut.metrics.insert("time/step".to_owned(), seconds);
        let train = trained.unwrap_or_default().metrics;
        self.observer.step(&StepReport { step, seconds, metrics: cut.metrics, train, all: cut.all, envs: cut.envs });
        self.reported = step;
        self.reported_at = self.now;
        true
    }

    fn finish_eval(&mut self) -> bool {
        let Some(run) = self.evals.pop_front_if(|run| run.remaining == 0) else { return false };
        let step = run.step;
        for eval in run.finish(&self.settings.eval, self.now) {
            eval.rollouts.iter().for_each(|r| self.observer.rollout(Purpose::Eval, step, r));
            self.observer.eval(&eval, &eval::metrics(&eval));
        }
        self.evaluated = Some(step);
        true
    }

    /// Ends the run here: reports what is trained, and each dispatched rollout that was not reported yet.
    pub(crate) fn drain(&mut self, now: f64) {
        self.now = now;
        while self.report_now() {}
        if let Some(scoring) = self.scoring.take() {
            scoring.members.iter().for_each(|m| self.observer.rollout(Purpose::Train, self.step, &m.rollout));
        }
        for run in std::mem::take(&mut self.evals) {
            let step = run.step;
            run.into_rollouts().for_each(|r| self.observer.rollout(Purpose::Eval, step, &r));
        }
        for (key, group) in std::mem::take(&mut self.groups) {
            let step = group.step;
            for rollout in group.end("the run ended before the rollout did") {
                self.observer.rollout(key.purpose, step, &rollout);
            }
        }
        self.ready.clear();
    }
}
