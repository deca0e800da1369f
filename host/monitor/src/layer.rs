//! Turns `tracing` events into log lines and picks their file. Owns routing and the meaning of three fields; formats
//! nothing.
//!
//! - `success = true` on an info event makes it a SUCCESS line.
//! - `role = "trainer" | "orchestrator" | "inference"` picks that part's file; without it the event's target does.
//! - `logfile = "envs/train/x/env_worker_0.log"` picks a file below `logs/`; such a line is not shown on the console.

use crate::logs::{Level, LogFile, Logs, Record, is_below};
use serde_json::{Map, Value};
use std::fmt::Debug;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::Context;

/// Feeds [`Logs`].
#[derive(Clone, Debug)]
pub struct LogLayer {
    logs: Logs,
}

impl LogLayer {
    pub(crate) fn new(logs: Logs) -> Self {
        LogLayer { logs }
    }

    fn file(&self, role: Option<&str>, target: &str) -> &'static str {
        let crate_name = target.split("::").next().unwrap_or(target);
        let file = match role.unwrap_or(crate_name) {
            "trainer" | "prl_trainer" => LogFile::Trainer,
            "orchestrator" | "prl_orchestrator" | "prl_environment" | "prl_algorithm" => LogFile::Orchestrator,
            "inference" | "prl_inference" => LogFile::Inference,
            _ => self.logs.default_file(),
        };
        file.name()
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let ours = metadata.target().split("::").next().is_some_and(|name| name == "prl" || name.starts_with("prl_"));
        // SUCCESS is known only with the event's fields.
        let wanted = level_of(metadata.level(), true) >= self.logs.level();
        wanted && *metadata.level() <= if ours { tracing::Level::DEBUG } else { tracing::Level::WARN }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.logs.level() {
            Level::Debug => LevelFilter::DEBUG,
            Level::Info | Level::Success => LevelFilter::INFO,
            Level::Warning => LevelFilter::WARN,
            Level::Error => LevelFilter::ERROR,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = level_of(metadata.level(), fields.success);
        if level < self.logs.level() {
            return;
        }
        let record = Record {
            level,
            message: fields.message,
            fields: fields.rest,
            module: metadata.module_path().or(Some(metadata.target())),
            source: metadata.file().zip(metadata.line()),
        };
        match fields.logfile.filter(|name| is_below(name)) {
            Some(name) => self.logs.write(&record, &name, false),
            None => self.logs.write(&record, self.file(fields.role.as_deref(), metadata.target()), true),
        }
    }
}

fn level_of(level: &tracing::Level, success: bool) -> Level {
    match *level {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warning,
        tracing::Level::INFO if success => Level::Success,
        tracing::Level::INFO => Level::Info,
        _ => Level::Debug,
    }
}

/// An event's fields, the ones with a meaning apart.
#[derive(Default)]
struct Fields {
    message: String,
    success: bool,
    role: Option<String>,
    logfile: Option<String>,
    rest: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("success", Value::Bool(flag)) => self.success = flag,
            ("role", Value::String(text)) => self.role = Some(text),
            ("logfile", Value::String(text)) => self.logfile = Some(text),
            (name, value) => {
                self.rest.insert(name.to_string(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field, Value::from(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::from(value));
    }
}
