//! Developer's tool behind tests/integration/python_envs.py: plays scripted rollouts of a component in the real host.
//! Owns the form of requests and answers; must not know any environment. Not part of the product.
//!
//! usage: rollouts ENV.wasm [ARGS] [CACHE_DIR] < requests.jsonl
//!
//! A request is `{"split", "index", "seed"}` or `{"task"}`, with `"turns"`: assistant messages or texts, one after the other.
//! An answer is `{"task", "turns", "score", "stop"}`, or `{"error"}`.

use prl_environment::{
    Completion, EnvError, Finish, Isolation, LoadConfig, Pool, PoolConfig, RolloutContext, Sandbox, SandboxConfig,
    Services,
};
use prl_types::{EnvTurn, Message, Role, Score, Task};
use serde_json::{Value, json};
use std::error::Error;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| given.get(at).map(String::as_str);
    let Some(path) = word(0) else {
        return Err("usage: rollouts ENV.wasm [ARGS] [CACHE_DIR]".into());
    };
    let args: Value = serde_json::from_str(word(1).unwrap_or("{}"))?;
    let cache = word(2).filter(|dir| !dir.is_empty()).map(PathBuf::from);
    play(Path::new(path), args, cache).await
}

async fn pool(path: &Path, args: Value, cache_dir: Option<PathBuf>) -> Outcome<Pool> {
    let sandbox = Sandbox::new(&SandboxConfig { cache_dir, threads: 2 })?;
    let file = sandbox.load(path, &LoadConfig::default()).await?;
    let config = PoolConfig {
        name: file.info().name.clone(),
        args,
        weights: Default::default(),
        workers: 1,
        max_rollouts: 1,
        isolation: Isolation::Rollout,
        services: Services::default(),
        log: Arc::new(|line| eprintln!("{:?} {}", line.level, line.message)),
    };
    Ok(Pool::start(&file, config).await?)
}

async fn play(path: &Path, args: Value, cache: Option<PathBuf>) -> Outcome<()> {
    let pool = pool(path, args, cache).await?;
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
