//! `prl algo inspect`: what a plug-in's file says about it. Owns the report and its two forms; loads no code.

use super::Inspect;
use crate::failure::Failure;
use crate::logging;
use crate::options;
use crate::table::table;
use prl_algorithm::{ActionLoss, Metadata, Reference, Source};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;

/// Everything found, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    metadata: Metadata,
    path: String,
    bytes: u64,
    /// What a run must provide, in words.
    needs: Vec<&'static str>,
}

/// Runs the command.
pub fn run(asked: &Inspect) -> Result<u8, Failure> {
    let path = asked.asked.path()?;
    let metadata = prl_algorithm::inspect(&path).map_err(Failure::input)?;
    let bytes = std::fs::metadata(&path).map_or(0, |about| about.len());
    let report = Report { needs: needs(&metadata), metadata, path: path.display().to_string(), bytes };
    match asked.json {
        true => logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?),
        false => logging::print(render(&report).trim_end()),
    }
}

fn needs(about: &Metadata) -> Vec<&'static str> {
    let reference = match about.reference {
        Reference::None => None,
        Reference::Teacher => Some("log-probabilities of a frozen teacher"),
        Reference::Policy => Some("log-probabilities of the live policy behind other messages"),
    };
    let source = (about.source == Source::Frozen).then_some("rollouts of a frozen model");
    let entropy = about.entropy.then_some("entropies");
    [reference, source, entropy].into_iter().flatten().collect()
}

fn render(report: &Report) -> String {
    let about = &report.metadata;
    let mut text = format!("{} {}\n", about.name, about.version);
    let mut fact = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<10} {value}");
    };
    fact("file", &report.path);
    fact("size", &format!("{} bytes", report.bytes));
    fact("ABI", &about.abi);
    fact("hooks", &words(&serde_json::json!(about.hooks)));
    fact(
        "learns by",
        match about.action_loss {
            ActionLoss::Rl => "rl: policy gradient, with the advantages it gives",
            ActionLoss::Ce => "ce: cross-entropy on sampled tokens",
            ActionLoss::RefKl => "ref_kl: reverse KL to reference log-probabilities on sampled tokens",
        },
    );
    fact("needs", &if report.needs.is_empty() { "nothing".into() } else { report.needs.join(", ") });
    let rows = options::rows(&about.config_schema);
    let body = if rows.is_empty() { "  none\n".to_owned() } else { table(options::HEADING, &rows) };
    let _ = write!(text, "\nOptions\n{body}");
    text
}

/// A list of words; `none` for an empty one.
pub fn words(list: &Value) -> String {
    let words: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if words.is_empty() { "none".into() } else { words.join(", ") }
}
