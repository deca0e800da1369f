//! `--bench`: a few training steps on the clock, as a table and as JSON. Owns which numbers are told and how; must not know
//! what a step trains on.

use crate::failure::{Failure, input, run as running};
use crate::logging;
use prl_config::{Bench, Loaded};
use prl_monitor::duration;
use prl_store::write_atomic;
use prl_trainer::StepMetrics;
use prl_types::Summary;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;

/// A column: heading, metric, how a value reads.
type Column = (&'static str, &'static str, fn(f64) -> String);

const MFU: &str = "perf/mfu";
const THROUGHPUT: &str = "perf/throughput";
const STEP_TIME: &str = "time/step";
const PEAK_MEMORY: &str = "perf/peak_memory";

const COLUMNS: [Column; 4] = [
    ("MFU", MFU, |v| format!("{v:.2}%")),
    ("Throughput", THROUGHPUT, |v| format!("{v:.0} tokens/s")),
    ("Step Time", STEP_TIME, duration),
    ("Peak Memory", PEAK_MEMORY, |v| format!("{v:.1} GiB")),
];

/// Refuses a place for the result that could not be written, before anything is measured.
pub fn check(bench: &Bench) -> Result<(), Failure> {
    let Some(path) = &bench.output_json else { return Ok(()) };
    let refuse =
        |reason: &str| Failure::input(format_args!("`bench.output_json`: `{}` {reason}; name a file", path.display()));
    if path.is_dir() || path.file_name().is_none() {
        return Err(refuse("is a folder"));
    }
    let mut above = path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty());
    match above.find(|p| p.exists()) {
        Some(parent) if !parent.is_dir() => Err(refuse("lies below a file")),
        _ => Ok(()),
    }
}

/// Takes `steps` steps (the first is not counted) and reports. `step` tells the console line of one as well.
pub fn run<C: Serialize>(
    (bench, loaded): (&Bench, &Loaded<C>),
    steps: u64,
    total_memory_gib: f64,
    mut step: impl FnMut() -> Result<(StepMetrics, String), Failure>,
) -> Result<u8, Failure> {
    let mut measured = Vec::new();
    for n in 1..=steps {
        let (metrics, line) = step()?;
        tracing::info!(target: "prl_trainer", success = true, "{line}");
        if n > 1 {
            measured.push((n, metrics));
        }
    }
    logging::print(table(&measured, total_memory_gib).trim_end())?;
    if let Some(path) = &bench.output_json {
        let config = serde_json::to_value(&loaded.config).map_err(Failure::run)?;
        let result = json!({ "config": config, "metrics": metrics(&measured, total_memory_gib) });
        write(path, &result)?;
    }
    Ok(0)
}

fn write(path: &Path, result: &Value) -> Result<(), Failure> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(input("`bench.output_json`"))?;
    }
    let text = serde_json::to_vec_pretty(result).map_err(Failure::run)?;
    write_atomic(path, &[text.as_slice(), b"\n"].concat()).map_err(running("`bench.output_json`"))
}

/// Over steps: mean, standard deviation of a sample, extremes. None where a step lacks the metric.
struct Stats {
    mean: f64,
    std: f64,
    min: f64,
    max: f64,
}

fn stats(steps: &[(u64, StepMetrics)], name: &str) -> Option<Stats> {
    let values: Option<Vec<f64>> = steps.iter().map(|(_, m)| m.get(name).copied()).collect();
    let of = Summary::of(values?);
    if of.count == 0 {
        return None;
    }
    let n = of.count as f64;
    let std = if of.count > 1 { of.std * (n / (n - 1.0)).sqrt() } else { 0.0 };
    Some(Stats { mean: of.mean, std, min: of.min, max: of.max })
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// What prime-rl's benchmark files hold. Utilisation is null on a device whose peak is not known.
fn metrics(steps: &[(u64, StepMetrics)], total_memory_gib: f64) -> Value {
    let all = |name| stats(steps, name).map(|s| json!({"mean": s.mean, "std": s.std, "min": s.min, "max": s.max}));
    let memory = stats(steps, PEAK_MEMORY).map(|s| json!({"gib": s.mean, "pct": percent(s.mean, total_memory_gib)}));
    json!({
        "mfu": all(MFU),
        "throughput": all(THROUGHPUT),
        "step_time": all(STEP_TIME),
        "peak_memory": memory,
    })
}

/// One row a step and one over all of them.
fn table(steps: &[(u64, StepMetrics)], total_memory_gib: f64) -> String {
    let unknown = || "n/a".to_string();
    let mut rows = vec![vec!["Step".to_string()]];
    rows[0].extend(COLUMNS.iter().map(|(heading, ..)| (*heading).to_string()));
    for (step, metrics) in steps {
        let cells = COLUMNS.iter().map(|(_, name, show)| metrics.get(*name).map_or_else(unknown, |v| show(*v)));
        rows.push(std::iter::once(step.to_string()).chain(cells).collect());
    }
    let overall = COLUMNS.iter().map(|(_, name, show)| match stats(steps, name) {
        None => unknown(),
        Some(s) if *name == PEAK_MEMORY => format!("{} ({:.1}%)", show(s.mean), percent(s.mean, total_memory_gib)),
        Some(s) => format!("{} ± {} [{}, {}]", show(s.mean), show(s.std), show(s.min), show(s.max)),
    });
    rows.push(std::iter::once("Overall".to_string()).chain(overall).collect());
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut text = "Benchmark\n".to_string();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        text += &format!("{}\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<(u64, StepMetrics)> {
        let step = |n: u64, seconds: f64| {
            let values = [(THROUGHPUT, 100.0 * n as f64), (STEP_TIME, seconds), (PEAK_MEMORY, 2.0)];
            (n, values.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
        };
        vec![step(2, 1.0), step(3, 2.0), step(4, 3.0)]
    }

    #[test]
    fn the_table_has_a_row_a_step_and_one_over_all() {
        let text = table(&steps(), 8.0);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        for (line, words) in [
            (1, "Step MFU Throughput Step Time Peak Memory"),
            (2, "2 n/a 200 tokens/s 1.0s 2.0 GiB"),
            (
                5,
                "Overall n/a 300 tokens/s ± 100 tokens/s [200 tokens/s, 400 tokens/s] 2.0s ± 1.0s [1.0s, 3.0s] 2.0 GiB (25.0%)",
            ),
        ] {
            let cells: Vec<&str> = lines[line].split_whitespace().filter(|w| *w != "|").collect();
            assert_eq!(cells.join(" "), words);
        }
    }

    #[test]
    fn what_is_not_known_is_null() {
        let value = metrics(&steps(), 8.0);
        assert_eq!(value["mfu"], Value::Null);
        let of = |stat: &str| value["step_time"][stat].as_f64().unwrap();
        assert_eq!((of("mean"), of("min"), of("max")), (2.0, 1.0, 3.0));
        // Of a sample: n − 1 in the denominator.
        assert!((of("std") - 1.0).abs() < 1e-12);
        assert_eq!(value["peak_memory"], json!({"gib": 2.0, "pct": 25.0}));
        assert_eq!(metrics(&[], 8.0)["throughput"], Value::Null);
    }
}
