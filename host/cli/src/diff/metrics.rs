//! Two `metrics.jsonl`, step by step and name by name. Numbers are equal when their bits are. Owns which names are of the wall
//! clock.

use super::{list, number, only, several};
use crate::failure::Failure;
use crate::past::Past;
use prl_types::Step;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Parts of the names of wall-clock metrics; how many checkpoints a disk keeps up with is one.
const CLOCK: [&str; 4] = ["time", "timing", "perf", "ckpt"];

/// What differs in steps that both runs have, and steps that one has alone.
#[derive(Default, Serialize)]
pub struct Found {
    /// Steps that both have.
    common: usize,
    /// Metrics compared.
    compared: usize,
    only_a: Vec<Step>,
    only_b: Vec<Step>,
    /// By first step, then by the largest relative difference.
    differ: Vec<Metric>,
    /// Whether wall-clock metrics were compared.
    times: bool,
}

#[derive(Serialize)]
struct Metric {
    metric: String,
    /// The first step where it differs.
    first_step: Step,
    /// Its values there: one for each time it was recorded.
    a: Vec<f64>,
    b: Vec<f64>,
    /// In so many steps.
    steps: usize,
    /// Largest |a − b|, where both have a value.
    max_abs: f64,
    /// Largest |a − b| / max(|a|, |b|).
    max_rel: f64,
}

/// The numbers of a run by step, with names as indices.
type Rows = BTreeMap<Step, Vec<(usize, f64)>>;

/// Names, each once.
#[derive(Default)]
struct Names {
    index: HashMap<String, usize>,
    list: Vec<String>,
}

impl Names {
    fn of(&mut self, name: &str) -> usize {
        if let Some(index) = self.index.get(name) {
            return *index;
        }
        self.list.push(name.to_owned());
        self.index.insert(name.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }

    fn read(&mut self, past: &Past, times: bool) -> Result<Rows, Failure> {
        let mut rows = Rows::new();
        for line in past.metrics()?.into_iter().flatten() {
            let line = line?;
            let row = rows.entry(line.step).or_default();
            let wanted = line.values.iter().filter(|(name, _)| times || !is_of_the_clock(name));
            row.extend(wanted.map(|(name, value)| (self.of(name), *value)));
        }
        // Stable, so that a metric recorded twice keeps its order.
        rows.values_mut().for_each(|row| row.sort_by_key(|(name, _)| *name));
        Ok(rows)
    }
}

/// Whether a number by this name depends on how fast the machine was.
pub fn is_of_the_clock(name: &str) -> bool {
    name.split('/').any(|part| CLOCK.contains(&part))
}

/// Compares them.
///
/// # Errors
/// A file cannot be read, or a line of it is not one of metrics.
pub fn compare(a: &Past, b: &Past, times: bool) -> Result<Found, Failure> {
    let mut names = Names::default();
    let (a, b) = (names.read(a, times)?, names.read(b, times)?);
    Ok(found(&a, &b, &names.list, times))
}

fn found(a: &Rows, b: &Rows, names: &[String], times: bool) -> Found {
    let alone = |of: &Rows, other: &Rows| of.keys().filter(|step| !other.contains_key(step)).copied().collect();
    let mut differ: BTreeMap<usize, Metric> = BTreeMap::new();
    let mut common = 0;
    for (step, row) in a {
        let Some(other) = b.get(step) else { continue };
        common += 1;
        let (mut row, mut other) = (row.as_slice(), other.as_slice());
        while let Some(name) = row.iter().chain(other).map(|(name, _)| *name).min() {
            let (x, y) = (take(&mut row, name), take(&mut other, name));
            if x.len() == y.len() && x.iter().zip(y).all(|((_, x), (_, y))| x.to_bits() == y.to_bits()) {
                continue;
            }
            let values = |list: &[(usize, f64)]| list.iter().map(|(_, value)| *value).collect();
            let metric = differ.entry(name).or_insert_with(|| Metric {
                metric: names[name].clone(),
                first_step: *step,
                a: values(x),
                b: values(y),
                steps: 0,
                max_abs: 0.0,
                max_rel: 0.0,
            });
            metric.steps += 1;
            for ((_, x), (_, y)) in x.iter().zip(y) {
                let (delta, size) = ((x - y).abs(), x.abs().max(y.abs()));
                metric.max_abs = metric.max_abs.max(delta);
                metric.max_rel = metric.max_rel.max(if size > 0.0 { delta / size } else { 0.0 });
            }
        }
    }
    let mut differ: Vec<Metric> = differ.into_values().collect();
    differ.sort_by(|a, b| a.first_step.cmp(&b.first_step).then(b.max_rel.total_cmp(&a.max_rel)));
    let used: BTreeSet<usize> = a.values().chain(b.values()).flatten().map(|(name, _)| *name).collect();
    Found { common, compared: used.len(), only_a: alone(a, b), only_b: alone(b, a), differ, times }
}

/// The values of `name`, which are the first of the row if it has any.
fn take<'a>(row: &mut &'a [(usize, f64)], name: usize) -> &'a [(usize, f64)] {
    let (own, rest) = row.split_at(row.iter().take_while(|(one, _)| *one == name).count());
    *row = rest;
    own
}

impl Found {
    /// Whether nothing differs.
    pub fn equal(&self) -> bool {
        self.differ.is_empty() && self.only_a.is_empty() && self.only_b.is_empty()
    }

    /// Adds it to a text for people.
    pub fn tell(&self, text: &mut String) {
        let clock = if self.times { "" } else { ", wall-clock ones left out" };
        let of = format!("{} in {}{clock}", several(self.compared, "metric"), several(self.common, "common step"));
        let title = match self.differ.len() {
            0 => format!("metrics: equal ({of})"),
            count => format!("metrics: differ in {count} ({of})"),
        };
        let values = |list: &[f64]| match list {
            [] => "-".into(),
            list => list.iter().map(|value| number(*value)).collect::<Vec<_>>().join(", "),
        };
        let rows = self.differ.iter().map(|m| {
            let (first, steps) = (m.first_step.to_string(), m.steps.to_string());
            let (abs, rel) = (format!("{:.3e}", m.max_abs), format!("{:.3e}", m.max_rel));
            vec![m.metric.clone(), first, values(&m.a), values(&m.b), steps, abs, rel]
        });
        let heading = ["METRIC", "FIRST STEP", "A", "B", "STEPS", "MAX ABS", "MAX REL"];
        list(text, &title, &heading, rows.collect());
        only(text, "steps", &self.only_a, &self.only_b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_and_the_largest_differences_are_found() {
        let names = ["loss", "reward", "eval"].map(str::to_owned);
        let a = Rows::from([
            (1, vec![(0, 1.0), (1, 0.0)]),
            (2, vec![(0, 2.0), (2, 5.0)]),
            (3, vec![(0, 4.0)]),
            (9, vec![]),
        ]);
        let b =
            Rows::from([(1, vec![(0, 1.0), (1, -0.0)]), (2, vec![(0, 3.0), (2, 5.0), (2, 5.0)]), (3, vec![(0, 5.0)])]);
        let found = found(&a, &b, &names, false);
        assert_eq!((found.common, found.compared, &found.only_a, found.equal()), (3, 3, &vec![9], false));
        let of = |name: &str| found.differ.iter().find(|m| m.metric == name).unwrap();
        let loss = of("loss");
        assert_eq!((loss.first_step, loss.steps, loss.max_abs, loss.max_rel), (2, 2, 1.0, 1.0 / 3.0));
        // Bits count, and so does how often it was recorded.
        assert_eq!((of("reward").max_abs, of("eval").a.len(), of("eval").b.len()), (0.0, 1, 2));
        assert_eq!(found.differ[0].metric, "reward");
    }

    #[test]
    fn the_clocks_metrics_are_known_by_their_names() {
        for name in ["time/step", "perf/throughput", "train/agg/all/timing/total/mean", "eval/e/all/timing/setup/max"] {
            assert!(is_of_the_clock(name), "{name}");
        }
        for name in ["loss/mean", "eval/perfect/avg@1", "num_turns/all/mean"] {
            assert!(!is_of_the_clock(name), "{name}");
        }
    }
}
