//! Pulled environments on disk, by their digest. Owns the folder's layout; what is in it is verified each time it is used.

use crate::artifact::{files, sha256};
use crate::client::verified;
use crate::{Reference, Registry, RegistryError};
use std::fs;
use std::path::{Path, PathBuf};

/// An environment that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// The component, with its files in `assets` beside it.
    pub component: PathBuf,
    /// SHA-256 of the manifest, in hex.
    pub digest: String,
}

const MANIFEST: &str = "manifest.json";

impl Registry {
    /// Fetches what `reference` names into `cache`, as far as it is not there.
    ///
    /// # Errors
    /// The registry cannot be reached or refuses, gives something else than was asked for, or the disk refuses.
    pub fn pull(&self, reference: &Reference, cache: &Path) -> Result<Pulled, RegistryError> {
        if let Some(there) = cached(reference, cache) {
            return Ok(there);
        }
        let manifest = self.manifest()?;
        let digest = sha256(&manifest);
        let pinned = reference.pinned(&digest);
        if let Some(there) = cached(&pinned, cache) {
            return Ok(there);
        }
        let dir = folder(cache, &digest);
        // Written aside and renamed: a folder is whole or not there.
        let aside = cache.join(format!(".{digest}.{}", std::process::id()));
        let _ = fs::remove_dir_all(&aside);
        let write = |name: &str, bytes: &[u8]| {
            let path = aside.join(name);
            let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, bytes));
            made.map_err(|source| RegistryError::Io { action: "write", path, source })
        };
        let fetched = files(reference, &manifest)?.into_iter().try_for_each(|(name, descriptor)| {
            let bytes = self.blob(&descriptor)?;
            write(&name, &bytes)
        });
        if let Err(error) = fetched.and_then(|()| write(MANIFEST, &manifest)) {
            let _ = fs::remove_dir_all(&aside);
            return Err(error);
        }
        // What is there is damaged, or it would have been found; another process may have been faster since.
        let _ = fs::remove_dir_all(&dir);
        let renamed = fs::rename(&aside, &dir);
        let _ = fs::remove_dir_all(&aside);
        match (cached(&pinned, cache), renamed) {
            (Some(there), _) => Ok(there),
            (None, Err(source)) => Err(RegistryError::Io { action: "create", path: dir, source }),
            (None, Ok(())) => {
                let source = std::io::Error::other("it does not hold what was written to it");
                Err(RegistryError::Io { action: "use", path: dir, source })
            }
        }
    }
}

fn folder(cache: &Path, digest: &str) -> PathBuf {
    cache.join(format!("sha256-{digest}"))
}

/// What `reference` names, if it has a digest and all of it is in `cache` and undamaged.
pub fn cached(reference: &Reference, cache: &Path) -> Option<Pulled> {
    let digest = reference.digest.clone()?;
    let dir = folder(cache, &digest);
    let manifest = verified(String::new(), &digest, fs::read(dir.join(MANIFEST)).ok()?).ok()?;
    for (name, descriptor) in files(reference, &manifest).ok()? {
        verified(String::new(), descriptor.hex(), fs::read(dir.join(name)).ok()?).ok()?;
    }
    Some(Pulled { component: dir.join("env.wasm"), digest })
}
