//! The engine all environments share, the threads they run on and the clock that interrupts them. Owns wasmtime's
//! configuration; must not know any call of the contract.

use crate::bindings::PureEnv;
use crate::cache::Cache;
use crate::log::State;
use crate::{EnvFile, Limits, LoadError};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, Engine};

/// How often a running guest gives way and can be stopped.
const TICK: Duration = Duration::from_millis(10);
/// Stack of a guest, and of the fiber it runs on.
const WASM_STACK_BYTES: usize = 1 << 20;
const FIBER_STACK_BYTES: usize = 2 << 20;

/// How to set up a [`Sandbox`].
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Where compiled components are kept; see [`default_cache_dir`](crate::default_cache_dir). `None`: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// Threads that guests run on.
    pub threads: usize,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        SandboxConfig { cache_dir: None, threads: 2 }
    }
}

/// Runs WASM components. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

struct Inner {
    engine: Engine,
    linker: Linker<State>,
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
        let mut engine_config = Config::new();
        engine_config
            .wasm_component_model(true)
            .epoch_interruption(true)
            .cranelift_nan_canonicalization(true)
            .relaxed_simd_deterministic(true)
            .max_wasm_stack(WASM_STACK_BYTES)
            .async_stack_size(FIBER_STACK_BYTES);
        let engine = Engine::new(&engine_config).map_err(|error| failed(&error))?;
        let mut linker = Linker::new(&engine);
        PureEnv::add_to_linker::<_, HasSelf<_>>(&mut linker, |state: &mut State| state)
            .map_err(|error| failed(&error))?;
        let ticked = engine.weak();
        let tick = move || {
            while let Some(engine) = ticked.upgrade() {
                engine.increment_epoch();
                drop(engine);
                std::thread::sleep(TICK);
            }
        };
        std::thread::Builder::new().name("env-ticker".into()).spawn(tick).map_err(|error| failed(&error))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("env")
            .enable_time()
            .build()
            .map_err(|error| failed(&error))?;
        let cache = config.cache_dir.as_ref().and_then(|dir| match Cache::open(dir) {
            Ok(cache) => Some(cache),
            Err(error) => {
                tracing::warn!("compiled environments are not kept: `{}`: {error}", dir.display());
                None
            }
        });
        Ok(Sandbox(Arc::new(Inner { engine, linker, cache, runtime: Some(runtime) })))
    }

    /// Reads, checks, compiles and describes the component at `path`. `limits` hold for the description.
    ///
    /// # Errors
    /// A [`LoadError`] that says what the file is instead of an environment.
    pub async fn load(&self, path: &Path, limits: &Limits) -> Result<EnvFile, LoadError> {
        EnvFile::load(self, path, limits).await
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(crate) fn linker(&self) -> &Linker<State> {
        &self.0.linker
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.0.cache.as_ref()
    }

    fn runtime(&self) -> Option<&Runtime> {
        self.0.runtime.as_ref()
    }

    /// Runs `future` on the sandbox's threads. Dropping what this returns aborts it; `None` means it was aborted or
    /// it panicked.
    pub(crate) async fn run<R: Send + 'static>(&self, future: impl Future<Output = R> + Send + 'static) -> Option<R> {
        let mut task = AbortOnDrop(self.runtime()?.spawn(future));
        (&mut task.0).await.ok()
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
