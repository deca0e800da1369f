//! Datasets of the hub as files. Owns what of a dataset is needed; which files hold what is wanted is told by the same rules as
//! for folders.

use crate::layout::{CARD, select, walk};
use crate::{DataError, Wanted, wrong};
use prl_hub::{Cached, Hub, HubError, HubOptions, Kind, Listed};
use std::path::{Path, PathBuf};

/// Files of a dataset of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The commit that they are of.
    pub commit: String,
    /// The files of each part that was wanted.
    pub parts: Vec<Vec<PathBuf>>,
}

/// The files of the hub's dataset `id` for each part that is wanted. Only these are fetched, and only what the cache does
/// not have; `revision` is a branch, tag or commit, `None` the main branch.
///
/// # Errors
/// No such dataset, subset or split, no access, no network, or offline and not in the cache; each says what to do.
pub fn fetch(id: &str, revision: Option<&str>, wanted: &[Wanted], options: &HubOptions) -> Result<Fetched, DataError> {
    let name = match revision {
        Some(revision) => format!("{id}@{revision}"),
        None => id.to_owned(),
    };
    let error = |reason: String| wrong(Path::new(&name), reason);
    let refused = |e: HubError| error(e.to_string());
    let hub = Hub::new(Kind::Dataset, id, revision, options).map_err(refused)?;
    let listing = match hub.list_or(|| cached(&hub, wanted)).map_err(refused)? {
        Listed::Here(listing) => listing,
        Listed::Cached(found) => return Ok(found),
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
    let parts = chosen.into_iter().map(|names| names.iter().map(|name| dir.join(name)).collect());
    Ok(Fetched { parts: parts.collect(), commit: listing.commit })
}

/// The same from the cache alone; `None` where it does not have all of it.
fn cached(hub: &Hub<'_>, wanted: &[Wanted]) -> Result<Option<Fetched>, String> {
    let Some(cached) = hub.cached() else { return Ok(None) };
    let Cached { dir, listing, .. } = &cached;
    let names = match listing {
        Some(listing) => listing.files.keys().cloned().collect(),
        // Another library fetched it: what is there has to be taken for all.
        None => {
            let mut names = Vec::new();
            walk(dir, "", &mut names).map_err(|e| e.to_string())?;
            names
        }
    };
    let card = std::fs::read_to_string(dir.join(CARD)).ok();
    let mut parts = Vec::with_capacity(wanted.len());
    for one in wanted {
        let files = select(&names, card.as_deref(), one)?;
        if files.iter().any(|file| !cached.has(file)) {
            return Ok(None);
        }
        parts.push(files.iter().map(|name| dir.join(name)).collect());
    }
    Ok(Some(Fetched { parts, commit: cached.commit }))
}
