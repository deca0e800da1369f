//! Layered TOML files and flags to a checked run configuration.
//!
//! Owns every key of `prl rl`, `prl sft`, `prl trainer` and `prl inference` with its type, default, limits and help, the
//! layering of files and flags, the source of every value, and the text of everything that can be wrong. Must not know what the values are used for: no
//! models, no environments, no run folders.
//!
//! ```
//! let words = ["--orchestrator.train.env", r#"[{"id": "reverse-text"}]"#, "--orchestrator.group-size", "8"];
//! let words: Vec<String> = words.map(String::from).to_vec();
//! let loaded = prl_config::load_rl(&words).map_err(|errors| errors.to_string()).unwrap();
//! assert_eq!(loaded.config.orchestrator.train.env[0].group_size, 8);
//! assert_eq!(loaded.source("orchestrator.batch_size").to_string(), "default");
//! ```

mod dump;
mod engine;
mod error;
mod help;
mod loaded;
mod macros;
mod schema;
mod shared;
mod tables;
mod validate;

pub use dump::Dump;
pub use error::{ConfigErrors, Place, Problem, ProblemKind};
pub use loaded::{Loaded, Source};
pub use tables::*;

use loaded::{Command, load};
use schema::Field;
use std::collections::BTreeSet;

/// Loads the configuration of `prl rl` from the words after the command.
///
/// # Errors
/// Everything that is wrong with it, in reading order.
pub fn load_rl(words: &[String]) -> Result<Loaded<RlConfig>, ConfigErrors> {
    let command =
        Command { root: RlConfig::node(), spread: shared::rl, derive: RlConfig::derive, validate: validate::rl };
    load(command, words)
}

/// Loads the configuration of `prl sft` from the words after the command.
///
/// # Errors
/// Everything that is wrong with it, in reading order.
pub fn load_sft(words: &[String]) -> Result<Loaded<SftConfig>, ConfigErrors> {
    let command = Command {
        root: SftConfig::node(),
        spread: |tree, _| {
            shared::sft(tree);
            BTreeSet::new()
        },
        derive: SftConfig::derive,
        validate: validate::sft,
    };
    load(command, words)
}

/// Loads the configuration of `prl trainer` from the words after the command.
///
/// # Errors
/// Everything that is wrong with it, in reading order.
pub fn load_trainer(words: &[String]) -> Result<Loaded<TrainerRun>, ConfigErrors> {
    let command = Command {
        root: TrainerRun::node(),
        spread: |tree, _| {
            shared::trainer(tree);
            BTreeSet::new()
        },
        derive: TrainerRun::derive,
        validate: validate::trainer,
    };
    load(command, words)
}

/// Loads the configuration of `prl inference` from the words after the command.
///
/// # Errors
/// Everything that is wrong with it, in reading order.
pub fn load_inference(words: &[String]) -> Result<Loaded<InferenceRun>, ConfigErrors> {
    let command = Command {
        root: InferenceRun::node(),
        spread: |_, _| BTreeSet::new(),
        derive: |_: &mut InferenceRun| {},
        validate: validate::inference,
    };
    load(command, words)
}

/// The keys of `prl rl`: name, type, default, meaning.
pub fn help_rl() -> String {
    help::render(&RlConfig::node())
}

/// The keys of `prl sft`: name, type, default, meaning.
pub fn help_sft() -> String {
    help::render(&SftConfig::node())
}

/// The keys of `prl trainer`: name, type, default, meaning.
pub fn help_trainer() -> String {
    help::render(&TrainerRun::node())
}

/// The keys of `prl inference`: name, type, default, meaning.
pub fn help_inference() -> String {
    help::render(&InferenceRun::node())
}
