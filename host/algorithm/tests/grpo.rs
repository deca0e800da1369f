//! The built `libgrpo.so` against an independent f64 implementation of its formulas.

mod common;

use common::{group, load, rollout};
use prl_types::Rollout;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

fn advantages(config: &Value, rollouts: &[Rollout]) -> Vec<f32> {
    let mut algorithm = load("grpo").create(config, 1).unwrap();
    let scored = algorithm.score_group(&rollouts.iter().collect::<Vec<_>>()).unwrap();
    let mut result = Vec::new();
    for (rollout, streams) in rollouts.iter().zip(&scored.streams) {
        assert_eq!(streams.len(), rollout.samples.len());
        let mut credit = None;
        for (sample, streams) in rollout.samples.iter().zip(streams) {
            streams.validate(sample.len()).unwrap();
            assert_eq!((&streams.rl_weights, &streams.ce_weights, &streams.ref_kl_weights), (&None, &None, &None));
            for (value, sampled) in streams.advantages.as_ref().unwrap().iter().zip(sample.mask()) {
                if *sampled {
                    assert_eq!(*credit.get_or_insert(*value), *value, "one value for all sampled tokens");
                } else {
                    assert_eq!(*value, 0.0);
                }
            }
        }
        result.push(credit.unwrap_or(f32::NAN));
    }
    result
}

/// A_i of the plain formula, and of the one with length penalty when weights are given; two-pass sums in f64.
fn reference(rollouts: &[Rollout], weights: Option<[f64; 3]>) -> Vec<f64> {
    let n = rollouts.len() as f64;
    let mut r: Vec<f64> = rollouts.iter().map(|x| x.reward).collect();
    if let Some([wo, wc, wt]) = weights {
        let facts: Vec<[f64; 3]> = rollouts
            .iter()
            .map(|x| {
                let sampled = x.samples.iter().flat_map(|s| s.mask()).filter(|m| **m).count();
                let all: usize = x.samples.iter().map(|s| s.token_ids().len()).sum();
                [sampled as f64, (all - sampled) as f64, x.turns.len() as f64]
            })
            .collect();
        let top = |k: usize| facts.iter().map(|f| f[k]).fold(1.0, f64::max);
        let pass_rate = r.iter().sum::<f64>() / n;
        for (r, f) in r.iter_mut().zip(&facts) {
            *r -= pass_rate * (wo * f[0] / top(0) + wc * f[1] / top(1) + wt * f[2] / top(2));
        }
    }
    let mean = r.iter().sum::<f64>() / n;
    r.iter().map(|r| r - mean).collect()
}

fn assert_close(got: &[f32], want: &[f64], rollouts: &[Rollout], what: &str) {
    let largest = rollouts.iter().map(|r| r.reward.abs()).fold(1.0, f64::max);
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        if rollouts[i].output_tokens() > 0 {
            assert!((f64::from(*got) - want).abs() <= 1e-6 * largest, "{what}, rollout {i}: {got} for {want}");
        } else {
            assert!(got.is_nan(), "{what}, rollout {i} has no sampled token");
        }
    }
}

#[test]
fn random_groups_agree_with_the_reference() {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut unit = move || (rng.next_u32() >> 8) as f64 / f64::from(1 << 24);
    for case in 0..200 {
        let n = match case % 10 {
            0 => 64,
            1 => 1,
            _ => 2 + (unit() * 15.0) as usize,
        };
        let base = unit() * 2.0 - 0.5;
        let rollouts: Vec<Rollout> = (0..n)
            .map(|i| {
                let reward = match case % 7 {
                    0 => base,
                    1 => [1e8, -1e8][i % 2],
                    2 => [base, f64::from_bits(base.to_bits() + 1)][i % 2],
                    3 => f64::from(unit() > 0.5),
                    4 => 1e8 + unit(),
                    _ => unit() * 4.0 - 2.0,
                };
                let samples: Vec<(usize, usize)> = (0..1 + (unit() * 3.0) as usize)
                    .map(|_| (1 + (unit() * 20.0) as usize, (unit() * 40.0) as usize))
                    .collect();
                rollout(i as u32, reward, &samples)
            })
            .collect();
        let plain = advantages(&json!({}), &rollouts);
        assert_close(&plain, &reference(&rollouts, None), &rollouts, &format!("case {case}"));
        let weights = [unit(), unit(), unit()];
        let config = json!({"length_penalty": {
            "type": "linear",
            "num_output_tokens_weight": weights[0],
            "num_input_tokens_weight": weights[1],
            "num_turns_weight": weights[2],
        }});
        let penalised = advantages(&config, &rollouts);
        assert_close(&penalised, &reference(&rollouts, Some(weights)), &rollouts, &format!("case {case} with penalty"));
        let defaults = advantages(&json!({"length_penalty": {}}), &rollouts);
        let want = reference(&rollouts, Some([0.25, 0.1, 0.1]));
        assert_close(&defaults, &want, &rollouts, &format!("case {case} with default penalty"));
    }
}

#[test]
fn hard_cases_are_exact() {
    let none = json!({});
    assert_eq!(advantages(&none, &group(&[0.7])), [0.0]);
    assert_eq!(advantages(&none, &group(&[0.1; 64])), [0.0; 64]);
    assert_eq!(advantages(&none, &group(&[1e8, -1e8])), [1e8, -1e8]);
    let ulp = f64::from_bits(0.1f64.to_bits() + 1);
    let half = ((ulp - 0.1) / 2.0) as f32;
    assert_eq!(advantages(&none, &group(&[ulp, 0.1])), [half, -half]);
    // An empty completion has no token to carry its advantage, and still counts in the mean.
    let rollouts = [rollout(0, 1.0, &[(2, 0)]), rollout(1, 0.0, &[(2, 1)])];
    assert_eq!(advantages(&none, &rollouts)[1], -0.5);
}
