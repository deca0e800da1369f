//! `prl env`: looking at environments, trying them out, making and building them.

use crate::support::{Running, Scratch, refused, repo};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

fn reverse_text() -> String {
    repo().join("envs/reverse-text.wasm").display().to_string()
}

#[test]
fn a_cache_that_cannot_be_used_is_told_once() {
    let (scratch, cache) = (Scratch::new(), "cache/prl/wasm");
    fs::create_dir_all(scratch.path(cache)).unwrap();
    fs::set_permissions(scratch.path(cache), fs::Permissions::from_mode(0o755)).unwrap();
    let mut inspect = scratch.command(&format!("env inspect {}", reverse_text()));
    inspect.env("XDG_CACHE_HOME", scratch.path("cache"));
    let told = Running::start(inspect).wait().ok().stderr;
    assert!(told.starts_with("warning: compiled environments are not kept:") && told.contains("chmod 700"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn environments_are_listed_and_inspected() {
    let scratch = Scratch::new();
    fs::write(scratch.path("broken.wasm"), "#!/bin/sh").unwrap();
    let mut list = scratch.command("env list --json");
    list.env("PRL_ENV_PATH", repo().join("envs"));
    let listed: Vec<Value> = serde_json::from_str(&Running::start(list).wait().ok().stdout).unwrap();
    let of = |id: &str| listed.iter().find(|entry| entry["id"] == id).unwrap_or_else(|| panic!("no {id}: {listed:?}"));
    assert_eq!(of("reverse-text")["path"].as_str(), Some(reverse_text().as_str()));
    assert!(of("broken")["error"].as_str().unwrap().contains("is not a WASM file"));
    // A folder of an env.wasm is listed under the name that leads to it.
    fs::create_dir(scratch.path("packed")).unwrap();
    fs::copy(reverse_text(), scratch.path("packed/env.wasm")).unwrap();
    let listed: Vec<Value> = serde_json::from_str(&scratch.prl("env list --json").ok().stdout).unwrap();
    let packed = listed.iter().find(|entry| entry["id"] == "packed").expect("it is listed");
    assert_eq!((&packed["name"], &packed["version"]), (&Value::from("reverse-text"), &Value::from("0.1.0")));
    assert!(scratch.prl("env inspect packed").ok().stdout.contains("reverse-text 0.1.0"));

    let text = scratch.prl(&format!("env inspect {}", reverse_text())).ok().stdout;
    for part in
        ["reverse-text 0.1.0", "sha256:", "prl:env 0.1.0", "eval (256 tasks)", "max_chars", "<= 39", "always there"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let info: Value =
        serde_json::from_str(&scratch.prl(&format!("env inspect {} --json", reverse_text())).ok().stdout).unwrap();
    assert_eq!((&info["name"], &info["sha256"]), (&Value::from("reverse-text"), &of("reverse-text")["sha256"]));
    assert_eq!(info["args_schema"]["properties"]["max_chars"]["default"], 24);
    assert_eq!(info["imports"][0]["kind"], "always");

    refused(&scratch.prl("env inspect none"), &["no environment `none`", "PRL_ENV_PATH"]);
    refused(&scratch.prl("env inspect broken.wasm"), &["broken.wasm", "not a WASM file"]);
    fs::create_dir(scratch.path("empty")).unwrap();
    refused(&scratch.prl("env inspect empty"), &["empty", "without a .wasm file"]);
    let unknown = ["env", "inspect", &reverse_text(), "--args", r#"{"max_char": 3}"#];
    refused(&Running::start(scratch.command_of(&unknown)).wait(), &["max_char"]);
    refused(&scratch.prl(&format!("env inspect {} --args [", reverse_text())), &["--args", "no JSON"]);
}

/// https://github.com/PrimeIntellect-ai/verifiers/issues/1982
/// https://github.com/PrimeIntellect-ai/verifiers/pull/1934
#[test]
fn a_good_environment_passes_and_a_bad_one_does_not() {
    let scratch = Scratch::new();
    let good = scratch.prl(&format!("env check {} --tasks 1", reverse_text())).ok().stdout;
    for part in ["determinism", "hash-equal", "leaks", "bad answers", "`reverse-text` keeps the contract"] {
        assert!(good.contains(part), "no {part} in {good}");
    }
    assert!(!good.contains("FAIL"));
    let bad = scratch.prl(&format!("env check {}", repo().join("envs/misbehave.wasm").display()));
    assert_eq!(bad.code, Some(1), "{bad}");
    assert!(bad.stdout.contains("FAIL") && bad.stdout.contains("does not keep the contract"), "{bad}");
    refused(&scratch.prl("env check none"), &["none"]);
    refused(&scratch.prl(&format!("env check {} --call-timeout 0", reverse_text())), &["--call-timeout"]);
}

#[test]
fn a_person_can_play_and_the_speed_is_told() {
    let scratch = Scratch::new();
    let said = scratch.path("said");
    fs::write(&said, "<reversed_text>dneps elims</reversed_text>\n\n").unwrap();
    let mut play = scratch.command(&format!("env play {} --split eval", reverse_text()));
    play.stdin(Stdio::from(fs::File::open(&said).unwrap()));
    let played = Running::start(play).wait().ok().stdout;
    assert!(played.contains("smile spend") && played.contains("Reward 1"), "{played}");
    let given_up = scratch.prl(&format!("env play {}", reverse_text())).ok().stdout;
    assert!(given_up.contains("Not finished"), "{given_up}");
    refused(&scratch.prl(&format!("env play {} --split test", reverse_text())), &["test", "train, eval"]);
    refused(&scratch.prl(&format!("env play {} --split eval --index 256", reverse_text())), &["256"]);

    let words = format!("env bench {} --seconds 0.05 --live 20 --json", reverse_text());
    let report: Value = serde_json::from_str(&scratch.prl(&words).ok().stdout).unwrap();
    assert_eq!((report["live"].as_u64(), report["calls"].as_array().unwrap().len()), (Some(20), 4));
    assert!(report["rollouts_per_second"].as_f64().unwrap() > 0.0, "{report}");
    refused(&scratch.prl(&format!("env bench {} --seconds 0", reverse_text())), &["--seconds"]);
}

/// The template builds, passes its own test, and its component keeps the contract.
#[test]
fn a_new_environment_in_rust_works_as_it_is() {
    let scratch = Scratch::new();
    let sdk = repo().join("sdk");
    let made = scratch.prl(&format!("env new two-sums --sdk {}", sdk.display())).ok().stdout;
    assert!(made.contains("cd two-sums"), "{made}");
    let source = fs::read_to_string(scratch.path("two-sums/src/lib.rs")).unwrap();
    assert!(source.contains("pub struct TwoSums") && source.contains("\"two-sums\""), "{source}");
    refused(&scratch.prl(&format!("env new two-sums --sdk {}", sdk.display())), &["two-sums", "already"]);
    for name in ["2x", "A", "a/b", "a-", "self"] {
        refused(&scratch.prl(&format!("env new {name} --sdk {}", sdk.display())), &[name]);
    }
    refused(&scratch.prl("env new x --sdk nowhere"), &["nowhere"]);
    refused(&scratch.prl("env build nowhere"), &["nowhere"]);
    fs::create_dir(scratch.path("empty")).unwrap();
    refused(&scratch.prl("env build empty"), &["empty", "prl env new"]);

    // One target folder for all runs of this test: what it depends on is compiled once.
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("new-environment");
    let tested = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--offline", "--quiet"])
        .current_dir(scratch.path("two-sums"))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .unwrap();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    let mut build = scratch.command("env build two-sums -o built.wasm");
    build.env("CARGO_TARGET_DIR", &target).env("CARGO_NET_OFFLINE", "true");
    let built = Running::start(build).wait();
    if built.code == Some(2) && built.stderr.contains("rustup target add") {
        // Without a standard library for WASM there is a message and nothing else.
        return;
    }
    assert!(built.ok().stdout.contains("built.wasm: two-sums 0.1.0"));
    let checked = scratch.prl("env check built.wasm --tasks 1").ok();
    assert!(checked.stdout.contains("`built` keeps the contract"), "{checked}");
}

#[test]
fn a_new_environment_in_python_is_written_by_its_sdk() {
    let scratch = Scratch::new();
    let words = format!("env new greet --lang python --sdk {}", repo().join("sdk").display());
    let mut missing = scratch.command(&words);
    missing.env("PRL_PYTHON", "no-such-python");
    refused(&Running::start(missing).wait(), &["no-such-python", "install Python"]);
    scratch.prl(&words).ok();
    assert!(fs::read_to_string(scratch.path("greet/greet.py")).unwrap().contains("prl_env"));
    refused(&scratch.prl(&words), &["greet", "already"]);
    for name in ["json", "self-", "2x"] {
        refused(&scratch.prl(&words.replace("greet", name)), &[name, "cannot be the name of an environment"]);
    }
}

#[test]
fn a_lone_binary_holds_the_python_sdk() {
    let scratch = Scratch::new();
    let binary = scratch.path("prl");
    fs::copy(env!("CARGO_BIN_EXE_prl"), &binary).unwrap();
    let alone = |words: &str| {
        let mut command = Command::new(&binary);
        command.args(words.split(' ')).current_dir(scratch.path("")).env_remove("PYTHONPATH").stdin(Stdio::null());
        command.env("XDG_CACHE_HOME", scratch.path("cache"));
        Running::start(command).wait()
    };
    alone("env new greet --lang python").ok();
    assert!(scratch.path("greet/greet.py").is_file());
    scratch.write("greet/json.py", "");
    refused(&alone("env build greet/json.py"), &["json", "cannot be the name"]);
    refused(&alone("env new sums"), &["--sdk"]);
}

/// What a host would not take never stands where a component belongs.
#[test]
fn a_refused_build_leaves_nothing_behind() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("mine")).unwrap();
    scratch.write("mine/mine.py", "import prl_env");
    // In Python's place: writes something else than a component to the path after `-o`.
    let python = scratch.write("python", "#!/bin/sh\nfor word; do out=$word; done\necho none > \"$out\"\n");
    fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut build = scratch.command("env build mine");
    build.env("PRL_PYTHON", &python);
    refused(&Running::start(build).wait(), &["mine/mine.wasm` is not a WASM file"]);
    let left: Vec<_> = fs::read_dir(scratch.path("mine")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine.py"]);
    refused(&scratch.prl("env build mine -o no/such/folder.wasm"), &["there is no folder"]);
}

#[test]
fn references_must_be_right_and_pinned() {
    let scratch = Scratch::new();
    refused(&scratch.prl("env pull reverse-text"), &["reverse-text", "oci://"]);
    refused(&scratch.prl("env pull oci://127.0.0.1:9/words"), &["version or a digest"]);
    let pinned = format!("oci://127.0.0.1:9/words:1@sha256:{}", "0".repeat(64));
    refused(&scratch.prl(&format!("env push {} {pinned}", reverse_text())), &["no digest"]);
    refused(&scratch.prl("env push none oci://127.0.0.1:9/words:1"), &["none"]);
    let gone = scratch.prl("env pull oci://127.0.0.1:9/words:1");
    assert_eq!((gone.code, gone.stdout.as_str()), (Some(1), ""), "{gone}");
    assert!(gone.stderr.contains("127.0.0.1:9"), "{gone}");
    // A run names one content for good.
    let run = scratch.rl("out", "--orchestrator.train.env.0.id oci://127.0.0.1:9/words:1");
    refused(&run, &["orchestrator.train.env.0", "no digest", "prl env pull"]);
    assert!(!scratch.path("out").exists());
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1574
#[test]
fn live_rollouts_take_no_file_descriptors() {
    let scratch = Scratch::new();
    let prl = scratch.command("").get_program().to_owned();
    let mut limited = Command::new("sh");
    let words =
        format!("ulimit -n 64 && exec {} env bench {} --live 1000 --seconds 0.05", prl.display(), reverse_text());
    limited.args(["-c", &words]).current_dir(scratch.path("")).stdin(Stdio::null());
    limited.env("XDG_CACHE_HOME", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"));
    let told = Running::start(limited).wait().ok().stdout;
    assert!(told.contains("1000 live rollouts"), "{told}");
}
