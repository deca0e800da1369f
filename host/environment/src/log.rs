//! The one import every guest has: its log. Owns rate and length limits and makes lines safe to write; where they go
//! is the sink's business.

use crate::Limits;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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

/// The same sink with at most so many lines a second; what is over is counted and told with the next line that passes.
pub fn limited(sink: LogSink, per_second: u32) -> LogSink {
    let window = Mutex::new((Instant::now(), 0u32, 0u64));
    Arc::new(move |line| {
        let dropped = {
            let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
            let (since, lines, dropped) = &mut *window;
            if since.elapsed() >= Duration::from_secs(1) {
                (*since, *lines) = (Instant::now(), 0);
            }
            *lines = lines.saturating_add(1);
            if *lines > per_second {
                *dropped += 1;
                return;
            }
            std::mem::take(dropped)
        };
        if dropped > 0 {
            let message = format!("{dropped} lines dropped: there may be {per_second} a second");
            sink(LogLine { level: LogLevel::Warn, message, fields: Vec::new(), rollout: None, worker: line.worker });
        }
        sink(line);
    })
}

/// The log of one instance: whom it speaks for, and what is left of the current call's lines.
pub struct Log {
    sink: LogSink,
    worker: usize,
    rollout: Option<Arc<str>>,
    max_lines: u32,
    max_bytes: usize,
    /// Lines of the current call.
    lines: u32,
    /// The last error line of the current call.
    said: Option<String>,
}

impl Log {
    pub fn new(limits: &Limits, worker: usize, sink: LogSink) -> Self {
        Log {
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
    pub fn begin(&mut self, rollout: Option<Arc<str>>) {
        self.rollout = rollout;
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

    /// One line of the guest's.
    pub fn emit(&mut self, level: LogLevel, message: &str, fields: &[(String, String)]) {
        let mut room = self.max_bytes;
        let message = clean(message, &mut room);
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

    fn write(&self, level: LogLevel, message: String, fields: Vec<(String, String)>) {
        let rollout = self.rollout.as_deref().map(str::to_owned);
        (self.sink)(LogLine { worker: self.worker, rollout, level, message, fields });
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

    #[test]
    fn lines_a_second_are_bounded() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let sink = limited(Arc::new(move |line: LogLine| kept.lock().unwrap().push(line.message)), 3);
        let line = |text: &str| LogLine {
            worker: 0,
            rollout: None,
            level: LogLevel::Info,
            message: text.into(),
            fields: Vec::new(),
        };
        (0..10).for_each(|i| sink(line(&i.to_string())));
        assert_eq!(*lines.lock().unwrap(), ["0", "1", "2"]);
        std::thread::sleep(Duration::from_millis(1010));
        sink(line("later"));
        assert_eq!(lines.lock().unwrap()[3..], ["7 lines dropped: there may be 3 a second", "later"]);
    }
}
