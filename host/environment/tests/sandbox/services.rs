//! What an environment gets on request, and what it gets of WASI: the probe does what it is told.

use super::common::{Lines, completion, context, limits, sandbox, wasm};
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{
    Assets, EnvError, EnvFile, Failure, Finish, Grant, Http, HttpClient, HttpRequest, HttpResponse, Isolation, Kv,
    Limits, Llm, LlmRequest, LlmResponse, LoadConfig, LogLevel, Pool, PoolConfig, ServiceError, Services, Session,
    StartError,
};
use prl_types::{Message, Role};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Answers after so many milliseconds with the length of what it was asked; has no answer to `never`.
pub struct Judge(pub u64);

impl Llm for Judge {
    fn roles(&self) -> Vec<String> {
        vec!["judge".into()]
    }

    fn generate(&self, request: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>> {
        let wait = Duration::from_millis(self.0);
        async move {
            let asked = request.messages[0].content.clone();
            tokio::time::sleep(wait).await;
            if asked == "never" {
                return Err(ServiceError::Upstream("the judge is asleep".into()));
            }
            let message = Message::text(Role::Assistant, asked.len().to_string());
            Ok(LlmResponse { message, prompt_tokens: 1, completion_tokens: 1 })
        }
        .boxed()
    }
}

struct Web;

impl HttpClient for Web {
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
        assert_eq!((request.method.as_str(), request.headers[0].1.as_str()), ("GET", "1"));
        let body = request.url.into_bytes();
        async { Ok(HttpResponse { status: 404, headers: Vec::new(), body }) }.boxed()
    }
}

pub fn services(judge_ms: u64) -> Services {
    Services {
        llm: Some(Arc::new(Judge(judge_ms))),
        http: Some(Http::new(&["https://example.org/api".to_owned()], Arc::new(Web)).unwrap()),
        assets: None,
        kv: Some(Kv::new(1000)),
    }
}

/// The probe with all grants.
pub async fn probe(limits: Limits) -> EnvFile {
    let load = LoadConfig { limits, grants: Grant::ALL.to_vec() };
    sandbox().load(&wasm("probe"), &load).await.expect("the probe loads")
}

pub fn config(isolation: Isolation, services: Services, lines: &Lines) -> PoolConfig {
    PoolConfig {
        name: "probe".into(),
        args: json!({}),
        weights: Default::default(),
        workers: 1,
        max_rollouts: 8,
        isolation,
        services,
        log: lines.sink(),
    }
}

async fn start(limits: Limits, services: Services, lines: &Lines) -> Result<Pool, StartError> {
    Pool::start(&probe(limits).await, config(Isolation::Rollout, services, lines)).await
}

/// A started rollout.
async fn open(pool: &Pool, seed: u64) -> Session {
    let task = pool.task("train", 0, 0).await.unwrap();
    let mut session = pool.open(&task, prl_environment::RolloutContext { seed, ..context(0) }).await.unwrap();
    session.start().await.unwrap();
    session
}

pub async fn tell(session: &mut Session, command: &str) -> Result<String, EnvError> {
    let turn = session.step(completion(command, Finish::Stop)).await?;
    Ok(turn.messages.into_iter().map(|message| message.content).collect())
}

#[tokio::test]
async fn grants_are_needed_and_listed() {
    let refused = sandbox().load(&wasm("probe"), &super::common::plain(limits())).await.err().unwrap().to_string();
    assert!(
        refused.ends_with(
            "imports `prl:env/assets@0.1.0`, which this run does not grant; if it may, add \"assets\" to its `grants`"
        ),
        "{refused}"
    );
    let load = LoadConfig { limits: limits(), grants: Grant::ALL.to_vec() };
    let file = sandbox().load(&wasm("probe"), &load).await.unwrap();
    assert_eq!(file.grants(), [Grant::Assets, Grant::Http, Grant::Kv, Grant::Llm]);
    assert!(
        file.imports().iter().any(|import| import.starts_with("wasi:cli/environment@0.2.")),
        "{:?}",
        file.imports()
    );
    // A role without a model is told before anything runs.
    let refused = start(limits(), Services::default(), &Lines::default()).await.err().unwrap();
    assert_eq!(
        refused.to_string(),
        "environment `probe` asks a model in the role `judge`, for which there is none; add it to its `llm`"
    );
}

#[tokio::test]
async fn models_answer_by_role_and_their_time_is_not_the_guests() {
    let quick = Limits { call_timeout: Duration::from_millis(150), ..limits() };
    let pool = start(quick.clone(), services(400), &Lines::default()).await.unwrap();
    let mut session = open(&pool, 1).await;
    assert_eq!(tell(&mut session, "judge four").await.unwrap(), "4");
    let before = std::time::Instant::now();
    assert_eq!(tell(&mut session, "judges a bb ccc never").await.unwrap(), "ErrorCode::Upstream: the judge is asleep");
    assert_eq!(tell(&mut session, "judges a bb ccc").await.unwrap(), "1 2 3");
    assert!(before.elapsed() < Duration::from_millis(1600), "side by side, not one after another");
    assert_eq!(
        tell(&mut session, "stranger").await.unwrap(),
        "ErrorCode::Denied: no model has the role `stranger`; there are `judge`"
    );
    // The rollout's own time goes on.
    let short = Limits { rollout_timeout: Duration::from_millis(300), ..quick };
    let pool = start(short.clone(), services(60_000), &Lines::default()).await.unwrap();
    let mut session = open(&pool, 1).await;
    let late = tell(&mut session, "judge four").await.unwrap_err();
    assert_eq!(late.failure, Failure::RolloutTimeout { limit: short.rollout_timeout });
}

#[tokio::test]
async fn files_the_map_and_http() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("words.txt"), "apple pear").unwrap();
    let services = Services { assets: Some(Assets::open(temp.path()).unwrap()), ..services(0) };
    let pool = start(limits(), services, &Lines::default()).await.unwrap();
    let mut session = open(&pool, 1).await;
    let mut other = open(&pool, 2).await;
    for (command, answer) in [
        ("asset words.txt", "apple pear"),
        ("asset none.txt", "ErrorCode::NotFound: there is no file `none.txt`"),
        ("get a", "None"),
        ("set a 12", "set"),
        ("fetch https://example.org/api/x", "404 https://example.org/api/x"),
        (
            "fetch https://example.org/other",
            "ErrorCode::Denied: an address at `https://example.org` is not among the allowed ones",
        ),
    ] {
        assert_eq!(tell(&mut session, command).await.unwrap(), answer);
    }
    assert_eq!(tell(&mut other, "get a").await.unwrap(), "Some([49, 50])", "the map outlives an instance");
    let full = format!("set b {}", "x".repeat(1000));
    assert_eq!(tell(&mut session, &full).await.unwrap(), "ErrorCode::Limit: the map would hold more than 1000 bytes");
}

#[tokio::test]
async fn wasi_is_denied_the_same_way_each_time() {
    let lines = Lines::default();
    let pool = start(limits(), services(0), &lines).await.unwrap();
    let commands = ["random", "random", "clock", "sleep", "machine", "random"];
    let mut seen = Vec::new();
    for seed in [7, 7, 8] {
        let mut session = open(&pool, seed).await;
        let mut answers = Vec::new();
        for command in commands {
            answers.push(tell(&mut session, command).await.unwrap());
        }
        seen.push(answers);
    }
    assert_eq!(seen[0], seen[1], "the same seed, the same machine");
    assert!(seen[0][0] != seen[0][1] && seen[0][0] != seen[2][0], "{seen:?}");
    // The second call after `open` and `start`, and so on: a second each.
    assert!(seen[0][2].starts_with("4000001000 Datetime { seconds: 946684804,"), "{}", seen[0][2]);
    assert_eq!(seen[0][3], "1 h, [1], true");
    assert_eq!(
        seen[0][4],
        "[] [] None 0 Err(StreamError::Closed) Some(ErrorCode { code: 1, name: \"access-denied\", message: \"\" })"
    );

    let mut session = open(&pool, 7).await;
    lines.take();
    tell(&mut session, "print").await.unwrap();
    let printed: Vec<_> = lines.take().into_iter().map(|line| (line.level, line.message)).collect();
    let expected = [(LogLevel::Info, "one"), (LogLevel::Info, "two and a half"), (LogLevel::Error, "oh no")];
    assert_eq!(printed, expected.map(|(level, text)| (level, text.to_owned())));
    let over = tell(&mut session, "exit").await.unwrap_err();
    assert!(
        matches!(&over.failure, Failure::Trap { reason, .. } if reason.contains("exit@0.2.3#exit`, which no environment may")),
        "{over}"
    );
}

#[tokio::test]
async fn fuel_is_the_same_everywhere_and_ends_a_loop() {
    let metered = Limits { fuel: Some(3_000_000), ..limits() };
    let load = LoadConfig { limits: metered, grants: Vec::new() };
    let file = sandbox().load(&wasm("misbehave"), &load).await.unwrap();
    let config = PoolConfig {
        name: "misbehave".into(),
        args: json!({}),
        weights: Default::default(),
        workers: 1,
        max_rollouts: 8,
        isolation: Isolation::Rollout,
        services: Services::default(),
        log: Lines::default().sink(),
    };
    let pool = Pool::start(&file, config).await.unwrap();
    let task = pool.task("loop", 3, 1).await.unwrap();
    let error = super::common::play(&pool, &task, 0, "hello").await.unwrap_err();
    assert_eq!((error.call, &error.failure), ("step", &Failure::OutOfFuel { limit: 3_000_000 }));
    assert_eq!(error.failure.to_string(), "out of fuel: it used the 3000000 units of one call");
    let task = pool.task("honest", 5, 1).await.unwrap();
    assert_eq!(super::common::play(&pool, &task, 1, "hello").await.unwrap().total(), 3.0, "fuel is per call");
}
