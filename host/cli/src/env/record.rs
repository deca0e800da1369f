//! What the rollout log keeps of a rollout so that its environment's side can be run again: beside the rollout itself, what
//! the environment was, was told and said. Owns the form on disk and the hash; must not know who writes or reads it.

use prl_environment::{Finish, Grant, Pool, Served, Tape};
use prl_store::sha256;
use prl_types::{Message, Metric, Rollout, RolloutContext, Score, ToolDef};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// A line of the rollout log: the rollout's own keys and one more.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// The rollout; without samples and streams, which are not kept.
    #[serde(flatten)]
    pub rollout: Rollout,
    /// Absent in logs of older versions, and for rollouts that never reached their environment.
    #[serde(default)]
    pub replay: Option<Replay>,
}

/// A line to be written.
#[derive(Clone, Debug, Serialize)]
pub struct LineRef<'a> {
    #[serde(flatten)]
    rollout: &'a Rollout,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Replay>,
}

/// Everything that a rollout holds no place for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Version of prl that wrote it.
    pub prl: String,
    /// The environment.
    pub env: Environment,
    /// What the rollout was told about itself.
    pub context: RolloutContext,
    /// What the environment said before the first turn; `None` where it did not get so far.
    pub opening: Option<Answer>,
    /// The sampled turns, in the order of the rollout's.
    pub turns: Vec<Turn>,
    /// Asked for its score, it was told this reason for a cut.
    pub truncated: Option<String>,
    /// Its own score, before that of the group.
    pub score: Option<Score>,
    /// How its last call failed.
    pub error: Option<String>,
    /// What services answered it; absent where its environment uses none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<Served>,
    /// The same of the scoring of its group, with the first member that was scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_services: Option<Served>,
    /// Hash of opening, answers and score; see [`Replay::digest`].
    pub sha256: String,
}

/// An environment, as exactly as it takes to have it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Its own name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// Of the component.
    pub sha256: String,
    /// Version of the contract it was built for.
    pub contract: String,
    /// Where it was.
    pub path: String,
    /// The address at which it ran outside the sandbox: digest and path are then no identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsandboxed: Option<String>,
    /// Its arguments.
    pub args: Value,
    /// Weights that the run set.
    pub weights: BTreeMap<String, f64>,
    /// Grants that it uses.
    pub grants: Vec<String>,
    /// Whether it claims to be.
    pub deterministic: bool,
    /// Cap on an instance's memory, bytes.
    pub memory_bytes: u64,
    /// Instructions of one call; absent where they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel: Option<u64>,
}

/// One sampled turn beside its message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// `stop`, `length`, `tool_calls` or `content_filter`.
    pub finish: String,
    /// Sampled tokens, as the environment was told.
    pub tokens: u32,
    /// Tokens that were left.
    pub context_left: Option<u32>,
    /// Turns that were left.
    pub turns_left: Option<u32>,
    /// The sampled tokens; empty where they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<u32>,
    /// What the environment answered. Its messages are the rollout's `replies`.
    pub answer: Option<Answer>,
}

/// What an environment said. Parts that are not there are left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Credit for the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// End of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Ended>,
    /// New tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolDef>>,
    /// Numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<Metric>,
    /// Most tokens of the next turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Texts that end the next turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_texts: Vec<String>,
}

/// The end of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Cut off by a limit of the environment's.
    pub truncated: bool,
    /// Its word for it.
    pub reason: String,
}

impl From<prl_types::EnvTurn> for Answer {
    fn from(turn: prl_types::EnvTurn) -> Self {
        Answer {
            messages: turn.messages,
            reward: turn.reward,
            stop: turn.stop.map(|stop| Ended { truncated: stop.truncated, reason: stop.reason }),
            tools: turn.tools,
            metrics: turn.metrics,
            max_tokens: turn.sampling.max_tokens.map(u64::from),
            stop_texts: turn.sampling.stop,
        }
    }
}

impl Environment {
    /// The one that `pool` runs.
    pub fn of(pool: &Pool, args: Value, weights: BTreeMap<String, f64>) -> Self {
        let (file, info) = (pool.file(), pool.info());
        let unsandboxed = file.unsandboxed().map(str::to_owned);
        let absolute = || std::path::absolute(file.path()).unwrap_or_else(|_| file.path().to_owned());
        let path = unsandboxed.clone().unwrap_or_else(|| absolute().display().to_string());
        Environment {
            name: info.name.clone(),
            version: info.version.clone(),
            sha256: file.sha256().to_owned(),
            contract: file.contract_version().to_owned(),
            path,
            unsandboxed,
            args,
            weights,
            grants: file.grants().iter().map(|grant| grant.name().to_owned()).collect(),
            deterministic: info.features.deterministic,
            memory_bytes: file.limits().memory_bytes,
            fuel: file.limits().fuel,
        }
    }

    /// Whether it uses services. What runs outside the sandbox has none: what is sent to it are its calls.
    pub fn uses_services(&self) -> bool {
        self.unsandboxed.is_none() && !self.grants.is_empty()
    }

    /// The first service that it uses and whose answers must be recorded to be had again.
    pub fn recorded(&self) -> Option<Grant> {
        self.grants.iter().filter_map(|name| Grant::of(name)).find(|grant| grant.is_recorded())
    }

    /// Takes down what passes between a rollout of it, or the scoring of a group, and its services.
    pub fn tape(&self) -> Tape {
        if self.uses_services() { Tape::record() } else { Tape::default() }
    }

    /// What is on such a tape.
    pub fn served(&self, tape: &Tape) -> Option<Served> {
        self.uses_services().then(|| tape.served())
    }
}

impl Replay {
    /// SHA-256 over the JSON of `[opening, [answer, …], score]`.
    pub fn digest(&self) -> String {
        let answers: Vec<&Option<Answer>> = self.turns.iter().map(|turn| &turn.answer).collect();
        // Strings, numbers and maps with string keys cannot fail to be JSON.
        let bytes = serde_json::to_vec(&(&self.opening, answers, &self.score)).unwrap_or_default();
        sha256(&bytes)
    }

    /// The line of `rollout`, whose sampled ids are filled in and whose replies stand for the answers' messages.
    pub fn line<'a>(mut self, rollout: &'a Rollout) -> LineRef<'a> {
        self.sha256 = self.digest();
        let mut sampled = rollout.samples.iter().flat_map(|sample| {
            sample.token_ids().iter().zip(sample.mask()).filter(|(_, sampled)| **sampled).map(|(id, _)| *id)
        });
        for (turn, told) in self.turns.iter_mut().zip(&rollout.turns) {
            turn.ids = sampled.by_ref().take(told.tokens).collect();
            if let Some(answer) = turn.answer.as_mut().filter(|answer| answer.messages == told.replies) {
                answer.messages.clear();
            }
        }
        LineRef { rollout, replay: Some(self) }
    }
}

/// The line of a rollout that never reached its environment.
pub fn bare(rollout: &Rollout) -> LineRef<'_> {
    LineRef { rollout, replay: None }
}

impl Line {
    /// The record with the answers' messages back in their place; `None` where the log holds none.
    pub fn record(&self) -> Option<Replay> {
        let mut replay = self.replay.clone()?;
        for (turn, told) in replay.turns.iter_mut().zip(&self.rollout.turns) {
            if let Some(answer) = turn.answer.as_mut().filter(|answer| answer.messages.is_empty()) {
                answer.messages.clone_from(&told.replies);
            }
        }
        Some(replay)
    }
}

/// The word for why a turn ended.
pub fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
        Finish::ContentFilter => "content_filter",
    }
}

/// The reason of this word.
pub fn finish_of(name: &str) -> Option<Finish> {
    let all = [Finish::Stop, Finish::Length, Finish::ToolCalls, Finish::ContentFilter];
    all.into_iter().find(|finish| finish_name(*finish) == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_types::Role;

    #[test]
    fn what_is_written_is_read() {
        let answer =
            Answer { messages: vec![Message::text(Role::User, "go on")], reward: Some(0.1), ..Answer::default() };
        let turn = Turn {
            finish: "stop".into(),
            tokens: 1,
            context_left: Some(9),
            turns_left: None,
            ids: vec![],
            answer: Some(answer),
        };
        let replay =
            Replay { prl: "1".into(), turns: vec![turn], opening: Some(Answer::default()), ..Replay::default() };
        let rollout = serde_json::json!({
            "id": {"group": 1, "member": 0}, "reward": 0.1, "score": {"components": [], "metrics": []}, "error": null,
            "task": {"env": "e", "split": "train", "index": 0, "seed": u64::MAX, "key": "k", "prompt": [], "tools": [],
                     "answer": null, "payload": {}, "max_turns": null, "tags": []},
            "turns": [{"message": {"role": "assistant", "content": "a"}, "tokens": 1, "reward": 0.1,
                       "replies": [{"role": "user", "content": "go on"}]}],
            "truncation": null, "stop_condition": "", "filters": [], "is_filtered": false, "policy_version": 0,
            "timing": {"setup": 0.0, "generation": 0.0, "model": 0.0, "scoring": 0.0, "total": 0.0},
        });
        let rollout: Rollout = serde_json::from_value(rollout).unwrap();
        let text = serde_json::to_string(&replay.clone().line(&rollout)).unwrap();
        assert_eq!(text.matches("go on").count(), 1, "{text}");
        let line: Line = serde_json::from_str(&text).unwrap();
        let read = line.record().unwrap();
        assert_eq!((&line.rollout, read.digest()), (&rollout, replay.digest()));
        assert_eq!(Replay { sha256: String::new(), ..read }, replay);
        let old: Line = serde_json::from_str(&serde_json::to_string(&rollout).unwrap()).unwrap();
        assert!(old.record().is_none());
    }
}
