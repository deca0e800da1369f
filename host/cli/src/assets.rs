//! From names in the configuration to opened things: model folders, tokenizers, environments. Owns where relative
//! names are looked up.

use crate::failure::{Failure, input};
use prl_config::Loaded;
use prl_environment::{Isolation, Limits, LogSink, Pool, PoolConfig, Sandbox, SandboxConfig, SearchPath};
use prl_model::{Decoder, Device, HubOptions, ModelConfig};
use prl_render::{Renderer, RendererOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Folder of a model. A name set in a file is first looked up beside that file, then in the working directory, then on
/// the hub.
pub fn model_dir<C>(loaded: &Loaded<C>, key: &str, name: &str) -> Result<PathBuf, Failure> {
    let beside = loaded.path_of(key, name);
    if beside.is_dir() {
        return Ok(beside);
    }
    let options = HubOptions::from_vars(|variable| std::env::var(variable).ok());
    prl_model::resolve(name, &options).map_err(|e| Failure::input(format_args!("`{key}`: {e}")))
}

/// The device's peak, floating-point operations per second, for `perf/mfu`; a GPU that is not in the table is told once.
pub fn peak_flops(device: Device) -> Option<f64> {
    let Device::Cuda(index) = device else { return None };
    let name = crate::machine::gpu(index)?.name;
    let peak = prl_trainer::peak_flops(&name);
    if peak.is_none() {
        tracing::warn!(target: "prl_trainer", "the peak of {name} is not known here: there is no `perf/mfu`");
    }
    peak
}

/// Weights from a folder, or random ones of the folder's shape.
pub fn decoder(dir: &Path, random: Option<u64>, device: Device) -> Result<Decoder, Failure> {
    let subject = || format!("model `{}`", dir.display());
    let device = device.open().map_err(|e| Failure::input(format_args!("`device`: {e}")))?;
    match random {
        Some(seed) => {
            let config = ModelConfig::load(dir).map_err(input(subject()))?;
            Ok(Decoder::init(config, seed, &device))
        }
        None => Decoder::load_hf(dir, &device).map_err(input(subject())),
    }
}

/// Tokenizer and chat template of a folder, for `model`.
pub fn renderer(dir: &Path, chat_template: Option<String>, model: &Decoder) -> Result<Arc<Renderer>, Failure> {
    let options = RendererOptions { chat_template, ..RendererOptions::default() };
    let renderer = Renderer::load(dir, options).map_err(input(format_args!("tokenizer `{}`", dir.display())))?;
    let (tokens, rows) = (renderer.tokenizer().vocab_size(), model.config().vocab_size);
    if tokens > rows {
        return Err(Failure::input(format_args!(
            "tokenizer `{}` has {tokens} tokens, but the model's vocabulary is {rows}; they do not belong together",
            dir.display()
        )));
    }
    Ok(Arc::new(renderer))
}

/// A sandbox with its cache in the usual place.
pub fn sandbox() -> Result<Sandbox, Failure> {
    let var = |name: &str| std::env::var_os(name);
    let cache_dir = prl_environment::default_cache_dir(var("XDG_CACHE_HOME").as_deref(), var("HOME").as_deref());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    Sandbox::new(&SandboxConfig { cache_dir, threads }).map_err(Failure::input)
}

/// A time limit; what is beyond 30 years is none.
fn seconds(limit: f64) -> Duration {
    Duration::from_secs_f64(limit.min(30.0 * 365.0 * 24.0 * 3600.0))
}

/// Opens one environment of the configuration. `key` is the dotted path of its table.
pub async fn environment<C>(
    sandbox: &Sandbox,
    loaded: &Loaded<C>,
    key: &str,
    host: &prl_config::EnvHost,
    max_rollouts: usize,
    log: LogSink,
) -> Result<Pool, Failure> {
    let env_path = std::env::var_os("PRL_ENV_PATH");
    let binary = std::env::current_exe().ok();
    let dir = loaded.dir_of(&format!("{key}.id"));
    let search = SearchPath { relative_to: Some(dir), env_path: env_path.as_deref(), binary: binary.as_deref() };
    let subject = format!("environment `{}` (`{key}`)", host.name);
    let path = prl_environment::resolve(&host.id, &search).map_err(input(&subject))?;
    let limits = Limits {
        memory_bytes: u64::from(host.memory_mb) << 20,
        call_timeout: seconds(host.timeout.call),
        rollout_timeout: seconds(host.timeout.rollout.unwrap_or(f64::INFINITY)),
        ..Limits::default()
    };
    if let Some(grant) = host.grants.first() {
        return Err(Failure::input(format_args!(
            "{subject}: there is no capability `{grant}` to grant; the only import so far is the log, which needs none"
        )));
    }
    let file = sandbox.load(&path, &limits).await.map_err(input(&subject))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = match &host.pool {
        prl_config::Pool::Elastic(pool) => {
            max_rollouts.div_ceil(pool.multiplex).clamp(1, pool.max_workers.unwrap_or(cores))
        }
        prl_config::Pool::Static(pool) => pool.num_workers,
    };
    let config = PoolConfig {
        name: host.name.clone(),
        args: serde_json::Value::Object(host.args.clone()),
        workers,
        max_rollouts: host.max_concurrent.unwrap_or(max_rollouts),
        isolation: match host.isolation {
            prl_config::Isolation::Rollout => Isolation::Rollout,
            prl_config::Isolation::Worker => Isolation::Worker,
        },
        limits,
        log,
    };
    Pool::start(&file, config).await.map_err(input(format_args!("`{key}`")))
}
