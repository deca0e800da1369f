//! The thin asynchronous shell around the state machine: carries its actions out as tokio tasks, feeds their results
//! back, and stops. Makes no decision about what is sampled or trained.

use crate::clock::Clock;
use crate::machine::{Action, Event, GroupKey, Machine};
use crate::rollout::{self, Parts};
use crate::stall::Board;
use crate::{Deps, Env, Error, Outcome, Purpose, Reference, Sampling, Settings, Source, TrainDeps, scoring};
use prl_types::Step;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, Interval, interval_at, sleep_until};

/// Checks the settings against the environments, in the order of `settings`, without running anything.
///
/// # Errors
/// [`Error::Settings`].
pub fn check(settings: &Settings, train: &[Arc<dyn Env>], eval: &[Arc<dyn Env>]) -> Result<(), Error> {
    sizes(settings, train, eval).map(drop)
}

/// The same, with the sizes of the training splits and how many tasks each evaluation takes.
fn sizes(
    settings: &Settings,
    train: &[Arc<dyn Env>],
    eval: &[Arc<dyn Env>],
) -> Result<(Vec<Option<u64>>, Vec<u64>), Error> {
    settings.validate()?;
    if train.len() != settings.train.len() || eval.len() != settings.eval.len() {
        return Err(Error::settings("env", "there must be one environment for each name"));
    }
    Ok((train_sizes(settings, train)?, eval_counts(settings, eval)?))
}

/// Runs to the last step, to a stop, or to an error. Whichever it is, every rollout that was started has reached the
/// observer exactly once when this returns. A stop starts nothing new, waits up to `stop_grace` for the training step
/// that is under way, and returns; that step counts only if it came to its end.
///
/// # Errors
/// See [`Error`].
pub async fn run(settings: Settings, deps: Deps) -> Result<Outcome, Error> {
    let train: Vec<Arc<dyn Env>> = deps.train.iter().map(|d| d.env.clone()).collect();
    let (sizes, counts) = sizes(&settings, &train, &deps.eval)?;
    for (env, parts) in settings.train.iter().zip(&deps.train) {
        let needed = parts.algorithm.min_group();
        if (env.group_size as usize) < needed {
            let reason = format!("is {}, but the algorithm needs groups of at least {needed}", env.group_size);
            return Err(Error::settings(format!("train.env.{}.group_size", env.name), reason));
        }
    }
    let grouped = deps.eval.iter().map(|env| env.group_scoring()).collect();
    let frozen = deps.train.iter().map(|parts| parts.source.is_some()).collect();
    let board = Board::new();
    let shell = Shell {
        train: train_parts(&settings, &deps, &board),
        eval: eval_parts(&settings, &deps, &board),
        splits: Splits {
            train: settings.train.iter().map(|e| e.split.clone()).collect(),
            eval: settings.eval.iter().map(|e| e.split.clone()).collect(),
        },
        tasks: JoinSet::new(),
        rollouts: HashMap::new(),
        clock: Clock::start(),
        stop_grace: settings.stop_grace,
        checkpoint_grace: settings.checkpoint_grace,
        board,
        status_interval: settings.status_interval,
        wake: None,
        machine: Machine::new(settings, &sizes, counts, (grouped, frozen), deps.observer.clone()),
        deps,
    };
    shell.run().await
}

fn train_sizes(settings: &Settings, envs: &[Arc<dyn Env>]) -> Result<Vec<Option<u64>>, Error> {
    let size = |(env, handle): (&crate::TrainEnv, &Arc<dyn Env>)| {
        let key = format!("train.env.{}.split", env.name);
        match handle.split_size(&env.split).map_err(|e| Error::settings(&key, e))? {
            Some(0) => Err(Error::settings(key, format!("split `{}` has no tasks", env.split))),
            None if !env.curriculum.pools.is_empty() => {
                let reason = format!("difficulty pools need a finite split, and `{}` is unbounded", env.split);
                Err(Error::settings(format!("train.env.{}.curriculum.pools", env.name), reason))
            }
            size => Ok(size),
        }
    };
    settings.train.iter().zip(envs).map(size).collect()
}

fn eval_counts(settings: &Settings, envs: &[Arc<dyn Env>]) -> Result<Vec<u64>, Error> {
    let count = |(env, handle): (&crate::EvalEnv, &Arc<dyn Env>)| {
        let key = |field: &str| format!("eval.env.{}.{field}", env.name);
        let size = handle.split_size(&env.split).map_err(|e| Error::settings(key("split"), e))?;
        match (size, env.num_examples) {
            (None, None) => {
                let reason = format!("split `{}` is unbounded; say how many of its tasks to evaluate", env.split);
                Err(Error::settings(key("num_examples"), reason))
            }
            (None, Some(n)) if n > 0 => Ok(n),
            (Some(size), n) if size > 0 && n != Some(0) => Ok(n.unwrap_or(size).min(size)),
            _ => Err(Error::settings(key("num_examples"), format!("leaves no task of split `{}`", env.split))),
        }
    };
    settings.eval.iter().zip(envs).map(count).collect()
}

fn train_parts(settings: &Settings, deps: &Deps, board: &Arc<Board>) -> Vec<Arc<Parts>> {
    let part = |(one, env): (&TrainDeps, &crate::TrainEnv)| {
        let own = (env.sampling.clone(), env.max_turns, env.timeout);
        parts(settings, (deps, board), &one.env, own, (one.source.clone(), one.reference.clone()))
    };
    deps.train.iter().zip(&settings.train).map(part).collect()
}

fn eval_parts(settings: &Settings, deps: &Deps, board: &Arc<Board>) -> Vec<Arc<Parts>> {
    let part = |(one, env): (&Arc<dyn Env>, &crate::EvalEnv)| {
        parts(settings, (deps, board), one, (env.sampling.clone(), env.max_turns, env.timeout), (None, None))
    };
    deps.eval.iter().zip(&settings.eval).map(part).collect()
}

fn parts(
    settings: &Settings,
    (deps, board): (&Deps, &Arc<Board>),
    env: &Arc<dyn Env>,
    (sampling, max_turns, timeout): (Sampling, Option<u32>, Option<Duration>),
    (source, reference): (Option<Arc<dyn Source>>, Option<Arc<dyn Reference>>),
) -> Arc<Parts> {
    let (policy, renderer) = (deps.policy.clone(), deps.renderer.clone());
    let (env, seq_len, board) = (env.clone(), settings.seq_len, board.clone());
    Arc::new(Parts { policy, source, reference, renderer, env, sampling, max_turns, timeout, seq_len, board })
}

struct Splits {
    train: Vec<String>,
    eval: Vec<String>,
}

struct Shell {
    deps: Deps,
    machine: Machine,
    train: Vec<Arc<Parts>>,
    eval: Vec<Arc<Parts>>,
    splits: Splits,
    tasks: JoinSet<Event>,
    rollouts: HashMap<(GroupKey, u32), AbortHandle>,
    clock: Clock,
    stop_grace: Duration,
    checkpoint_grace: Duration,
    board: Arc<Board>,
    status_interval: Option<Duration>,
    /// When the machine wants to be woken.
    wake: Option<Instant>,
}

impl Shell {
    async fn run(mut self) -> Result<Outcome, Error> {
        let watch = AbortOnDrop(tokio::spawn(self.board.clone().watch(self.deps.observer.clone())));
        let result = self.work().await;
        let stopped = matches!(result, Ok(true));
        let late = if stopped { self.wind_down().await } else { Ok(()) };
        self.halt();
        drop(watch);
        self.tasks.abort_all();
        self.machine.drain(self.clock.seconds());
        result.and(late)?;
        Ok(Outcome { stopped, progress: self.machine.progress().clone() })
    }

    /// Works until the run is complete (`false`) or stopped (`true`).
    async fn work(&mut self) -> Result<bool, Error> {
        if *self.deps.stop.borrow_and_update() {
            return Ok(true);
        }
        let mut stop = self.deps.stop.clone();
        let actions = self.machine.begin()?;
        self.carry_out(actions);
        let mut listening = true;
        let mut status = self.status_interval.map(|period| interval_at(Instant::now() + period, period));
        while !self.machine.is_done() {
            let event = tokio::select! {
                biased;
                changed = stop.wait_for(|stop| *stop), if listening => {
                    if changed.is_ok() {
                        return Ok(true);
                    }
                    listening = false;
                    continue;
                }
                Some(()) = tick(&mut status), if !self.tasks.is_empty() || self.wake.is_some() => {
                    self.deps.observer.status(&self.machine.status());
                    continue;
                }
                Some(event) = next(&mut self.tasks, &mut self.wake) => event,
                else => return Err(Error::Panic("nothing is under way, but the run is not complete".into())),
            };
            self.take(event)?;
        }
        Ok(false)
    }

    fn take(&mut self, event: Result<Event, JoinError>) -> Result<(), Error> {
        let event = match event {
            Ok(event) => event,
            Err(e) if e.is_cancelled() => return Ok(()),
            Err(e) => return Err(Error::Panic(panic_text(e))),
        };
        match &event {
            Event::Rollout { key, member, .. } => drop(self.rollouts.remove(&(*key, *member))),
            Event::Trained { .. } => self.board.step(),
            _ => {}
        }
        let actions = self.machine.handle(event, self.clock.seconds())?;
        self.carry_out(actions);
        Ok(())
    }

    /// After a stop: lets the training step that is under way come to its end, and goes on until the checkpoints are complete
    /// that are owed, each within its grace.
    async fn wind_down(&mut self) -> Result<(), Error> {
        self.machine.wind_down();
        if !self.machine.owes_checkpoint() {
            self.halt();
        }
        let stopped_at = self.clock.seconds();
        loop {
            let owes = self.machine.owes_checkpoint();
            let grace = match self.machine.training() {
                _ if self.machine.lacks_checkpoint() => self.checkpoint_grace,
                Some(_) => self.stop_grace,
                None => return Ok(()),
            };
            let left = stopped_at + grace.as_secs_f64() - self.clock.seconds();
            let event = next(&mut self.tasks, &mut self.wake);
            let event = tokio::time::timeout(Duration::from_secs_f64(left.max(0.0)), event).await;
            match (event, self.machine.training()) {
                (Ok(Some(event)), _) if owes || matches!(event, Ok(Event::Trained { .. })) => self.take(event)?,
                (Ok(Some(Err(error))), _) if !error.is_cancelled() => self.take(Err(error))?,
                // What was aborted.
                (Ok(Some(_)), _) => {}
                (_, Some(step)) => {
                    tracing::warn!("Stopped during training step {step}, which is given up");
                    return Ok(());
                }
                (_, None) => {
                    tracing::warn!(
                        "A checkpoint that is due is not written: the batches that it has to hold were not complete {} s \
                         after the stop",
                        self.checkpoint_grace.as_secs()
                    );
                    return Ok(());
                }
            }
        }
    }

    /// Starts nothing any more, and aborts all rollouts.
    fn halt(&mut self) {
        self.machine.stop();
        self.rollouts.drain().for_each(|(_, task)| task.abort());
    }

    fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::FetchTask { key, env, index, seed } => self.fetch(key, env, index, seed),
                Action::Start { key, env, plan } => {
                    let parts = self.parts(key.purpose)[env].clone();
                    let member = plan.id.member;
                    let handle = self.tasks.spawn(async move {
                        let finished = Box::new(rollout::run(parts, plan).await);
                        Event::Rollout { key, member, finished }
                    });
                    self.rollouts.insert((key, member), handle);
                }
                Action::Cancel { key, member } => {
                    if let Some(task) = self.rollouts.remove(&(key, member)) {
                        task.abort();
                    }
                }
                Action::ScoreEval { key, env, members } => {
                    let wait = self.board.wait("group of an evaluation", "its score");
                    let env = self.deps.eval[env].clone();
                    self.tasks.spawn(async move {
                        let _wait = wait;
                        Event::EvalScored { key, verdicts: scoring::together(env.as_ref(), &members).await }
                    });
                }
                Action::Score { group, env, step, members } => {
                    let wait = self.board.wait("group", "its score and the algorithm");
                    let TrainDeps { env, algorithm, .. } = self.deps.train[env].clone();
                    self.tasks.spawn(async move {
                        let _wait = wait;
                        Event::Scored { group, judged: scoring::score(env, algorithm, step, members).await }
                    });
                }
                Action::SetPolicy(version) => {
                    let wait = self.board.wait(format!("sampling with policy {version}"), "the weights' arrival");
                    let policy = self.deps.policy.clone();
                    self.tasks.spawn(async move {
                        let _wait = wait;
                        Event::PolicySet { version, result: policy.set_policy(version).await }
                    });
                }
                Action::WakeAt(seconds) => self.wake = Some(self.clock.at(seconds)),
                Action::Train(batch) => {
                    let (trainer, step): (_, Step) = (self.deps.trainer.clone(), batch.step);
                    let wait = self.board.wait(format!("step {step}"), "its training");
                    self.tasks.spawn(async move {
                        let _wait = wait;
                        Event::Trained { step, result: trainer.train(batch).await }
                    });
                }
                Action::Keep(state) => self.deps.trainer.keep(*state),
            }
        }
    }

    fn fetch(&mut self, key: GroupKey, env: usize, index: u64, seed: u64) {
        let handle = self.parts(key.purpose)[env].env.clone();
        let split = match key.purpose {
            Purpose::Train => self.splits.train[env].clone(),
            Purpose::Eval => self.splits.eval[env].clone(),
        };
        let wait = self.board.wait("group", format!("its task of `{split}`"));
        self.tasks.spawn(async move {
            let _wait = wait;
            Event::Task { key, task: handle.task(&split, index, seed).await.map(Box::new) }
        });
    }

    fn parts(&self, purpose: Purpose) -> &[Arc<Parts>] {
        match purpose {
            Purpose::Train => &self.train,
            Purpose::Eval => &self.eval,
        }
    }
}

/// What happens next: something under way has ended, or the time has come at which the machine wants to be woken.
async fn next(tasks: &mut JoinSet<Event>, wake: &mut Option<Instant>) -> Option<Result<Event, JoinError>> {
    tokio::select! {
        biased;
        () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {
            *wake = None;
            Some(Ok(Event::Tick))
        }
        Some(event) = tasks.join_next() => Some(event),
        else => None,
    }
}

/// A task that ends with whoever started it.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The next tick, `None` at once where there are none.
async fn tick(interval: &mut Option<Interval>) -> Option<()> {
    interval.as_mut()?.tick().await;
    Some(())
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => match payload.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => payload.downcast_ref::<&str>().map_or("unknown", |text| text).to_owned(),
        },
        Err(error) => error.to_string(),
    }
}
