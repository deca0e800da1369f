//! What all doors share: the engine, the tokenizer and template, the counters, and how the server was set up. Owns ids and
//! seeds of requests; must not know any door.

use crate::adapters::{AdapterLimits, Adapters};
use crate::broadcast::Membership;
use crate::clock;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::guided::Ready;
use crate::metrics::Metrics;
use crate::pause::Lease;
use axum::http::{HeaderMap, StatusCode};
use prl_inference::Handle;
use prl_model::{Adapter, Seat, Snapshot};
use prl_render::Renderer;
use prl_types::PolicyVersion;
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Texts up to so many bytes are tokenised where the request is handled; longer ones must not hold up others.
const SHORT: usize = 8 << 10;

/// Where new weights come from.
pub trait Weights: Send + Sync {
    /// Loads the weights in a folder, ready to sample from. Called on a thread that may block.
    ///
    /// # Errors
    /// Why they cannot be used, in words for whoever named the folder: nothing there, damaged, of another shape than the
    /// model that is served.
    fn load(&self, dir: &Path) -> Result<Arc<dyn Snapshot>, String>;

    /// Loads the adapter in a folder. Called on a thread that may block.
    ///
    /// # Errors
    /// As [`Weights::load`].
    fn adapter(&self, dir: &Path) -> Result<Adapter, String>;

    /// Joins a communicator that weights come over, in the place of the one before. `model` is the config.json of what it will send.
    /// Called on a thread that may block; waits until all have joined.
    ///
    /// # Errors
    /// Why not, in words for whoever trains: no GPU, another model than is served, others that do not come.
    fn join(&self, seat: Seat, model: &Value) -> Result<(), String>;

    /// Waits for the weights that the trainer sends as `version`, ready to sample from. Called on a thread that may block. After a
    /// failure the communicator was left.
    ///
    /// # Errors
    /// As [`Weights::join`].
    fn receive(&self, version: PolicyVersion) -> Result<Arc<dyn Snapshot>, String>;
}

/// How the server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name by which callers know the model.
    pub model: String,
    /// How long the engine may take to answer before it counts as unresponsive.
    pub liveness_timeout: Duration,
    /// What callers of public doors must show; `None` lets everybody in.
    pub api_key: Option<String>,
    /// What callers of the trainer's doors must show; `None` asks them for `api_key`.
    pub admin_key: Option<String>,
    /// The seeds of requests that bring none follow from it.
    pub seed: u64,
    /// Whether adapters may be loaded, and which; only where the engine takes them.
    pub adapters: Option<AdapterLimits>,
    /// Most bytes of a request's body.
    pub body_limit: usize,
    /// Whether only this machine's programs can reach the server: requests must then name it as this machine, which web
    /// pages that a browser on this machine shows cannot.
    pub loopback: bool,
}

/// What all doors share.
pub(crate) struct App {
    pub engine: Handle,
    pub renderer: Arc<Renderer>,
    pub weights: Arc<dyn Weights>,
    pub adapters: Adapters,
    pub options: Options,
    pub metrics: Arc<Metrics>,
    pub lease: Lease,
    pub ready: Ready,
    /// Held while weights are loaded; how often that was.
    pub updating: tokio::sync::Mutex<u64>,
    pub membership: Membership,
    /// Seconds since 1970.
    pub started: u64,
    requests: AtomicU64,
    seeds: AtomicU64,
    names: RandomState,
}

impl App {
    pub fn new(engine: Handle, renderer: Arc<Renderer>, weights: Arc<dyn Weights>, options: Options) -> Self {
        App {
            lease: Lease::default(),
            ready: Ready::default(),
            engine,
            renderer,
            weights,
            adapters: Adapters::default(),
            options,
            metrics: Arc::new(Metrics::new()),
            updating: tokio::sync::Mutex::default(),
            membership: Membership::default(),
            started: clock::unix_seconds(),
            requests: AtomicU64::new(0),
            seeds: AtomicU64::new(0),
            names: RandomState::new(),
        }
    }

    /// The seed of a sequence that brings none: another for each, and the same ones after each start.
    pub fn next_seed(&self) -> u64 {
        // splitmix64, so that seeds that follow each other have nothing in common.
        let count = self.seeds.fetch_add(1, Ordering::Relaxed);
        let mut x = self.options.seed.wrapping_add(count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// The caller's own id of a request, from the body or the header, else a new one.
    pub fn request_id(&self, headers: &HeaderMap, given: Option<String>) -> Result<String, ApiError> {
        let header = headers.get("x-request-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
        match given.or(header) {
            Some(id) if id.len() > 256 => Err(ApiError::field("request_id", "`request_id` is longer than 256 bytes")),
            Some(id) => Ok(id),
            None => {
                let count = self.requests.fetch_add(1, Ordering::Relaxed);
                Ok(format!("{:016x}{:016x}", self.names.hash_one(count), self.names.hash_one((count, "second"))))
            }
        }
    }

    /// The model that a request asks for: its name, and the adapter if it is one's.
    pub fn model(&self, fields: &mut Fields) -> Result<(String, Option<Arc<Adapter>>), ApiError> {
        let own = &self.options.model;
        let Some(name) = fields.string("model")?.filter(|name| name != own) else { return Ok((own.clone(), None)) };
        match self.adapters.get(&name) {
            Some(adapter) => Ok((name, Some(adapter))),
            None => {
                let others = self.adapters.names().iter().map(|name| format!(", `{name}`")).collect::<String>();
                let message = format!("the model `{name}` does not exist; this server has `{own}`{others}");
                Err(ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found"))
            }
        }
    }

    /// Runs work on `bytes` of text, on another thread where it may take long.
    pub async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Renderer) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= SHORT {
            return work(&self.renderer);
        }
        let renderer = self.renderer.clone();
        tokio::task::spawn_blocking(move || work(&renderer)).await?
    }
}
