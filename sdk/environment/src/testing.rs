//! Runs an environment natively, without a host: for its own tests. Owns the same checks on what it gives that a host
//! makes, so that what passes here is not refused there.
//!
//! ```ignore
//! let harness = Harness::<Sums>::new("{}")?;
//! let task = harness.task("eval", 0, 0)?;
//! assert_eq!(harness.answer(&task, "42")?.reward, 0.0);
//! harness.conforms(20)?;
//! ```

use crate::services::{STAND_IN, Services};
use crate::{
    Completion, Environment, Error, Features, FinishReason, Finished, Info, Message, NamedValue, Result, Role, Rollout,
    RolloutContext, Score, StopKind, Task, ToolDef, Turn,
};
use serde_json::Value;
use std::collections::HashSet;
use std::rc::Rc;

/// Turns after which an attempt is cut off where the task sets no bound.
const MAX_TURNS: u32 = 100;
/// Largest magnitude of a value.
const MAX_VALUE: f64 = 1e9;

/// Puts `services` in the host's place for this thread.
pub fn serve(services: impl Services + 'static) {
    STAND_IN.set(Some(Box::new(services)));
}

/// A configured environment.
pub struct Harness<E: Environment> {
    environment: Rc<E>,
    info: Info,
    args: String,
}

/// An attempt from its start to its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// The whole conversation, prompt included.
    pub messages: Vec<Message>,
    /// What the environment said, `start` first.
    pub turns: Vec<Turn>,
    /// The final rubric.
    pub score: Score,
    /// Σ value·weight plus the rewards of turns.
    pub reward: f64,
    /// The environment's reason to stop, if it did.
    pub stop: Option<String>,
    /// Why the attempt was cut off, if it was.
    pub truncated: Option<String>,
}

impl Played {
    /// The component or metric of this name; 0 without one.
    pub fn value(&self, name: &str) -> f64 {
        let all = self.score.components.iter().chain(&self.score.metrics);
        all.into_iter().find(|value| value.name == name).map_or(0.0, |value| value.value)
    }

    /// As a member of a group.
    pub fn finished(&self, member: u32, group_size: u32) -> Finished {
        Finished {
            context: context(member, group_size),
            messages: self.messages.clone(),
            truncated: self.truncated.clone(),
            score: self.score.clone(),
            reward: self.reward,
        }
    }
}

/// The context of a member of a group; member 0 of a group of 1 is what [`Harness::play`] uses.
pub fn context(member: u32, group_size: u32) -> RolloutContext {
    RolloutContext { id: format!("0.{member}"), seed: u64::from(member), member, group_size, step: 0, eval: false }
}

fn bad<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::internal(text))
}

impl<E: Environment> Harness<E> {
    /// Configures the environment with a JSON object.
    ///
    /// # Errors
    /// The environment's own, or a description that a host refuses.
    pub fn new(args: &str) -> Result<Self> {
        check_info(&E::describe())?;
        let environment = Rc::new(E::configure(args)?);
        let info = environment.info();
        check_info(&info)?;
        Ok(Harness { environment, info, args: args.to_owned() })
    }

    /// The environment.
    pub fn environment(&self) -> &E {
        &self.environment
    }

    /// What it says about itself.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// A task.
    ///
    /// # Errors
    /// The environment's own, or a task that a host refuses.
    pub fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let task = self.environment.task(split, index, seed)?;
        if (task.split.as_str(), task.index, task.seed) != (split, index, seed) {
            return bad(format!("asked for task {index} of `{split}`, it gave {} of `{}`", task.index, task.split));
        }
        if task.key.is_empty() || task.prompt.is_empty() {
            return bad("a task needs a key and at least one prompt message");
        }
        json("the payload", &task.payload)?;
        task.answer.as_deref().map_or(Ok(()), |answer| json("the answer", answer))?;
        self.check_tools(&task.tools)?;
        Ok(task)
    }

    /// Plays `task`; `model` is shown the conversation and gives the next assistant message.
    ///
    /// # Errors
    /// The environment's own, or an answer that a host refuses.
    pub fn play(&self, task: &Task, mut model: impl FnMut(&[Message]) -> Message) -> Result<Played> {
        let mut rollout = self.environment.open(task.clone(), context(0, 1))?;
        let max_turns = task.max_turns.unwrap_or(MAX_TURNS).max(1);
        let mut played = Played {
            messages: task.prompt.clone(),
            turns: Vec::new(),
            score: Score::empty(),
            reward: 0.0,
            stop: None,
            truncated: None,
        };
        let mut turn = rollout.start()?;
        self.check_turn(&turn, None)?;
        for taken in 0.. {
            played.messages.extend(turn.messages.iter().cloned());
            played.reward += turn.reward.unwrap_or(0.0);
            let stop = turn.stop.clone();
            played.turns.push(turn);
            if let Some(stop) = stop {
                played.truncated = (stop.kind == StopKind::Truncated).then(|| stop.reason.clone());
                played.stop = Some(stop.reason);
                break;
            }
            if taken == max_turns {
                played.truncated = Some("max_turns".into());
                break;
            }
            let message = model(&played.messages);
            played.messages.push(message.clone());
            let calls = !message.tool_calls.is_empty();
            turn = rollout.step(Completion {
                message: message.clone(),
                finish_reason: if calls { FinishReason::ToolCalls } else { FinishReason::Stop },
                completion_tokens: 1,
                context_left: None,
                turns_left: Some(max_turns - taken - 1),
            })?;
            self.check_turn(&turn, Some(&message))?;
        }
        played.score = rollout.score(played.truncated.as_deref())?;
        self.check_score(&played.score)?;
        played.reward += self.weighted(&played.score);
        Ok(played)
    }

    /// Plays `task` with the same text in every turn.
    ///
    /// # Errors
    /// As [`Harness::play`].
    pub fn answer(&self, task: &Task, text: &str) -> Result<Played> {
        self.play(task, |_| Message::assistant(text))
    }

    /// Plays `task` with these turns, and the last of them again where it wants more.
    ///
    /// # Errors
    /// As [`Harness::play`].
    pub fn script(&self, task: &Task, turns: &[Message]) -> Result<Played> {
        let mut next = 0;
        self.play(task, |_| {
            next += 1;
            turns.get(next - 1).or(turns.last()).cloned().unwrap_or_else(|| Message::assistant(""))
        })
    }

    /// Scores the members of a group together: their scores and total rewards. Without group scoring, as they are.
    ///
    /// # Errors
    /// The environment's own, or scores that a host refuses.
    pub fn group(&self, task: &Task, members: &[Played]) -> Result<Vec<(Score, f64)>> {
        let size = members.len() as u32;
        if !self.info.features.contains(Features::GROUP_SCORING) {
            return Ok(members.iter().map(|member| (member.score.clone(), member.reward)).collect());
        }
        let finished = members.iter().zip(0..).map(|(member, at)| member.finished(at, size)).collect();
        let scores = self.environment.score_group(task.clone(), finished)?;
        if scores.len() != members.len() {
            return bad(format!("{} scores for {size} members", scores.len()));
        }
        let worth = scores.into_iter().zip(members).map(|(score, member)| {
            self.check_score(&score)?;
            let turns: f64 = member.turns.iter().filter_map(|turn| turn.reward).sum();
            let reward = turns + self.weighted(&score);
            Ok((score, reward))
        });
        worth.collect()
    }

    /// Plays the first `tasks` tasks of each split with a few answers, twice in two instances: everything must pass
    /// the checks and, where the environment claims to be deterministic, come out the same.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn conforms(&self, tasks: u64) -> Result<()> {
        let other = Harness::<E>::new(&self.args)?;
        for split in &self.info.splits {
            for index in 0..split.size.map_or(tasks, |size| size.min(tasks)) {
                let task = self.task(&split.name, index, 1)?;
                if task != other.task(&split.name, index, 1)? {
                    return bad(format!("task {index} of `{}` differs between two instances", split.name));
                }
                let call = |arguments: &str| {
                    let name = task.tools.first().map_or("no_such_tool", |tool| tool.name.as_str());
                    Message::calling("call_0", name, arguments)
                };
                let answers = [
                    Message::assistant(task.answer_text()),
                    Message::assistant("\u{fffd}<<<\u{0}"),
                    Message::assistant(""),
                    call("{}"),
                    call("{\"cut\": \"of"),
                ];
                for answer in answers {
                    let answer = std::slice::from_ref(&answer);
                    let (left, right) = (self.script(&task, answer)?, other.script(&task, answer)?);
                    if left != right && self.info.features.contains(Features::DETERMINISTIC) {
                        return bad(format!("task {}: two instances play it differently", task.key));
                    }
                }
            }
        }
        Ok(())
    }

    fn weighted(&self, score: &Score) -> f64 {
        let weight = |name: &str| self.info.components.iter().find(|line| line.name == name).map_or(0.0, |l| l.weight);
        score.components.iter().map(|line| line.value * weight(&line.name)).sum()
    }

    fn check_tools(&self, tools: &[ToolDef]) -> Result<()> {
        if !tools.is_empty() && !self.info.features.contains(Features::TOOLS) {
            return bad("it offers tools, which its features do not say");
        }
        tools.iter().try_for_each(|tool| json(&format!("the schema of tool `{}`", tool.name), &tool.parameters))
    }

    fn check_values(&self, what: &str, values: &[NamedValue], declared: &[&str]) -> Result<()> {
        let mut seen = HashSet::new();
        for value in values {
            if !declared.contains(&value.name.as_str()) {
                return bad(format!("{what} `{}` is not in its description", value.name));
            }
            if !value.value.is_finite() || value.value.abs() > MAX_VALUE {
                return bad(format!("{what} `{}` is {}", value.name, value.value));
            }
            if !seen.insert(&value.name) {
                return bad(format!("{what} `{}` is there twice", value.name));
            }
        }
        Ok(())
    }

    fn check_metrics(&self, values: &[NamedValue]) -> Result<()> {
        let declared: Vec<&str> = self.info.metrics.iter().map(String::as_str).collect();
        self.check_values("metric", values, &declared)
    }

    fn check_turn(&self, turn: &Turn, said: Option<&Message>) -> Result<()> {
        if turn.reward.is_some_and(|reward| !reward.is_finite() || reward.abs() > MAX_VALUE) {
            return bad(format!("the reward of a turn is {:?}", turn.reward));
        }
        if said.is_some() && turn.stop.is_none() {
            if !self.info.features.contains(Features::MULTI_TURN) {
                return bad("it goes on after a turn, but its features do not say `multi-turn`");
            }
            if turn.messages.is_empty() {
                return bad("a turn that goes on needs at least one message");
            }
        }
        for message in turn.messages.iter().filter(|message| message.role == Role::Tool) {
            let calls = said.map(|said| said.tool_calls.as_slice()).unwrap_or_default();
            if !calls.iter().any(|call| Some(&call.id) == message.tool_call_id.as_ref()) {
                return bad(format!("a tool result answers {:?}, which the turn did not call", message.tool_call_id));
            }
        }
        turn.tools.as_deref().map_or(Ok(()), |tools| self.check_tools(tools))?;
        turn.sampling.as_deref().map_or(Ok(()), |hints| json("the sampling hints", hints))?;
        self.check_metrics(&turn.metrics)
    }

    fn check_score(&self, score: &Score) -> Result<()> {
        let declared: Vec<&str> = self.info.components.iter().map(|line| line.name.as_str()).collect();
        self.check_values("reward component", &score.components, &declared)?;
        score.info.as_deref().map_or(Ok(()), |info| json("the score's info", info))?;
        self.check_metrics(&score.metrics)
    }
}

fn json(what: &str, text: &str) -> Result<()> {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => Ok(()),
        Err(error) => bad(format!("{what} is not JSON: {error}")),
    }
}

fn check_info(info: &Info) -> Result<()> {
    json("the args schema", &info.args_schema)?;
    if info.splits.is_empty() {
        return bad("it has no splits");
    }
    let components = info.components.iter().map(|line| &line.name);
    let splits = info.splits.iter().map(|split| &split.name);
    for (what, names) in [
        ("split", splits.collect::<Vec<_>>()),
        ("reward component", components.collect()),
        ("metric", info.metrics.iter().collect()),
        ("role", info.roles.iter().collect()),
    ] {
        let mut seen = HashSet::new();
        if let Some(name) = names.into_iter().find(|name| name.is_empty() || !seen.insert(*name)) {
            return bad(format!("the {what} name `{name}` is empty or there twice"));
        }
    }
    match info.components.iter().find(|line| !line.weight.is_finite()) {
        Some(line) => bad(format!("the weight of `{}` is {}", line.name, line.weight)),
        None => Ok(()),
    }
}
