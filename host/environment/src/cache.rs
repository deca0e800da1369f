//! Compiled components on disk. Owns a folder that only its user can enter, since loading machine code from it means
//! trusting it; must not know what the code does. A cache that cannot be used costs time, never a run.

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wasmtime::Engine;
use wasmtime::component::Component;

/// A checksum stands behind the code. It finds what a disk did to it; nobody but the user can write here.
const CHECKSUM_BYTES: u64 = 4;
/// Changes with the layout of the files.
const LAYOUT: u32 = 2;
/// Read at a time.
const PIECE: usize = 1 << 18;

/// Age of an unfinished file that nobody is writing any more.
const STALE: Duration = Duration::from_secs(3600);

/// Numbers the unfinished files of this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// A checked cache folder.
pub struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Makes the folder if need be and refuses one that others could write to.
    pub fn open(dir: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let found = fs::metadata(dir)?;
        if found.mode() & 0o077 != 0 {
            return Err(io::Error::other(format!(
                "others may enter it (mode {:o}); run: chmod 700",
                found.mode() & 0o777
            )));
        }
        // Whoever may create a file here is the owner or root; the file's owner tells which.
        let probe = dir.join(format!(".probe-{}-{}", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed)));
        let owner = fs::File::create(&probe)?.metadata()?.uid();
        fs::remove_file(&probe)?;
        if owner != found.uid() {
            return Err(io::Error::other("it belongs to another user"));
        }
        Ok(Cache { dir: dir.to_owned() })
    }

    /// One file for each component, engine version and set of compiler options.
    fn path(&self, engine: &Engine, sha256: &str) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (LAYOUT, engine.precompile_compatibility_hash()).hash(&mut hasher);
        self.dir.join(format!("{sha256}-{:016x}.cwasm", hasher.finish()))
    }

    /// The compiled component, if it is there and whole.
    pub fn load(&self, engine: &Engine, sha256: &str) -> Option<Component> {
        let path = self.path(engine, sha256);
        // What is no file must not be waited for.
        let file = fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path);
        let unusable = |why: &dyn Display| {
            tracing::warn!("compiling anew, the cached `{}` is unusable: {why}", path.display());
            None
        };
        let mut file = match file.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
            Ok((true, file)) => file,
            Ok((false, _)) => return unusable(&"it is no file"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return unusable(&error),
        };
        let copy = match copy_of(&mut file) {
            Ok(Some(copy)) => copy,
            Ok(None) => return unusable(&"its checksum differs"),
            Err(error) => return unusable(&error),
        };
        // SAFETY: this is code that `save` wrote: the folder was made by this user with mode 0700 and checked in
        // `open`, and the checksum says that it is whole. It is mapped from a copy in memory that has no name, so a later
        // change of the file cannot reach it. The engine checks its own version and options before it takes the code.
        match unsafe { Component::deserialize_file(engine, format!("/proc/self/fd/{}", copy.as_raw_fd())) } {
            Ok(component) => Some(component),
            Err(error) => unusable(&error),
        }
    }

    /// Keeps compiled code, atomically.
    pub fn save(&self, engine: &Engine, sha256: &str, code: &[u8]) {
        let path = self.path(engine, sha256);
        let unique = WRITES.fetch_add(1, Ordering::Relaxed);
        let partial = path.with_extension(format!("{}-{unique}.tmp", std::process::id()));
        if let Err(error) = write(&partial, code).and_then(|()| fs::rename(&partial, &path)) {
            tracing::warn!("cannot keep compiled code in `{}`: {error}", path.display());
            // Half of one is of no use.
            let _ = fs::remove_file(&partial);
        }
        self.remove_stale();
    }

    /// Removes what processes left that were ended while they wrote. What cannot be removed costs room only.
    fn remove_stale(&self) {
        let is_ours = |name: &str| name.ends_with(".tmp") || name.starts_with(".probe-");
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let is_old = || entry.metadata().ok()?.modified().ok()?.elapsed().ok().map(|age| age > STALE);
            if entry.file_name().to_str().is_some_and(is_ours) && is_old() == Some(true) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A file's code in memory, if the checksum behind it says that it is whole. Page by page through a small buffer: fewer page
/// faults than in the process's own memory, and an engine maps it as it is.
fn copy_of(file: &mut fs::File) -> io::Result<Option<fs::File>> {
    let mut left = file.metadata()?.len().saturating_sub(CHECKSUM_BYTES);
    let mut copy = fs::File::from(memfd_create("prl-code", MemfdFlags::CLOEXEC)?);
    let (mut hasher, mut piece) = (crc32fast::Hasher::new(), vec![0; PIECE]);
    while left > 0 {
        let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.read_exact(&mut piece[..length])?;
        hasher.update(&piece[..length]);
        copy.write_all(&piece[..length])?;
        left -= length as u64;
    }
    let mut checksum = [0; CHECKSUM_BYTES as usize];
    let read = file.read_exact(&mut checksum);
    Ok((read.is_ok() && hasher.finalize().to_le_bytes() == checksum).then_some(copy))
}

/// The code, then the checksum.
fn write(path: &Path, code: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(code)?;
    file.write_all(&crc32fast::hash(code).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_folder_is_private_or_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        assert!(Cache::open(&dir).is_ok());
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(Cache::open(&dir).err().unwrap().to_string().contains("mode 755"));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for_and_what_was_left_is_removed() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("cache");
        let cache = Cache::open(&dir).unwrap();
        let engine = Engine::default();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            cache.path(&engine, "a"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        assert!(cache.load(&engine, "a").is_none());
        for (name, age) in [("old.1-2.tmp", 2 * STALE), ("new.1-2.tmp", STALE / 2), ("old.cwasm", 2 * STALE)] {
            let file = fs::File::create(dir.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        }
        cache.save(&engine, "b", b"code");
        let there = |name: &str| dir.join(name).exists();
        assert!(
            !there("old.1-2.tmp") && there("new.1-2.tmp") && there("old.cwasm") && cache.path(&engine, "b").exists()
        );
    }
}
