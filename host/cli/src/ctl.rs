//! `prl ctl`: talks to a running run. Owns the words and the rendering; what a run does is `control`'s.

use crate::control::{Ask, Said, ask};
use crate::failure::{Failure, input};
use crate::logging;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What to tell a run.
#[derive(Subcommand)]
pub enum Command {
    /// Go on with another build of an algorithm from the next step on.
    SwapAlgo(SwapAlgo),
    /// Say where a run stands.
    Status(Status),
    /// Stop a run as SIGTERM does.
    Stop(Run),
}

/// A run.
#[derive(Args)]
pub struct Run {
    /// Its output directory.
    pub run: PathBuf,
}

/// `prl ctl swap-algo`
#[derive(Args)]
pub struct SwapAlgo {
    #[command(flatten)]
    pub run: Run,
    /// The new file: an algorithm of the same name and of the same needs.
    pub file: PathBuf,
    /// The training environment that it is for; all that use the algorithm where this is not given.
    #[arg(long)]
    pub env: Option<String>,
}

/// `prl ctl status`
#[derive(Args)]
pub struct Status {
    #[command(flatten)]
    pub run: Run,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; the code is the process's.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Status(asked) => {
            let status = tell(&asked.run, &Ask::Status)?;
            if asked.json {
                return logging::print(&status.to_string());
            }
            let of = status["max_steps"].as_u64().map_or_else(String::new, |steps| format!(" of {steps}"));
            let algorithms = status["algorithms"].as_object().into_iter().flatten();
            let algorithms: Vec<String> =
                algorithms.map(|(env, name)| format!("{} on {env}", name.as_str().unwrap_or_default())).collect();
            let algorithms =
                if algorithms.is_empty() { String::new() } else { format!(" | {}", algorithms.join(", ")) };
            logging::print(&format!("step {}{of}{algorithms} | process {}", status["step"], status["pid"]))
        }
        Command::Stop(run) => {
            tell(run, &Ask::Stop)?;
            logging::print("The run stops as soon as what is under way can be left")
        }
        Command::SwapAlgo(asked) => {
            let file = std::path::absolute(&asked.file).map_err(input(format_args!("`{}`", asked.file.display())))?;
            let done = tell(&asked.run, &Ask::SwapAlgo { file, env: asked.env.clone() })?;
            for (env, new) in done.as_object().into_iter().flatten() {
                let text = |key: &str| new[key].as_str().unwrap_or_default().to_owned();
                logging::print(&format!(
                    "{env}: {} {} from step {} on",
                    text("name"),
                    text("version"),
                    new["from_step"]
                ))?;
            }
            Ok(0)
        }
    }
}

fn tell(run: &Run, what: &Ask) -> Result<Value, Failure> {
    let root: &Path = &run.run;
    match ask(root, what) {
        Ok(Said::Ok(value)) => Ok(value),
        Ok(Said::Error(error)) => Err(Failure::input(error)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(Failure::run(error)),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(Failure::run(format_args!("the run in `{}` does not answer", root.display())))
        }
        Err(error) => Err(Failure::input(format_args!(
            "no run listens in `{}`: {error}; give the output directory of one that is running",
            root.display()
        ))),
    }
}
