//! The owner of a group's columns. The host fills it from rollouts, test harnesses from made-up numbers; both hand out
//! the same [`Group`]. Knows which column has which type and axis, and nothing of what the numbers mean.

use crate::ids::{axis, col, dtype};
use crate::{Column, Group, Str};
use alloc::string::String;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// Column data of one group, one list per column of `prl.h`. Rows are pushed rollout by rollout; the `*_start` lists are
/// kept by [`GroupData::end_rollout`] and [`GroupData::end_sample`].
#[derive(Clone, Debug)]
#[allow(missing_docs)] // one field per column, documented in prl.h under the same name
pub struct GroupData {
    pub group_id: u64,
    pub env: String,
    pub task_key: String,
    pub task_payload: String,
    pub task_answer: String,
    pub member: Vec<u32>,
    pub reward: Vec<f64>,
    pub turns: Vec<u32>,
    pub truncated: Vec<u8>,
    pub policy_version: Vec<u64>,
    pub stop_condition: Vec<String>,
    pub score_info: Vec<String>,
    pub temperature: Vec<f32>,
    pub version_min: Vec<u64>,
    pub version_max: Vec<u64>,
    pub token_id: Vec<u32>,
    pub mask: Vec<u8>,
    pub sampling_logprob: Vec<f32>,
    pub role: Vec<u8>,
    pub content: Vec<u8>,
    /// One entry a token, or none at all: then there is no such column.
    pub ref_logprob: Vec<f32>,
    pub component_name: Vec<String>,
    pub component_value: Vec<f64>,
    pub component_weight: Vec<f64>,
    pub metric_name: Vec<String>,
    pub metric_value: Vec<f64>,
    pub turn_tokens: Vec<u64>,
    pub turn_reward: Vec<f64>,
    output_tokens: Vec<u64>,
    total_tokens: Vec<u64>,
    sample_start: Vec<u64>,
    component_start: Vec<u64>,
    metric_start: Vec<u64>,
    turn_start: Vec<u64>,
    token_start: Vec<u64>,
}

impl GroupData {
    /// A group without rollouts. `payload` and `answer` are JSON texts.
    pub fn new(group_id: u64, env: &str, task_key: &str, payload: String, answer: String) -> Self {
        let start = || alloc::vec![0];
        GroupData {
            group_id,
            env: env.into(),
            task_key: task_key.into(),
            task_payload: payload,
            task_answer: answer,
            member: Vec::new(),
            reward: Vec::new(),
            turns: Vec::new(),
            truncated: Vec::new(),
            policy_version: Vec::new(),
            stop_condition: Vec::new(),
            score_info: Vec::new(),
            temperature: Vec::new(),
            version_min: Vec::new(),
            version_max: Vec::new(),
            token_id: Vec::new(),
            mask: Vec::new(),
            sampling_logprob: Vec::new(),
            role: Vec::new(),
            content: Vec::new(),
            ref_logprob: Vec::new(),
            component_name: Vec::new(),
            component_value: Vec::new(),
            component_weight: Vec::new(),
            metric_name: Vec::new(),
            metric_value: Vec::new(),
            turn_tokens: Vec::new(),
            turn_reward: Vec::new(),
            output_tokens: Vec::new(),
            total_tokens: Vec::new(),
            sample_start: start(),
            component_start: start(),
            metric_start: start(),
            turn_start: start(),
            token_start: start(),
        }
    }

    /// Ends a sample: the token rows pushed since the last one are its tokens.
    pub fn end_sample(&mut self) {
        self.token_start.push(self.token_id.len() as u64);
    }

    /// Ends a rollout: the samples, components, metrics and turns pushed since the last one are its own. Counts its
    /// tokens.
    pub fn end_rollout(&mut self) {
        let first = *self.sample_start.last().unwrap_or(&0) as usize;
        let tokens = self.token_start[first] as usize..self.token_id.len();
        self.output_tokens.push(self.mask[tokens.clone()].iter().map(|m| u64::from(*m)).sum());
        self.total_tokens.push(tokens.len() as u64);
        self.sample_start.push(self.samples() as u64);
        self.component_start.push(self.component_value.len() as u64);
        self.metric_start.push(self.metric_value.len() as u64);
        self.turn_start.push(self.turn_tokens.len() as u64);
    }

    /// Number of rollouts.
    pub fn rollouts(&self) -> usize {
        self.reward.len()
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.token_start.len() - 1
    }

    /// The samples of a rollout, as indices of the sample axis; `None` when there is no such rollout.
    pub fn samples_of(&self, rollout: usize) -> Option<core::ops::Range<usize>> {
        part(&self.sample_start, rollout)
    }

    /// The tokens of a sample, as indices of the token axis; `None` when there is no such sample.
    pub fn tokens_of(&self, sample: usize) -> Option<core::ops::Range<usize>> {
        part(&self.token_start, sample)
    }

    /// The columns as they cross the border, valid while `self` is borrowed.
    pub fn view(&self) -> GroupView<'_> {
        let mut v = Builder::default();
        v.push(col::GROUP_ID, dtype::U64, axis::GROUP, core::slice::from_ref(&self.group_id));
        v.text(col::ENV, axis::GROUP, core::slice::from_ref(&self.env));
        v.text(col::TASK_KEY, axis::GROUP, core::slice::from_ref(&self.task_key));
        v.text(col::TASK_PAYLOAD, axis::GROUP, core::slice::from_ref(&self.task_payload));
        v.text(col::TASK_ANSWER, axis::GROUP, core::slice::from_ref(&self.task_answer));

        v.push(col::MEMBER, dtype::U32, axis::ROLLOUT, &self.member);
        v.push(col::REWARD, dtype::F64, axis::ROLLOUT, &self.reward);
        v.push(col::OUTPUT_TOKENS, dtype::U64, axis::ROLLOUT, &self.output_tokens);
        v.push(col::TOTAL_TOKENS, dtype::U64, axis::ROLLOUT, &self.total_tokens);
        v.push(col::TURNS, dtype::U32, axis::ROLLOUT, &self.turns);
        v.push(col::TRUNCATED, dtype::U8, axis::ROLLOUT, &self.truncated);
        v.push(col::POLICY_VERSION, dtype::U64, axis::ROLLOUT, &self.policy_version);
        v.text(col::STOP_CONDITION, axis::ROLLOUT, &self.stop_condition);
        v.text(col::SCORE_INFO, axis::ROLLOUT, &self.score_info);
        v.push(col::SAMPLE_START, dtype::U64, axis::ROLLOUT, &self.sample_start);
        v.push(col::COMPONENT_START, dtype::U64, axis::ROLLOUT, &self.component_start);
        v.push(col::METRIC_START, dtype::U64, axis::ROLLOUT, &self.metric_start);
        v.push(col::TURN_START, dtype::U64, axis::ROLLOUT, &self.turn_start);

        v.push(col::TOKEN_START, dtype::U64, axis::SAMPLE, &self.token_start);
        v.push(col::TEMPERATURE, dtype::F32, axis::SAMPLE, &self.temperature);
        v.push(col::VERSION_MIN, dtype::U64, axis::SAMPLE, &self.version_min);
        v.push(col::VERSION_MAX, dtype::U64, axis::SAMPLE, &self.version_max);

        v.push(col::TOKEN_ID, dtype::U32, axis::TOKEN, &self.token_id);
        v.push(col::MASK, dtype::U8, axis::TOKEN, &self.mask);
        v.push(col::SAMPLING_LOGPROB, dtype::F32, axis::TOKEN, &self.sampling_logprob);
        v.push(col::ROLE, dtype::U8, axis::TOKEN, &self.role);
        v.push(col::CONTENT, dtype::U8, axis::TOKEN, &self.content);
        if !self.ref_logprob.is_empty() {
            v.push(col::REF_LOGPROB, dtype::F32, axis::TOKEN, &self.ref_logprob);
        }

        v.text(col::COMPONENT_NAME, axis::COMPONENT, &self.component_name);
        v.push(col::COMPONENT_VALUE, dtype::F64, axis::COMPONENT, &self.component_value);
        v.push(col::COMPONENT_WEIGHT, dtype::F64, axis::COMPONENT, &self.component_weight);
        v.text(col::METRIC_NAME, axis::METRIC, &self.metric_name);
        v.push(col::METRIC_VALUE, dtype::F64, axis::METRIC, &self.metric_value);
        v.push(col::TURN_TOKENS, dtype::U64, axis::TURN, &self.turn_tokens);
        v.push(col::TURN_REWARD, dtype::F64, axis::TURN, &self.turn_reward);

        let raw = Group {
            struct_size: size_of::<Group>() as u32,
            n_columns: v.columns.len() as u32,
            columns: v.columns.as_ptr(),
            n_rollouts: self.rollouts(),
            n_samples: self.samples(),
            n_tokens: self.token_id.len(),
        };
        GroupView { raw, _columns: v.columns, _texts: v.texts, _data: PhantomData }
    }
}

fn part(starts: &[u64], row: usize) -> Option<core::ops::Range<usize>> {
    Some(*starts.get(row)? as usize..*starts.get(row.checked_add(1)?)? as usize)
}

/// A [`Group`] whose pointers are valid while this lives.
pub struct GroupView<'a> {
    raw: Group,
    _columns: Vec<Column>,
    _texts: Vec<Vec<Str>>,
    _data: PhantomData<&'a GroupData>,
}

impl GroupView<'_> {
    /// What a plug-in gets.
    pub fn raw(&self) -> &Group {
        &self.raw
    }
}

#[derive(Default)]
struct Builder {
    columns: Vec<Column>,
    texts: Vec<Vec<Str>>,
}

impl Builder {
    fn push<T>(&mut self, id: u32, dtype: u32, axis: u32, values: &[T]) {
        self.columns.push(Column { id, dtype, axis, width: 1, len: values.len(), ptr: values.as_ptr().cast() });
    }

    fn text(&mut self, id: u32, axis: u32, values: &[String]) {
        let views: Vec<Str> = values.iter().map(|s| Str::new(s)).collect();
        // Moving the list into `texts` leaves its elements, and so the pointer, in place.
        self.push(id, dtype::STR, axis, &views);
        self.texts.push(views);
    }
}
