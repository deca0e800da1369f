//! `prl env inspect`: what an environment is, wants and gives. Owns the report and its two forms.

use super::open::{Opened, Purpose};
use super::{Inspect, open};
use crate::failure::Failure;
use crate::logging;
use crate::options;
use crate::table::{short, table};
use prl_environment::{EnvInfo, Grant, Isolation};
use prl_types::ToolDef;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Everything found, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    info: EnvInfo,
    path: PathBuf,
    /// The address at which it runs outside the sandbox; bytes and digest are then those of what stands for it.
    unsandboxed: Option<String>,
    bytes: u64,
    sha256: String,
    contract: String,
    imports: Vec<Import>,
    /// Tools of the first task; `None` where it could not be made.
    tools: Option<Vec<ToolDef>>,
    /// Why it does not start under its arguments.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Import {
    name: String,
    /// `always`, `grant` or `denied`.
    kind: &'static str,
    grant: Option<&'static str>,
}

impl Import {
    fn of(name: &str) -> Self {
        let interface = name.strip_prefix("prl:env/").and_then(|rest| rest.split('@').next());
        let grant = interface.and_then(Grant::of).map(Grant::name);
        let kind = match (interface, grant) {
            (None, _) => "denied",
            (Some(_), Some(_)) => "grant",
            (Some(_), None) => "always",
        };
        Import { name: name.to_owned(), kind, grant }
    }

    fn meaning(&self) -> String {
        match (self.kind, self.grant) {
            (_, Some(grant)) => format!("asked for; a run must grant it: grants = [\"{grant}\"]"),
            ("denied", _) => "denied: links to answers that are the same everywhere and reach nothing".into(),
            _ => "always there".into(),
        }
    }
}

/// Runs the command.
pub fn run(asked: &Inspect) -> Result<u8, Failure> {
    let report = open::block_on(async {
        let opened = Opened::load(&asked.asked, Purpose::Look).await?;
        let file = opened.file.clone();
        let (info, tools, problem) = match opened.start_with(opened.args.clone(), Isolation::Rollout, 1).await {
            Ok(pool) => {
                let split = open::split(&pool, None)?;
                match pool.task(&split, 0, 0).await {
                    Ok(task) => (pool.info().clone(), Some(task.tools), None),
                    Err(error) => (pool.info().clone(), None, Some(error.to_string())),
                }
            }
            // Arguments that were asked for are the user's; that it does not start without any is worth knowing.
            Err(error) if asked.asked.args != "{}" => return Err(Failure::input(error)),
            Err(error) => (file.info().clone(), None, Some(error.to_string())),
        };
        Ok(Report {
            info,
            path: file.path().to_owned(),
            unsandboxed: file.unsandboxed().map(str::to_owned),
            bytes: file.bytes(),
            sha256: file.sha256().to_owned(),
            contract: file.contract_version().to_owned(),
            imports: file.imports().iter().map(|name| Import::of(name)).collect(),
            tools,
            problem,
        })
    })?;
    match asked.json {
        true => logging::print(&serde_json::to_string_pretty(&report).map_err(Failure::run)?),
        false => logging::print(render(&report).trim_end()),
    }
}

fn render(report: &Report) -> String {
    let info = &report.info;
    let mut text = format!("{} {}\n  {}\n", info.name, info.version, info.description);
    let mut fact = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<10} {value}");
    };
    match &report.unsandboxed {
        Some(url) => fact("sandbox", &format!("none: it runs outside the sandbox at {url}")),
        None => {
            fact("file", &report.path.display().to_string());
            fact("size", &format!("{} bytes", report.bytes));
            fact("digest", &format!("sha256:{}", report.sha256));
        }
    }
    fact("contract", &format!("prl:env {}", report.contract));
    fact("features", &features(info));
    let size = |size: Option<u64>| size.map_or_else(|| "without end".to_owned(), |size| format!("{size} tasks"));
    let splits: Vec<String> = info.splits.iter().map(|s| format!("{} ({})", s.name, size(s.size))).collect();
    fact("splits", &splits.join(", "));
    for (name, list) in [("metrics", &info.metrics), ("roles", &info.roles), ("tags", &info.tags)] {
        if !list.is_empty() {
            fact(name, &list.join(", "));
        }
    }
    if let Some(problem) = &report.problem {
        fact("problem", problem);
    }
    let mut section = |name: &str, heading: &[&str], rows: Vec<Vec<String>>| {
        let body = if rows.is_empty() { "  none\n".to_owned() } else { table(heading, &rows) };
        let _ = write!(text, "\n{name}\n{body}");
    };
    if report.unsandboxed.is_none() {
        let (denied, open): (Vec<&Import>, _) = report.imports.iter().partition(|import| import.kind == "denied");
        let mut rows: Vec<_> = open.iter().map(|import| vec![import.name.clone(), import.meaning()]).collect();
        if let Some(first) = denied.first() {
            let others = denied.len() - 1;
            let name = if others == 0 { first.name.clone() } else { format!("{} and {others} like it", first.name) };
            rows.push(vec![name, first.meaning()]);
        }
        section("Imports", &["INTERFACE", ""], rows);
    }
    section("Arguments", options::HEADING, options::rows(&info.args_schema));
    let lines =
        info.components.iter().map(|line| vec![line.name.clone(), line.weight.to_string(), line.description.clone()]);
    section("Reward", &["COMPONENT", "WEIGHT", "MEANING"], lines.collect());
    if info.features.tools {
        let tools = report.tools.iter().flatten();
        let rows = tools.map(|tool| vec![tool.name.clone(), parameters(tool), short(&tool.description, 80)]);
        section("Tools of the first task", &["TOOL", "PARAMETERS", "MEANING"], rows.collect());
    }
    text
}

fn features(info: &EnvInfo) -> String {
    let features = info.features;
    let words = [
        Some(if features.multi_turn { "multi turn" } else { "single turn" }),
        features.tools.then_some("tools"),
        features.group_scoring.then_some("group scoring"),
        Some(if features.deterministic { "deterministic" } else { "not deterministic" }),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn parameters(tool: &ToolDef) -> String {
    let properties = tool.parameters["properties"].as_object();
    properties.map(|map| map.keys().cloned().collect::<Vec<_>>().join(", ")).unwrap_or_default()
}
