//! The socket of a running run: one line of JSON asks, one answers. Owns both ends and what can be asked.

use crate::ports::algorithm::PluginAlgorithm;
use crate::ports::swap::Wanted;
use crate::signals::Stop;
use prl_store::RunDir;
use prl_types::Step;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

/// Longest question, bytes.
const LONGEST: u64 = 1 << 16;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a connection that could not be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// What can be asked of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Where it stands.
    Status,
    /// To stop as on SIGTERM.
    Stop,
    /// To go on with another build of an algorithm.
    SwapAlgo {
        /// Its file, absolute.
        file: PathBuf,
        /// The one training environment that it is for; all that use the algorithm where this is none.
        env: Option<String>,
    },
}

/// What a run says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It is done, or this is the answer.
    Ok(Value),
    /// It is not.
    Error(String),
}

/// What the socket can reach of a run.
pub struct Reach {
    /// The newest step that was reported.
    pub step: Arc<AtomicU64>,
    /// The last step, if there is one.
    pub max_steps: Option<Step>,
    /// Algorithms by training environment.
    pub algorithms: Vec<(String, Arc<PluginAlgorithm>)>,
    /// The plug-in whose loss the run trains with, if there is one.
    pub loss: Option<(String, Arc<Wanted>)>,
    /// Stops the run.
    pub stop: Stop,
}

/// Listens until it is dropped.
pub struct Control {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl Control {
    /// Listens in the run directory `root`. Where it cannot, the run goes on without, and says so.
    pub fn start(root: &Path, reach: Reach) -> Option<Self> {
        let listening = Control::listen(root, reach);
        listening.inspect_err(|error| tracing::warn!("`prl ctl` cannot reach this run: {error}")).ok()
    }

    /// Listens in the run directory `root`, which is this process's own: what an earlier run left there goes.
    ///
    /// # Errors
    /// The folder takes no socket.
    fn listen(root: &Path, reach: Reach) -> std::io::Result<Self> {
        let path = RunDir::control(root);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let (_dir, short) = short(root)?;
        let listener = UnixListener::bind(short)?;
        let reach = Arc::new(reach);
        let task = tokio::spawn(async move {
            // Connections end with the listener.
            let mut connections = JoinSet::new();
            loop {
                let stream = match listener.accept().await {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        tracing::warn!(target: "prl_orchestrator", "`prl ctl` does not get through: {error}");
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                };
                while connections.try_join_next().is_some() {}
                let reach = reach.clone();
                connections.spawn(async move {
                    let (read, mut write) = stream.into_split();
                    let mut line = String::new();
                    let mut read = tokio::io::BufReader::new(tokio::io::AsyncReadExt::take(read, LONGEST));
                    if read.read_line(&mut line).await.is_ok() && !line.is_empty() {
                        let said = match serde_json::from_str(&line) {
                            Ok(ask) => reach.answer(ask).await,
                            Err(error) => Said::Error(format!("not understood: {error}")),
                        };
                        // Who asked may have gone.
                        let _ = write.write_all(format!("{}\n", json!(said)).as_bytes()).await;
                    }
                });
            }
        });
        Ok(Control { task, path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        // What is left behind is replaced by the next run.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Reach {
    async fn answer(&self, ask: Ask) -> Said {
        match ask {
            Ask::Status => {
                let algorithms = self.algorithms.iter().map(|(env, a)| (env.clone(), json!(a.name())));
                Said::Ok(json!({
                    "pid": std::process::id(), "step": self.step.load(Ordering::Relaxed), "max_steps": self.max_steps,
                    "algorithms": algorithms.collect::<serde_json::Map<_, _>>(),
                }))
            }
            Ask::Stop => {
                self.stop.ask();
                Said::Ok(json!({}))
            }
            Ask::SwapAlgo { file, env } => self.swap(&file, env.as_deref()).await.map_or_else(Said::Error, Said::Ok),
        }
    }

    async fn swap(&self, file: &Path, env: Option<&str>) -> Result<Value, String> {
        if self.algorithms.is_empty() && self.loss.is_none() {
            return Err("this run uses no algorithm that could be swapped: only those of `prl rl` do".into());
        }
        let path = file.to_path_buf();
        let about = tokio::task::spawn_blocking(move || prl_algorithm::inspect(&path)).await;
        let name = about.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?.name;
        if let Some(env) = env.filter(|env| self.algorithms.iter().all(|(at, _)| at != env)) {
            let has: Vec<&str> = self.algorithms.iter().map(|(at, _)| at.as_str()).collect();
            return Err(format!("there is no training environment `{env}`; there are `{}`", has.join("`, `")));
        }
        let fits = |(at, algorithm): &&(String, Arc<PluginAlgorithm>)| {
            env.is_none_or(|env| env == at) && algorithm.name() == name
        };
        let chosen = self.algorithms.iter().filter(fits);
        let mut chosen: Vec<_> =
            chosen.map(|(env, algorithm)| (format!("environment `{env}`"), algorithm.wanted())).collect();
        // The loss is that of all environments.
        let loss = self.loss.iter().filter(|(of, _)| env.is_none() && *of == name);
        chosen.extend(loss.map(|(_, wanted)| ("the loss".to_owned(), &**wanted)));
        if chosen.is_empty() {
            let has: Vec<String> =
                self.algorithms.iter().map(|(env, a)| format!("`{env}` has `{}`", a.name())).collect();
            return Err(format!("no environment uses the algorithm `{name}`: {}", has.join(", ")));
        }
        let asked: Vec<_> = chosen.into_iter().map(|(of, wanted)| (of, wanted.ask(file.to_path_buf()))).collect();
        let (mut done, mut failed) = (serde_json::Map::new(), Vec::new());
        for (of, swapped) in asked {
            match swapped.await {
                Ok(Ok((new, step))) => {
                    done.insert(of, json!({ "name": new.name, "version": new.version, "from_step": step }));
                }
                Ok(Err(error)) => failed.push(format!("{of}: {error}")),
                Err(_) => failed.push(format!("{of}: another swap came first")),
            }
        }
        if failed.is_empty() {
            return Ok(Value::Object(done));
        }
        let swapped: Vec<&str> = done.keys().map(String::as_str).collect();
        failed.extend((!done.is_empty()).then(|| format!("swapped for {} only", swapped.join(" and "))));
        Err(failed.join("; "))
    }
}

/// Asks the run in `root`.
///
/// # Errors
/// No run listens there, or it went away.
pub fn ask(root: &Path, ask: &Ask) -> std::io::Result<Said> {
    let (_dir, short) = short(root)?;
    let mut stream = UnixStream::connect(short)?;
    // A swap waits for the next step, everything else is answered at once.
    let patience = if matches!(ask, Ask::SwapAlgo { .. }) { None } else { Some(PATIENCE) };
    stream.set_read_timeout(patience)?;
    stream.write_all(format!("{}\n", json!(ask)).as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the run ended before it answered"));
    }
    serde_json::from_str(&line).map_err(std::io::Error::other)
}

/// A name of the socket that is short enough for one, as long as the folder is open.
fn short(root: &Path) -> std::io::Result<(File, PathBuf)> {
    let dir = File::open(root)?;
    let path = RunDir::control(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())));
    Ok((dir, path))
}
