//! Metrics, `metrics.jsonl` and the fan-out to sinks.

use prl_monitor::{Jsonl, LogFile, LogOptions, Logs, Metrics, Monitor, MonitorError, Sink};
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use tracing_subscriber::layer::SubscriberExt;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Buffer {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn logging(buffer: &Buffer) -> impl tracing::Subscriber + Send + Sync + 'static {
    let options = LogOptions {
        level: prl_monitor::Level::Info,
        json: false,
        dir: None,
        default_file: LogFile::Orchestrator,
        console: Box::new(buffer.clone()),
        colour: false,
    };
    tracing_subscriber::registry().with(Logs::new(options).unwrap().layer())
}

fn jsonl(dir: &Path) -> Jsonl {
    Jsonl::open(&dir.join("metrics.jsonl")).unwrap()
}

fn text(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("metrics.jsonl")).unwrap()
}

#[test]
fn lines_start_with_the_step_and_are_sorted() {
    let dir = tempfile::tempdir().unwrap();
    let mut monitor = Monitor::new(jsonl(dir.path()));
    monitor.log(1, [("loss/mean", 0.25), ("a", 3.0), ("lr", 1e-6)].into_iter().collect());
    monitor.log(2, Metrics::new());
    assert_eq!(text(dir.path()), "{\"step\":1,\"a\":3.0,\"loss/mean\":0.25,\"lr\":1e-6}\n{\"step\":2}\n");
    monitor.finish(0);
    let mut again = jsonl(dir.path());
    again.log(3, &Metrics::new()).unwrap();
    assert_eq!(text(dir.path()).lines().count(), 3, "a resumed run appends");
}

#[test]
fn what_is_not_finite_is_left_out_and_counted() {
    let mut metrics: Metrics = [("a", f64::NAN), ("b", 1.0), ("c", f64::NEG_INFINITY)].into_iter().collect();
    assert_eq!((metrics.skipped(), metrics.get("a"), metrics.get(Metrics::SKIPPED)), (2, None, Some(2.0)));
    metrics.extend([("d", f64::INFINITY), ("b", 2.0)].into_iter().collect());
    assert_eq!((metrics.get(Metrics::SKIPPED), metrics.get("b")), (Some(3.0), Some(2.0)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_line_is_json_with_finite_numbers(values in prop::collection::vec((".{0,8}", any::<f64>()), 0..20)) {
        let dir = tempfile::tempdir().unwrap();
        let metrics: Metrics = values.into_iter().collect();
        jsonl(dir.path()).log(7, &metrics).unwrap();
        let line = text(dir.path());
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap();
        for (name, value) in metrics.iter().filter(|(name, _)| *name != "step") {
            prop_assert_eq!(object[name].as_f64(), Some(value));
        }
    }
}

/// Fails always.
struct Broken(mpsc::Sender<()>);

impl Sink for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn log(&mut self, _: u64, _: &Metrics) -> Result<(), MonitorError> {
        let _ = self.0.send(());
        Err(MonitorError::Sink("out of order".into()))
    }

    fn finish(&mut self, _: i32) -> Result<(), MonitorError> {
        Err(MonitorError::Sink("still out of order".into()))
    }
}

#[test]
fn a_failing_sink_warns_once_and_the_rest_goes_on() {
    let (dir, buffer) = (tempfile::tempdir().unwrap(), Buffer::default());
    let (calls, called) = mpsc::channel();
    // Sinks run on their own threads, so the subscriber has to be the process's.
    tracing::subscriber::set_global_default(logging(&buffer)).unwrap();
    let mut monitor = Monitor::new(jsonl(dir.path()));
    monitor.add(Broken(calls)).unwrap();
    for step in 1..=5 {
        monitor.log(step, Metrics::new());
    }
    monitor.finish(0);
    assert_eq!(called.iter().count(), 5, "it is tried again every time");
    assert_eq!(text(dir.path()).lines().count(), 5);
    let warnings = buffer.text();
    assert_eq!(warnings.matches("WARNING broken").count(), 1, "{warnings}");
    assert!(warnings.contains("out of order"));
}

/// Blocks until told.
struct Stuck(mpsc::Receiver<()>);

impl Sink for Stuck {
    fn name(&self) -> &str {
        "stuck"
    }

    fn log(&mut self, _: u64, _: &Metrics) -> Result<(), MonitorError> {
        let _ = self.0.recv();
        Ok(())
    }

    fn finish(&mut self, _: i32) -> Result<(), MonitorError> {
        Ok(())
    }
}

#[test]
fn a_blocked_sink_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let (release, stuck) = mpsc::channel();
    let mut monitor = Monitor::new(jsonl(dir.path()));
    monitor.add(Stuck(stuck)).unwrap();
    // More than the backlog: the last ones are dropped for the blocked sink, and only for it.
    for step in 1..=3000 {
        monitor.log(step, Metrics::new());
    }
    assert_eq!(text(dir.path()).lines().count(), 3000);
    drop(release);
    monitor.finish(0);
}

#[test]
fn lost_metrics_are_remembered_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut monitor = Monitor::new(jsonl(dir.path()));
    monitor.log(1, Metrics::new());
    assert_eq!(monitor.lost(), None);
    monitor.finish(0);

    let full = Path::new("/dev/full");
    if !full.exists() {
        eprintln!("skipped: there is no /dev/full");
        return;
    }
    let mut monitor = Monitor::new(Jsonl::open(full).unwrap());
    monitor.log(1, Metrics::new());
    monitor.log(2, Metrics::new());
    let lost = monitor.lost().unwrap();
    assert!(lost.contains("cannot write /dev/full"), "{lost}");
}
