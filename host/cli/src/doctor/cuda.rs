//! The parts that a run on a GPU needs, each with what is wrong with it and how to get it. Owns that list.

use crate::machine::driver::{self, Gpu};
use crate::machine::toolkit::{self, Found, Missing};
use serde::Serialize;

/// What CUDA needs, and the GPUs.
#[derive(Serialize)]
pub struct Cuda {
    /// In the order in which they need each other.
    pub parts: Vec<Part>,
    /// GPUs that the driver shows.
    pub gpus: Vec<Gpu>,
}

/// Something that must be there.
#[derive(Serialize)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Whether it is there.
    pub found: bool,
    /// The file, and what it says about itself; or what is wrong.
    pub detail: String,
    /// How to get it, where it is missing.
    pub remedy: Option<String>,
}

/// Major compute capability that has bf16 units.
const OLDEST: i32 = 8;

const DRIVER: &str = "install NVIDIA's driver; a container must be started with the GPU (`--gpus all`, or the NVIDIA \
                      container toolkit)";
const TOOLKIT: &str = "install the CUDA toolkit 12 or 13, or pip's wheels";

impl Cuda {
    /// Looks for everything.
    pub fn look() -> Self {
        let mut parts = vec![if cfg!(feature = "cuda") {
            Part::found("this binary", "built with CUDA".into())
        } else {
            let remedy = "build it with `cargo build --release --features cuda`".into();
            Part::missing("this binary", "built without CUDA".into(), remedy)
        }];
        let gpus = match driver::open() {
            Ok(driver) => {
                parts.push(Part::found("driver", format!("{}, runs CUDA up to {}", driver::FILE, driver.cuda)));
                parts.push(usable(&driver.gpus));
                driver.gpus.unwrap_or_default()
            }
            Err(reason) => {
                parts.push(Part::missing("driver", reason, DRIVER.into()));
                parts.push(Part::missing("GPU", "none to be seen".into(), "the driver shows them".into()));
                Vec::new()
            }
        };
        parts.push(library("cuBLASLt", toolkit::cublas_lt(), "nvidia-cublas"));
        match toolkit::nvrtc() {
            Ok((nvrtc, builtins)) => {
                parts.push(library("NVRTC", Ok(nvrtc), "nvidia-cuda-nvrtc"));
                parts.push(library("NVRTC's builtins", builtins, "nvidia-cuda-nvrtc"));
            }
            Err(missing) => {
                parts.push(library("NVRTC", Err(missing), "nvidia-cuda-nvrtc"));
                let (detail, remedy) = ("libnvrtc-builtins.so is not there", "it comes with NVRTC");
                parts.push(Part::missing("NVRTC's builtins", detail.into(), remedy.into()));
            }
        }
        Cuda { parts, gpus }
    }

    /// Whether nothing is missing.
    pub fn ready(&self) -> bool {
        self.parts.iter().all(|part| part.found)
    }
}

/// The GPUs as a part: one that is new enough will do.
fn usable(gpus: &Result<Vec<Gpu>, String>) -> Part {
    let gpus = match gpus {
        Ok(gpus) => gpus,
        Err(reason) => return Part::missing("GPU", reason.clone(), DRIVER.into()),
    };
    let new = gpus.iter().filter(|gpu| gpu.capability.0 >= OLDEST).count();
    match (new, gpus.len()) {
        (0, 0) => Part::missing("GPU", "the driver sees no GPU".into(), DRIVER.into()),
        (0, _) => {
            let remedy = format!("use one of compute capability {OLDEST}.0 (Ampere) or newer");
            Part::missing("GPU", "too old: there are no bf16 units".into(), remedy)
        }
        (new, all) => Part::found("GPU", format!("{new} of {all} new enough")),
    }
}

impl Part {
    fn found(name: &'static str, detail: String) -> Self {
        Part { name, found: true, detail, remedy: None }
    }

    fn missing(name: &'static str, detail: String, remedy: String) -> Self {
        Part { name, found: false, detail, remedy: Some(remedy) }
    }
}

fn library(name: &'static str, result: Result<Found, Missing>, wheel: &str) -> Part {
    match result {
        Ok(Found { file, version }) => {
            let version = version.map(|v| format!(", {v}")).unwrap_or_default();
            Part::found(name, format!("{}{version}", file.display()))
        }
        Err(Missing { file, elsewhere: Some(folder) }) => {
            let remedy = format!("it is in {0}: set LD_LIBRARY_PATH={0}", folder.display());
            Part::missing(name, format!("{file} is not where the loader looks"), remedy)
        }
        Err(Missing { file, elsewhere: None }) => {
            let remedy = format!("{TOOLKIT} (`pip install {wheel}`), with its folder in LD_LIBRARY_PATH");
            Part::missing(name, format!("{file} is not there"), remedy)
        }
    }
}
