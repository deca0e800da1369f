//! `metrics.jsonl`: one object a line, the step first, then the metrics by name. Owns that file's format.

use crate::error::At;
use crate::{Metrics, MonitorError, Sink};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Appends to `metrics.jsonl`; every line is in the system's hands when [`Sink::log`] returns.
#[derive(Debug)]
pub struct Jsonl {
    path: PathBuf,
    file: File,
}

impl Jsonl {
    /// Opens the file for appending.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(path: &Path) -> Result<Self, MonitorError> {
        let file = File::options().create(true).append(true).open(path).at("open", path)?;
        Ok(Jsonl { path: path.to_path_buf(), file })
    }
}

impl Sink for Jsonl {
    fn name(&self) -> &str {
        "metrics.jsonl"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), MonitorError> {
        let mut object = Map::new();
        object.insert("step".into(), Value::from(step));
        object.extend(metrics.iter().map(|(name, value)| (name.to_string(), Value::from(value))));
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        let before = self.file.metadata().map(|meta| meta.len());
        let written = self.file.write_all(line.as_bytes());
        if let (Err(_), Ok(len)) = (&written, before) {
            // A part of a line would spoil the next one. If it cannot be taken back, the error below says enough.
            let _ = self.file.set_len(len);
        }
        written.at("write", &self.path)
    }

    fn finish(&mut self, _exit_code: i32) -> Result<(), MonitorError> {
        self.file.sync_all().at("sync", &self.path)
    }
}
