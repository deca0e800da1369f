//! Where log lines go: the console and the files under `logs/`. Owns their format, colours, open files and the console
//! that a progress bar shares; knows no events (that is the layer's business).

use crate::MonitorError;
use crate::error::At;
use crate::layer::LogLayer;
use chrono::{DateTime, Local, SecondsFormat};
use indicatif::MultiProgress;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{IsTerminal, Write};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing_subscriber::layer::SubscriberExt;

/// Lines at most that wait for a log folder.
const EARLY: usize = 10_000;

/// Open files at most; the oldest is closed and opened again when needed.
const OPEN_FILES: usize = 64;

/// How important a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For finding faults.
    Debug,
    /// What goes on.
    Info,
    /// A step or a run has been completed: an info event with the field `success = true`.
    Success,
    /// Something is not as it should be; the run goes on.
    Warning,
    /// Something failed.
    Error,
}

impl Level {
    /// As it is printed.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "DEBUG",
            Level::Info => "INFO",
            Level::Success => "SUCCESS",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Level::Debug => "\x1b[34m",
            Level::Info => "\x1b[36m",
            Level::Success => "\x1b[32m",
            Level::Warning => "\x1b[33m",
            Level::Error => "\x1b[31m",
        }
    }
}

impl FromStr for Level {
    type Err = MonitorError;

    fn from_str(name: &str) -> Result<Self, MonitorError> {
        match name.to_ascii_lowercase().as_str() {
            "debug" | "trace" => Ok(Level::Debug),
            "info" => Ok(Level::Info),
            "success" => Ok(Level::Success),
            "warning" | "warn" => Ok(Level::Warning),
            "error" | "critical" => Ok(Level::Error),
            _ => Err(MonitorError::Level { name: name.to_string() }),
        }
    }
}

/// The log file of a part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFile {
    /// `trainer.log`.
    Trainer,
    /// `orchestrator.log`.
    Orchestrator,
    /// `inference.log`.
    Inference,
}

impl LogFile {
    /// Its name below `logs/`.
    pub fn name(self) -> &'static str {
        match self {
            LogFile::Trainer => "trainer.log",
            LogFile::Orchestrator => "orchestrator.log",
            LogFile::Inference => "inference.log",
        }
    }
}

/// Log file of an environment's worker, for an event's `logfile` field: `envs/train/<env>/env_worker_<id>.log`.
pub fn env_worker_log(split: &str, env: &str, worker: usize) -> String {
    format!("envs/{}/{}/env_worker_{worker}.log", file_name(split), file_name(env))
}

/// Log file of an environment as a whole, for an event's `logfile` field: `envs/train/<env>/env_server.log`.
pub fn env_server_log(split: &str, env: &str) -> String {
    format!("envs/{}/{}/env_server.log", file_name(split), file_name(env))
}

/// A name as one path component.
fn file_name(name: &str) -> String {
    let name: String = name.chars().map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c }).collect();
    if name.trim_matches('.').is_empty() { "_".into() } else { name }
}

/// How to log.
pub struct LogOptions {
    /// Lines below this level are dropped.
    pub level: Level,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// The `logs/` folder; no files when absent.
    pub dir: Option<PathBuf>,
    /// Where events go that name no file and come from no part with a file of its own.
    pub default_file: LogFile,
    /// The console.
    pub console: Box<dyn Write + Send>,
    /// Colours on the console.
    pub colour: bool,
}

impl LogOptions {
    /// Text on standard output, coloured if it is a terminal, no files.
    pub fn stdout(level: Level, default_file: LogFile) -> Self {
        let stdout = std::io::stdout();
        let colour = stdout.is_terminal();
        LogOptions { level, json: false, dir: None, default_file, console: Box::new(stdout), colour }
    }
}

impl std::fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogOptions").field("level", &self.level).field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// The console and the log files of a process. Clones share them.
#[derive(Clone)]
pub struct Logs {
    shared: Arc<Shared>,
}

struct Shared {
    level: Level,
    json: bool,
    colour: bool,
    default_file: LogFile,
    bars: MultiProgress,
    out: Mutex<Out>,
}

struct Out {
    console: Box<dyn Write + Send>,
    dir: Option<PathBuf>,
    /// Lines from before there was a folder, each with its file.
    early: Vec<(String, String)>,
    files: BTreeMap<String, (u64, File)>,
    uses: u64,
    warned: bool,
}

/// One line before it is formatted.
pub(crate) struct Record<'a> {
    pub level: Level,
    pub message: String,
    pub fields: Map<String, Value>,
    pub module: Option<&'a str>,
    pub source: Option<(&'a str, u32)>,
}

impl Logs {
    /// Logs that no subscriber feeds yet; [`Logs::layer`] makes what does.
    ///
    /// # Errors
    /// The `logs/` folder cannot be created.
    pub fn new(options: LogOptions) -> Result<Self, MonitorError> {
        if let Some(dir) = &options.dir {
            fs::create_dir_all(dir).at("create", dir)?;
        }
        let out = Out {
            console: options.console,
            dir: options.dir,
            early: Vec::new(),
            files: BTreeMap::new(),
            uses: 0,
            warned: false,
        };
        Ok(Logs {
            shared: Arc::new(Shared {
                level: options.level,
                json: options.json,
                colour: options.colour,
                default_file: options.default_file,
                bars: MultiProgress::new(),
                out: Mutex::new(out),
            }),
        })
    }

    /// Makes these logs the process's: every `tracing` event goes there.
    ///
    /// # Errors
    /// The folder cannot be created, or the process logs elsewhere already.
    pub fn install(options: LogOptions) -> Result<Self, MonitorError> {
        let logs = Logs::new(options)?;
        let subscriber = tracing_subscriber::registry().with(logs.layer());
        tracing::subscriber::set_global_default(subscriber).map_err(|_| MonitorError::Installed)?;
        Ok(logs)
    }

    /// The layer that feeds these logs.
    pub fn layer(&self) -> LogLayer {
        LogLayer::new(self.clone())
    }

    /// From now on also writes files, below `dir`, beginning with the lines of before. For a process that logs before it
    /// knows its run directory.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn set_dir(&self, dir: &Path) -> Result<(), MonitorError> {
        fs::create_dir_all(dir).at("create", dir)?;
        let mut out = self.out();
        out.dir = Some(dir.to_path_buf());
        out.files.clear();
        for (file, line) in std::mem::take(&mut out.early) {
            out.append(&file, &line);
        }
        Ok(())
    }

    pub(crate) fn level(&self) -> Level {
        self.shared.level
    }

    pub(crate) fn default_file(&self) -> LogFile {
        self.shared.default_file
    }

    pub(crate) fn json(&self) -> bool {
        self.shared.json
    }

    pub(crate) fn bars(&self) -> &MultiProgress {
        &self.shared.bars
    }

    /// Writes a line to a file below the log folder, and to the console if `console`.
    pub(crate) fn write(&self, record: &Record, file: &str, console: bool) {
        let now = Local::now();
        let plain = if self.shared.json { self.json_line(record, now) } else { self.text_line(record, now, false) };
        self.out().append(file, &plain);
        if console {
            let coloured = self.shared.colour && !self.shared.json;
            self.console(&if coloured { self.text_line(record, now, true) } else { plain });
        }
    }

    /// Writes to the console above any progress bar.
    pub(crate) fn console(&self, line: &str) {
        self.shared.bars.suspend(|| {
            let mut out = self.out();
            // A console that is gone (a closed pipe) must not stop the run.
            let _ = out.console.write_all(line.as_bytes()).and_then(|()| out.console.flush());
        });
    }

    fn text_line(&self, record: &Record, now: DateTime<Local>, colour: bool) -> String {
        let time = now.format("%H:%M:%S");
        let level = record.level.as_str();
        let mut line = if colour {
            format!("\x1b[2m{time}\x1b[0m {}{level:>7}\x1b[0m {}", record.level.colour(), record.message)
        } else {
            format!("{time} {level:>7} {}", record.message)
        };
        for (key, value) in &record.fields {
            match value {
                Value::String(text) => line.push_str(&format!(" {key}={text}")),
                other => line.push_str(&format!(" {key}={other}")),
            }
        }
        if let (Level::Debug, Some((file, at))) = (self.shared.level, record.source) {
            line.push_str(&format!(" [{file}::{at}]"));
        }
        line.push('\n');
        line
    }

    fn json_line(&self, record: &Record, now: DateTime<Local>) -> String {
        let mut object = json!({
            "timestamp": now.to_rfc3339_opts(SecondsFormat::Millis, false),
            "level": record.level.as_str(),
            "message": record.message,
            "module": record.module,
            "function": null,
            "line": record.source.map(|(_, line)| line),
        });
        if !record.fields.is_empty() {
            object["extra"] = Value::Object(record.fields.clone());
        }
        format!("{object}\n")
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.shared.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("level", &self.shared.level).finish_non_exhaustive()
    }
}

impl Out {
    fn append(&mut self, name: &str, line: &str) {
        let Some(dir) = self.dir.clone() else {
            if self.early.len() < EARLY {
                self.early.push((name.to_owned(), line.to_owned()));
            }
            return;
        };
        let result = self.file(&dir, name).and_then(|(path, file)| file.write_all(line.as_bytes()).at("write", &path));
        if let Err(e) = result
            && !std::mem::replace(&mut self.warned, true)
        {
            let _ = writeln!(self.console, "{e}; log files are incomplete, the run goes on");
        }
    }

    fn file(&mut self, dir: &Path, name: &str) -> Result<(PathBuf, &mut File), MonitorError> {
        self.uses += 1;
        let path = dir.join(name);
        if !self.files.contains_key(name) {
            if self.files.len() >= OPEN_FILES
                && let Some(oldest) = self.files.iter().min_by_key(|(_, (used, _))| *used).map(|(name, _)| name.clone())
            {
                self.files.remove(&oldest);
            }
            let parent = path.parent().unwrap_or(dir);
            fs::create_dir_all(parent).at("create", parent)?;
            let file = File::options().create(true).append(true).open(&path).at("open", &path)?;
            self.files.insert(name.to_string(), (self.uses, file));
        }
        match self.files.get_mut(name) {
            Some((used, file)) => {
                *used = self.uses;
                Ok((path, file))
            }
            None => Err(std::io::Error::other("closed")).at("open", &path),
        }
    }
}

/// Whether a `logfile` field stays below the log folder.
pub(crate) fn is_below(name: &str) -> bool {
    !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)))
}
