//! `prl env build`: a folder becomes a component. Owns which toolchain is taken and what is said when one is missing; the
//! compilers are cargo's and `prl_env.build`'s business.

use super::{Build, open};
use crate::failure::{Failure, input, run as running};
use crate::logging;
use crate::sdk;
use serde_json::Value;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use wit_component::ComponentEncoder;

const TRIPLE: &str = "wasm32-unknown-unknown";
/// Where a Debian-like system keeps the compiler that comes with sources of the WASM standard library.
const SYSTEM_CARGO: &str = "/usr/bin/cargo";
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";
/// Small code, and the same whatever the package's own profile says.
const PROFILE: [(&str, &str); 5] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "s"),
    ("CARGO_PROFILE_RELEASE_LTO", "true"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_PANIC", "abort"),
    ("CARGO_PROFILE_RELEASE_STRIP", "true"),
];

/// Runs the command.
pub fn run(asked: &Build) -> Result<u8, Failure> {
    let dir = &asked.dir;
    if !dir.exists() {
        return Err(Failure::input(format_args!("there is no `{}`", dir.display())));
    }
    if !(asked.timeout.is_finite() && asked.timeout > 0.0) {
        return Err(Failure::input(format_args!("`--timeout` is {}; it must be above 0", asked.timeout)));
    }
    let is_python_file = dir.extension().is_some_and(|extension| extension == "py");
    if !is_python_file && dir.join("Cargo.toml").is_file() {
        let package = Package::read(dir)?;
        let out = asked.output.clone().unwrap_or_else(|| dir.join(format!("{}.wasm", package.name)));
        keeping(&out, |made| rust(dir, &package, made))
    } else if is_python_file || is_python(dir) {
        let whole = dir.canonicalize().map_err(input(format_args!("`{}`", dir.display())))?;
        let stem = if is_python_file { whole.file_stem() } else { whole.file_name() };
        let name = stem.unwrap_or_default().to_string_lossy().into_owned() + ".wasm";
        let beside = if is_python_file { dir.parent().unwrap_or(Path::new("")).join(&name) } else { dir.join(&name) };
        let out = asked.output.clone().unwrap_or(beside);
        keeping(&out, |made| {
            let (from, to) = (dir.display().to_string(), made.display().to_string());
            let limit = asked.timeout.to_string();
            python(&sdk::python(None)?, &["-m", "prl_env.build", &from, "--timeout", &limit, "-o", &to])
        })
    } else {
        Err(Failure::input(format_args!(
            "`{}` is no environment's folder: it has neither a Cargo.toml nor a Python module that imports prl_env; `prl env new` writes one",
            dir.display()
        )))
    }
}

/// Puts what `make` writes where it belongs, once a host has taken it; says what it is.
fn keeping(out: &Path, make: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<u8, Failure> {
    let subject = format!("`{}`", out.display());
    let beside = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !beside.is_dir() {
        return Err(Failure::input(format_args!("{subject}: there is no folder `{}`", beside.display())));
    }
    let folder = tempfile::Builder::new().prefix(".prl-build-").tempdir_in(beside).map_err(input(&subject))?;
    let made = folder.path().join(out.file_name().unwrap_or_default());
    make(&made)?;
    let file = open::block_on(open::look(&made)).map_err(|failure| Failure {
        text: failure.text.replace(&made.display().to_string(), &out.display().to_string()),
        ..failure
    })?;
    std::fs::rename(&made, out).map_err(input(&subject))?;
    let info = file.info();
    logging::print(&format!(
        "{}: {} {}, {} bytes, sha256:{}",
        out.display(),
        info.name,
        info.version,
        file.bytes(),
        file.sha256()
    ))
}

/// Whether a module there speaks of the SDK: any other is not to be run.
fn is_python(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut modules = entries.filter(|path| path.extension().is_some_and(|extension| extension == "py"));
    dir.join("pyproject.toml").is_file()
        || modules.any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("prl_env")))
}

/// Runs Python with the SDK on its path; `PRL_PYTHON` names the interpreter.
///
/// # Errors
/// No interpreter, or what it says.
pub fn python(sdk: &Path, words: &[&str]) -> Result<(), Failure> {
    let mut command = interpreter(sdk)?;
    let done = command.args(words).output().map_err(|error| no_interpreter(&command, &error))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word");
    Err(Failure::input(format_args!("{}", line.trim_start_matches("error: "))))
}

/// A call of Python with the SDK on its path; `PRL_PYTHON` names the interpreter.
///
/// # Errors
/// A `PYTHONPATH` that cannot be added to.
pub fn interpreter(sdk: &Path) -> Result<Command, Failure> {
    let program = std::env::var_os("PRL_PYTHON").filter(|v| !v.is_empty()).unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&program);
    let mut paths = vec![sdk.to_owned()];
    paths.extend(std::env::split_paths(&std::env::var_os("PYTHONPATH").unwrap_or_default()));
    command.stdin(Stdio::null()).env("PYTHONPATH", std::env::join_paths(paths).map_err(running("PYTHONPATH"))?);
    Ok(command)
}

/// What to say where Python cannot be started.
pub fn no_interpreter(command: &Command, error: &std::io::Error) -> Failure {
    Failure::input(format_args!(
        "cannot start `{}` ({error}); install Python 3.11 or newer, or name one in PRL_PYTHON",
        command.get_program().to_string_lossy()
    ))
}

/// Compiles the package in `dir` and wraps the module into the component `out`.
fn rust(dir: &Path, package: &Package, out: &Path) -> Result<(), Failure> {
    let toolchain = Toolchain::find(dir)?;
    let target = package.target.join("wasm");
    let mut command = toolchain.command();
    command
        .args(["rustc", "--release", "--target", TRIPLE, "--lib", "--crate-type", "cdylib"])
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", remap(&package.root))
        .envs(PROFILE)
        .stdin(Stdio::null());
    let status = command.status().map_err(running("cannot start cargo"))?;
    if !status.success() {
        return Err(Failure::input(format_args!("`{}` does not compile for {TRIPLE}", dir.display())));
    }
    let module = target.join(TRIPLE).join("release").join(format!("{}.wasm", package.library));
    let bytes = std::fs::read(&module).map_err(running(format_args!("`{}`", module.display())))?;
    let encode = || ComponentEncoder::default().validate(true).module(&bytes)?.encode();
    let component = encode().map_err(|error| {
        let reason = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
        let advice = "does the library depend on prl-env and call `prl_env::export!`?";
        Failure::input(format_args!("`{}` makes no component ({reason}); {advice}", dir.display()))
    })?;
    std::fs::write(out, component).map_err(input(format_args!("`{}`", out.display())))
}

/// Panic texts name source files: relative to the package or to the registry, whatever machine builds them.
fn remap(root: &Path) -> OsString {
    let mut flags = OsString::from("--remap-path-prefix=");
    flags.push(root);
    flags.push("=.");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let registries = home.map(|home| home.join("registry/src")).and_then(|dir| std::fs::read_dir(dir).ok());
    for registry in registries.into_iter().flatten().flatten() {
        flags.push(" --remap-path-prefix=");
        flags.push(registry.path());
        flags.push("=crates");
    }
    flags
}

/// What cargo says about a package.
struct Package {
    name: String,
    library: String,
    target: PathBuf,
    root: PathBuf,
}

impl Package {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let subject = format!("`{}`", dir.join("Cargo.toml").display());
        let done = Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(dir)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| {
                let how = "install Rust (https://rustup.rs)";
                Failure::input(format_args!("cannot start cargo ({error}); {how}"))
            })?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(Failure::input(format_args!("{subject}: {}", said.trim_start_matches("error: "))));
        }
        let metadata: Value = serde_json::from_slice(&done.stdout).map_err(running("cargo metadata"))?;
        let root = dir.canonicalize().map_err(input(&subject))?;
        let manifest = root.join("Cargo.toml");
        let mut packages = metadata["packages"].as_array().into_iter().flatten();
        let package = packages.find(|package| package["manifest_path"].as_str().map(Path::new) == Some(&manifest));
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let read = || {
            let package = package?;
            let kinds = ["lib", "cdylib", "rlib"];
            let is_library = |target: &&Value| {
                target["kind"].as_array().is_some_and(|have| have.iter().any(|kind| kinds.iter().any(|k| kind == k)))
            };
            let library = package["targets"].as_array()?.iter().find(is_library)?;
            Some(Package {
                name: text(&package["name"])?,
                library: text(&library["name"])?.replace('-', "_"),
                target: PathBuf::from(metadata["target_directory"].as_str()?),
                root,
            })
        };
        read().ok_or_else(|| {
            Failure::input(format_args!(
                "{subject} is no package with a library; an environment is a library (`src/lib.rs`)"
            ))
        })
    }
}

/// A compiler with a standard library for WASM.
enum Toolchain {
    /// rustup's, with the target.
    Target,
    /// The system's, which builds the standard library from source and links with this.
    Source(PathBuf),
}

impl Toolchain {
    /// The first that is there.
    fn find(dir: &Path) -> Result<Self, Failure> {
        let sysroot = |rustc: &str| {
            let done = Command::new(rustc).args(["--print", "sysroot"]).current_dir(dir).stdin(Stdio::null()).output();
            let text = done.ok().filter(|done| done.status.success()).map(|done| done.stdout)?;
            Some(PathBuf::from(String::from_utf8_lossy(&text).trim()))
        };
        let own = sysroot("rustc");
        if own.as_ref().is_some_and(|root| root.join("lib/rustlib").join(TRIPLE).join("lib").is_dir()) {
            return Ok(Toolchain::Target);
        }
        let missing = format!(
            "there is no Rust standard library for {TRIPLE}. Run: rustup target add {TRIPLE} (or, on Debian: apt-get install \
             --no-install-recommends rustc-web cargo-web rust-web-src lld)"
        );
        let source = sysroot(SYSTEM_RUSTC).filter(|root| root.join("lib/rustlib/src/rust/library").is_dir());
        if source.is_none() || !Path::new(SYSTEM_CARGO).is_file() {
            return Err(Failure::input(missing));
        }
        match own.and_then(|root| rust_lld(&root)).or_else(|| on_path("wasm-ld")).or_else(|| on_path("lld")) {
            Some(linker) => Ok(Toolchain::Source(linker)),
            None => Err(Failure::input(
                "there is no linker for WASM: neither rustup's rust-lld nor `wasm-ld`. Run: apt-get install lld",
            )),
        }
    }

    fn command(&self) -> Command {
        match self {
            Toolchain::Target => Command::new("cargo"),
            Toolchain::Source(linker) => {
                let mut command = Command::new(SYSTEM_CARGO);
                command
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("RUSTC", SYSTEM_RUSTC)
                    .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
                    .env("CARGO_UNSTABLE_BUILD_STD", "std,panic_abort");
                command
            }
        }
    }
}

fn rust_lld(sysroot: &Path) -> Option<PathBuf> {
    let hosts = std::fs::read_dir(sysroot.join("lib/rustlib")).ok()?.flatten();
    hosts.map(|host| host.path().join("bin/rust-lld")).find(|path| path.is_file())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())
}
