//! Where a run stands: steps, metrics, evaluations, checkpoints. Owns what is told of them and how; metrics are read line by
//! line, so that only the last values are in memory.

use crate::control::{Ask, Said, ask};
use crate::failure::Failure;
use crate::logging;
use crate::past::{Past, bytes};
use crate::table::table;
use glob::Pattern;
use prl_store::{Checkpoints, files_below};
use prl_types::Step;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Metrics that are told where none are asked for.
const USUAL: [&str; 7] = [
    "reward/all/mean",
    "loss/mean",
    "val/loss",
    "entropy/all/mean",
    "mismatch_kl/all/mean",
    "optim/grad_norm",
    "perf/throughput",
];
/// Begins the names of an evaluation's metrics: `eval/<environment>/…`.
const EVAL: &str = "eval/";

#[derive(Serialize)]
struct Overview {
    run: PathBuf,
    config: Option<About>,
    /// The process that answers in the folder.
    running: Option<u64>,
    last_process: Option<u32>,
    /// Where checkpoints and weights are.
    saved_in: PathBuf,
    /// The newest training step that is recorded.
    step: Step,
    max_steps: Option<u64>,
    metrics: BTreeMap<String, Last>,
    evals: Vec<Evaluated>,
    checkpoints: Vec<Saved>,
    weights: Vec<Saved>,
    unfinished: Vec<Sized>,
    orphaned: Vec<Sized>,
}

/// The configuration in a few words.
#[derive(Serialize)]
struct About {
    file: PathBuf,
    model: Option<String>,
    algorithm: Option<String>,
    environments: Vec<String>,
}

#[derive(Clone, Copy, Serialize)]
struct Last {
    step: Step,
    value: f64,
}

#[derive(Serialize)]
struct Evaluated {
    step: Step,
    env: String,
    policy_version: Option<u64>,
    reward: Option<f64>,
    /// `avg@k`, `pass@k` and `pass^k` by their names.
    measures: BTreeMap<String, f64>,
}

/// A step that has a folder.
#[derive(Serialize)]
struct Saved {
    step: Step,
    complete: bool,
    problem: Option<String>,
    bytes: u64,
}

#[derive(Serialize)]
struct Sized {
    path: PathBuf,
    bytes: u64,
}

/// Tells it.
pub fn tell(past: &Past, patterns: &[Pattern], json: bool) -> Result<u8, Failure> {
    let overview = Overview::of(past, patterns)?;
    let wanted = |name: &str| patterns.iter().any(|pattern| pattern.matches(name));
    if !patterns.is_empty() && !overview.metrics.keys().any(|name| wanted(name)) {
        let asked: Vec<String> = patterns.iter().map(|pattern| format!("`{pattern}`")).collect();
        let run = past.view.root().display();
        return Err(Failure::input(format_args!("no metric of `{run}` is called {}", asked.join(" or "))));
    }
    if json {
        let text = serde_json::to_string(&overview).map_err(Failure::run)?;
        return logging::print(&text);
    }
    logging::print(overview.text().trim_end())
}

impl Overview {
    fn of(past: &Past, patterns: &[Pattern]) -> Result<Self, Failure> {
        let root = past.view.root();
        let mut overview = Overview {
            run: root.to_owned(),
            config: past.config.as_ref().map(|config| About {
                file: past.view.configs().join(config.file),
                model: config.text("trainer.model.name").or(config.text("model.name")).map(str::to_owned),
                algorithm: config.text("orchestrator.algo.type").map(str::to_owned),
                environments: config.texts("orchestrator.train.env", "name").map(str::to_owned).collect(),
            }),
            running: match ask(root, &Ask::Status) {
                Ok(Said::Ok(status)) => status["pid"].as_u64(),
                _ => None,
            },
            last_process: past.view.last_process(),
            saved_in: past.view.ckpt_root().to_owned(),
            step: 0,
            max_steps: past.config.as_ref().and_then(|config| config.keys.get("max_steps")?.as_u64()),
            metrics: BTreeMap::new(),
            evals: Vec::new(),
            checkpoints: saved(&past.view.checkpoints())?,
            weights: saved(&past.view.weights())?,
            unfinished: sized(past.view.unfinished().map_err(Failure::input)?)?,
            orphaned: sized(past.view.orphaned().map_err(Failure::input)?)?,
        };
        overview.read_metrics(past, patterns)?;
        Ok(overview)
    }

    fn read_metrics(&mut self, past: &Past, patterns: &[Pattern]) -> Result<(), Failure> {
        let wanted = |name: &str| match patterns {
            [] => USUAL.contains(&name),
            some => some.iter().any(|pattern| pattern.matches(name)),
        };
        for line in past.metrics()?.into_iter().flatten() {
            let line = line?;
            let step = line.step;
            if line.values.keys().any(|name| !name.starts_with(EVAL)) {
                self.step = self.step.max(step);
            }
            self.evals.extend(evaluated(step, &line.values));
            for (name, value) in line.values.into_iter().filter(|(name, _)| wanted(name)) {
                self.metrics.insert(name, Last { step, value });
            }
        }
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = format!("run          {}\n", self.run.display());
        if let Some(about) = &self.config {
            let model = about.model.as_deref().map(|model| format!("model {model}"));
            let algorithm = about.algorithm.as_deref().map(|name| format!("algorithm {name}"));
            let envs = (!about.environments.is_empty()).then(|| format!("on {}", about.environments.join(", ")));
            let words: Vec<String> = [model, algorithm, envs].into_iter().flatten().collect();
            text += &format!("config       {}: {}\n", about.file.display(), words.join(" | "));
        }
        text += &match (self.running, self.last_process) {
            (Some(pid), _) => format!("process      {pid} is running\n"),
            (None, Some(pid)) => format!("process      {pid} was the last; none answers\n"),
            (None, None) => String::new(),
        };
        if self.saved_in != self.run {
            let here = if self.saved_in.exists() { "" } else { ", which is not there (seen from this folder)" };
            text += &format!("saved in     {}{here}\n", self.saved_in.display());
        }
        let of = self.max_steps.map_or_else(String::new, |steps| format!(" of {steps}"));
        text += &format!("steps        {}{of}\n", self.step);
        let metrics = self.metrics.iter().map(|(name, Last { step, value })| {
            let age = if *step == self.step { String::new() } else { format!("step {step}") };
            vec![name.clone(), number(*value), age]
        });
        section(&mut text, "last values", &["METRIC", "VALUE", ""], metrics.collect());
        let evals = self.evals.iter().map(|eval| {
            let measures: Vec<String> =
                eval.measures.iter().map(|(name, value)| format!("{name} {}", number(*value))).collect();
            vec![
                eval.step.to_string(),
                eval.env.clone(),
                eval.policy_version.map_or_else(|| "-".into(), |version| format!("v{version}")),
                eval.reward.map_or_else(|| "-".into(), number),
                measures.join("  "),
            ]
        });
        section(&mut text, "evaluations", &["STEP", "ENV", "POLICY", "REWARD", "MEASURES"], evals.collect());
        for (title, steps) in [("checkpoints", &self.checkpoints), ("weights", &self.weights)] {
            let rows = steps.iter().map(|saved| {
                let state = saved.problem.clone().unwrap_or_else(|| "complete".into());
                vec![saved.step.to_string(), bytes(saved.bytes), state]
            });
            section(&mut text, title, &["STEP", "SIZE", "STATE"], rows.collect());
        }
        for (title, list) in [("being written or left over", &self.unfinished), ("orphaned", &self.orphaned)] {
            let rows = list.iter().map(|one| vec![one.path.display().to_string(), bytes(one.bytes)]);
            section(&mut text, title, &["PATH", "SIZE"], rows.collect());
        }
        text
    }
}

fn section(text: &mut String, title: &str, heading: &[&str], rows: Vec<Vec<String>>) {
    if !rows.is_empty() {
        *text += &format!("\n{title}\n{}", table(heading, &rows));
    }
}

/// Four decimals, and as many digits as it takes where these say nothing.
pub fn number(value: f64) -> String {
    let value = value + 0.0;
    match value.abs() {
        size if value.fract() == 0.0 && size < 1e15 => format!("{value}"),
        size if (1e-3..1e6).contains(&size) => format!("{value:.4}"),
        _ => format!("{value:.4e}"),
    }
}

/// What a line says of evaluations: one for each environment in it.
fn evaluated(step: Step, values: &BTreeMap<String, f64>) -> Vec<Evaluated> {
    let own = || values.range(EVAL.to_owned()..).take_while(|(name, _)| name.starts_with(EVAL));
    let env_of = |name: &String| Some(name[EVAL.len()..].split_once('/')?.0.to_owned());
    let envs: BTreeSet<String> = own().filter_map(|(name, _)| env_of(name)).collect();
    let of = |env: String| {
        let prefix = format!("{EVAL}{env}/");
        let measures = own().filter_map(|(name, value)| {
            let name = name.strip_prefix(&prefix)?;
            let is_measure = ["avg@", "pass@", "pass^"].iter().any(|kind| name.starts_with(kind));
            is_measure.then(|| (name.to_owned(), *value))
        });
        let value = |name: &str| values.get(&format!("{prefix}{name}")).copied();
        Evaluated {
            step,
            policy_version: value("policy_version").map(|version| version as u64),
            reward: value("all/reward/mean"),
            measures: measures.collect(),
            env,
        }
    };
    envs.into_iter().map(of).collect()
}

fn saved(steps: &Checkpoints) -> Result<Vec<Saved>, Failure> {
    let mut found = Vec::new();
    for step in steps.steps().map_err(Failure::input)? {
        let problem = steps.verify(step).err().map(|error| error.to_string());
        // A running run may have pruned it meanwhile.
        if steps.path(step).exists() {
            let bytes = size(&steps.path(step))?;
            found.push(Saved { step, complete: problem.is_none(), problem, bytes });
        }
    }
    Ok(found)
}

fn sized(paths: Vec<PathBuf>) -> Result<Vec<Sized>, Failure> {
    let of = |path: PathBuf| Ok(Sized { bytes: size(&path)?, path });
    paths.into_iter().map(of).collect()
}

fn size(path: &std::path::Path) -> Result<u64, Failure> {
    let files = files_below(path).map_err(Failure::input)?;
    Ok(files.iter().map(|(_, bytes)| bytes).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_are_told_apart() {
        let values =
            [("eval/a/avg@2", 0.5), ("eval/a/all/reward/mean", 0.25), ("eval/b/pass@1", 1.0), ("loss/mean", 2.0)];
        let values = values.map(|(name, value)| (name.to_owned(), value)).into();
        let found = evaluated(3, &values);
        assert_eq!(found.iter().map(|eval| eval.env.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((found[0].reward, found[0].measures["avg@2"], found[1].reward), (Some(0.25), 0.5, None));
        assert_eq!(found[1].measures.len(), 1);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, -0.0, 16.0, 0.21428, 1e-9, 12345678.25].map(number);
        assert_eq!(shown, ["0", "0", "16", "0.2143", "1.0000e-9", "1.2346e7"]);
    }
}
