//! Made-up groups, written down in a test or read from JSON. Owns the columns under construction; must not know any
//! algorithm.

use super::recorded::{
    RecordedComponent, RecordedGroup, RecordedMetric, RecordedRollout, RecordedSample, RecordedTurn, Span,
};
use prl_abi::GroupData;
use prl_abi::ids::role;

/// A group under construction.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    data: GroupData,
}

impl Default for GroupBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupBuilder {
    /// Group 0 of the environment `test`, task `test:0`, without payload, answer or rollouts.
    pub fn new() -> Self {
        GroupBuilder { data: GroupData::new(0, "test", "test:0", "null".into(), "null".into()) }
    }

    /// A recorded group: JSON of a [`RecordedGroup`].
    ///
    /// # Errors
    /// No JSON of a group, or lists that do not fit each other.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|e| format!("no recorded group: {e}")).and_then(Self::from_recorded)
    }

    /// A recorded group.
    ///
    /// # Errors
    /// Lists that do not fit each other.
    pub fn from_recorded(recorded: RecordedGroup) -> Result<Self, String> {
        let RecordedGroup { group_id, env, task_key, payload, answer, rollouts } = recorded;
        let mut data = GroupData::new(group_id, &env, &task_key, payload.to_string(), answer.to_string());
        let referenced = rollouts.iter().flat_map(|r| &r.samples).any(|s| s.ref_logprobs.is_some());
        for (place, rollout) in rollouts.into_iter().enumerate() {
            push_rollout(&mut data, place, rollout, referenced)?;
        }
        Ok(GroupBuilder { data })
    }

    /// The task's identity, payload (JSON) and answer (JSON).
    pub fn task(mut self, key: &str, payload: &str, answer: &str) -> Self {
        self.data.task_key = key.into();
        self.data.task_payload = payload.into();
        self.data.task_answer = answer.into();
        self
    }

    /// Appends a rollout.
    pub fn rollout(mut self, rollout: RolloutBuilder) -> Self {
        let place = self.data.rollouts();
        push_rollout(&mut self.data, place, rollout.rollout, false).expect("a builder makes lists that fit");
        self
    }

    pub(super) fn columns(&self) -> &GroupData {
        &self.data
    }

    /// The columns, for what the builder has no method for.
    pub fn data(&mut self) -> &mut GroupData {
        &mut self.data
    }
}

/// A rollout under construction.
#[derive(Clone, Debug)]
pub struct RolloutBuilder {
    rollout: RecordedRollout,
}

impl RolloutBuilder {
    /// A rollout with this total reward and nothing else.
    pub fn new(reward: f64) -> Self {
        RolloutBuilder { rollout: RecordedRollout { reward, ..RecordedRollout::default() } }
    }

    /// Appends a sample of `prompt` tokens that were not sampled and `completion` tokens that were.
    pub fn sample(self, prompt: usize, completion: usize) -> Self {
        self.tokens(&[vec![false; prompt], vec![true; completion]].concat())
    }

    /// Appends a sample with this mask: true where the model sampled the token.
    pub fn tokens(mut self, mask: &[bool]) -> Self {
        self.rollout.samples.push(RecordedSample {
            token_ids: (0..mask.len() as u32).collect(),
            mask: mask.to_vec(),
            logprobs: mask.iter().map(|sampled| if *sampled { -0.5 } else { 0.0 }).collect(),
            ..RecordedSample::default()
        });
        self
    }

    /// Appends a turn.
    pub fn turn(mut self, tokens: u64, reward: Option<f64>) -> Self {
        self.rollout.turns.push(RecordedTurn { tokens, reward });
        self
    }

    /// Appends a line of the rubric.
    pub fn component(mut self, name: &str, value: f64, weight: f64) -> Self {
        self.rollout.components.push(RecordedComponent { name: name.into(), value, weight });
        self
    }

    /// Appends a metric.
    pub fn metric(mut self, name: &str, value: f64) -> Self {
        self.rollout.metrics.push(RecordedMetric { name: name.into(), value });
        self
    }

    /// Marks it as cut off.
    pub fn truncated(mut self) -> Self {
        self.rollout.truncated = true;
        self
    }
}

fn push_rollout(data: &mut GroupData, place: usize, rollout: RecordedRollout, referenced: bool) -> Result<(), String> {
    data.member.push(rollout.member.unwrap_or(place as u32));
    data.reward.push(rollout.reward);
    data.turns.push(rollout.turns.len() as u32);
    data.truncated.push(rollout.truncated.into());
    data.policy_version.push(rollout.policy_version);
    data.stop_condition.push(rollout.stop_condition);
    data.score_info.push(rollout.score_info.to_string());
    for turn in rollout.turns {
        data.turn_tokens.push(turn.tokens);
        data.turn_reward.push(turn.reward.unwrap_or(f64::NAN));
    }
    for component in rollout.components {
        data.component_name.push(component.name);
        data.component_value.push(component.value);
        data.component_weight.push(component.weight);
    }
    for metric in rollout.metrics {
        data.metric_name.push(metric.name);
        data.metric_value.push(metric.value);
    }
    for (i, sample) in rollout.samples.into_iter().enumerate() {
        push_sample(data, sample, referenced).map_err(|e| format!("sample {i} of rollout {place}: {e}"))?;
    }
    data.end_rollout();
    Ok(())
}

fn push_sample(data: &mut GroupData, sample: RecordedSample, referenced: bool) -> Result<(), String> {
    let n = sample.token_ids.len();
    for (list, len) in [
        ("mask", sample.mask.len()),
        ("logprobs", sample.logprobs.len()),
        ("ref_logprobs", sample.ref_logprobs.as_ref().map_or(n, Vec::len)),
    ] {
        if len != n {
            return Err(format!("`{list}` has {len} entries for {n} tokens"));
        }
    }
    let first = data.token_id.len();
    let role = |sampled: &bool| if *sampled { role::ASSISTANT } else { role::USER } as u8;
    match &sample.spans {
        None => {
            data.role.extend(sample.mask.iter().map(role));
            data.content.resize(first + n, 1);
        }
        Some(spans) => {
            data.role.resize(first + n, role::NONE as u8);
            data.content.resize(first + n, 0);
            for Span { start, len, role, is_content } in spans {
                let end = start.checked_add(*len).filter(|end| *end <= n);
                let end = end.ok_or_else(|| format!("a span of {len} from {start} leaves its {n} tokens"))?;
                data.role[first + start..first + end].fill(role.id());
                data.content[first + start..first + end].fill((*is_content).into());
            }
        }
    }
    data.token_id.extend(sample.token_ids);
    data.mask.extend(sample.mask.iter().map(|m| u8::from(*m)));
    data.sampling_logprob.extend(sample.logprobs);
    if referenced {
        data.ref_logprob.extend(sample.ref_logprobs.unwrap_or_else(|| vec![f32::NAN; n]));
    }
    data.temperature.push(sample.temperature);
    data.version_min.push(sample.versions[0]);
    data.version_max.push(sample.versions[1]);
    data.end_sample();
    Ok(())
}
