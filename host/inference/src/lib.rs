//! The in-process engine: scheduler, KV caches keyed by policy version, sampler.
//!
//! Owns how requests share steps of the model and how tokens are drawn. Must not know environments, rewards, training,
//! or where weights come from. A request's tokens depend on its prompt, its sampling parameters, its seed and the
//! weights; on the CPU never on its neighbours or on timing.

mod clock;
mod engine;
mod error;
mod forward;
mod live;
mod prefix;
mod request;
mod sampler;
mod scheduler;
mod stop;

pub use engine::{Engine, EngineConfig, Events, Handle};
pub use error::InferenceError;
pub use request::{Class, Drawn, Event, PromptDone, Request, Scored};
pub use sampler::{SamplingParams, draw};
pub use scheduler::Stats;
pub use stop::Decode;
