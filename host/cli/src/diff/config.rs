//! Two configurations key by key. Owns which keys say where and how a run was started rather than what it is.

use super::{list, several, short};
use crate::past::Past;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Last parts of such keys.
const STARTED: [&str; 5] = ["output_dir", "clean_output_dir", "dry_run", "ckpt.resume_step", "ckpt.allow_fresh"];

/// Keys whose values differ.
#[derive(Serialize)]
pub struct Found {
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    key: String,
    /// Nothing where the key is not set, or there is no configuration.
    a: Option<Value>,
    b: Option<Value>,
}

/// Compares them; a run without one has no keys.
pub fn compare(a: &Past, b: &Past) -> Found {
    let of = |past: &Past, key: &str| past.config.as_ref()?.keys.get(key).cloned();
    let names: BTreeSet<&String> =
        [a, b].into_iter().flat_map(|past| &past.config).flat_map(|c| c.keys.keys()).collect();
    let differs = |key: &String| {
        let (a, b) = (of(a, key), of(b, key));
        (a != b && !is_of_the_start(key)).then(|| Key { key: key.clone(), a, b })
    };
    Found { keys: names.into_iter().filter_map(differs).collect() }
}

fn is_of_the_start(key: &str) -> bool {
    STARTED.iter().any(|end| key.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

impl Found {
    /// Whether nothing differs.
    pub fn equal(&self) -> bool {
        self.keys.is_empty()
    }

    /// Adds it to a text for people.
    pub fn tell(&self, text: &mut String) {
        let value = |value: &Option<Value>| value.as_ref().map_or_else(|| "-".into(), |v| short(&v.to_string(), 60));
        let rows = self.keys.iter().map(|key| vec![key.key.clone(), value(&key.a), value(&key.b)]).collect();
        let title = match self.keys.len() {
            0 => "config: equal".into(),
            count => format!("config: differs in {}", several(count, "key")),
        };
        list(text, &title, &["KEY", "A", "B"], rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_and_how_a_run_was_started_is_not_compared() {
        for key in ["output_dir", "trainer.output_dir", "trainer.ckpt.resume_step", "ckpt.allow_fresh"] {
            assert!(is_of_the_start(key), "{key}");
        }
        for key in ["seed", "ckpt.interval", "my_output_dir", "orchestrator.train.env.0.id"] {
            assert!(!is_of_the_start(key), "{key}");
        }
    }
}
