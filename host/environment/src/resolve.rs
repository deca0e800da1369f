//! From an environment's id to its file. Owns the order of places; reads no variables and no configuration.

use crate::LoadError;
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
        places.extend(search.relative_to.map(|dir| dir.join(&file)));
        let dirs = search.env_path.into_iter().flat_map(std::env::split_paths);
        places.extend(dirs.filter(|dir| !dir.as_os_str().is_empty()).map(|dir| dir.join(&file)));
        let above = search.binary.into_iter().flat_map(Path::ancestors).skip(1).map(|dir| dir.join("envs"));
        let beside = above.enumerate().filter(|(i, envs)| *i == 0 || envs.is_dir());
        places.extend(beside.map(|(_, envs)| envs.join(&file)));
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
    }
}
