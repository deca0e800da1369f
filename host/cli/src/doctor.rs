//! `prl doctor`: what this machine can do, and what is missing for more. Owns the report; must not change anything.

mod cuda;
mod text;

use crate::failure::{Failure, run as running};
use crate::logging;
use crate::machine;
use cuda::Cuda;
use prl_algorithm::{Registry, Search};
use prl_kernels::Isa;
use prl_model::HubOptions;
use serde::Serialize;
use std::path::PathBuf;

/// Exit code where something that is asked for is missing.
const MISSING: u8 = 2;

/// Everything found, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    /// Whether runs on the CPU can work.
    cpu_ready: bool,
    /// Whether runs on a GPU can work.
    cuda_ready: bool,
    cpu: Cpu,
    caches: Vec<Cache>,
    algorithms: Vec<Algorithm>,
    cuda: Cuda,
}

#[derive(Serialize)]
struct Cpu {
    cores: usize,
    instructions: &'static str,
    memory_gib: Option<f64>,
    available_gib: Option<f64>,
}

#[derive(Serialize)]
struct Cache {
    of: &'static str,
    /// None without a home folder: nothing is kept.
    dir: Option<PathBuf>,
    exists: bool,
}

#[derive(Serialize)]
struct Algorithm {
    name: String,
    version: String,
    file: PathBuf,
}

/// Runs the command; with `cuda`, a GPU that cannot be used is a failure.
pub fn run(cuda: bool, json: bool) -> Result<u8, Failure> {
    let report = Report::new()?;
    if json {
        logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?)?;
    } else {
        logging::print(text::render(&report, cuda).trim_end())?;
    }
    let ready = report.cpu_ready && (report.cuda_ready || !cuda);
    Ok(if ready { 0 } else { MISSING })
}

impl Report {
    fn new() -> Result<Self, Failure> {
        let binary = std::env::current_exe().map_err(running("the path of this binary"))?;
        let search = Search::new(Vec::new(), std::env::var_os("PRL_PLUGIN_PATH").as_deref(), &binary);
        let registry = Registry::discover(&search).map_err(Failure::input)?;
        let algorithms: Vec<Algorithm> = registry
            .names()
            .into_iter()
            .filter_map(|name| registry.get(name))
            .map(|found| Algorithm {
                name: found.metadata.name.clone(),
                version: found.metadata.version.clone(),
                file: found.path.clone(),
            })
            .collect();
        let cuda = Cuda::look();
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            cpu_ready: !algorithms.is_empty(),
            cuda_ready: !algorithms.is_empty() && cuda.ready(),
            cpu: Cpu {
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                instructions: match prl_kernels::isa() {
                    Isa::Avx512 => "AVX-512",
                    Isa::Avx2 => "AVX2",
                    Isa::Portable => "portable",
                },
                memory_gib: machine::memory_gib("MemTotal"),
                available_gib: machine::memory_gib("MemAvailable"),
            },
            caches: caches(),
            algorithms,
            cuda,
        })
    }
}

fn caches() -> Vec<Cache> {
    let cache = |of, dir: Option<PathBuf>| Cache { of, exists: dir.as_ref().is_some_and(|d| d.is_dir()), dir };
    let var = |name: &str| std::env::var_os(name);
    let compiled = prl_environment::default_cache_dir(var("XDG_CACHE_HOME").as_deref(), var("HOME").as_deref());
    let models = HubOptions::from_vars(|name| std::env::var(name).ok()).cache;
    let kernels = crate::compute::kernel_cache();
    vec![cache("models", models), cache("environments", compiled), cache("GPU kernels", kernels)]
}
