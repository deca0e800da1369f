//! What all environments share: engines, compiled code, and the threads they run on. Must not know any call of the
//! contract.

use crate::cache::Cache;
use crate::machine::Machines;
use crate::{EnvFile, Grant, HttpClient, Limits, LoadError};
use futures::FutureExt;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// How to set up a [`Sandbox`].
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Where compiled components are kept. `None`: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Threads that guests run on.
    pub threads: usize,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        SandboxConfig { cache_dir: None, threads: 2 }
    }
}

/// What holds for an environment from the moment it is loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadConfig {
    /// Bounds for each instance.
    pub limits: Limits,
    /// What it may import beside its log.
    pub grants: Vec<Grant>,
}

/// An environment that runs outside the sandbox and is served over HTTP.
#[derive(Clone)]
pub struct Server {
    /// Its address, above the protocol's version.
    pub url: String,
    /// What reaches it.
    pub client: Arc<dyn HttpClient>,
    /// A component to stand for it in place of the built-in one, for tests of that.
    pub bridge: Option<PathBuf>,
}

impl Server {
    /// Whether an environment's id is the address of a server.
    pub fn is_meant(id: &str) -> bool {
        id.starts_with("http://") || id.starts_with("https://")
    }
}

/// Calls that may wait for servers at once.
pub const MAX_BLOCKING: usize = 1 << 14;

/// Runs WASM components. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

struct Inner {
    machines: Machines,
    cache: Option<Cache>,
    /// Taken when the sandbox is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Sandbox {
    /// Starts the engine, its threads and its ticker.
    ///
    /// # Errors
    /// [`LoadError::Sandbox`] when the system refuses one of them. A cache folder that cannot be used is a warning.
    pub fn new(config: &SandboxConfig) -> Result<Self, LoadError> {
        let failed = |error: &dyn std::fmt::Display| LoadError::Sandbox(error.to_string());
        let machines = Machines::new().map_err(|error| failed(&error))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("env")
            .enable_time()
            // A call of an environment behind HTTP holds one while it waits.
            .max_blocking_threads(MAX_BLOCKING)
            .build()
            .map_err(|error| failed(&error))?;
        let cache = config.cache_dir.as_ref().and_then(|dir| match Cache::open(dir) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!("compiled environments are not kept: `{}`: {error}", dir.display());
                None
            }
        });
        Ok(Sandbox(Arc::new(Inner { machines, cache, runtime: Some(runtime) })))
    }

    /// Reads, checks, compiles and describes the component at `path`, which keeps to `config` from then on.
    ///
    /// # Errors
    /// A [`LoadError`] that says what the file is instead of an environment, or what it may not import.
    pub async fn load(&self, path: &Path, config: &LoadConfig) -> Result<EnvFile, LoadError> {
        EnvFile::load(self, path, config).await
    }

    /// Puts a component in place of the environment behind `server`, which forwards every call; it can reach that address and
    /// nothing else.
    ///
    /// # Errors
    /// An address that is none, or a server that does not answer as it should.
    pub async fn connect(&self, server: &Server, limits: &Limits) -> Result<EnvFile, LoadError> {
        EnvFile::connect(self, server, limits).await
    }

    pub(crate) fn machines(&self) -> &Machines {
        &self.0.machines
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.0.cache.as_ref()
    }

    fn runtime(&self) -> Option<&Runtime> {
        self.0.runtime.as_ref()
    }

    /// Runs `future` to its first pause on the caller's thread, which is one tick of the engines' clock at most for a
    /// guest and most often all there is, and from there on the sandbox's threads. Dropping what this returns aborts
    /// it; `None` means it was aborted or it panicked.
    pub(crate) async fn run<R: Send + 'static>(&self, future: impl Future<Output = R> + Send + 'static) -> Option<R> {
        let mut future = Box::pin(AssertUnwindSafe(future).catch_unwind());
        if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await {
            return done.ok();
        }
        let mut task = AbortOnDrop(self.runtime()?.spawn(future));
        (&mut task.0).await.ok()?.ok()
    }

    /// Like [`Sandbox::run`], for work that takes a thread of its own for long.
    pub(crate) async fn run_blocking<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        self.runtime()?.spawn_blocking(work).await.ok()
    }

    /// Starts `future` on the sandbox's threads and forgets it.
    pub(crate) fn detach(&self, future: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.runtime() {
            runtime.spawn(future);
        }
    }
}

struct AbortOnDrop<R>(JoinHandle<R>);

impl<R> Drop for AbortOnDrop<R> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
