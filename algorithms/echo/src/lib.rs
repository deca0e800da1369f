//! Environment cross-entropy hybrid objective: grpo on what the model wrote, and a little cross-entropy on what the
//! environment answered, so that the model also learns to predict the consequences of its actions.
//!
//! With r_i the reward of rollout i of a group of one task, t the tokens of its samples, alpha_role the weight of a role:
//!
//! ```text
//! A_i  = r_i − mean(r)                                       every sampled token of rollout i gets A_i
//! ce_t = alpha_role(t)   if t was not sampled, comes after the first sampled token of its sample, is its message's own
//!                        text (not the chat template's), and its role is in `roles`
//!        0               otherwise
//! ```
//!
//! The first prompt is never weighted. By default `roles.tool.alpha = 0.1`; setting any role replaces that table. `filter`
//! narrows further: an *observation* is an unbroken run of tokens with a weight and one role, of which `filter.max_tokens`
//! keeps the first so many (a long listing would outweigh all else), and `filter.skip_token_ids` never counts (it takes none
//! of the places of `max_tokens`).
//!
//! Source: Shrivastava et al., "ECHO: Terminal Agents Learn World Models for Free", arXiv:2605.24517; the weight per role
//! and the rule for scaffold follow prime-rl. Advantages in f64, rounded once to f32 by the host.

use prl_sdk::stats::centred;
use prl_sdk::{Algorithm, Credit, Error, Group, Hook, Host, Role, Rollout, Sample, Stream};
use serde::Deserialize;
use std::collections::BTreeSet;

/// The algorithm.
pub struct Echo {
    roles: Roles,
    /// Most tokens of one observation.
    max_tokens: usize,
    skipped: BTreeSet<u32>,
}

/// `[orchestrator.algo]` with `type = "echo"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which observed tokens count, and how much.
    #[serde(default)]
    pub roles: Roles,
    /// What is left out of them.
    #[serde(default)]
    pub filter: Option<Filter>,
}

/// `[orchestrator.algo.roles]`: a role that is not named has no weight.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // by the names of roles
pub struct Roles {
    pub system: Option<Weight>,
    pub user: Option<Weight>,
    pub assistant: Option<Weight>,
    pub tool: Option<Weight>,
}

/// The weight of a role.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weight {
    /// Cross-entropy weight of each token, more than 0.
    #[serde(default = "tenth")]
    pub alpha: f64,
}

/// `[orchestrator.algo.filter]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Most tokens of one observation that count.
    #[serde(default)]
    pub max_tokens: Option<usize>,
    /// Vocabulary indices that never count.
    #[serde(default)]
    pub skip_token_ids: BTreeSet<u32>,
}

fn tenth() -> f64 {
    0.1
}

impl Default for Roles {
    fn default() -> Self {
        Roles { system: None, user: None, assistant: None, tool: Some(Weight { alpha: tenth() }) }
    }
}

impl Roles {
    fn named(&self) -> [(&'static str, &Option<Weight>); 4] {
        let Roles { system, user, assistant, tool } = self;
        [("system", system), ("user", user), ("assistant", assistant), ("tool", tool)]
    }

    fn alpha(&self, role: Role) -> Option<f32> {
        let weight = match role {
            Role::System => &self.system,
            Role::User => &self.user,
            Role::Assistant => &self.assistant,
            Role::Tool => &self.tool,
        };
        weight.as_ref().map(|w| w.alpha as f32)
    }
}

impl Algorithm for Echo {
    const NAME: &'static str = "echo";
    const HOOKS: &'static [Hook] = &[Hook::ScoreRollout, Hook::ScoreGroup];
    const CONFIG_SCHEMA: &'static str = include_str!("config.schema.json");
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        let named = config.roles.named();
        if named.iter().all(|(_, weight)| weight.is_none()) {
            return Err("roles: none has a weight; set one, such as roles.tool.alpha = 0.1, or use grpo".into());
        }
        for (role, weight) in named {
            if let Some(Weight { alpha }) = weight
                && !((*alpha as f32).is_finite() && *alpha as f32 > 0.0)
            {
                return Err(format!("roles.{role}.alpha: {alpha} is not a number of more than 0").into());
            }
        }
        let Filter { max_tokens, skip_token_ids } =
            config.filter.unwrap_or(Filter { max_tokens: None, skip_token_ids: BTreeSet::new() });
        if max_tokens == Some(0) {
            return Err("filter.max_tokens: 0 leaves nothing to learn from observations; set at least 1".into());
        }
        Ok(Echo { roles: config.roles, max_tokens: max_tokens.unwrap_or(usize::MAX), skipped: skip_token_ids })
    }

    fn score_rollout(&mut self, rollout: &Rollout, credit: &mut Credit) -> Result<(), Error> {
        for sample in rollout.samples() {
            let weights = self.weights(&sample);
            if weights.iter().any(|w| *w != 0.0) {
                credit.write(Stream::CeWeights, sample.index(), &weights)?;
            }
        }
        Ok(())
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        for (i, advantage) in centred(group.rewards()).into_iter().enumerate() {
            credit.assign(i, advantage)?;
        }
        Ok(())
    }
}

impl Echo {
    /// ce_t of each token of a sample.
    fn weights(&self, sample: &Sample) -> Vec<f32> {
        let (mask, content, ids) = (sample.mask(), sample.content(), sample.token_ids());
        let mut weights = vec![0.0; sample.len()];
        let first = mask.iter().position(|m| *m != 0).unwrap_or(sample.len());
        // The role of the observation under way, and how many of its tokens count so far.
        let (mut of, mut taken) = (None, 0);
        for t in first..sample.len() {
            let role = sample.role(t).filter(|_| mask[t] == 0 && content[t] != 0);
            if role != of {
                (of, taken) = (role, 0);
            }
            let Some(alpha) = role.and_then(|role| self.roles.alpha(role)) else { continue };
            if taken < self.max_tokens && !self.skipped.contains(&ids[t]) {
                weights[t] = alpha;
                taken += 1;
            }
        }
        weights
    }
}

prl_sdk::export!(Echo);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::abi::ids::role;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, Tested, check_schema, score};

    /// One rollout of two samples, with (sampled, role, content) of each token; ids are places in their sample.
    fn group(tokens: &[(bool, u32, bool)]) -> GroupBuilder {
        let mask: Vec<bool> = tokens.iter().map(|t| t.0).collect();
        let rollout = RolloutBuilder::new(1.0).tokens(&[false, true]).tokens(&mask);
        let mut group = GroupBuilder::new().rollout(rollout);
        for (i, (_, role, content)) in tokens.iter().enumerate() {
            group.data().role[2 + i] = *role as u8;
            group.data().content[2 + i] = (*content).into();
        }
        group
    }

    fn ce(config: &str, group: &GroupBuilder) -> Option<Vec<f32>> {
        let mut streams = Tested::<Echo>::new(config).unwrap().score_rollout(group).unwrap().streams;
        assert_eq!(streams[0].ce_weights, None, "nothing is observed after its only sampled token");
        assert!(streams.iter().all(|s| (&s.advantages, &s.rl_weights) == (&None, &None)));
        streams.pop().unwrap().ce_weights
    }

    const TURNS: [(bool, u32, bool); 10] = [
        (false, role::TOOL, true), // before the first sampled token: the prompt
        (true, role::ASSISTANT, true),
        (false, role::TOOL, false), // scaffold
        (false, role::TOOL, true),
        (false, role::TOOL, true),
        (false, role::USER, true),
        (false, role::NONE, true),
        (true, role::TOOL, true), // sampled, whatever its role
        (false, role::ASSISTANT, true),
        (false, role::TOOL, true),
    ];

    #[test]
    fn observed_content_of_the_named_roles_is_weighted() {
        let group = group(&TURNS);
        assert_eq!(ce("{}", &group), Some(vec![0.0, 0.0, 0.0, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.1]));
        let replaced = r#"{"roles": {"user": {"alpha": 0.5}, "assistant": {}, "tool": null}}"#;
        assert_eq!(ce(replaced, &group), Some(vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.1, 0.0]));
        assert_eq!(ce(r#"{"roles": {"system": {"alpha": 1}}}"#, &group), None);
    }

    #[test]
    fn the_filter_narrows() {
        let group = group(&TURNS);
        assert_eq!(
            ce(r#"{"filter": {"max_tokens": 1}}"#, &group),
            Some(vec![0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1]),
            "the first token of each observation"
        );
        assert_eq!(
            ce(r#"{"filter": {"max_tokens": 1, "skip_token_ids": [3, 9]}}"#, &group),
            Some(vec![0.0, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0])
        );
    }

    #[test]
    fn actions_get_the_reward_above_the_mean() {
        let rollout = |reward| RolloutBuilder::new(reward).tokens(&[false, true, false, true]);
        let scored = score::<Echo>("{}", &GroupBuilder::new().rollout(rollout(1.0)).rollout(rollout(0.0))).unwrap();
        assert_eq!(scored.streams[0].advantages, Some(vec![0.0, 0.5, 0.0, 0.5]));
        assert_eq!(scored.streams[1].advantages, Some(vec![0.0, -0.5, 0.0, -0.5]));
        let equal = (0..7).fold(GroupBuilder::new(), |g, _| g.rollout(rollout(0.1)));
        let scored = score::<Echo>("{}", &equal).unwrap();
        assert!(scored.streams.iter().all(|s| s.advantages == Some(vec![0.0; 4])));
    }

    #[test]
    fn the_configuration_is_checked() {
        check_schema::<Echo>().unwrap();
        let error = |config| Tested::<Echo>::new(config).err().unwrap();
        assert!(error(r#"{"roles": {}}"#).starts_with("roles: none has a weight"));
        let text = error(r#"{"roles": {"tool": {"alpha": 0}}}"#);
        assert_eq!(text, "roles.tool.alpha: 0 is not a number of more than 0");
        assert!(error(r#"{"roles": {"robot": {}}}"#).starts_with("roles.robot: unknown field `robot`"));
        assert!(error(r#"{"roles": {"tool": {"beta": 1}}}"#).contains("unknown field `beta`"));
        assert!(error(r#"{"filter": {"max_tokens": 0}}"#).starts_with("filter.max_tokens: 0"));
        assert!(error(r#"{"filter": {"import_path": "f"}}"#).contains("unknown field `import_path`"));
    }
}
