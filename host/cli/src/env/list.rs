//! `prl env list`: the environments that a name can lead to. Must not know where names are looked up.

use super::{List, open};
use crate::environments::sandbox;
use crate::failure::{Failure, run as running};
use crate::logging;
use crate::table::{short, table};
use prl_environment::{Grant, LoadConfig, Sandbox};
use serde_json::{Value, json};
use std::path::Path;

/// Runs the command.
pub fn run(asked: &List) -> Result<u8, Failure> {
    let (entries, places) = open::block_on(async {
        let sandbox = sandbox()?;
        let here = std::env::current_dir().map_err(running("the working directory"))?;
        let (names, places) = open::searched(&here, |search| (search.names(), search.folders()));
        let mut entries: Vec<Value> = Vec::new();
        for (name, path) in names {
            entries.push(entry(&sandbox, &name, &path).await);
        }
        Ok((entries, places))
    })?;
    if asked.json {
        return logging::print(&serde_json::to_string_pretty(&entries).map_err(Failure::run)?);
    }
    if entries.is_empty() {
        let places: Vec<String> = places.iter().map(|place| format!("`{}`", place.display())).collect();
        return logging::print(&format!("No environments in {}", places.join(", ")));
    }
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| match entry["error"].as_str() {
            Some(error) => vec![text(entry, "id"), "-".into(), short(error, 70), text(entry, "path")],
            None => {
                let description = short(&text(entry, "description"), 70);
                vec![text(entry, "id"), text(entry, "version"), description, text(entry, "path")]
            }
        })
        .collect();
    logging::print(table(&["NAME", "VERSION", "DESCRIPTION", "FILE"], &rows).trim_end())
}

async fn entry(sandbox: &Sandbox, id: &str, path: &Path) -> Value {
    let config = LoadConfig { grants: Grant::ALL.to_vec(), ..LoadConfig::default() };
    match sandbox.load(path, &config).await {
        Ok(file) => {
            let info = file.info();
            json!({ "id": id, "name": info.name, "version": info.version, "description": info.description,
                    "path": path, "sha256": file.sha256(), "bytes": file.bytes() })
        }
        Err(error) => json!({ "id": id, "path": path, "error": error.to_string() }),
    }
}
