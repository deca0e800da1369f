//! Compiled components on disk. Owns a folder that only its user can enter, since loading machine code from it means
//! trusting it; must not know what the code does. A cache that cannot be used costs time, never a run.

use rustix::fs::{MemfdFlags, memfd_create};
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use wasmtime::Engine;
use wasmtime::component::Component;

/// A checksum stands behind the code. It finds what a disk did to it; nobody but the user can write here.
const CHECKSUM_BYTES: u64 = 4;
/// Changes with the layout of the files.
const LAYOUT: u32 = 2;
/// Read at a time.
const PIECE: usize = 1 << 18;

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
        let mut file = fs::File::open(&path).ok()?;
        let unusable = |why: &dyn Display| {
            tracing::warn!("compiling anew, the cached `{}` is unusable: {why}", path.display());
            None
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
}
