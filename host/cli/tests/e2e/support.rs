//! Starting the binary and reading what it leaves.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A child still there after so long hangs.
const HUNG: Duration = Duration::from_secs(180);

/// Few steps of few rollouts.
pub const SMALL: &str = "--orchestrator.batch-size 16 --orchestrator.group-size 4 --orchestrator.eval.num-examples 8";

/// The repository.
pub fn repo() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// The example's RL configuration.
pub fn rl_toml() -> String {
    repo().join("examples/reverse_text/rl.toml").display().to_string()
}

/// The example's warmed model.
pub fn model() -> PathBuf {
    repo().join("examples/reverse_text/model")
}

/// What a finished command left.
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Must have gone well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Console lines of level `SUCCESS`.
    pub fn successes(&self) -> Vec<&str> {
        self.stdout.lines().filter(|line| line.contains("SUCCESS")).collect()
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit {:?}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

/// Must have been refused as bad input: one line with these words in it.
#[track_caller]
pub fn refused(done: &Finished, words: &[&str]) {
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stderr.starts_with("error: ") && done.stderr.lines().count() == 1, "{done}");
    for word in words {
        assert!(done.stderr.contains(word), "no `{word}` in: {done}");
    }
}

/// A folder of its own that commands run in.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Self {
        Scratch(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and names it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }

    /// A copy of a flat folder.
    pub fn copy_of(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.path(name);
        fs::create_dir(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        to
    }

    /// The binary with `words`, split at spaces.
    pub fn command(&self, words: &str) -> Command {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.command_of(&words)
    }

    /// The binary with these words.
    pub fn command_of(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_prl"));
        command
            .args(words)
            .current_dir(self.0.path())
            .env("HF_HUB_OFFLINE", "1")
            .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null());
        for name in ["PRL_PLUGIN_PATH", "PRL_ENV_PATH", "NEVER_CLEAN_OUTPUT_DIR", "RUST_LOG"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs `prl` with `words`, split at spaces.
    pub fn prl(&self, words: &str) -> Finished {
        Running::start(self.command(words)).wait()
    }

    /// `prl rl` of the shrunk example into the folder `out` of this one.
    pub fn rl(&self, out: &str, words: &str) -> Finished {
        self.prl(&self.rl_words(out, words))
    }

    /// The words of [`Scratch::rl`].
    pub fn rl_words(&self, out: &str, words: &str) -> String {
        format!("rl @ {} {SMALL} --output-dir {out} {words}", rl_toml())
    }

    /// A run directory in here.
    pub fn run(&self, out: &str) -> Run {
        Run(self.path(out))
    }
}

/// A started command. Its output goes to files, so that it can be read while it runs.
pub struct Running {
    child: Child,
    output: TempDir,
}

impl Running {
    pub fn start(mut command: Command) -> Self {
        let output = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(output.path().join(name)).unwrap();
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Running { child, output }
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.output.path().join(name)).unwrap()).into_owned()
    }

    fn poll<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = done(self) {
                return found;
            }
            if started.elapsed() > HUNG {
                let _ = self.child.kill();
                panic!("hangs before {what}\n{}\n{}", self.read("stdout"), self.read("stderr"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until standard output holds `text`.
    pub fn wait_for(&mut self, text: &str) {
        self.poll(text, |running| {
            if running.read("stdout").contains(text) {
                return Some(());
            }
            if let Some(status) = running.child.try_wait().unwrap() {
                panic!("ended with {status} before `{text}`\n{}\n{}", running.read("stdout"), running.read("stderr"));
            }
            None
        });
    }

    /// The rest of the line of standard output that begins with `text`, which must be there.
    pub fn wait_for_line_after(mut self, text: &str) -> (Self, String) {
        let rest = self.poll(text, |running| {
            let output = running.read("stdout");
            let (_, after) = output.split_once(text)?;
            after.split_once('\n').map(|(line, _)| line.to_owned())
        });
        (self, rest)
    }

    /// Sends a signal, for example `INT`.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub fn wait(mut self) -> Finished {
        let status: ExitStatus = self.poll("its end", |running| running.child.try_wait().unwrap());
        Finished { code: status.code(), stdout: self.read("stdout"), stderr: self.read("stderr") }
    }
}

impl Drop for Running {
    /// Nothing outlives its test.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One line of `metrics.jsonl`.
pub type Row = Map<String, Value>;

/// A metric of a line.
#[track_caller]
pub fn value(row: &Row, name: &str) -> f64 {
    row.get(name).and_then(Value::as_f64).unwrap_or_else(|| panic!("no metric {name}"))
}

/// A run directory.
pub struct Run(pub PathBuf);

impl Run {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    #[track_caller]
    pub fn has(&self, name: &str) {
        assert!(self.path(name).exists(), "no {name} in {:#?}", files(&self.0).keys());
    }

    /// Every line of `metrics.jsonl`; each must be whole.
    #[track_caller]
    pub fn metrics(&self) -> Vec<Row> {
        rows(&self.path("metrics.jsonl"))
    }

    /// The lines of training steps.
    #[track_caller]
    pub fn steps(&self) -> Vec<Row> {
        self.metrics().into_iter().filter(|row| row.contains_key("loss/mean")).collect()
    }

    /// One metric of every training step.
    #[track_caller]
    pub fn series(&self, name: &str) -> Vec<f64> {
        self.steps().iter().map(|row| value(row, name)).collect()
    }

    /// Weights saved after `step`.
    #[track_caller]
    pub fn weights(&self, step: u64) -> Vec<u8> {
        fs::read(self.path(&format!("weights/step_{step}/model.safetensors"))).unwrap()
    }
}

/// Every line of a JSON-lines file; each must be whole.
#[track_caller]
pub fn rows(path: &Path) -> Vec<Row> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(text.ends_with('\n'), "{} ends in the middle of a line", path.display());
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// Path (relative) and content of every file below `dir`; folders end in `/`.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, dir: &Path, out: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            if path.is_dir() {
                out.insert(format!("{name}/"), Vec::new());
                walk(root, &path, out);
            } else {
                out.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(dir, dir, &mut out);
    out
}

/// The number after `token`, as scripts find it: `Reward:?\s+(\d+\.\d{4})` and the like.
pub fn number_after(line: &str, token: &str) -> Option<f64> {
    let rest = line.split_once(token)?.1;
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    let number = rest.trim_start();
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
    let (whole, decimals) = number[..end].split_once('.')?;
    let fits = number.len() < rest.len() && !whole.is_empty() && decimals.len() == 4;
    fits.then(|| number[..end].parse().unwrap())
}
