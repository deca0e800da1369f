//! What the tests share: files, a sandbox whose compiled code is made once, a pool, a played rollout.

use prl_environment::{
    Completion, EnvError, EnvFile, Finish, Isolation, Limits, LoadConfig, LogLine, LogSink, Pool, PoolConfig,
    RolloutContext, Sandbox, SandboxConfig, Services, Session, StartError,
};
use prl_types::{EnvTurn, Message, Role, Score, Task};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The built environments of the repository.
pub fn wasm(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../envs/{name}.wasm"))
}

/// Short enough for hostile guests, long enough for a busy machine.
pub fn limits() -> Limits {
    Limits {
        memory_bytes: 32 << 20,
        call_timeout: Duration::from_secs(20),
        rollout_timeout: Duration::from_secs(120),
        output_bytes: 1 << 20,
        ..Limits::default()
    }
}

/// One engine for all tests of this binary.
pub fn sandbox() -> &'static Sandbox {
    static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = SandboxConfig { cache_dir: Some(dir.path().join("wasm")), threads: 2 };
        Sandbox::new(&config).expect("the sandbox starts")
    });
    &SANDBOX
}

/// Without grants.
pub fn plain(limits: Limits) -> LoadConfig {
    LoadConfig { limits, grants: Vec::new() }
}

pub async fn load(name: &str) -> EnvFile {
    sandbox().load(&wasm(name), &plain(limits())).await.expect("a committed environment loads")
}

/// Collects log lines.
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<LogLine>>>);

impl Lines {
    pub fn take(&self) -> Vec<LogLine> {
        std::mem::take(&mut self.0.lock().expect("no test panics with the lock"))
    }

    pub fn sink(&self) -> LogSink {
        let lines = self.clone();
        Arc::new(move |line| lines.push(line))
    }

    fn push(&self, line: LogLine) {
        self.0.lock().expect("no test panics with the lock").push(line);
    }
}

pub struct Setup {
    pub args: Value,
    pub weights: BTreeMap<String, f64>,
    pub isolation: Isolation,
    pub workers: usize,
    pub max_rollouts: usize,
    pub limits: Limits,
    pub lines: Lines,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            args: json!({}),
            weights: BTreeMap::new(),
            isolation: Isolation::Rollout,
            workers: 4,
            max_rollouts: 64,
            limits: limits(),
            lines: Lines::default(),
        }
    }
}

impl Setup {
    pub async fn pool(self, name: &str) -> Result<Pool, StartError> {
        let file = sandbox().load(&wasm(name), &plain(self.limits)).await.expect("a committed environment loads");
        let lines = self.lines;
        let config = PoolConfig {
            name: name.into(),
            args: self.args,
            weights: self.weights,
            workers: self.workers,
            max_rollouts: self.max_rollouts,
            isolation: self.isolation,
            services: Services::default(),
            log: lines.sink(),
        };
        Pool::start(&file, config).await
    }
}

pub fn context(member: u32) -> RolloutContext {
    RolloutContext { id: format!("0.{member}"), seed: 1, member, group_size: 8, step: 0, eval: false }
}

pub fn says(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

pub fn completion(text: &str, finish: Finish) -> Completion {
    Completion { message: says(text), finish, tokens: 3, context_left: Some(100), turns_left: None }
}

pub async fn step(session: &mut Session, text: &str) -> Result<EnvTurn, EnvError> {
    session.step(completion(text, Finish::Stop)).await
}

/// A whole rollout with the same words in every turn.
pub async fn play(pool: &Pool, task: &Task, member: u32, text: &str) -> Result<Score, EnvError> {
    let mut session = pool.open(task, context(member)).await?;
    session.start().await?;
    while step(&mut session, text).await?.stop.is_none() {}
    session.score(None).await
}
