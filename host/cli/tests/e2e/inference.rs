//! `prl inference` from the command line to the socket.

use crate::support::{Running, Scratch, model, refused};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

fn words(more: &str) -> String {
    let model = model().display().to_string();
    format!("inference --model.name {model} --served-model-name tiny --device cpu --kv-cache-gb 0.25 {more}")
}

/// A server on a free port, and where it is.
pub fn start(scratch: &Scratch, more: &str) -> (Running, String) {
    let mut running = Running::start(scratch.command(&words(&format!("--server.port 0 {more}"))));
    running.wait_for("Serving tiny on http://127.0.0.1:");
    running.wait_for_line_after("Serving tiny on http://")
}

fn ask(address: &str, method: &str, path: &str, body: &str, key: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn it_serves_updates_and_stops() {
    let scratch = Scratch::new();
    let (running, address) = start(&scratch, "");
    let post = |path: &str, body: Value| {
        let (status, text) = ask(&address, "POST", path, &body.to_string(), "none");
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    assert_eq!(ask(&address, "GET", "/health", "", "none").0, 200);
    let request = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Reverse the text: abc"}], "temperature": 0,
    });
    let (status, before) = post("/v1/chat/completions", request.clone());
    assert_eq!((status, &before["choices"][0]["finish_reason"]), (200, &json!("stop")), "{before}");

    assert_eq!(post("/update_weights", json!({"weight_dir": model()})).1["version"], 1);
    assert_eq!(post("/v1/chat/completions", request).1["choices"][0]["message"], before["choices"][0]["message"]);
    let other = scratch.copy_of(&model(), "other");
    let config = std::fs::read_to_string(other.join("config.json")).unwrap();
    let config = config.replace("\"rope_theta\": 10000.0", "\"rope_theta\": 20000.0");
    std::fs::write(other.join("config.json"), config).unwrap();
    let (status, answer) = post("/update_weights", json!({"weight_dir": other}));
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("another one than is served"), "{answer}");

    // The port is taken now.
    let port = address.rsplit_once(':').unwrap().1;
    refused(&scratch.prl(&words(&format!("--server.port {port}"))), &["cannot listen on", port, "server.port"]);

    running.signal("TERM");
    let done = running.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(143), ""), "{done}");
}

#[test]
fn keys_come_from_the_environment() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&words("--server.port 0 --server.api-key-var PRL_TEST_KEY"));
    command.env("PRL_TEST_KEY", "secret");
    let mut running = Running::start(command);
    running.wait_for("Serving tiny on http://127.0.0.1:");
    let (running, address) = running.wait_for_line_after("Serving tiny on http://");
    assert_eq!(ask(&address, "GET", "/v1/models", "", "guess").0, 401);
    assert_eq!(ask(&address, "GET", "/v1/models", "", "secret").0, 200);
    assert_eq!(ask(&address, "POST", "/resume", "", "guess").0, 401);
    running.signal("INT");
    let done = running.wait();
    assert_eq!(done.code, Some(130), "{done}");
    assert!(!done.stdout.contains("secret"));
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let scratch = Scratch::new();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    for (words, want) in [
        (words(&format!("--server.port {port}")), "cannot listen on"),
        (words("--server.port 70000"), "server.port"),
        (words("--server.host 203.0.113.7"), "cannot listen on"),
        (words("--server.api-key-var PRL_NO_SUCH_VARIABLE"), "PRL_NO_SUCH_VARIABLE"),
        (words("--server.port 0 --model.max-model-len 100000"), "model.max_model_len"),
        (words("--server.port 0 --kv-cache-gb 0.000001"), "keys and values"),
        ("inference --server.port 0 --model.name nowhere".into(), "model.name"),
        ("inference --exact --kernels reference".into(), "exact"),
        ("inference --max-seqs 5".into(), "max_num_seqs"),
    ] {
        let done = scratch.prl(&words);
        assert_eq!(done.code, Some(2), "{words}: {done}");
        assert!(done.stderr.starts_with("error: ") && done.stderr.contains(want), "{words}: {done}");
    }
    let done = scratch.prl(&words("--dry-run --seed 7")).ok();
    assert!(done.stdout.contains("seed = 7") && scratch.path("outputs/configs/inference.toml").is_file(), "{done}");
    let again = "inference @ outputs/configs/inference.toml --output-dir again --dry-run";
    scratch.prl(again).ok();
    assert!(scratch.prl("inference --help").ok().stdout.contains("--server.liveness-timeout-seconds"));
}
