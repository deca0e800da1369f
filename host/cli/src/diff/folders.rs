//! Weights and checkpoints of steps that both runs have, file by file, by SHA-256. That one run has saved more steps is told and
//! no difference: a run that was stopped on its way has a checkpoint there.

use super::{list, only, several, short};
use crate::failure::Failure;
use prl_store::{Checkpoints, digest, files_below};
use prl_types::Step;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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

/// Compares two folders of steps.
///
/// # Errors
/// A folder or file cannot be read.
pub fn compare(a: &Checkpoints, b: &Checkpoints) -> Result<Found, Failure> {
    let steps = |of: &Checkpoints| Ok(of.steps().map_err(Failure::input)?.into_iter().collect::<BTreeSet<Step>>());
    let (of_a, of_b) = (steps(a)?, steps(b)?);
    let mut found = Found {
        common: of_a.intersection(&of_b).copied().collect(),
        only_a: of_a.difference(&of_b).copied().collect(),
        only_b: of_b.difference(&of_a).copied().collect(),
        differ: Vec::new(),
    };
    for step in &found.common {
        let (a, b) = (hashes(&a.path(*step))?, hashes(&b.path(*step))?);
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        for file in names.into_iter().filter(|name| a.get(*name) != b.get(*name)) {
            let (a, b) = (a.get(file).cloned(), b.get(file).cloned());
            found.differ.push(Other { step: *step, file: file.clone(), a, b });
        }
    }
    Ok(found)
}

fn hashes(dir: &Path) -> Result<BTreeMap<String, String>, Failure> {
    let hash = |(name, _): (String, u64)| {
        let (_, sha256) = digest(&dir.join(&name)).map_err(Failure::input)?;
        Ok((name, sha256))
    };
    files_below(dir).map_err(Failure::input)?.into_iter().map(hash).collect()
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
