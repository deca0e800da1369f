//! Developer's tool behind envs/build.sh: makes a component of a core module, and compares two components by interface
//! and behaviour. Not part of the product.
//!
//! usage: component encode MODULE.wasm OUT.wasm
//!        component compare COMMITTED.wasm REBUILT.wasm
//!        component compare-bridge COMMITTED.wasm REBUILT.wasm

use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{
    Completion, EnvFile, Finish, Grant, HttpClient, HttpRequest, HttpResponse, Isolation, Kv, Limits, Llm, LlmRequest,
    LlmResponse, LoadConfig, Pool, PoolConfig, RolloutContext, Sandbox, SandboxConfig, Server, ServiceError, Services,
};
use prl_types::{Message, Role, Task};
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wit_component::{ComponentEncoder, DecodedWasm, WitPrinter};

/// Tasks of each split that are played.
const TASKS: u64 = 8;
/// Turns after which a rollout is cut off.
const MAX_TURNS: usize = 4;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["encode", module, out] => {
            let module = std::fs::read(module)?;
            let component = ComponentEncoder::default().validate(true).module(&module)?.encode()?;
            Ok(std::fs::write(out, component)?)
        }
        ["compare", committed, rebuilt] => compare(Path::new(committed), Path::new(rebuilt)).await,
        ["compare-bridge", committed, rebuilt] => compare_bridge(Path::new(committed), Path::new(rebuilt)).await,
        _ => Err("usage: component encode MODULE OUT | component compare[-bridge] COMMITTED REBUILT".into()),
    }
}

async fn compare(committed: &Path, rebuilt: &Path) -> Outcome<()> {
    same("WIT", &interface(committed)?, &interface(rebuilt)?)?;
    let sandbox = Sandbox::new(&SandboxConfig::default())?;
    // Hostile guests are compared too, so calls must not take long.
    let limits = Limits {
        memory_bytes: 16 << 20,
        call_timeout: Duration::from_secs(2),
        output_bytes: 1 << 20,
        log_lines: 0,
        ..Limits::default()
    };
    let config = LoadConfig { limits, grants: Grant::ALL.to_vec() };
    let (committed, rebuilt) = (sandbox.load(committed, &config).await?, sandbox.load(rebuilt, &config).await?);
    same("imports", &committed.imports(), &rebuilt.imports())?;
    same("description", committed.info(), rebuilt.info())?;
    let (left, right) = (behaviour(&committed).await?, behaviour(&rebuilt).await?);
    for (left, right) in left.iter().zip(&right) {
        same("behaviour", left, right)?;
    }
    same("number of tasks", &left.len(), &right.len())?;
    println!("{}: same interface, same behaviour over {} rollouts", committed.path().display(), left.len());
    Ok(())
}

/// A server that is always in the same mood, and what it was asked.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<Vec<String>>>);

impl Script {
    /// What was asked, in order of the text: no score is ever had, so every rollout that began is ended beside the
    /// others, in its own time.
    async fn settled(&self) -> Vec<String> {
        let all_ended = async {
            loop {
                let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let count = |start: &str| asked.iter().filter(|asked| asked.starts_with(start)).count();
                if count("DELETE ") == count("POST http://localhost/v0.1/rollouts ") {
                    asked.sort();
                    return asked;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let late = tokio::time::timeout(Duration::from_secs(10), all_ended).await;
        late.unwrap_or_else(|_| vec!["a rollout is never ended".into()])
    }
}

impl HttpClient for Script {
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
        let body = String::from_utf8_lossy(request.body.as_deref().unwrap_or_default()).into_owned();
        let asked = format!("{} {} {:?} {body}", request.method, request.url, request.headers);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        let info = json!({ "name": "n", "version": "1", "description": "d", "args_schema": { "type": "object" },
            "splits": [{ "name": "train", "size": null }], "features": ["multi_turn", "tools", "group_scoring"],
            "components": [{ "name": "right", "weight": 0.1, "description": "" }], "metrics": ["m"], "tags": ["t"] });
        let call = request.url.rsplit('/').next().unwrap_or_default();
        let answer = match call {
            "info" => info,
            "configure" => json!({ "configuration": "c", "info": info }),
            "task" => {
                let asked: Value = serde_json::from_str(&body).unwrap_or_default();
                json!({ "split": asked["split"], "index": asked["index"], "seed": asked["seed"], "key": "k",
                    "prompt": [{ "role": "user", "content": [{ "type": "text", "text": "t" }] }],
                    "tools": [{ "name": "f", "description": "", "parameters": {} }], "answer": 1.5, "payload": [0.1] })
            }
            "rollouts" => json!({ "id": "r" }),
            "start" => json!({}),
            "step" => json!({ "messages": [{ "role": "user", "content": "u" }], "reward": 0.1,
                "metrics": [{ "name": "m", "value": 2 }], "sampling": { "max_tokens": 9 } }),
            _ => json!({ "error": { "code": "upstream", "message": "no", "retryable": true } }),
        };
        let status = if answer["error"].is_null() { 200 } else { 503 };
        async move { Ok(HttpResponse { status, headers: Vec::new(), body: answer.to_string().into_bytes() }) }.boxed()
    }
}

/// The component that stands for served environments: what it asks of a server, and what it makes of the answers.
async fn compare_bridge(committed: &Path, rebuilt: &Path) -> Outcome<()> {
    same("WIT", &interface(committed)?, &interface(rebuilt)?)?;
    let sandbox = Sandbox::new(&SandboxConfig::default())?;
    let mut seen = Vec::new();
    for path in [committed, rebuilt] {
        let script = Script::default();
        let client = Arc::new(script.clone());
        let server = Server { url: "http://localhost".into(), client, bridge: Some(path.to_owned()) };
        let file = sandbox.connect(&server, &Limits::default()).await?;
        let behaviour = behaviour(&file).await?;
        let asked = script.settled().await;
        seen.push((file.imports().to_vec(), file.info().clone(), behaviour, asked));
    }
    same("what it does", &seen[0], &seen[1])?;
    println!("{}: same interface, same {} requests", committed.display(), seen[0].3.len());
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, committed: &T, rebuilt: &T) -> Outcome<()> {
    if committed == rebuilt {
        return Ok(());
    }
    Err(format!(
        "{what} differs; run envs/build.sh and commit the result\n  committed: {committed:?}\n  rebuilt:   {rebuilt:?}"
    )
    .into())
}

/// The component's whole interface as WIT text.
fn interface(path: &Path) -> Outcome<String> {
    let DecodedWasm::Component(resolve, world) = wit_component::decode(&std::fs::read(path)?)? else {
        return Err(format!("{} is no component", path.display()).into());
    };
    let package = resolve.worlds[world].package.ok_or("a component's world is in a package")?;
    let others: Vec<_> = resolve.packages.iter().map(|(id, _)| id).filter(|id| *id != package).collect();
    let mut printer = WitPrinter::default();
    printer.print(&resolve, package, &others)?;
    Ok(printer.output.to_string())
}

/// Models that are never there.
struct NoModels(Vec<String>);

impl Llm for NoModels {
    fn roles(&self) -> Vec<String> {
        self.0.clone()
    }

    fn generate(&self, _: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>> {
        async { Err(ServiceError::Upstream("there is no model here".into())) }.boxed()
    }
}

/// Everything that the first tasks of each split do when they are answered in a few ways.
async fn behaviour(file: &EnvFile) -> Outcome<Vec<Value>> {
    let config = PoolConfig {
        name: file.info().name.clone(),
        args: json!({}),
        weights: Default::default(),
        workers: 1,
        max_rollouts: 1,
        isolation: Isolation::Rollout,
        services: Services {
            llm: Some(Arc::new(NoModels(file.info().roles.clone()))),
            kv: Some(Kv::new(1 << 20)),
            ..Services::default()
        },
        log: Arc::new(|_| ()),
    };
    let pool = Pool::start(file, config).await?;
    let mut seen = Vec::new();
    for split in &file.info().splits {
        for index in 0..split.size.map_or(TASKS, |size| size.min(TASKS)) {
            match pool.task(&split.name, index, 7).await {
                Err(error) => seen.push(json!({ "split": split.name, "index": index, "error": stable(&error) })),
                Ok(task) => {
                    let demonstration = task.payload["demonstration"].as_str().map(str::to_owned);
                    let answer =
                        task.answer.as_ref().map(|answer| answer.as_str().map_or(answer.to_string(), Into::into));
                    let said = [demonstration, answer, Some("<reversed_text>half".into())];
                    for said in said.into_iter().flatten() {
                        seen.push(json!({ "task": task, "said": said, "rollout": play(&pool, &task, &said).await }));
                    }
                }
            }
        }
    }
    Ok(seen)
}

/// An error without what may differ between builds: addresses and line numbers in a panic's text.
fn stable(error: &prl_environment::EnvError) -> Value {
    use prl_environment::Failure;
    let failure = match &error.failure {
        Failure::Trap { .. } => "trap".to_owned(),
        Failure::OutOfMemory { .. } => "out of memory".to_owned(),
        other => other.to_string(),
    };
    json!({ "call": error.call, "failure": failure })
}

async fn play(pool: &Pool, task: &Task, said: &str) -> Value {
    let mut turns = Vec::new();
    let end = rollout(pool, task, said, &mut turns).await;
    let end = end.map_or_else(|error| stable(&error), |score| json!(score));
    json!({ "turns": turns, "end": end })
}

async fn rollout(
    pool: &Pool,
    task: &Task,
    said: &str,
    turns: &mut Vec<String>,
) -> Result<prl_types::Score, prl_environment::EnvError> {
    let context = RolloutContext { id: "0.0".into(), seed: 3, member: 0, group_size: 1, step: 0, eval: false };
    let mut session = pool.open(task, context).await?;
    turns.push(format!("{:?}", session.start().await?));
    for _ in 0..MAX_TURNS {
        let said = Completion {
            message: Message::text(Role::Assistant, said),
            finish: Finish::Stop,
            tokens: 5,
            context_left: None,
            turns_left: None,
        };
        let turn = session.step(said).await?;
        turns.push(format!("{turn:?}"));
        if turn.stop.is_some() {
            return session.score(None).await;
        }
    }
    session.score(Some("max_turns")).await
}
