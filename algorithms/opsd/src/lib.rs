//! On-policy self-distillation: the policy samples without help, and learns from what it would have said itself with an
//! expert's demonstration before its eyes. Rewards play no part.
//!
//! With lp_t the policy's log-probability of sampled token t, mu_t that when it was drawn, d the demonstration of the task,
//! and ref_t the live policy's log-probability of the same token behind one more message at the start:
//!
//! ```text
//! ref_t   = log π(token t | system message template(d), tokens before t)
//! loss_t  = −keep_t·sg(ref_t − lp_t)·e^(lp_t − mu_t) + 1e-3·(lp_t − mu_t)²
//! keep_t  = e^lp_t − e^mu_t ≥ −0.2
//! ```
//!
//! The plug-in says what that message is; the host scores the samples behind it, routes sampled tokens to its ref_kl
//! component (the formula above, with sg for stop-gradient), and divides by their number in the step. d is the text at
//! `demo_key` of what the environment's scoring told (`score.info`), or else of the task's payload.
//!
//! Source: Zhao et al., "Self-Distilled Reasoner: On-Policy Self-Distillation for Large Language Models",
//! arXiv:2601.18734; the message and the loss follow prime-rl.

use prl_sdk::{ActionLoss, Algorithm, Error, Hook, Host, Prefixes, Reference, Role, Rollout};
use serde::Deserialize;
use serde_json::Value;

/// What stands for the demonstration in a template.
const PLACE: &str = "{demonstration}";

/// The algorithm.
pub struct Opsd {
    config: Config,
}

/// `[orchestrator.algo]` with `type = "opsd"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the demonstration is.
    #[serde(default = "default_demo_key")]
    pub demo_key: String,
    /// The system message of the reference.
    #[serde(default = "default_template")]
    pub template: String,
}

fn default_demo_key() -> String {
    "demonstration".into()
}

fn default_template() -> String {
    format!("Here is an example of an expert response:\n<demonstration>\n{PLACE}\n</demonstration>")
}

impl Algorithm for Opsd {
    const NAME: &'static str = "opsd";
    const ACTION_LOSS: ActionLoss = ActionLoss::RefKl;
    const REFERENCE: Reference = Reference::Policy;
    const HOOKS: &'static [Hook] = &[Hook::Reference];
    const CONFIG_SCHEMA: &'static str = include_str!("config.schema.json");
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        if config.demo_key.is_empty() {
            return Err("demo_key: it is empty; name the key that holds the demonstration".into());
        }
        if !config.template.contains(PLACE) {
            return Err(format!("template: it has no {PLACE}, so that no demonstration would be shown").into());
        }
        Ok(Opsd { config })
    }

    fn reference(&mut self, rollout: &Rollout, prefixes: &mut Prefixes) -> Result<(), Error> {
        let key = &self.config.demo_key;
        let payload = rollout.group().task_payload();
        let demonstration = match text_at(rollout.score_info(), key)? {
            Some(text) => text,
            None => text_at(payload, key)?.ok_or_else(|| {
                let task = rollout.group().task_key();
                format!("neither the score's info nor the payload of task {task} has a text at `{key}` (demo_key)")
            })?,
        };
        let message = self.config.template.replace(PLACE, &demonstration);
        rollout.samples().try_for_each(|sample| prefixes.ask(sample.index(), &[(Role::System, &message)]))
    }
}

/// The text at a key of a JSON object; an empty one counts as none.
fn text_at(json: &str, key: &str) -> Result<Option<String>, Error> {
    match serde_json::from_str::<Value>(json)?.get_mut(key).map(Value::take) {
        Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
        _ => Ok(None),
    }
}

prl_sdk::export!(Opsd);

#[cfg(test)]
mod tests {
    use super::*;
    use prl_sdk::testing::{GroupBuilder, RolloutBuilder, Tested, check_schema};
    use serde_json::json;

    fn group(payload: &str, info: &str) -> GroupBuilder {
        let rollout = RolloutBuilder::new(0.0).sample(2, 1).sample(1, 2);
        let mut group = GroupBuilder::new().task("t", payload, "null").rollout(rollout);
        group.data().score_info[0] = info.into();
        group
    }

    fn asked(config: &str, group: &GroupBuilder) -> Result<Vec<Option<Value>>, String> {
        Tested::<Opsd>::new(config)?.reference(group)
    }

    #[test]
    fn every_sample_is_asked_for_behind_the_demonstration() {
        let text = "Here is an example of an expert response:\n<demonstration>\n{\"é\"}\n</demonstration>";
        let want = Some(json!([{"role": "system", "content": text}]));
        let payload = r#"{"demonstration": "{\"é\"}", "mine": "own"}"#;
        assert_eq!(asked("{}", &group(payload, "null")).unwrap(), [want.clone(), want]);
        let short = Some(json!([{"role": "system", "content": "own, own"}]));
        let config = r#"{"demo_key": "mine", "template": "{demonstration}, {demonstration}"}"#;
        assert_eq!(asked(config, &group(payload, "null")).unwrap()[0], short);
    }

    #[test]
    fn what_scoring_told_comes_first() {
        let got = asked(
            r#"{"template": "{demonstration}"}"#,
            &group(r#"{"demonstration": "a"}"#, r#"{"demonstration": "b"}"#),
        );
        assert_eq!(got.unwrap()[1], Some(json!([{"role": "system", "content": "b"}])));
        let got = asked(
            r#"{"template": "{demonstration}"}"#,
            &group(r#"{"demonstration": "a"}"#, r#"{"demonstration": ""}"#),
        );
        assert_eq!(got.unwrap()[1], Some(json!([{"role": "system", "content": "a"}])));
    }

    #[test]
    fn a_task_without_a_demonstration_is_named() {
        for payload in ["null", "{}", r#"{"demonstration": 3}"#, r#""demonstration""#] {
            let error = asked("{}", &group(payload, "null")).unwrap_err();
            assert!(error.contains("payload of task t has a text at `demonstration`"), "{payload}: {error}");
        }
    }

    #[test]
    fn the_configuration_is_checked() {
        check_schema::<Opsd>().unwrap();
        let error = |config| Tested::<Opsd>::new(config).err().unwrap();
        assert!(error(r#"{"template": "no place"}"#).starts_with("template: it has no {demonstration}"));
        assert!(error(r#"{"demo_key": ""}"#).starts_with("demo_key: it is empty"));
        assert!(error(r#"{"renderer": {}}"#).contains("unknown field `renderer`"));
    }
}
