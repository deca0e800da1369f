//! The orchestrator's traits over the real crates. Each file joins two crates and owns nothing else.

pub mod algorithm;
pub mod broadcaster;
pub mod env;
pub mod loss;
pub mod observer;
pub mod outside;
pub mod policy;
pub mod renderer;
pub mod servers;
pub mod shadow;
pub mod swap;
pub mod tape;
pub mod trainer;
