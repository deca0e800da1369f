//! Hands metrics to every sink. Owns the promise that no sink slows or stops the run; knows no format.

use crate::{Jsonl, Metrics, MonitorError};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

/// Metric lines a slow sink may lag behind before lines are dropped for it.
const BACKLOG: usize = 1024;
/// How long [`Monitor::finish`] waits for a sink.
const PATIENCE: Duration = Duration::from_secs(3);

/// A place metrics go to.
pub trait Sink: Send {
    /// Its name in warnings.
    fn name(&self) -> &str;

    /// Takes the metrics of a step. A step may come more than once, from different parts of the run.
    ///
    /// # Errors
    /// Whatever keeps it from doing so; the run goes on.
    fn log(&mut self, step: u64, metrics: &Metrics) -> Result<(), MonitorError>;

    /// The run has ended.
    ///
    /// # Errors
    /// Whatever keeps it from finishing.
    fn finish(&mut self, exit_code: i32) -> Result<(), MonitorError>;
}

enum Order {
    Log(u64, Arc<Metrics>),
    Finish(i32),
}

/// A sink on its own thread.
struct Remote {
    name: String,
    orders: SyncSender<Order>,
    done: Receiver<()>,
    dropped: bool,
}

/// All sinks of a run: `metrics.jsonl` is written at once, every other sink by a thread of its own.
pub struct Monitor {
    local: Guarded<Jsonl>,
    remotes: Vec<Remote>,
}

impl Monitor {
    /// A monitor that writes `metrics.jsonl` only.
    pub fn new(jsonl: Jsonl) -> Self {
        Monitor { local: Guarded { sink: jsonl, failed: None }, remotes: Vec::new() }
    }

    /// Adds a sink.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn add(&mut self, sink: impl Sink + 'static) -> Result<(), MonitorError> {
        let name = sink.name().to_string();
        let (orders, inbox) = mpsc::sync_channel(BACKLOG);
        let (report, done) = mpsc::channel();
        let mut sink = Guarded { sink, failed: None };
        let work = move || {
            for order in inbox {
                match order {
                    Order::Log(step, metrics) => sink.log(step, &metrics),
                    Order::Finish(exit_code) => {
                        sink.finish(exit_code);
                        break;
                    }
                }
            }
            // The monitor may have given up on this sink.
            let _ = report.send(());
        };
        std::thread::Builder::new()
            .name(format!("sink {name}"))
            .spawn(work)
            .map_err(|e| MonitorError::Sink(format!("no thread for {name}: {e}")))?;
        self.remotes.push(Remote { name, orders, done, dropped: false });
        Ok(())
    }

    /// Gives the metrics of a step to every sink. Never waits for one, never fails.
    pub fn log(&mut self, step: u64, metrics: Metrics) {
        self.local.log(step, &metrics);
        let metrics = Arc::new(metrics);
        for remote in &mut self.remotes {
            let sent = remote.orders.try_send(Order::Log(step, Arc::clone(&metrics)));
            if sent.is_err() && !remote.dropped {
                remote.dropped = true;
                let why = if matches!(sent, Err(TrySendError::Full(_))) { "cannot keep up" } else { "has died" };
                tracing::warn!("{} {why}: metrics are missing there from step {step} on", remote.name);
            }
        }
    }

    /// Why `metrics.jsonl` lacks lines, if it does: the run went on, and whoever starts it should know at its end.
    pub fn lost(&self) -> Option<String> {
        self.local.failed.clone()
    }

    /// Ends every sink; one that does not answer within seconds is left behind with a warning.
    pub fn finish(mut self, exit_code: i32) {
        self.local.finish(exit_code);
        for remote in self.remotes.drain(..) {
            let Remote { name, orders, done, .. } = remote;
            let full = orders.try_send(Order::Finish(exit_code)).is_err();
            drop(orders);
            if full || done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("{name} did not finish in time and may be incomplete");
            }
        }
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.remotes.iter().map(|r| r.name.as_str()).collect();
        f.debug_struct("Monitor").field("remotes", &names).finish_non_exhaustive()
    }
}

/// Turns a sink's errors into one warning.
struct Guarded<S> {
    sink: S,
    /// The first error.
    failed: Option<String>,
}

impl<S: Sink> Guarded<S> {
    fn log(&mut self, step: u64, metrics: &Metrics) {
        let result = self.sink.log(step, metrics);
        self.check(result);
    }

    fn finish(&mut self, exit_code: i32) {
        let result = self.sink.finish(exit_code);
        self.check(result);
    }

    fn check(&mut self, result: Result<(), MonitorError>) {
        if let Err(e) = result
            && self.failed.is_none()
        {
            tracing::warn!("{} fails and is tried again silently; the run goes on: {e}", self.sink.name());
            self.failed = Some(e.to_string());
        }
    }
}
