//! The run directory as a whole: layout, lock, refusal to overwrite, cleaning, setting aside what a resumed run will
//! write again. Owns the names; knows no content but the `step` field of `metrics.jsonl`.

use crate::error::At;
use crate::records::{self, Marks};
use crate::steps::{Checkpoints, steps_in};
use crate::{RolloutLog, StoreError, files};
use prl_types::Step;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

pub(crate) const LOGS: &str = "logs";
pub(crate) const CONFIGS: &str = "configs";
pub(crate) const CHECKPOINTS: &str = "checkpoints";
pub(crate) const WEIGHTS: &str = "weights";
pub(crate) const ROLLOUTS: &str = "rollouts";
const BROADCASTS: &str = "broadcasts";
pub(crate) const METRICS: &str = "metrics.jsonl";
const STATUS: &str = "status.jsonl";
const WANDB: &str = "wandb";
pub(crate) const ORPHANED: &str = "orphaned";
pub(crate) const LOCK: &str = ".lock";
const CONTROL: &str = "control.sock";

/// What shows that a run was here. `configs` is not among them: a dry run writes it.
pub(crate) const TRACES: [&str; 9] =
    [CHECKPOINTS, WEIGHTS, ROLLOUTS, BROADCASTS, METRICS, STATUS, LOGS, WANDB, ORPHANED];

/// How to take a run directory into use.
#[derive(Clone, Debug, Default)]
pub struct Create {
    /// Remove an earlier run first.
    pub clean: bool,
    /// Refuse to remove anything (the environment variable `NEVER_CLEAN_OUTPUT_DIR`).
    pub never_clean: bool,
    /// Continue the run that is there.
    pub resuming: bool,
    /// Start anew where there is no checkpoint to continue from.
    pub allow_fresh: bool,
    /// Where checkpoints and weights go instead of the run directory (`ckpt.output_dir`).
    pub ckpt_dir: Option<PathBuf>,
}

/// A run directory in use by this process:
///
/// ```text
/// logs/  configs/  metrics.jsonl  status.jsonl  wandb/
/// checkpoints/step_N/{trainer,orchestrator}/  weights/step_N/
/// rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl
/// broadcasts/step_N/   weights on their way to inference servers
/// orphaned/   what a resumed run set aside
/// ```
#[derive(Debug)]
pub struct RunDir {
    root: PathBuf,
    ckpt_root: PathBuf,
    _lock: File,
    /// Where checkpoints go elsewhere.
    _ckpt_lock: Option<File>,
}

impl RunDir {
    /// What [`RunDir::create`] would refuse, told without touching anything: a run that is there, or, with a
    /// `resume_step` (see [`Checkpoints::resolve`]), no checkpoint of it. Whether that checkpoint is whole is not
    /// looked at.
    ///
    /// # Errors
    /// Those of [`RunDir::create`], [`StoreError::NoCheckpoint`] and [`StoreError::BadCheckpoint`].
    pub fn check(output_dir: &Path, how: &Create, resume_step: Option<i64>) -> Result<(), StoreError> {
        let (root, ckpt_root) = roots(output_dir, how)?;
        check_vacant(&root, &ckpt_root, how)?;
        match resume_step {
            Some(step) => match Checkpoints::with_manifest(ckpt_root.join(CHECKPOINTS)).check(step) {
                Err(StoreError::NoCheckpoint { .. }) if how.allow_fresh => Ok(()),
                checked => checked,
            },
            None => Ok(()),
        }
    }

    /// Whether a run left anything in a folder. The configuration that a dry run writes is nothing.
    pub fn holds_run(output_dir: &Path) -> bool {
        TRACES.into_iter().any(|name| holds(&output_dir.join(name)))
    }

    /// Takes a directory into use, and creates it if need be. No other process can use it until this value is dropped
    /// or the process ends.
    ///
    /// # Errors
    /// [`StoreError::HoldsRun`] when a run is there and neither `clean` nor `resuming` is set; nothing is touched then.
    /// [`StoreError::CleanForbidden`], [`StoreError::InUse`], and what the system refuses.
    pub fn create(output_dir: &Path, how: &Create) -> Result<Self, StoreError> {
        let (root, ckpt_root) = roots(output_dir, how)?;
        // Before anything is created, so that a refusal leaves no trace.
        check_vacant(&root, &ckpt_root, how)?;
        files::create_dir(&root)?;
        let lock_file = lock(&root)?;
        let ckpt_lock = if ckpt_root == root {
            None
        } else {
            files::create_dir(&ckpt_root)?;
            Some(lock(&ckpt_root)?)
        };
        check_vacant(&root, &ckpt_root, how)?;
        if how.clean && !how.resuming {
            for name in TRACES.into_iter().chain([CONFIGS]) {
                files::remove(&root.join(name))?;
            }
            for name in [CHECKPOINTS, WEIGHTS, ORPHANED] {
                files::remove(&ckpt_root.join(name))?;
            }
        }
        files::create_dir(&root.join(LOGS))?;
        files::create_dir(&root.join(CONFIGS))?;
        Ok(RunDir { root, ckpt_root, _lock: lock_file, _ckpt_lock: ckpt_lock })
    }

    /// The directory, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `logs/`.
    pub fn logs(&self) -> PathBuf {
        self.root.join(LOGS)
    }

    /// `configs/`.
    pub fn configs(&self) -> PathBuf {
        self.root.join(CONFIGS)
    }

    /// `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(METRICS)
    }

    /// `status.jsonl`, which depends on the clock.
    pub fn status(&self) -> PathBuf {
        self.root.join(STATUS)
    }

    /// The socket that a running run listens on.
    pub fn control(root: &Path) -> PathBuf {
        root.join(CONTROL)
    }

    /// Where W&B's `wandb/` folder goes.
    pub fn wandb(&self) -> PathBuf {
        self.root.join(WANDB)
    }

    /// Resumable checkpoints, `checkpoints/step_N/`.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::with_manifest(self.ckpt_root.join(CHECKPOINTS))
    }

    /// Exported weights, `weights/step_N/` with a `STABLE` marker.
    pub fn weights(&self) -> Checkpoints {
        Checkpoints::with_marker(self.ckpt_root.join(WEIGHTS))
    }

    /// Weights on their way to inference servers, `broadcasts/step_N/` with a `STABLE` marker.
    pub fn broadcasts(&self) -> Checkpoints {
        Checkpoints::with_marker(self.root.join(BROADCASTS))
    }

    /// The rollout log.
    pub fn rollouts(&self) -> RolloutLog {
        RolloutLog::new(self.root.join(ROLLOUTS))
    }

    /// The evaluation environments whose evaluation with the version of `step` is on record.
    pub fn evaluated(&self, step: Step) -> BTreeSet<String> {
        records::evaluated(&self.metrics(), step)
    }

    /// Whether the validation after `step` is on record.
    pub fn validated(&self, step: Step) -> bool {
        records::validated(&self.metrics(), step)
    }

    /// Prepares the directory for a run that continues after `step`: everything of later steps goes to `orphaned/` but what
    /// `marks` say to belong to the checkpoint, nothing but `broadcasts/` is deleted, and `metrics.jsonl` ends with that
    /// step. Of its evaluation stays what is complete.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn set_aside_after(&self, step: Step, marks: &Marks) -> Result<(), StoreError> {
        self.take_back(marks)?;
        self.set_aside(|n| n > step, marks)?;
        let aside = || vacant(&self.root.join(ORPHANED).join(ROLLOUTS), &format!("eval_of_step_{step}"));
        records::keep_evaluated(&self.rollouts(), step, &self.evaluated(step), aside)?;
        self.cut_metrics(Some(step))
    }

    /// Prepares the directory for a run that starts anew where another was, without a checkpoint that it could go on from:
    /// everything of that goes to `orphaned/`.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn set_aside_all(&self) -> Result<(), StoreError> {
        self.set_aside(|_| true, &Marks::default())?;
        if self.status().exists() {
            files::rename(&self.status(), &vacant(&self.root.join(ORPHANED), STATUS)?)?;
        }
        self.cut_metrics(None)
    }

    fn set_aside(&self, goes: impl Fn(Step) -> bool, marks: &Marks) -> Result<(), StoreError> {
        // What was on its way has arrived or is sent again.
        files::remove(&self.root.join(BROADCASTS))?;
        for (root, name) in [(&self.ckpt_root, CHECKPOINTS), (&self.ckpt_root, WEIGHTS), (&self.root, ROLLOUTS)] {
            let dir = root.join(name);
            for (n, path) in steps_in(&dir)?.into_iter().filter(|(n, _)| goes(*n)) {
                let stays = name == ROLLOUTS && marks.steps().contains(&n);
                if stays && marks.hold(n, &path)? {
                    continue;
                }
                // Complete before the old one goes, and found again should this be cut off.
                let copy = dir.join(format!("step_{n}.kept"));
                if stays {
                    files::remove(&copy)?;
                    let partial = dir.join(format!("step_{n}.tmp"));
                    files::remove(&partial)?;
                    marks.copy(n, &path, &partial)?;
                    files::rename(&partial, &copy)?;
                }
                files::rename(&path, &vacant(&root.join(ORPHANED).join(name), &format!("step_{n}"))?)?;
                if stays {
                    files::rename(&copy, &path)?;
                }
            }
        }
        Ok(())
    }

    /// Names that an earlier preparation, which was cut off, had not yet given.
    fn take_back(&self, marks: &Marks) -> Result<(), StoreError> {
        for n in marks.steps() {
            let path = self.root.join(ROLLOUTS).join(format!("step_{n}"));
            let copy = path.with_extension("kept");
            if copy.is_dir() && !path.exists() {
                files::rename(&copy, &path)?;
            }
        }
        Ok(())
    }

    fn cut_metrics(&self, last: Option<Step>) -> Result<(), StoreError> {
        let path = self.metrics();
        let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
        let keeps = |line: &&str| {
            let parsed = serde_json::from_str::<serde_json::Value>(line);
            let step = parsed.ok().and_then(|v| v.get("step").and_then(serde_json::Value::as_u64));
            step.zip(last).is_some_and(|(step, last)| step <= last)
        };
        let (kept, cut): (Vec<&str>, Vec<&str>) = text.lines().partition(keeps);
        if cut.is_empty() {
            return Ok(());
        }
        let lines = |list: Vec<&str>| list.iter().map(|line| format!("{line}\n")).collect::<String>();
        let name = last.map_or("metrics.jsonl".to_owned(), |step| format!("metrics_after_step_{step}.jsonl"));
        let aside = vacant(&self.root.join(ORPHANED), &name)?;
        files::write_synced(&aside, lines(cut).as_bytes())?;
        files::write_atomic(&path, lines(kept).as_bytes())
    }
}

/// The run directory and where its checkpoints are, absolute.
fn roots(output_dir: &Path, how: &Create) -> Result<(PathBuf, PathBuf), StoreError> {
    let root = std::path::absolute(output_dir).at("resolve", output_dir)?;
    let ckpt_root = match &how.ckpt_dir {
        Some(dir) => std::path::absolute(dir).at("resolve", dir)?,
        None => root.clone(),
    };
    Ok((root, ckpt_root))
}

fn check_vacant(root: &Path, ckpt_root: &Path, how: &Create) -> Result<(), StoreError> {
    if root.exists() && !root.is_dir() {
        return Err(std::io::Error::from(std::io::ErrorKind::NotADirectory)).at("use as output directory", root);
    }
    if how.resuming {
        return Ok(());
    }
    let held = TRACES
        .into_iter()
        .find(|name| holds(&root.join(name)))
        .map(|name| (root, name))
        .or_else(|| [CHECKPOINTS, WEIGHTS].into_iter().find(|n| holds(&ckpt_root.join(n))).map(|n| (ckpt_root, n)));
    match held {
        None => Ok(()),
        Some((path, _)) if how.clean && how.never_clean => Err(StoreError::CleanForbidden { path: path.to_path_buf() }),
        Some(_) if how.clean => Ok(()),
        Some((path, found)) => Err(StoreError::HoldsRun { path: path.to_path_buf(), found }),
    }
}

/// A file, or a folder with something in it.
fn holds(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => fs::symlink_metadata(path).is_ok(),
    }
}

/// The system releases the lock when the process ends, however it ends.
fn lock(root: &Path) -> Result<File, StoreError> {
    let path = root.join(LOCK);
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&path).at("create", &path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let read = file.read_to_string(&mut pid);
            let pid = if read.is_ok() && !pid.is_empty() { pid } else { "(unknown)".into() };
            return Err(StoreError::InUse { path: root.to_path_buf(), pid });
        }
        Err(fs::TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {
            tracing::warn!(
                "{} cannot be locked: this file system has no locks; use it from one process only",
                root.display()
            );
        }
        Err(fs::TryLockError::Error(e)) => return Err(e).at("lock", &path),
    }
    file.set_len(0).at("write", &path)?;
    file.rewind().at("write", &path)?;
    file.write_all(std::process::id().to_string().as_bytes()).at("write", &path)?;
    Ok(file)
}

/// A name in `dir` that nothing has yet: `name`, `name.1`, ...
fn vacant(dir: &Path, name: &str) -> Result<PathBuf, StoreError> {
    files::create_dir(dir)?;
    let mut path = dir.join(name);
    let mut n = 0;
    while fs::symlink_metadata(&path).is_ok() {
        n += 1;
        path = dir.join(format!("{name}.{n}"));
    }
    Ok(path)
}
