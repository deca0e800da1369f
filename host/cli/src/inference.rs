//! `prl inference`: checks everything, starts the engine and serves it until told to stop. Owns the assembly; HTTP is the
//! server's business.

use crate::assets;
use crate::command::wants_help;
use crate::compute::Compute;
use crate::failure::{Failure, input, run as running};
use crate::logging;
use crate::machine;
use crate::signals;
use prl_config::{InferenceRun, Loaded};
use prl_inference::{Engine, EngineConfig};
use prl_model::{Bits, Decoder, Device, ModelConfig, Snapshot};
use prl_render::Renderer;
use prl_server::{AdapterLimits, Options};
use prl_types::PolicyVersion;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpSocket, lookup_host};
use weights::NewWeights;

mod weights;

/// Where the server listens if nobody says otherwise.
const LOOPBACK: &str = "127.0.0.1";
/// Most bytes of a request's body.
const BODY_LIMIT: usize = 32 << 20;
/// Time for requests under way once the server is to stop.
const GRACE: Duration = Duration::from_secs(5);
/// Connections that wait to be taken.
const BACKLOG: u32 = 1024;
/// The largest rank of an adapter where nobody says otherwise.
const LARGEST_RANK: usize = 512;
/// Bytes for keys and values where memory cannot be read.
const MODEST_CACHE: u64 = 4 << 30;
/// Bytes of a GPU's memory that kernels work in, beside the rows of a step.
const SCRATCH: u64 = 1 << 30;

/// Runs the command; the code is the process's.
pub fn run(words: &[String]) -> Result<u8, Failure> {
    if wants_help(words) {
        return logging::print(&prl_config::help_inference());
    }
    let loaded = prl_config::load_inference(words).map_err(Failure::input)?;
    let config = &loaded.config;
    if config.dry_run {
        return logging::dry_run(&config.output_dir, &loaded.dump(), &loaded.explain());
    }
    // The console only: a server has no run directory.
    let _logs = logging::install(config.log.level, config.log.json_logging, prl_monitor::LogFile::Inference)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(running("runtime"))?;
    let result = runtime.block_on(serve(&loaded));
    // Connections of callers who do not go away must not keep the process alive.
    runtime.shutdown_background();
    result
}

async fn serve(loaded: &Loaded<InferenceRun>) -> Result<u8, Failure> {
    let config = &loaded.config;
    let stop = signals::listen().map_err(running("signal handlers"))?;
    let (socket, wanted) = bind(config).await?;
    let api_key = key("server.api_key_var", config.server.api_key_var.as_deref())?;
    let admin_key = key("server.admin_api_key_var", config.server.admin_api_key_var.as_deref())?;
    let loopback = wanted.ip().is_loopback();
    if !loopback && api_key.is_none() {
        tracing::warn!(
            target: "prl_server",
            "everybody who reaches {} can use this server and replace its weights: `server.api_key_var` is not set",
            wanted.ip()
        );
    }

    let parts = Parts::load(loaded)?;
    let model = config.served_model_name.clone().unwrap_or_else(|| config.model.name.clone());
    let options = Options {
        model: model.clone(),
        liveness_timeout: Duration::from_secs_f64(config.server.liveness_timeout_seconds),
        api_key,
        admin_key,
        seed: config.seed,
        adapters: config
            .enable_lora
            .then(|| AdapterLimits { count: config.max_loras, rank: config.max_lora_rank.unwrap_or(LARGEST_RANK) }),
        body_limit: BODY_LIMIT,
        loopback,
    };
    let router = prl_server::router(parts.engine.handle(), parts.renderer, Arc::new(parts.weights), options);
    let listener = socket.listen(BACKLOG).map_err(|e| taken(wanted, &e))?;
    let address = listener.local_addr().map_err(running("the server's address"))?;
    logging::print(&format!("Serving {model} on http://{address}"))?;

    let mut asked = stop.receiver.clone();
    let told = async move {
        // An error means that nobody listens to signals any more, which does not happen.
        let _ = asked.wait_for(|stop| *stop).await;
    };
    let engine = parts.engine;
    prl_server::serve(listener, router, told, GRACE, move || engine.shutdown()).await.map_err(running("the server"))?;
    Ok(stop.exit_code().unwrap_or(0))
}

/// Takes the address, before the model is loaded; nobody is let in yet.
async fn bind(config: &InferenceRun) -> Result<(TcpSocket, SocketAddr), Failure> {
    let host = config.server.host.as_deref().unwrap_or(LOOPBACK);
    let port = u16::try_from(config.server.port).map_err(input("`server.port`"))?;
    let address = lookup_host((host, port)).await.map_err(input(format_args!("`server.host` = \"{host}\"")))?.next();
    let address = address.ok_or_else(|| Failure::input(format_args!("`server.host` = \"{host}\" has no address")))?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(running("socket"))?;
    // A port that was left just now can be taken again.
    socket.set_reuseaddr(true).map_err(running("socket"))?;
    socket.bind(address).map_err(|e| taken(address, &e))?;
    Ok((socket, address))
}

fn taken(address: SocketAddr, error: &std::io::Error) -> Failure {
    Failure::input(format_args!(
        "cannot listen on {address}: {error}; set `server.port` and `server.host` (port 0 takes a free one)"
    ))
}

/// The key in the environment variable that `name` names.
fn key(name: &str, variable: Option<&str>) -> Result<Option<String>, Failure> {
    let Some(variable) = variable else { return Ok(None) };
    match std::env::var(variable) {
        Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
        _ => Err(Failure::input(format_args!(
            "`{name}` = \"{variable}\": the environment has no such variable, or an empty one"
        ))),
    }
}

/// Everything behind the doors.
struct Parts {
    engine: Engine,
    renderer: Arc<Renderer>,
    weights: NewWeights,
}

impl Parts {
    fn load(loaded: &Loaded<InferenceRun>) -> Result<Self, Failure> {
        let config = &loaded.config;
        let bits = Bits { deterministic: false, exact: config.exact };
        let mut compute = Compute::open(config.device, config.kernels, bits)?;
        let dir = assets::model_dir(loaded, "model.name", &config.model.name)?;
        let decoder = assets::decoder(&dir, None, compute.home())?;
        let template = config.model.chat_template.as_ref().map(|template| {
            let beside = loaded.path_of("model.chat_template", template);
            if beside.is_file() { beside.display().to_string() } else { template.clone() }
        });
        // Clients expect what the model's template makes of their messages, to the letter.
        let own = prl_config::Renderer { name: prl_config::RendererName::Default, ..Default::default() };
        let renderer = assets::renderer(&dir, template, &own, &decoder)?;
        let shape = decoder.config().as_ref().clone();
        let made_for = shape.max_position_embeddings;
        let context = config.model.max_model_len.unwrap_or(made_for);
        if context > made_for {
            return Err(Failure::input(format_args!(
                "`model.max_model_len` = {context}, but the model was made for {made_for} tokens"
            )));
        }
        tracing::info!(target: "prl_inference", "{}", compute.says(&dir, &shape));
        let snapshot = snapshot(&mut compute, decoder, context)?;
        let tokens = batched_tokens(config.max_num_batched_tokens, compute.on_gpu());
        let limits = EngineConfig {
            max_waiting: config.max_waiting,
            cache_bytes: cache_bytes(config, &compute, &shape),
            ..limits(config.max_num_seqs, context, tokens, config.enable_prefix_caching)
        };
        tracing::info!(
            target: "prl_inference",
            "Context {context} | {} sequences at a time | {:.1} GiB for keys and values",
            limits.max_batch, machine::gib(limits.cache_bytes as u64)
        );
        if config.enable_lora && !snapshot.takes_adapters() {
            return Err(Failure::input(
                "`enable_lora = true` is not supported with `kernels = \"reference\"`: set `kernels = \"fast\"`, or leave it out",
            ));
        }
        let weights = NewWeights::after(snapshot.as_ref(), compute.settled(), shape, context);
        let engine = Engine::start(snapshot, PolicyVersion(0), limits).map_err(Failure::input)?;
        Ok(Parts { engine, renderer, weights })
    }
}

/// `max_num_batched_tokens`, with what none means: a GPU takes a long prompt fastest in one piece.
pub fn batched_tokens(asked: Option<usize>, on_gpu: bool) -> usize {
    asked.unwrap_or(if on_gpu { 8192 } else { 2048 })
}

/// What the configuration of `prl rl` and of `prl inference` says of an engine alike.
pub fn limits(sequences: usize, context: usize, batched_tokens: usize, prefixes: Option<bool>) -> EngineConfig {
    let limits = EngineConfig { prefill_tokens: batched_tokens, ..EngineConfig::new(sequences, context) };
    match prefixes {
        Some(false) => EngineConfig { kept_prefixes: 0, ..limits },
        Some(true) | None => limits,
    }
}

/// `kv_cache_gb` in bytes.
pub fn cache_gb(gb: f64) -> usize {
    (gb * f64::from(1u32 << 30)) as usize
}

/// Bytes for keys and values: as configured, else what the device has left for them.
fn cache_bytes(config: &InferenceRun, compute: &Compute, shape: &ModelConfig) -> usize {
    if let Some(gb) = config.kv_cache_gb {
        return cache_gb(gb);
    }
    let bytes = match compute.device {
        Device::Cuda(index) if compute.on_gpu() => {
            let total = machine::gpu(index).map_or(0, |gpu| gpu.bytes as u64);
            let ours = (total as f64 * config.gpu_memory_utilization) as u64;
            let tokens = batched_tokens(config.max_num_batched_tokens, true) as u64;
            ours.saturating_sub(shape.parameters() as u64 * 2 + SCRATCH + tokens * row_bytes(shape))
        }
        // The other half is for what requests hold beside, and for the next weights.
        _ => machine::memory().map_or(MODEST_CACHE, |memory| memory.available / 2),
    };
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Bytes that a step works with for each of its tokens, with what is added when they grow.
fn row_bytes(shape: &ModelConfig) -> u64 {
    let heads = shape.heads + shape.kv_heads;
    let elements = 3 * (shape.hidden_size + heads * shape.head_dim + shape.intermediate_size);
    elements as u64 * 2 * 5 / 4
}

/// Weights ready to sample from.
fn snapshot(compute: &mut Compute, decoder: Decoder, context: usize) -> Result<Arc<dyn Snapshot>, Failure> {
    compute.sampler(decoder, context)?.snapshot().map_err(Failure::input)
}
