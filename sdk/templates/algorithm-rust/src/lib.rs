//! tempered: rewards above the mean of their group, times a factor.
//!
//! With r_i the reward of rollout i of a group of one task:
//!
//! ```text
//! A_i = scale·(r_i − mean(r))                                every sampled token of rollout i gets A_i
//! ```

use prl_sdk::stats::centred;
use prl_sdk::{Algorithm, Credit, Error, Group, Host};
use serde::Deserialize;

struct Tempered {
    scale: f64,
}

/// `[orchestrator.algo]` with `type = "tempered"`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "one")]
    scale: f64,
}

fn one() -> f64 {
    1.0
}

impl Algorithm for Tempered {
    const NAME: &'static str = "tempered";
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "scale": {"description": "Factor of every advantage.", "type": "number", "default": 1.0}}}"#;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        Ok(Tempered { scale: config.scale })
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        for (i, above) in centred(group.rewards()).into_iter().enumerate() {
            credit.assign(i, self.scale * above)?;
        }
        Ok(())
    }
}

prl_sdk::export!(Tempered);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, check_schema, score};

    #[test]
    fn sampled_tokens_get_the_scaled_distance_to_the_mean() {
        let rollout = |reward| RolloutBuilder::new(reward).sample(1, 2);
        let group = GroupBuilder::new().rollout(rollout(1.0)).rollout(rollout(0.0));
        let scored = score::<Tempered>(r#"{"scale": 0.5}"#, &group).unwrap();
        assert_eq!(scored.streams[0].advantages, Some(vec![0.0, 0.25, 0.25]));
        assert_eq!(scored.streams[1].advantages, Some(vec![0.0, -0.25, -0.25]));
    }

    #[test]
    fn options_are_as_their_schema_says() {
        check_schema::<Tempered>().unwrap();
    }
}
