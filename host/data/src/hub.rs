//! Datasets of the hub as files. Owns when the cache may stand in for the hub; which files hold what is wanted is told by
//! the same rules as for folders.

use crate::layout::{CARD, select, walk};
use crate::{DataError, Wanted, wrong};
use prl_hub::{Hub, HubError, HubOptions, Kind};
use std::path::{Path, PathBuf};

/// The files of the hub's dataset `id` for each part that is wanted. Only these are fetched, and only what the cache does
/// not have; `revision` is a branch, tag or commit, `None` the main branch.
///
/// # Errors
/// No such dataset, subset or split, no access, no network, or offline and not in the cache; each says what to do.
pub fn fetch(
    id: &str,
    revision: Option<&str>,
    wanted: &[Wanted],
    options: &HubOptions,
) -> Result<Vec<Vec<PathBuf>>, DataError> {
    let name = match revision {
        Some(revision) => format!("{id}@{revision}"),
        None => id.to_owned(),
    };
    let error = |reason: String| wrong(Path::new(&name), reason);
    let refused = |e: HubError| error(e.to_string());
    let hub = Hub::new(Kind::Dataset, id, revision, options).map_err(refused)?;
    if options.offline {
        return cached(&hub, wanted).map_err(error)?.ok_or_else(|| refused(hub.offline()));
    }
    let listing = match hub.list() {
        Ok(listing) => listing,
        // An answer of the hub counts; no answer leaves what was fetched before.
        Err(HubError::Silent(reason)) => {
            let here = "there is no such file or folder here, and";
            let files = cached(&hub, wanted).map_err(error)?;
            let files = files
                .ok_or_else(|| error(format!("{here} {reason}. Check the name, or the connection (HF_ENDPOINT)")))?;
            tracing::warn!(dataset = name, "{reason}; using the cached copy");
            return Ok(files);
        }
        Err(e) => return Err(refused(e)),
    };
    let mut card = None;
    if listing.has(CARD) {
        let path = hub.fetch(&listing, &[CARD.to_owned()]).map_err(refused)?.join(CARD);
        card = Some(std::fs::read_to_string(&path).map_err(|e| wrong(&path, e))?);
    }
    let names: Vec<String> = listing.files.keys().cloned().collect();
    let chosen = wanted.iter().map(|one| select(&names, card.as_deref(), one)).collect::<Result<Vec<_>, _>>();
    let chosen = chosen.map_err(error)?;
    let dir = hub.fetch(&listing, &chosen.concat()).map_err(refused)?;
    hub.keep(&listing).map_err(refused)?;
    Ok(chosen.into_iter().map(|names| names.iter().map(|name| dir.join(name)).collect()).collect())
}

/// The same from the cache alone; `None` where it does not have all of it.
fn cached(hub: &Hub<'_>, wanted: &[Wanted]) -> Result<Option<Vec<Vec<PathBuf>>>, String> {
    let Some(dir) = hub.cached() else { return Ok(None) };
    let names = match hub.cached_listing() {
        Some(listing) => listing.files.into_keys().collect(),
        // Another library fetched it: what is there has to be taken for all.
        None => {
            let mut names = Vec::new();
            walk(&dir, "", &mut names).map_err(|e| e.to_string())?;
            names
        }
    };
    let card = std::fs::read_to_string(dir.join(CARD)).ok();
    let mut parts = Vec::with_capacity(wanted.len());
    for one in wanted {
        let files: Vec<PathBuf> = select(&names, card.as_deref(), one)?.iter().map(|name| dir.join(name)).collect();
        if files.iter().any(|file| !file.exists()) {
            return Ok(None);
        }
        parts.push(files);
    }
    Ok(Some(parts))
}
