//! Group sequence policy optimisation: importance ratios and clipping by whole sequences instead of by tokens.
//!
//! Scoring, with r_i the reward of rollout i of a group of one task:
//!
//! ```text
//! A_i = (r_i − mean(r)) / std(r)          std over the group, with n in the denominator; 0 where all rewards are equal
//! ```
//!
//! Loss, over the n_i members t of sample i (sampled tokens that the run trains on), N members in the whole step:
//!
//! ```text
//! s_i = exp( (1/n_i) Σ_t (logp_t − mu_t) )                  logp trainer's, mu sampler's log-probability
//! L   = −(1/N) Σ_i Σ_t w_t · min( s_i·A_t, clip(s_i, 1 − clip_low, 1 + clip_high)·A_t )
//!
//! ∂L/∂logp_u = −(1/N) (s_i/n_i) Σ_t w_t · A_t · [ s_i is not clipped for the sign of A_t ]      for each member u of i
//! ```
//!
//! Source: Zheng et al., "Group Sequence Policy Optimization", arXiv:2507.18071, section 4.1, its advantages
//! included. One thing differs: the paper averages over responses, this sums over tokens and divides by the step's tokens,
//! as the host's own losses do, so that a response weighs as much as it has tokens. All in f64, rounded to f32 at the end.

use prl_sdk::stats::{centred, mean};
use prl_sdk::{Algorithm, Batch, Credit, Error, Group, Hook, Host, Loss};
use serde::Deserialize;

struct Gspo {
    config: Config,
}

/// The keys of `[trainer.loss]` with `name = "gspo"`; `[orchestrator.algo]` takes and ignores them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// How far below 1 a ratio counts.
    #[serde(default = "three")]
    clip_low: f64,
    /// How far above 1 a ratio counts.
    #[serde(default = "four")]
    clip_high: f64,
}

fn three() -> f64 {
    3e-4
}

fn four() -> f64 {
    4e-4
}

impl Algorithm for Gspo {
    const NAME: &'static str = "gspo";
    const HOOKS: &'static [Hook] = &[Hook::ScoreGroup, Hook::Loss];
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "clip_low": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.0003},
        "clip_high": {"type": "number", "minimum": 0, "default": 0.0004}}}"#;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&config.clip_low) {
            return Err(format!("clip_low: {} is not a number from 0 to 1", config.clip_low).into());
        }
        if !(config.clip_high >= 0.0 && config.clip_high.is_finite()) {
            return Err(format!("clip_high: {} is not a number of at least 0", config.clip_high).into());
        }
        Ok(Gspo { config })
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let centred = centred(group.rewards());
        let std = mean(&centred.iter().map(|c| c * c).collect::<Vec<_>>()).sqrt();
        for (i, c) in centred.iter().enumerate() {
            credit.assign(i, if std > 0.0 { c / std } else { 0.0 })?;
        }
        Ok(())
    }

    fn loss(&mut self, batch: &Batch, out: &mut Loss) -> Result<(), Error> {
        let (mut sequences, mut clipped, mut ratios) = (0.0, 0.0, 0.0);
        for sample in batch.samples() {
            let (weights, advantages) = (sample.rl_weights(), sample.advantages());
            let logprobs = sample.trainer_logprobs().iter().zip(sample.sampling_logprobs());
            let (mut members, mut log_ratio) = (0.0, 0.0);
            for (w, (lp, mu)) in weights.iter().zip(logprobs) {
                let member = f64::from(u8::from(*w != 0.0));
                members += member;
                log_ratio += member * (f64::from(*lp) - f64::from(*mu));
            }
            if members == 0.0 {
                continue;
            }
            let ratio = (log_ratio / members).exp();
            let held = ratio.clamp(1.0 - self.config.clip_low, 1.0 + self.config.clip_high);
            let first = sample.tokens().start;
            let (mut value, mut pull, mut is_clipped) = (0.0, 0.0, false);
            for (t, (w, a)) in weights.iter().zip(advantages).enumerate() {
                let (w, a) = (f64::from(*w), f64::from(*a));
                if w == 0.0 {
                    continue;
                }
                let token = (ratio * a).min(held * a);
                value += w * token;
                if ratio * a <= held * a {
                    pull += w * a;
                } else {
                    is_clipped = true;
                }
                out.token_loss()[first + t] = (-w * token) as f32;
            }
            out.add(-value / batch.normalizer());
            let gradient = (-ratio / members * pull / batch.normalizer()) as f32;
            for (d, w) in out.d_logprob()[sample.tokens()].iter_mut().zip(weights) {
                *d = if *w == 0.0 { 0.0 } else { gradient };
            }
            sequences += 1.0;
            clipped += f64::from(u8::from(is_clipped));
            ratios += ratio;
        }
        if sequences > 0.0 {
            out.metric("is_clipped", clipped / sequences);
            out.metric("ratio", ratios / sequences);
        }
        Ok(())
    }
}

prl_sdk::export!(Gspo);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{BatchBuilder, GroupBuilder, RolloutBuilder, Tested, check_loss, check_schema, score};

    #[test]
    fn advantages_have_mean_0_and_deviation_1() {
        let group = |rewards: &[f64]| {
            rewards.iter().fold(GroupBuilder::new(), |g, r| g.rollout(RolloutBuilder::new(*r).sample(1, 1)))
        };
        let advantages = |rewards: &[f64]| {
            let scored = score::<Gspo>("{}", &group(rewards)).unwrap();
            scored.streams.iter().map(|s| s.advantages.as_ref().unwrap()[1]).collect::<Vec<f32>>()
        };
        assert_eq!(advantages(&[1.0, 0.0, 1.0, 0.0]), [1.0, -1.0, 1.0, -1.0]);
        assert_eq!(advantages(&[0.1; 5]), [0.0; 5]);
        assert_eq!(advantages(&[7.0]), [0.0]);
    }

    #[test]
    fn one_sample_by_hand() {
        // Log-ratios 0.2 and 0.4 over 2 members: s = e^0.3; A = 1 clips at 1.1, A = −1 does not.
        let lost = |advantage: f32| {
            let batch = format!(
                r#"{{"normalizer": 4, "samples": [{{"mask": [false, true, true, false], "trainer_logprobs": [-1, -0.8, -0.6, -1],
                    "sampling_logprobs": [0, -1, -1, 0], "advantages": [0, {advantage}, {advantage}, 0]}}]}}"#
            );
            let config = r#"{"clip_low": 0.1, "clip_high": 0.1}"#;
            Tested::<Gspo>::new(config).unwrap().loss(&BatchBuilder::from_json(&batch).unwrap()).unwrap()
        };
        let (up, down) = (lost(1.0), lost(-1.0));
        let ratio = 0.3f64.exp();
        assert!((up.loss + 2.0 * 1.1 / 4.0).abs() < 1e-7 && (down.loss - 2.0 * ratio / 4.0).abs() < 1e-7);
        assert_eq!(up.d_logprob, [0.0; 4]);
        let want = (ratio / 4.0) as f32;
        assert!(down.d_logprob.iter().zip([0.0, want, want, 0.0]).all(|(d, w)| (d - w).abs() < 1e-7));
        assert_eq!((up.metrics[0].clone(), down.metrics[0].1), (("is_clipped".to_owned(), 1.0), 0.0));
    }

    #[test]
    fn derivatives_are_right() {
        check_loss::<Gspo>("{}").unwrap();
        let wide = check_loss::<Gspo>(r#"{"clip_low": 0.9, "clip_high": 9.0}"#).unwrap();
        assert!(wide.kinks.is_empty());
    }

    #[test]
    fn the_configuration_is_checked() {
        check_schema::<Gspo>().unwrap();
        let error = |config| Tested::<Gspo>::new(config).err().unwrap();
        assert_eq!(error(r#"{"clip_low": 2}"#), "clip_low: 2 is not a number from 0 to 1");
        assert_eq!(error(r#"{"clip_high": -1}"#), "clip_high: -1 is not a number of at least 0");
        assert!(error(r#"{"clip": 1}"#).contains("unknown field `clip`"));
    }
}
