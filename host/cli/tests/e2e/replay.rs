//! `prl replay` of rollouts that asked models, servers, the scratch map and published files, and of whole groups.

use crate::support::{Finished, Running, Scratch, repo, rows};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A policy that says `says[turn]`, a judge, and pages; counts what it is asked.
fn server(says: Vec<String>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let (counted, says) = (count.clone(), says.into_iter().map(|text| text.replace("URL", &url)).collect::<Vec<_>>());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &says, counted.fetch_add(1, Ordering::SeqCst));
        }
    });
    (url, count)
}

fn answer(mut stream: TcpStream, says: &[String], number: usize) {
    let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
    let text = loop {
        let n = stream.read(&mut chunk).unwrap();
        seen.extend(&chunk[..n]);
        let text = String::from_utf8_lossy(&seen).into_owned();
        match text.split_once("\r\n\r\n") {
            Some((head, _)) if head.starts_with("GET") => break format!("page {number}"),
            Some((_, body)) => {
                let Ok(body) = serde_json::from_str::<Value>(body) else { continue };
                let messages = body["messages"].as_array().unwrap();
                let turn = messages.iter().filter(|message| message["role"] == "assistant").count();
                let said = if body["model"] == "policy" { says[turn].clone() } else { format!("verdict {number}") };
                let message = json!({ "role": "assistant", "content": said });
                break json!({ "choices": [{ "message": message, "finish_reason": "stop" }] }).to_string();
            }
            None => {}
        }
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
    stream.write_all((head + &text).as_bytes()).unwrap();
}

fn eval(scratch: &Scratch, words: &str) {
    let mut command = scratch.command(words);
    command.env("OPENAI_API_KEY", "sk-secret");
    Running::start(command).wait().ok();
}

fn lines(scratch: &Scratch) -> Vec<Value> {
    rows(&scratch.path("out/results.jsonl")).into_iter().map(Value::Object).collect()
}

fn replay(scratch: &Scratch, lines: &[Value], words: &str) -> Finished {
    scratch.write("log.jsonl", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    scratch.prl(&format!("replay log.jsonl {words}"))
}

/// https://github.com/NVIDIA-NeMo/Gym/issues/775
/// https://github.com/verl-project/verl/issues/1683
#[test]
fn rollouts_that_asked_others_are_run_again_offline() {
    let scratch = Scratch::new();
    fs::copy(repo().join("envs/probe.wasm"), scratch.path("probe.wasm")).unwrap();
    fs::create_dir(scratch.path("probe.assets")).unwrap();
    fs::write(scratch.path("probe.assets/words.txt"), "apple").unwrap();
    let says = ["get n", "judge four", "set n 1", "fetch URL/page?key=secret", "asset words.txt", "stop"];
    let (url, count) = server(says.map(str::to_owned).to_vec());
    let rest = format!("--base-url {url}/v1 --model policy --llm judge=judge@{url}/v1 --http-allow {url} -n 2 -r 2");
    eval(&scratch, &format!("eval probe.wasm {rest} --max-concurrent 1 --output out"));
    let asked = count.load(Ordering::SeqCst);
    assert_eq!(asked, 4 * 8);
    let log = lines(&scratch);
    let replies: Vec<&str> =
        log.iter().map(|line| line["turns"][0]["replies"][0]["content"].as_str().unwrap()).collect();
    assert_eq!(replies, ["None", "Some([49])", "Some([49])", "Some([49])"], "the map holds what others left");
    let text = fs::read_to_string(scratch.path("out/results.jsonl")).unwrap();
    assert!(!text.contains("sk-secret") && !text.contains("x-probe"), "neither keys nor headers are kept");

    let all = scratch.prl("replay out").ok().stdout;
    assert!(all.contains("4 of 4 rollouts are hash-equal"), "{all}");
    let one = scratch.prl("replay out --rollout 1.1").ok().stdout;
    assert!(one.contains("1 of 1 rollouts are hash-equal"), "{one}");
    assert_eq!(count.load(Ordering::SeqCst), asked, "nobody is asked again");

    // Another request than the recorded one, another answer, and answers that are not there.
    let mut changed = log.clone();
    changed[0]["replay"]["services"]["asked"][1]["request"][1][1] = "five".into();
    changed[1]["replay"]["services"]["asked"][1]["answer"]["llm"]["message"]["content"] = "another".into();
    changed[2]["replay"].as_object_mut().unwrap().remove("services");
    changed[3]["replay"]["services"] = json!({ "dropped": "too much" });
    let told = replay(&scratch, &changed, "");
    assert_eq!(told.code, Some(1), "{told}");
    for words in [
        "rollout 0.0 differs: request 2 (in `step 1`) asked the model something else: message 0 (user) was \"five\", \
         now \"four\"",
        "rollout 0.1 differs: the answer to turn 1 was",
        "0 of 2 rollouts are hash-equal",
        "2 skipped, the first: `probe` uses `http`, and its log is of a prl that did not keep what that answered",
    ] {
        assert!(told.stdout.contains(words), "no `{words}` in {told}");
    }
    let dropped = replay(&scratch, &changed[3..], "");
    assert_eq!(dropped.code, Some(2), "{dropped}");
    assert!(dropped.stderr.contains("not replayable: too much"), "{dropped}");

    // Other files than then.
    fs::write(scratch.path("probe.assets/words.txt"), "apples").unwrap();
    let other = scratch.prl("replay out");
    assert_eq!(other.code, Some(2), "{other}");
    assert!(other.stderr.contains("probe.assets`: the file `words.txt` was sha256:"), "{other}");
}

#[test]
fn groups_are_scored_again_as_a_whole() {
    let scratch = Scratch::new();
    let (url, _) = server(vec!["words".to_owned(); 3]);
    let env = repo().join("envs/misbehave.wasm");
    let rest = format!("--base-url {url}/v1 --model policy --split honest -n 2 -r 3 --output out");
    eval(&scratch, &format!("eval {} {rest}", env.display()));
    let log = lines(&scratch);
    assert!(scratch.prl("replay out").ok().stdout.contains("6 of 6 rollouts are hash-equal"));
    let one = scratch.prl("replay out --rollout 1.2").ok().stdout;
    assert!(one.contains("1 of 1 rollouts are hash-equal"), "{one}");
    // Members are gathered wherever they are.
    let mixed: Vec<Value> = [5, 0, 3, 1, 4, 2].map(|at: usize| log[at].clone()).to_vec();
    assert!(replay(&scratch, &mixed, "").ok().stdout.contains("6 of 6 rollouts are hash-equal"));
    // A part of a group has other scores only where they depend on the others.
    assert!(replay(&scratch, &log[1..5], "").ok().stdout.contains("4 of 4 rollouts are hash-equal"));
    let mut changed = log.clone();
    changed[1]["score"]["components"][0]["value"] = 1.into();
    changed[4].as_object_mut().unwrap().remove("replay");
    let told = replay(&scratch, &changed, "--json");
    assert_eq!(told.code, Some(1), "{told}");
    let verdicts: Vec<Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| verdicts.iter().find(|verdict| verdict["rollout"] == id).unwrap();
    assert_eq!((&of("0.0")["result"], &of("0.2")["result"]), (&json!("equal"), &json!("equal")));
    assert!(of("0.1")["reason"].as_str().unwrap().starts_with("its group's score was"), "{told}");
    for id in ["1.0", "1.1", "1.2"] {
        assert_eq!(of(id)["result"], "skipped", "{told}");
    }
    assert!(of("1.0")["reason"].as_str().unwrap().starts_with("its group cannot be scored again: of 1.1:"), "{told}");
}
