//! The order in which tasks were trained: those of the effective rollouts of every step, as they lie in the rollout log. Knows
//! nothing of what was said in them.

use super::{list, only, several};
use crate::failure::Failure;
use crate::past::Past;
use prl_store::{RolloutLog, Split, Subset, read_lines};
use prl_types::Step;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Steps that trained other tasks, or the same in another order.
#[derive(Default, Serialize)]
pub struct Found {
    /// Steps that both have.
    common: usize,
    only_a: Vec<Step>,
    only_b: Vec<Step>,
    differ: Vec<Other>,
}

#[derive(Serialize)]
struct Other {
    step: Step,
    /// The first place that differs, from 0.
    at: usize,
    /// The task there, as `environment: key`; nothing where there are fewer.
    a: Option<String>,
    b: Option<String>,
    /// Whether all of the step's are the same, in another order.
    reordered: bool,
}

/// Of a line, the part that counts.
#[derive(Deserialize)]
struct Line {
    task: Task,
}

#[derive(Deserialize)]
struct Task {
    env: String,
    key: String,
}

/// Compares them.
///
/// # Errors
/// A log cannot be read.
pub fn compare(a: &Past, b: &Past) -> Result<Found, Failure> {
    let (a, b) = (a.view.rollouts(), b.view.rollouts());
    let (of_a, of_b) = (steps(&a), steps(&b));
    let alone = |of: &BTreeSet<Step>, other: &BTreeSet<Step>| of.difference(other).copied().collect();
    let mut found = Found { only_a: alone(&of_a, &of_b), only_b: alone(&of_b, &of_a), ..Found::default() };
    for step in of_a.intersection(&of_b) {
        found.common += 1;
        let (a, b) = (tasks(&path(&a, *step))?, tasks(&path(&b, *step))?);
        let places = 0..a.len().max(b.len());
        if let Some(at) = places.into_iter().find(|at| a.get(*at) != b.get(*at)) {
            let (first, second) = (a.get(at).cloned(), b.get(at).cloned());
            found.differ.push(Other { step: *step, at, a: first, b: second, reordered: sorted(a) == sorted(b) });
        }
    }
    Ok(found)
}

fn path(log: &RolloutLog, step: Step) -> PathBuf {
    log.path(step, Split::Train, Subset::Effective)
}

/// Steps with rollouts that trained. A run without a log has none.
fn steps(log: &RolloutLog) -> BTreeSet<Step> {
    log.steps().unwrap_or_default().into_iter().filter(|step| path(log, *step).is_file()).collect()
}

fn tasks(path: &Path) -> Result<Vec<String>, Failure> {
    let name = |line: Line| format!("{}: {}", line.task.env, line.task.key);
    let lines = read_lines::<Line>(path).map_err(Failure::input)?;
    lines.map(|line| line.map(name).map_err(Failure::input)).collect()
}

fn sorted(mut tasks: Vec<String>) -> Vec<String> {
    tasks.sort();
    tasks
}

impl Found {
    /// Whether nothing differs.
    pub fn equal(&self) -> bool {
        self.differ.is_empty() && self.only_a.is_empty() && self.only_b.is_empty()
    }

    /// Adds it to a text for people.
    pub fn tell(&self, text: &mut String) {
        let title = match self.differ.len() {
            0 if self.common == 0 => "data order: not recorded in steps that both have".to_owned(),
            0 => format!("data order: equal ({})", several(self.common, "common step")),
            count => format!("data order: differs in {count} of {}", several(self.common, "common step")),
        };
        let task = |task: &Option<String>| task.clone().unwrap_or_else(|| "-".into());
        let rows = self.differ.iter().map(|other| {
            let how = if other.reordered { "the same tasks in another order" } else { "other tasks" };
            vec![other.step.to_string(), other.at.to_string(), task(&other.a), task(&other.b), how.into()]
        });
        list(text, &title, &["STEP", "PLACE", "A", "B", ""], rows.collect());
        only(text, "steps", &self.only_a, &self.only_b);
    }
}
