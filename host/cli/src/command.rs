//! The command line as clap sees it. Configuration words are passed through as they are.

use crate::algo;
use crate::ctl;
use crate::diff;
use crate::env;
use crate::eval;
use crate::inspect;
use crate::replay;
use clap::{Args, Parser, Subcommand};

/// Reinforcement-learning post-training for language models.
#[derive(Parser)]
#[command(name = "prl", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// Train a policy by reinforcement learning.
    #[command(
        disable_help_flag = true,
        override_usage = "prl rl @ rl.toml [@ more.toml] [--a.b-c value]... [--plugin file.so]..."
    )]
    Rl(Words),
    /// Train a model on conversations.
    #[command(disable_help_flag = true, override_usage = "prl sft @ sft.toml [@ more.toml] [--a.b-c value]...")]
    Sft(Words),
    /// Run the trainer alone, on made-up batches.
    #[command(
        disable_help_flag = true,
        override_usage = "prl trainer @ trainer.toml [@ more.toml] [--a.b-c value]... --data.fake|--bench"
    )]
    Trainer(Words),
    /// Serve a model over HTTP, with OpenAI's API and the trainer's.
    #[command(
        disable_help_flag = true,
        override_usage = "prl inference @ inference.toml [@ more.toml] [--a.b-c value]..."
    )]
    Inference(Words),
    /// Say what this machine can do and what is missing for more.
    Doctor(Doctor),
    /// Look at, try out and make algorithm plug-ins.
    #[command(subcommand)]
    Algo(algo::Command),
    /// Talk to a running run.
    #[command(subcommand)]
    Ctl(ctl::Command),
    /// Look at, try out, make and build environments.
    #[command(subcommand)]
    Env(env::Command),
    /// Evaluate a model on an environment.
    Eval(eval::Eval),
    /// Run the environments' side of recorded rollouts again and compare it.
    Replay(replay::Replay),
    /// Say where a run stands, or print its rollouts.
    Inspect(inspect::Inspect),
    /// Compare two runs: configuration, metrics, data order, weights and checkpoints.
    Diff(diff::Diff),
}

/// What `prl doctor` is asked.
#[derive(Args)]
pub struct Doctor {
    /// Ask for a GPU: exit with 2 where one cannot be used.
    #[arg(long)]
    pub cuda: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// What the command starts itself with, to look at CUDA's libraries in a process that may crash.
    #[arg(long, hide = true)]
    pub probe: bool,
}

/// Everything after the command's name.
#[derive(Args)]
pub struct Words {
    /// `@ file.toml` and `--key value`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Whether the words ask for help.
pub fn wants_help(words: &[String]) -> bool {
    words.iter().any(|w| w == "--help" || w == "-h")
}
