//! From a model's name to a folder: a local one, or one of the hub. Owns which files a model needs; must not know their
//! contents beyond the list of shards.

use crate::folder::{COMPANION_FILES, INDEX_FILE, SINGLE_FILE, read_index, weight_files};
use crate::{CONFIG_FILE, ModelError};
use prl_hub::{Cached, Hub, HubError, HubOptions, Kind, Listed, Listing};
use std::path::{Path, PathBuf};

/// The folder of the model `name`: the folder of that name if there is one, else the hub's model of that id, fetched
/// into the cache as far as it is not there. Only config, tokenizer, chat template and safetensors weights are fetched.
///
/// # Errors
/// Neither a folder nor a hub id, offline and not cached, no access, no such model, no network; each says what to do.
pub fn resolve(name: &str, options: &HubOptions) -> Result<PathBuf, ModelError> {
    let error = |reason: String| ModelError::Hub { name: name.to_string(), reason };
    let refused = |e: HubError| error(e.to_string());
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        return Err(error("is a file; give the folder with config.json and the weights".into()));
    }
    let hub = Hub::new(Kind::Model, name, None, options).map_err(refused)?;
    let listing = match hub.list_or(|| Ok(cached(&hub))).map_err(refused)? {
        Listed::Here(listing) => listing,
        Listed::Cached(dir) => return Ok(dir),
    };
    let get = |files: &[String]| hub.fetch(&listing, files).map_err(refused);
    let mut wanted: Vec<String> = vec![CONFIG_FILE.into()];
    wanted.extend(COMPANION_FILES.iter().filter(|f| listing.has(f)).map(|f| f.to_string()));
    match weights(&listing) {
        Some(SINGLE_FILE) => wanted.push(SINGLE_FILE.into()),
        Some(index) => {
            let dir = get(&[index.to_owned()])?;
            for (_, file) in read_index(&dir.join(index))? {
                if !wanted.contains(&file) {
                    wanted.push(file);
                }
            }
        }
        None => return Err(error("the hub's model has no safetensors weights (model.safetensors)".into())),
    }
    let dir = get(&wanted)?;
    hub.keep(&listing).map_err(refused)?;
    Ok(dir)
}

/// What others call the model of a folder: the hub's id of one in a hub's cache, else the folder's whole path.
pub fn name_of(dir: &Path) -> String {
    let parts: Vec<&str> = dir.iter().rev().filter_map(|part| part.to_str()).take(3).collect();
    let id = match parts[..] {
        [_, "snapshots", folder] => folder.strip_prefix("models--").map(|id| id.replacen("--", "/", 1)),
        _ => None,
    };
    let path = || std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string();
    id.filter(|id| prl_hub::is_hub_id(id)).unwrap_or_else(path)
}

/// The file that leads to the weights.
fn weights(listing: &Listing) -> Option<&'static str> {
    [SINGLE_FILE, INDEX_FILE].into_iter().find(|file| listing.has(file))
}

/// The cached snapshot of the main branch, if it is complete.
fn cached(hub: &Hub<'_>) -> Option<PathBuf> {
    let cached = hub.cached().filter(|cached| cached.has(CONFIG_FILE))?;
    let Cached { dir, listing, .. } = &cached;
    let weights = weight_files(dir).ok()?;
    let is_there =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| cached.has(name));
    let needed = |file: &&str| listing.as_ref().is_some_and(|listing| listing.has(file));
    let companions = COMPANION_FILES.iter().filter(|file| needed(file)).all(|file| cached.has(file));
    (companions && weights.iter().all(is_there)).then(|| dir.clone())
}
