//! Developer's tool behind tests/integration/python_envs.py: plays scripted rollouts of a component in the real host, and
//! times it. Owns the form of requests and answers; must not know any environment. Not part of the product.
//!
//! usage: rollouts play ENV.wasm [ARGS] [CACHE_DIR] < requests.jsonl
//!        rollouts bench ENV.wasm [ARGS] [CACHE_DIR] [LIVE]
//!
//! A request is `{"split", "index", "seed"}` or `{"task"}`, with `"turns"`: assistant messages or texts, one after the other.
//! An answer is `{"task", "turns", "score", "stop"}`, or `{"error"}`.

use prl_environment::{
    Completion, EnvError, EnvTurn, Finish, Isolation, LoadConfig, Pool, PoolConfig, RolloutContext, Sandbox,
    SandboxConfig, Services, Session,
};
use prl_types::{Message, Role, Score, Task};
use serde_json::{Value, json};
use std::error::Error;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| given.get(at).map(String::as_str);
    let (Some(mode), Some(path)) = (word(0), word(1)) else {
        return Err("usage: rollouts play|bench ENV.wasm [ARGS] [CACHE_DIR] [LIVE]".into());
    };
    let args: Value = serde_json::from_str(word(2).unwrap_or("{}"))?;
    let cache = word(3).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    match mode {
        "play" => play(Path::new(path), args, cache).await,
        "bench" => bench(Path::new(path), args, cache, word(4).unwrap_or("1000").parse()?).await,
        _ => Err(format!("there is no `{mode}`").into()),
    }
}

async fn pool(path: &Path, args: Value, cache_dir: Option<PathBuf>, rollouts: usize) -> Outcome<Pool> {
    let sandbox = Sandbox::new(&SandboxConfig { cache_dir, threads: 2 })?;
    let file = sandbox.load(path, &LoadConfig::default()).await?;
    let config = PoolConfig {
        name: file.info().name.clone(),
        args,
        weights: Default::default(),
        workers: 1,
        max_rollouts: rollouts,
        isolation: Isolation::Rollout,
        services: Services::default(),
        log: Arc::new(|line| eprintln!("{:?} {}", line.level, line.message)),
    };
    Ok(Pool::start(&file, config).await?)
}

async fn play(path: &Path, args: Value, cache: Option<PathBuf>) -> Outcome<()> {
    let pool = pool(path, args, cache, 1).await?;
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = rollout(&pool, &request).await.unwrap_or_else(|error| json!({ "error": error.to_string() }));
        println!("{answer}");
    }
    Ok(())
}

async fn rollout(pool: &Pool, request: &Value) -> Outcome<Value> {
    let task: Task = match request.get("task") {
        Some(task) => serde_json::from_value(task.clone())?,
        None => {
            let number = |name: &str| request[name].as_u64().unwrap_or_default();
            pool.task(request["split"].as_str().unwrap_or("train"), number("index"), number("seed")).await?
        }
    };
    let said = request["turns"].as_array().ok_or("`turns` is no list")?;
    let said: Vec<Message> = said.iter().map(message).collect::<Result<_, _>>()?;
    let (turns, score, stop) = drive(pool, &task, &said).await?;
    let turns: Vec<Value> = turns.iter().map(shown).collect();
    Ok(json!({ "task": task, "turns": turns, "score": score, "stop": stop }))
}

fn message(given: &Value) -> serde_json::Result<Message> {
    match given.as_str() {
        Some(text) => Ok(Message::text(Role::Assistant, text)),
        None => serde_json::from_value(given.clone()),
    }
}

fn shown(turn: &EnvTurn) -> Value {
    let stop = turn.stop.as_ref().map(|stop| json!({ "reason": stop.reason, "truncated": stop.truncated }));
    json!({ "messages": turn.messages, "reward": turn.reward, "stop": stop, "metrics": turn.metrics })
}

fn context(seed: u64) -> RolloutContext {
    RolloutContext { id: format!("0.{seed}"), seed, member: 0, group_size: 1, step: 0, eval: false }
}

fn completion(message: &Message, turns_left: u32) -> Completion {
    let finish = if message.tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls };
    Completion { message: message.clone(), finish, tokens: 1, context_left: None, turns_left: Some(turns_left) }
}

/// Takes the turns one after the other until the environment stops or they are used up.
async fn drive(pool: &Pool, task: &Task, said: &[Message]) -> Result<(Vec<EnvTurn>, Score, Option<String>), EnvError> {
    let mut session = pool.open(task, context(1)).await?;
    let mut turns = vec![session.start().await?];
    let most = task.max_turns.map_or(usize::MAX, |most| most as usize);
    let said = &said[..said.len().min(most)];
    for (at, message) in said.iter().enumerate() {
        let turn = session.step(completion(message, (said.len() - at - 1) as u32)).await?;
        turns.push(turn);
        if turns.last().is_some_and(|turn| turn.stop.is_some()) {
            break;
        }
    }
    let stop = turns.last().and_then(|turn| turn.stop.clone());
    let truncated = match &stop {
        None => Some("max_turns".to_owned()),
        Some(stop) => stop.truncated.then(|| stop.reason.clone()),
    };
    let score = session.score(truncated.as_deref()).await?;
    Ok((turns, score, stop.map(|stop| stop.reason)))
}

/// Start from the compiled code, a fresh instance with `configure` and `open`, a step, a whole rollout; memory of `live`
/// instances, each configured and past a step.
async fn bench(path: &Path, args: Value, cache: Option<PathBuf>, live: usize) -> Outcome<()> {
    let cache = cache.ok_or("bench needs a CACHE_DIR")?;
    let since = Instant::now();
    drop(pool(path, args.clone(), Some(cache.clone()), 1).await?);
    println!("first start          {:>10.1} ms (compiles unless it is cached)", ms(since.elapsed()));
    let mut starts = Vec::new();
    for _ in 0..5 {
        let since = Instant::now();
        drop(pool(path, args.clone(), Some(cache.clone()), 1).await?);
        starts.push(since.elapsed());
    }
    told("start from the cache", starts);
    let pool = pool(path, args, Some(cache), live + 1).await?;
    let said = Message::text(Role::Assistant, "<answer>17</answer>");
    let (mut tasks, mut fresh, mut steps, mut whole) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let split = pool.info().splits.first().map(|split| split.name.clone()).ok_or("no splits")?;
    for index in 0..300 {
        let since = Instant::now();
        let task = pool.task(&split, index % 50, 1).await?;
        tasks.push(since.elapsed());
        let since = Instant::now();
        let mut session = pool.open(&task, context(index)).await?;
        fresh.push(since.elapsed());
        session.start().await?;
        let stepped = Instant::now();
        session.step(completion(&said, 1)).await?;
        steps.push(stepped.elapsed());
        session.score(Some("max_turns")).await?;
        whole.push(since.elapsed());
    }
    told("get-task", tasks);
    told("fresh instance, configure, open", fresh);
    told("step", steps);
    told("whole rollout", whole);
    let task = pool.task(&split, 0, 1).await?;
    let mut sessions: Vec<Session> = Vec::new();
    let (before, mappings) = (pss_kib(), maps());
    let grown = |what: &str| {
        let used = pss_kib().saturating_sub(before);
        let (each, mappings) = (used as f64 / live as f64, (maps() - mappings) as f64 / live as f64);
        println!(
            "{live} live, {what:<8} {:>8.1} MiB, {each:.0} KiB and {mappings:.1} mappings each",
            used as f64 / 1024.0
        );
    };
    for at in 0..live {
        sessions.push(pool.open(&task, context(at as u64)).await?);
    }
    grown("opened");
    for session in &mut sessions {
        session.start().await?;
        session.step(completion(&said, 1)).await?;
    }
    grown("stepped");
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn told(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: usize| ms(times[(times.len() * share / 100).min(times.len() - 1)]);
    println!("{what:<32} min {:>8.3}  p50 {:>8.3}  p99 {:>8.3} ms", at(0), at(50), at(99));
}

/// Memory of this process that is its own share, as Linux counts it.
fn pss_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("Pss:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn maps() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count())
}
