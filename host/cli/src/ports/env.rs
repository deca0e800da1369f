//! A pool of sandboxed instances as the orchestrator's environment.

use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{Completion, EnvError, Finish, GroupMember, Pool, RolloutContext, Tape};
use prl_orchestrator::{Env, Finished, OpenRequest, Purpose, Session, StepInput};
use prl_types::{EnvTurn, Score, Task};
use std::sync::Arc;

/// A configured environment.
pub struct PoolEnv(pub Pool);

fn text(error: EnvError) -> String {
    error.to_string()
}

impl Env for PoolEnv {
    fn split_size(&self, split: &str) -> Result<Option<u64>, String> {
        match self.0.info().split(split) {
            Some(split) => Ok(split.size),
            None => {
                let known: Vec<&str> = self.0.info().splits.iter().map(|s| s.name.as_str()).collect();
                Err(format!("environment `{}` has no split `{split}`; it has {}", self.0.name(), known.join(", ")))
            }
        }
    }

    fn task<'a>(&'a self, split: &'a str, index: u64, seed: u64) -> BoxFuture<'a, Result<Task, String>> {
        async move { self.0.task(split, index, seed).await.map_err(text) }.boxed()
    }

    fn open(&self, task: Arc<Task>, request: OpenRequest) -> BoxFuture<'_, Result<Box<dyn Session>, String>> {
        self.open_taped(task, request, Tape::default()).boxed()
    }

    fn multi_turn(&self) -> bool {
        self.0.info().features.multi_turn
    }

    fn group_scoring(&self) -> bool {
        self.0.info().features.group_scoring
    }

    fn score_group<'a>(
        &'a self,
        task: &'a Task,
        members: &'a [&'a Finished],
    ) -> BoxFuture<'a, Result<Vec<Score>, String>> {
        self.score_group_taped(task, members, Tape::default()).boxed()
    }
}

impl PoolEnv {
    /// As [`Env::open`], with requests of services on a tape.
    pub async fn open_taped(
        &self,
        task: Arc<Task>,
        request: OpenRequest,
        tape: Tape,
    ) -> Result<Box<dyn Session>, String> {
        let session = self.0.open_taped(&task, context(&request), tape).await.map_err(text)?;
        Ok(Box::new(PoolSession(Some(session))))
    }

    /// As [`Env::score_group`], with requests of services on a tape.
    pub async fn score_group_taped(
        &self,
        task: &Task,
        members: &[&Finished],
        tape: Tape,
    ) -> Result<Vec<Score>, String> {
        let members: Vec<GroupMember> = members.iter().map(|m| member(m)).collect();
        self.0.score_group_taped(task, &members, tape).await.map_err(text)
    }
}

/// What a rollout is told about itself.
pub fn context(request: &OpenRequest) -> RolloutContext {
    RolloutContext {
        id: request.id.to_string(),
        seed: request.seed,
        member: request.id.member,
        group_size: request.group_size,
        step: request.step,
        eval: request.purpose == Purpose::Eval,
    }
}

fn member(finished: &Finished) -> GroupMember {
    let rollout = &finished.rollout;
    GroupMember {
        context: context(&finished.request),
        messages: rollout.conversation(&finished.opening),
        truncated: rollout.truncation.as_ref().map(|t| t.reason.clone()),
        score: rollout.score.clone(),
        reward: rollout.reward,
    }
}

/// A live rollout; `None` once it is scored.
struct PoolSession(Option<prl_environment::Session>);

impl PoolSession {
    fn live(&mut self) -> Result<&mut prl_environment::Session, String> {
        self.0.as_mut().ok_or_else(|| "the rollout is already scored".to_owned())
    }
}

impl Session for PoolSession {
    fn start(&mut self) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move { self.live()?.start().await.map_err(text) }.boxed()
    }

    fn step(&mut self, input: StepInput) -> BoxFuture<'_, Result<EnvTurn, String>> {
        async move {
            let finish = Finish::new(&input.finish, &input.message).ok_or("an aborted turn is no turn")?;
            let said = Completion {
                finish,
                tokens: input.tokens as u32,
                context_left: u32::try_from(input.context_left).ok(),
                turns_left: Some(input.turns_left),
                message: input.message,
            };
            self.live()?.step(said).await.map_err(text)
        }
        .boxed()
    }

    fn score(&mut self, truncated: Option<String>) -> BoxFuture<'_, Result<Score, String>> {
        async move {
            let session = self.0.take().ok_or_else(|| "the rollout is already scored".to_owned())?;
            session.score(truncated.as_deref()).await.map_err(text)
        }
        .boxed()
    }
}
