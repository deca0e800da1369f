//! Folders of one step each: written aside, completed by a manifest or a marker, found again, pruned. Owns what
//! "complete" means; knows nothing of what is inside.

use crate::StoreError;
use crate::files;
use crate::view::{children, files_below};
use prl_types::Step;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest.json";
const MARKER: &str = "STABLE";

/// Format of the manifest.
const VERSION: u32 = 1;

/// The list of files of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Format of this file.
    pub version: u32,
    /// The step the checkpoint was taken after.
    pub step: Step,
    /// Every file but the manifest, sorted by path.
    pub files: Vec<ManifestFile>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Path within the checkpoint, with `/`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256, hexadecimal.
    pub sha256: String,
}

/// What to keep. The newest complete step is always kept; with neither field set, all are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// So many of the newest.
    pub last: Option<usize>,
    /// Every step divisible by this.
    pub interval: Option<u64>,
}

/// A folder of `step_N` folders.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    dir: PathBuf,
    manifest: bool,
}

impl Checkpoints {
    /// Steps completed by a manifest of sizes and hashes.
    pub(crate) fn with_manifest(dir: PathBuf) -> Self {
        Checkpoints { dir, manifest: true }
    }

    /// Steps completed by an empty file `STABLE`.
    pub(crate) fn with_marker(dir: PathBuf) -> Self {
        Checkpoints { dir, manifest: false }
    }

    /// The folder of the `step_N` folders.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of one step, there or not.
    pub fn path(&self, step: Step) -> PathBuf {
        self.dir.join(format!("step_{step}"))
    }

    /// Starts writing a step, in `step_N.tmp`. What an earlier attempt left there is removed.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the step is there and complete; what the system refuses.
    pub fn begin(&self, step: Step) -> Result<StepWriter, StoreError> {
        let path = self.path(step);
        if path.exists() && self.verify(step).is_ok() {
            return Err(StoreError::Exists { step, path });
        }
        let aside = self.dir.join(format!("step_{step}.tmp"));
        files::remove(&aside)?;
        files::create_dir(&aside)?;
        Ok(StepWriter { step, aside, target: path, manifest: self.manifest, done: false })
    }

    /// Steps that have a folder, ascending, complete or not.
    ///
    /// # Errors
    /// The folder cannot be listed. That it does not exist is no error.
    pub fn steps(&self) -> Result<Vec<Step>, StoreError> {
        Ok(steps_in(&self.dir)?.into_iter().map(|(step, _)| step).collect())
    }

    /// Checks that a step is there as it was written, down to each file's hash.
    ///
    /// # Errors
    /// [`StoreError::BadCheckpoint`] names the first file that is missing, short or changed.
    pub fn verify(&self, step: Step) -> Result<(), StoreError> {
        let path = self.path(step);
        let bad = |what: String| StoreError::BadCheckpoint { path: path.clone(), what };
        if !path.is_dir() {
            return Err(self.missing(step));
        }
        if !self.manifest {
            let marked = path.join(MARKER).is_file();
            return if marked { Ok(()) } else { Err(bad(format!("{MARKER} is missing: it was not finished"))) };
        }
        let text = fs::read_to_string(path.join(MANIFEST))
            .map_err(|e| bad(format!("{MANIFEST} cannot be read ({e}): it was not finished")))?;
        let manifest: Manifest = serde_json::from_str(&text).map_err(|e| bad(format!("{MANIFEST} is damaged: {e}")))?;
        if manifest.version != VERSION {
            return Err(bad(format!("{MANIFEST} is of format {}, this program reads {VERSION}", manifest.version)));
        }
        if manifest.step != step {
            return Err(bad(format!("{MANIFEST} is of step {}", manifest.step)));
        }
        let listed: BTreeSet<&str> = manifest.files.iter().map(|file| file.path.as_str()).collect();
        let there = files_below(&path)?;
        if let Some((name, _)) = there.iter().find(|(name, _)| name != MANIFEST && !listed.contains(name.as_str())) {
            return Err(bad(format!("{MANIFEST} does not list {name}")));
        }
        for file in &manifest.files {
            let at = path.join(&file.path);
            if !there.iter().any(|(name, _)| *name == file.path) {
                return Err(bad(format!("{} is missing", file.path)));
            }
            let size = fs::metadata(&at).map_err(|e| bad(format!("{}: {e}", file.path)))?.len();
            if size != file.size {
                return Err(bad(format!("{} has {size} bytes and should have {}", file.path, file.size)));
            }
        }
        for file in &manifest.files {
            if files::digest(&path.join(&file.path))?.1 != file.sha256 {
                return Err(bad(format!("{} has changed: its SHA-256 is another one", file.path)));
            }
        }
        Ok(())
    }

    /// The newest complete step. Newer ones that are not complete are skipped with a warning that names the file.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn latest(&self) -> Result<Option<(Step, PathBuf)>, StoreError> {
        for step in self.steps()?.into_iter().rev() {
            match self.verify(step) {
                Ok(()) => return Ok(Some((step, self.path(step)))),
                Err(e) => tracing::warn!("{e}; looking for an older one"),
            }
        }
        Ok(None)
    }

    /// The checkpoint to resume from: `-1` is the newest complete one, any other number is exactly that one.
    ///
    /// # Errors
    /// [`StoreError::NoCheckpoint`], or [`StoreError::BadCheckpoint`] for a step that was named and is not usable.
    pub fn resolve(&self, resume_step: i64) -> Result<(Step, PathBuf), StoreError> {
        match Step::try_from(resume_step) {
            Ok(step) => self.verify(step).map(|()| (step, self.path(step))),
            Err(_) => self.latest()?.ok_or_else(|| StoreError::NoCheckpoint { path: self.dir.clone() }),
        }
    }

    /// Whether [`Checkpoints::resolve`] has anything to look at.
    pub(crate) fn check(&self, resume_step: i64) -> Result<(), StoreError> {
        match Step::try_from(resume_step) {
            Ok(step) if !self.path(step).is_dir() => Err(self.missing(step)),
            Err(_) if self.steps()?.is_empty() => Err(StoreError::NoCheckpoint { path: self.dir.clone() }),
            _ => Ok(()),
        }
    }

    fn missing(&self, step: Step) -> StoreError {
        let steps: Vec<String> = self.steps().unwrap_or_default().iter().map(Step::to_string).collect();
        let there = match steps.as_slice() {
            [] => "there is none of another step either".to_owned(),
            [one] => format!("there is one of step {one}"),
            more => format!("there are those of steps {}", more.join(", ")),
        };
        StoreError::BadCheckpoint { path: self.path(step), what: format!("there is no such folder; {there}") }
    }

    /// Removes complete steps that `keep` does not ask for, and leftovers of interrupted writes and removals. A folder
    /// that cannot be removed is a warning. Returns the steps removed.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn prune(&self, keep: Keep) -> Result<Vec<Step>, StoreError> {
        self.sweep()?;
        let done = |step: &Step| self.path(*step).join(if self.manifest { MANIFEST } else { MARKER }).is_file();
        let complete: Vec<Step> = self.steps()?.into_iter().filter(done).collect();
        let mut removed = Vec::new();
        if keep == Keep::default() {
            return Ok(removed);
        }
        let newest = complete.len().saturating_sub(keep.last.unwrap_or(0).max(1));
        for step in &complete[..newest] {
            if keep.interval.is_some_and(|n| n > 0 && step.is_multiple_of(n)) {
                continue;
            }
            // Renamed first, so that a half-removed folder is never taken for a checkpoint.
            let doomed = self.dir.join(format!("step_{step}.deleted"));
            match files::rename(&self.path(*step), &doomed).and_then(|()| files::remove(&doomed)) {
                Ok(()) => removed.push(*step),
                Err(e) => tracing::warn!("old step {step} stays: {e}"),
            }
        }
        Ok(removed)
    }

    fn sweep(&self) -> Result<(), StoreError> {
        for path in self.leftovers()? {
            if let Err(e) = files::remove(&path) {
                tracing::warn!("leftover stays: {e}");
            }
        }
        Ok(())
    }

    /// Folders that are being written, or that an interrupted write or removal left.
    pub(crate) fn leftovers(&self) -> Result<Vec<PathBuf>, StoreError> {
        let of_a_step = |path: &PathBuf| {
            let leftover = path.extension().is_some_and(|end| end == "tmp" || end == "deleted");
            leftover && path.file_stem().and_then(step_of).is_some()
        };
        Ok(children(&self.dir)?.into_iter().filter(of_a_step).collect())
    }
}

/// The folders of steps in a folder, ascending; none where there is no such folder.
pub(crate) fn steps_in(dir: &Path) -> Result<Vec<(Step, PathBuf)>, StoreError> {
    let of_a_step = |path: PathBuf| Some((path.file_name().and_then(step_of)?, path));
    let mut steps: Vec<(Step, PathBuf)> = children(dir)?.into_iter().filter_map(of_a_step).collect();
    steps.sort_unstable();
    Ok(steps)
}

/// A step being written. Dropped without [`StepWriter::commit`] it leaves nothing behind.
#[derive(Debug)]
pub struct StepWriter {
    step: Step,
    aside: PathBuf,
    target: PathBuf,
    manifest: bool,
    done: bool,
}

impl StepWriter {
    /// The folder to write into.
    pub fn dir(&self) -> &Path {
        &self.aside
    }

    /// Writes one file, with its folders.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&self, relative: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.aside.join(relative);
        if let Some(parent) = path.parent() {
            files::create_dir(parent)?;
        }
        files::write_synced(&path, bytes)
    }

    /// Syncs everything, writes the manifest or the marker, and gives the folder its name. Returns it.
    ///
    /// # Errors
    /// What the system refuses; the step is then not there.
    pub fn commit(mut self) -> Result<PathBuf, StoreError> {
        let found = files::sync_tree(&self.aside)?;
        if self.manifest {
            let mut list = Vec::with_capacity(found.len());
            for file in found {
                let (size, sha256) = files::digest(&self.aside.join(&file))?;
                let path = file.components().map(|c| c.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/");
                list.push(ManifestFile { path, size, sha256 });
            }
            let manifest = Manifest { version: VERSION, step: self.step, files: list };
            let path = self.aside.join(MANIFEST);
            let mut text = serde_json::to_string_pretty(&manifest)
                .map_err(|e| StoreError::Json { path: path.clone(), reason: e.to_string() })?;
            text.push('\n');
            files::write_synced(&path, text.as_bytes())?;
        } else {
            files::write_synced(&self.aside.join(MARKER), b"")?;
        }
        files::sync_dir(&self.aside)?;
        // Only an incomplete folder can be there: `begin` refuses otherwise.
        files::remove(&self.target)?;
        files::rename(&self.aside, &self.target)?;
        self.done = true;
        Ok(self.target.clone())
    }
}

impl Drop for StepWriter {
    fn drop(&mut self) {
        if !self.done
            && let Err(e) = files::remove(&self.aside)
        {
            tracing::warn!("unfinished checkpoint stays: {e}");
        }
    }
}

/// The step of a folder named `step_N`.
fn step_of(name: &OsStr) -> Option<Step> {
    let digits = name.to_str()?.strip_prefix("step_")?;
    let step: Step = digits.parse().ok()?;
    (step.to_string() == digits).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::fault;

    fn save(c: &Checkpoints, step: Step) -> Result<(), StoreError> {
        let w = c.begin(step)?;
        let written =
            w.write("trainer/model.bin", &[step as u8; 100]).and_then(|()| w.write("orchestrator/state.json", b"{}"));
        match written {
            Ok(()) => w.commit().map(|_| ()),
            Err(e) => {
                std::mem::forget(w); // a killed process cleans nothing up
                Err(e)
            }
        }
    }

    /// https://github.com/PrimeIntellect-ai/prime-rl/issues/1251
    #[test]
    fn killed_at_any_operation_a_complete_checkpoint_remains() {
        let mut points = 0;
        for die_at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let c = Checkpoints::with_manifest(dir.path().join("checkpoints"));
            save(&c, 1).unwrap();
            fault::die_after(Some(die_at));
            let life = save(&c, 2).and_then(|()| c.prune(Keep { last: Some(1), interval: None }));
            fault::die_after(None);
            let (step, path) = c.latest().unwrap().expect("a complete checkpoint");
            assert!(path.join("trainer/model.bin").is_file());
            if life.is_ok_and(|removed| removed == [1]) {
                assert_eq!((step, c.steps().unwrap()), (2, vec![2]));
                break;
            }
            // The next process picks up where this one died.
            if step == 1 {
                save(&c, 2).unwrap();
            }
            c.prune(Keep { last: Some(1), interval: None }).unwrap();
            let names: Vec<_> = fs::read_dir(c.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["step_2"], "died at operation {die_at}");
            points += 1;
        }
        assert!(points > 10, "only {points} operations");
    }

    #[test]
    fn on_a_full_disk_the_checkpoint_is_lost_and_nothing_else() {
        let keep = Keep { last: Some(1), interval: None };
        let write = |c: &Checkpoints, step: Step| {
            let w = c.begin(step)?;
            w.write("trainer/model.bin", &[step as u8; 100])?;
            w.write("orchestrator/state.json", b"{}")?;
            w.commit()
        };
        for full_at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let c = Checkpoints::with_manifest(dir.path().join("checkpoints"));
            write(&c, 1).unwrap();
            fault::full_after(full_at);
            let written = write(&c, 2);
            let met = !fault::is_due();
            fault::die_after(None);
            if !met {
                assert!(full_at > 15, "only {full_at} operations");
                break;
            }
            let error = written.unwrap_err().to_string();
            assert!(error.contains("no storage space"), "{error}");
            // The last operations come after the name: the step is there then, and its name may not be durable.
            let (step, _) = c.resolve(-1).unwrap();
            let names: Vec<_> = c.steps().unwrap();
            assert_eq!(names, (1..=step).collect::<Vec<_>>(), "full at operation {full_at}");
            assert!(fs::read_dir(c.dir()).unwrap().count() == names.len(), "a leftover, full at operation {full_at}");
            write(&c, 3).unwrap();
            c.prune(keep).unwrap();
            assert_eq!(c.steps().unwrap(), [3]);
        }
    }

    #[test]
    fn names_are_strict() {
        for (name, step) in [("step_7", Some(7)), ("step_07", None), ("step_", None), ("step_7.tmp", None), ("7", None)]
        {
            assert_eq!(step_of(OsStr::new(name)), step, "{name}");
        }
    }
}
