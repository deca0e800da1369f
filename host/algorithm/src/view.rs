//! From rollouts to the columns that cross the border. Owns the mapping of the project's vocabulary to `prl.h`; must not
//! know what a plug-in does with it.

use prl_abi::GroupData;
use prl_abi::ids::role;
use prl_types::{Role, Rollout};
use serde_json::Value;

/// The columns of rollouts of one task; the task is that of the first one.
pub(crate) fn group_data(rollouts: &[&Rollout]) -> GroupData {
    let (id, task) = match rollouts.first() {
        Some(first) => (first.id.group.0, Some(&first.task)),
        None => (0, None),
    };
    let mut data = GroupData::new(
        id,
        task.map_or("", |t| &t.env),
        task.map_or("", |t| &t.key),
        task.map_or(Value::Null, |t| t.payload.clone()).to_string(),
        task.and_then(|t| t.answer.clone()).unwrap_or(Value::Null).to_string(),
    );
    for rollout in rollouts {
        push_rollout(&mut data, rollout);
    }
    let samples = || rollouts.iter().flat_map(|r| (0..r.samples.len()).map(move |i| (r, i)));
    if samples().any(|(r, i)| reference(r, i).is_some()) {
        for (rollout, i) in samples() {
            match reference(rollout, i) {
                Some(values) => data.ref_logprob.extend_from_slice(values),
                None => data.ref_logprob.resize(data.ref_logprob.len() + rollout.samples[i].len(), f32::NAN),
            }
        }
    }
    data
}

/// The reference log-probabilities of a sample, when there are as many as tokens.
fn reference(rollout: &Rollout, sample: usize) -> Option<&[f32]> {
    let values = rollout.streams.get(sample)?.ref_logprobs.as_deref()?;
    (values.len() == rollout.samples[sample].len()).then_some(values)
}

fn push_rollout(data: &mut GroupData, rollout: &Rollout) {
    data.member.push(rollout.id.member);
    data.reward.push(rollout.reward);
    data.turns.push(u32::try_from(rollout.turns.len()).unwrap_or(u32::MAX));
    data.truncated.push(rollout.truncation.is_some().into());
    data.policy_version.push(rollout.policy_version.0);
    data.stop_condition.push(rollout.stop_condition.clone());
    data.score_info.push(rollout.score.info.as_ref().unwrap_or(&Value::Null).to_string());
    for component in &rollout.score.components {
        data.component_name.push(component.name.clone());
        data.component_value.push(component.value);
        data.component_weight.push(component.weight);
    }
    for metric in &rollout.score.metrics {
        data.metric_name.push(metric.name.clone());
        data.metric_value.push(metric.value);
    }
    for turn in &rollout.turns {
        data.turn_tokens.push(turn.tokens as u64);
        data.turn_reward.push(turn.reward.unwrap_or(f64::NAN));
    }
    for sample in &rollout.samples {
        let first = data.token_id.len();
        data.token_id.extend_from_slice(sample.token_ids());
        data.mask.extend(sample.mask().iter().map(|m| u8::from(*m)));
        data.sampling_logprob.extend_from_slice(sample.logprobs());
        data.role.resize(first + sample.len(), role::NONE as u8);
        data.content.resize(first + sample.len(), 0);
        for span in sample.spans() {
            let tokens =
                (first + span.start).min(data.role.len())..(first + span.start + span.len).min(data.role.len());
            data.role[tokens.clone()].fill(role_id(span.role));
            data.content[tokens].fill(span.is_content.into());
        }
        let (oldest, newest) = sample.versions().unwrap_or_default();
        data.temperature.push(sample.temperature());
        data.version_min.push(oldest.0);
        data.version_max.push(newest.0);
        data.end_sample();
    }
    data.end_rollout();
}

fn role_id(role: Role) -> u8 {
    let id = match role {
        Role::System => role::SYSTEM,
        Role::User => role::USER,
        Role::Assistant => role::ASSISTANT,
        Role::Tool => role::TOOL,
    };
    id as u8
}
