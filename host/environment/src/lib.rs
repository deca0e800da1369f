//! Runs environments: WASM components of the package `prl:env` (`sdk/wit`), sandboxed by wasmtime.
//!
//! Owns loading and checking of component files, the limits, the pool of workers, and the typed conversions to
//! [`prl_types`]. An environment is untrusted: whatever it does is a value here ([`EnvError`]), costs the rollout it
//! happened in and nothing else. Must not know how completions are sampled, what a rollout is trained with, or where
//! log files are kept.
//!
//! Invariants: nothing a guest returns leaves this crate unchecked; a guest gets no clock, file, socket or randomness
//! but what follows from its seed, and no service that is not granted; an instance that trapped, timed out or was
//! cancelled in a call is never entered again.

mod cache;
mod check;
mod contract;
mod digest;
mod error;
mod file;
mod info;
mod instance;
mod limits;
mod log;
mod machine;
mod pool;
mod resolve;
mod sandbox;
mod schema;
mod services;
mod session;
mod state;
mod tape;
mod turn;
mod wasi;

pub use error::{EnvError, Failure, GuestErrorCode, LoadError, StartError};
pub use file::EnvFile;
pub use info::{Component, EnvFeatures, EnvInfo, Split};
pub use limits::Limits;
pub use log::{LogLevel, LogLine, LogSink};
pub use pool::{Isolation, Pool, PoolConfig, PoolStats};
pub use resolve::{SearchPath, resolve};
pub use sandbox::{LoadConfig, MAX_BLOCKING, Sandbox, SandboxConfig, Server};
pub use services::{
    Assets, Grant, Http, HttpClient, HttpRequest, HttpResponse, Kv, LLM_OPTIONS, Llm, LlmRequest, LlmResponse,
    ServiceError, Services, origin,
};
pub use session::Session;
pub use tape::{Answer, Bytes, Exchange, Served, Service, Tape};
pub use turn::{Completion, Finish, GroupMember};

pub use prl_types::RolloutContext;
