//! A run directory as somebody sees it who does not use it: nothing is locked, created or changed, and what is read may be
//! growing. Owns where things are; knows no content.

use crate::error::At;
use crate::run_dir::{CHECKPOINTS, CONFIGS, LOCK, LOGS, METRICS, ORPHANED, TRACES, WEIGHTS};
use crate::{Checkpoints, RolloutLog, StoreError};
use std::fs;
use std::path::{Path, PathBuf};

/// A run directory that is looked at.
#[derive(Clone, Debug)]
pub struct RunView {
    root: PathBuf,
    ckpt_root: PathBuf,
}

impl RunView {
    /// The run in `root`, whose checkpoints and weights are in `ckpt_dir` where that is given (`ckpt.output_dir`).
    pub fn of(root: &Path, ckpt_dir: Option<&Path>) -> Self {
        RunView { root: root.to_owned(), ckpt_root: ckpt_dir.unwrap_or(root).to_owned() }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where checkpoints and weights are.
    pub fn ckpt_root(&self) -> &Path {
        &self.ckpt_root
    }

    /// Whether a run has left anything there; its configuration is enough.
    pub fn is_run(&self) -> bool {
        TRACES.into_iter().chain([CONFIGS]).any(|name| self.root.join(name).exists())
    }

    /// `configs/`.
    pub fn configs(&self) -> PathBuf {
        self.root.join(CONFIGS)
    }

    /// `logs/`.
    pub fn logs(&self) -> PathBuf {
        self.root.join(LOGS)
    }

    /// `metrics.jsonl`.
    pub fn metrics(&self) -> PathBuf {
        self.root.join(METRICS)
    }

    /// `checkpoints/`.
    pub fn checkpoints(&self) -> Checkpoints {
        Checkpoints::with_manifest(self.ckpt_root.join(CHECKPOINTS))
    }

    /// `weights/`.
    pub fn weights(&self) -> Checkpoints {
        Checkpoints::with_marker(self.ckpt_root.join(WEIGHTS))
    }

    /// The rollout log.
    pub fn rollouts(&self) -> RolloutLog {
        RolloutLog::of(&self.root)
    }

    /// The process that took the directory into use last, there or not.
    pub fn last_process(&self) -> Option<u32> {
        fs::read_to_string(self.root.join(LOCK)).ok()?.trim().parse().ok()
    }

    /// What a resumed run set aside: files, and the folders of single steps.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub fn orphaned(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut found = Vec::new();
        let mut roots = vec![&self.root];
        roots.extend((self.ckpt_root != self.root).then_some(&self.ckpt_root));
        for root in roots {
            for path in children(&root.join(ORPHANED))? {
                match path.is_dir() {
                    true => found.extend(children(&path)?),
                    false => found.push(path),
                }
            }
        }
        Ok(found)
    }

    /// Folders of checkpoints and weights that are being written, or that an interrupted write or removal left.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub fn unfinished(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut found = Vec::new();
        for steps in [self.checkpoints(), self.weights()] {
            found.extend(steps.leftovers()?);
        }
        Ok(found)
    }
}

/// Files below `path` with their bytes, by their names within it, with `/`; of a file there is one without a name.
///
/// # Errors
/// The system refuses. What goes away meanwhile is left out.
pub fn files_below(path: &Path) -> Result<Vec<(String, u64)>, StoreError> {
    fn walk(root: &Path, path: &Path, out: &mut Vec<(String, u64)>) -> Result<(), StoreError> {
        let Ok(meta) = fs::metadata(path) else { return Ok(()) };
        if meta.is_dir() {
            return children(path)?.iter().try_for_each(|child| walk(root, child, out));
        }
        let name = path.strip_prefix(root).unwrap_or(path).components();
        let name = name.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/");
        out.push((name, meta.len()));
        Ok(())
    }
    let mut out = Vec::new();
    walk(path, path, &mut out)?;
    Ok(out)
}

/// What a folder holds, sorted; nothing where there is none.
pub(crate) fn children(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).at("list", dir),
    };
    let paths: Result<Vec<PathBuf>, StoreError> =
        entries.map(|entry| entry.map(|entry| entry.path()).at("list", dir)).collect();
    let mut paths = paths?;
    paths.sort();
    Ok(paths)
}
