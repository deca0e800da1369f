//! `prl algo list`: the algorithms that a name can lead to. Must not know where names are looked up.

use super::{List, open};
use crate::failure::Failure;
use crate::logging;
use crate::table::{short, table};
use serde_json::{Value, json};

/// Runs the command.
pub fn run(asked: &List) -> Result<u8, Failure> {
    let registry = open::registry(asked.plugins.clone())?;
    let mut entries: Vec<Value> = Vec::new();
    for found in registry.found() {
        let about = &found.metadata;
        entries.push(json!({ "name": about.name, "version": about.version, "abi": about.abi, "hooks": about.hooks,
                             "action_loss": about.action_loss, "path": found.path.display().to_string() }));
    }
    for (path, error) in registry.broken() {
        entries.push(json!({ "path": path.display().to_string(), "error": error.to_string() }));
    }
    if asked.json {
        return logging::print(&serde_json::to_string_pretty(&entries).map_err(Failure::run)?);
    }
    if entries.is_empty() {
        let places: Vec<String> = registry.searched().iter().map(|place| format!("`{}`", place.display())).collect();
        return logging::print(&format!("No algorithms in {}", places.join(", ")));
    }
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    logging::print(table(&["NAME", "VERSION", "ABI", "HOOKS", "FILE"], &rows).trim_end())
}

fn row(entry: &Value) -> Vec<String> {
    let text = |key: &str| entry[key].as_str().unwrap_or("-").to_owned();
    let what = match entry["error"].as_str() {
        Some(error) => short(error, 100),
        None => super::inspect::words(&entry["hooks"]),
    };
    vec![text("name"), text("version"), text("abi"), what, text("path")]
}
