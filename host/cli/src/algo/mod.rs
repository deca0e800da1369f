//! `prl algo`: algorithm plug-ins as files: what they are, whether they keep the contract, what they make of numbers; making
//! new ones. Owns the subcommands; runs of training are not its business.

mod check;
mod group;
mod input;
mod inspect;
mod list;
mod loss;
mod new;
pub mod open;
mod score;
mod tokens;

use crate::failure::Failure;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// List the algorithms that runs find by name.
    List(List),
    /// Say what a plug-in is, wants and takes, without running any of its code.
    Inspect(Inspect),
    /// Try whether a plug-in keeps the contract: results, hard cases, determinism, states, gradients, speed.
    Check(Check),
    /// Score recorded groups of rollouts.
    Score(Score),
    /// Compute a loss and its gradient on recorded tokens.
    Loss(Loss),
    /// Write a first plug-in into a new folder.
    New(New),
}

/// `prl algo list`.
#[derive(Args)]
pub struct List {
    /// A plug-in file that wins over all others of its name; may be repeated.
    #[arg(long = "plugin", value_name = "FILE")]
    pub plugins: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `prl algo inspect`.
#[derive(Args)]
pub struct Inspect {
    /// Which.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `prl algo check`.
#[derive(Args)]
pub struct Check {
    /// Which.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Its configuration: a JSON object of the keys beside `type` (or, of a loss, beside `type` and `name`).
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub config: String,
    /// Its loss holds parts of itself constant, so that its gradient is not its derivative: that is then not asked.
    #[arg(long)]
    pub stop_gradient: bool,
    /// Groups as `prl algo score` takes them, tried besides the built-in ones.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Seed of the instances.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `prl algo score`.
#[derive(Args)]
pub struct Score {
    /// Which.
    #[command(flatten)]
    pub asked: open::Asked,
    /// A JSON object (one group), a JSON list or JSON lines (many); `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Its configuration: a JSON object of the keys beside `type`.
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub config: String,
    /// Seed of the instance.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `prl algo loss`.
#[derive(Args)]
pub struct Loss {
    /// Which plug-in; or a component of the trainer's own: default, ipo, ce, ref_kl.
    #[command(flatten)]
    pub asked: open::Asked,
    /// A JSON object (one batch), a JSON list or JSON lines (many); `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// Its configuration: a JSON object of the keys of `[trainer.loss]` beside `type` and `name`.
    #[arg(long, default_value = "{}", value_name = "JSON")]
    pub config: String,
    /// Seed of the instance.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `prl algo new`.
#[derive(Args)]
pub struct New {
    /// The algorithm's name, and that of the folder: letters, digits, `-` and `_`.
    pub name: String,
    /// Language.
    #[arg(long, default_value = "rust")]
    pub lang: new::Lang,
    /// The folder `sdk` of prl's sources, for Rust; by default the one above the binary.
    #[arg(long, value_name = "FOLDER")]
    pub sdk: Option<PathBuf>,
}

/// Runs a subcommand; the code is the process's.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::List(asked) => list::run(asked),
        Command::Inspect(asked) => inspect::run(asked),
        Command::Check(asked) => check::run(asked),
        Command::Score(asked) => score::run(asked),
        Command::Loss(asked) => loss::run(asked),
        Command::New(asked) => new::run(asked),
    }
}
