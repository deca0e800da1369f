//! `prl doctor`: what this machine can do, and what is missing for more. Owns the report; must not change anything.

mod cuda;
mod probe;
mod text;

use crate::failure::Failure;
use crate::logging;
use crate::machine;
use cuda::Cuda;
use prl_algorithm::Registry;
use prl_kernels::Isa;
use serde::Serialize;
use std::path::{Path, PathBuf};

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
    #[serde(flatten)]
    host: Host,
    cuda: Cuda,
}

/// What can be said without CUDA.
#[derive(Serialize)]
struct Host {
    cpu: Cpu,
    caches: Vec<Cache>,
    algorithms: Vec<Algorithm>,
    /// Algorithms' libraries that cannot be used, and why.
    broken_algorithms: Vec<Broken>,
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
    dir: Option<String>,
    exists: bool,
}

#[derive(Serialize)]
struct Algorithm {
    name: String,
    version: String,
    file: String,
}

#[derive(Serialize)]
struct Broken {
    file: String,
    reason: String,
}

/// Runs the command; with `cuda`, a GPU that cannot be used is a failure. `probe` is this command's own helper.
pub fn run(cuda: bool, json: bool, probe: bool) -> Result<u8, Failure> {
    if probe {
        probe::tell(cuda);
        return Ok(0);
    }
    let host = Host::new()?;
    if !json {
        logging::print(text::host(&host).trim_end())?;
    }
    let report = Report::new(host, probe::ask(cuda));
    if json {
        logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?)?;
    } else {
        logging::print(text::cuda(&report, cuda).trim_end())?;
    }
    let ready = report.cpu_ready && (report.cuda_ready || !cuda);
    Ok(if ready { 0 } else { MISSING })
}

impl Report {
    fn new(host: Host, cuda: Cuda) -> Self {
        let cpu_ready = !host.algorithms.is_empty();
        let cuda_ready = cpu_ready && cuda.parts.iter().all(|part| part.found);
        Report { version: env!("CARGO_PKG_VERSION"), cpu_ready, cuda_ready, host, cuda }
    }
}

impl Host {
    fn new() -> Result<Self, Failure> {
        let registry = crate::algo::open::registry(Vec::new())?;
        let algorithms = registry
            .found()
            .into_iter()
            .map(|found| Algorithm {
                name: found.metadata.name.clone(),
                version: found.metadata.version.clone(),
                file: shown(&found.path),
            })
            .collect();
        let memory = machine::memory();
        Ok(Host {
            cpu: Cpu {
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                instructions: match prl_kernels::isa() {
                    Isa::Avx512 => "AVX-512",
                    Isa::Avx2 => "AVX2",
                    Isa::Portable => "portable",
                },
                memory_gib: memory.map(|memory| machine::gib(memory.total)),
                available_gib: memory.map(|memory| machine::gib(memory.available)),
            },
            caches: caches(),
            algorithms,
            broken_algorithms: broken(&registry),
        })
    }
}

/// Paths need not be text; JSON is.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn broken(registry: &Registry) -> Vec<Broken> {
    registry.broken().map(|(path, error)| Broken { file: shown(path), reason: error.to_string() }).collect()
}

fn caches() -> Vec<Cache> {
    let cache = |of, dir: Option<PathBuf>| Cache {
        of,
        exists: dir.as_ref().is_some_and(|d| d.is_dir()),
        dir: dir.as_deref().map(shown),
    };
    let compiled = crate::environments::compiled_cache();
    let models = crate::assets::hub().cache;
    let kernels = crate::compute::kernel_cache();
    vec![cache("models", models), cache("environments", compiled), cache("GPU kernels", kernels)]
}
