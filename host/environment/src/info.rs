//! What an environment says about itself. Must not know a run's configuration, save for the weights that it sets.

use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One split of an environment's tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    /// Such as `train`.
    pub name: String,
    /// Number of tasks; `None`: made on demand without end.
    pub size: Option<u64>,
}

/// One line of the rubric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Component {
    /// Such as `correct`.
    pub name: String,
    /// Its share in the reward; 0 only watches.
    pub weight: f64,
    /// What it measures.
    pub description: String,
}

/// What an environment claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EnvFeatures {
    /// More than one assistant turn.
    pub multi_turn: bool,
    /// Offers tools.
    pub tools: bool,
    /// Scores whole groups.
    pub group_scoring: bool,
    /// Same task, seed and completions, same turns and scores.
    pub deterministic: bool,
}

/// An environment's description.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EnvInfo {
    /// Its own name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// One or two sentences.
    pub description: String,
    /// JSON Schema of its arguments.
    pub args_schema: Value,
    /// Splits, by unique names.
    pub splits: Vec<Split>,
    /// What it claims.
    pub features: EnvFeatures,
    /// Reward components it may give.
    pub components: Vec<Component>,
    /// Metrics it may give.
    pub metrics: Vec<String>,
    /// Roles whose models it may ask.
    pub roles: Vec<String>,
    /// Free labels.
    pub tags: Vec<String>,
}

impl EnvInfo {
    /// The split called `name`.
    pub fn split(&self, name: &str) -> Option<&Split> {
        self.splits.iter().find(|split| split.name == name)
    }

    /// What makes this another environment to a run than `before`, if anything does.
    pub(crate) fn differs(&self, before: &EnvInfo) -> Option<String> {
        let name = |info: &EnvInfo| format!("`{}` {}", info.name, info.version);
        let size = |size: Option<u64>| size.map_or_else(|| "no end".into(), |size| format!("{size} tasks"));
        let splits = |info: &EnvInfo| -> Vec<String> {
            info.splits.iter().map(|split| format!("`{}` with {}", split.name, size(split.size))).collect()
        };
        let lines = |info: &EnvInfo| -> Vec<String> {
            info.components.iter().map(|line| format!("`{}` with weight {}", line.name, line.weight)).collect()
        };
        if name(self) != name(before) {
            return Some(format!("is {} now and was {}", name(self), name(before)));
        }
        for (what, now, before) in [
            ("splits", splits(self), splits(before)),
            ("reward components", lines(self), lines(before)),
            ("metrics", self.metrics.clone(), before.metrics.clone()),
        ] {
            if now != before {
                return Some(format!("has the {what} {} now and had {}", now.join(", "), before.join(", ")));
            }
        }
        (self.features != before.features).then(|| "has other features now".into())
    }

    /// Replaces weights by name. The error names one that no component has.
    pub(crate) fn weigh(&mut self, weights: &BTreeMap<String, f64>) -> Result<(), String> {
        for (name, weight) in weights {
            let Some(line) = self.components.iter_mut().find(|line| line.name == *name) else {
                let known: Vec<String> = self.components.iter().map(|line| format!("`{}`", line.name)).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                return Err(format!("`weights.{name}`: there is no reward component `{name}`; there are {known}"));
            };
            if !weight.is_finite() {
                return Err(format!("`weights.{name}` is {weight}"));
            }
            line.weight = *weight;
        }
        Ok(())
    }
}
