//! The whole binary, from the command line to the files it leaves. Owns what users and scripts may rely on; what goes on
//! inside is the crates' own tests' business.
//!
//! Runs are shrunk to a few steps of a few rollouts. Nothing here waits for a clock: a limit of time only tells a hung
//! child.

mod algo;
mod bad_input;
mod config;
mod ctl;
mod data;
mod diff;
mod doctor;
mod env;
mod eval;
mod inference;
mod inspect;
mod libraries;
mod lora;
mod measure;
mod outside;
mod plugin;
mod replay;
mod resume;
mod rl;
mod scheduling;
mod served;
mod sft;
mod signals;
#[path = "../../../hub/tests/common/mod.rs"]
mod stand_in;
mod support;
