//! What an environment says about itself, checked. Owns the uniqueness of names; must not know a run's configuration.

use crate::bindings::wit;
use serde::Serialize;
use serde_json::Value;
use std::collections::HashSet;

/// Most tasks of a split with a size: their order is kept in memory.
const MAX_TASKS: u64 = 1 << 24;

/// One split of an environment's tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    /// Such as `train`.
    pub name: String,
    /// Number of tasks; `None`: made on demand without end.
    pub size: Option<u64>,
}

/// What an environment offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EnvFeatures {
    /// More than one assistant turn.
    pub multi_turn: bool,
    /// Offers tools.
    pub tools: bool,
    /// Makes tasks on demand.
    pub procedural: bool,
    /// Scores whole groups.
    pub group_scoring: bool,
    /// Gives and takes a rollout's state as bytes.
    pub snapshot: bool,
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
    /// What it offers.
    pub features: EnvFeatures,
    /// Reward components it may give.
    pub components: Vec<String>,
    /// Metrics it may give.
    pub metrics: Vec<String>,
    /// Free labels.
    pub tags: Vec<String>,
}

impl EnvInfo {
    /// The split called `name`.
    pub fn split(&self, name: &str) -> Option<&Split> {
        self.splits.iter().find(|split| split.name == name)
    }

    pub(crate) fn from_wit(info: wit::Info) -> Result<Self, String> {
        let args_schema: Value =
            serde_json::from_str(&info.args_schema).map_err(|error| format!("its args schema is not JSON: {error}"))?;
        let has = |flag| info.features.contains(flag);
        let features = EnvFeatures {
            multi_turn: has(wit::Features::MULTI_TURN),
            tools: has(wit::Features::TOOLS),
            procedural: has(wit::Features::PROCEDURAL),
            group_scoring: has(wit::Features::GROUP_SCORING),
            snapshot: has(wit::Features::SNAPSHOT),
            deterministic: has(wit::Features::DETERMINISTIC),
        };
        let splits: Vec<Split> =
            info.splits.into_iter().map(|split| Split { name: split.name, size: split.size }).collect();
        if splits.is_empty() {
            return Err("it has no splits".into());
        }
        if let Some(split) = splits.iter().find(|split| split.size.is_some_and(|size| size > MAX_TASKS)) {
            return Err(format!(
                "its split `{}` has {} tasks, more than {MAX_TASKS}; such a split must be declared unbounded",
                split.name,
                split.size.unwrap_or_default()
            ));
        }
        unique("split", splits.iter().map(|split| &split.name))?;
        unique("reward component", &info.components)?;
        unique("metric", &info.metrics)?;
        Ok(EnvInfo {
            name: info.name,
            version: info.version,
            description: info.description,
            args_schema,
            splits,
            features,
            components: info.components,
            metrics: info.metrics,
            tags: info.tags,
        })
    }
}

fn unique<'a>(what: &str, names: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("its {what} name `{name}` is empty or there twice"));
        }
    }
    Ok(())
}
