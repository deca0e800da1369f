//! `prl inspect`: where a run stands, and what was said in it. Owns which part is asked for; what a run's folder holds is
//! `overview`'s, and what one rollout was is `rollouts`'.

mod overview;
mod rollouts;

use crate::failure::{Failure, input};
use crate::past::Past;
use clap::Args;
use glob::Pattern;
pub use overview::number;
use prl_types::Step;
use std::path::PathBuf;

/// `prl inspect`.
#[derive(Args)]
pub struct Inspect {
    /// A run's output directory; the run may be running.
    pub run: PathBuf,
    /// Metrics whose last values are told, such as `reward/*` or `optim/lr`.
    #[arg(long, value_name = "GLOB", conflicts_with = "step")]
    pub metric: Vec<String>,
    /// Tell the rollouts of this step instead.
    #[arg(long, value_name = "N")]
    pub step: Option<Step>,
    /// Print this rollout of the step: its group and member, such as 12.0, or its place in the step's log, from 0.
    #[arg(long, value_name = "K", requires = "step")]
    pub rollout: Option<String>,
    /// Only rollouts of training.
    #[arg(long, requires = "step", conflicts_with = "eval")]
    pub train: bool,
    /// Only rollouts of evaluations.
    #[arg(long, requires = "step")]
    pub eval: bool,
    /// Print JSON: one object, or one a rollout.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(asked: &Inspect) -> Result<u8, Failure> {
    let pattern = |text: &String| Pattern::new(text).map_err(input(format_args!("`--metric {text}`")));
    let patterns: Vec<Pattern> = asked.metric.iter().map(pattern).collect::<Result<_, _>>()?;
    let past = Past::open(&asked.run)?;
    match asked.step {
        Some(step) => rollouts::tell(&past, step, asked),
        None => overview::tell(&past, &patterns, asked.json),
    }
}
