//! The one import every guest has: its log. Owns rate and length limits and makes lines safe to write; where they go
//! is the sink's business.

use crate::Limits;
use crate::bindings::{wit_log, wit_types};
use crate::limits::Limiter;
use std::sync::Arc;

/// How serious a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Finest.
    Trace,
    /// For the environment's author.
    Debug,
    /// Worth knowing.
    Info,
    /// Worth looking at.
    Warn,
    /// Something failed.
    Error,
}

/// One line of an environment's log. Texts hold no control characters.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// The worker, for `env_worker_<id>.log`.
    pub worker: usize,
    /// The rollout that was being served, if any.
    pub rollout: Option<String>,
    /// How serious.
    pub level: LogLevel,
    /// What it says.
    pub message: String,
    /// Named values.
    pub fields: Vec<(String, String)>,
}

/// Takes the lines, called on the sandbox's threads: must be quick and must not fail.
pub type LogSink = Arc<dyn Fn(LogLine) + Send + Sync>;

/// What an instance's store carries: its limiter and its log.
pub struct State {
    pub limiter: Limiter,
    sink: LogSink,
    worker: usize,
    rollout: Option<String>,
    max_lines: u32,
    max_bytes: usize,
    /// Lines of the current call.
    lines: u32,
    /// The last error line of the current call.
    said: Option<String>,
}

impl State {
    pub fn new(limits: &Limits, worker: usize, sink: LogSink) -> Self {
        State {
            limiter: Limiter::new(limits),
            sink,
            worker,
            rollout: None,
            max_lines: limits.log_lines,
            max_bytes: limits.log_line_bytes,
            lines: 0,
            said: None,
        }
    }

    /// Begins a call on behalf of `rollout`.
    pub fn begin(&mut self, rollout: Option<&str>) {
        self.rollout = rollout.map(str::to_owned);
        self.lines = 0;
        self.said = None;
    }

    /// Ends the call; gives the last error line it wrote.
    pub fn end(&mut self) -> Option<String> {
        if self.lines > self.max_lines {
            let message =
                format!("{} more lines dropped: one call may write {}", self.lines - self.max_lines, self.max_lines);
            self.write(LogLevel::Warn, message, Vec::new());
        }
        self.said.take()
    }

    fn write(&self, level: LogLevel, message: String, fields: Vec<(String, String)>) {
        (self.sink)(LogLine { worker: self.worker, rollout: self.rollout.clone(), level, message, fields });
    }
}

impl wit_types::Host for State {}

impl wit_log::Host for State {
    fn emit(&mut self, level: wit_log::Level, message: String, fields: Vec<(String, String)>) {
        let level = match level {
            wit_log::Level::Trace => LogLevel::Trace,
            wit_log::Level::Debug => LogLevel::Debug,
            wit_log::Level::Info => LogLevel::Info,
            wit_log::Level::Warn => LogLevel::Warn,
            wit_log::Level::Error => LogLevel::Error,
        };
        let mut room = self.max_bytes;
        let message = clean(&message, &mut room);
        if level == LogLevel::Error {
            self.said = Some(message.clone());
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines > self.max_lines {
            return;
        }
        let fields = fields
            .iter()
            .map_while(|(name, value)| (room > 0).then(|| (clean(name, &mut room), clean(value, &mut room))));
        let fields = fields.collect();
        self.write(level, message, fields);
    }
}

/// Escapes control characters and cuts the text where `room` runs out.
fn clean(text: &str, room: &mut usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let before = out.len();
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        let used = out.len() - before;
        if used > *room {
            out.truncate(before);
            out.push('…');
            *room = 0;
            break;
        }
        *room -= used;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_escaped() {
        let mut room = 8;
        assert_eq!(clean("a\nb\u{1b}[", &mut room), "a\\nb…");
        assert_eq!(room, 0);
        let mut room = 100;
        assert_eq!((clean("äö", &mut room), room), ("äö".into(), 96));
    }
}
