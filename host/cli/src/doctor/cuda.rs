//! The parts that a run on a GPU needs, each with what is wrong with it and how to get it. Owns that list; the probe itself is
//! the one that runs use.

use crate::machine::gib;
use prl_kernels::libraries::{self, Driver, Found, GpuInfo, LibraryError, Part as Library};
use prl_model::Bits;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What CUDA needs, and the GPUs.
#[derive(Default, Serialize)]
pub struct Cuda {
    /// In the order in which they need each other.
    pub parts: Vec<Part>,
    /// What a run does without on GPUs of its own.
    pub optional: Vec<Part>,
    /// GPUs that the driver shows.
    pub gpus: Vec<Gpu>,
}

/// Something that must be there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it is.
    pub name: String,
    /// Whether it is there and can be used.
    pub found: bool,
    /// The file, and what it says about itself; or what is wrong.
    pub detail: String,
    /// What to do, where it cannot be used.
    pub remedy: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// As the driver numbers it, which is what `cuda:N` means.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its memory, GiB.
    pub memory_gib: f64,
    /// Such as `9.0`.
    pub compute_capability: String,
}

/// What looking tells, piece by piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Told {
    /// What is looked at next.
    Next(String),
    /// What was found.
    Part(Part),
    /// The same of what is not always needed.
    Optional(Part),
    /// A GPU.
    Gpu(Gpu),
}

/// Major compute capability that has bf16 units.
const OLDEST: i32 = 8;
/// Where the toolkit is unless CUDA_PATH says otherwise.
const TOOLKIT: &str = "/usr/local/cuda";

/// Looks at everything; with `open`, opens the GPU as a run does.
pub fn look(open: bool, tell: &mut impl FnMut(Told)) {
    tell(Told::Part(if cfg!(feature = "cuda") {
        Part::found("this binary", "built with CUDA".into())
    } else {
        let remedy = "build it with `cargo build --release --features cuda`".into();
        Part::missing("this binary", "built without CUDA".into(), remedy)
    }));
    let mut complete = cfg!(feature = "cuda");
    let mut part = |part: Part, tell: &mut dyn FnMut(Told)| {
        complete &= part.found;
        tell(Told::Part(part));
    };

    tell(Told::Next("driver".into()));
    let driver = libraries::driver();
    match &driver {
        Ok(Driver { library, gpus }) => {
            let (major, minor) = library.version;
            let detail = format!("{}, runs CUDA up to {major}.{minor}", library.file.display());
            part(Part::found("driver", detail), tell);
            part(usable(gpus), tell);
        }
        Err(error) => {
            part(Part::wrong("driver", error), tell);
            let remedy = "it is seen through the driver, which comes first".into();
            part(Part::missing("GPU", "none to be seen without a driver".into(), remedy), tell);
        }
    }
    let driver = driver.ok();
    tell(Told::Next("cuBLASLt".into()));
    part(library("cuBLASLt", libraries::cublas_lt(driver.as_ref())), tell);
    tell(Told::Next("NVRTC".into()));
    let nvrtc = libraries::nvrtc(driver.as_ref());
    let builtins = nvrtc.as_ref().ok().map(libraries::nvrtc_builtins);
    part(library("NVRTC", nvrtc), tell);
    part(
        match builtins {
            Some(builtins) => library("NVRTC's builtins", builtins),
            None => Part::missing(
                "NVRTC's builtins",
                "libnvrtc-builtins.so is of NVRTC's version".into(),
                "it comes with NVRTC, which comes first".into(),
            ),
        },
        tell,
    );
    tell(Told::Next("NCCL".into()));
    tell(Told::Optional(library("NCCL", libraries::nccl())));
    if open && complete {
        tell(Told::Next("opening cuda:0".into()));
        let opened = prl_model::Gpu::open(0, crate::compute::kernel_cache().as_deref(), Bits::default());
        tell(Told::Part(match opened {
            Ok(_) => Part::found("opening cuda:0", "a run could begin".into()),
            Err(error) => {
                Part::missing("opening cuda:0", error.to_string(), "`nvidia-smi` shows who uses the GPU".into())
            }
        }));
    }
    let gpus = driver.and_then(|driver| driver.gpus.ok()).unwrap_or_default();
    for (index, GpuInfo { name, bytes, capability: (major, minor) }) in gpus.into_iter().enumerate() {
        let compute_capability = format!("{major}.{minor}");
        tell(Told::Gpu(Gpu { index, name, memory_gib: gib(bytes as u64), compute_capability }));
    }
}

/// The GPUs as a part: one that is new enough will do.
fn usable(gpus: &Result<Vec<GpuInfo>, LibraryError>) -> Part {
    let gpus = match gpus {
        Ok(gpus) => gpus,
        Err(error) => return Part::wrong("GPU", error),
    };
    let new = gpus.iter().filter(|gpu| gpu.capability.0 >= OLDEST).count();
    match new {
        0 => {
            let remedy = format!("use one of compute capability {OLDEST}.0 (Ampere) or newer");
            Part::missing("GPU", "too old: there are no bf16 units".into(), remedy)
        }
        new => Part::found("GPU", format!("{new} of {} new enough", gpus.len())),
    }
}

impl Part {
    fn found(name: &str, detail: String) -> Self {
        Part { name: name.into(), found: true, detail, remedy: None }
    }

    /// Not there, or of no use.
    pub fn missing(name: &str, detail: String, remedy: String) -> Self {
        Part { name: name.into(), found: false, detail, remedy: Some(remedy) }
    }

    fn wrong(name: &str, error: &LibraryError) -> Self {
        let remedy = match error {
            LibraryError::Missing { name, .. } => beside(name, &toolkit()).unwrap_or_else(|| error.remedy()),
            _ => error.remedy(),
        };
        Part::missing(name, error.to_string(), remedy)
    }
}

fn library(name: &str, result: Result<Found, LibraryError>) -> Part {
    match result {
        Ok(Found { file, version: (major, minor) }) => {
            let of = if name == "NCCL" { "" } else { "CUDA " };
            Part::found(name, format!("{}, {of}{major}.{minor}", file.display()))
        }
        Err(error) => Part::wrong(name, &error),
    }
}

fn toolkit() -> PathBuf {
    std::env::var_os("CUDA_PATH").map_or_else(|| PathBuf::from(TOOLKIT), PathBuf::from).join("lib64")
}

/// What to do where a folder has a library that the loader did not find.
fn beside(name: &str, folder: &Path) -> Option<String> {
    let library = [Library::CublasLt, Library::Nvrtc, Library::Nccl].into_iter().find(|l| l.name() == name);
    let files = library.map_or_else(|| vec![name.to_owned()], Library::files);
    let there = files.iter().any(|file| folder.join(file).exists());
    there.then(|| format!("it is in {0}: set LD_LIBRARY_PATH={0}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_only_for_files_that_would_be_taken() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("libcublasLt.so.99"), "").unwrap();
        assert_eq!(beside("libcublasLt.so", dir.path()), None);
        std::fs::write(dir.path().join("libcublasLt.so.12"), "").unwrap();
        let remedy = beside("libcublasLt.so", dir.path()).unwrap();
        assert!(
            remedy.contains("set LD_LIBRARY_PATH=") && remedy.contains(&dir.path().display().to_string()),
            "{remedy}"
        );
    }
}
