//! A progress bar for long work. Owns when it is shown (standard error is a terminal), and that log lines go above it.

use crate::Logs;
use chrono::Local;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

/// Progress of one piece of work. Invisible where standard error is no terminal; in JSON mode it is a console event at
/// every tenth instead.
#[derive(Debug)]
pub struct Progress {
    logs: Logs,
    desc: String,
    total: u64,
    current: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts at 0 of `total`.
    pub fn start(logs: &Logs, desc: &str, total: u64) -> Self {
        let bar = (!logs.json()).then(|| {
            let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} [{elapsed}<{eta}]");
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(desc.to_string());
            // The shared target draws on standard error, and only if that is a terminal.
            logs.bars().add(bar)
        });
        Progress { logs: logs.clone(), desc: desc.to_string(), total, current: 0, bar }
    }

    /// Sets how much is done.
    pub fn set(&mut self, current: u64) {
        let tenth = |n: u64| (10 * n).checked_div(self.total).unwrap_or(10);
        let crossed = tenth(current) != tenth(self.current);
        self.current = current;
        match &self.bar {
            Some(bar) => bar.set_position(current),
            None if crossed => {
                let percent = if self.total == 0 { 100.0 } else { 100.0 * current as f64 / self.total as f64 };
                let event = json!({
                    "timestamp": Local::now().to_rfc3339(), "type": "progress", "desc": self.desc,
                    "current": current, "total": self.total, "percent": (percent * 10.0).round() / 10.0,
                });
                self.logs.console(&format!("{event}\n"));
            }
            None => {}
        }
    }

    /// Adds to what is done.
    pub fn inc(&mut self, done: u64) {
        self.set(self.current + done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            self.logs.bars().remove(bar);
        }
    }
}
