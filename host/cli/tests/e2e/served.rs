//! Environments that are served over HTTP, from the command line: a small server in here says what a served environment would.

use crate::support::{Running, SMALL, Scratch, model, refused, repo, rows};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The texts that are to be reversed.
fn text(index: u64) -> String {
    let word = |k: u64| ["ab", "cde", "fa", "bed", "cab", "deaf"][((index * 7 + k * 3) % 6) as usize];
    format!("{} {}", word(0), word(1))
}

/// What a server counts.
struct Server {
    /// Scores that it still gives.
    left: AtomicUsize,
    /// Rollouts that were opened and not scored, now and at most.
    live: AtomicUsize,
    peak: AtomicUsize,
}

/// Says what the environment says; `None` where the connection breaks instead.
fn says(path: &str, asked: &Value, Server { left, live, peak }: &Server) -> Option<(u16, Value)> {
    let info = json!({ "name": "mirror", "version": "3.1.0", "description": "Reverse it.",
        "args_schema": { "type": "object", "properties": {}, "additionalProperties": false },
        "splits": [{ "name": "train" }, { "name": "eval", "size": 16 }],
        "components": [{ "name": "alike", "weight": 1 }], "tags": [] });
    let parts: Vec<&str> = path.trim_start_matches("/v0.1/").split('/').collect();
    Some(match parts[..] {
        ["info"] => (200, info),
        ["configure"] if asked["args"] != json!({}) => (
            400,
            json!({ "error": { "code": "invalid_config", "message": "no arguments, please", "retryable": false } }),
        ),
        ["configure"] => (200, json!({ "configuration": "c", "info": info })),
        ["task"] => {
            let index = asked["index"].as_u64().unwrap();
            let prompt = json!([{ "role": "user", "content": text(index) }]);
            let task = json!({ "split": asked["split"], "index": index, "seed": asked["seed"], "key": format!("{}{index}", asked["split"]),
                "prompt": prompt, "answer": text(index), "max_turns": 1 });
            (200, task)
        }
        ["rollouts"] => {
            peak.fetch_max(live.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            (200, json!({ "id": "r" }))
        }
        ["rollouts", _, "start"] if left.load(Ordering::SeqCst) == ILL => {
            (500, json!({ "error": { "code": "internal", "message": "the disk is full", "retryable": false } }))
        }
        ["rollouts", _, "start"] => (200, json!({})),
        ["rollouts", _, "step"] => (200, json!({ "stop": { "kind": "terminated", "reason": "answered" } })),
        ["rollouts", _, "score"] => {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok()?;
            live.fetch_sub(1, Ordering::SeqCst);
            // Rewards that differ: there is something to learn from.
            let value = (left.load(Ordering::SeqCst) % 3) as f64 / 2.0;
            (200, json!({ "components": [{ "name": "alike", "value": value }] }))
        }
        _ => (404, json!({ "error": { "code": "unsupported", "message": "no such thing", "retryable": false } })),
    })
}

fn connection(stream: TcpStream, server: &Server) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let (mut line, mut head) = (String::new(), String::new());
        while reader.read_line(&mut line)? > 2 {
            head += &std::mem::take(&mut line).to_ascii_lowercase();
        }
        let Some(path) = head.split(' ').nth(1).map(str::to_owned) else { return Ok(()) };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let asked = serde_json::from_slice(&body).unwrap_or_default();
        let Some((status, answer)) = says(&path, &asked, server) else { return Ok(()) };
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 {status} said\r\ncontent-length: {}\r\n\r\n", answer.len());
        writer.write_all((head + &answer).as_bytes())?;
    }
}

/// Serves the environment; after `scores` rollouts it breaks off whenever it is asked for another score.
fn server(scores: usize) -> String {
    counting(scores).0
}

/// The same, with its counts.
fn counting(scores: usize) -> (String, Arc<Server>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let counts = Server { left: AtomicUsize::new(scores), live: AtomicUsize::new(0), peak: AtomicUsize::new(0) };
    let counts = Arc::new(counts);
    let server = counts.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = server.clone();
            // A client that is gone ends its connection.
            std::thread::spawn(move || drop(connection(stream, &server)));
        }
    });
    (url, counts)
}

const MANY: usize = 1_000_000;
/// Such a server starts no rollout.
const ILL: usize = usize::MAX;

#[test]
fn a_server_stands_wherever_a_file_does() {
    let (scratch, url) = (Scratch::new(), server(MANY));
    let outside = format!("outside the sandbox at {url}");
    let shown = scratch.prl(&format!("env inspect {url}")).ok().stdout;
    assert!(shown.starts_with("mirror 3.1.0") && shown.contains(&outside), "{shown}");
    let json: Value = serde_json::from_str(&scratch.prl(&format!("env inspect {url} --json")).ok().stdout).unwrap();
    assert_eq!(json["unsandboxed"], url.as_str());
    let file = repo().join("envs/arithmetic.wasm");
    let file = scratch.prl(&format!("env inspect {} --json", file.display())).ok().stdout;
    assert_eq!(serde_json::from_str::<Value>(&file).unwrap()["unsandboxed"], Value::Null);
    let checked = scratch.prl(&format!("env check {url} --tasks 1")).stdout;
    assert!(checked.contains(&outside) && checked.contains("ok    rollouts"), "{checked}");
    let bench = scratch.prl(&format!("env bench {url} --live 2 --seconds 0.05")).ok();
    assert!(bench.stdout.contains(&outside) && bench.stderr.starts_with("warning: environment `mirror`"), "{bench}");

    refused(&scratch.prl("env inspect http://127.0.0.1:9"), &["`http://127.0.0.1:9`", "refused", "serve-python"]);
    refused(&scratch.prl(&format!("env inspect {url}/other")), &["no such thing"]);
    refused(&scratch.prl("env inspect http://"), &["`http://` is no address"]);
    refused(&scratch.prl(&format!("env inspect {url}?x=1")), &["may hold no `?`"]);
    refused(&scratch.prl(&format!("env inspect {url} --http-allow http://a")), &["--http-allow", &url]);
    refused(&scratch.prl(&format!("env play {url} --args {{\"x\":1}}")), &["`args.x`"]);
    refused(&scratch.prl(&format!("env push {url} oci://127.0.0.1:9/a:1")), &["is a server"]);
}

#[test]
fn a_model_is_evaluated_outside_the_sandbox_and_that_is_not_replayed() {
    let (scratch, url) = (Scratch::new(), server(MANY));
    let model = model().display().to_string();
    let done =
        scratch.prl(&format!("eval {url} --model {model} -n 3 -r 2 --device cpu --max-tokens 8 --output out")).ok();
    assert_eq!(done.stderr, format!("warning: environment `mirror` runs outside the sandbox at {url}\n"));
    let summary: Value = serde_json::from_str(&fs::read_to_string(scratch.path("out/summary.json")).unwrap()).unwrap();
    assert_eq!((summary["unsandboxed"].as_str(), summary["errors"].as_u64()), (Some(url.as_str()), Some(0)));
    let results = rows(&scratch.path("out/results.jsonl"));
    assert_eq!((results.len(), results[0]["replay"]["env"]["unsandboxed"].as_str()), (6, Some(url.as_str())));
    refused(&scratch.prl("replay out"), &["`mirror` ran outside the sandbox at", &url, "no rollout can be run again"]);
}

fn configured(scratch: &Scratch, url: &str, more: &str) -> String {
    let example = fs::read_to_string(repo().join("examples/reverse_text/rl.toml")).unwrap();
    let toml = example
        .replace("../../envs/reverse-text.wasm\"", &format!("{url}\"\nname = \"mirror\"\n{more}"))
        .replace("name = \"model\"", &format!("name = \"{}\"", model().display()));
    scratch.write("rl.toml", toml)
}

#[test]
fn a_run_trains_on_a_served_environment() {
    let (scratch, url) = (Scratch::new(), server(MANY));
    let toml = configured(&scratch, &url, "");
    let done = scratch.prl(&format!("rl @ {toml} {SMALL} --output-dir out --max-steps 2")).ok();
    let warning = format!("environment `mirror` runs outside the sandbox at {url}");
    assert_eq!(done.stdout.matches(&warning).count(), 1, "{done}");
    let traces = rows(&scratch.path("out/rollouts/step_1/train/all/traces.jsonl"));
    assert_eq!((traces.len(), traces[0]["error"].is_null()), (16, true));
    assert_eq!(traces[0]["replay"]["env"]["unsandboxed"], url.as_str());
    assert!(fs::read_to_string(scratch.path("out/logs/envs/train/mirror/env_server.log")).unwrap().contains(&warning));
    refused(&scratch.prl("replay out"), &["ran outside the sandbox"]);

    let toml = configured(&scratch, &url, "grants = [\"assets\"]");
    refused(&scratch.prl(&format!("rl @ {toml} --output-dir no")), &["orchestrator.train.env.0.grants", &url]);
    let toml = configured(&scratch, "http://127.0.0.1:9", "");
    refused(&scratch.prl(&format!("rl @ {toml} --output-dir no")), &["`mirror`", "http://127.0.0.1:9", "refused"]);
    assert!(!scratch.path("no").exists());
}

#[test]
fn a_server_that_is_gone_fails_rollouts_and_then_the_run() {
    let (scratch, url) = (Scratch::new(), server(40));
    let toml = configured(&scratch, &url, "");
    let words = format!("rl @ {toml} {SMALL} --output-dir out --max-steps 100");
    let done = Running::start(scratch.command(&words)).wait();
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stderr.contains("mirror") && done.stderr.contains("upstream failure"), "{done}");
    assert!(done.stderr.trim_end().ends_with("out/logs/orchestrator.log"), "{done}");
    let traces = rows(&scratch.path("out/rollouts/step_1/train/all/traces.jsonl"));
    // None of those that failed has a reward.
    assert!(traces.iter().all(|row| row["error"].is_null() || row["score"]["components"] == json!([])), "{done}");
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/3139
/// https://github.com/PrimeIntellect-ai/prime-rl/issues/834
#[test]
fn an_environment_that_fails_before_the_first_turn_ends_the_run_with_its_words_and_its_log() {
    let (scratch, url) = (Scratch::new(), server(ILL));
    let toml = configured(&scratch, &url, "");
    let done = scratch.prl(&format!("rl @ {toml} {SMALL} --no-orchestrator.eval --output-dir out --max-steps 100"));
    let log = scratch.path("out/logs/envs/train/mirror/env_server.log");
    let see = format!("; see {}\n", log.display());
    refused(&done, &["environment `mirror` failed on its first task", "the disk is full", see.as_str()]);
    assert!(done.stderr.ends_with(&see), "{done}");
    let told = fs::read_to_string(log).unwrap();
    assert!(told.contains("ERROR environment `mirror` failed on its first task"), "{told}");
    assert!(!done.stdout.contains("failed on its first task"), "told twice: {done}");
    // Nobody waited: no step was taken, and no group but those that were under way was begun.
    assert_eq!(fs::read_to_string(scratch.path("out/metrics.jsonl")).unwrap(), "");
    assert!(rows(&scratch.path("out/rollouts/step_1/train/all/traces.jsonl")).len() <= 16);
}

/// https://github.com/PrimeIntellect-ai/verifiers/issues/400
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1574
#[test]
fn no_more_rollouts_are_open_at_once_than_may_be() {
    let (scratch, (url, counts)) = (Scratch::new(), counting(MANY));
    let toml = configured(&scratch, &url, "max_concurrent = 3");
    scratch.prl(&format!("rl @ {toml} {SMALL} --no-orchestrator.eval --output-dir out --max-steps 2")).ok();
    let peak = counts.peak.load(Ordering::SeqCst);
    assert!((1..=3).contains(&peak), "{peak} at once");
    assert_eq!(rows(&scratch.path("out/rollouts/step_2/train/all/traces.jsonl")).len(), 16);
}
