//! The built algorithms that leave their work to the host: what they ask for, and what the host makes of it.

mod common;

use common::{group, load};
use prl_algorithm::{ActionLoss, Hook, Reference, Source};
use prl_types::{Rollout, Streams};
use serde_json::json;
use std::sync::Arc;

/// A group of two, with reference log-probabilities as the host puts them there.
fn with_references() -> Vec<Rollout> {
    let mut rollouts = group(&[1.0, 0.0]);
    for rollout in &mut rollouts {
        let of = |len: usize| Streams { ref_logprobs: Some(vec![-0.25; len]), ..Streams::default() };
        rollout.streams = rollout.samples.iter().map(|sample| of(sample.len())).collect();
    }
    rollouts
}

fn scored(name: &str, rollouts: &[Rollout]) -> Vec<Vec<Streams>> {
    let mut algorithm = load(name).create(&json!({}), 0).unwrap();
    algorithm.score_group(&rollouts.iter().collect::<Vec<_>>()).unwrap().streams
}

#[test]
fn they_say_what_they_need() {
    let of = |name: &str| {
        let metadata = load(name).metadata().clone();
        (metadata.action_loss, metadata.reference, metadata.source, metadata.hooks)
    };
    assert_eq!(of("opd"), (ActionLoss::RefKl, Reference::Teacher, Source::Policy, vec![]));
    assert_eq!(of("opsd"), (ActionLoss::RefKl, Reference::Policy, Source::Policy, vec![Hook::Reference]));
    assert_eq!(of("sft"), (ActionLoss::Ce, Reference::None, Source::Frozen, vec![]));
    let rollout_and_group = vec![Hook::ScoreRollout, Hook::ScoreGroup];
    assert_eq!(of("echo"), (ActionLoss::Rl, Reference::None, Source::Policy, rollout_and_group));
    assert_eq!(of("max_rl"), (ActionLoss::Rl, Reference::None, Source::Policy, vec![Hook::ScoreGroup]));
}

#[test]
fn distillation_pulls_on_sampled_tokens_alone() {
    for name in ["opd", "opsd"] {
        let want = Streams {
            rl_weights: Some(vec![0.0; 5]),
            ref_kl_weights: Some(vec![0.0, 0.0, 1.0, 1.0, 1.0]),
            ref_logprobs: Some(vec![-0.25; 5]),
            ..Streams::default()
        };
        assert_eq!(scored(name, &with_references()), [[want.clone()], [want]], "{name}");
        let mut algorithm = load(name).create(&json!({}), 0).unwrap();
        let error = algorithm.score_group(&group(&[0.0]).iter().collect::<Vec<_>>()).unwrap_err().to_string();
        assert!(error.ends_with("sample 0 of rollout 0 is left without reference log-probabilities"), "{error}");
    }
}

#[test]
fn fine_tuning_learns_sampled_tokens() {
    let want = Streams {
        rl_weights: Some(vec![0.0; 5]),
        ce_weights: Some(vec![0.0, 0.0, 1.0, 1.0, 1.0]),
        ..Streams::default()
    };
    assert_eq!(scored("sft", &group(&[1.0])), [[want]]);
}

#[test]
fn self_distillation_asks_with_the_demonstration_of_the_task() {
    let mut opsd = load("opsd").create(&json!({"demo_key": "text", "template": "{demonstration}!"}), 0).unwrap();
    let rollout = &group(&[0.0])[0];
    assert_eq!(opsd.reference(rollout).unwrap(), [Some(json!([{"role": "system", "content": "héllo!"}]))]);
    let mut without = rollout.clone();
    Arc::make_mut(&mut without.task).payload = json!({});
    let error = opsd.reference(&without).unwrap_err().to_string();
    assert_eq!(
        error,
        "the algorithm `opsd` failed in reference: neither the score's info nor the payload of task reverse-text:5 has a text \
         at `text` (demo_key)"
    );
}
