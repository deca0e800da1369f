//! One rollout, from the environment's start to its score: the multi-turn loop. Token ids only ever grow: a turn's
//! sampled ids are kept verbatim, and the next prompt either extends them or starts another sample. Knows nothing of
//! groups, batches or policy updates.

use crate::clock::Clock;
use crate::seed::derive;
use crate::stall::{Board, Wait};
use crate::{
    Answer, Env, Finished, OpenRequest, Policy, PolicyError, Purpose, Question, Reference, Rendered, Renderer,
    SampleRequest, Sampling, Session, Source, StepInput,
};
use prl_types::{
    EnvTurn, ErrorKind, FinishReason, Message, Metric, PolicyVersion, Rollout, RolloutError, RolloutId, Sample,
    Sampled, SamplingHints, Score, Step, Stop, Streams, Task, TokenId, ToolDef, Truncation, Turn,
};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Turns after which any rollout is cut off.
const MAX_TURNS: u32 = 1000;

/// Cut off by the token limit of a turn.
pub(crate) const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";
/// Cut off by the context length.
pub(crate) const CONTEXT: &str = "context";
/// Cut off by the number of turns.
const TURNS: &str = "max_turns";
/// Cut off by the wall clock.
const TIME: &str = "timeout";

/// What all rollouts of one environment share.
pub(crate) struct Parts {
    pub policy: Arc<dyn Policy>,
    /// Answers instead of the policy.
    pub source: Option<Arc<dyn Source>>,
    pub reference: Option<Arc<dyn Reference>>,
    pub renderer: Arc<dyn Renderer>,
    pub env: Arc<dyn Env>,
    pub sampling: Sampling,
    pub max_turns: Option<u32>,
    pub timeout: Option<Duration>,
    pub seq_len: usize,
    /// Where what is waited for stands.
    pub board: Arc<Board>,
}

/// One rollout to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub purpose: Purpose,
    pub id: RolloutId,
    /// How often it was started before, and failed.
    pub attempt: u32,
    pub group_size: u32,
    pub task: Arc<Task>,
    pub first: Arc<FirstPrompt>,
    pub seed: u64,
    pub step: Step,
    pub version: PolicyVersion,
}

impl Plan {
    /// How its environment is opened.
    fn request(&self) -> OpenRequest {
        OpenRequest {
            purpose: self.purpose,
            id: self.id,
            group_size: self.group_size,
            seed: self.seed,
            step: self.step,
        }
    }

    /// A rollout record with nothing in it yet.
    pub(crate) fn blank(&self) -> Rollout {
        Rollout { attempt: self.attempt, ..Rollout::new(self.id, self.task.clone(), self.version) }
    }

    /// The rollout as a failed one.
    pub(crate) fn failed(&self, kind: ErrorKind, message: impl Into<String>) -> Finished {
        let mut rollout = self.blank();
        rollout.fail(RolloutError { kind, message: message.into() });
        Finished { rollout, opening: Vec::new(), request: self.request(), ended: None }
    }
}

/// The first prompt of a group's members, which is most often the same: rendered by whoever comes first.
#[derive(Debug, Default)]
pub(crate) struct FirstPrompt(OnceLock<(Vec<Message>, Vec<ToolDef>, Rendered)>);

impl FirstPrompt {
    /// What `render` makes of the conversation, or made of the same one for another member.
    fn get(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        render: impl FnOnce() -> Result<Rendered, String>,
    ) -> Result<Rendered, String> {
        if let Some((same, offered, rendered)) = self.0.get()
            && same == messages
            && offered == tools
        {
            return Ok(rendered.clone());
        }
        let rendered = render()?;
        self.0.get_or_init(|| (messages.to_vec(), tools.to_vec(), rendered.clone()));
        Ok(rendered)
    }
}

/// Runs a rollout. Whatever goes wrong ends up in its `error`.
pub(crate) async fn run(parts: Arc<Parts>, plan: Plan) -> Finished {
    let clock = Clock::start();
    let wait = parts.board.wait(format!("rollout of {}", plan.task.env), "the environment's start");
    let mut record = Record { rollout: plan.blank(), opening: Vec::new(), metrics: Vec::new(), ended: None };
    let result = drive(&parts, &plan, &mut record, (clock, &wait)).await;
    let Record { mut rollout, opening, metrics, ended } = record;
    rollout.score.take_counted(metrics);
    let result = match result {
        Ok(()) => {
            wait.now("reference log-probabilities");
            refer(&parts, &mut rollout).await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = result {
        rollout.fail(error);
    }
    rollout.timing.total = clock.seconds();
    Finished { rollout, opening, request: plan.request(), ended }
}

/// Has the reference score a rollout, if there is one.
async fn refer(parts: &Parts, rollout: &mut Rollout) -> Result<(), RolloutError> {
    let Some(reference) = &parts.reference else { return Ok(()) };
    let error = |message| RolloutError { kind: ErrorKind::ProviderError, message };
    let scored =
        reference.logprobs(rollout).await.map_err(|e| error(format!("no reference log-probabilities: {e}")))?;
    if scored.len() != rollout.samples.len() {
        let (got, want) = (scored.len(), rollout.samples.len());
        return Err(error(format!("the reference scored {got} samples of {want}")));
    }
    for (sample, logprobs) in rollout.samples.iter().zip(scored) {
        let streams = Streams { ref_logprobs: logprobs, ..Streams::default() };
        streams.validate(sample.len()).map_err(|e| error(format!("the reference's answer: {e}")))?;
        rollout.streams.push(streams);
    }
    Ok(())
}

/// Σ components plus per-turn rewards.
///
/// # Errors
/// Names the first value that is not a number or too large.
pub(crate) fn total_reward(score: &Score, turns: &[Turn]) -> Result<f64, RolloutError> {
    for c in &score.components {
        check_value(&format!("reward component `{}`", c.name), c.value)?;
        check_value(&format!("the weight of reward component `{}`", c.name), c.weight)?;
    }
    check_metrics(&score.metrics)?;
    let total = score.reward(turns);
    check_value("the total reward", total)?;
    Ok(total)
}

struct Record {
    rollout: Rollout,
    opening: Vec<Message>,
    metrics: Vec<Metric>,
    ended: Option<String>,
}

impl Record {
    fn take_metrics(&mut self, turn: &EnvTurn) -> Result<(), RolloutError> {
        Metric::add_all(&mut self.metrics, &turn.metrics);
        check_metrics(&self.metrics)
    }

    fn take_reply(&mut self, reply: &EnvTurn) -> Result<(), RolloutError> {
        if let Some(reward) = reply.reward {
            check_value("the turn's reward", reward)?;
        }
        if let Some(last) = self.rollout.turns.last_mut() {
            last.reward = reply.reward;
            last.replies.clone_from(&reply.messages);
        }
        self.take_metrics(reply)
    }

    fn truncate(&mut self, reason: &str) {
        self.rollout.truncation = Some(Truncation { reason: reason.to_owned() });
    }
}

/// The branch being sampled: all of its ids, and the part of them that no sampled turn has followed yet.
struct Branch {
    ids: Vec<TokenId>,
    pending: Option<Pending>,
}

enum Pending {
    Prompt(Rendered),
    Tail(Rendered),
}

impl Branch {
    fn new(prompt: Rendered) -> Self {
        Branch { ids: prompt.ids.clone(), pending: Some(Pending::Prompt(prompt)) }
    }

    fn extend(&mut self, tail: Rendered) {
        self.ids.extend_from_slice(&tail.ids);
        self.pending = Some(Pending::Tail(tail));
    }

    /// Adds the rollout's next sampled turn to the branch's sample, which starts with its first.
    fn push(&mut self, sampled: &Sampled, temperature: f32, rollout: &mut Rollout) {
        let (samples, branches) = (&mut rollout.samples, &mut rollout.branches);
        match self.pending.take() {
            Some(Pending::Prompt(p)) => {
                samples.push(Sample::from_prompt(&p.ids, p.spans, temperature));
                branches.push(prl_types::Branch { first: rollout.turns.len(), ..Default::default() });
            }
            Some(Pending::Tail(tail)) => {
                if let Some(sample) = samples.last_mut() {
                    sample.push_context(&tail.ids, &tail.spans);
                }
            }
            None => {}
        }
        if let (Some(sample), Some(branch)) = (samples.last_mut(), branches.last_mut()) {
            sample.push_sampled(sampled);
            branch.turns += 1;
            branch.tokens = sample.len();
        }
        self.ids.extend_from_slice(sampled.ids());
    }
}

async fn drive(
    parts: &Parts,
    plan: &Plan,
    record: &mut Record,
    (clock, wait): (Clock, &Wait),
) -> Result<(), RolloutError> {
    let until = parts.timeout.map(|timeout| Instant::now() + timeout);
    let mut session = parts.env.open(plan.task.clone(), plan.request()).await.map_err(env_error)?;
    let start = session.start().await.map_err(env_error)?;
    record.rollout.timing.setup = clock.seconds();
    record.take_metrics(&start)?;
    record.opening.clone_from(&start.messages);

    let mut messages = plan.task.prompt.clone();
    messages.extend(start.messages);
    let tools = start.tools.unwrap_or_else(|| plan.task.tools.clone());
    let mut stop = start.stop;
    if stop.is_none() {
        let talk = Talk { messages, tools, hints: start.sampling, until };
        let result = converse(parts, plan, record, (session.as_mut(), wait), talk).await;
        record.rollout.timing.generation = clock.seconds() - record.rollout.timing.setup;
        stop = result?;
    }
    if record.rollout.turns.is_empty() {
        let message = match &record.rollout.truncation {
            Some(cut) => format!("the rollout was cut off ({}) before the first turn", cut.reason),
            None => "the environment ended the rollout before the first turn".into(),
        };
        return Err(RolloutError { kind: ErrorKind::EmptyTrajectory, message });
    }
    if let Some(stop) = &stop {
        record.rollout.stop_condition.clone_from(&stop.reason);
        if stop.truncated && record.rollout.truncation.is_none() {
            record.truncate(&stop.reason);
        }
    } else if let Some(truncation) = &record.rollout.truncation {
        record.rollout.stop_condition.clone_from(&truncation.reason);
    }
    let before = clock.seconds();
    wait.now("the environment's score");
    let reason = record.rollout.truncation.as_ref().map(|t| t.reason.clone());
    let score = session.score(reason).await.map_err(env_error)?;
    record.rollout.timing.scoring = clock.seconds() - before;
    record.rollout.reward = total_reward(&score, &record.rollout.turns)?;
    record.rollout.score = score;
    Ok(())
}

/// What the next turn is sampled from and with.
struct Talk {
    messages: Vec<Message>,
    tools: Vec<ToolDef>,
    hints: SamplingHints,
    /// When the rollout is cut off.
    until: Option<Instant>,
}

async fn converse(
    parts: &Parts,
    plan: &Plan,
    record: &mut Record,
    (session, wait): (&mut dyn Session, &Wait),
    talk: Talk,
) -> Result<Option<Stop>, RolloutError> {
    let Talk { mut messages, mut tools, mut hints, until } = talk;
    // Greedy turns have their logprobs at temperature 1.
    let temperature = if parts.sampling.temperature == 0.0 { 1.0 } else { parts.sampling.temperature };
    let max_turns = [parts.max_turns, plan.task.max_turns].into_iter().flatten().min().unwrap_or(MAX_TURNS);
    let max_turns = max_turns.clamp(1, MAX_TURNS);
    let prompt = plan.first.get(&messages, &tools, || parts.renderer.render(&messages, &tools));
    let mut branch = Branch::new(prompt.map_err(render_error)?);
    for turn in 0..max_turns {
        let room = parts.seq_len.saturating_sub(branch.ids.len());
        let limits = [parts.sampling.max_completion_tokens, hints.max_tokens.map(|tokens| tokens as usize)];
        let max_tokens = limits.into_iter().flatten().fold(room, usize::min);
        let stop = std::mem::take(&mut hints).stop;
        let talk = (messages.as_slice(), tools.as_slice());
        let drawn = sample(parts, plan, record, (turn, max_turns), &branch.ids, talk, max_tokens, stop);
        wait.now("the model's turn");
        let drawn = match until {
            Some(until) => timeout_at(until, drawn).await.ok(),
            None => Some(drawn.await),
        };
        let (sampled, message) = match drawn {
            Some(Ok(said)) => said,
            Some(Err(PolicyError::Overlong { .. })) if turn > 0 => {
                record.truncate(CONTEXT);
                break;
            }
            Some(Err(error)) => {
                if let PolicyError::Ended(reason) = &error {
                    record.ended = Some(reason.clone());
                }
                return Err(policy_error(&error));
            }
            None => {
                record.truncate(TIME);
                break;
            }
        };
        check_sampled(&sampled, max_tokens)?;
        branch.push(&sampled, temperature, &mut record.rollout);
        messages.push(message.clone());
        let tokens = sampled.ids().len();
        record.rollout.turns.push(Turn { message: message.clone(), tokens, reward: None, replies: Vec::new() });
        let context_left = parts.seq_len - branch.ids.len();
        let turns_left = max_turns - turn - 1;
        let input = StepInput { message, finish: sampled.finish().clone(), tokens, context_left, turns_left };
        wait.now("the environment's answer");
        let reply = session.step(input).await.map_err(env_error)?;
        record.take_reply(&reply)?;
        let cut = *sampled.finish() == FinishReason::Length;
        if cut {
            record.truncate(if max_tokens == room { CONTEXT } else { MAX_COMPLETION_TOKENS });
        }
        if cut || reply.stop.is_some() {
            return Ok(reply.stop);
        }
        if turn + 1 == max_turns {
            record.truncate(TURNS);
            break;
        }
        let same_tools = reply.tools.as_ref().is_none_or(|new| *new == tools);
        let tail = match same_tools {
            true => parts.renderer.bridge(&branch.ids, &reply.messages, &tools).map_err(render_error)?,
            false => None,
        };
        messages.extend(reply.messages);
        if let Some(new) = reply.tools {
            tools = new;
        }
        hints = reply.sampling;
        match tail {
            Some(tail) => branch.extend(tail),
            None => branch = Branch::new(parts.renderer.render(&messages, &tools).map_err(render_error)?),
        }
    }
    Ok(None)
}

/// One turn, as ids and as a message.
async fn sample(
    parts: &Parts,
    plan: &Plan,
    record: &mut Record,
    (turn, max_turns): (u32, u32),
    ids: &[TokenId],
    (messages, tools): (&[Message], &[ToolDef]),
    max_tokens: usize,
    stop: Vec<String>,
) -> Result<(Sampled, Message), PolicyError> {
    if max_tokens == 0 {
        return Err(PolicyError::Overlong { prompt: ids.len(), limit: parts.seq_len });
    }
    let sampling = Sampling { stop: [parts.sampling.stop.clone(), stop].concat(), ..parts.sampling.clone() };
    let seed = derive(plan.seed, "turn", u64::from(turn), 0);
    if let Some(source) = &parts.source {
        let clock = Clock::start();
        let question = Question { messages, tools, sampling: &sampling, max_tokens, seed };
        let answer = source.answer(question).await;
        record.rollout.timing.model += clock.seconds();
        return answered(parts, question, answer.map_err(PolicyError::Engine)?);
    }
    let request = SampleRequest {
        prompt: ids.into(),
        sampling,
        max_tokens,
        stop_token_ids: parts.renderer.stop_token_ids(),
        seed,
        shared_prompt: plan.group_size > 1 && turn == 0,
        goes_on: parts.env.multi_turn() && turn + 1 < max_turns,
        eval: plan.purpose == Purpose::Eval,
    };
    let clock = Clock::start();
    let sampled = parts.policy.sample(request).await;
    record.rollout.timing.model += clock.seconds();
    let sampled = sampled?;
    let message = parts.renderer.parse(&sampled, tools);
    Ok((sampled, message))
}

/// The answer of a model outside the run as ids, at most as many as were asked for.
fn answered(parts: &Parts, question: Question<'_>, answer: Answer) -> Result<(Sampled, Message), PolicyError> {
    let Answer { message, cut } = answer;
    let ids = parts.renderer.answer(question.messages, question.tools, &message, cut);
    let mut ids = ids.map_err(|e| PolicyError::Engine(format!("the answer cannot be rendered: {e}")))?;
    // Another tokenizer counts differently.
    let longer = ids.len() > question.max_tokens;
    ids.truncate(question.max_tokens);
    let finish = match ids.last() {
        Some(last) if !cut && !longer => FinishReason::StopToken(*last),
        _ => FinishReason::Length,
    };
    Ok((Sampled::from_text(ids, finish), message))
}

fn check_sampled(sampled: &Sampled, max_tokens: usize) -> Result<(), RolloutError> {
    let error = |kind, message: String| Err(RolloutError { kind, message });
    match (sampled.finish(), sampled.ids().len()) {
        (FinishReason::Aborted, _) => error(ErrorKind::Cancelled, "sampling was aborted".into()),
        (_, 0) => error(ErrorKind::EmptyTrajectory, "the engine sampled no token".into()),
        (_, n) if n > max_tokens => {
            error(ErrorKind::ProviderError, format!("the engine sampled {n} tokens where {max_tokens} were allowed"))
        }
        _ => Ok(()),
    }
}

fn check_metrics(metrics: &[Metric]) -> Result<(), RolloutError> {
    metrics.iter().try_for_each(|m| check_value(&format!("metric `{}`", m.name), m.value))
}

fn check_value(what: &str, value: f64) -> Result<(), RolloutError> {
    prl_types::check_value(what, value).map_err(env_error)
}

fn env_error(message: String) -> RolloutError {
    RolloutError { kind: ErrorKind::EnvError, message }
}

fn render_error(message: String) -> RolloutError {
    RolloutError {
        kind: ErrorKind::ProviderError,
        message: format!("the conversation could not be rendered: {message}"),
    }
}

fn policy_error(error: &PolicyError) -> RolloutError {
    let kind = match error {
        PolicyError::Overlong { .. } => ErrorKind::OverlongPromptError,
        PolicyError::Cancelled => ErrorKind::Cancelled,
        PolicyError::Engine(_) | PolicyError::Ended(_) => ErrorKind::ProviderError,
    };
    RolloutError { kind, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_types::Role;

    #[test]
    fn the_first_prompt_is_rendered_once_for_all_who_begin_alike() {
        let (first, renders) = (FirstPrompt::default(), std::cell::Cell::new(0));
        let get = |text: &str| {
            let render = || {
                renders.set(renders.get() + 1);
                let ids = text.bytes().map(TokenId::from).collect();
                if text.is_empty() { Err("nothing".to_owned()) } else { Ok(Rendered { ids, spans: Vec::new() }) }
            };
            first.get(&[Message::text(Role::User, text)], &[], render).map(|rendered| rendered.ids)
        };
        // A failure is not kept, and another beginning gets its own.
        assert_eq!((get(""), renders.get()), (Err("nothing".into()), 1));
        assert_eq!((get("a"), get("a"), renders.get()), (Ok(vec![97]), Ok(vec![97]), 2));
        assert_eq!((get("b"), get("a"), renders.get()), (Ok(vec![98]), Ok(vec![97]), 3));
    }
}
