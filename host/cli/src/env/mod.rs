//! `prl env`: environments as files: what they are, whether they keep the contract, how fast they are; playing, making and
//! building them. Owns the subcommands; runs of training are not its business.

mod bench;
mod build;
mod check;
pub mod drive;
mod example;
mod inspect;
mod list;
mod new;
pub mod open;
mod play;
pub mod record;
pub mod registry;
mod serve;

use crate::failure::Failure;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// List the environments that runs find by name.
    List(List),
    /// Say what an environment is, wants and gives.
    Inspect(Inspect),
    /// Try whether an environment keeps the contract: determinism, leaks, bad answers, arguments.
    Check(Check),
    /// Measure how fast an environment starts and steps, and what an instance holds.
    Bench(Bench),
    /// Answer an environment's tasks in the terminal.
    Play(Play),
    /// Write a first environment into a new folder.
    New(New),
    /// Build an environment's folder into a component.
    Build(Build),
    /// Serve a Python environment over HTTP, outside the sandbox.
    ServePython(ServePython),
    /// Publish an environment in an OCI registry.
    Push(Push),
    /// Fetch an environment from an OCI registry.
    Pull(Pull),
}

/// `prl env list`.
#[derive(Args)]
pub struct List {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `prl env inspect`.
#[derive(Args)]
pub struct Inspect {
    /// Which, and under which arguments.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `prl env check`.
#[derive(Args)]
pub struct Check {
    /// Which, and under which arguments.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Tasks of each split that are tried.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub tasks: u64,
    /// Seed of tasks and rollouts.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `prl env bench`.
#[derive(Args)]
pub struct Bench {
    /// Which, and under which arguments.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Seconds each part is measured.
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    pub seconds: f64,
    /// Instances that are alive at once to see what one holds.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub live: u32,
    /// What shares an instance: nothing (rollout), or the rollouts of one worker (worker).
    #[arg(long, default_value = "rollout", value_parser = ["rollout", "worker"])]
    pub isolation: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `prl env play`.
#[derive(Args)]
pub struct Play {
    /// Which, and under which arguments.
    #[command(flatten)]
    pub asked: open::Asked,
    /// Split the task comes from; by default the first one.
    #[arg(long)]
    pub split: Option<String>,
    /// Index of the task.
    #[arg(long, default_value_t = 0)]
    pub index: u64,
    /// Seed of task and rollout.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// `prl env new`.
#[derive(Args)]
pub struct New {
    /// The environment's name, and that of the folder: letters, digits, `-` and `_`.
    pub name: String,
    /// Language.
    #[arg(long, default_value = "rust")]
    pub lang: new::Lang,
    /// The folder `sdk` of prl's sources; by default the one above the binary.
    #[arg(long, value_name = "FOLDER")]
    pub sdk: Option<PathBuf>,
}

/// `prl env build`.
#[derive(Args)]
pub struct Build {
    /// Folder with a `Cargo.toml` (Rust) or a Python environment; or a `.py` file.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// The component to write; by default NAME.wasm in the folder.
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Seconds that each stage of a Python build may take.
    #[arg(long, default_value_t = 120.0, value_name = "S")]
    pub timeout: f64,
}

/// `prl env serve-python`.
#[derive(Args)]
pub struct ServePython {
    /// Its folder, its .py file, or the name of an installed module.
    pub env: String,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 8765)]
    pub port: u16,
    /// Seconds after which a rollout that nobody asks for ends.
    #[arg(long, default_value_t = 3600.0, value_name = "S")]
    pub expire: f64,
}

/// `prl env push`.
#[derive(Args)]
pub struct Push {
    /// A `.wasm` file, a folder that holds one, or a name.
    pub env: String,
    /// Where to, as oci://registry/name:version.
    pub reference: String,
}

/// `prl env pull`.
#[derive(Args)]
pub struct Pull {
    /// What, as oci://registry/name:version[@sha256:...].
    pub reference: String,
}

/// Runs a subcommand; the code is the process's.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::List(asked) => list::run(asked),
        Command::Inspect(asked) => inspect::run(asked),
        Command::Check(asked) => check::run(asked),
        Command::Bench(asked) => bench::run(asked),
        Command::Play(asked) => play::run(asked),
        Command::New(asked) => new::run(asked),
        Command::Build(asked) => build::run(asked),
        Command::ServePython(asked) => serve::run(asked),
        Command::Push(asked) => registry::push(asked),
        Command::Pull(asked) => registry::pull(asked),
    }
}
