//! Durable file operations: write aside, sync, rename. Owns the order of syncs; knows no layout.

use crate::StoreError;
use crate::error::At;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Writes a file so that a reader, or a later run after a crash, sees the old content or the new, never a part.
///
/// # Errors
/// The system refuses to write, sync or rename; the old file is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    let aside = PathBuf::from(aside);
    write_synced(&aside, bytes)?;
    rename(&aside, path)
}

/// Writes and syncs one file.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    point(path)?;
    let mut file = File::create(path).at("create", path)?;
    point(path)?;
    file.write_all(bytes).at("write", path)?;
    point(path)?;
    file.sync_all().at("sync", path)
}

/// Renames and syncs the folder that holds the name.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    point(to)?;
    fs::rename(from, to).at("rename", from)?;
    point(to)?;
    match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => Ok(()),
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    point(path)?;
    File::open(path).and_then(|dir| dir.sync_all()).at("sync", path)
}

/// Creates a folder and its parents.
pub(crate) fn create_dir(path: &Path) -> Result<(), StoreError> {
    point(path)?;
    fs::create_dir_all(path).at("create", path)
}

/// Removes a file, a link (not its target), or a folder with all it holds. Nothing there is fine.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    point(path)?;
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    let done = if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    done.at("remove", path)
}

/// Every file under `root` as a path relative to it, sorted; every file and folder is synced.
pub(crate) fn sync_tree(root: &Path) -> Result<Vec<PathBuf>, StoreError> {
    fn walk(root: &Path, dir: &Path, out: &mut Vec<PathBuf>) -> Result<(), StoreError> {
        for entry in fs::read_dir(dir).at("list", dir)? {
            let path = entry.at("list", dir)?.path();
            if path.is_dir() {
                walk(root, &path, out)?;
            } else {
                point(&path)?;
                File::open(&path).and_then(|file| file.sync_all()).at("sync", &path)?;
                out.push(path.strip_prefix(root).unwrap_or(&path).to_path_buf());
            }
        }
        sync_dir(dir)
    }
    let mut out = Vec::new();
    walk(root, root, &mut out)?;
    out.sort();
    Ok(out)
}

/// Size and SHA-256 (hexadecimal) of a file, read once from begin to end.
///
/// # Errors
/// The system refuses to open or read it.
pub fn digest(path: &Path) -> Result<(u64, String), StoreError> {
    let mut file = File::open(path).at("open", path)?;
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0u64, vec![0u8; 1 << 16]);
    loop {
        let n = file.read(&mut buffer).at("read", path)?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        size += n as u64;
    }
    Ok((size, hex(&hash.finalize())))
}

/// SHA-256 of bytes, hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A place where a test can let the process die.
#[cfg(not(test))]
fn point(_: &Path) -> Result<(), StoreError> {
    Ok(())
}

#[cfg(test)]
pub(crate) use fault::point;

#[cfg(test)]
pub(crate) mod fault {
    //! Lets a file operation of a thread fail: it alone, as on a full disk, or with every later one, as if the process had
    //! been killed.

    use super::*;
    use std::cell::Cell;
    use std::io::{Error, ErrorKind};

    thread_local! {
        static LEFT: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
    }

    /// Dies at the operation after `operations` more; `None` switches faults off.
    pub fn die_after(operations: Option<u32>) {
        LEFT.set(operations.map(|n| (n, true)));
    }

    /// Has the operation after `operations` more find the disk full.
    pub fn full_after(operations: u32) {
        LEFT.set(Some((operations, false)));
    }

    /// Whether the fault is still to come.
    pub fn is_due() -> bool {
        LEFT.get().is_some_and(|(n, dies)| n > 0 || !dies)
    }

    pub fn point(path: &Path) -> Result<(), StoreError> {
        match LEFT.get() {
            None => Ok(()),
            Some((0, true)) => Err(Error::other("killed")).at("reach", path),
            Some((0, false)) => {
                LEFT.set(None);
                Err(Error::from(ErrorKind::StorageFull)).at("write", path)
            }
            Some((n, dies)) => {
                LEFT.set(Some((n - 1, dies)));
                Ok(())
            }
        }
    }
}
