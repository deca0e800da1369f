//! Log lines: format, levels, files, fields.

use prl_monitor::{Level, LogFile, LogOptions, Logs, MonitorError, Progress, env_server_log, env_worker_log};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tracing::{debug, error, info, warn};
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

struct Run {
    dir: tempfile::TempDir,
    console: Buffer,
    logs: Logs,
}

impl Run {
    fn new(level: Level, json: bool, colour: bool) -> Self {
        let (dir, console) = (tempfile::tempdir().unwrap(), Buffer::default());
        let logs = Logs::new(LogOptions {
            level,
            json,
            dir: Some(dir.path().join("logs")),
            default_file: LogFile::Orchestrator,
            console: Box::new(console.clone()),
            colour,
        })
        .unwrap();
        Run { dir, console, logs }
    }

    fn log(&self, events: impl FnOnce()) {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(self.logs.layer()), events);
    }

    fn console(&self) -> String {
        String::from_utf8(self.console.0.lock().unwrap().clone()).unwrap()
    }

    /// Lines of a log file without the time.
    fn file(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("logs").join(name)).unwrap_or_default();
        text.lines().map(|line| line.get(9..).unwrap_or_default().to_string()).collect()
    }
}

#[test]
fn a_line_is_time_level_message() {
    let run = Run::new(Level::Info, false, false);
    run.log(|| {
        debug!(target: "prl", "hidden");
        info!(target: "prl", "plain");
        info!(target: "prl", success = true, "done");
        warn!(target: "prl", path = "x y", n = 3, "careful");
        error!(target: "prl", "broken");
    });
    let console = run.console();
    let first = console.lines().next().unwrap();
    let shape: String = first[..9].chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(shape, "00:00:00 ");
    let lines: Vec<&str> = console.lines().map(|line| &line[9..]).collect();
    assert_eq!(lines, ["   INFO plain", "SUCCESS done", "WARNING careful path=x y n=3", "  ERROR broken"]);
    assert_eq!(run.file("orchestrator.log"), lines);
}

#[test]
fn colours_are_on_the_console_only() {
    let run = Run::new(Level::Info, false, true);
    run.log(|| info!(target: "prl", success = true, "done"));
    let console = run.console();
    assert!(console.starts_with("\x1b[2m") && console.contains("\x1b[32mSUCCESS\x1b[0m done\n"), "{console:?}");
    assert_eq!(run.file("orchestrator.log"), ["SUCCESS done"]);
}

#[test]
fn success_is_a_level_between_info_and_warning() {
    let run = Run::new(Level::Success, false, false);
    run.log(|| {
        info!(target: "prl", "hidden");
        info!(target: "prl", success = true, "shown");
    });
    assert!(run.console().contains("shown") && !run.console().contains("hidden"));
    let run = Run::new(Level::Warning, false, false);
    run.log(|| info!(target: "prl", success = true, "hidden"));
    assert!(run.console().is_empty());
    assert!(matches!("loud".parse::<Level>(), Err(MonitorError::Level { .. })));
    assert_eq!("Warning".parse::<Level>().unwrap(), Level::Warning);
}

#[test]
fn at_debug_lines_say_where_they_come_from_and_other_crates_stay_quiet() {
    let run = Run::new(Level::Debug, false, false);
    run.log(|| {
        debug!(target: "prl_trainer::step", "micro");
        debug!(target: "wasmtime", "noise");
        info!(target: "prletariat", "noise");
        warn!(target: "wasmtime", "trouble");
    });
    let console = run.console();
    assert!(console.contains("  DEBUG micro [") && console.contains("tests/logs.rs::"), "{console}");
    assert!(console.contains("trouble") && !console.contains("noise"));
}

#[test]
fn each_part_has_its_file_and_environments_stay_off_the_console() {
    let run = Run::new(Level::Info, false, false);
    run.log(|| {
        info!(target: "prl_trainer::rl", "t");
        info!(target: "prl_inference", "i");
        info!(target: "prl_orchestrator", "o");
        info!(target: "prl", role = "trainer", "t2");
        let worker = env_worker_log("train", "reverse-text", 3);
        info!(target: "prl_environment", logfile = %worker, "w");
        info!(target: "prl_environment", logfile = env_server_log("eval", "a/../b").as_str(), "s");
        info!(target: "prl", logfile = "../outside.log", "kept inside");
    });
    assert_eq!(run.file("trainer.log"), ["   INFO t", "   INFO t2"]);
    assert_eq!(run.file("inference.log"), ["   INFO i"]);
    assert_eq!(run.file("orchestrator.log"), ["   INFO o", "   INFO kept inside"]);
    assert_eq!(run.file("envs/train/reverse-text/env_worker_3.log"), ["   INFO w"]);
    assert_eq!(run.file("envs/eval/a_.._b/env_server.log"), ["   INFO s"]);
    assert!(!run.dir.path().join("outside.log").exists());
    assert_eq!(run.console().lines().count(), 5);
}

#[test]
fn hundreds_of_files_need_few_handles() {
    let run = Run::new(Level::Info, false, false);
    run.log(|| {
        for round in 0..2 {
            for worker in 0..200 {
                info!(target: "prl_environment", logfile = env_worker_log("train", "e", worker).as_str(), "{round}");
            }
        }
    });
    for worker in [0, 100, 199] {
        assert_eq!(run.file(&format!("envs/train/e/env_worker_{worker}.log")), ["   INFO 0", "   INFO 1"]);
    }
}

#[test]
fn json_lines_have_the_agreed_keys() {
    let run = Run::new(Level::Info, true, true);
    run.log(|| info!(target: "prl_trainer", success = true, n = 3, "done \"x\""));
    let line: serde_json::Value = serde_json::from_str(&run.console()).unwrap();
    assert_eq!(line["level"], "SUCCESS");
    assert_eq!(line["message"], "done \"x\"");
    assert_eq!(line["extra"]["n"], 3);
    assert!(line["line"].is_u64() && line["timestamp"].is_string() && line["module"].is_string());
    let mut progress = Progress::start(&run.logs, "work", 100);
    (0..100).for_each(|_| progress.inc(1));
    let console = run.console();
    let events: Vec<serde_json::Value> =
        console.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 10);
    assert_eq!(
        (&events[4]["type"], &events[4]["current"], &events[4]["percent"]),
        (&"progress".into(), &50.into(), &50.0.into())
    );
}

#[test]
fn a_bar_writes_nothing_where_there_is_no_terminal() {
    let run = Run::new(Level::Info, false, false);
    let mut progress = Progress::start(&run.logs, "work", 10);
    progress.inc(5);
    run.log(|| info!(target: "prl", "line"));
    drop(progress);
    assert_eq!(run.console().lines().count(), 1);
}

#[test]
fn files_can_begin_later_and_a_broken_folder_is_told_once() {
    let console = Buffer::default();
    let options =
        LogOptions { console: Box::new(console.clone()), ..LogOptions::stdout(Level::Info, LogFile::Trainer) };
    let logs = Logs::new(options).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let events = |n: u32| {
        tracing::subscriber::with_default(tracing_subscriber::registry().with(logs.layer()), || {
            info!(target: "prl", "event {n}");
        });
    };
    events(1);
    logs.set_dir(dir.path()).unwrap();
    events(2);
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let text = read(&dir.path().join("trainer.log"));
    let told: Vec<&str> = text.lines().map(|line| line.split_once("event ").unwrap().1).collect();
    assert_eq!(told, ["1", "2"], "what was told before is there too");
    let blocked = dir.path().join("blocked");
    logs.set_dir(&blocked).unwrap();
    std::fs::remove_dir(&blocked).unwrap();
    std::fs::write(&blocked, "a file").unwrap();
    events(3);
    events(4);
    let text = String::from_utf8(console.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("log files are incomplete").count(), 1, "{text}");
    assert!(text.contains("event 4"));
}
