//! `prl eval`: a model on an environment's tasks: a local folder through the engine and the orchestrator's evaluation, or a
//! server through its chat interface. Owns the flags and what comes of them; the numbers are `report`'s.

mod endpoint;
mod local;
mod report;

use crate::env::open::{self, Asked, Opened, Purpose, base_url};
use crate::env::record::Replay;
use crate::failure::{Failure, input};
use crate::logging;
use clap::Args;
use prl_environment::{Isolation, Pool};
use prl_store::write_atomic;
use prl_types::{ErrorKind, Rollout};
use report::Report;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// `prl eval`.
#[derive(Args)]
pub struct Eval {
    /// Which environment, and under which arguments.
    #[command(flatten)]
    pub asked: Asked,
    /// A model's folder or hub id; with `--base-url`, its name on that server.
    #[arg(long, value_name = "MODEL")]
    pub model: String,
    /// An OpenAI-compatible server, up to its version; the key comes from OPENAI_API_KEY.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// Split of the tasks; by default `eval` if there is one, else the first.
    #[arg(long)]
    pub split: Option<String>,
    /// The first so many tasks.
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub num_examples: u64,
    /// Rollouts of each task.
    #[arg(short = 'r', long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub rollouts_per_example: u32,
    /// Most tokens of a turn; by default what fits (a server: what it likes).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,
    /// Most turns of a rollout; by default the environment's own limit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_turns: Option<u32>,
    /// Sampling temperature; by default 1 (a server: its own). 0 takes the most likely token.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Seed of tasks, rollouts and sampling.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Rollouts under way at once.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub max_concurrent: u32,
    /// Tokens of prompt and answers together; by default what the model was made for. For a folder.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub max_model_len: Option<u32>,
    /// Device: auto, cpu, cuda or cuda:<index>. For a folder.
    #[arg(long, default_value = "auto")]
    pub device: prl_config::Device,
    /// Seconds one request may take. For a server.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    pub timeout: f64,
    /// Further tries of a request that failed in a way that may pass. For a server.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10))]
    pub max_retries: u32,
    /// The reward from which on a rollout has passed.
    #[arg(long, default_value_t = 1.0, value_name = "REWARD")]
    pub pass_reward: f64,
    /// Rows of the table of samples.
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub samples: usize,
    /// Write results.jsonl and summary.json into this folder.
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A rollout with what the log keeps beside it.
pub struct Attempt {
    /// The rollout.
    pub rollout: Rollout,
    /// The record.
    pub replay: Option<Replay>,
}

/// What an evaluation gave.
pub struct Outcome {
    /// In the order of task and member.
    pub results: Vec<Attempt>,
    /// The process's exit code if a signal ended it early.
    pub interrupted: Option<u8>,
}

/// What is evaluated on.
pub struct Tasks {
    /// The environment.
    pub opened: Opened,
    /// The environment, started.
    pub pool: Pool,
    /// The split.
    pub split: String,
    /// Number of tasks.
    pub count: u64,
}

/// Runs the command; the code is 1 where every rollout failed.
pub fn run(asked: &Eval) -> Result<u8, Failure> {
    if let Some(t) = asked.temperature.filter(|t| !(0.0..=2.0).contains(t)) {
        return Err(Failure::input(format_args!("`--temperature` is {t}; it must be between 0 and 2")));
    }
    if !(asked.timeout.is_finite() && asked.timeout > 0.0) {
        return Err(Failure::input(format_args!("`--timeout` is {}; it must be above 0", asked.timeout)));
    }
    let base_url = asked.base_url.as_deref().map(|url| base_url("--base-url", url)).transpose()?;
    asked.output.as_deref().map_or(Ok(()), vacant)?;
    let started = Instant::now();
    let (report, outcome) = open::block_on(async {
        let tasks = Tasks::open(asked).await?;
        let outcome = match &base_url {
            Some(url) => endpoint::run(asked, &tasks, url).await?,
            None => local::run(asked, &tasks).await?,
        };
        let report = Report::new(asked, &tasks, &outcome.results, started.elapsed().as_secs_f64());
        Ok((report, outcome))
    })?;
    if let Some(dir) = &asked.output {
        write(dir, &report, &outcome.results)?;
    }
    match asked.json {
        true => logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?)?,
        false => logging::print(report.render(&outcome.results, asked.samples).trim_end())?,
    };
    if let Some(code) = outcome.interrupted {
        return Ok(code);
    }
    let failed = |result: &Attempt| result.rollout.error.as_ref().map(|error| error.message.clone());
    match outcome.results.iter().all(|result| failed(result).is_some()) {
        true => Err(Failure::run(format_args!(
            "every rollout failed; the first: {}",
            outcome.results.first().and_then(failed).unwrap_or_default()
        ))),
        false => Ok(0),
    }
}

impl Tasks {
    async fn open(asked: &Eval) -> Result<Self, Failure> {
        let opened = Opened::load(&asked.asked, Purpose::Use).await?;
        let pool = opened.start(Isolation::Rollout, asked.max_concurrent as usize).await?;
        logging::warn_outside(&pool);
        let default = pool.info().split("eval").map(|split| split.name.clone());
        let split = open::split(&pool, asked.split.as_deref().or(default.as_deref()))?;
        let size = pool.info().split(&split).and_then(|split| split.size);
        let count = size.map_or(asked.num_examples, |size| size.min(asked.num_examples));
        match count {
            0 => Err(Failure::input(format_args!("`--split`: split `{split}` of `{}` has no tasks", pool.name()))),
            count => Ok(Tasks { opened, pool, split, count }),
        }
    }
}

/// The file of rollouts in an evaluation's folder.
pub const RESULTS: &str = "results.jsonl";
const SUMMARY: &str = "summary.json";

/// Refuses to write over earlier results, before anything is computed.
fn vacant(dir: &Path) -> Result<(), Failure> {
    let taken = dir.exists() && !dir.is_dir();
    let held = [RESULTS, SUMMARY].iter().map(|name| dir.join(name)).find(|path| path.exists());
    match (taken, held) {
        (true, _) => Err(Failure::input(format_args!("`--output`: `{}` is no folder", dir.display()))),
        (_, Some(path)) => {
            Err(Failure::input(format_args!("`--output`: `{}` is there already; name another folder", path.display())))
        }
        _ => Ok(()),
    }
}

fn write(dir: &Path, report: &Report, results: &[Attempt]) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(input(format_args!("`--output`: `{}`", dir.display())))?;
    let mut lines = Vec::new();
    for result in results {
        let line = match result.replay.clone() {
            Some(replay) => replay.line(&result.rollout),
            None => crate::env::record::bare(&result.rollout),
        };
        lines.extend(serde_json::to_vec(&line).map_err(Failure::run)?);
        lines.push(b'\n');
    }
    write_atomic(&dir.join(RESULTS), &lines).map_err(Failure::run)?;
    let summary = serde_json::to_vec_pretty(report).map_err(Failure::run)?;
    write_atomic(&dir.join(SUMMARY), &[summary.as_slice(), b"\n"].concat()).map_err(Failure::run)
}

/// Whether the rollout came to its end, well or badly.
fn counts(rollout: &Rollout) -> bool {
    rollout.error.as_ref().is_none_or(|error| error.kind != ErrorKind::Cancelled)
}
