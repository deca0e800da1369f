//! `prl eval`: a model's folder and a server give the same kind of numbers; `prl replay` of what they leave.

use crate::support::{Running, Scratch, model, refused, repo, rows};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

fn words(env: &str, rest: &str) -> String {
    format!("eval {} {rest}", repo().join(format!("envs/{env}.wasm")).display())
}

#[test]
fn a_folder_is_evaluated_and_its_rollouts_replay() {
    let scratch = Scratch::new();
    let rest = format!("--model {} -n 4 -r 4 --pass-reward 0.5 --device cpu", model().display());
    let first = scratch.prl(&words("reverse-text", &format!("{rest} --output out"))).ok().stdout;
    for part in ["avg@4", "pass@1", "pass@4", "mean format", "eval/0"] {
        assert!(first.contains(part), "no {part} in {first}");
    }
    let summary: Value = serde_json::from_str(&fs::read_to_string(scratch.path("out/summary.json")).unwrap()).unwrap();
    let results = rows(&scratch.path("out/results.jsonl"));
    assert_eq!((results.len(), summary["rollouts"].as_u64()), (16, Some(16)));
    let mean = results.iter().map(|row| row["reward"].as_f64().unwrap()).sum::<f64>() / 16.0;
    assert!((mean - summary["avg"].as_f64().unwrap()).abs() < 1e-12, "{mean} and {summary}");
    let ids = &results[0]["replay"]["turns"][0]["ids"];
    assert_eq!(ids.as_array().unwrap().len() as u64, results[0]["turns"][0]["tokens"].as_u64().unwrap());

    // The same seed gives the same answers; another one does not.
    let same = |seed: u64, out: &str| {
        scratch.prl(&words("reverse-text", &format!("{rest} --seed {seed} --output {out} --json"))).ok();
        let said = |row: &crate::support::Row| row["turns"][0]["message"]["content"].clone();
        rows(&scratch.path(&format!("{out}/results.jsonl"))).iter().map(said).collect::<Vec<_>>()
            == results.iter().map(said).collect::<Vec<_>>()
    };
    assert!(same(0, "again") && !same(1, "other"));

    let replayed = scratch.prl("replay out").ok().stdout;
    assert!(replayed.contains("16 of 16 rollouts are hash-equal"), "{replayed}");
    refused(&scratch.prl(&words("reverse-text", &format!("{rest} --output out"))), &["--output", "already"]);
    refused(&scratch.prl(&words("reverse-text", "--model ./none --device cpu")), &["--model", "./none"]);
    refused(&scratch.prl(&words("reverse-text", &format!("{rest} --max-model-len 100000"))), &["--max-model-len"]);
    refused(&scratch.prl(&words("reverse-text", &format!("{rest} --temperature 3"))), &["--temperature"]);
    refused(&scratch.prl(&words("reverse-text", &format!("{rest} --split test"))), &["--split", "test"]);
}

#[test]
fn a_changed_record_is_told() {
    let scratch = Scratch::new();
    scratch.rl("run", "--max-steps 1").ok();
    let all = scratch.prl("replay run").ok().stdout;
    assert!(all.contains("rollouts are hash-equal (reverse-text sha256:"), "{all}");
    let one = scratch.prl("replay run --step 1 --train --rollout 3").ok().stdout;
    assert!(one.contains("1 of 1 rollouts are hash-equal"), "{one}");
    let path = scratch.path("run/rollouts/step_1/train/all/traces.jsonl");
    let mut lines: Vec<Value> = rows(&path).into_iter().map(Value::Object).collect();
    lines[2]["turns"][0]["message"]["content"] = "<reversed_text>something else</reversed_text>".into();
    lines[5]["replay"]["score"]["components"][0]["value"] = 0.5.into();
    lines[6].as_object_mut().unwrap().remove("replay");
    let write =
        |lines: &[Value]| fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    write(&lines);
    let changed = scratch.prl("replay run --step 1 --train");
    assert_eq!(changed.code, Some(1), "{changed}");
    assert_eq!(changed.stdout.matches(" differs: ").count(), 2, "{changed}");
    assert!(changed.stdout.contains("the score was") && changed.stdout.contains("the line was changed"), "{changed}");
    assert!(
        changed.stdout.contains("13 of 15 rollouts are hash-equal") && changed.stdout.contains("1 skipped"),
        "{changed}"
    );

    lines.remove(6);
    lines.iter_mut().for_each(|line| line["replay"]["env"]["sha256"] = "00".into());
    write(&lines);
    refused(&scratch.prl("replay run --step 1 --train"), &["sha256:00", "another one", "--env FILE"]);
    fs::write(&path, "{}\n").unwrap();
    refused(&scratch.prl("replay run --step 1"), &["traces.jsonl, line 1"]);
    refused(&scratch.prl("replay run --step 7"), &["step 7", "0 to 2"]);
    refused(&scratch.prl("replay run --step 0 --rollout 99.9"), &["99.9"]);
    refused(&scratch.prl("replay nowhere"), &["nowhere"]);
}

/// Answers `count` requests by turning the last message round; gives the requests.
fn server(count: usize) -> (String, std::thread::JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let one = move |_| {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut chunk = [0; 4096];
        let body: Value = loop {
            let n = stream.read(&mut chunk).unwrap();
            seen.extend(&chunk[..n]);
            let text = String::from_utf8_lossy(&seen);
            let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
            if let Some(body) = body {
                break body;
            }
        };
        let messages = body["messages"].as_array().unwrap();
        let text: String = messages.last().unwrap()["content"].as_str().unwrap().chars().rev().collect();
        let said = json!({ "role": "assistant", "content": format!("<reversed_text>{text}</reversed_text>") });
        let answer =
            json!({ "choices": [{ "message": said, "finish_reason": "stop" }], "usage": { "completion_tokens": 9 } });
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
        stream.write_all((head + &answer).as_bytes()).unwrap();
        body
    };
    (url, std::thread::spawn(move || (0..count).map(one).collect()))
}

#[test]
fn a_server_is_evaluated() {
    let scratch = Scratch::new();
    let (url, server) = server(6);
    let rest =
        format!("--base-url {url} --model some/model -n 3 -r 2 --max-tokens 50 --temperature 0.5 --output out --json");
    let mut command = scratch.command(&words("reverse-text", &rest));
    command.env("OPENAI_API_KEY", "secret");
    let summary: Value = serde_json::from_str(&Running::start(command).wait().ok().stdout).unwrap();
    assert_eq!((summary["avg"].as_f64(), summary["pass"]["2"].as_f64()), (Some(1.0), Some(1.0)));
    assert_eq!(summary["completion_tokens"].as_f64(), Some(9.0));
    for request in server.join().unwrap() {
        assert_eq!((&request["model"], &request["max_tokens"]), (&json!("some/model"), &json!(50)), "{request}");
        assert_eq!(request["temperature"], 0.5);
        assert!(request["seed"].is_u64(), "{request}");
    }
    assert!(scratch.prl("replay out/results.jsonl").ok().stdout.contains("6 of 6 rollouts are hash-equal"));

    refused(
        &scratch.prl(&words("reverse-text", "--base-url http://127.0.0.1:9/v1 --model m --max-retries 0")),
        &["--base-url", "127.0.0.1:9"],
    );
    refused(&scratch.prl(&words("reverse-text", "--base-url localhost --model m")), &["--base-url", "http://"]);
}
