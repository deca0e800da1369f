//! Group relative policy optimisation, without the division by the standard deviation.
//!
//! With r_i the reward of rollout i of a group of one task:
//!
//! ```text
//! A_i = r_i − mean(r)                                        every sampled token of rollout i gets A_i
//! ```
//!
//! With `length_penalty.type = "linear"`, o_i the output (sampled) tokens of rollout i, c_i its other tokens, t_i its turns:
//!
//! ```text
//! f_i  = w_o·o_i/max(1, max o) + w_c·c_i/max(1, max c) + w_t·t_i/max(1, max t)
//! r'_i = r_i − mean(r)·f_i                                   longer costs more the better the group already is
//! A_i  = r'_i − mean(r')
//! ```
//!
//! Sources: Shao et al., "DeepSeekMath", arXiv:2402.03300 (groups); Liu et al., "Understanding R1-Zero-Like Training",
//! arXiv:2503.20783 (no division by the deviation). All in f64, rounded once to f32 by the host.

use prl_sdk::stats::{centred, mean};
use prl_sdk::{Algorithm, Credit, Error, Group, Host};
use serde::Deserialize;

/// The algorithm.
pub struct Grpo {
    length_penalty: Option<LengthPenalty>,
}

/// `[orchestrator.algo]` with `type = "grpo"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Makes long rollouts cost reward.
    #[serde(default)]
    pub length_penalty: Option<LengthPenalty>,
}

/// `[orchestrator.algo.length_penalty]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthPenalty {
    /// The shape of the penalty.
    #[serde(default)]
    pub r#type: PenaltyType,
    /// w_o.
    #[serde(default = "quarter")]
    pub num_output_tokens_weight: f64,
    /// w_c.
    #[serde(default = "tenth")]
    pub num_input_tokens_weight: f64,
    /// w_t.
    #[serde(default = "tenth")]
    pub num_turns_weight: f64,
}

/// Shapes of the penalty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PenaltyType {
    /// Linear in the fractions of the group's maxima.
    #[default]
    Linear,
}

fn quarter() -> f64 {
    0.25
}

fn tenth() -> f64 {
    0.1
}

impl Algorithm for Grpo {
    const NAME: &'static str = "grpo";
    const CONFIG_SCHEMA: &'static str = include_str!("config.schema.json");
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        if let Some(penalty) = &config.length_penalty {
            for (key, weight) in [
                ("num_output_tokens_weight", penalty.num_output_tokens_weight),
                ("num_input_tokens_weight", penalty.num_input_tokens_weight),
                ("num_turns_weight", penalty.num_turns_weight),
            ] {
                if !(weight.is_finite() && weight >= 0.0) {
                    return Err(format!("length_penalty.{key}: {weight} is not a number of at least 0").into());
                }
            }
        }
        Ok(Grpo { length_penalty: config.length_penalty })
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let mut rewards = group.rewards().to_vec();
        if let Some(penalty) = &self.length_penalty {
            let mean = mean(&rewards);
            for (reward, fraction) in rewards.iter_mut().zip(penalty.fractions(group)) {
                *reward -= mean * fraction;
            }
        }
        for (i, advantage) in centred(&rewards).into_iter().enumerate() {
            credit.assign(i, advantage)?;
        }
        Ok(())
    }
}

impl LengthPenalty {
    /// f_i of each rollout.
    fn fractions(&self, group: &Group) -> Vec<f64> {
        let output: Vec<f64> = group.output_tokens().iter().map(|o| *o as f64).collect();
        let input: Vec<f64> = group.total_tokens().iter().zip(&output).map(|(all, o)| *all as f64 - o).collect();
        let turns: Vec<f64> = group.turns().iter().map(|t| f64::from(*t)).collect();
        let largest = |values: &[f64]| values.iter().copied().fold(1.0, f64::max);
        let (max_output, max_input, max_turns) = (largest(&output), largest(&input), largest(&turns));
        (0..group.len())
            .map(|i| {
                self.num_output_tokens_weight * output[i] / max_output
                    + self.num_input_tokens_weight * input[i] / max_input
                    + self.num_turns_weight * turns[i] / max_turns
            })
            .collect()
    }
}

prl_sdk::export!(Grpo);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, Scored, check_schema, score};

    fn group(rewards: &[f64]) -> GroupBuilder {
        rewards.iter().fold(GroupBuilder::new(), |g, r| g.rollout(RolloutBuilder::new(*r).sample(1, 2).turn(2, None)))
    }

    fn advantages(scored: &Scored) -> Vec<f32> {
        scored.streams.iter().map(|s| *s.advantages.as_ref().unwrap().last().unwrap()).collect()
    }

    #[test]
    fn sampled_tokens_get_the_reward_above_the_mean() {
        let scored = score::<Grpo>("{}", &group(&[1.0, 0.0, 0.5, 0.5])).unwrap();
        assert_eq!(advantages(&scored), [0.5, -0.5, 0.0, 0.0]);
        assert_eq!(scored.streams[0].advantages.as_deref(), Some(&[0.0, 0.5, 0.5][..]));
        assert_eq!(scored.streams[0].rl_weights, None);
    }

    #[test]
    fn equal_rewards_give_exact_zeros() {
        for reward in [0.1, 1.0 / 3.0, -1e8, 0.0] {
            for n in [1, 3, 7, 64] {
                let scored = score::<Grpo>("{}", &group(&vec![reward; n])).unwrap();
                assert!(advantages(&scored).iter().all(|a| *a == 0.0), "{n} times {reward}");
            }
        }
    }

    #[test]
    fn the_length_penalty_follows_the_formula() {
        // mean(r) = 0.75; f = [0.25·1 + 0.1·1 + 0.1·1, 0.25·0.5 + 0.1·0.5 + 0.1·0.5] = [0.45, 0.225]
        let group = GroupBuilder::new()
            .rollout(RolloutBuilder::new(1.0).sample(4, 8).turn(4, None).turn(4, None))
            .rollout(RolloutBuilder::new(0.5).sample(2, 4).turn(4, None));
        let got = advantages(&score::<Grpo>(r#"{"length_penalty":{"type":"linear"}}"#, &group).unwrap());
        let (a, b) = (1.0 - 0.75 * 0.45, 0.5 - 0.75 * 0.225);
        assert_eq!(got, [((a - b) / 2.0) as f32, ((b - a) / 2.0) as f32]);
    }

    #[test]
    fn the_configuration_is_checked() {
        check_schema::<Grpo>().unwrap();
        let error = |config| score::<Grpo>(config, &group(&[1.0])).unwrap_err();
        assert!(error(r#"{"lenght_penalty":{}}"#).contains("unknown field `lenght_penalty`"));
        let text = error(r#"{"length_penalty":{"type":"quadratic"}}"#);
        assert!(text.starts_with("length_penalty.type: unknown variant `quadratic`"), "{text}");
        let text = error(r#"{"length_penalty":{"num_turns_weight":-1}}"#);
        assert_eq!(text, "length_penalty.num_turns_weight: -1 is not a number of at least 0");
    }
}
