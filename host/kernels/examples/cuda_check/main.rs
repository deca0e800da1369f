//! Checks every CUDA operation against f64 references and takes their times; `baseline.py` beside this prints PyTorch's.
//!
//! Arguments: any of `check`, `time`, `small` (attention over few tokens only), `portable` (attention by the kernels for every
//! GPU), `deterministic` (by those that give the same bits each time); then a folder for compiled kernels, `cache=FOLDER`, a seed, `seed=NUMBER`, one topic, `only=NAME`, and one head dimension of
//! attention, `dim=NUMBER`.

mod bench;
mod checks;
mod reference;
mod times;

use std::process::ExitCode;
use std::time::Instant;

use bench::{Random, Table};
use prl_kernels::cuda::{Context, CudaError};

fn run(arguments: &[String]) -> Result<bool, CudaError> {
    let value = |name: &str| arguments.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='));
    let mut random = Random::new(value("seed").and_then(|s| s.parse().ok()).unwrap_or(0x9e37_79b9_7f4a_7c15));
    let start = Instant::now();
    let cache = value("cache").map(std::path::Path::new);
    let c = Context::new(0, cache)?;
    let c = if arguments.iter().any(|a| a == "portable") { c.portable() } else { c };
    let c = if arguments.iter().any(|a| a == "deterministic") { c.deterministic() } else { c };
    println!("GPU {} open after {:.2} s", c.name()?, start.elapsed().as_secs_f64());
    c.prepare(&checks::HEAD_DIMS, true, true)?;
    println!("kernels ready after {:.2} s", start.elapsed().as_secs_f64());
    let mut right = true;
    if arguments.iter().any(|a| a == "check") {
        let mut table = Table::new();
        let dim = value("dim").and_then(|d| d.parse().ok());
        let only = checks::Only { topic: value("only"), dim, small: arguments.iter().any(|a| a == "small"), cache };
        let done = checks::all(&c, &mut random, &mut table, only);
        right = table.print();
        done?;
        println!("CHECK {} after {:.1} s", if right { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
    }
    if arguments.iter().any(|a| a == "time") {
        times::all(&c, &mut random, value("only"))?;
        println!("TIMED after {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(right)
}

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
