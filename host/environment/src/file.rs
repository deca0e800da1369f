//! A component file that was found to be an environment. Owns the checks that happen before anything of it runs, and
//! the words for what it is when it is none; must not know calls beyond `describe`.

use crate::bindings::{GRANTED, INTERFACE, PACKAGE, PureEnvPre, VERSION};
use crate::instance::{INSTANTIATE, Identity, Instance, one_line};
use crate::log::State;
use crate::{EnvInfo, Failure, Limits, LoadError, Sandbox};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wasmtime::component::Component;

/// A checked, compiled and described environment. Cloning is cheap.
#[derive(Clone)]
pub struct EnvFile(Arc<Inner>);

struct Inner {
    path: PathBuf,
    sha256: String,
    bytes: u64,
    imports: Vec<String>,
    version: String,
    info: EnvInfo,
    pre: PureEnvPre<State>,
    sandbox: Sandbox,
}

impl std::fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvFile").field("path", &self.0.path).field("sha256", &self.0.sha256).finish_non_exhaustive()
    }
}

impl EnvFile {
    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// SHA-256 of the file in hex: its identity.
    pub fn sha256(&self) -> &str {
        &self.0.sha256
    }

    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Interfaces it imports, sorted: all that it can reach.
    pub fn imports(&self) -> &[String] {
        &self.0.imports
    }

    /// The version of `prl:env` it was built for.
    pub fn contract_version(&self) -> &str {
        &self.0.version
    }

    /// What it says about itself.
    pub fn info(&self) -> &EnvInfo {
        &self.0.info
    }

    pub(crate) fn pre(&self) -> &PureEnvPre<State> {
        &self.0.pre
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    pub(crate) async fn load(sandbox: &Sandbox, path: &Path, limits: &Limits) -> Result<Self, LoadError> {
        let prepared = {
            let (sandbox, path) = (sandbox.clone(), path.to_owned());
            sandbox.clone().run_blocking(move || prepare(&sandbox, &path)).await
        };
        let aborted = || LoadError::Sandbox("the sandbox stopped while it loaded a file".into());
        let Prepared { sha256, bytes, imports, version, pre } = prepared.ok_or_else(aborted)??;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let identity = Identity { env: name.into(), worker: 0 };
        let described = {
            let (engine, pre, limits) = (sandbox.engine().clone(), pre.clone(), limits.clone());
            let describe = async move {
                let mut instance = Instance::new(&engine, &pre, &limits, identity, Arc::new(|_| ())).await?;
                instance.describe(limits.call_timeout).await
            };
            sandbox.run(describe).await
        };
        let info = described.ok_or_else(aborted)?.map_err(|source| match source.failure {
            Failure::Invalid(reason) if source.call == INSTANTIATE => {
                LoadError::Interface { path: path.to_owned(), reason }
            }
            _ => LoadError::Describe { path: path.to_owned(), source },
        })?;
        let (path, sandbox) = (path.to_owned(), sandbox.clone());
        Ok(EnvFile(Arc::new(Inner { path, sha256, bytes, imports, version, info, pre, sandbox })))
    }
}

struct Prepared {
    sha256: String,
    bytes: u64,
    imports: Vec<String>,
    version: String,
    pre: PureEnvPre<State>,
}

/// Everything that does not run the guest.
fn prepare(sandbox: &Sandbox, path: &Path) -> Result<Prepared, LoadError> {
    let bytes = std::fs::read(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    check_outside(path, &bytes)?;
    let sha256: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let component = compile(sandbox, path, &sha256, &bytes)?;
    let (imports, version) = check_interface(sandbox, path, &component)?;
    let interface = |error: wasmtime::Error| LoadError::Interface { path: path.to_owned(), reason: one_line(&error) };
    let pre = sandbox.linker().instantiate_pre(&component).and_then(PureEnvPre::new).map_err(interface)?;
    Ok(Prepared { sha256, bytes: bytes.len() as u64, imports, version, pre })
}

/// Magic number, kind and section sizes: enough to tell a component from everything else, and a whole one from a
/// piece.
fn check_outside(path: &Path, bytes: &[u8]) -> Result<(), LoadError> {
    let path = || path.to_owned();
    if bytes.is_empty() {
        return Err(LoadError::NotWasm { path: path(), reason: "it is empty" });
    }
    let Some((header, mut rest)) = bytes.split_first_chunk::<8>().filter(|(header, _)| header.starts_with(b"\0asm"))
    else {
        return Err(LoadError::NotWasm { path: path(), reason: "it does not begin like one" });
    };
    // Two bytes of version, two of layer: 0 is a module, 1 a component.
    match header[6..] {
        [0, 0] => return Err(LoadError::CoreModule { path: path() }),
        [1, 0] => {}
        _ => return Err(LoadError::NotWasm { path: path(), reason: "its layer is neither module nor component" }),
    }
    while let Some((_id, after_id)) = rest.split_first() {
        let truncated = |missing| LoadError::Truncated { path: path(), missing };
        let (size, body) = leb128(after_id).ok_or_else(|| truncated(1))?;
        let missing = size.saturating_sub(body.len() as u64);
        if missing > 0 {
            return Err(truncated(missing));
        }
        rest = &body[size as usize..];
    }
    Ok(())
}

/// An unsigned LEB128 number of at most 32 bits and what follows it.
fn leb128(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (i, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

fn compile(sandbox: &Sandbox, path: &Path, sha256: &str, bytes: &[u8]) -> Result<Component, LoadError> {
    let engine = sandbox.engine();
    if let Some(component) = sandbox.cache().and_then(|cache| cache.load(engine, sha256)) {
        return Ok(component);
    }
    let invalid = |error: wasmtime::Error| LoadError::Invalid { path: path.to_owned(), reason: one_line(&error) };
    let component = Component::from_binary(engine, bytes).map_err(invalid)?;
    if let Some(cache) = sandbox.cache() {
        cache.save(engine, sha256, &component.serialize().map_err(invalid)?);
    }
    Ok(component)
}

/// Names and versions of what it exports and imports. Gives its imports and the version of the contract.
fn check_interface(sandbox: &Sandbox, path: &Path, component: &Component) -> Result<(Vec<String>, String), LoadError> {
    let path = || path.to_owned();
    let ty = component.component_type();
    let exports: Vec<String> = ty.exports(sandbox.engine()).map(|(name, _)| name.to_owned()).collect();
    let mut imports: Vec<String> = ty.imports(sandbox.engine()).map(|(name, _)| name.to_owned()).collect();
    imports.sort_unstable();
    let split = |name: &str| name.split_once('@').map(|(name, version)| (name.to_owned(), version.to_owned()));
    let versions: Vec<String> =
        exports.iter().filter_map(|name| split(name)).filter(|(name, _)| name == INTERFACE).map(|(_, v)| v).collect();
    if versions.is_empty() {
        return Err(LoadError::NotAnEnvironment { path: path(), exports });
    }
    let (major, minor, patch) = VERSION;
    let fits = |version: &str| version.starts_with(&format!("{major}.{minor}."));
    let Some(version) = versions.iter().find(|version| fits(version)) else {
        let found = versions[0].clone();
        let newer = parse(&found).is_none_or(|found| found > VERSION);
        let advice = if newer {
            let track = found.split('.').take(2).collect::<Vec<_>>().join(".");
            format!("it needs a newer prl, one that runs prl:env {track}")
        } else {
            "build it anew with the current prl-env".into()
        };
        return Err(LoadError::WrongVersion { path: path(), found, supported: format!("{major}.{minor}.x"), advice });
    };
    for import in &imports {
        let granted = split(import).is_some_and(|(name, version)| GRANTED.contains(&name.as_str()) && fits(&version));
        if granted {
            continue;
        }
        // A newer patch may bring imports that this host does not know yet.
        if import.starts_with(&format!("{PACKAGE}/")) && parse(version).is_some_and(|found| found > VERSION) {
            return Err(LoadError::WrongVersion {
                path: path(),
                found: version.clone(),
                supported: format!("{major}.{minor}.{patch}"),
                advice: format!("it imports `{import}` and needs a newer prl"),
            });
        }
        let granted = GRANTED.map(|name| format!("{name}@{major}.{minor}")).to_vec();
        return Err(LoadError::UngrantedImport { path: path(), import: import.clone(), granted });
    }
    Ok((imports, version.clone()))
}

fn parse(version: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = version.splitn(3, '.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(bytes: &[u8]) -> String {
        check_outside(Path::new("x.wasm"), bytes).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn files_are_told_apart_by_their_first_bytes() {
        assert_eq!(outside(b""), "`x.wasm` is not a WASM file: it is empty");
        assert_eq!(outside(b"#!/bin/sh\n"), "`x.wasm` is not a WASM file: it does not begin like one");
        assert!(outside(b"\0asm\x01\0\0\0").contains("core WASM module"));
        assert!(outside(b"\0asm\x0d\0\x07\0").contains("neither"));
        assert_eq!(outside(b"\0asm\x0d\0\x01\0"), "");
        assert!(outside(b"\0asm\x0d\0\x01\0\x01\x05abc").contains("cut off: its last section needs 2 more bytes"));
        assert!(outside(b"\0asm\x0d\0\x01\0\x01\x80").contains("cut off"));
        assert_eq!(outside(b"\0asm\x0d\0\x01\0\x01\x03abc\x02\x00"), "");
    }

    #[test]
    fn versions_are_ordered() {
        assert_eq!(parse("0.1.10"), Some((0, 1, 10)));
        assert!(parse("0.2.0") > parse("0.1.9"));
        assert_eq!(parse("0.1"), None);
    }
}
