//! NVIDIA's libraries as they are on this machine: which file the loader takes, whether it has the functions that are called,
//! what the driver says about itself.
//!
//! Owns their names and what is wrong with them. Must not know kernels. Asked before anything of theirs is called through
//! bindings: those panic where a function is missing and have no room for error numbers they do not know.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};

use libloading::Library;

/// A library that is found at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The driver's.
    Driver,
    /// Matrix products.
    CublasLt,
    /// The compiler of kernels.
    Nvrtc,
    /// What processes hand weights on with.
    Nccl,
}

impl Part {
    /// The name people know it by.
    pub fn name(self) -> &'static str {
        match self {
            Part::Driver => "libcuda.so.1",
            Part::CublasLt => "libcublasLt.so",
            Part::Nvrtc => "libnvrtc.so",
            Part::Nccl => "libnccl.so",
        }
    }

    /// What brings it.
    pub fn package(self) -> &'static str {
        match self {
            Part::Driver => "NVIDIA's driver",
            Part::CublasLt => "the CUDA toolkit's cuBLAS (`pip install nvidia-cublas`)",
            Part::Nvrtc => "the CUDA toolkit's NVRTC (`pip install nvidia-cuda-nvrtc`)",
            Part::Nccl => "NVIDIA's NCCL (`pip install nvidia-nccl-cu13`)",
        }
    }

    /// File names in the order in which the bindings try them.
    pub fn files(self) -> Vec<String> {
        let stem = match self {
            Part::Driver => "libcuda.so",
            Part::CublasLt => "libcublasLt.so",
            Part::Nvrtc => "libnvrtc.so",
            Part::Nccl => "libnccl.so",
        };
        let versions = ["13", "12", "11", "10", "9", "1"];
        std::iter::once(stem.to_owned()).chain(versions.iter().map(|v| format!("{stem}.{v}"))).collect()
    }

    /// Functions that are called, as they are named in the library.
    fn functions(self) -> &'static [&'static str] {
        match self {
            Part::Driver => &[
                "cuInit",
                "cuDriverGetVersion",
                "cuGetErrorString",
                "cuDeviceGet",
                "cuDeviceGetCount",
                "cuDeviceGetName",
                "cuDeviceGetAttribute",
                "cuDeviceGetPCIBusId",
                "cuDeviceGetDefaultMemPool",
                "cuDeviceTotalMem_v2",
                "cuDevicePrimaryCtxRetain",
                "cuDevicePrimaryCtxRelease_v2",
                "cuCtxGetCurrent",
                "cuCtxSetCurrent",
                "cuStreamCreate",
                "cuStreamDestroy_v2",
                "cuStreamSynchronize",
                "cuStreamWaitEvent",
                "cuEventCreate",
                "cuEventDestroy_v2",
                "cuEventRecord",
                "cuEventSynchronize",
                "cuMemAlloc_v2",
                "cuMemAllocAsync",
                "cuMemFree_v2",
                "cuMemFreeAsync",
                "cuMemHostAlloc",
                "cuMemFreeHost",
                "cuMemGetInfo_v2",
                "cuMemPoolGetAttribute",
                "cuMemcpyHtoDAsync_v2",
                "cuMemcpyDtoHAsync_v2",
                "cuMemcpyDtoDAsync_v2",
                "cuMemcpy2DAsync_v2",
                "cuMemsetD8Async",
                "cuModuleLoadData",
                "cuModuleUnload",
                "cuModuleGetFunction",
                "cuFuncSetAttribute",
                "cuLaunchKernel",
            ],
            Part::CublasLt => &[
                "cublasLtGetVersion",
                "cublasLtCreate",
                "cublasLtDestroy",
                "cublasLtMatmul",
                "cublasLtMatmulAlgoGetHeuristic",
                "cublasLtMatmulDescCreate",
                "cublasLtMatmulDescDestroy",
                "cublasLtMatmulDescSetAttribute",
                "cublasLtMatmulPreferenceCreate",
                "cublasLtMatmulPreferenceDestroy",
                "cublasLtMatmulPreferenceSetAttribute",
                "cublasLtMatrixLayoutCreate",
                "cublasLtMatrixLayoutDestroy",
            ],
            Part::Nvrtc => &[
                "nvrtcVersion",
                "nvrtcCreateProgram",
                "nvrtcDestroyProgram",
                "nvrtcCompileProgram",
                "nvrtcGetProgramLog",
                "nvrtcGetProgramLogSize",
                "nvrtcGetCUBIN",
                "nvrtcGetCUBINSize",
            ],
            Part::Nccl => &[
                "ncclGetVersion",
                "ncclGetUniqueId",
                "ncclCommInitRankConfig",
                "ncclCommGetAsyncError",
                "ncclCommAbort",
                "ncclBroadcast",
                "ncclGetErrorString",
                "ncclGetLastError",
            ],
        }
    }
}

/// Why a library, or a GPU behind it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The loader finds no file of these names.
    #[error("{name} was not found")]
    Missing {
        /// Its name.
        name: String,
        /// What brings it.
        package: &'static str,
    },
    /// A file is there and is no library that could be loaded.
    #[error("{name} cannot be loaded: {reason}")]
    Broken {
        /// Its name.
        name: String,
        /// What brings it.
        package: &'static str,
        /// The loader's words, which name the file.
        reason: String,
    },
    /// The file is a library without a function that is needed.
    #[error("{} has no function `{function}`", file.display())]
    Lacks {
        /// The file.
        file: PathBuf,
        /// The first that is not there.
        function: &'static str,
        /// What the file should be of.
        package: &'static str,
    },
    /// The driver answers with an error.
    #[error("{}", driver_error(*status, text))]
    Driver {
        /// Its number.
        status: i32,
        /// The driver's text for it; empty if it has none.
        text: String,
    },
    /// A library of the toolkit is of a newer CUDA than the driver runs.
    #[error("{} is of CUDA {needs}, and the driver runs CUDA up to {}.{}", file.display(), runs.0, runs.1)]
    Newer {
        /// The library.
        file: PathBuf,
        /// Its major version.
        needs: i32,
        /// The driver's version.
        runs: (i32, i32),
    },
    /// There are GPUs, but not this one.
    #[error("there is no GPU {index}: this machine has {count}, numbered from 0")]
    NoSuchGpu {
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
}

const NO_DEVICE: c_int = 100;

fn driver_error(status: i32, text: &str) -> String {
    match (status, text) {
        (NO_DEVICE, _) => "the driver sees no GPU".into(),
        (_, "") => format!("the driver reports error {status}"),
        _ => format!("the driver reports error {status} ({text})"),
    }
}

impl LibraryError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Missing { package, .. } => format!("install {package} or put its folder into LD_LIBRARY_PATH"),
            Self::Broken { package, .. } => format!("repair or remove that file, or install {package} again"),
            Self::Lacks { package, .. } => format!("that file is not {package}, or too old: take it out of the loader's way"),
            Self::Newer { runs: (major, _), .. } => {
                format!("install a newer driver, or the libraries of CUDA {major} and put their folder into LD_LIBRARY_PATH")
            }
            Self::NoSuchGpu { .. } => "name one that is there, as in `cuda:0`".into(),
            Self::Driver { status, .. } => match *status {
                NO_DEVICE => "a container must be started with the GPU (`--gpus all`); CUDA_VISIBLE_DEVICES must not hide it",
                34 => "the file is the toolkit's stub: take its `stubs` folder out of LD_LIBRARY_PATH",
                35 => "install a newer driver",
                802 => "on a machine with NVSwitch the service nvidia-fabricmanager must run",
                803 => "the driver's library and its kernel module are of different versions: reboot, or install one version",
                804 => "take CUDA's `compat` folder out of LD_LIBRARY_PATH, or install a newer driver",
                999 => "see whether `nvidia-smi` works and the kernel log names the GPU; often a reboot is needed",
                _ => "see whether `nvidia-smi` works; restart or reinstall the driver",
            }
            .into(),
        }
    }
}

/// A library that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The file that was loaded.
    pub file: PathBuf,
    /// Major and minor number of the CUDA it is of; of NCCL its own.
    pub version: (i32, i32),
}

/// A GPU as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub bytes: usize,
    /// Major and minor number of its architecture.
    pub capability: (i32, i32),
}

/// A driver that is there and started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its file, and the newest CUDA it can run.
    pub library: Found,
    /// GPUs in the driver's order, or why it shows none.
    pub gpus: Result<Vec<GpuInfo>, LibraryError>,
}

/// Starts the driver and asks it for its GPUs.
///
/// # Errors
/// It is not there, or not a driver.
pub fn driver() -> Result<Driver, LibraryError> {
    driver_of(&Part::Driver.files())
}

/// The library for matrix products. With `driver` it must be of a CUDA that the driver runs.
///
/// # Errors
/// It is not there, not that library, or too new.
pub fn cublas_lt(driver: Option<&Driver>) -> Result<Found, LibraryError> {
    type Version = unsafe extern "C" fn() -> usize;
    let (library, file) = load(Part::CublasLt, &Part::CublasLt.files())?;
    // SAFETY: takes nothing and returns a number in every version.
    let number = unsafe { call::<Version>(&library, b"cublasLtGetVersion\0").map(|version| version()) }.unwrap_or(0);
    std::mem::forget(library);
    let number = i32::try_from(number).unwrap_or(0);
    fitting(Found { file, version: (number / 10_000, number / 100 % 100) }, driver)
}

/// The compiler of kernels. With `driver` it must be of a CUDA that the driver runs.
///
/// # Errors
/// It is not there, not that library, or too new.
pub fn nvrtc(driver: Option<&Driver>) -> Result<Found, LibraryError> {
    type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (library, file) = load(Part::Nvrtc, &Part::Nvrtc.files())?;
    let (mut major, mut minor) = (0, 0);
    if let Some(version) = call::<Version>(&library, b"nvrtcVersion\0") {
        // SAFETY: writes two numbers.
        unsafe { version(&mut major, &mut minor) };
    }
    std::mem::forget(library);
    fitting(Found { file, version: (major, minor) }, driver)
}

/// What processes hand weights on with.
///
/// # Errors
/// It is not there, not that library, or too old.
pub fn nccl() -> Result<Found, LibraryError> {
    let (library, file) = load(Part::Nccl, &Part::Nccl.files())?;
    let mut number = 0;
    if let Some(version) = call::<Number>(&library, b"ncclGetVersion\0") {
        // SAFETY: writes a number.
        unsafe { version(&mut number) };
    }
    std::mem::forget(library);
    Ok(Found { file, version: (number / 10_000, number / 100 % 100) })
}

/// The file with NVRTC's built-in functions, which it loads by itself: from beside it, or from where the loader looks.
///
/// # Errors
/// It is not there, or no library.
pub fn nvrtc_builtins(nvrtc: &Found) -> Result<Found, LibraryError> {
    let name = format!("libnvrtc-builtins.so.{}.{}", nvrtc.version.0, nvrtc.version.1);
    let beside = nvrtc.file.with_file_name(&name);
    let asked = if beside.is_file() { beside.display().to_string() } else { name.clone() };
    let (library, file) = open(&name, Part::Nvrtc.package(), &[asked])?;
    std::mem::forget(library);
    Ok(Found { file, version: nvrtc.version })
}

fn fitting(found: Found, driver: Option<&Driver>) -> Result<Found, LibraryError> {
    match driver {
        // A driver that does not tell its version is left to fail by itself.
        Some(driver) if (1..found.version.0).contains(&driver.library.version.0) => {
            Err(LibraryError::Newer { file: found.file, needs: found.version.0, runs: driver.library.version })
        }
        _ => Ok(found),
    }
}

/// The first file that loads, which must have every function.
fn load(part: Part, files: &[String]) -> Result<(Library, PathBuf), LibraryError> {
    let (library, file) = open(part.name(), part.package(), files)?;
    for function in part.functions() {
        if call::<unsafe extern "C" fn()>(&library, format!("{function}\0").as_bytes()).is_none() {
            std::mem::forget(library);
            return Err(LibraryError::Lacks { file, function, package: part.package() });
        }
    }
    Ok((library, file))
}

fn open(name: &str, package: &'static str, files: &[String]) -> Result<(Library, PathBuf), LibraryError> {
    let mut broken = None;
    for file in files {
        // SAFETY: NVIDIA's libraries have no constructors with preconditions.
        match unsafe { Library::new(file) } {
            Ok(library) => return Ok((library, mapped(file).unwrap_or_else(|| PathBuf::from(file)))),
            Err(error) => {
                let reason = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
                // Of a library that this one needs the loader says the same, with that one's name.
                let absent = reason.starts_with(&format!("{file}:")) && reason.ends_with("No such file or directory");
                if !absent && broken.is_none() {
                    broken = Some(reason);
                }
            }
        }
    }
    Err(match broken {
        Some(reason) => LibraryError::Broken { name: name.into(), package, reason },
        None => LibraryError::Missing { name: name.into(), package },
    })
}

/// The file of a loaded library: the loader does not tell, the kernel does. Links are followed there, so that the name is only
/// the beginning.
fn mapped(file: &str) -> Option<PathBuf> {
    let name = Path::new(file).file_name()?.to_string_lossy().into_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    paths.find(|path| path.file_name().is_some_and(|f| f.to_string_lossy().starts_with(&name))).map(Path::to_path_buf)
}

/// A function by its name, which ends with a zero. `T` must be its signature.
fn call<T: Copy>(library: &Library, name: &[u8]) -> Option<T> {
    // SAFETY: only looked up here; callers name signatures as in NVIDIA's headers.
    unsafe { library.get::<T>(name) }.ok().map(|symbol| *symbol)
}

fn driver_of(files: &[String]) -> Result<Driver, LibraryError> {
    let (library, file) = load(Part::Driver, files)?;
    // The driver keeps threads and exit handlers: it stays loaded.
    let calls = Calls { library: std::mem::ManuallyDrop::new(library) };
    let version = calls.number(b"cuDriverGetVersion\0").unwrap_or(0);
    let library = Found { file, version: (version / 1000, version % 1000 / 10) };
    Ok(Driver { library, gpus: calls.gpus() })
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type DeviceMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type DeviceAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// Device attributes.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const NAME_BYTES: usize = 256;

struct Calls {
    library: std::mem::ManuallyDrop<Library>,
}

impl Calls {
    fn get<T: Copy>(&self, name: &[u8]) -> Result<T, LibraryError> {
        let lacks = || LibraryError::Driver { status: -1, text: "a function is missing".into() };
        call(&self.library, name).ok_or_else(lacks)
    }

    fn number(&self, name: &[u8]) -> Result<c_int, LibraryError> {
        let mut value = 0;
        // SAFETY: the functions asked for here take one pointer to a number and have done so since CUDA 2.
        let status = unsafe { self.get::<Number>(name)?(&mut value) };
        self.check(status)?;
        Ok(value)
    }

    fn check(&self, status: c_int) -> Result<(), LibraryError> {
        if status == 0 {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes a pointer to a constant string, or null.
        let known = unsafe { self.get::<ErrorText>(b"cuGetErrorString\0")?(status, &mut text) } == 0 && !text.is_null();
        // SAFETY: a constant string that ends in 0.
        let text = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { String::new() };
        Err(LibraryError::Driver { status, text })
    }

    fn gpus(&self) -> Result<Vec<GpuInfo>, LibraryError> {
        // SAFETY: takes flags, which must be 0.
        let status = unsafe { self.get::<Init>(b"cuInit\0")?(0) };
        self.check(status)?;
        match self.number(b"cuDeviceGetCount\0")? {
            0 => self.check(NO_DEVICE).map(|()| Vec::new()),
            count => (0..count).map(|ordinal| self.gpu(ordinal)).collect(),
        }
    }

    fn gpu(&self, ordinal: c_int) -> Result<GpuInfo, LibraryError> {
        let (mut device, mut bytes, mut major, mut minor) = (0, 0usize, 0, 0);
        let mut name = [0 as c_char; NAME_BYTES];
        // SAFETY: signatures as in cuda.h; the driver is initialised; the name's length is handed over and leaves room for
        // the 0 at its end.
        unsafe {
            self.check(self.get::<DeviceGet>(b"cuDeviceGet\0")?(&mut device, ordinal))?;
            let room = (NAME_BYTES - 1) as c_int;
            self.check(self.get::<DeviceName>(b"cuDeviceGetName\0")?(name.as_mut_ptr(), room, device))?;
            self.check(self.get::<DeviceMemory>(b"cuDeviceTotalMem_v2\0")?(&mut bytes, device))?;
            let attribute = self.get::<DeviceAttribute>(b"cuDeviceGetAttribute\0")?;
            self.check(attribute(&mut major, MAJOR, device))?;
            self.check(attribute(&mut minor, MINOR, device))?;
        }
        // SAFETY: the last byte is still 0.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(GpuInfo { name, bytes, capability: (major, minor) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library that is compiled from C; `None` without a compiler.
    fn library(dir: &Path, name: &str, source: &str) -> Option<String> {
        let (c, so) = (dir.join(format!("{name}.c")), dir.join(name));
        std::fs::write(&c, source).unwrap();
        let done = Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&so).arg(&c).status();
        match done {
            Ok(status) if status.success() => Some(so.display().to_string()),
            Ok(status) => panic!("cc failed: {status}"),
            Err(_) => {
                eprintln!("skipped: there is no C compiler `cc`");
                None
            }
        }
    }

    /// Every function of a part, returning 0, but for those that `own` defines.
    fn stubs(part: Part, own: &str) -> String {
        let defined = |f: &&&str| !own.contains(&format!(" {f}("));
        let rest = part.functions().iter().filter(defined).map(|f| format!("int {f}() {{ return 0; }}\n"));
        format!("#include <stddef.h>\n{own}\n{}", rest.collect::<String>())
    }

    #[test]
    fn what_is_not_there_and_what_is_broken_read_differently() {
        let dir = tempfile::tempdir().unwrap();
        let none = driver_of(&["libprl-none.so".into(), "libprl-none.so.1".into()]).unwrap_err();
        assert_eq!(none.to_string(), "libcuda.so.1 was not found");
        assert!(none.remedy().contains("NVIDIA's driver"), "{}", none.remedy());

        let text = dir.path().join("libtext.so");
        std::fs::write(&text, "no library at all, only text that is long enough to be looked at").unwrap();
        let broken = driver_of(&["libprl-none.so".into(), text.display().to_string()]).unwrap_err();
        assert!(matches!(broken, LibraryError::Broken { .. }), "{broken:?}");
        assert!(broken.to_string().contains("libtext.so") && broken.to_string().contains("invalid ELF"), "{broken}");
    }

    #[test]
    fn a_library_without_its_functions_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let Some(empty) = library(dir.path(), "libempty.so", "int something_else;") else { return };
        let lacks = driver_of(std::slice::from_ref(&empty)).unwrap_err();
        assert_eq!(lacks.to_string(), format!("{empty} has no function `cuInit`"));
        for part in [Part::CublasLt, Part::Nvrtc, Part::Nccl] {
            let lacks = load(part, std::slice::from_ref(&empty)).unwrap_err();
            assert!(matches!(lacks, LibraryError::Lacks { .. }), "{lacks}");
        }
    }

    #[test]
    fn a_drivers_answers_are_read_as_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let version = "int cuDriverGetVersion(int *v) { *v = 12040; return 0; }";
        // A number that no header knows is a number like any other.
        for (status, naming) in
            [(999, "nvidia-smi"), (100, "--gpus all"), (34, "stubs"), (804, "compat"), (31_337, "driver")]
        {
            let own = format!(
                "{version}\nint cuInit(unsigned f) {{ return {status}; }}\n\
                 int cuGetErrorString(int e, const char **t) {{ *t = e == 999 ? \"unknown error\" : NULL; return e == 999 ? 0 : 1; }}"
            );
            let Some(file) = library(dir.path(), &format!("libdriver{status}.so"), &stubs(Part::Driver, &own)) else {
                return;
            };
            let driver = driver_of(&[file]).unwrap();
            assert_eq!(driver.library.version, (12, 4));
            let error = driver.gpus.unwrap_err();
            assert!(matches!(error, LibraryError::Driver { status: s, .. } if s == status), "{error:?}");
            assert!(error.remedy().contains(naming), "{}", error.remedy());
            assert!(status != 999 || error.to_string().contains("999 (unknown error)"), "{error}");
        }

        let own = format!(
            "{version}\nint cuDeviceGetCount(int *n) {{ *n = 2; return 0; }}\n\
             int cuDeviceGetName(char *to, int room, int d) {{ to[0] = 'G'; to[1] = '0' + d; to[2] = 0; return 0; }}\n\
             int cuDeviceGet(int *d, int i) {{ *d = i; return 0; }}\n\
             int cuDeviceTotalMem_v2(size_t *b, int d) {{ *b = 1024; return 0; }}\n\
             int cuDeviceGetAttribute(int *v, int a, int d) {{ *v = a == 75 ? 9 : 0; return 0; }}"
        );
        let file = library(dir.path(), "libdriver.so", &stubs(Part::Driver, &own)).unwrap();
        let driver = driver_of(&[file]).unwrap();
        let gpus = driver.gpus.clone().unwrap();
        assert_eq!(gpus[1], GpuInfo { name: "G1".into(), bytes: 1024, capability: (9, 0) });
        assert_eq!(gpus.len(), 2);

        let newer = Found { file: "libcublasLt.so.13".into(), version: (13, 0) };
        let error = fitting(newer.clone(), Some(&driver)).unwrap_err();
        assert_eq!(error.to_string(), "libcublasLt.so.13 is of CUDA 13, and the driver runs CUDA up to 12.4");
        assert!(fitting(Found { version: (12, 9), ..newer.clone() }, Some(&driver)).is_ok());
        assert!(fitting(newer, None).is_ok());
    }

    #[test]
    fn built_in_functions_must_load() {
        let dir = tempfile::tempdir().unwrap();
        let nvrtc = Found { file: dir.path().join("libnvrtc.so.13"), version: (13, 0) };
        let missing = nvrtc_builtins(&nvrtc).unwrap_err();
        assert_eq!(missing.to_string(), "libnvrtc-builtins.so.13.0 was not found");
        std::fs::write(dir.path().join("libnvrtc-builtins.so.13.0"), "text").unwrap();
        let broken = nvrtc_builtins(&nvrtc).unwrap_err();
        assert!(matches!(broken, LibraryError::Broken { .. }), "{broken:?}");
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn names_are_tried_in_the_order_of_the_bindings() {
        let parts =
            [(Part::Driver, "cuda"), (Part::CublasLt, "cublasLt"), (Part::Nvrtc, "nvrtc"), (Part::Nccl, "nccl")];
        for (part, name) in parts {
            let mut theirs = Vec::new();
            for file in cudarc::get_lib_name_candidates(name) {
                // Names of other systems apart, which no file here has.
                if file.starts_with(&format!("lib{name}.so")) && !theirs.contains(&file) {
                    theirs.push(file);
                }
            }
            assert_eq!(part.files(), theirs);
        }
    }
}
