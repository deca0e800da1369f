//! What of a run's records belongs to a checkpoint, and what goes when a run goes on from it. Owns the marks and the cutting;
//! knows no content but the `step` and `eval/…/policy_version` fields of `metrics.jsonl` and the environment in a rollout.

use crate::error::At;
use crate::rollouts::{Split, Subset};
use crate::steps::steps_in;
use crate::view::files_below;
use crate::{RolloutLog, StoreError, files};
use prl_types::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// How long the rollout log's files of later steps were when a checkpoint was taken, by step, split and subset: what was
/// sampled ahead is in the checkpoint and will not be recorded again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks(Vec<(Step, String, u64)>);

const KINDS: [(Split, Subset); 4] = [
    (Split::Train, Subset::All),
    (Split::Train, Subset::Effective),
    (Split::Eval, Subset::All),
    (Split::Eval, Subset::Effective),
];

impl Marks {
    /// Of the files that there are of steps after `step`.
    pub(crate) fn take(log: &RolloutLog, step: Step) -> Result<Self, StoreError> {
        let mut marks = Vec::new();
        for (later, _) in steps_in(log.dir())?.into_iter().filter(|(later, _)| *later > step) {
            for (split, subset) in KINDS {
                let path = log.path(later, split, subset);
                match fs::metadata(&path) {
                    Ok(file) => marks.push((later, log.relative(&path), file.len())),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).at("look at", &path),
                }
            }
        }
        Ok(Marks(marks))
    }

    /// The steps that files are marked of.
    pub(crate) fn steps(&self) -> BTreeSet<Step> {
        self.0.iter().map(|(step, ..)| *step).collect()
    }

    /// Whether the folder `from` of `step` is just what the marks say.
    pub(crate) fn hold(&self, step: Step, from: &Path) -> Result<bool, StoreError> {
        let of_step = self.0.iter().filter(|(of, ..)| *of == step);
        let name = |file: &str| file.split_once('/').map_or(file, |(_, within)| within).to_owned();
        let mut marked: Vec<(String, u64)> = of_step.map(|(_, file, len)| (name(file), *len)).collect();
        let mut there = files_below(from)?;
        marked.sort_unstable();
        there.sort_unstable();
        Ok(marked == there)
    }

    /// Writes what the marks say of the files of `step`, which are in the folder `from`, into the folder `to`. What has gone
    /// from the log since is told, and left out.
    pub(crate) fn copy(&self, step: Step, from: &Path, to: &Path) -> Result<(), StoreError> {
        files::create_dir(to)?;
        for (_, file, len) in self.0.iter().filter(|(of, ..)| *of == step) {
            // A name in the log begins with the step's folder.
            let within: PathBuf = Path::new(file).components().skip(1).collect();
            let (old, new) = (from.join(&within), to.join(&within));
            let mut bytes = Vec::new();
            match File::open(&old) {
                Ok(file) => drop(file.take(*len).read_to_end(&mut bytes).at("read", &old)?),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).at("open", &old),
            }
            if (bytes.len() as u64) < *len {
                tracing::warn!("rollouts that the checkpoint holds are no longer on record in `{}`", old.display());
            }
            if let Some(parent) = new.parent() {
                files::create_dir(parent)?;
            }
            files::write_synced(&new, &bytes)?;
        }
        files::sync_tree(to).map(drop)
    }
}

/// The evaluation environments whose evaluation of `step` is in `metrics.jsonl`.
pub(crate) fn evaluated(metrics: &Path, step: Step) -> BTreeSet<String> {
    let name = |key: &String| Some(key.strip_prefix("eval/")?.strip_suffix("/policy_version")?.to_owned());
    rows_of(metrics, step).flat_map(|row| row.keys().filter_map(name).collect::<Vec<_>>()).collect()
}

/// Whether a validation after `step` is in a file of metrics.
pub(crate) fn validated(metrics: &Path, step: Step) -> bool {
    rows_of(metrics, step).any(|row| row.keys().any(|key| key.starts_with("val/")))
}

/// The lines of `step` in a file of metrics; none where it cannot be read.
fn rows_of(metrics: &Path, step: Step) -> impl Iterator<Item = serde_json::Map<String, Value>> + use<> {
    let file = File::open(metrics).into_iter();
    let rows = file.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    let rows = rows.filter_map(|line| serde_json::from_str::<serde_json::Map<String, Value>>(&line).ok());
    rows.filter(move |row| row.get("step").and_then(Value::as_u64) == Some(step))
}

/// Leaves in the evaluation's files of `step` only rollouts of the environments `done`; the files as they were go to `aside`.
pub(crate) fn keep_evaluated(
    log: &RolloutLog,
    step: Step,
    done: &BTreeSet<String>,
    aside: impl Fn() -> Result<PathBuf, StoreError>,
) -> Result<(), StoreError> {
    let ours = |line: &[u8]| {
        let line = serde_json::from_slice::<Value>(line).unwrap_or_default();
        line["task"]["env"].as_str().is_some_and(|env| done.contains(env))
    };
    for subset in [Subset::All, Subset::Effective] {
        let path = log.path(step, Split::Eval, subset);
        let Ok(bytes) = fs::read(&path) else { continue };
        let kept: Vec<u8> =
            bytes.split_inclusive(|b| *b == b'\n').filter(|line| ours(line)).flatten().copied().collect();
        if kept.len() < bytes.len() {
            let target = aside()?;
            files::create_dir(&target)?;
            let name = if subset == Subset::All { "all.jsonl" } else { "effective.jsonl" };
            files::write_synced(&target.join(name), &bytes)?;
            files::write_atomic(&path, &kept)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::fault;
    use crate::{Create, RunDir};
    use serde_json::json;

    /// A run that is to go on after step 4, with records of the steps that follow.
    fn run(dir: &Path) -> (RunDir, Marks) {
        let run = RunDir::create(dir, &Create { resuming: true, ..Create::default() }).unwrap();
        let mut log = run.rollouts();
        let line = |env: &str, n: u32| json!({"task": {"env": env}, "n": n});
        log.append(4, Split::Eval, Subset::All, &line("a", 1)).unwrap();
        log.append(5, Split::Train, Subset::All, &line("a", 2)).unwrap();
        log.append(6, Split::Train, Subset::Effective, &line("a", 3)).unwrap();
        let marks = log.marks(4).unwrap();
        log.append(5, Split::Train, Subset::All, &line("a", 4)).unwrap();
        log.append(4, Split::Eval, Subset::All, &line("b", 5)).unwrap();
        log.append(7, Split::Train, Subset::All, &line("a", 6)).unwrap();
        log.flush().unwrap();
        for step in 4..=5 {
            run.checkpoints().begin(step).unwrap().commit().unwrap();
        }
        let rows = "{\"step\":4,\"eval/a/policy_version\":4}\n{\"step\":5}\n";
        fs::write(run.metrics(), rows).unwrap();
        (run, marks)
    }

    /// Every file that is not set aside.
    fn kept(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let files = files::sync_tree(dir).unwrap().into_iter();
        let files = files.filter(|file| !file.starts_with("orphaned") && file != Path::new(".lock"));
        files.map(|file| (file.clone(), fs::read(dir.join(file)).unwrap())).collect()
    }

    #[test]
    fn killed_at_any_operation_the_next_preparation_completes_it() {
        let want = {
            let dir = tempfile::tempdir().unwrap();
            let (run, marks) = run(dir.path());
            run.set_aside_after(4, &marks).unwrap();
            kept(dir.path())
        };
        assert!(want.iter().any(|(file, text)| file.ends_with("step_5/train/all/traces.jsonl") && text.len() < 60));
        for die_at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let (run, marks) = run(dir.path());
            fault::die_after(Some(die_at));
            let died = run.set_aside_after(4, &marks).is_err();
            fault::die_after(None);
            run.set_aside_after(4, &marks).unwrap();
            let left = kept(dir.path());
            // Copies that were not completed may lie about; nothing reads them.
            let left: Vec<_> = left.into_iter().filter(|(f, _)| !f.to_string_lossy().contains(".tmp")).collect();
            let left: Vec<_> = left.into_iter().filter(|(f, _)| !f.to_string_lossy().contains(".kept")).collect();
            assert_eq!(left, want, "died at operation {die_at}");
            if !died {
                assert!(die_at > 30, "only {die_at} operations");
                break;
            }
        }
    }
}
