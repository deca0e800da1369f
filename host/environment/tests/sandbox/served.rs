//! Environments that are served over HTTP: a server that is a function stands in for the network.

use super::common::{Lines, context, limits, sandbox, step};
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{
    EnvError, Failure, GroupMember, GuestErrorCode, HttpClient, HttpRequest, HttpResponse, Isolation, Limits,
    LoadError, Pool, PoolConfig, Server, ServiceError, Services, StartError,
};
use prl_types::Score;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a server does to one request.
enum Does {
    Says(Value),
    Fails(u16, &'static str, &'static str),
    Sends(u16, &'static str),
    Breaks(ServiceError),
    Hangs,
}

type Answers = Box<dyn Fn(&str, &Value) -> Does + Send + Sync>;

struct Fake {
    answers: Answers,
    seen: Arc<Mutex<Vec<String>>>,
}

impl HttpClient for Fake {
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
        let asked: Value = request.body.map_or(Value::Null, |body| serde_json::from_slice(&body).unwrap());
        let path = request.url.strip_prefix("http://server:1/at/v0.1").expect("it stays below its address").to_owned();
        self.seen.lock().unwrap().push(format!("{} {path}", request.method));
        let answer = |status: u16, body: String| {
            async move { Ok(HttpResponse { status, headers: Vec::new(), body: body.into_bytes() }) }.boxed()
        };
        match (self.answers)(&path, &asked) {
            Does::Says(value) => answer(200, value.to_string()),
            Does::Sends(status, text) => answer(status, text.into()),
            Does::Fails(status, code, message) => answer(
                status,
                json!({ "error": { "code": code, "message": message, "retryable": code == "upstream" } }).to_string(),
            ),
            Does::Breaks(error) => async { Err(error) }.boxed(),
            Does::Hangs => futures::future::pending().boxed(),
        }
    }
}

fn info() -> Value {
    json!({ "name": "parrot", "version": "2.0.0", "description": "d",
        "args_schema": { "type": "object", "properties": { "n": { "type": "integer" } }, "additionalProperties": false },
        "splits": [{ "name": "train", "size": null }, { "name": "eval", "size": 3 }],
        "features": ["multi_turn", "group_scoring", "deterministic"],
        "components": [{ "name": "right", "weight": 0.5, "description": "" }], "metrics": ["said"] })
}

/// A well-behaved server: three turns, each is told back.
fn parrot(path: &str, asked: &Value) -> Does {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    Does::Says(match parts[..] {
        ["info"] => info(),
        ["configure"] if asked["args"]["n"] == 13 => return Does::Fails(400, "invalid_config", "13 is unlucky"),
        ["configure"] => json!({ "configuration": "c", "info": info() }),
        ["task"] => json!({ "split": asked["split"], "index": asked["index"], "seed": asked["seed"], "key": "k",
            "prompt": [{ "role": "user", "content": "speak" }], "payload": { "x": 0.1 }, "max_turns": 3 }),
        ["rollouts"] => json!({ "id": format!("r{}", asked["context"]["member"]) }),
        ["rollouts", _, "start"] => json!({}),
        ["rollouts", _, "step"] if asked["turns_left"] == 0 => {
            json!({ "stop": { "kind": "terminated", "reason": "tired" } })
        }
        ["rollouts", _, "step"] => json!({ "messages": [{ "role": "user", "content": asked["message"]["content"] }],
            "metrics": [{ "name": "said", "value": 1 }], "reward": 0.25 }),
        ["rollouts", _, "score"] => json!({ "components": [{ "name": "right", "value": 1 }], "info": { "why": 1.5 } }),
        ["rollouts", _] => json!({}),
        ["score_group"] => {
            let score = json!({ "components": [{ "name": "right", "value": 2 }] });
            json!({ "scores": asked["members"].as_array().unwrap().iter().map(|_| score.clone()).collect::<Vec<_>>() })
        }
        _ => return Does::Fails(404, "unsupported", "no such thing"),
    })
}

struct Served {
    pool: Pool,
    seen: Arc<Mutex<Vec<String>>>,
}

fn server(answers: impl Fn(&str, &Value) -> Does + Send + Sync + 'static) -> (Server, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let client = Arc::new(Fake { answers: Box::new(answers), seen: seen.clone() });
    (Server { url: "http://server:1/at".into(), client, bridge: None }, seen)
}

async fn start(
    answers: impl Fn(&str, &Value) -> Does + Send + Sync + 'static,
    args: Value,
    limits: Limits,
    isolation: Isolation,
) -> Result<Served, StartError> {
    let (server, seen) = server(answers);
    let file = sandbox().connect(&server, &limits).await.expect("the server describes itself");
    let config = PoolConfig {
        name: "p".into(),
        args,
        weights: Default::default(),
        workers: 1,
        max_rollouts: 8,
        isolation,
        services: Services::default(),
        log: Lines::default().sink(),
    };
    Ok(Served { pool: Pool::start(&file, config).await?, seen })
}

async fn served(answers: impl Fn(&str, &Value) -> Does + Send + Sync + 'static) -> Served {
    start(answers, json!({}), limits(), Isolation::Rollout).await.unwrap_or_else(|error| panic!("{error}"))
}

impl Served {
    async fn play(&self, member: u32) -> Result<Score, EnvError> {
        let task = self.pool.task("train", 0, 0).await?;
        let mut session = self.pool.open(&task, context(member)).await?;
        session.start().await?;
        assert_eq!(step(&mut session, "hello").await?.messages[0].content, "hello");
        session.score(Some("max_turns")).await
    }

    fn seen(&self, word: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|asked| asked.contains(word)).count()
    }
}

fn guest(error: EnvError) -> (GuestErrorCode, String) {
    match error.failure {
        Failure::Guest { code, message, .. } => (code, message),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn calls_are_forwarded_and_marked() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        let served = start(parrot, json!({ "n": 1 }), limits(), isolation).await.unwrap_or_else(|e| panic!("{e}"));
        let file = served.pool.file();
        assert_eq!(file.unsandboxed(), Some("http://server:1/at"));
        assert!(!served.pool.info().features.deterministic && served.pool.info().features.multi_turn);
        assert_eq!((served.pool.info().name.as_str(), file.imports().len()), ("parrot", 3), "{:?}", file.imports());
        let task = served.pool.task("eval", 2, u64::MAX).await.unwrap();
        assert_eq!((task.seed, &task.payload), (u64::MAX, &json!({ "x": 0.1 })));
        let score = served.play(0).await.unwrap();
        assert_eq!((score.components[0].weight, score.total()), (0.5, 0.5));
        let member = GroupMember {
            context: context(0),
            messages: Vec::new(),
            truncated: None,
            score: score.clone(),
            reward: score.total(),
        };
        let scores = served.pool.score_group(&task, &[member.clone(), member]).await.unwrap();
        assert_eq!(scores.iter().map(Score::total).collect::<Vec<_>>(), [1.0, 1.0]);
        // A scored rollout is over at the server; one that is given up is freed there.
        assert_eq!(served.seen("DELETE"), 0);
        drop(served.pool.open(&task, context(5)).await.unwrap());
        while served.seen("DELETE /rollouts/r5") == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[tokio::test]
async fn what_is_wrong_at_the_start_is_said_with_the_address() {
    let refusal = async |answers: fn(&str, &Value) -> Does| {
        let error = sandbox().connect(&server(answers).0, &limits()).await.unwrap_err();
        assert!(matches!(error, LoadError::Server { .. }), "{error}");
        error.to_string()
    };
    let gone = refusal(|_, _| Does::Breaks(ServiceError::Upstream("connection refused".into()))).await;
    let whole = "no environment can be had at `http://server:1/at`: connection refused; start one there with `prl env \
                 serve-python FOLDER`, or correct the address";
    assert_eq!(gone, whole);
    assert!(refusal(|_, _| Does::Sends(404, "<h1>what?</h1>")).await.contains("status 404 without an `error`"));
    assert!(refusal(|_, _| Does::Sends(200, "{}")).await.contains("not of the protocol: missing field `name`"));
    assert!(refusal(|_, _| Does::Fails(500, "internal", "broken")).await.contains("at`: broken;"));
    let no_splits: fn(&str, &Value) -> Does = |_, _| {
        let mut info = info();
        info["splits"] = json!([]);
        Does::Says(info)
    };
    assert!(refusal(no_splits).await.contains("it has no splits"));
    let hangs = Limits { call_timeout: Duration::from_millis(50), ..limits() };
    let error = sandbox().connect(&server(|_, _| Does::Hangs).0, &hangs).await.unwrap_err().to_string();
    assert!(error.contains("no answer within 0.05 s"), "{error}");
    let (nowhere, _) = server(parrot);
    let nowhere = Server { url: "http://".into(), ..nowhere };
    let error = sandbox().connect(&nowhere, &limits()).await.unwrap_err();
    assert!(matches!(error, LoadError::Address(_)), "{error}");

    let bad = |args: Value| async move { start(parrot, args, limits(), Isolation::Rollout).await.err().unwrap() };
    assert!(matches!(bad(json!({ "m": 1 })).await, StartError::Args { .. }));
    assert!(bad(json!({ "n": 13 })).await.to_string().contains("invalid config: 13 is unlucky"));
}

/// A server that does what it is told to the steps of member 1 and is well otherwise.
struct Moody {
    served: Served,
    mood: Arc<Mutex<fn() -> Does>>,
}

impl Moody {
    async fn new(limits: Limits) -> Self {
        let mood: Arc<Mutex<fn() -> Does>> = Arc::new(Mutex::new(|| Does::Hangs));
        let now = mood.clone();
        let answers = move |path: &str, asked: &Value| match path {
            "/rollouts/r1/step" => now.lock().unwrap()(),
            _ => parrot(path, asked),
        };
        let served = start(answers, json!({}), limits, Isolation::Rollout).await;
        Moody { served: served.unwrap_or_else(|error| panic!("{error}")), mood }
    }

    /// How the rollout of member 1 fails, while its neighbours do not.
    async fn fails(&self, mood: fn() -> Does) -> Failure {
        *self.mood.lock().unwrap() = mood;
        let (well, ill, also_well) = tokio::join!(self.served.play(0), self.served.play(1), self.served.play(2));
        assert_eq!((well.unwrap().total(), also_well.unwrap().total()), (0.5, 0.5));
        let error = ill.unwrap_err();
        assert_eq!(error.call, "step");
        error.failure
    }
}

#[tokio::test]
async fn a_bad_answer_costs_its_rollout_only() {
    use GuestErrorCode::{Internal, Limit, Upstream};
    let server = Moody::new(limits()).await;
    for (does, code, words) in [
        ((|| Does::Sends(200, "\u{0}\u{1}garbage")) as fn() -> Does, Upstream, "not of the protocol"),
        (|| Does::Sends(200, r#"{"messages": [], "reward": NaN}"#), Upstream, "not of the protocol"),
        (|| Does::Sends(200, r#"{"messages": [], "reward": 1e999}"#), Upstream, "out of range"),
        (|| Does::Sends(200, r#"{"rewards": 1}"#), Upstream, "unknown field `rewards`"),
        (|| Does::Sends(500, ""), Upstream, "status 500"),
        (|| Does::Fails(500, "internal", "KeyError: 'x'"), Internal, "KeyError: 'x'"),
        (|| Does::Breaks(ServiceError::Upstream("connection refused".into())), Upstream, "connection refused"),
        (|| Does::Breaks(ServiceError::Limit("more than 9 bytes".into())), Limit, "more than 9 bytes"),
    ] {
        match server.fails(does).await {
            Failure::Guest { code: got, message, .. } => {
                assert!(got == code && message.contains(words), "{got} {message}");
            }
            other => panic!("{other}"),
        }
    }
    // What can be read is checked like the word of any environment.
    for (does, words) in [
        ((|| Does::Says(json!({ "messages": [] }))) as fn() -> Does, "neither stops nor says anything"),
        (|| Does::Says(json!({ "stop": { "kind": "terminated", "reason": "" } })), "stop reason"),
        (|| Does::Says(json!({ "messages": [], "reward": 1e10 })), "reward"),
        (|| Does::Says(json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] })), "`other`"),
        (|| Does::Sends(200, r#"{"messages": [{"role": "user", "content": "x"}], "sampling": [1]}"#), "sampling"),
    ] {
        match server.fails(does).await {
            Failure::Invalid(reason) => assert!(reason.contains(words), "{reason}"),
            other => panic!("{other}"),
        }
    }
    let short = Moody::new(Limits { call_timeout: Duration::from_millis(500), ..limits() }).await;
    let late = short.fails(|| Does::Hangs).await;
    assert!(matches!(late, Failure::CallTimeout { .. }), "{late}");
}

#[tokio::test]
async fn a_server_that_comes_back_serves_new_rollouts() {
    let up = Arc::new(AtomicBool::new(true));
    let (is_up, known) = (up.clone(), AtomicBool::new(false));
    // What is gone has forgotten its configurations when it comes back.
    let served = served(move |path, asked| match (is_up.load(Ordering::SeqCst), path) {
        (false, _) => {
            known.store(false, Ordering::SeqCst);
            Does::Breaks(ServiceError::Upstream("connection refused".into()))
        }
        (true, "/configure") => {
            known.store(true, Ordering::SeqCst);
            parrot(path, asked)
        }
        (true, "/task" | "/rollouts") if !known.load(Ordering::SeqCst) => Does::Fails(410, "invalid_state", "who?"),
        (true, _) => parrot(path, asked),
    })
    .await;
    served.play(0).await.unwrap();
    up.store(false, Ordering::SeqCst);
    let error = served.play(0).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(guest(error), (GuestErrorCode::Upstream, "connection refused".into()));
    up.store(true, Ordering::SeqCst);
    served.play(0).await.unwrap();
}

#[tokio::test]
async fn a_rollout_that_failed_is_freed_at_the_server() {
    let server = Moody::new(limits()).await;
    let freed = async |times: usize| {
        while server.served.seen("DELETE /rollouts/r1") < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    server.fails(|| Does::Fails(500, "internal", "KeyError: 'x'")).await;
    freed(1).await;
    // An answer that is refused here is none that the server knows of.
    server.fails(|| Does::Says(json!({ "messages": [] }))).await;
    freed(2).await;
    assert_eq!(server.served.seen("DELETE"), 2);
}

#[tokio::test]
async fn another_environment_at_the_address_is_refused() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        let other = Arc::new(Mutex::new(None::<(&str, Value)>));
        let (now, known) = (other.clone(), AtomicBool::new(true));
        let answers = move |path: &str, asked: &Value| {
            let mut other = info();
            let changed = now.lock().unwrap().clone();
            let is_changed = changed.is_some();
            if let Some((key, value)) = changed {
                other[key] = value;
            }
            match path {
                "/configure" => {
                    known.store(true, Ordering::SeqCst);
                    Does::Says(json!({ "configuration": "c", "info": other }))
                }
                // It was started anew, and knows nothing of before.
                "/task" | "/rollouts" if is_changed && !known.swap(false, Ordering::SeqCst) => {
                    Does::Fails(410, "invalid_state", "who?")
                }
                _ => parrot(path, asked),
            }
        };
        let served = start(answers, json!({}), limits(), isolation).await.unwrap_or_else(|e| panic!("{e}"));
        served.play(0).await.unwrap();
        let task = served.pool.task("train", 0, 0).await.unwrap();
        for (key, value, words) in [
            ("name", json!("crow"), "it is `crow` 2.0.0 now and was `parrot` 2.0.0"),
            ("version", json!("3"), "it is `parrot` 3"),
            ("splits", json!([{ "name": "eval", "size": 3 }]), "`eval` with 3 tasks"),
            ("components", json!([{ "name": "right", "weight": 0.25 }]), "`right` with weight 0.25"),
        ] {
            *other.lock().unwrap() = Some((key, value));
            // Twice, since the one that does not know the configuration says so every other time.
            let mut told = Vec::new();
            for member in 0..2 {
                match served.pool.open(&task, context(member)).await {
                    Ok(session) => drop(session),
                    Err(error) => told.push(error.to_string()),
                }
            }
            assert!(told.iter().any(|text| text.contains(words)), "{isolation:?} {told:?}");
        }
        *other.lock().unwrap() = None;
        served.play(0).await.unwrap();
    }
}
