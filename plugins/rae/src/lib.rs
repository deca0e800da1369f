//! Role-conditioned advantage estimation: a running mean of rewards as baseline, one for each agent of the environment.
//!
//! With r_i the reward of rollout i, b the baseline of its agent, 0 at first:
//!
//! ```text
//! A_i = r_i − b                                              every sampled token of rollout i gets A_i
//! b   ← decay·b + (1 − decay)·r_i                            rollout by rollout, in the order of the group
//! ```
//!
//! An instance belongs to one environment. Its agent is named by the text at `agent_key` of the task's payload, where that
//! is set; otherwise the environment has one agent. Baselines are the plug-in's state.
//!
//! Source: Liu et al., "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement
//! Learning", arXiv:2506.24119; as in prime-rl, the advantage is taken before the baseline moves.

use prl_sdk::{Algorithm, Credit, Error, Group, Hook, Host};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

struct Rae {
    config: Config,
    /// By agent; the one without a name is "".
    baselines: BTreeMap<String, f64>,
}

/// `[orchestrator.algo]` with `type = "rae"`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Weight of the old baseline.
    #[serde(default = "default_decay")]
    decay: f64,
    /// Key of the task's payload that names the agent.
    #[serde(default)]
    agent_key: Option<String>,
}

fn default_decay() -> f64 {
    0.95
}

impl Algorithm for Rae {
    const NAME: &'static str = "rae";
    const HOOKS: &'static [Hook] = &[Hook::ScoreGroup, Hook::State];
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "decay": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "default": 0.95},
        "agent_key": {"type": ["string", "null"], "default": null}}}"#;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        if !(0.0..1.0).contains(&config.decay) {
            return Err(format!("decay: {} is not at least 0 and less than 1", config.decay).into());
        }
        Ok(Rae { config, baselines: BTreeMap::new() })
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let agent = self.agent(group)?;
        let decay = self.config.decay;
        let baseline = self.baselines.entry(agent.clone()).or_insert(0.0);
        for (i, reward) in group.rewards().iter().enumerate() {
            credit.assign(i, reward - *baseline)?;
            *baseline = decay * *baseline + (1.0 - decay) * reward;
        }
        let name = if agent.is_empty() { "baseline".to_owned() } else { format!("baseline/{agent}") };
        credit.metric(&name, *baseline);
        Ok(())
    }

    fn save_state(&self) -> Result<Vec<u8>, Error> {
        Ok(serde_json::to_vec(&self.baselines)?)
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), Error> {
        self.baselines = serde_json::from_slice(state).map_err(|e| format!("the state holds no baselines: {e}"))?;
        Ok(())
    }
}

impl Rae {
    /// The agent whose task the group is.
    fn agent(&self, group: &Group) -> Result<String, Error> {
        let Some(key) = &self.config.agent_key else { return Ok(String::new()) };
        let payload: Value = serde_json::from_str(group.task_payload())?;
        match payload.get(key).and_then(Value::as_str) {
            Some(agent) if !agent.is_empty() => Ok(agent.to_owned()),
            _ => Err(format!("agent_key: the payload of task {} has no text at `{key}`", group.task_key()).into()),
        }
    }
}

prl_sdk::export!(Rae);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, Scored, Tested, check_schema};

    fn group(payload: &str, rewards: &[f64]) -> GroupBuilder {
        let group = GroupBuilder::new().task("t", payload, "null");
        rewards.iter().fold(group, |g, r| g.rollout(RolloutBuilder::new(*r).sample(1, 1)))
    }

    fn advantages(scored: &Scored) -> Vec<f32> {
        scored.streams.iter().map(|s| s.advantages.as_ref().unwrap()[1]).collect()
    }

    #[test]
    fn the_baseline_follows_the_rewards() {
        let mut rae = Tested::<Rae>::new(r#"{"decay": 0.5}"#).unwrap();
        let scored = rae.score_group(&group("null", &[1.0, 1.0, 0.0])).unwrap();
        // b before each rollout: 0, 0.5, 0.75; after the last: 0.375
        assert_eq!(advantages(&scored), [1.0, 0.5, -0.75]);
        assert_eq!(scored.metrics, [("baseline".to_owned(), 0.375)]);
        assert_eq!(advantages(&rae.score_group(&group("null", &[0.375])).unwrap()), [0.0]);
    }

    #[test]
    fn agents_have_baselines_of_their_own() {
        let mut rae = Tested::<Rae>::new(r#"{"decay": 0.0, "agent_key": "player"}"#).unwrap();
        rae.score_group(&group(r#"{"player": "white"}"#, &[1.0])).unwrap();
        let scored = rae.score_group(&group(r#"{"player": "black"}"#, &[-1.0])).unwrap();
        assert_eq!((advantages(&scored), scored.metrics), (vec![-1.0], vec![("baseline/black".to_owned(), -1.0)]));
        assert_eq!(advantages(&rae.score_group(&group(r#"{"player": "white"}"#, &[1.0])).unwrap()), [0.0]);
        let error = rae.score_group(&group(r#"{"colour": "white"}"#, &[1.0])).unwrap_err();
        assert_eq!(error, "agent_key: the payload of task t has no text at `player`");
    }

    #[test]
    fn the_state_travels_to_the_bit() {
        let rewards = [0.1, 0.7, 1.0 / 3.0];
        let mut one = Tested::<Rae>::new("{}").unwrap();
        one.score_group(&group("null", &rewards)).unwrap();
        let mut two = Tested::<Rae>::new("{}").unwrap();
        two.load_state(&one.save_state().unwrap()).unwrap();
        assert_eq!(one.score_group(&group("null", &rewards)), two.score_group(&group("null", &rewards)));
        assert!(two.load_state(b"[]").unwrap_err().starts_with("the state holds no baselines"));
    }

    #[test]
    fn the_configuration_is_checked() {
        check_schema::<Rae>().unwrap();
        for decay in ["1.0", "-0.1", "1e9"] {
            let error = Tested::<Rae>::new(&format!(r#"{{"decay": {decay}}}"#)).err().unwrap();
            assert!(error.ends_with("is not at least 0 and less than 1"), "{error}");
        }
    }
}
