//! From an environment's id to its file, and the ids that there are. Owns the order of places; reads no variables and no
//! configuration.

use crate::LoadError;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where to look, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct SearchPath<'a> {
    /// The folder of the configuration file that names the environment.
    pub relative_to: Option<&'a Path>,
    /// The value of `PRL_ENV_PATH`: folders, separated as in `PATH`.
    pub env_path: Option<&'a OsStr>,
    /// The running binary: `envs/` beside it and beside each folder above it is searched.
    pub binary: Option<&'a Path>,
}

/// The component in an environment's folder.
const COMPONENT: &str = "env.wasm";

impl SearchPath<'_> {
    /// The folders, in order.
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = self.relative_to.map(Path::to_owned).into_iter().collect();
        let dirs = self.env_path.into_iter().flat_map(std::env::split_paths);
        folders.extend(dirs.filter(|dir| !dir.as_os_str().is_empty()));
        let above = self.binary.into_iter().flat_map(Path::ancestors).skip(1).map(|dir| dir.join("envs"));
        folders.extend(above.enumerate().filter(|(i, envs)| *i == 0 || envs.is_dir()).map(|(_, envs)| envs));
        folders
    }

    /// Every bare name that leads to a file, with the file: by folder, then by name. A folder that cannot be listed holds
    /// none.
    pub fn names(&self) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for folder in self.folders() {
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let files = entries.map(|entry| PathBuf::from(entry.file_name()));
            // As `NAME.wasm` or as a folder `NAME`; which of the two it is, if any, `resolve` says.
            let stem = |file: PathBuf| {
                if file.extension().is_some_and(|e| e == "wasm") { file.with_extension("") } else { file }
            };
            let names: BTreeSet<String> = files.filter_map(|file| Some(stem(file).to_str()?.to_owned())).collect();
            for name in names {
                if found.iter().all(|(known, _)| *known != name)
                    && let Ok(path) = resolve(&name, self)
                {
                    found.push((name, path));
                }
            }
        }
        found
    }
}

/// Finds the file of the environment `id`: a path that ends in `.wasm`, a bare name such as `reverse-text`, or the
/// folder of an `env.wasm`.
///
/// # Errors
/// [`LoadError::NotFound`] with the places tried.
pub fn resolve(id: &str, search: &SearchPath<'_>) -> Result<PathBuf, LoadError> {
    let file = PathBuf::from(if id.ends_with(".wasm") { id.to_owned() } else { format!("{id}.wasm") });
    let mut places = Vec::new();
    if file.is_absolute() {
        places.push(file);
    } else if !id.is_empty() {
        places.extend(search.folders().into_iter().map(|folder| folder.join(&file)));
    }
    let found = places.iter().find_map(|place| {
        let folder = place.with_extension("").join(COMPONENT);
        if place.is_file() { Some(place.clone()) } else { Some(folder).filter(|file| file.is_file()) }
    });
    found.ok_or_else(|| LoadError::NotFound { id: id.to_owned(), places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn places_are_tried_in_order() {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path();
        for dir in ["toml", "one", "two", "envs", "target/release"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let (toml, binary) = (root.join("toml"), root.join("target/release/prl"));
        let path = std::env::join_paths([root.join("one"), root.join("two")]).unwrap();
        let search = SearchPath { relative_to: Some(&toml), env_path: Some(&path), binary: Some(&binary) };
        let error = resolve("a", &search).unwrap_err().to_string();
        for dir in ["toml", "one", "two", "target/release/envs", "envs"] {
            assert!(error.contains(&format!("`{}`", root.join(dir).join("a.wasm").display())), "{error}");
        }
        // From the last place to the first: each takes over from the one before.
        for dir in ["envs", "two", "one", "toml"] {
            fs::write(root.join(dir).join("a.wasm"), "").unwrap();
            assert_eq!(resolve("a", &search).unwrap(), root.join(dir).join("a.wasm"));
        }
        assert_eq!(resolve("../one/a.wasm", &search).unwrap(), toml.join("../one/a.wasm"));
        let absolute = root.join("two/a.wasm");
        assert_eq!(resolve(absolute.to_str().unwrap(), &SearchPath::default()).unwrap(), absolute);
        assert!(matches!(resolve("", &search), Err(LoadError::NotFound { .. })));
        fs::create_dir_all(root.join("one/b")).unwrap();
        assert!(resolve("b", &search).is_err());
        fs::write(root.join("one/b/env.wasm"), "").unwrap();
        assert_eq!(resolve("b", &search).unwrap(), root.join("one/b/env.wasm"));

        // What is listed is what is found.
        fs::write(root.join("two/c.wasm"), "").unwrap();
        fs::create_dir_all(root.join("two/empty")).unwrap();
        fs::create_dir_all(root.join("two/b")).unwrap();
        fs::write(root.join("two/b/env.wasm"), "").unwrap();
        let names = [("a", "toml/a.wasm"), ("b", "one/b/env.wasm"), ("c", "two/c.wasm")];
        assert_eq!(search.names(), names.map(|(name, file)| (name.to_owned(), root.join(file))));
    }
}
