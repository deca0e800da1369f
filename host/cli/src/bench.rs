//! `--bench`: a few training steps on the clock, as a table and as JSON. Owns which numbers are told and how; must not know
//! what a step trains on.

use crate::compute::Compute;
use crate::failure::{Failure, run as running};
use crate::{logging, machine};
use prl_config::{Bench, Loaded};
use prl_monitor::duration;
use prl_trainer::{StepMetrics, Update};
use prl_types::{Step, Summary};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

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

/// The file for the result, seen to be writable: links are followed, and whatever is there must be a regular file.
pub struct Output {
    /// As it was named, for messages.
    named: PathBuf,
    /// Where it really is.
    file: PathBuf,
}

/// So many links on the way to a file are a circle.
const MOST_LINKS: usize = 40;

impl Output {
    /// Tries the place before anything is measured, and leaves it as it was. `None` where no file is asked for.
    ///
    /// # Errors
    /// A place that a file cannot be put at.
    pub fn check<C>(bench: &Bench, loaded: &Loaded<C>) -> Result<Option<Self>, Failure> {
        let Some(path) = &bench.output_json else { return Ok(None) };
        let named = loaded.path_of("bench.output_json", path);
        let file = match target(&named) {
            Ok(file) => file,
            Err(reason) => return Err(refused(&named, reason)),
        };
        let output = Output { named, file };
        let made = output.make_folder().map_err(|e| refused(&output.named, e))?;
        let tried = output.aside();
        for folder in made {
            // What somebody else has put there meanwhile keeps it.
            let _ = std::fs::remove_dir(folder);
        }
        tried.map_err(|e| refused(&output.named, e))?;
        Ok(Some(output))
    }

    fn folder(&self) -> &Path {
        self.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Creates the folder; returns what was not there, the innermost first.
    fn make_folder(&self) -> std::io::Result<Vec<PathBuf>> {
        let absent = |p: &&Path| !p.as_os_str().is_empty() && !p.exists();
        let made = self.folder().ancestors().take_while(absent).map(Path::to_path_buf).collect();
        std::fs::create_dir_all(self.folder())?;
        Ok(made)
    }

    /// A file of a name that nobody has, beside the result; it goes away unless it is kept.
    fn aside(&self) -> std::io::Result<tempfile::NamedTempFile> {
        use std::os::unix::fs::PermissionsExt;
        let old = std::fs::metadata(&self.file).map(|old| old.permissions());
        // The system takes the umask off.
        let mode = old.unwrap_or_else(|_| std::fs::Permissions::from_mode(0o666));
        tempfile::Builder::new().prefix(".bench-").permissions(mode).tempfile_in(self.folder())
    }

    fn write(&self, result: &Value) -> Result<(), Failure> {
        let text = serde_json::to_vec_pretty(result).map_err(Failure::run)?;
        let written = || {
            self.make_folder()?;
            let mut aside = self.aside()?;
            aside.write_all(&[text.as_slice(), b"\n"].concat())?;
            aside.as_file().sync_all()?;
            aside.persist(&self.file).map_err(|e| e.error)
        };
        written().map(drop).map_err(running(format_args!("`bench.output_json`: `{}`", self.named.display())))
    }
}

fn refused(path: &Path, reason: impl std::fmt::Display) -> Failure {
    Failure::input(format_args!("`bench.output_json`: `{}`: {reason}; name a file that can be written", path.display()))
}

/// Where a path leads: a regular file, or none yet.
fn target(named: &Path) -> Result<PathBuf, String> {
    let mut path = named.to_path_buf();
    for _ in 0..MOST_LINKS {
        // A descriptor of this process looks like a link to a file and is none.
        if path.starts_with("/proc") || path.starts_with("/dev") {
            return Err("it is not a regular file".into());
        }
        match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => {
                let to = std::fs::read_link(&path).map_err(|e| e.to_string())?;
                path = path.parent().unwrap_or(Path::new("")).join(to);
            }
            Ok(meta) if meta.is_dir() => return Err("it is a folder".into()),
            Ok(meta) if !meta.is_file() => return Err("it is not a regular file".into()),
            Ok(_) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return match named.file_name() {
                    Some(_) if !named.as_os_str().as_encoded_bytes().ends_with(b"/") => Ok(path),
                    _ => Err("it is a folder".into()),
                };
            }
            Err(e) => return Err(e.to_string()),
        }
    }
    Err("its links lead in a circle".into())
}

/// A measured step.
pub struct Measured {
    /// Which.
    pub step: Step,
    /// What it did to the weights.
    pub update: Update,
    /// Its metrics.
    pub metrics: StepMetrics,
    /// Its console line.
    pub line: String,
}

/// Takes `steps` steps (the first is not counted), writes the result and reports.
///
/// # Errors
/// A step that fails or whose loss is not finite, and a result that cannot be written.
pub fn run<C: Serialize>(
    (output, loaded, compute): (Option<&Output>, &Loaded<C>, &Compute),
    steps: u64,
    mut step: impl FnMut() -> Result<Measured, Failure>,
) -> Result<u8, Failure> {
    let total_memory_gib = machine::total_memory_gib(compute.device);
    let mut measured = Vec::new();
    for n in 1..=steps {
        let Measured { step, update, metrics, line } = step()?;
        match update {
            Update::Applied => {}
            Update::NothingTrainable => {
                tracing::warn!(target: "prl_trainer", "step {step}: no token of the batch trains; the weights stay");
            }
            Update::NotFinite => {
                return Err(Failure::run(format_args!(
                    "step {step}: loss or gradient is not finite, so that a step that trains is not measured; lower \
                     `optim.lr` or use other weights"
                )));
            }
        }
        tracing::info!(target: "prl_trainer", success = true, "{line}");
        if n > 1 {
            measured.push((n, metrics));
        }
    }
    if let Some(output) = output {
        let mut config = serde_json::to_value(&loaded.config).map_err(Failure::run)?;
        // What "auto" turned out to be.
        config["device"] = compute.device.to_string().into();
        output.write(&json!({ "config": config, "metrics": metrics(&measured, total_memory_gib) }))?;
    }
    logging::print(table(&measured, total_memory_gib).trim_end())
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
    fn a_path_leads_to_a_regular_file_or_to_none_yet() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "old").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("later/new.json", at("dangling")).unwrap();
        std::os::unix::fs::symlink("circle", at("circle")).unwrap();
        assert_eq!(target(&at("file")), Ok(at("file")));
        assert_eq!(target(&at("link")), Ok(at("file")));
        assert_eq!(target(&at("dangling")), Ok(at("later/new.json")));
        assert_eq!(target(&at("new/result.json")), Ok(at("new/result.json")));
        for (name, reason) in
            [("", "a folder"), ("circle", "circle"), ("file/below", "directory"), ("none/", "a folder")]
        {
            assert!(target(&at(name)).unwrap_err().contains(reason), "{name}: {:?}", target(&at(name)));
        }
        for device in ["/dev/null", "/dev/stdout", "/proc/self/fd/1"] {
            assert_eq!(target(Path::new(device)), Err("it is not a regular file".into()));
        }
        let output = Output { named: at("link"), file: at("file") };
        output.write(&json!({"a": 1})).unwrap();
        assert!(std::fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert!(std::fs::read_to_string(at("file")).unwrap().contains("\"a\": 1"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "something is left behind");
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
