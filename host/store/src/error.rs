//! What can go wrong on disk. Owns the wording of those errors, nothing else.

use prl_types::Step;
use std::path::{Path, PathBuf};

/// An error of this crate. Messages name the path and say what helps.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, for example `write`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The output directory already holds a run.
    #[error(
        "output directory {} already holds a run ({found}). Choose another one with --output-dir, remove the old run \
         with --clean-output-dir, or continue it with --ckpt.resume-step -1 (the latest checkpoint) or a step",
        path.display()
    )]
    HoldsRun {
        /// The directory.
        path: PathBuf,
        /// The first artefact found, relative to it.
        found: &'static str,
    },
    /// Cleaning was asked for and forbidden.
    #[error(
        "output directory {} holds a run and NEVER_CLEAN_OUTPUT_DIR is set, so --clean-output-dir removes nothing. \
         Choose another --output-dir or unset the variable",
        path.display()
    )]
    CleanForbidden {
        /// The directory.
        path: PathBuf,
    },
    /// Another process is using the directory.
    #[error("output directory {} is in use by process {pid}. Stop it or choose another --output-dir", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other process, as far as it can be read.
        pid: String,
    },
    /// There is nothing to resume from.
    #[error("no complete checkpoint in {}: there is nothing to resume", path.display())]
    NoCheckpoint {
        /// The folder of checkpoints.
        path: PathBuf,
    },
    /// A checkpoint was not finished or was damaged later.
    #[error("checkpoint {} is not usable: {what}", path.display())]
    BadCheckpoint {
        /// The checkpoint's folder.
        path: PathBuf,
        /// Which file, and what is wrong with it.
        what: String,
    },
    /// A complete checkpoint of that step exists already.
    #[error("checkpoint of step {step} exists already: {}", path.display())]
    Exists {
        /// The step.
        step: Step,
        /// Its folder.
        path: PathBuf,
    },
    /// A value cannot be written as JSON.
    #[error("cannot write {}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The serialiser's reason.
        reason: String,
    },
    /// A line of a log cannot be read back.
    #[error("{}, line {line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The parser's reason.
        reason: String,
    },
}

/// Attaches action and path to an I/O error.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError::Io { action, path: path.to_path_buf(), source })
    }
}
