//! `curriculum` of a training environment: which of its tasks are sampled, and which groups train.

use crate::macros::{section, union};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};

section! {
    /// Every task as often as the others, in a new order each time through.
    pub struct StandardSampler {}
}

section! {
    /// Tasks drawn by what came of them, with replacement; needs a finite split.
    pub struct DifficultyPoolSampler {
        /// Pools by name, each with the `threshold` up to which (inclusive) a task's latest mean reward puts it there, in rising
        /// order, and the `weight` of its tasks in the draw; a task that was never seen has 1, and one above all thresholds is in the last.
        pools: Map<String, Json> = default_pools();
    }
    unsupported ["seed"]
}

fn default_pools() -> Map<String, Json> {
    let pool = |threshold: f64, weight: f64| json!({ "threshold": threshold, "weight": weight });
    let pools = [("hard", pool(0.25, 0.2)), ("normal", pool(0.75, 1.0)), ("easy", pool(1.0, 0.2))];
    pools.into_iter().map(|(name, pool)| (name.to_string(), pool)).collect()
}

union! {
    /// How tasks are drawn.
    pub enum Sampler {
        /// In random order.
        "standard" => Standard(StandardSampler),
        /// By difficulty.
        "difficulty_pool" => DifficultyPool(DifficultyPoolSampler),
    }
    default "standard"
}

section! {
    /// Which tasks are sampled and which groups train.
    pub struct Curriculum {
        /// How tasks are drawn.
        sampler: Sampler = Sampler::Standard(StandardSampler {});
        /// Gates by name. One of `type = "advantage_range"` turns a group away whose advantages all lie between `reject_min` and
        /// `reject_max` (both 0 where not set): it does not train, and another is sampled.
        gates: Map<String, Json> = Map::new();
    }
}

/// One pool of [`DifficultyPoolSampler`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DifficultyPool {
    /// Largest mean reward of its tasks.
    pub threshold: f64,
    /// Weight of its tasks.
    pub weight: f64,
}

/// One gate of [`Curriculum`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Gate {
    /// By advantages.
    #[serde(rename = "advantage_range")]
    AdvantageRange {
        /// Least advantage that is turned away.
        #[serde(default)]
        reject_min: f64,
        /// Largest advantage that is turned away.
        #[serde(default)]
        reject_max: f64,
    },
}

impl Curriculum {
    /// The pools by threshold, none of the standard sampler.
    ///
    /// # Errors
    /// The key of the one that is wrong, below `curriculum`, and why.
    pub fn pools(&self) -> Result<Vec<(String, DifficultyPool)>, (String, String)> {
        let Sampler::DifficultyPool(sampler) = &self.sampler else { return Ok(Vec::new()) };
        if sampler.pools.is_empty() {
            return Err(("sampler.pools".into(), "is empty: name at least one pool".into()));
        }
        let mut pools: Vec<(String, DifficultyPool)> = items("sampler.pools", &sampler.pools)?;
        for (name, pool) in &pools {
            if pool.weight < 0.0 {
                let key = format!("sampler.pools.{name}.weight");
                return Err((key, format!("is {}: a weight is at least 0", pool.weight)));
            }
        }
        pools.sort_by(|a, b| a.1.threshold.total_cmp(&b.1.threshold));
        if let Some((a, b)) = pools.iter().zip(&pools[1..]).find(|(a, b)| a.1.threshold == b.1.threshold) {
            let key = format!("sampler.pools.{}.threshold", b.0);
            return Err((key, format!("is {}, like that of `{}`: set different ones", b.1.threshold, a.0)));
        }
        Ok(pools)
    }

    /// The gates.
    ///
    /// # Errors
    /// The key of the one that is wrong, below `curriculum`, and why.
    pub fn gates(&self) -> Result<Vec<(String, Gate)>, (String, String)> {
        let gates: Vec<(String, Gate)> = items("gates", &self.gates)?;
        for (name, Gate::AdvantageRange { reject_min, reject_max }) in &gates {
            if reject_min > reject_max {
                let why = format!("is {reject_min}, above `reject_max` ({reject_max}): no group could be turned away");
                return Err((format!("gates.{name}.reject_min"), why));
            }
        }
        Ok(gates)
    }
}

fn items<T: DeserializeOwned>(key: &str, map: &Map<String, Json>) -> Result<Vec<(String, T)>, (String, String)> {
    let item = |(name, value): (&String, &Json)| match T::deserialize(value) {
        Ok(item) => Ok((name.clone(), item)),
        Err(error) => Err((format!("{key}.{name}"), format!("does not fit: {error}"))),
    };
    map.iter().map(item).collect()
}
