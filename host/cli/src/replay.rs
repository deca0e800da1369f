//! `prl replay`: runs the environments' side of recorded rollouts again and compares it. Owns which rollouts are meant and
//! what is told; how one is run again is `again`'s.

mod again;

use crate::env::open;
use crate::env::record::Line;
use crate::eval::RESULTS;
use crate::failure::Failure;
use crate::logging;
use again::{Again, Verdict};
use clap::Args;
use futures::{StreamExt, stream};
use prl_store::{RolloutLog, Split, Subset, read_lines};
use prl_types::Step;
use serde_json::json;
use std::path::{Path, PathBuf};

/// `prl replay`.
#[derive(Args)]
pub struct Replay {
    /// A run's directory, an evaluation's (`prl eval --output`), or a file of rollouts.
    pub run: PathBuf,
    /// Only this step; by default all that are recorded.
    #[arg(long, value_name = "N")]
    pub step: Option<Step>,
    /// Only this rollout: its group and member, such as 12.0, or its place in the step's log, from 0.
    #[arg(long, value_name = "K")]
    pub rollout: Option<String>,
    /// Only rollouts of training.
    #[arg(long, conflicts_with = "eval")]
    pub train: bool,
    /// Only rollouts of evaluations.
    #[arg(long)]
    pub eval: bool,
    /// The environment, where it is not found by itself; its digest must be the recorded one.
    #[arg(long, value_name = "ENV")]
    pub env: Vec<String>,
    /// Print one JSON object a rollout.
    #[arg(long)]
    pub json: bool,
}

/// Rollouts of one file.
struct Log {
    path: PathBuf,
    lines: Vec<Line>,
}

/// Runs the command; the code is 1 where something differs.
pub fn run(asked: &Replay) -> Result<u8, Failure> {
    let logs = logs(asked)?;
    let found: usize = logs.iter().map(|log| log.lines.len()).sum();
    open::block_on(async {
        let mut again = Again::new(&asked.env).await?;
        let (mut chosen, mut equal, mut different, mut skipped) = (0, 0, 0, Vec::new());
        for log in &logs {
            let picked: Vec<usize> = (0..log.lines.len()).filter(|at| asked.picks(*at, &log.lines[*at])).collect();
            chosen += picked.len();
            for at in &picked {
                again.prepare(&log.lines[*at]).await?;
            }
            let lanes = std::thread::available_parallelism().map_or(1, usize::from) * 2;
            let run = |at: usize| {
                let again = &again;
                async move { (at, again.compare(&log.lines, at).await) }
            };
            let verdicts: Vec<(usize, Verdict)> = stream::iter(picked).map(run).buffered(lanes).collect().await;
            for (at, verdict) in verdicts {
                match &verdict {
                    Verdict::Equal(_) => equal += 1,
                    Verdict::Different(_) => different += 1,
                    Verdict::Skipped(reason) => skipped.push(reason.clone()),
                }
                asked.tell(log, at, &verdict)?;
            }
        }
        if chosen == 0 {
            let which =
                asked.rollout.as_ref().map(|k| format!(" is called `{k}`")).unwrap_or(" is of that kind".into());
            return Err(Failure::input(format_args!(
                "none of the {found} rollouts in `{}`{which}",
                asked.run.display()
            )));
        }
        if let (0, 0, Some(reason)) = (equal, different, skipped.first()) {
            return Err(Failure::input(format_args!("no rollout can be run again; the first: {reason}")));
        }
        if !asked.json {
            let first = skipped.first().map(|reason| format!("; {} skipped, the first: {reason}", skipped.len()));
            let names = again.names().join(", ");
            logging::print(&format!(
                "{equal} of {} rollouts are hash-equal ({names}){}",
                equal + different,
                first.unwrap_or_default()
            ))?;
        }
        Ok(u8::from(different > 0))
    })
}

impl Replay {
    fn picks(&self, at: usize, line: &Line) -> bool {
        let named = |k: &String| *k == at.to_string() || *k == line.rollout.id.to_string();
        self.rollout.as_ref().is_none_or(named)
    }

    fn tell(&self, log: &Log, at: usize, verdict: &Verdict) -> Result<(), Failure> {
        let id = log.lines[at].rollout.id.to_string();
        if self.json {
            let (result, sha256, reason) = match verdict {
                Verdict::Equal(sha256) => ("equal", Some(sha256), None),
                Verdict::Different(reason) => ("different", None, Some(reason)),
                Verdict::Skipped(reason) => ("skipped", None, Some(reason)),
            };
            let line = json!({ "log": log.path, "line": at + 1, "rollout": id, "result": result, "sha256": sha256,
                               "reason": reason });
            return logging::print(&line.to_string()).map(|_| ());
        }
        match verdict {
            // One rollout is worth its hash.
            Verdict::Equal(sha256) if self.rollout.is_some() => {
                logging::print(&format!("{}: rollout {id}: sha256:{sha256}", log.path.display())).map(|_| ())
            }
            Verdict::Different(reason) => {
                logging::print(&format!("{}: rollout {id} differs: {reason}", log.path.display())).map(|_| ())
            }
            _ => Ok(()),
        }
    }
}

fn logs(asked: &Replay) -> Result<Vec<Log>, Failure> {
    let root = &asked.run;
    let evaluated = root.join(RESULTS);
    let paths = match (root.is_file(), evaluated.is_file()) {
        (true, _) => vec![root.clone()],
        (false, true) => vec![evaluated],
        (false, false) => files(asked, root)?,
    };
    let read = |path: PathBuf| {
        let lines = read_lines(&path).map_err(Failure::input)?;
        Ok(Log { path, lines })
    };
    paths.into_iter().map(read).collect()
}

fn files(asked: &Replay, root: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !root.is_dir() {
        return Err(Failure::input(format_args!("there is no run `{}`", root.display())));
    }
    let log = RolloutLog::of(root);
    let steps = log.steps().map_err(|error| Failure::input(format_args!("`{}` is no run: {error}", root.display())))?;
    if let Some(step) = asked.step.filter(|step| !steps.contains(step)) {
        let known = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => format!("there are steps {first} to {last}"),
            _ => "there are none".into(),
        };
        return Err(Failure::input(format_args!("`{}` has no rollouts of step {step}; {known}", root.display())));
    }
    let splits = [(Split::Train, !asked.eval), (Split::Eval, !asked.train)];
    let wanted = steps.iter().filter(|step| asked.step.is_none_or(|only| only == **step));
    let paths = wanted.flat_map(|step| {
        let log = &log;
        splits.iter().filter(|(_, wanted)| *wanted).map(move |(split, _)| log.path(*step, *split, Subset::All))
    });
    let paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    match paths.is_empty() {
        true => Err(Failure::input(format_args!("`{}` has no rollouts of that kind", root.display()))),
        false => Ok(paths),
    }
}
