//! A component file that was found to be an environment. Owns the checks that happen before anything of it runs, and
//! the words for what it is when it is none; must not know calls beyond `describe`.

use crate::contract::{ALWAYS, INTERFACE, PACKAGE, Pre, VERSION};
use crate::digest::{self, sha256_of};
use crate::instance::{Deadline, INSTANTIATE, Identity, Instance, one_line};
use crate::machine::Machine;
use crate::tape::Tape;
use crate::{EnvInfo, Failure, Grant, Http, Limits, LoadConfig, LoadError, Sandbox, Server, Services, check, wasi};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wasmtime::Engine;
use wasmtime::component::Component;

/// Bytes read at a time.
const PIECE: usize = 1 << 18;

/// A component ready to be instantiated on an engine.
pub struct Linked {
    pub engine: Engine,
    pub pre: Pre,
}

/// A checked, compiled and described environment. Cloning is cheap.
#[derive(Clone)]
pub struct EnvFile(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// What stands behind the grants of a component that stands for a server.
    own: Option<Services>,
    sha256: String,
    bytes: u64,
    imports: Vec<String>,
    grants: Vec<Grant>,
    version: String,
    info: EnvInfo,
    limits: Limits,
    linked: Arc<Vec<Linked>>,
    sandbox: Sandbox,
}

impl std::fmt::Debug for EnvFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvFile").field("path", &self.0.path).field("sha256", &self.0.sha256).finish_non_exhaustive()
    }
}

impl EnvFile {
    /// Where it was loaded from; a server's address for one that stands for it.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The address of the environment that it stands for, which runs outside the sandbox.
    pub fn unsandboxed(&self) -> Option<&str> {
        self.0.own.as_ref().and_then(|_| self.0.path.to_str())
    }

    /// What stands behind its grants whatever the run says.
    pub(crate) fn own_services(&self) -> Option<&Services> {
        self.0.own.as_ref()
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

    /// What it says about itself before it has arguments.
    pub fn info(&self) -> &EnvInfo {
        &self.0.info
    }

    /// Which of its imports needed a grant.
    pub fn grants(&self) -> &[Grant] {
        &self.0.grants
    }

    /// The bounds it was loaded with.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The folder of files published with it: `NAME.assets` beside `NAME.wasm`, or `assets` beside an `env.wasm`.
    /// It need not exist.
    pub fn assets_dir(&self) -> PathBuf {
        match self.0.path.file_name() {
            Some(name) if name == "env.wasm" => self.0.path.with_file_name("assets"),
            _ => self.0.path.with_extension("assets"),
        }
    }

    /// On each of its engines, in the order in which they are asked for room.
    pub(crate) fn linked(&self) -> &[Linked] {
        &self.0.linked
    }

    pub(crate) fn sandbox(&self) -> &Sandbox {
        &self.0.sandbox
    }

    pub(crate) async fn load(sandbox: &Sandbox, path: &Path, config: &LoadConfig) -> Result<Self, LoadError> {
        Self::describe(sandbox, path, config, Some(path.to_owned()), None).await
    }

    pub(crate) async fn connect(sandbox: &Sandbox, server: &Server, limits: &Limits) -> Result<Self, LoadError> {
        let Server { url, client, bridge } = server;
        let http = Http::to_environment(url, client.clone(), limits.call_timeout).map_err(LoadError::Address)?;
        let own = Services { http: Some(http.clone().patient()), ..Services::default() };
        // That there is none at all is told at once.
        let at_once = Services { http: Some(http), ..Services::default() };
        let config = LoadConfig { limits: limits.clone(), grants: vec![Grant::Http] };
        let described = Self::describe(sandbox, Path::new(url), &config, bridge.clone(), Some((own, at_once))).await;
        described.map_err(|error| match error {
            LoadError::Describe { source, .. } => {
                let reason = match source.failure {
                    // It gave up with this line in the log.
                    Failure::Trap { said: Some(said), .. } => said,
                    failure => failure.to_string(),
                };
                LoadError::Server { url: url.clone(), reason }
            }
            error => error,
        })
    }

    /// Loads the component in `file`, or the built-in one, under the name `path`, and has it describe itself. What stands
    /// for a server has services of its own, and others while it does so.
    async fn describe(
        sandbox: &Sandbox,
        path: &Path,
        config: &LoadConfig,
        file: Option<PathBuf>,
        own: Option<(Services, Services)>,
    ) -> Result<Self, LoadError> {
        let prepared = {
            let (sandbox, path, config) = (sandbox.clone(), path.to_owned(), config.clone());
            sandbox.clone().run_blocking(move || prepare(&sandbox, &path, file.as_deref(), &config)).await
        };
        let aborted = || LoadError::Sandbox("the sandbox stopped while it loaded a file".into());
        let Prepared { sha256, bytes, interface: Interface { imports, grants, version }, linked } =
            prepared.ok_or_else(aborted)??;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let identity = Identity { env: name.into(), worker: 0 };
        let (linked, limits) = (Arc::new(linked), config.limits.clone());
        let described = {
            let (linked, limits, grants) = (linked.clone(), limits.clone(), grants.clone());
            let services = own.as_ref().map(|(_, at_once)| at_once.clone()).unwrap_or_default();
            let describe = async move {
                let log = Arc::new(|_| ());
                let mut instance =
                    Instance::new(&linked, &limits, identity.clone(), log, services, Tape::default()).await?;
                let info = instance.describe(Deadline::of_call(&limits)).await?;
                check::info(&info, &grants)
                    .map_err(|reason| identity.error("describe", Failure::Invalid(reason)))
                    .map(|()| info)
            };
            sandbox.run(describe).await
        };
        let info = described.ok_or_else(aborted)?.map_err(|source| match source.failure {
            Failure::Invalid(reason) if source.call == INSTANTIATE => {
                LoadError::Interface { path: path.to_owned(), reason }
            }
            _ => LoadError::Describe { path: path.to_owned(), source },
        })?;
        let (path, sandbox, own) = (path.to_owned(), sandbox.clone(), own.map(|(own, _)| own));
        let inner = Inner { path, own, sha256, bytes, imports, grants, version, info, limits, linked, sandbox };
        Ok(EnvFile(Arc::new(inner)))
    }
}

struct Prepared {
    sha256: String,
    bytes: u64,
    interface: Interface,
    linked: Vec<Linked>,
}

/// Stands for environments that are served over HTTP; `envs/build.sh` makes it.
const BRIDGE: &[u8] = include_bytes!("../../bridge/bridge.wasm");

/// Everything that does not run the guest.
fn prepare(sandbox: &Sandbox, path: &Path, file: Option<&Path>, config: &LoadConfig) -> Result<Prepared, LoadError> {
    let read = |source| LoadError::Read { path: path.to_owned(), source };
    let (sha256, bytes) = match file {
        Some(file) => {
            let file = File::open(file).map_err(read)?;
            let length = file.metadata().map_err(read)?.len();
            examine(path, &mut BufReader::with_capacity(PIECE, file), length)?
        }
        None => examine(path, &mut Cursor::new(BRIDGE), BRIDGE.len() as u64)?,
    };
    let unfit = |error: wasmtime::Error| LoadError::Interface { path: path.to_owned(), reason: one_line(&error) };
    let machines = sandbox.machines().for_component(&config.limits, bytes)?;
    let (mut interface, mut linked) = (None, Vec::new());
    for (at, machine) in machines.iter().enumerate() {
        let component = compile(sandbox, machine, (path, file), &sha256)?;
        if interface.is_none() {
            interface = Some(check_interface(machine, path, &component, &config.grants)?);
        }
        let mut linker = machine.linker.clone();
        wasi::link(&mut linker, &machine.engine, &component).map_err(unfit)?;
        match linker.instantiate_pre(&component).and_then(Pre::new) {
            Ok(pre) => linked.push(Linked { engine: machine.engine.clone(), pre }),
            // Too large for a pool's places; the last engine has no pool.
            Err(_) if at + 1 < machines.len() => {}
            Err(error) => return Err(unfit(error)),
        }
    }
    let interface = interface.ok_or_else(|| LoadError::Sandbox("there is no engine".into()))?;
    Ok(Prepared { sha256, bytes, interface, linked })
}

/// Whether it is a component, its SHA-256 and its length.
fn examine(path: &Path, file: &mut (impl BufRead + Seek), length: u64) -> Result<(String, u64), LoadError> {
    check_outside(path, file, length)?;
    let digest = file.rewind().and_then(|()| sha256_of(file));
    Ok((digest.map_err(|source| LoadError::Read { path: path.to_owned(), source })?, length))
}

/// Magic number, kind and section sizes: enough to tell a component from everything else, and a whole one from a
/// piece. `length` is that of the file.
fn check_outside(path: &Path, file: &mut (impl BufRead + Seek), length: u64) -> Result<(), LoadError> {
    let path = || path.to_owned();
    let read = |source| LoadError::Read { path: path(), source };
    if length == 0 {
        return Err(LoadError::NotWasm { path: path(), reason: "it is empty" });
    }
    let mut header = [0; 8];
    let whole = length >= 8;
    if whole {
        file.read_exact(&mut header).map_err(read)?;
    }
    if !header.starts_with(b"\0asm") {
        return Err(LoadError::NotWasm { path: path(), reason: "it does not begin like one" });
    }
    // Two bytes of version, two of layer: 0 is a module, 1 a component.
    match header[6..] {
        [0, 0] => return Err(LoadError::CoreModule { path: path() }),
        [1, 0] => {}
        _ => return Err(LoadError::NotWasm { path: path(), reason: "its layer is neither module nor component" }),
    }
    let mut at = 8;
    while at < length {
        let truncated = |missing| LoadError::Truncated { path: path(), missing };
        // Its id, and its size in at most 5 bytes.
        let mut head = [0; 6];
        let head = &mut head[..(length - at).min(6) as usize];
        file.read_exact(head).map_err(read)?;
        let (size, width) = leb128(&head[1..]).ok_or_else(|| truncated(1))?;
        let section = 1 + width + size;
        let missing = (at + section).saturating_sub(length);
        if missing > 0 {
            return Err(truncated(missing));
        }
        at += section;
        // Relative, which keeps what is in the buffer: there may be millions of small sections.
        file.seek_relative(section as i64 - head.len() as i64).map_err(read)?;
    }
    Ok(())
}

/// An unsigned LEB128 number of at most 32 bits, and how many bytes it takes.
fn leb128(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut value = 0;
    for (i, byte) in (0..).zip(bytes.iter().take(5)) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

fn compile(
    sandbox: &Sandbox,
    machine: &Machine,
    (path, file): (&Path, Option<&Path>),
    sha256: &str,
) -> Result<Component, LoadError> {
    let engine = &machine.engine;
    if let Some(component) = sandbox.cache().and_then(|cache| cache.load(engine, sha256)) {
        return Ok(component);
    }
    let bytes = file.map_or(Ok(Cow::Borrowed(BRIDGE)), |file| std::fs::read(file).map(Cow::Owned));
    let bytes = bytes.and_then(|bytes| match digest::sha256(&bytes) == sha256 {
        true => Ok(bytes),
        false => Err(io::Error::other("it changed while it was read")),
    });
    let bytes = bytes.map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let invalid = |error: wasmtime::Error| LoadError::Invalid { path: path.to_owned(), reason: one_line(&error) };
    let component = Component::from_binary(engine, &bytes).map_err(invalid)?;
    if let Some(cache) = sandbox.cache() {
        cache.save(engine, sha256, &component.serialize().map_err(invalid)?);
    }
    Ok(component)
}

/// What a component names on its outside.
struct Interface {
    /// All imports, sorted.
    imports: Vec<String>,
    /// Those of them that needed a grant.
    grants: Vec<Grant>,
    /// Of the contract.
    version: String,
}

/// Names and versions of what it exports and imports.
fn check_interface(
    machine: &Machine,
    path: &Path,
    component: &Component,
    granted: &[Grant],
) -> Result<Interface, LoadError> {
    let path = || path.to_owned();
    let (ty, engine) = (component.component_type(), &machine.engine);
    let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
    let mut imports: Vec<String> = ty.imports(engine).map(|(name, _)| name.to_owned()).collect();
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
    let mut grants = Vec::new();
    for import in imports.iter().filter(|import| !wasi::is_wasi(import)) {
        let ours = split(import).filter(|(_, version)| fits(version));
        let name = ours.as_ref().and_then(|(name, _)| name.strip_prefix(PACKAGE)?.strip_prefix('/'));
        match name.map(|name| (ALWAYS.contains(&name), Grant::of(name))) {
            Some((true, _)) => {}
            Some((_, Some(grant))) if granted.contains(&grant) => grants.push(grant),
            Some((_, Some(grant))) => {
                return Err(LoadError::NotGranted { path: path(), import: import.clone(), grant });
            }
            // A newer patch may bring imports that this host does not know yet.
            Some(_) if parse(version).is_some_and(|found| found > VERSION) => {
                return Err(LoadError::WrongVersion {
                    path: path(),
                    found: version.clone(),
                    supported: format!("{major}.{minor}.{patch}"),
                    advice: format!("it imports `{import}` and needs a newer prl"),
                });
            }
            _ => return Err(LoadError::UnknownImport { path: path(), import: import.clone() }),
        }
    }
    Ok(Interface { imports, grants, version: version.clone() })
}

fn parse(version: &str) -> Option<(u64, u64, u64)> {
    let mut numbers = version.splitn(3, '.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outside(bytes: &[u8]) -> String {
        check_outside(Path::new("x.wasm"), &mut io::Cursor::new(bytes), bytes.len() as u64)
            .err()
            .map_or_else(String::new, |error| error.to_string())
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
