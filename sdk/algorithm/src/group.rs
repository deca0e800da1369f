//! Typed, borrowed views of a group's columns. Owns which column is read where; must not copy data or know what it means.

use crate::Error;
use crate::columns::{Columns, known, part, text};
use prl_abi::Str;
use prl_abi::ids::{col, role};
use std::ops::Range;

/// The rollouts of one task that finished without an error.
pub struct Group<'a> {
    group_id: u64,
    env: &'a str,
    task_key: &'a str,
    task_payload: &'a str,
    task_answer: &'a str,
    member: &'a [u32],
    reward: &'a [f64],
    output_tokens: &'a [u64],
    total_tokens: &'a [u64],
    turns: &'a [u32],
    truncated: &'a [u8],
    policy_version: &'a [u64],
    stop_condition: &'a [Str],
    score_info: &'a [Str],
    sample_start: &'a [u64],
    component_start: &'a [u64],
    metric_start: &'a [u64],
    turn_start: &'a [u64],
    token_start: &'a [u64],
    temperature: &'a [f32],
    version_min: &'a [u64],
    version_max: &'a [u64],
    token_id: &'a [u32],
    mask: &'a [u8],
    sampling_logprob: &'a [f32],
    role: &'a [u8],
    content: &'a [u8],
    ref_logprob: Option<&'a [f32]>,
    component_name: &'a [Str],
    component_value: &'a [f64],
    component_weight: &'a [f64],
    metric_name: &'a [Str],
    metric_value: &'a [f64],
    turn_tokens: &'a [u64],
    turn_reward: &'a [f64],
}

impl<'a> Group<'a> {
    /// Reads a group as the host passes it.
    ///
    /// # Safety
    /// `raw` and everything it points at follow `prl.h` and stay unchanged for `'a`.
    pub(crate) unsafe fn from_raw(raw: &'a prl_abi::Group) -> Result<Self, Error> {
        // SAFETY: by the contract of this function.
        let c = unsafe { Columns::from_raw(raw.columns, raw.n_columns) }?;
        let (rollouts, samples, tokens) = (raw.n_rollouts, raw.n_samples, raw.n_tokens);
        let sample_start = c.get::<u64>(col::SAMPLE_START, rollouts + 1)?;
        let component_start = c.get::<u64>(col::COMPONENT_START, rollouts + 1)?;
        let metric_start = c.get::<u64>(col::METRIC_START, rollouts + 1)?;
        let turn_start = c.get::<u64>(col::TURN_START, rollouts + 1)?;
        let token_start = c.get::<u64>(col::TOKEN_START, samples + 1)?;
        let (components, metrics) = (component_start[rollouts] as usize, metric_start[rollouts] as usize);
        let turns = turn_start[rollouts] as usize;
        Ok(Group {
            group_id: c.get::<u64>(col::GROUP_ID, 1)?[0],
            env: text(c.get::<Str>(col::ENV, 1)?[0]),
            task_key: text(c.get::<Str>(col::TASK_KEY, 1)?[0]),
            task_payload: text(c.get::<Str>(col::TASK_PAYLOAD, 1)?[0]),
            task_answer: text(c.get::<Str>(col::TASK_ANSWER, 1)?[0]),
            member: c.get(col::MEMBER, rollouts)?,
            reward: c.get(col::REWARD, rollouts)?,
            output_tokens: c.get(col::OUTPUT_TOKENS, rollouts)?,
            total_tokens: c.get(col::TOTAL_TOKENS, rollouts)?,
            turns: c.get(col::TURNS, rollouts)?,
            truncated: c.get(col::TRUNCATED, rollouts)?,
            policy_version: c.get(col::POLICY_VERSION, rollouts)?,
            stop_condition: c.get(col::STOP_CONDITION, rollouts)?,
            score_info: c.get(col::SCORE_INFO, rollouts)?,
            sample_start,
            component_start,
            metric_start,
            turn_start,
            token_start,
            temperature: c.get(col::TEMPERATURE, samples)?,
            version_min: c.get(col::VERSION_MIN, samples)?,
            version_max: c.get(col::VERSION_MAX, samples)?,
            token_id: c.get(col::TOKEN_ID, tokens)?,
            mask: c.get(col::MASK, tokens)?,
            sampling_logprob: c.get(col::SAMPLING_LOGPROB, tokens)?,
            role: c.get(col::ROLE, tokens)?,
            content: c.get(col::CONTENT, tokens)?,
            ref_logprob: c.optional(col::REF_LOGPROB, tokens)?,
            component_name: c.get(col::COMPONENT_NAME, components)?,
            component_value: c.get(col::COMPONENT_VALUE, components)?,
            component_weight: c.get(col::COMPONENT_WEIGHT, components)?,
            metric_name: c.get(col::METRIC_NAME, metrics)?,
            metric_value: c.get(col::METRIC_VALUE, metrics)?,
            turn_tokens: c.get(col::TURN_TOKENS, turns)?,
            turn_reward: c.get(col::TURN_REWARD, turns)?,
        })
    }

    /// Number of rollouts, at least 1.
    pub fn len(&self) -> usize {
        self.reward.len()
    }

    /// Whether there are no rollouts; the host never passes such a group.
    pub fn is_empty(&self) -> bool {
        self.reward.is_empty()
    }

    /// Number of the group in the run.
    pub fn id(&self) -> u64 {
        self.group_id
    }

    /// The environment's name in the run.
    pub fn env(&self) -> &'a str {
        self.env
    }

    /// Identity of the task across runs.
    pub fn task_key(&self) -> &'a str {
        self.task_key
    }

    /// The task's own data, JSON.
    pub fn task_payload(&self) -> &'a str {
        self.task_payload
    }

    /// The reference answer, JSON; `null` when there is none.
    pub fn task_answer(&self) -> &'a str {
        self.task_answer
    }

    /// Total reward of each rollout.
    pub fn rewards(&self) -> &'a [f64] {
        self.reward
    }

    /// Sampled tokens of each rollout.
    pub fn output_tokens(&self) -> &'a [u64] {
        self.output_tokens
    }

    /// All tokens of each rollout.
    pub fn total_tokens(&self) -> &'a [u64] {
        self.total_tokens
    }

    /// Sampled turns of each rollout.
    pub fn turns(&self) -> &'a [u32] {
        self.turns
    }

    /// One rollout.
    ///
    /// # Panics
    /// When `index` is not below [`Group::len`].
    pub fn rollout(&self, index: usize) -> Rollout<'_, 'a> {
        assert!(index < self.len(), "rollout {index} of a group of {}", self.len());
        Rollout { group: self, index }
    }

    /// All rollouts.
    pub fn rollouts(&self) -> impl ExactSizeIterator<Item = Rollout<'_, 'a>> {
        (0..self.len()).map(|index| Rollout { group: self, index })
    }
}

/// One rollout of a group.
#[derive(Clone, Copy)]
pub struct Rollout<'g, 'a> {
    group: &'g Group<'a>,
    index: usize,
}

impl<'g, 'a> Rollout<'g, 'a> {
    /// The group it belongs to; in `score_rollout` a group of this rollout alone.
    pub fn group(&self) -> &'g Group<'a> {
        self.group
    }

    /// Its index in the group, as [`crate::Credit`] takes it.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its place among all members of the group, failed ones included.
    pub fn member(&self) -> u32 {
        self.group.member[self.index]
    }

    /// Total reward.
    pub fn reward(&self) -> f64 {
        self.group.reward[self.index]
    }

    /// Whether it was cut off.
    pub fn is_truncated(&self) -> bool {
        self.group.truncated[self.index] != 0
    }

    /// Version of the weights when its group started.
    pub fn policy_version(&self) -> u64 {
        self.group.policy_version[self.index]
    }

    /// Why it ended.
    pub fn stop_condition(&self) -> &'a str {
        text(self.group.stop_condition[self.index])
    }

    /// JSON from the environment's scoring; `null` when there is none.
    pub fn score_info(&self) -> &'a str {
        text(self.group.score_info[self.index])
    }

    /// The lines of the rubric.
    pub fn components(&self) -> impl ExactSizeIterator<Item = Component<'a>> {
        let g = self.group;
        let (names, values, weights) = (g.component_name, g.component_value, g.component_weight);
        part(g.component_start, self.index).map(move |i| Component {
            name: text(names[i]),
            value: values[i],
            weight: weights[i],
        })
    }

    /// Numbers that carry no reward.
    pub fn metrics(&self) -> impl ExactSizeIterator<Item = Metric<'a>> {
        let (names, values) = (self.group.metric_name, self.group.metric_value);
        part(self.group.metric_start, self.index).map(move |i| Metric { name: text(names[i]), value: values[i] })
    }

    /// The sampled turns.
    pub fn turns(&self) -> impl ExactSizeIterator<Item = Turn> {
        let (tokens, rewards) = (self.group.turn_tokens, self.group.turn_reward);
        part(self.group.turn_start, self.index)
            .map(move |i| Turn { tokens: tokens[i], reward: Some(rewards[i]).filter(|r| !r.is_nan()) })
    }

    /// The samples, one per branch of the conversation.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = Sample<'g, 'a>> {
        let group = self.group;
        part(group.sample_start, self.index).map(move |index| Sample { group, index })
    }
}

/// A line of the rubric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component<'a> {
    /// Name.
    pub name: &'a str,
    /// Value.
    pub value: f64,
    /// Weight in the total reward.
    pub weight: f64,
}

/// A named number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric<'a> {
    /// Name.
    pub name: &'a str,
    /// Value.
    pub value: f64,
}

/// A sampled turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Sampled tokens.
    pub tokens: u64,
    /// The environment's credit for this turn.
    pub reward: Option<f64>,
}

/// Whose message a token came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    pub(crate) const fn id(self) -> u8 {
        let id = match self {
            Role::System => role::SYSTEM,
            Role::User => role::USER,
            Role::Assistant => role::ASSISTANT,
            Role::Tool => role::TOOL,
        };
        id as u8
    }
}

/// One training sample: a whole branch of a rollout, prompt included. All lists have one entry per token.
#[derive(Clone, Copy)]
pub struct Sample<'g, 'a> {
    group: &'g Group<'a>,
    index: usize,
}

impl<'a> Sample<'_, 'a> {
    /// Its index among all samples of the group, as [`crate::Credit`] takes it.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens().len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Vocabulary indices, prompt and completion.
    pub fn token_ids(&self) -> &'a [u32] {
        &self.group.token_id[self.tokens()]
    }

    /// 1 where the model sampled the token, else 0.
    pub fn mask(&self) -> &'a [u8] {
        &self.group.mask[self.tokens()]
    }

    /// Log-probability when drawn, at the sampling temperature; 0 where the mask is 0.
    pub fn sampling_logprobs(&self) -> &'a [f32] {
        &self.group.sampling_logprob[self.tokens()]
    }

    /// Log-probability under the reference ([`crate::Algorithm::REFERENCE`]); `None` when this sample has none.
    pub fn ref_logprobs(&self) -> Option<&'a [f32]> {
        known(&self.group.ref_logprob?[self.tokens()])
    }

    /// The sampling temperature.
    pub fn temperature(&self) -> f32 {
        self.group.temperature[self.index]
    }

    /// Oldest and newest weights that drew one of its tokens.
    pub fn versions(&self) -> (u64, u64) {
        (self.group.version_min[self.index], self.group.version_max[self.index])
    }

    /// The role of the message a token came from; `None` outside of messages.
    ///
    /// # Panics
    /// When `token` is not below [`Sample::len`].
    pub fn role(&self, token: usize) -> Option<Role> {
        match u32::from(self.group.role[self.tokens()][token]) {
            role::SYSTEM => Some(Role::System),
            role::USER => Some(Role::User),
            role::ASSISTANT => Some(Role::Assistant),
            role::TOOL => Some(Role::Tool),
            _ => None,
        }
    }

    /// 1 for a message's own text, 0 for the chat template's scaffold.
    pub fn content(&self) -> &'a [u8] {
        &self.group.content[self.tokens()]
    }

    fn tokens(&self) -> Range<usize> {
        part(self.group.token_start, self.index)
    }
}
