//! The rollout log: one JSON object a line, one file per step, split and subset. Owns buffering, paths and reading back;
//! knows nothing of what a rollout is.

use crate::StoreError;
use crate::error::At;
use crate::files;
use crate::records::Marks;
use crate::steps::steps_in;
use prl_types::Step;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// What the rollouts were for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Split {
    /// Training.
    Train,
    /// Evaluation.
    Eval,
}

/// The lines of a rollout log, one at a time. What follows the last newline is a line that is still being
/// written, and is left out. After an error there are no more.
///
/// # Errors
/// The system refuses, now or later, or [`StoreError::Line`] for the first line that is no `T`.
pub fn read_lines<T: DeserializeOwned>(
    path: &Path,
) -> Result<impl Iterator<Item = Result<T, StoreError>> + use<T>, StoreError> {
    let mut file = Some(BufReader::new(File::open(path).at("read", path)?));
    let (path, mut number, mut text) = (path.to_owned(), 0, Vec::new());
    Ok(std::iter::from_fn(move || {
        text.clear();
        let read = file.as_mut()?.read_until(b'\n', &mut text).at("read", &path);
        let parse = |_| {
            number += 1;
            let wrong =
                |e: serde_json::Error| StoreError::Line { path: path.clone(), line: number, reason: e.to_string() };
            serde_json::from_slice(&text).map_err(wrong)
        };
        let line = match &read {
            Ok(_) if !text.ends_with(b"\n") => None,
            _ => Some(read.and_then(parse)),
        };
        if !matches!(line, Some(Ok(_))) {
            file = None;
        }
        line
    }))
}

/// Which rollouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subset {
    /// Every one, as it arrives.
    All,
    /// Those without error that no filter took out, as they are used.
    Effective,
}

/// Appends to `rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl`. Lines are buffered until
/// [`RolloutLog::flush`] or [`RolloutLog::end_step`].
#[derive(Debug)]
pub struct RolloutLog {
    dir: PathBuf,
    open: BTreeMap<(Step, Split, Subset), (PathBuf, BufWriter<File>)>,
}

impl RolloutLog {
    pub(crate) fn new(dir: PathBuf) -> Self {
        RolloutLog { dir, open: BTreeMap::new() }
    }

    /// The log of the run directory `root`, to look up files in; nothing is created by it.
    pub fn of(root: &Path) -> Self {
        RolloutLog::new(root.join(crate::run_dir::ROLLOUTS))
    }

    /// How long the files of steps after `step` are by now, with all that was appended.
    ///
    /// # Errors
    /// The system refuses.
    pub fn marks(&mut self, step: Step) -> Result<Marks, StoreError> {
        self.flush()?;
        Marks::take(self, step)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file's name within the log.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.dir).unwrap_or(path).to_string_lossy().into_owned()
    }

    /// The steps there are files of, in order.
    ///
    /// # Errors
    /// There is no log, or the system refuses.
    pub fn steps(&self) -> Result<Vec<Step>, StoreError> {
        std::fs::metadata(&self.dir).at("list", &self.dir)?;
        Ok(steps_in(&self.dir)?.into_iter().map(|(step, _)| step).collect())
    }

    /// The file of one step, split and subset.
    pub fn path(&self, step: Step, split: Split, subset: Subset) -> PathBuf {
        let split = match split {
            Split::Train => "train",
            Split::Eval => "eval",
        };
        let subset = match subset {
            Subset::All => "all",
            Subset::Effective => "effective",
        };
        self.dir.join(format!("step_{step}")).join(split).join(subset).join("traces.jsonl")
    }

    /// Appends one rollout.
    ///
    /// # Errors
    /// It cannot be serialised, or the system refuses.
    pub fn append(
        &mut self,
        step: Step,
        split: Split,
        subset: Subset,
        rollout: &impl Serialize,
    ) -> Result<(), StoreError> {
        let path = self.path(step, split, subset);
        let mut line =
            serde_json::to_vec(rollout).map_err(|e| StoreError::Json { path: path.clone(), reason: e.to_string() })?;
        line.push(b'\n');
        let (path, file) = match self.open.entry((step, split, subset)) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                if let Some(parent) = path.parent() {
                    files::create_dir(parent)?;
                }
                let file = File::options().create(true).append(true).open(&path).at("open", &path)?;
                entry.insert((path, BufWriter::new(file)))
            }
        };
        file.write_all(&line).at("write", path)
    }

    /// Hands everything buffered to the system.
    ///
    /// # Errors
    /// The system refuses.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        for (path, file) in self.open.values_mut() {
            file.flush().at("write", path)?;
        }
        Ok(())
    }

    /// Flushes everything and closes the files of `step` and of earlier ones.
    ///
    /// # Errors
    /// The system refuses.
    pub fn end_step(&mut self, step: Step) -> Result<(), StoreError> {
        self.flush()?;
        self.open.retain(|(s, _, _), _| *s > step);
        Ok(())
    }
}
