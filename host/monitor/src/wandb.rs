//! The official offline run file of Weights & Biases, written without its client. Owns the file's framing (a LevelDB
//! log with its own header and checksum) and the few protobuf records it needs; opens no connection.

use crate::error::At;
use crate::{Metrics, MonitorError, Sink};
use chrono::{DateTime, Local};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The client version the records follow, and the oldest that reads them.
const PRODUCER: &[u8] = b"0.31.0";
const OLDEST_READER: &[u8] = b"0.13.0";

/// Field numbers of the client's `Record`.
mod record {
    pub const HISTORY: u32 = 2;
    pub const SUMMARY: u32 = 3;
    pub const METRIC: u32 = 12;
    pub const RUN: u32 = 17;
    pub const EXIT: u32 = 18;
    pub const HEADER: u32 = 21;
    pub const FOOTER: u32 = 22;
}

/// How the run appears in W&B.
#[derive(Clone, Debug, Default)]
pub struct WandbOptions {
    /// Project.
    pub project: String,
    /// Team or user; the client's default when absent.
    pub entity: Option<String>,
    /// Display name.
    pub name: Option<String>,
    /// Group.
    pub group: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Run id of lower-case letters and digits; made up when absent.
    pub id: Option<String>,
    /// The run's effective configuration.
    pub config: Map<String, Value>,
}

/// One offline run, `offline-run-<time>-<id>/run-<id>.wandb`.
#[derive(Debug)]
pub struct Wandb {
    log: RecordLog,
    dir: PathBuf,
    started: DateTime<Local>,
    rows: u64,
    summary: BTreeMap<String, f64>,
}

impl Wandb {
    /// Starts a run under `wandb_dir` (`<output_dir>/wandb`).
    ///
    /// # Errors
    /// The system refuses.
    pub fn create(wandb_dir: &Path, options: &WandbOptions) -> Result<Self, MonitorError> {
        Wandb::create_at(wandb_dir, options, Local::now())
    }

    /// As [`Wandb::create`] with the time the run is said to have started at.
    ///
    /// # Errors
    /// The system refuses.
    pub fn create_at(wandb_dir: &Path, options: &WandbOptions, started: DateTime<Local>) -> Result<Self, MonitorError> {
        let id = options.id.clone().unwrap_or_else(|| run_id(started));
        let dir = wandb_dir.join(format!("offline-run-{}-{id}", started.format("%Y%m%d_%H%M%S")));
        for folder in [dir.join("files"), dir.join("logs")] {
            fs::create_dir_all(&folder).at("create", &folder)?;
        }
        let mut log = RecordLog::create(dir.join(format!("run-{id}.wandb")))?;

        let version = message(|m| {
            bytes(m, 1, PRODUCER);
            bytes(m, 2, OLDEST_READER);
        });
        log.append(record::HEADER, &message(|m| bytes(m, 1, &version)))?;

        let config = message(|m| {
            for (key, value) in &options.config {
                bytes(m, 1, &item(1, key, &value.to_string()));
            }
        });
        let run = message(|m| {
            bytes(m, 1, id.as_bytes());
            optional(m, 2, options.entity.as_deref());
            bytes(m, 3, options.project.as_bytes());
            bytes(m, 4, &config);
            optional(m, 6, options.group.as_deref());
            optional(m, 8, options.name.as_deref());
            for tag in &options.tags {
                bytes(m, 10, tag.as_bytes());
            }
            let time = message(|t| {
                varint(t, 1, started.timestamp().max(0) as u64);
                varint(t, 2, u64::from(started.timestamp_subsec_nanos()));
            });
            bytes(m, 17, &time);
        });
        log.append(record::RUN, &run)?;

        // Charts run over `step`, not over the number of rows.
        let metric = message(|m| {
            bytes(m, 2, b"*");
            bytes(m, 4, b"step");
            bytes(
                m,
                6,
                &message(|o| {
                    varint(o, 1, 1);
                    varint(o, 3, 1);
                }),
            );
        });
        log.append(record::METRIC, &metric)?;
        log.flush()?;
        Ok(Wandb { log, dir, started, rows: 0, summary: BTreeMap::new() })
    }

    /// The run's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// One line on how to upload the run.
    pub fn sync_hint(&self) -> String {
        format!("upload to Weights & Biases with: wandb sync {}", self.dir.display())
    }

    fn seconds(&self) -> f64 {
        (Local::now() - self.started).as_seconds_f64().max(0.0)
    }
}

impl Sink for Wandb {
    fn name(&self) -> &str {
        "W&B offline file"
    }

    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), MonitorError> {
        let runtime = self.seconds();
        let timestamp = self.started.timestamp_micros() as f64 / 1e6 + runtime;
        let row = message(|m| {
            let mut put = |key: &str, value: &str| bytes(m, 1, &item(2, key, value));
            for (name, value) in metrics.iter() {
                put(name, &Value::from(value).to_string());
            }
            put("step", &step.to_string());
            put("_step", &self.rows.to_string());
            put("_timestamp", &Value::from(timestamp).to_string());
            put("_runtime", &Value::from(runtime).to_string());
            bytes(m, 2, &message(|s| varint(s, 1, self.rows)));
        });
        self.log.append(record::HISTORY, &row)?;
        self.log.flush()?;
        self.rows += 1;
        self.summary.extend(metrics.iter().map(|(name, value)| (name.to_string(), value)));
        self.summary.insert("step".into(), step as f64);
        Ok(())
    }

    fn finish(&mut self, exit_code: i32) -> Result<(), MonitorError> {
        let runtime = self.seconds();
        let summary = message(|m| {
            for (name, value) in &self.summary {
                bytes(m, 1, &item(1, name, &Value::from(*value).to_string()));
            }
            bytes(m, 1, &item(1, "_step", &self.rows.saturating_sub(1).to_string()));
            bytes(m, 1, &item(1, "_runtime", &Value::from(runtime).to_string()));
        });
        self.log.append(record::SUMMARY, &summary)?;
        let exit = message(|m| {
            // A negative code would be ten bytes; exit codes are not negative.
            varint(m, 1, exit_code.max(0) as u64);
            varint(m, 2, runtime as u64);
        });
        self.log.append(record::EXIT, &exit)?;
        self.log.append(record::FOOTER, &[])?;
        self.log.flush()
    }
}

/// Eight letters and digits from the time and the process id.
fn run_id(started: DateTime<Local>) -> String {
    let mut state = started.timestamp_nanos_opt().unwrap_or_default() as u64 ^ (u64::from(std::process::id()) << 40);
    let mut id = String::new();
    for _ in 0..8 {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        id.push(char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[((z ^ (z >> 31)) % 36) as usize]));
    }
    id
}

/// The file: a seven-byte header, then records cut into chunks that do not cross 32 KiB blocks. Each chunk has the
/// CRC-32 of its type and data, a 16-bit length, and a type that says whether it is whole, first, middle or last.
#[derive(Debug)]
struct RecordLog {
    path: PathBuf,
    file: BufWriter<File>,
    position: usize,
    records: u64,
}

const BLOCK: usize = 32 * 1024;
const CHUNK_HEADER: usize = 7;
const FILE_HEADER: [u8; 7] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];

impl RecordLog {
    fn create(path: PathBuf) -> Result<Self, MonitorError> {
        let mut file = BufWriter::new(File::create(&path).at("create", &path)?);
        file.write_all(&FILE_HEADER).at("write", &path)?;
        Ok(RecordLog { path, file, position: FILE_HEADER.len(), records: 0 })
    }

    fn append(&mut self, field: u32, body: &[u8]) -> Result<(), MonitorError> {
        self.records += 1;
        let data = message(|m| {
            varint(m, 1, self.records);
            bytes(m, field, body);
        });
        let mut rest = &data[..];
        let mut first = true;
        loop {
            let room = BLOCK - self.position % BLOCK;
            if room < CHUNK_HEADER {
                self.put(&[0; CHUNK_HEADER][..room])?;
                continue;
            }
            let (chunk, next) = rest.split_at(rest.len().min(room - CHUNK_HEADER));
            let kind = match (first, next.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut crc = crc32fast::Hasher::new();
            crc.update(&[kind]);
            crc.update(chunk);
            self.put(&crc.finalize().to_le_bytes())?;
            self.put(&(chunk.len() as u16).to_le_bytes())?;
            self.put(&[kind])?;
            self.put(chunk)?;
            (rest, first) = (next, false);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn put(&mut self, data: &[u8]) -> Result<(), MonitorError> {
        self.position += data.len();
        self.file.write_all(data).at("write", &self.path)
    }

    fn flush(&mut self) -> Result<(), MonitorError> {
        self.file.flush().at("write", &self.path)
    }
}

// Protobuf's wire format: the three shapes used here.

fn message(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    fill(&mut out);
    out
}

fn raw_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint(out: &mut Vec<u8>, field: u32, value: u64) {
    raw_varint(out, u64::from(field) << 3);
    raw_varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    raw_varint(out, u64::from(field) << 3 | 2);
    raw_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn optional(out: &mut Vec<u8>, field: u32, value: Option<&str>) {
    if let Some(value) = value {
        bytes(out, field, value.as_bytes());
    }
}

/// A key with a JSON value; `key_field` is 1 for configuration and summary, 2 for history.
fn item(key_field: u32, key: &str, json: &str) -> Vec<u8> {
    message(|m| {
        bytes(m, key_field, key.as_bytes());
        bytes(m, 16, json.as_bytes());
    })
}
