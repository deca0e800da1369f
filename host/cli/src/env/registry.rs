//! `prl env push` and `pull`, and references in place of files. Owns where pulled environments are kept and where the account
//! comes from; the protocol is `prl-registry`'s.

use super::open::{Opened, Purpose};
use super::{Pull, Push, open};
use crate::failure::{Failure, input};
use crate::logging;
use prl_environment::Assets;
use prl_registry::{Asset, Credentials, Package, Reference, Registry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Runs `push`: prints the lock line.
pub fn push(asked: &Push) -> Result<u8, Failure> {
    let reference = Reference::parse(&asked.reference).map_err(Failure::input)?;
    if reference.digest.is_some() || reference.version.is_none() {
        return Err(Failure::input(format_args!("`{reference}`: to push, name a version and no digest")));
    }
    let package = open::block_on(async {
        let file = Opened::load(&open::Asked::plain(&asked.env), Purpose::Look).await?.file;
        if let Some(url) = file.unsandboxed() {
            return Err(Failure::input(format_args!("`{url}` is a server, no component that could be published")));
        }
        let info = file.info();
        let read = |path: &Path| std::fs::read(path).map_err(input(format_args!("`{}`", path.display())));
        let assets = file.assets_dir();
        let assets = if assets.is_dir() { published(&assets)? } else { Vec::new() };
        let annotation = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
        Ok(Package {
            component: read(file.path())?,
            assets,
            annotations: BTreeMap::from([
                annotation("title", &info.name),
                annotation("version", &info.version),
                annotation("description", &info.description),
            ]),
            imports: file.imports().to_vec(),
            exports: vec![format!("prl:env/environment@{}", file.contract_version())],
        })
    })?;
    let digest = Registry::new(&reference, credentials()).push(&package).map_err(Failure::run)?;
    lock_line(&reference.pinned(&digest))
}

/// Runs `pull`: prints the lock line.
pub fn pull(asked: &Pull) -> Result<u8, Failure> {
    let reference = Reference::parse(&asked.reference).map_err(Failure::input)?;
    let pulled = fetch(&reference).map_err(Failure::run)?;
    // Under its checks, so that what cannot run is told now.
    let component = pulled.component.display().to_string();
    let file = open::block_on(Opened::load(&open::Asked::plain(&component), Purpose::Look))?.file;
    let info = file.info();
    logging::print(&format!("# {} {}: {}", info.name, info.version, info.description))?;
    lock_line(&reference.pinned(&pulled.digest))
}

fn lock_line(pinned: &Reference) -> Result<u8, Failure> {
    logging::print(&format!("id = \"{pinned}\""))
}

/// The component that a reference names; out of the cache where that has it.
///
/// # Errors
/// No reference, or it cannot be had.
pub fn component(text: &str) -> Result<PathBuf, String> {
    let reference = Reference::parse(text).map_err(|error| error.to_string())?;
    fetch(&reference).map(|pulled| pulled.component)
}

/// Refuses a reference that may mean something else tomorrow.
///
/// # Errors
/// It has no digest.
pub fn check_pinned(text: &str) -> Result<(), String> {
    let reference = Reference::parse(text).map_err(|error| error.to_string())?;
    match reference.digest {
        Some(_) => Ok(()),
        None => Err(format!("`{reference}` has no digest; `prl env pull {reference}` prints the line with it")),
    }
}

fn fetch(reference: &Reference) -> Result<prl_registry::Pulled, String> {
    let cache = cache().ok_or("there is no folder to keep environments in: set HOME or XDG_CACHE_HOME")?;
    let registry = Registry::new(reference, credentials());
    registry.pull(reference, &cache).map_err(|error| error.to_string())
}

/// `envs` beside the cache of compiled components.
fn cache() -> Option<PathBuf> {
    crate::caches::folder("envs")
}

fn credentials() -> Option<Credentials> {
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    Some(Credentials { user: var("PRL_REGISTRY_USER")?, password: var("PRL_REGISTRY_PASSWORD")? })
}

/// The files of a folder, as environments see them.
fn published(dir: &Path) -> Result<Vec<Asset>, Failure> {
    let assets = Assets::open(dir).map_err(input(format_args!("`{}`", dir.display())))?;
    let read = |(name, path): (&str, &Path)| {
        let bytes = std::fs::read(path).map_err(input(format_args!("`{}`", path.display())))?;
        Ok(Asset { name: name.to_owned(), bytes })
    };
    assets.files().map(read).collect()
}
