//! Where plug-ins are looked for, and which file an algorithm's name means. Reads metadata only; must not load code.

use crate::{AlgorithmError, Metadata, Plugin, inspect};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The places to look at, in order of precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Files given by `--plugin`: each must be a plug-in, and wins over any other file of the same name.
    pub plugins: Vec<PathBuf>,
    /// Folders (or files) that may hold plug-ins; missing ones and files of other kinds are passed over.
    pub places: Vec<PathBuf>,
}

impl Search {
    /// The standard places: `plugins`; the entries of `plugin_path` (the value of `PRL_PLUGIN_PATH`, separated like
    /// `PATH`); the binary's folder; `../lib/prl` beside it. In a cargo checkout the binary's `deps` folder comes before the
    /// binary's own, because cargo copies libraries out of it only when they are built by name.
    pub fn new(plugins: Vec<PathBuf>, plugin_path: Option<&OsStr>, binary: &Path) -> Self {
        let mut places: Vec<PathBuf> = plugin_path
            .map(std::env::split_paths)
            .into_iter()
            .flatten()
            .filter(|p| !p.as_os_str().is_empty())
            .collect();
        if let Some(folder) = binary.parent() {
            places.extend([folder.join("deps"), folder.to_path_buf()]);
            places.extend(folder.parent().map(|up| up.join("lib").join("prl")));
        }
        Search { plugins, places }
    }
}

/// A plug-in that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// What it says about itself.
    pub metadata: Metadata,
}

/// All plug-ins in reach.
#[derive(Debug, Default)]
pub struct Registry {
    found: Vec<Found>,
    /// Libraries in searched folders that are no usable plug-ins, and why.
    unusable: Vec<(PathBuf, AlgorithmError)>,
    searched: Vec<PathBuf>,
}

impl Registry {
    /// Reads the metadata of every plug-in in the places given.
    ///
    /// # Errors
    /// A file of `search.plugins` that is no usable plug-in, or two of them with one name. Files in folders never fail here.
    pub fn discover(search: &Search) -> Result<Self, AlgorithmError> {
        let mut registry = Registry::default();
        for path in &search.plugins {
            let metadata = inspect(path)?;
            if let Some(first) = registry.get(&metadata.name) {
                let (first, second) = (first.path.clone(), path.clone());
                return Err(AlgorithmError::Ambiguous { name: metadata.name, first, second });
            }
            registry.found.push(Found { path: path.clone(), metadata });
        }
        for place in &search.places {
            if registry.searched.contains(place) {
                continue;
            }
            registry.searched.push(place.clone());
            for path in libraries(place) {
                match inspect(&path) {
                    Ok(metadata) if registry.get(&metadata.name).is_none() => {
                        registry.found.push(Found { path, metadata });
                    }
                    Ok(_) => {}
                    Err(error) => registry.unusable.push((path, error)),
                }
            }
        }
        Ok(registry)
    }

    /// All plug-ins in reach, sorted by name.
    pub fn found(&self) -> Vec<&Found> {
        let mut found: Vec<&Found> = self.found.iter().collect();
        found.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        found
    }

    /// Files in searched folders that call themselves plug-ins and cannot be used, or are no libraries at all.
    pub fn broken(&self) -> impl Iterator<Item = (&Path, &AlgorithmError)> {
        let ours = |(_, error): &&(PathBuf, AlgorithmError)| !matches!(error, AlgorithmError::NoMetadata { .. });
        self.unusable.iter().filter(ours).map(|(path, error)| (path.as_path(), error))
    }

    /// The places that were looked at, missing ones included.
    pub fn searched(&self) -> &[PathBuf] {
        &self.searched
    }

    /// What an algorithm's name means.
    pub fn get(&self, name: &str) -> Option<&Found> {
        self.found.iter().find(|f| f.metadata.name == name)
    }

    /// The file that a name means: of a plug-in in reach, or `lib<name>.so` in one of the places, which is then no usable
    /// plug-in.
    ///
    /// # Errors
    /// No such file, with the names known and the places searched.
    pub fn locate(&self, name: &str) -> Result<PathBuf, AlgorithmError> {
        if let Some(found) = self.get(name) {
            return Ok(found.path.clone());
        }
        let file = format!("lib{}.so", name.replace('-', "_"));
        let named = |(path, _): &&(PathBuf, AlgorithmError)| path.file_name() == Some(OsStr::new(&file));
        match self.unusable.iter().find(named) {
            Some((path, _)) => Ok(path.clone()),
            None => Err(AlgorithmError::UnknownType {
                name: name.into(),
                known: self.found().iter().map(|f| format!("`{}`", f.metadata.name)).collect(),
                searched: self.searched.iter().map(|p| p.display().to_string()).collect(),
            }),
        }
    }

    /// Loads the plug-in of this name.
    ///
    /// # Errors
    /// As [`Registry::locate`]; the reason why its file cannot be used; everything [`Plugin::load`] reports.
    pub fn open(&self, name: &str) -> Result<Plugin, AlgorithmError> {
        Plugin::load(&self.locate(name)?)
    }
}

/// The `.so` files of a folder, sorted by name; a file stands for itself.
fn libraries(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.into()];
    }
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension() == Some(OsStr::new("so")) && p.is_file())
        .collect();
    paths.sort();
    paths
}
