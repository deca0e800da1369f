//! `prl algo`: looking at algorithm plug-ins, trying them out, and making them.

use crate::plugin::built;
use crate::support::{Finished, Running, Scratch, refused, repo};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const BUILT_IN: [&str; 6] = ["echo", "grpo", "max_rl", "opd", "opsd", "sft"];

fn json(done: &Finished) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

#[test]
fn algorithms_are_listed_and_inspected() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("more")).unwrap();
    scratch.write("more/libmine.so", "no library");
    let listing = |words: &str| {
        let mut list = scratch.command(words);
        list.env("PRL_PLUGIN_PATH", scratch.path("more"));
        Running::start(list).wait().ok()
    };
    let listed = json(&listing("algo list --json"));
    let of = |name: &str| listed.as_array().unwrap().iter().find(|entry| entry["name"] == name).cloned();
    for name in BUILT_IN {
        assert!(of(name).is_some_and(|entry| entry["abi"] == "1.0"), "no {name} in {listed}");
    }
    assert_eq!(of("echo").unwrap()["hooks"], json!(["score_rollout", "score_group"]));
    let text = listing("algo list").stdout;
    assert!(text.contains("libmine.so") && text.contains("is not a plug-in"), "{text}");

    let text = scratch.prl("algo inspect echo").ok().stdout;
    for part in ["echo 0.1.0", "libecho.so", "1.0", "score_rollout, score_group", "roles.tool.alpha", "> 0", "nothing"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let about = json(&scratch.prl("algo inspect opsd --json").ok());
    assert_eq!((&about["action_loss"], &about["reference"]), (&json!("ref_kl"), &json!("policy")));
    assert_eq!(about["config_schema"]["properties"]["demo_key"]["default"], "demonstration");
    refused(&scratch.prl("algo inspect gpro"), &["no algorithm `gpro`", "`grpo`", "PRL_PLUGIN_PATH"]);
    refused(&scratch.prl("algo inspect more/libmine.so"), &["more/libmine.so", "not an ELF"]);
    refused(&scratch.prl("algo inspect ./none.so"), &["none.so", "cannot read"]);
    refused(&scratch.prl("algo list --plugin ./none.so"), &["none.so"]);
}

#[test]
fn the_built_in_algorithms_keep_the_contract() {
    let scratch = Scratch::new();
    for name in BUILT_IN {
        let text = scratch.prl(&format!("algo check {name}")).ok().stdout;
        for part in ["metadata", "options", "results", "panics", "determinism", "state", "speed"] {
            assert!(text.lines().any(|line| line.starts_with("ok") && line.contains(part)), "{part}: {text}");
        }
        assert!(text.contains(&format!("`{name}` keeps the contract")), "{text}");
    }
    let wrong = ["algo", "check", "echo", "--config", r#"{"roles": {}}"#];
    refused(&Running::start(scratch.command_of(&wrong)).wait(), &["`echo`", "roles: none has a weight"]);
    // A group of one's own that the algorithm cannot work with.
    let group = scratch.write("group.json", r#"{"rewards": [1], "task_payload": {"other": "key"}}"#);
    let done = scratch.prl(&format!("algo check opsd --input {group}"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stdout.contains("these checks failed: results") && done.stdout.contains("demonstration"), "{done}");
}

#[test]
fn plugins_outside_the_workspace_are_checked() {
    let scratch = Scratch::new();
    let rae = scratch.prl(&format!("algo check {}", built("rae"))).ok().stdout;
    assert!(rae.contains("bytes; what loads them goes on with the same numbers"), "{rae}");
    let gspo = scratch.prl(&format!("algo check {}", built("gspo"))).ok().stdout;
    for part in ["loss", "gradient", "packing"] {
        assert!(gspo.lines().any(|line| line.starts_with(&format!("ok    {part}"))), "{part}: {gspo}");
    }
    assert!(gspo.contains("loss") && gspo.contains("on 131072 tokens"), "{gspo}");
    let misbehave = built("misbehave");
    for (mode, failed) in [("panic", "panics, loss"), ("nan", "results, loss")] {
        let config = json!({ "mode": mode }).to_string();
        let done = Running::start(scratch.command_of(&["algo", "check", &misbehave, "--config", &config])).wait();
        assert_eq!(done.code, Some(1), "{done}");
        assert!(done.stdout.contains(&format!("these checks failed: {failed}\n")), "{mode}: {done}");
    }

    // Its loss on written tokens: one sequence whose ratio is 1, so that nothing is clipped.
    let tokens = r#"{"trainer_logprobs": [-1, -2], "inference_logprobs": [-2, -1], "advantages": [1, 1]}"#;
    let tokens = scratch.write("tokens.json", tokens);
    let result = json(&scratch.prl(&format!("algo loss {} --input {tokens}", built("gspo"))).ok());
    assert_eq!((&result["loss"], &result["grad"]), (&json!(-1.0), &json!([-0.5, -0.5])));
    assert_eq!(result["metrics"]["ratio"], json!(1.0));
}

#[test]
fn groups_are_scored() {
    let scratch = Scratch::new();
    let one =
        scratch.write("one.json", r#"{"rewards": [1, 0, 0.5], "output_tokens": [2, 0, 1], "input_tokens": [1, 2, 0]}"#);
    let result = json(&scratch.prl(&format!("algo score grpo --input {one}")).ok());
    assert_eq!((&result["algorithm"], &result["action_loss"]), (&json!("grpo"), &json!("rl")));
    assert_eq!(result["advantages"], json!([0.5, null, 0.0]));
    assert_eq!(result["streams"][0][0]["advantages"], json!([0.0, 0.5, 0.5]));
    assert_eq!(
        (&result["streams"][0][0]["ce_weights"], &result["dropped"]),
        (&Value::Null, &json!([null, null, null]))
    );

    let list = scratch.write("list.json", r#"[{"rewards": [1, 0]}, {"rewards": [0.25, 0.75]}]"#);
    let results = json(&scratch.prl(&format!("algo score max_rl --input {list}")).ok());
    assert_eq!((&results[0]["advantages"], &results[1]["advantages"]), (&json!([1.0, -1.0]), &json!([-0.5, 0.5])));
    let lines = scratch.write("lines.jsonl", "{\"rewards\": [1, 0]}\n{\"rewards\": [3]}\n");
    let told = scratch.prl(&format!("algo score grpo --input {lines}")).ok().stdout;
    let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((told.len(), &told[1]["advantages"]), (2, &json!([0.0])));

    let observed = json!({ "rewards": [1], "masks": [[0, 1, 0, 0]], "roles": [["tool", "assistant", "tool", "tool"]],
                           "contents": [[1, 1, 0, 1]] });
    let observed = scratch.write("observed.json", observed.to_string());
    let words = ["algo", "score", "echo", "--input", &observed, "--config", r#"{"roles": {"tool": {"alpha": 0.5}}}"#];
    let result = json(&Running::start(scratch.command_of(&words)).wait().ok());
    assert_eq!(result["streams"][0][0]["ce_weights"], json!([0.0, 0.0, 0.0, 0.5]));
    let demo = json!({ "rewards": [1], "task_payload": { "demonstration": "so" }, "ref_logprobs": [[-1, -2]] });
    let demo = scratch.write("demo.json", demo.to_string());
    let result = json(&scratch.prl(&format!("algo score opsd --input {demo}")).ok());
    assert!(result["prefixes"][0][0][0]["content"].as_str().unwrap().contains("<demonstration>\nso\n"), "{result}");
    assert_eq!(result["streams"][0][0]["ref_kl_weights"], json!([0.0, 1.0]));

    refused(&scratch.prl(&format!("algo score opd --input {one}")), &["one.json", "`opd` needs", "ref_logprobs"]);
    refused(&scratch.prl("algo score grpo --input none.json"), &["none.json"]);
    for (text, words) in [
        ("[{\"rewards\": [1]}, {\"reward\": [1]}]", &["item 1", "unknown field `reward`"][..]),
        ("{\"rewards\": [1, \"x\"]}", &["rewards[1]", "invalid type"]),
        ("{\"rewards\": [1], \"turns\": [1, 2]}", &["`turns` has 2 entries for 1 rollouts"]),
        ("{\"rewards\": [1]", &["is no JSON", "EOF"]),
        ("{}", &["`rewards` is missing"]),
        ("", &["is empty"]),
    ] {
        let file = scratch.write("bad.json", text);
        refused(&scratch.prl(&format!("algo score grpo --input {file}")), &[&["bad.json"], words].concat());
    }
    refused(&scratch.prl(&format!("algo score grpo --input {one} --config 3")), &["--config", "no JSON object"]);
    refused(
        &scratch.prl(&format!("algo score grpo --input {one} --config {{\"k\":1}}")),
        &["`grpo`", "unknown field `k`"],
    );
}

#[test]
fn losses_are_computed() {
    let scratch = Scratch::new();
    let tokens = json!({ "trainer_logprobs": [-1, -1, -1], "inference_logprobs": [-1, -1, -1], "advantages": [2, -1, 5],
                         "ref_logprobs": [-0.5, -1, -1], "mask": [1, 1, 0], "sequence_lengths": [1, 2] });
    let file = scratch.write("tokens.json", tokens.to_string());
    let loss = |name: &str| json(&scratch.prl(&format!("algo loss {name} --input {file}")).ok());
    // The policy did not move: ratio 1, so that each member loses -A/2.
    let result = loss("default");
    assert_eq!((&result["loss"], &result["grad"]), (&json!(-0.5), &json!([-1.0, 0.5, 0.0])));
    assert_eq!(result["metrics"]["mismatch_kl"], json!(0.0));
    assert_eq!(loss("ipo")["grad"], json!([-1.0, 0.5, 0.0]));
    assert_eq!((&loss("ce")["loss"], &loss("ce")["grad"]), (&json!(1.0), &json!([-0.5, -0.5, 0.0])));
    assert_eq!((&loss("ref_kl")["loss"], &loss("ref_kl")["grad"]), (&json!(-0.25), &json!([-0.25, 0.0, 0.0])));
    let halved = ["algo", "loss", "default", "--input", &file, "--config", r#"{"adv_tau": 0.5}"#];
    assert_eq!(json(&Running::start(scratch.command_of(&halved)).wait().ok())["loss"], json!(-0.25));

    let unknown = ["algo", "loss", "default", "--input", &file, "--config", r#"{"adv_tua": 0.5}"#];
    refused(&Running::start(scratch.command_of(&unknown)).wait(), &["`default`", "adv_tua"]);
    let no_options = ["algo", "loss", "ce", "--input", &file, "--config", r#"{"k": 1}"#];
    refused(&Running::start(scratch.command_of(&no_options)).wait(), &["`ce` has no options", "`k`"]);
    refused(
        &scratch.prl(&format!("algo loss grpo --input {file}")),
        &["`grpo` has no loss", "default, ipo, ce or ref_kl"],
    );
    refused(&scratch.prl(&format!("algo loss nope --input {file}")), &["no algorithm `nope`"]);
    let bare = scratch.write("bare.json", r#"{"trainer_logprobs": [-1], "inference_logprobs": [-1]}"#);
    refused(&scratch.prl(&format!("algo loss default --input {bare}")), &["bare.json", "`advantages` is missing"]);
    refused(&scratch.prl(&format!("algo loss ref_kl --input {bare}")), &["bare.json", "`ref_logprobs` is missing"]);
    let far = r#"{"trainer_logprobs": [1e30], "inference_logprobs": [-1], "advantages": [1]}"#;
    let far = scratch.write("far.json", far);
    refused(&scratch.prl(&format!("algo loss default --input {far}")), &["far.json", "too far apart"]);
    let short = scratch.write("short.json", r#"{"trainer_logprobs": [-1, -1], "mask": [1]}"#);
    refused(&scratch.prl(&format!("algo loss ce --input {short}")), &["`mask` has 1 entries for 2 tokens"]);
}

/// The template builds, passes its own test, and keeps the contract.
#[test]
fn a_new_algorithm_in_rust_works_as_it_is() {
    let scratch = Scratch::new();
    let sdk = repo().join("sdk");
    let made = scratch.prl(&format!("algo new my-algo --sdk {}", sdk.display())).ok().stdout;
    assert!(made.contains("cd my-algo && cargo test") && made.contains("libmy_algo.so"), "{made}");
    let source = fs::read_to_string(scratch.path("my-algo/src/lib.rs")).unwrap();
    assert!(source.contains("struct MyAlgo") && source.contains("\"my-algo\""), "{source}");
    assert!(fs::read_to_string(scratch.path("my-algo/README.md")).unwrap().contains("release/libmy_algo.so"));
    refused(&scratch.prl(&format!("algo new my-algo --sdk {}", sdk.display())), &["my-algo", "already"]);
    for name in ["2x", "A", "a/b", "self", "prl_sdk"] {
        refused(&scratch.prl(&format!("algo new {name} --sdk {}", sdk.display())), &[name]);
    }
    refused(&scratch.prl("algo new x --sdk nowhere"), &["nowhere"]);

    // One target folder for all runs of this test: what it depends on is compiled once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-algorithm");
    for words in [["test", "--offline", "--quiet"], ["build", "--release", "--offline"]] {
        let done = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(words)
            .current_dir(scratch.path("my-algo"))
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let library = target.join("release/libmy_algo.so");
    let checked = scratch.prl(&format!("algo check {}", library.display())).ok();
    assert!(checked.stdout.contains("`my-algo` keeps the contract"), "{checked}");
    let listed = scratch.prl(&format!("algo list --plugin {}", library.display())).ok();
    assert!(listed.stdout.contains("my-algo"), "{listed}");
}

/// Compiles a C file beside its header; false (and a line) without a compiler.
fn cc(scratch: &Scratch, words: &str) -> bool {
    let words = words.split(' ');
    match Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        .args(words)
        .current_dir(scratch.path(""))
        .output()
    {
        Ok(built) => {
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            true
        }
        Err(_) => {
            eprintln!("skipped: no C compiler named `cc`");
            false
        }
    }
}

#[test]
fn a_new_algorithm_in_c_works_as_it_is_and_faults_are_found() {
    let scratch = Scratch::new();
    let made = scratch.prl("algo new mine --lang c").ok().stdout;
    assert!(made.contains("cd mine && cc") && made.contains("prl algo check ./mine.so"), "{made}");
    if !cc(&scratch, "mine/test.c -o mine/test") {
        return;
    }
    let tested = Command::new(scratch.path("mine/test")).output().unwrap();
    assert_eq!((tested.status.code(), tested.stdout.as_slice()), (Some(0), &b"ok\n"[..]));
    let shared = |file: &str| cc(&scratch, &format!("-fPIC -shared mine/{file}.c -o mine/{file}.so"));
    assert!(shared("mine"));
    let checked = scratch.prl("algo check mine/mine.so").ok();
    assert!(checked.stdout.contains("`mine` keeps the contract"), "{checked}");

    // The same with a fault of each kind.
    let source = fs::read_to_string(scratch.path("mine/mine.c")).unwrap();
    let advantage = "(reward[i] - reward[0]) - mean)";
    assert!(source.contains(advantage));
    let hidden = "static double calls; calls += 1;";
    let body = "static int32_t score_group(void *self, const prl_group *group) {";
    for (fault, text, failed) in [
        ("nan", source.replace(advantage, "(reward[i] - reward[0]) / 0.0)"), "results"),
        (
            "state",
            source.replace(advantage, "reward[i] + calls)").replace(body, &format!("{body} {hidden}")),
            "determinism, state",
        ),
        ("lenient", source.replace("config.len != 2 || memcmp(config.ptr, \"{}\", 2) != 0", "!config.len"), "options"),
    ] {
        scratch.write(&format!("mine/{fault}.c"), text);
        assert!(shared(fault));
        let done = scratch.prl(&format!("algo check mine/{fault}.so"));
        assert_eq!(done.code, Some(1), "{fault}: {done}");
        assert!(done.stdout.contains(&format!("these checks failed: {failed}\n")), "{fault}: {done}");
    }
}
