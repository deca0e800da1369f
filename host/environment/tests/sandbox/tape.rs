//! What services answered is taken down with the rollout that asked, and given out again in place of asking.

use super::common::{Lines, context, limits};
use super::services::{config, probe, services, tell};
use futures::future::{join, join_all};
use futures::{FutureExt, future::BoxFuture};
use prl_environment::{
    Answer, Assets, Bytes, Http, HttpClient, HttpRequest, HttpResponse, Isolation, Pool, Served, Service, ServiceError,
    Services, Session, Tape,
};
use std::sync::Arc;

/// The pool that rollouts are run again in: nothing stands behind its grants but files.
async fn again(assets: Option<Assets>) -> Pool {
    let services = Services { assets, ..Services::default() };
    let config = config(Isolation::Rollout, services, &Lines::default());
    Pool::start_again(&probe(limits()).await, config, Served::default()).await.unwrap()
}

async fn open(pool: &Pool, member: u32, tape: &Tape) -> Session {
    let task = pool.task("train", 0, 0).await.unwrap();
    let mut session = pool.open_taped(&task, context(member), tape.clone()).await.unwrap();
    session.start().await.unwrap();
    session
}

async fn tell_all(pool: &Pool, tape: &Tape, commands: &[&str]) -> Vec<String> {
    let mut session = open(pool, 0, tape).await;
    let mut told = Vec::new();
    for command in commands {
        told.push(tell(&mut session, command).await.unwrap());
    }
    told
}

/// As a log keeps it.
fn written(tape: &Tape) -> Served {
    serde_json::from_str(&serde_json::to_string(&tape.served()).unwrap()).unwrap()
}

/// Hash of `key=secret`.
const QUERY: &str = "0b60fff1753750c4f6bf79e452dc672101e0d623289e86855f9801be575d1e72";

/// With secrets in its answer's headers, and no text in its body.
struct Web;

impl HttpClient for Web {
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
        assert_eq!(request.headers, [("x-probe".to_owned(), "1".to_owned())]);
        let headers = vec![
            ("Set-Cookie".into(), "id=secret".into()),
            ("date".into(), "today".into()),
            ("location".into(), "https://example.org/api/next?key=secret#top".into()),
        ];
        async { Ok(HttpResponse { status: 404, headers, body: vec![0x61, 0xff] }) }.boxed()
    }
}

#[tokio::test]
async fn answers_are_given_again_without_asking() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("words.txt"), "apple pear").unwrap();
    let assets = Assets::open(temp.path()).unwrap();
    let http = Http::new(&["https://example.org/api".to_owned()], Arc::new(Web)).unwrap();
    let live = Services { assets: Some(assets.clone()), http: Some(http), ..services(0) };
    let config = config(Isolation::Rollout, live, &Lines::default());
    let pool = Pool::start(&probe(limits()).await, config).await.unwrap();
    let commands = [
        "judge four",
        "judges a bb never ccc",
        "judges a bb ccc",
        "stranger",
        "set a 12",
        "get a",
        "get none",
        "fetch https://example.org/api/secret/x?key=secret",
        "fetch https://example.org/other/secret?key=secret",
        "asset words.txt",
        "asset none.txt",
    ];
    let tape = Tape::record();
    let told = tell_all(&pool, &tape, &commands).await;
    assert_eq!((told[0].as_str(), told[5].as_str()), ("4", "Some([49, 50])"));
    let served = written(&tape);
    assert_eq!(served, tape.served());
    assert_eq!(served.asked.len(), 14, "{served:?}");
    let calls: Vec<&str> = served.asked.iter().map(|exchange| exchange.call.as_str()).collect();
    assert_eq!((calls[0], calls[1], calls[4], calls[5], calls[13]), ("step 0", "step 1", "step 1", "step 2", "step 8"));
    let fetched = &served.asked[12];
    assert_eq!((fetched.service, fetched.request[1].1.as_str()), (Service::Http, "https://example.org"));
    assert_eq!(fetched.request[2].0, "path");
    let body = Bytes(vec![0x61, 0xff]);
    let headers = vec![
        ("Set-Cookie".into(), String::new()),
        ("date".into(), "today".into()),
        ("location".into(), format!("https://example.org/api/next?prl-sealed={QUERY}-10")),
    ];
    assert_eq!(fetched.answer, Some(Answer::Http { status: 404, headers, body }));
    let text = serde_json::to_string(&served).unwrap();
    assert!(!text.contains("secret") && !text.contains("x-probe"), "{text}");
    let read: Vec<(&str, bool)> = served.files.iter().map(|(name, digest)| (name.as_str(), digest.is_some())).collect();
    assert_eq!(read, [("none.txt", false), ("words.txt", true)]);

    let played = Tape::play(served.clone());
    assert_eq!(tell_all(&again(Some(assets.clone())).await, &played, &commands).await, told);
    assert_eq!((played.finding(), played.unasked()), (None, None));

    // A published file is told apart by its content, also under the eyes of a run.
    assert_eq!(assets.changed(&served.files).unwrap(), None);
    std::fs::write(temp.path().join("words.txt"), "apple pearl").unwrap();
    let changed = Assets::open(temp.path()).unwrap().changed(&served.files).unwrap().unwrap();
    assert!(changed.starts_with("the file `words.txt` was sha256:"), "{changed}");
    assert_eq!(assets.changed(&served.files).unwrap(), Some(changed));
    std::fs::remove_file(temp.path().join("words.txt")).unwrap();
    let gone = Assets::open(temp.path()).unwrap().changed(&served.files).unwrap().unwrap();
    assert!(gone.ends_with("now not there"), "{gone}");
}

#[tokio::test]
async fn an_address_that_an_answer_led_to_is_the_one_of_then() {
    let http = || Some(Http::new(&["https://example.org/api".to_owned()], Arc::new(Web)).unwrap());
    let live = config(Isolation::Rollout, Services { http: http(), ..services(0) }, &Lines::default());
    let pool = Pool::start(&probe(limits()).await, live).await.unwrap();
    let tape = Tape::record();
    tell_all(&pool, &tape, &["fetch https://example.org/api/next?key=secret"]).await;
    let found = async |served: Served, command: &str| {
        let tape = Tape::play(served);
        tell_all(&again(None).await, &tape, &[command]).await;
        tape.finding().unwrap_or_default()
    };
    let now = format!("fetch https://example.org/api/next?prl-sealed={QUERY}-10");
    assert_eq!(found(written(&tape), &now).await, "");
    let other = found(written(&tape), "fetch https://example.org/api/other?key=secret").await;
    assert!(
        other.starts_with("request 1 (in `step 0`) asked the server something else: path was \"sha256:"),
        "{other}"
    );
    // Older logs hold the path as it is.
    let mut old = written(&tape);
    old.asked[0].request.remove(2);
    old.asked[0].request[1].1 = "https://example.org/api/next".into();
    assert_eq!(found(old, "fetch https://example.org/api/next?key=secret").await, "");
}

#[tokio::test]
async fn the_first_other_request_is_the_finding() {
    let config = config(Isolation::Rollout, services(0), &Lines::default());
    let pool = Pool::start(&probe(limits()).await, config).await.unwrap();
    let long = format!("judge {}", "long ".repeat(200));
    let tape = Tape::record();
    tell_all(&pool, &tape, &["judge one", &long, "get a"]).await;
    let served = written(&tape);
    assert!(!serde_json::to_string(&served).unwrap().contains("long long"), "long texts are hashes");
    let replay = again(None).await;
    let found = async |commands: &[&str]| {
        let tape = Tape::play(served.clone());
        tell_all(&replay, &tape, commands).await;
        tape.finding().or(tape.unasked()).unwrap_or_default()
    };
    assert_eq!(found(&["judge one", &long, "get a"]).await, "");
    assert_eq!(
        found(&["judge two", &long, "get a"]).await,
        "request 1 (in `step 0`) asked the model something else: message 0 (user) was \"one\", now \"two\""
    );
    let other = found(&["judge one", "judge other"]).await;
    assert!(
        other.starts_with("request 2 (in `step 1`) asked the model something else: message 0 (user) was \"sha256:")
    );
    assert_eq!(
        found(&["judge one", &long, "set a 1"]).await,
        "request 3 (in `step 2`) asked the map something else: without get \"a\""
    );
    assert!(found(&["get a"]).await.starts_with("request 1 (in `step 0`) was to the model: role \"judge\""));
    assert_eq!(
        found(&["judge one", &long, "get a", "get b"]).await,
        "request 4 (in `step 3`) is one more than before, to the map: get \"b\""
    );
    assert_eq!(found(&["judge one", &long]).await, "request 3 (in `step 2`) is no longer made: the map: get \"a\"");
    assert_eq!(found(&["echo x", "judge one"]).await, "request 1 (in `step 1`) was made in `step 0`");
}

#[tokio::test]
async fn rollouts_in_one_instance_have_a_tape_each() {
    let config = config(Isolation::Worker, services(5), &Lines::default());
    let pool = Pool::start(&probe(limits()).await, config).await.unwrap();
    let (words, tapes) = (["a", "bb", "ccc"], [(); 3].map(|()| Tape::record()));
    let one = async |at: usize| {
        let mut session = open(&pool, at as u32, &tapes[at]).await;
        for round in 0..3 {
            let text = format!("judge {}", words[at].repeat(round + 1));
            assert_eq!(tell(&mut session, &text).await.unwrap(), ((at + 1) * (round + 1)).to_string());
        }
    };
    let untaped = async {
        let mut session = open(&pool, 7, &Tape::default()).await;
        tell(&mut session, "judge nobody").await.unwrap();
    };
    join(join_all((0..3).map(one)), untaped).await;
    for (word, tape) in words.iter().zip(&tapes) {
        let asked = tape.served().asked;
        let texts: Vec<&str> = asked.iter().map(|exchange| exchange.request[1].1.as_str()).collect();
        assert_eq!(texts, [word.to_string(), word.repeat(2), word.repeat(3)]);
    }
}

#[tokio::test]
async fn what_is_not_kept_is_told() {
    let config = config(Isolation::Rollout, services(60_000), &Lines::default());
    let pool = Pool::start(&probe(limits()).await, config).await.unwrap();
    // Given up in the middle of a request.
    let tape = Tape::record();
    let mut session = open(&pool, 0, &tape).await;
    let asked = tokio::time::timeout(std::time::Duration::from_millis(100), tell(&mut session, "judge four")).await;
    assert!(asked.is_err());
    assert_eq!(
        written(&tape).refusal().unwrap(),
        "not replayable: in `step 0` it ended while it waited for the model: request 1"
    );
    // Too much: the same value, again and again.
    let tape = Tape::record();
    let mut session = open(&pool, 0, &tape).await;
    tell(&mut session, &format!("set a {}", "x".repeat(900))).await.unwrap();
    for _ in 0..10 {
        tell(&mut session, "get a").await.unwrap();
    }
    assert_eq!(tape.served().refusal(), None);
    for _ in 0..5000 {
        tell(&mut session, "get a").await.unwrap();
    }
    let served = written(&tape);
    assert!(served.asked.is_empty());
    assert_eq!(served.refusal().unwrap(), "not replayable: what services answered is above 4 MiB and was not kept");
}
