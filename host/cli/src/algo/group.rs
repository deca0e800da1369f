//! A group of rollouts as somebody writes it down, and the rollouts it stands for. Owns the keys of a group's JSON and what
//! is there where one is left out; must not know what is made of it.

use super::input::{Flag, check_cover, check_len, f32s};
use prl_types::{
    GroupId, Message, Metric, PolicyVersion, RewardComponent, Role, RoleSpan, Rollout, RolloutId, Sample, Score,
    Streams, Task, Timing, Truncation, Turn,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// Most tokens or turns of a rollout that are not written out.
const MOST: usize = 1 << 24;

/// A group's JSON. Lists have one entry a rollout; lists in lists one entry a token, a turn or a component of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Group {
    /// Total reward. Required, at least one.
    pub rewards: Vec<f64>,
    /// Sampled tokens; by default those of `masks`, or 1.
    pub output_tokens: Option<Vec<usize>>,
    /// Other tokens, which then all come before the sampled ones; by default those of `masks`, or 1.
    pub input_tokens: Option<Vec<usize>>,
    /// Sampled turns; 1 by default.
    pub turns: Option<Vec<usize>>,

    /// 1 where the model sampled the token.
    pub masks: Option<Vec<Vec<Flag>>>,
    /// Vocabulary indices; by default 0, 1, 2 and so on.
    pub token_ids: Option<Vec<Vec<u32>>>,
    /// Role of the message a token came from, or null; by default assistant where sampled, else user.
    pub roles: Option<Vec<Vec<Option<Role>>>>,
    /// 1 for a message's own text, 0 for scaffold; 1 by default. Tokens without a role have none.
    pub contents: Option<Vec<Vec<Flag>>>,
    /// Log-probability when drawn; counts where sampled; -1 by default.
    pub logprobs: Option<Vec<Vec<f64>>>,
    /// Log-probability under the reference; null for a rollout without one.
    pub ref_logprobs: Option<Vec<Option<Vec<f64>>>>,
    /// Lengths of the samples that a rollout's tokens fall into; by default one sample.
    pub sample_lengths: Option<Vec<Vec<usize>>>,
    /// Sampling temperature; 1 by default.
    pub temperatures: Option<Vec<f64>>,
    /// Policy version that drew the tokens; 0 by default.
    pub policy_versions: Option<Vec<u64>>,

    /// Number of the group in the run, 0 by default.
    pub group: u64,
    /// The environment's name; `env` by default.
    pub env: Option<String>,
    /// Identity of the task; `task` by default.
    pub task_key: Option<String>,
    /// The task's data; null by default.
    pub task_payload: Value,
    /// The reference answer; null for none.
    pub task_answer: Value,
    /// 0-based places in the group; 0, 1, 2 and so on by default.
    pub members: Option<Vec<u32>>,
    /// 1 where it was cut off.
    pub truncated: Option<Vec<Flag>>,
    /// Why it ended; `done` by default.
    pub stop_conditions: Option<Vec<String>>,
    /// What the environment's scoring told; null by default.
    pub score_info: Option<Vec<Value>>,
    /// Lines of the rubric, as {"name", "value", "weight"}.
    pub components: Option<Vec<Vec<RewardComponent>>>,
    /// Numbers without reward, as {"name": value}.
    pub metrics: Option<Vec<Map<String, Value>>>,
    /// Sampled tokens of each turn; by default all are the first one's.
    pub turn_tokens: Option<Vec<Vec<usize>>>,
    /// The environment's credit for each turn, or null.
    pub turn_rewards: Option<Vec<Vec<Option<f64>>>>,
}

impl Group {
    /// The rollouts, with their references in their streams.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn rollouts(&self) -> Result<Vec<Rollout>, String> {
        let n = self.rewards.len();
        if n == 0 {
            return Err("`rewards` is missing or empty: a group has at least one rollout".into());
        }
        macro_rules! lengths {
            ($($key:ident),*) => {
                $(if let Some(list) = &self.$key { check_len(stringify!($key), list.len(), n, "rollouts")?; })*
            };
        }
        lengths!(
            output_tokens,
            input_tokens,
            turns,
            masks,
            token_ids,
            roles,
            contents,
            logprobs,
            ref_logprobs,
            sample_lengths,
            temperatures,
            policy_versions,
            members,
            truncated,
            stop_conditions,
            score_info,
            components,
            metrics,
            turn_tokens,
            turn_rewards
        );
        for (key, counts) in
            [("output_tokens", &self.output_tokens), ("input_tokens", &self.input_tokens), ("turns", &self.turns)]
        {
            let sum = counts.iter().flatten().fold(0usize, |sum, count| sum.saturating_add(*count));
            if sum > MOST {
                return Err(format!("`{key}` adds up to {sum}, more than the {MOST} that are made up for a group"));
            }
        }
        let task = Arc::new(self.task());
        (0..n).map(|i| self.rollout(i, &task)).collect()
    }

    fn task(&self) -> Task {
        Task {
            env: self.env.clone().unwrap_or_else(|| "env".into()),
            split: "train".into(),
            index: 0,
            seed: 0,
            key: self.task_key.clone().unwrap_or_else(|| "task".into()),
            prompt: Vec::new(),
            tools: Vec::new(),
            answer: Some(self.task_answer.clone()).filter(|answer| !answer.is_null()),
            payload: self.task_payload.clone(),
            max_turns: None,
            tags: Vec::new(),
        }
    }

    fn rollout(&self, i: usize, task: &Arc<Task>) -> Result<Rollout, String> {
        let mask = self.mask(i)?;
        let version = PolicyVersion(self.policy_versions.as_ref().map_or(0, |v| v[i]));
        let (samples, streams) = self.samples(i, &mask, version)?;
        let sampled = mask.iter().filter(|m| **m).count();
        Ok(Rollout {
            id: RolloutId { group: GroupId(self.group), member: self.members.as_ref().map_or(i as u32, |m| m[i]) },
            attempt: 0,
            task: task.clone(),
            turns: self.turns(i, sampled)?,
            branches: Vec::new(),
            samples,
            streams,
            reward: self.rewards[i],
            score: Score {
                components: self.components.as_ref().map(|c| c[i].clone()).unwrap_or_default(),
                metrics: self.metrics(i)?,
                info: self.score_info.as_ref().map(|info| info[i].clone()).filter(|info| !info.is_null()),
            },
            error: None,
            truncation: self
                .truncated
                .as_ref()
                .and_then(|t| t[i].0.then(|| Truncation { reason: "max_completion_tokens".into() })),
            stop_condition: self.stop_conditions.as_ref().map_or_else(|| "done".into(), |s| s[i].clone()),
            filters: Vec::new(),
            is_filtered: false,
            policy_version: version,
            timing: Timing::default(),
        })
    }

    /// Which of a rollout's tokens were sampled.
    fn mask(&self, i: usize) -> Result<Vec<bool>, String> {
        let given = |list: &Option<Vec<usize>>| list.as_ref().map(|list| list[i]);
        let (output, input) = (given(&self.output_tokens), given(&self.input_tokens));
        let Some(masks) = &self.masks else {
            return Ok([vec![false; input.unwrap_or(1)], vec![true; output.unwrap_or(1)]].concat());
        };
        let mask: Vec<bool> = masks[i].iter().map(|flag| flag.0).collect();
        let sampled = mask.iter().filter(|m| **m).count();
        for (key, said, has) in [("output_tokens", output, sampled), ("input_tokens", input, mask.len() - sampled)] {
            if said.is_some_and(|said| said != has) {
                return Err(format!("`{key}[{i}]` is {}, but `masks[{i}]` has {has}", said.unwrap_or(0)));
            }
        }
        Ok(mask)
    }

    /// The samples of a rollout, and what is known of their streams.
    fn samples(&self, i: usize, mask: &[bool], version: PolicyVersion) -> Result<(Vec<Sample>, Vec<Streams>), String> {
        let n = mask.len();
        let tokens = |key: &str, got: usize| check_len(&format!("{key}[{i}]"), got, n, "tokens");
        let ids = match &self.token_ids {
            Some(ids) => ids[i].clone(),
            None => (0..n as u32).collect(),
        };
        tokens("token_ids", ids.len())?;
        let logprobs = match &self.logprobs {
            Some(logprobs) => f32s(&format!("logprobs[{i}]"), &logprobs[i])?,
            None => vec![-1.0; n],
        };
        tokens("logprobs", logprobs.len())?;
        let reference = match self.ref_logprobs.as_ref().and_then(|list| list[i].as_ref()) {
            Some(list) => Some(f32s(&format!("ref_logprobs[{i}]"), list)?),
            None => None,
        };
        reference.as_ref().map_or(Ok(()), |list| tokens("ref_logprobs", list.len()))?;
        let roles: Vec<Option<Role>> = match &self.roles {
            Some(roles) => roles[i].clone(),
            None => mask.iter().map(|sampled| Some(if *sampled { Role::Assistant } else { Role::User })).collect(),
        };
        tokens("roles", roles.len())?;
        let contents: Vec<bool> = match &self.contents {
            Some(contents) => contents[i].iter().map(|flag| flag.0).collect(),
            None => vec![true; n],
        };
        tokens("contents", contents.len())?;
        let temperature = f32s("temperatures", &[self.temperatures.as_ref().map_or(1.0, |t| t[i])])?[0];

        let lengths = self.sample_lengths.as_ref().map_or_else(|| vec![n], |lengths| lengths[i].clone());
        check_cover(&format!("sample_lengths[{i}]"), &lengths, n)?;
        let (mut samples, mut streams, mut start) = (Vec::new(), Vec::new(), 0);
        for len in lengths {
            let part = start..start + len;
            start += len;
            let spans = spans(&roles[part.clone()], &contents[part.clone()]);
            let of = (ids[part.clone()].to_vec(), mask[part.clone()].to_vec(), logprobs[part.clone()].to_vec());
            let sample = Sample::made_up(of.0, of.1, of.2, temperature, spans, (version, version));
            samples.push(sample.map_err(|error| format!("rollout {i}: {error}"))?);
            let ref_logprobs = reference.as_ref().map(|list| list[part].to_vec());
            streams.push(Streams { ref_logprobs, ..Streams::default() });
        }
        Ok((samples, streams))
    }

    fn turns(&self, i: usize, sampled: usize) -> Result<Vec<Turn>, String> {
        let given = self.turn_tokens.as_ref().map(|t| t[i].len());
        let count = self.turns.as_ref().map(|t| t[i]).or(given).unwrap_or(1);
        let tokens = match &self.turn_tokens {
            Some(tokens) => tokens[i].clone(),
            None => (0..count).map(|turn| if turn == 0 { sampled } else { 0 }).collect(),
        };
        check_len(&format!("turn_tokens[{i}]"), tokens.len(), count, "turns")?;
        let rewards = self.turn_rewards.as_ref().map_or_else(|| vec![None; count], |rewards| rewards[i].clone());
        check_len(&format!("turn_rewards[{i}]"), rewards.len(), count, "turns")?;
        let turn = |(tokens, reward)| Turn {
            message: Message::text(Role::Assistant, ""),
            tokens,
            reward,
            replies: Vec::new(),
        };
        Ok(tokens.into_iter().zip(rewards).map(turn).collect())
    }

    fn metrics(&self, i: usize) -> Result<Vec<Metric>, String> {
        let metric = |(name, value): (&String, &Value)| match value.as_f64() {
            Some(value) => Ok(Metric { name: name.clone(), value }),
            None => Err(format!("`metrics[{i}].{name}` is {value}, which is no number")),
        };
        self.metrics.iter().flat_map(|metrics| &metrics[i]).map(metric).collect()
    }
}

/// Runs of tokens of one role and kind. Tokens without a role are in none.
fn spans(roles: &[Option<Role>], contents: &[bool]) -> Vec<RoleSpan> {
    let mut spans: Vec<RoleSpan> = Vec::new();
    for (t, (role, is_content)) in roles.iter().zip(contents).enumerate() {
        let Some(role) = *role else { continue };
        let goes_on = |span: &&mut RoleSpan| {
            let Range { end, .. } = span.start..span.start + span.len;
            (end, span.role, span.is_content) == (t, role, *is_content)
        };
        match spans.last_mut().filter(goes_on) {
            Some(span) => span.len += 1,
            None => spans.push(RoleSpan { start: t, len: 1, role, is_content: *is_content }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rollouts(group: Value) -> Result<Vec<Rollout>, String> {
        serde_json::from_value::<Group>(group).map_err(|e| e.to_string())?.rollouts()
    }

    #[test]
    fn rewards_are_enough() {
        let made = rollouts(json!({"rewards": [1, 0.5]})).unwrap();
        assert_eq!((made[1].reward, made[1].id.member, made[1].turns.len()), (0.5, 1, 1));
        assert_eq!((made[0].samples[0].mask(), made[0].samples[0].logprobs()), (&[false, true][..], &[0.0, -1.0][..]));
    }

    #[test]
    fn tokens_fall_into_samples_with_their_roles() {
        let made = rollouts(json!({
            "rewards": [1], "masks": [[0, 1, 0, 0, true]], "sample_lengths": [[4, 1]],
            "roles": [["user", "assistant", "tool", "tool", null]], "contents": [[1, 1, 0, 1, 1]],
            "ref_logprobs": [[-1, -2, -3, -4, -5]], "turns": [2], "turn_tokens": [[1, 1]],
        }));
        let made = made.unwrap();
        let [first, second] = &made[0].samples[..] else { panic!("{:?}", made[0].samples) };
        assert_eq!((first.len(), second.mask(), second.token_ids()), (4, &[true][..], &[4][..]));
        let span = |start, role, is_content| RoleSpan { start, len: 1, role, is_content };
        let want = [(0, Role::User, true), (1, Role::Assistant, true), (2, Role::Tool, false), (3, Role::Tool, true)];
        assert_eq!(first.spans(), want.map(|(start, role, content)| span(start, role, content)));
        assert!(second.spans().is_empty());
        assert_eq!(made[0].streams[1].ref_logprobs, Some(vec![-5.0]));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = |group| rollouts(group).unwrap_err();
        assert!(error(json!({})).contains("`rewards` is missing"));
        assert_eq!(error(json!({"rewards": [1], "turns": [1, 2]})), "`turns` has 2 entries for 1 rollouts");
        let masks = json!({"rewards": [1], "masks": [[1, 0]], "output_tokens": [2]});
        assert_eq!(error(masks), "`output_tokens[0]` is 2, but `masks[0]` has 1");
        let ids = json!({"rewards": [1], "masks": [[1, 0]], "token_ids": [[1]]});
        assert_eq!(error(ids), "`token_ids[0]` has 1 entries for 2 tokens");
        assert!(error(json!({"rewards": [1], "masks": [[2]]})).contains("2 is none of 0, 1, true and false"));
        let lengths = json!({"rewards": [1], "masks": [[1, 0]], "sample_lengths": [[1]]});
        assert_eq!(error(lengths), "`sample_lengths[0]` adds up to 1 of 2 tokens");
        let lengths = json!({"rewards": [1], "masks": [[1, 0]], "sample_lengths": [[u64::MAX, 3]]});
        assert_eq!(error(lengths), "`sample_lengths[0]` adds up to more than 2 tokens");
        assert!(
            error(json!({"rewards": [1], "output_tokens": [1_000_000_000_000u64]}))
                .contains("adds up to 1000000000000,")
        );
        assert!(error(json!({"rewards": [1, 1], "output_tokens": [MOST, 1]})).contains("more than the"));
        assert!(error(json!({"rewards": [1], "logprobs": [[0, 1e300]]})).contains("too large"));
        assert!(error(json!({"rewards": [1], "reward": 1})).contains("unknown field `reward`"));
    }
}
