//! Takes down what passes between the orchestrator and its environments, for the rollout log. Owns which record belongs to
//! which rollout; must not change what passes.

use crate::env::record::{Answer, Environment, Replay, Turn, finish_name};
use crate::ports::env::PoolEnv;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{Finish, Pool, Tape as Services};
use prl_orchestrator::{Env, Finished, OpenRequest, Purpose, Session, StepInput};
use prl_types::{EnvTurn, Rollout, RolloutId, Score, Task};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The records of the rollouts under way.
#[derive(Clone, Default)]
pub struct Tapes(Arc<Mutex<BTreeMap<Key, (Tape, Services)>>>);

/// Which rollout.
type Key = (Purpose, String, RolloutId);

/// One of them, which its session goes on writing. Beside it there is what services answered.
type Tape = Arc<Mutex<Replay>>;

impl Tapes {
    /// The environment of `pool` with its records kept here. `args` and `weights` are what the pool was started with.
    pub fn env(&self, pool: Pool, args: serde_json::Value, weights: BTreeMap<String, f64>) -> Arc<dyn Env> {
        let about = Environment::of(&pool, args, weights);
        Arc::new(Taped { env: PoolEnv(pool), about, tapes: self.clone() })
    }

    /// Takes the record of a rollout out.
    pub fn take(&self, purpose: Purpose, rollout: &Rollout) -> Option<Replay> {
        let key = (purpose, rollout.task.env.clone(), rollout.id);
        let (tape, services) = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key)?;
        let mut replay = tape.lock().unwrap_or_else(PoisonError::into_inner).clone();
        replay.services = replay.env.served(&services);
        Some(replay)
    }

    fn insert(&self, key: Key, tape: &Tape, services: &Services) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, (tape.clone(), services.clone()));
    }

    fn of(&self, key: &Key) -> Option<Tape> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).map(|(tape, _)| tape.clone())
    }
}

struct Taped {
    env: PoolEnv,
    about: Environment,
    tapes: Tapes,
}

impl Env for Taped {
    fn split_size(&self, split: &str) -> Result<Option<u64>, String> {
        self.env.split_size(split)
    }

    fn task<'a>(&'a self, split: &'a str, index: u64, seed: u64) -> BoxFuture<'a, Result<Task, String>> {
        self.env.task(split, index, seed)
    }

    fn open(&self, task: Arc<Task>, request: OpenRequest) -> BoxFuture<'_, Result<Box<dyn Session>, String>> {
        let tape = Arc::new(Mutex::new(Replay {
            prl: env!("CARGO_PKG_VERSION").into(),
            env: self.about.clone(),
            context: super::env::context(&request),
            ..Replay::default()
        }));
        let services = self.about.tape();
        self.tapes.insert((request.purpose, task.env.clone(), request.id), &tape, &services);
        let opening = self.env.open_taped(task, request, services);
        async move {
            match opening.await {
                Ok(session) => Ok(Box::new(TapedSession { session, tape }) as Box<dyn Session>),
                Err(error) => Err(failed(&tape, error)),
            }
        }
        .boxed()
    }

    fn group_scoring(&self) -> bool {
        self.env.group_scoring()
    }

    fn score_group<'a>(
        &'a self,
        task: &'a Task,
        members: &'a [&'a Finished],
    ) -> BoxFuture<'a, Result<Vec<Score>, String>> {
        async move {
            let services = self.about.tape();
            let scores = self.env.score_group_taped(task, members, services.clone()).await;
            let first = members.first().map(|first| (first.request.purpose, task.env.clone(), first.request.id));
            if let Some(tape) = first.and_then(|key| self.tapes.of(&key)) {
                write(&tape, |replay| replay.group_services = self.about.served(&services));
            }
            scores
        }
        .boxed()
    }
}

fn write(tape: &Tape, work: impl FnOnce(&mut Replay)) {
    work(&mut tape.lock().unwrap_or_else(PoisonError::into_inner));
}

fn failed(tape: &Tape, error: String) -> String {
    write(tape, |replay| replay.error = Some(error.clone()));
    error
}

struct TapedSession {
    session: Box<dyn Session>,
    tape: Tape,
}

impl Session for TapedSession {
    fn start(&mut self) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move {
            let turn = self.session.start().await.map_err(|error| failed(&self.tape, error))?;
            write(&self.tape, |replay| replay.opening = Some(Answer::from(turn.clone())));
            Ok(turn)
        }
        .boxed()
    }

    fn step(&mut self, input: StepInput) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move {
            let said = Turn {
                finish: Finish::new(&input.finish, &input.message).map_or("aborted", finish_name).into(),
                tokens: input.tokens as u32,
                context_left: u32::try_from(input.context_left).ok(),
                turns_left: Some(input.turns_left),
                ids: Vec::new(),
                answer: None,
            };
            write(&self.tape, |replay| replay.turns.push(said));
            let turn = self.session.step(input).await.map_err(|error| failed(&self.tape, error))?;
            write(&self.tape, |replay| {
                if let Some(last) = replay.turns.last_mut() {
                    last.answer = Some(Answer::from(turn.clone()));
                }
            });
            Ok(turn)
        }
        .boxed()
    }

    fn score(&mut self, truncated: Option<String>) -> BoxFuture<'_, Result<Score, String>> {
        async move {
            write(&self.tape, |replay| replay.truncated.clone_from(&truncated));
            let score = self.session.score(truncated).await.map_err(|error| failed(&self.tape, error))?;
            write(&self.tape, |replay| replay.score = Some(score.clone()));
            Ok(score)
        }
        .boxed()
    }
}
