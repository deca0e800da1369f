//! A plug-in of one's own: every rollout gets the sign of its reward's distance to the group's median, so that only the
//! order of rewards counts, times `scale`.

use prl_sdk::{Algorithm, Credit, Error, Group, Host};
use serde::Deserialize;

struct Hello {
    scale: f64,
}

/// `[orchestrator.algo]` with `type = "hello"`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "one")]
    scale: f64,
}

fn one() -> f64 {
    1.0
}

impl Algorithm for Hello {
    const NAME: &'static str = "hello";
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false,
        "properties": {"scale": {"type": "number", "default": 1.0}}}"#;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        Ok(Hello { scale: config.scale })
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let mut sorted = group.rewards().to_vec();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        for (i, reward) in group.rewards().iter().enumerate() {
            let above = f64::from(*reward > high) - f64::from(*reward < low);
            credit.assign(i, self.scale * above)?;
        }
        Ok(())
    }
}

prl_sdk::export!(Hello);

#[test]
fn only_the_order_counts() {
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, score};
    let group =
        [9.0, 0.1, 0.2].iter().fold(GroupBuilder::new(), |g, r| g.rollout(RolloutBuilder::new(*r).sample(0, 1)));
    let scored = score::<Hello>(r#"{"scale": 0.5}"#, &group).unwrap();
    let advantages: Vec<f32> = scored.streams.iter().filter_map(|s| Some(s.advantages.as_ref()?[0])).collect();
    assert_eq!(advantages, [0.5, -0.5, 0.0]);
}
