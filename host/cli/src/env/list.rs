//! `prl env list`: the environments that a name can lead to. Owns the order of places, which is that of runs.

use super::{List, open};
use crate::environments::sandbox;
use crate::failure::Failure;
use crate::logging;
use crate::table::{short, table};
use prl_environment::{Grant, LoadConfig, Sandbox};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Runs the command.
pub fn run(asked: &List) -> Result<u8, Failure> {
    let (entries, places) = open::block_on(async {
        let sandbox = sandbox()?;
        let places = places();
        let mut entries: Vec<Value> = Vec::new();
        for place in &places {
            // A place that is not there holds nothing.
            for path in open::components(place).unwrap_or_default() {
                let entry = entry(&sandbox, &path).await;
                if !entries.iter().any(|known| known["id"] == entry["id"]) {
                    entries.push(entry);
                }
            }
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

/// The working directory, the folders of `PRL_ENV_PATH`, and `envs` beside the binary and above it.
fn places() -> Vec<PathBuf> {
    let mut places = vec![std::env::current_dir().unwrap_or_default()];
    let path = std::env::var_os("PRL_ENV_PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()));
    let binary = std::env::current_exe().unwrap_or_default();
    places.extend(binary.ancestors().skip(1).map(|dir| dir.join("envs")).filter(|dir| dir.is_dir()));
    places
}

async fn entry(sandbox: &Sandbox, path: &Path) -> Value {
    let config = LoadConfig { grants: Grant::ALL.to_vec(), ..LoadConfig::default() };
    let id = open::name_of(path);
    match sandbox.load(path, &config).await {
        Ok(file) => {
            let info = file.info();
            json!({ "id": id, "name": info.name, "version": info.version, "description": info.description,
                    "path": path, "sha256": file.sha256(), "bytes": file.bytes() })
        }
        Err(error) => json!({ "id": id, "path": path, "error": error.to_string() }),
    }
}
