//! `prl diff`: whether two runs are the same. Owns what is compared, how it is told, and the exit code; the comparisons are
//! the modules' below.

mod config;
mod folders;
mod metrics;
mod order;

use crate::failure::Failure;
use crate::inspect::number;
use crate::logging;
use crate::past::Past;
use crate::table::{short, table};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Lines of a list that are printed.
const LONGEST: usize = 20;

/// `prl diff`.
#[derive(Args)]
pub struct Diff {
    /// A run's output directory.
    pub a: PathBuf,
    /// Another one's.
    pub b: PathBuf,
    /// Compare what the wall clock has a part in, too: metrics such as time/… and perf/…, times in checkpoints.
    #[arg(long)]
    pub times: bool,
    /// Print a JSON object, with everything in it.
    #[arg(long)]
    pub json: bool,
}

/// Everything that differs.
#[derive(Serialize)]
struct Found {
    a: PathBuf,
    b: PathBuf,
    equal: bool,
    config: config::Found,
    metrics: metrics::Found,
    order: order::Found,
    weights: folders::Found,
    checkpoints: folders::Found,
}

/// Runs the command; the code is 1 where something differs.
pub fn run(asked: &Diff) -> Result<u8, Failure> {
    let (a, b) = (Past::open(&asked.a)?, Past::open(&asked.b)?);
    let mut found = Found {
        a: asked.a.clone(),
        b: asked.b.clone(),
        equal: false,
        config: config::compare(&a, &b),
        metrics: metrics::compare(&a, &b, asked.times)?,
        order: order::compare(&a, &b)?,
        weights: folders::compare(&a.view.weights(), &b.view.weights(), asked.times)?,
        checkpoints: folders::compare(&a.view.checkpoints(), &b.view.checkpoints(), asked.times)?,
    };
    found.equal = found.config.equal()
        && found.metrics.equal()
        && found.order.equal()
        && found.weights.equal()
        && found.checkpoints.equal();
    let text = match asked.json {
        true => serde_json::to_string(&found).map_err(Failure::run)?,
        false => found.text(),
    };
    logging::print(text.trim_end())?;
    Ok(u8::from(!found.equal))
}

impl Found {
    fn text(&self) -> String {
        let mut text = format!("A {}\nB {}\n", self.a.display(), self.b.display());
        self.config.tell(&mut text);
        self.metrics.tell(&mut text);
        self.order.tell(&mut text);
        self.weights.tell("weights", &mut text);
        self.checkpoints.tell("checkpoints", &mut text);
        text + if self.equal { "\nnothing differs" } else { "\nthe runs differ" }
    }
}

/// A list under a title, cut to what a person reads.
fn list(text: &mut String, title: &str, heading: &[&str], mut rows: Vec<Vec<String>>) {
    let more = rows.len().saturating_sub(LONGEST);
    rows.truncate(LONGEST);
    *text += &format!("\n{title}\n");
    if !rows.is_empty() {
        *text += &table(heading, &rows);
    }
    if more > 0 {
        *text += &format!("  … and {more} more; --json has all\n");
    }
}

/// A number of things: `1 step`, `2 steps`.
fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Steps as ranges: `1 to 3, 5`.
fn ranges(steps: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for step in steps {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *step => *last = *step,
            _ => parts.push((*step, *step)),
        }
    }
    let part =
        |(first, last): &(u64, u64)| if first == last { first.to_string() } else { format!("{first} to {last}") };
    parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// A line for steps that one of the runs has alone.
fn only(text: &mut String, what: &str, a: &[u64], b: &[u64]) {
    for (run, steps) in [("A", a), ("B", b)] {
        if !steps.is_empty() {
            *text += &format!("  {what} only in {run}: {}\n", ranges(steps));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_as_ranges_and_long_lists_cut() {
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "1 to 3, 5, 7 to 8");
        assert_eq!((several(1, "step"), several(0, "step")), ("1 step".to_owned(), "0 steps".to_owned()));
        let mut text = String::new();
        list(&mut text, "t", &["N"], (0..23).map(|n| vec![n.to_string()]).collect());
        assert!(text.lines().count() == 24 && text.ends_with("  … and 3 more; --json has all\n"), "{text}");
    }
}
