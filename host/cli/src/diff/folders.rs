//! Weights and checkpoints of steps that both runs have, file by file, by SHA-256. That one run has saved more steps is told and
//! no difference: a run that was stopped on its way has a checkpoint there.

use super::metrics::is_of_the_clock;
use super::{list, only, several, short};
use crate::failure::{Failure, input};
use prl_store::{Checkpoints, digest, files_below, sha256};
use prl_types::Step;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The orchestrator's state, which holds rollouts and metrics with their times.
const STATE: &str = "orchestrator/state.json";
/// Lengths of records that times are written in, and hashes of files that are compared themselves.
const BY_TIMES: [&str; 2] = ["orchestrator/records.json", "manifest.json"];

/// Files that differ.
#[derive(Default, Serialize)]
pub struct Found {
    /// Steps that both have.
    common: Vec<Step>,
    only_a: Vec<Step>,
    only_b: Vec<Step>,
    differ: Vec<Other>,
}

#[derive(Serialize)]
struct Other {
    step: Step,
    file: String,
    /// Its SHA-256; nothing where it is not there.
    a: Option<String>,
    b: Option<String>,
}

/// Compares two folders of steps; of what the wall clock has a part in only with `times` more than that it is there.
///
/// # Errors
/// A folder or file cannot be read.
pub fn compare(a: &Checkpoints, b: &Checkpoints, times: bool) -> Result<Found, Failure> {
    let steps = |of: &Checkpoints| Ok(of.steps().map_err(Failure::input)?.into_iter().collect::<BTreeSet<Step>>());
    let (of_a, of_b) = (steps(a)?, steps(b)?);
    let mut found = Found {
        common: of_a.intersection(&of_b).copied().collect(),
        only_a: of_a.difference(&of_b).copied().collect(),
        only_b: of_b.difference(&of_a).copied().collect(),
        differ: Vec::new(),
    };
    for step in &found.common {
        let (a, b) = (hashes(&a.path(*step), times)?, hashes(&b.path(*step), times)?);
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for file in names.into_iter().filter(|name| a.get(*name) != b.get(*name)) {
            let (a, b) = (a.get(file).cloned(), b.get(file).cloned());
            found.differ.push(Other { step: *step, file: file.clone(), a, b });
        }
    }
    Ok(found)
}

fn hashes(dir: &Path, times: bool) -> Result<BTreeMap<String, String>, Failure> {
    let hash = |(name, _): (String, u64)| {
        let path = dir.join(&name);
        let sha256 = match name.as_str() {
            known if !times && BY_TIMES.contains(&known) => "(not compared)".to_owned(),
            STATE if !times => timeless(&path)?,
            _ => digest(&path).map_err(Failure::input)?.1,
        };
        Ok((name, sha256))
    };
    files_below(dir).map_err(Failure::input)?.into_iter().map(hash).collect()
}

/// The hash of a JSON file without its times; of one that is no JSON, its own.
fn timeless(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read(path).map_err(input(format_args!("`{}`", path.display())))?;
    let Ok(mut value) = serde_json::from_slice::<Value>(&text) else {
        return Ok(digest(path).map_err(Failure::input)?.1);
    };
    strip(&mut value);
    Ok(sha256(value.to_string().as_bytes()))
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !is_of_the_clock(key));
            map.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}

impl Found {
    /// Whether nothing differs.
    pub fn equal(&self) -> bool {
        self.differ.is_empty()
    }

    /// Adds it to a text for people.
    pub fn tell(&self, what: &str, text: &mut String) {
        let common = several(self.common.len(), "common step");
        let title = match self.differ.len() {
            0 => format!("{what}: equal ({common})"),
            count => format!("{what}: differ in {} ({common})", several(count, "file")),
        };
        let hash = |hash: &Option<String>| hash.as_ref().map_or_else(|| "-".into(), |hash| short(hash, 13));
        let rows =
            self.differ.iter().map(|one| vec![one.step.to_string(), one.file.clone(), hash(&one.a), hash(&one.b)]);
        list(text, &title, &["STEP", "FILE", "A", "B"], rows.collect());
        only(text, "steps", &self.only_a, &self.only_b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_taken_out_wherever_they_are() {
        let mut value =
            json!({ "step": 1, "cuts": [{ "metrics": { "time/step": 1, "loss/mean": 2 }, "timing": { "x": 1 } }] });
        strip(&mut value);
        assert_eq!(value, json!({ "step": 1, "cuts": [{ "metrics": { "loss/mean": 2 } }] }));
    }
}
