//! One rollout with something else than the engine in the model's place: a script, a person, a server. Owns the loop of
//! turns and its limits, which are the orchestrator's in messages instead of tokens; must not know who speaks.

use super::record::{Answer, Environment, Replay, Turn, finish_name};
use futures::future::BoxFuture;
use prl_environment::{Completion, EnvError, Finish, GroupMember, Pool, RolloutContext, Tape};
use prl_types::{
    ErrorKind, GroupId, Message, Metric, PolicyVersion, Rollout, RolloutError, RolloutId, SamplingHints, Score, Task,
    ToolDef, Truncation,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Turns after which any rollout is cut off, as in a run.
const MAX_TURNS: u32 = 1000;

/// What a speaker is asked.
pub struct Asked<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// Tools it may call.
    pub tools: &'a [ToolDef],
    /// The environment's wishes.
    pub hints: &'a SamplingHints,
    /// Which turn, from 0.
    pub turn: u32,
}

/// What it says.
pub struct Said {
    /// The turn.
    pub message: Message,
    /// Why it ended.
    pub finish: Finish,
    /// Its tokens.
    pub tokens: u32,
}

impl Said {
    /// A turn that ended by itself. A token is taken to be four characters, where nobody counted.
    pub fn new(message: Message) -> Self {
        let finish = if message.tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
        let tokens = u32::try_from(message.content.chars().count() / 4 + 1).unwrap_or(u32::MAX);
        Said { message, finish, tokens }
    }
}

/// Speaks for the model.
pub trait Speaker: Send {
    /// The next turn.
    ///
    /// # Errors
    /// Ends the rollout as failed.
    fn say<'a>(&'a mut self, asked: Asked<'a>) -> BoxFuture<'a, Result<Said, RolloutError>>;

    /// Is told what the environment answered, the opening first.
    fn hear(&mut self, _answer: &Answer) {}
}

/// Which rollout of which task.
#[derive(Clone)]
pub struct Plan {
    /// The task.
    pub task: Arc<Task>,
    /// Group and place in it.
    pub id: RolloutId,
    /// Rollouts in the group.
    pub group_size: u32,
    /// Seed of the environment's randomness.
    pub seed: u64,
    /// Whether it is an evaluation.
    pub eval: bool,
    /// Bound on turns beside the task's.
    pub max_turns: Option<u32>,
}

impl Plan {
    /// A rollout alone.
    pub fn alone(task: Arc<Task>, seed: u64) -> Self {
        let id = RolloutId { group: GroupId(0), member: 0 };
        Plan { task, id, group_size: 1, seed, eval: true, max_turns: None }
    }

    fn context(&self) -> RolloutContext {
        RolloutContext {
            id: self.id.to_string(),
            seed: self.seed,
            member: self.id.member,
            group_size: self.group_size,
            step: 0,
            eval: self.eval,
        }
    }
}

/// A rollout that was played.
pub struct Played {
    /// As runs have it, without token ids.
    pub rollout: Rollout,
    /// What the log keeps beside it.
    pub replay: Replay,
    /// The longest that a call into the environment took.
    pub slowest: Duration,
    context: RolloutContext,
}

impl Played {
    /// Hash of all that the environment said.
    pub fn digest(&self) -> String {
        self.replay.digest()
    }

    /// As a member of its group.
    pub fn member(&self) -> GroupMember {
        let rollout = &self.rollout;
        GroupMember {
            context: self.context.clone(),
            messages: rollout.conversation(self.replay.opening.iter().flat_map(|opening| &opening.messages)),
            truncated: rollout.truncation.as_ref().map(|cut| cut.reason.clone()),
            score: rollout.score.clone(),
            reward: rollout.reward,
        }
    }

    /// Replaces its score by one of its group.
    pub fn rescore(&mut self, score: Score) {
        self.rollout.reward = score.reward(&self.rollout.turns);
        self.rollout.score = score;
    }

    /// Marks it as failed.
    pub fn fail(&mut self, message: String) {
        self.rollout.fail(RolloutError { kind: ErrorKind::EnvError, message });
    }
}

/// Plays one rollout to its score. Whatever goes wrong ends up in its `error`.
pub async fn play(pool: &Pool, plan: &Plan, environment: &Environment, speaker: &mut dyn Speaker) -> Played {
    let context = plan.context();
    let mut played = Played {
        rollout: Rollout::new(plan.id, plan.task.clone(), PolicyVersion(0)),
        replay: Replay {
            prl: env!("CARGO_PKG_VERSION").into(),
            env: environment.clone(),
            context: context.clone(),
            ..Replay::default()
        },
        slowest: Duration::ZERO,
        context,
    };
    let (started, tape) = (Instant::now(), environment.tape());
    let mut metrics = Vec::new();
    if let Err(error) = drive(pool, plan, &mut played, &mut metrics, (speaker, &tape)).await {
        played.rollout.fail(error);
    }
    played.replay.services = environment.served(&tape);
    played.rollout.score.take_counted(metrics);
    played.rollout.timing.total = started.elapsed().as_secs_f64();
    played
}

async fn drive(
    pool: &Pool,
    plan: &Plan,
    played: &mut Played,
    metrics: &mut Vec<Metric>,
    (speaker, tape): (&mut dyn Speaker, &Tape),
) -> Result<(), RolloutError> {
    let Played { rollout, replay, slowest, context } = played;
    let mut clock = Clock { slowest };
    let opened = clock.of(pool.open_taped(&plan.task, context.clone(), tape.clone())).await;
    let mut session = opened.map_err(|error| failed(replay, error))?;
    let start = clock.of(session.start()).await.map_err(|error| failed(replay, error))?;
    let mut hints = start.sampling.clone();
    let opening = Answer::from(start);
    speaker.hear(&opening);
    Metric::add_all(metrics, &opening.metrics);
    let mut messages = plan.task.prompt.clone();
    messages.extend(opening.messages.iter().cloned());
    let mut tools = opening.tools.clone().unwrap_or_else(|| plan.task.tools.clone());
    let mut stop = opening.stop.clone();
    replay.opening = Some(opening);
    let max_turns = [plan.max_turns, plan.task.max_turns].into_iter().flatten().min().unwrap_or(MAX_TURNS);
    let max_turns = max_turns.clamp(1, MAX_TURNS);
    let mut cut = None;
    for turn in 0..max_turns {
        if stop.is_some() {
            break;
        }
        let asked = Asked { messages: &messages, tools: &tools, hints: &hints, turn };
        let before = Instant::now();
        let said = speaker.say(asked).await?;
        rollout.timing.model += before.elapsed().as_secs_f64();
        messages.push(said.message.clone());
        rollout.turns.push(prl_types::Turn {
            message: said.message.clone(),
            tokens: said.tokens as usize,
            reward: None,
            replies: Vec::new(),
        });
        let turns_left = Some(max_turns - turn - 1);
        replay.turns.push(Turn {
            finish: finish_name(said.finish).into(),
            tokens: said.tokens,
            context_left: None,
            turns_left,
            ids: Vec::new(),
            answer: None,
        });
        let (finish, tokens) = (said.finish, said.tokens);
        let completion = Completion { message: said.message, finish, tokens, context_left: None, turns_left };
        let reply = clock.of(session.step(completion)).await.map_err(|error| failed(replay, error))?;
        hints = reply.sampling.clone();
        let answer = Answer::from(reply);
        speaker.hear(&answer);
        Metric::add_all(metrics, &answer.metrics);
        if let Some(last) = rollout.turns.last_mut() {
            last.reward = answer.reward;
            last.replies.clone_from(&answer.messages);
        }
        messages.extend(answer.messages.iter().cloned());
        if let Some(new) = &answer.tools {
            tools.clone_from(new);
        }
        stop.clone_from(&answer.stop);
        if let Some(last) = replay.turns.last_mut() {
            last.answer = Some(answer);
        }
        if finish == Finish::Length {
            cut = Some("max_completion_tokens".to_owned());
            break;
        }
        if turn + 1 == max_turns && stop.is_none() {
            cut = Some("max_turns".to_owned());
        }
    }
    if rollout.turns.is_empty() {
        let message = "the environment ended the rollout before the first turn".into();
        return Err(RolloutError { kind: ErrorKind::EmptyTrajectory, message });
    }
    let own_cut = stop.as_ref().filter(|stop| stop.truncated).map(|stop| stop.reason.clone());
    rollout.truncation = cut.clone().or(own_cut).map(|reason| Truncation { reason });
    rollout.stop_condition = stop.map(|stop| stop.reason).or(cut).unwrap_or_default();
    replay.truncated = rollout.truncation.as_ref().map(|cut| cut.reason.clone());
    let score = clock.of(session.score(replay.truncated.as_deref())).await.map_err(|error| failed(replay, error))?;
    rollout.reward = score.reward(&rollout.turns);
    replay.score = Some(score.clone());
    rollout.score = score;
    Ok(())
}

/// Takes the time of calls.
struct Clock<'a> {
    slowest: &'a mut Duration,
}

impl Clock<'_> {
    async fn of<T>(&mut self, call: impl Future<Output = T>) -> T {
        let before = Instant::now();
        let result = call.await;
        *self.slowest = before.elapsed().max(*self.slowest);
        result
    }
}

fn failed(replay: &mut Replay, error: EnvError) -> RolloutError {
    replay.error = Some(error.to_string());
    RolloutError { kind: error.kind(), message: error.to_string() }
}
