//! What a run tells the world: metrics, console lines, log files, progress.
//!
//! Owns formats and sinks. Must not know how a number came about, and must never stop a run: a sink that fails warns
//! once and the run goes on.

mod error;
mod jsonl;
mod layer;
mod lines;
mod logs;
mod metrics;
mod monitor;
mod progress;
mod wandb;

pub use error::MonitorError;
pub use jsonl::Jsonl;
pub use layer::LogLayer;
pub use lines::{EnvLine, EvalLine, OrchestratorLine, PipelineLine, SftLine, TrainerLine, ValidationLine, duration};
pub use logs::{Level, LogFile, LogOptions, Logs, env_server_log, env_worker_log};
pub use metrics::Metrics;
pub use monitor::{Monitor, Sink};
pub use progress::Progress;
pub use wandb::{Wandb, WandbOptions};
