//! Runs environments: WASM components of the package `prl:env` (`sdk/wit`), sandboxed by wasmtime.
//!
//! Owns loading and checking of component files, the limits, the pool of workers, and the typed conversions to
//! [`prl_types`]. An environment is untrusted: whatever it does is a value here ([`EnvError`]), costs the rollout it
//! happened in and nothing else. Must not know how completions are sampled, what a rollout is trained with, or where
//! log files are kept.
//!
//! Invariants: nothing a guest returns leaves this crate unchecked; a guest gets no clock, file, socket or randomness;
//! an instance that trapped, timed out or was cancelled in a call is never entered again.

mod bindings;
mod cache;
mod convert;
mod error;
mod file;
mod info;
mod instance;
mod limits;
mod log;
mod pool;
mod resolve;
mod sandbox;
mod session;

pub use cache::default_cache_dir;
pub use error::{EnvError, Failure, GuestErrorCode, LoadError};
pub use file::EnvFile;
pub use info::{EnvFeatures, EnvInfo, Split};
pub use limits::Limits;
pub use log::{LogLevel, LogLine, LogSink};
pub use pool::{GroupMember, Isolation, Pool, PoolConfig, PoolStats};
pub use resolve::{SearchPath, resolve};
pub use sandbox::{Sandbox, SandboxConfig};
pub use session::{EnvTurn, Finish, RolloutContext, Session, Stop};
