//! The `prl` binary: commands, assembly of a run from the crates, exit codes.
//!
//! Owns the command line, the rendering of errors and the wiring. Logic worth a unit test belongs into a crate.

mod algo;
mod assets;
mod bench;
mod budget;
mod caches;
mod checkpoint;
mod command;
mod companions;
mod compute;
mod control;
mod ctl;
mod diff;
mod divergence;
mod doctor;
mod env;
mod environments;
mod eval;
mod failure;
mod inference;
mod inspect;
mod job;
mod logging;
mod lora;
mod machine;
mod options;
mod past;
mod ports;
mod remote;
mod replay;
mod report;
mod rl;
mod saver;
mod sdk;
mod sft;
mod signals;
mod table;
mod template;
mod trainer;
mod warnings;

use clap::Parser;
use command::{Cli, Command};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no errors; what clap cannot print, nobody is there to read.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = match cli.command {
        Command::Rl(words) => rl::run(&words.words),
        Command::Sft(words) => sft::run(&words.words),
        Command::Trainer(words) => trainer::run(&words.words),
        Command::Inference(words) => inference::run(&words.words),
        Command::Doctor(asked) => doctor::run(asked.cuda, asked.json, asked.probe),
        Command::Algo(command) => {
            warnings::show();
            algo::run(&command)
        }
        Command::Env(command) => {
            warnings::show();
            env::run(&command)
        }
        Command::Ctl(command) => {
            warnings::show();
            ctl::run(&command)
        }
        Command::Eval(asked) => {
            warnings::show();
            eval::run(&asked)
        }
        Command::Replay(asked) => {
            warnings::show();
            replay::run(&asked)
        }
        Command::Inspect(asked) => {
            warnings::show();
            inspect::run(&asked)
        }
        Command::Diff(asked) => {
            warnings::show();
            diff::run(&asked)
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // A closed standard error leaves the exit code.
            let _ = writeln!(std::io::stderr().lock(), "error: {}", logging::plain(&failure.text));
            ExitCode::from(failure.code)
        }
    }
}
