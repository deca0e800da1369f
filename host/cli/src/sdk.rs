//! Where the SDK is: prl's own folder `sdk`, or, for Python, the copy in this binary. Owns both; must not know what is done
//! with it.

use crate::caches;
use crate::failure::{Failure, input};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The package `prl_env`: paths in it and contents.
const PYTHON: &[(&str, &[u8])] = &include!(concat!(env!("OUT_DIR"), "/python_sdk.rs"));

/// The folder `sdk`: the one named, or the one above the binary. It must hold the crate `part`.
///
/// # Errors
/// Neither is there.
pub fn folder(named: Option<&Path>, part: &str) -> Result<PathBuf, Failure> {
    let file = format!("{part}/Cargo.toml");
    let holds = |dir: &Path| dir.join(&file).is_file();
    if let Some(dir) = named {
        let whole = dir.canonicalize().ok().filter(|dir| holds(dir));
        return whole.ok_or_else(|| Failure::input(format_args!("`--sdk`: `{}` holds no `{file}`", dir.display())));
    }
    let binary = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let found = binary.ancestors().skip(1).map(|dir| dir.join("sdk")).find(|dir| holds(dir));
    found.ok_or_else(|| {
        Failure::input(format_args!(
            "the SDK is not beside this binary (`{}`), and an {part} in Rust is compiled against it; say where prl's sources \
             have it: --sdk FOLDER/sdk",
            binary.display()
        ))
    })
}

/// The folder that Python imports `prl_env` from: that of prl's sources where they are, so that changes there count; else the
/// binary's own copy, unpacked once.
///
/// # Errors
/// A named folder that is no SDK, or a cache folder that cannot be written.
pub fn python(named: Option<&Path>) -> Result<PathBuf, Failure> {
    match folder(named, "environment") {
        Ok(sdk) => Ok(sdk.join("python/src")),
        Err(reason) if named.is_some() => Err(reason),
        Err(_) => {
            let none = "there is no folder to keep the Python SDK in: set HOME or XDG_CACHE_HOME";
            unpack(&caches::folder("python").ok_or_else(|| Failure::input(none))?)
        }
    }
}

/// Puts the binary's copy into a folder of `cache` that is named by what it holds.
fn unpack(cache: &Path) -> Result<PathBuf, Failure> {
    let mut hash = Sha256::new();
    for (name, bytes) in PYTHON {
        hash.update(name.len().to_le_bytes());
        hash.update(name);
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    }
    let digest: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache.join(format!("sdk-{digest}"));
    let subject = format!("cannot unpack the Python SDK into `{}`", folder.display());
    if !folder.is_dir() {
        std::fs::create_dir_all(cache).map_err(input(&subject))?;
        let fresh = tempfile::tempdir_in(cache).map_err(input(&subject))?;
        for (name, bytes) in PYTHON {
            let file = fresh.path().join("prl_env").join(name);
            std::fs::create_dir_all(file.parent().unwrap_or(fresh.path())).map_err(input(&subject))?;
            std::fs::write(&file, bytes).map_err(input(&subject))?;
        }
        let moved = std::fs::rename(fresh.path(), &folder);
        // Another process may have been first; what it put there is the same.
        if !folder.is_dir() {
            moved.map_err(input(&subject))?;
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_whole_and_unpacked_once() {
        let cache = tempfile::tempdir().unwrap();
        let folder = unpack(cache.path()).unwrap();
        for name in ["__init__.py", "guest/modules/prl_env_component.py", "template/module.py", "wit/env.wit"] {
            assert!(folder.join("prl_env").join(name).is_file(), "{name}");
        }
        assert_eq!(unpack(cache.path()).unwrap(), folder);
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 1);
    }
}
