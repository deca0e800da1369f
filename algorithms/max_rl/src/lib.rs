//! Maximum-likelihood reinforcement learning: the group's advantages divided by its mean reward, so that a task counts the
//! more the rarer it is solved.
//!
//! With r_i the reward of rollout i of a group of one task and m = mean(r):
//!
//! ```text
//! A_i = (r_i − m)/m   if m > 0                               every sampled token of rollout i gets A_i
//!       0             otherwise
//! ```
//!
//! With rewards 0 and 1 that is the gradient estimate of the log-likelihood of success. Rewards are meant to be at least 0:
//! where negative ones bring m close to 0, advantages grow without bound.
//!
//! Source: Tajwar et al., "Maximum Likelihood Reinforcement Learning", arXiv:2602.02710. All in f64, rounded once to f32 by
//! the host.

use prl_sdk::stats::{centred, mean};
use prl_sdk::{Algorithm, Credit, Error, Group, Host, NoConfig};

/// The algorithm.
pub struct MaxRl;

impl Algorithm for MaxRl {
    const NAME: &'static str = "max_rl";
    type Config = NoConfig;

    fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
        Ok(MaxRl)
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let mean = mean(group.rewards());
        for (i, above) in centred(group.rewards()).into_iter().enumerate() {
            credit.assign(i, if mean > 0.0 { above / mean } else { 0.0 })?;
        }
        Ok(())
    }
}

prl_sdk::export!(MaxRl);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, check_schema, score};

    fn advantages(rewards: &[f64]) -> Vec<f32> {
        let group = rewards.iter().fold(GroupBuilder::new(), |g, r| g.rollout(RolloutBuilder::new(*r).sample(1, 2)));
        let streams = score::<MaxRl>("{}", &group).unwrap().streams;
        streams.iter().map(|s| *s.advantages.as_ref().unwrap().last().unwrap()).collect()
    }

    #[test]
    fn rare_successes_count_more() {
        assert_eq!(advantages(&[1.0, 0.0, 0.0, 0.0]), [3.0, -1.0, -1.0, -1.0]);
        assert_eq!(advantages(&[1.0, 1.0, 1.0, 0.0]), [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, -1.0]);
        assert_eq!(advantages(&[0.75, 0.25]), [0.5, -0.5]);
    }

    #[test]
    fn a_mean_of_at_most_zero_gives_exact_zeros() {
        assert_eq!(advantages(&[0.0; 5]), [0.0; 5]);
        assert_eq!(advantages(&[-1.0, 0.5]), [0.0, 0.0]);
        assert_eq!(advantages(&[1e8, -1e8]), [0.0, 0.0]);
    }

    #[test]
    fn equal_rewards_give_exact_zeros_and_close_ones_keep_their_distance() {
        for n in [1, 3, 7, 64] {
            assert_eq!(advantages(&vec![0.1; n]), vec![0.0; n]);
        }
        let ulp = f64::from_bits(1f64.to_bits() + 1);
        let half = ((ulp - 1.0) / 2.0) as f32;
        assert_eq!(advantages(&[ulp, 1.0]), [half, -half]);
        assert_eq!(advantages(&[3e8, 1e8]), [0.5, -0.5]);
    }

    #[test]
    fn there_are_no_options() {
        check_schema::<MaxRl>().unwrap();
    }
}
