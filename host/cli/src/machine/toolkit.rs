//! CUDA's libraries through dlopen: cuBLASLt and NVRTC. Owns their file names, as those who load them look for them.

use libloading::Library;
use std::ffi::c_int;
use std::path::{Path, PathBuf};

/// Versions of the toolkit, newest first, whose libraries are looked for beside the name without one.
const VERSIONS: &[&str] = &["13", "12"];

/// A library that is there.
pub struct Found {
    /// The file that was loaded.
    pub file: PathBuf,
    /// Such as `13.0`, where the library says so.
    pub version: Option<String>,
}

/// A library that is not there.
pub struct Missing {
    /// The name it is looked for by, without versions.
    pub file: String,
    /// A folder that has it although the loader does not look there.
    pub elsewhere: Option<PathBuf>,
}

/// Matrix products.
pub fn cublas_lt() -> Result<Found, Missing> {
    let (library, file) = load("libcublasLt.so")?;
    type Version = unsafe extern "C" fn() -> usize;
    // SAFETY: takes nothing and returns a number in every version.
    let number = unsafe { library.get::<Version>(b"cublasLtGetVersion\0").ok().map(|version| version()) };
    std::mem::forget(library);
    let version = number.map(|n| format!("{}.{}.{}", n / 10_000, n / 100 % 100, n % 100));
    Ok(Found { file, version })
}

/// The compiler of kernels, and the file with its built-in functions, which it loads by itself.
pub fn nvrtc() -> Result<(Found, Result<Found, Missing>), Missing> {
    let (library, file) = load("libnvrtc.so")?;
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    let told = unsafe { library.get::<Version>(b"nvrtcVersion\0").is_ok_and(|v| v(&mut major, &mut minor) == 0) };
    std::mem::forget(library);
    let version = told.then(|| format!("{major}.{minor}"));
    let builtins = match &version {
        Some(version) => builtins(&file, version),
        None => Err(missing("libnvrtc-builtins.so")),
    };
    Ok((Found { file, version }, builtins))
}

/// Beside the compiler, where it looks first, or wherever the loader looks.
fn builtins(nvrtc: &Path, version: &str) -> Result<Found, Missing> {
    let name = format!("libnvrtc-builtins.so.{version}");
    let beside = nvrtc.with_file_name(&name);
    if beside.is_file() {
        return Ok(Found { file: beside, version: Some(version.into()) });
    }
    match open(&name) {
        Some((library, file)) => {
            std::mem::forget(library);
            Ok(Found { file, version: Some(version.into()) })
        }
        None => Err(missing(&name)),
    }
}

fn load(name: &str) -> Result<(Library, PathBuf), Missing> {
    let names = std::iter::once(name.to_string()).chain(VERSIONS.iter().map(|v| format!("{name}.{v}")));
    names.into_iter().find_map(|name| open(&name)).ok_or_else(|| missing(name))
}

fn open(name: &str) -> Option<(Library, PathBuf)> {
    // SAFETY: CUDA's libraries have no constructors with preconditions.
    let library = unsafe { Library::new(name) }.ok()?;
    let file = mapped(name).unwrap_or_else(|| PathBuf::from(name));
    Some((library, file))
}

/// The file of a loaded library: the loader does not tell, the kernel does. Links are followed, so that `name` is only
/// the beginning.
fn mapped(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let mut fitting = paths.filter(|path| path.file_name().is_some_and(|f| f.to_string_lossy().starts_with(name)));
    fitting.next().map(Path::to_path_buf)
}

fn missing(name: &str) -> Missing {
    let root = std::env::var_os("CUDA_PATH").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    let folder = root.join("lib64");
    let has = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(name);
    let elsewhere = std::fs::read_dir(&folder).is_ok_and(|entries| entries.flatten().any(has));
    Missing { file: name.to_string(), elsewhere: elsewhere.then_some(folder) }
}
