//! `prl replay`: runs the environments' side of recorded rollouts again and compares it. Owns which rollouts are meant and
//! what is told; how one is run again is `again`'s, and what becomes of groups is `groups`'s.

mod again;
mod groups;

use crate::env::open;
use crate::env::record::Line;
use crate::eval::RESULTS;
use crate::failure::Failure;
use crate::logging;
use again::{Again, Verdict, compare};
use clap::Args;
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use groups::{Groups, Seen};
use prl_store::{RolloutLog, Split, Subset, read_lines};
use prl_types::Step;
use serde_json::json;
use std::collections::BTreeSet;
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

/// Runs the command; the code is 1 where something differs.
pub fn run(asked: &Replay) -> Result<u8, Failure> {
    let paths = logs(asked)?;
    open::block_on(async {
        let mut again = Again::new(&asked.env).await?;
        let mut counts = Counts::default();
        for path in &paths {
            asked.log(path, &mut again, &mut counts).await?;
        }
        asked.end(&again, &counts)
    })
}

/// What came of all of them.
#[derive(Default)]
struct Counts {
    found: usize,
    chosen: usize,
    equal: usize,
    different: usize,
    skipped: usize,
    /// Why the first one was skipped.
    reason: Option<String>,
}

impl Replay {
    /// Runs the rollouts of one log. Of these there are as many in memory as are under way, and those whose groups are
    /// not whole yet.
    async fn log(&self, path: &Path, again: &mut Again, counts: &mut Counts) -> Result<(), Failure> {
        let wanted = self.wanted(path)?;
        let lanes = std::thread::available_parallelism().map_or(1, usize::from) * 2;
        let mut lines = read_lines::<Line>(path).map_err(Failure::input)?.enumerate();
        let mut running = FuturesOrdered::new();
        let mut groups = Groups::default();
        loop {
            while running.len() < lanes
                && let Some((at, line)) = lines.next()
            {
                let line = line.map_err(Failure::input)?;
                let picked = self.picks(at, &line);
                counts.found += 1;
                counts.chosen += usize::from(picked);
                if !picked && !wanted.contains(&groups::key(&line)) {
                    continue;
                }
                let ready = again.prepare(&line).await?;
                running.push_back(async move {
                    let verdict = if picked { Some(compare(&ready, &line).await) } else { None };
                    let seen = Seen { at, id: line.rollout.id, verdict };
                    (line, ready, seen)
                });
            }
            let Some((line, ready, seen)) = running.next().await else { break };
            for seen in groups.add(&line, &ready, seen).await {
                self.tell(path, seen, counts)?;
            }
        }
        for seen in groups.rest().await {
            self.tell(path, seen, counts)?;
        }
        Ok(())
    }

    /// Groups of the rollout that is named: the others in them are looked at too, where groups are scored.
    fn wanted(&self, path: &Path) -> Result<BTreeSet<groups::Key>, Failure> {
        let mut wanted = BTreeSet::new();
        if self.rollout.is_some() {
            for (at, line) in read_lines::<Line>(path).map_err(Failure::input)?.enumerate() {
                let line = line.map_err(Failure::input)?;
                if self.picks(at, &line) {
                    wanted.insert(groups::key(&line));
                }
            }
        }
        Ok(wanted)
    }

    fn picks(&self, at: usize, line: &Line) -> bool {
        let named = |k: &String| *k == at.to_string() || *k == line.rollout.id.to_string();
        self.rollout.as_ref().is_none_or(named)
    }

    fn tell(&self, path: &Path, seen: Seen, counts: &mut Counts) -> Result<(), Failure> {
        let Some(verdict) = seen.verdict else { return Ok(()) };
        let id = seen.id.to_string();
        match &verdict {
            Verdict::Equal(_) => counts.equal += 1,
            Verdict::Different(_) => counts.different += 1,
            Verdict::Skipped(reason) => {
                counts.skipped += 1;
                counts.reason.get_or_insert_with(|| reason.clone());
            }
        }
        if self.json {
            let (result, sha256, reason) = match &verdict {
                Verdict::Equal(sha256) => ("equal", Some(sha256), None),
                Verdict::Different(reason) => ("different", None, Some(reason)),
                Verdict::Skipped(reason) => ("skipped", None, Some(reason)),
            };
            let line = json!({ "log": path, "line": seen.at + 1, "rollout": id, "result": result, "sha256": sha256,
                               "reason": reason });
            return logging::print(&line.to_string()).map(|_| ());
        }
        match &verdict {
            // One rollout is worth its hash.
            Verdict::Equal(sha256) if self.rollout.is_some() => {
                logging::print(&format!("{}: rollout {id}: sha256:{sha256}", path.display())).map(|_| ())
            }
            Verdict::Different(reason) => {
                logging::print(&format!("{}: rollout {id} differs: {reason}", path.display())).map(|_| ())
            }
            _ => Ok(()),
        }
    }

    fn end(&self, again: &Again, counts: &Counts) -> Result<u8, Failure> {
        let Counts { found, chosen, equal, different, skipped, reason } = counts;
        if *found == 0 {
            let run = self.run.display();
            return Err(Failure::input(format_args!(
                "`{run}` holds no rollouts: not one line of it is a whole record"
            )));
        }
        if *chosen == 0 {
            let which = self.rollout.as_ref().map(|k| format!(" is called `{k}`")).unwrap_or(" is of that kind".into());
            return Err(Failure::input(format_args!(
                "none of the {found} rollouts in `{}`{which}",
                self.run.display()
            )));
        }
        if let (0, 0, Some(reason)) = (equal, different, reason) {
            return Err(Failure::input(format_args!("no rollout can be run again; the first: {reason}")));
        }
        if !self.json {
            let first = reason.as_ref().map(|reason| format!("; {skipped} skipped, the first: {reason}"));
            let names = again.names().join(", ");
            logging::print(&format!(
                "{equal} of {} rollouts are hash-equal ({names}){}",
                equal + different,
                first.unwrap_or_default()
            ))?;
        }
        Ok(u8::from(*different > 0))
    }
}

fn logs(asked: &Replay) -> Result<Vec<PathBuf>, Failure> {
    let root = &asked.run;
    let evaluated = root.join(RESULTS);
    match (root.is_file(), evaluated.is_file()) {
        (true, _) => Ok(vec![root.clone()]),
        (false, true) => Ok(vec![evaluated]),
        (false, false) => files(asked, root),
    }
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
