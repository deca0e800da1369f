//! The in-process engine: scheduler, KV caches keyed by policy version, sampler.
//!
//! Owns how requests share steps of the model and how tokens are drawn. Must not know environments, rewards, training,
//! or where weights come from. A request's tokens depend on its prompt, its sampling parameters, its seed and the
//! weights; on the CPU never on its neighbours or on timing.

#[cfg(test)]
mod chi2;
mod clock;
mod engine;
mod error;
mod forward;
mod grammar;
mod guide;
mod live;
mod penalties;
mod prefix;
mod request;
mod running;
mod sampler;
mod scheduler;
mod stop;

pub use engine::{Engine, EngineConfig, Events, Handle};
pub use error::InferenceError;
pub use grammar::{Grammar, Grammars, Word};
pub use guide::Guide;
pub use request::{Class, Drawn, Event, PromptDone, Request, Scored};
pub use sampler::{SamplingParams, draw};
pub use scheduler::Stats;
pub use stop::Decode;
