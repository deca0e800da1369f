//! `prl doctor`: what it finds, what it says is missing, and its exit codes.

use crate::support::{Running, Scratch};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

#[test]
fn it_says_what_there_is_and_how_to_get_the_rest() {
    let scratch = Scratch::new();
    let text = scratch.prl("doctor").ok().stdout;
    for part in ["CPU", "grpo", "libcuda.so.1", "cuBLASLt", "NVRTC's builtins", "models", "environments"] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let report: Value = serde_json::from_str(&scratch.prl("doctor --json").ok().stdout).unwrap();
    assert!(report["cpu"]["cores"].as_u64().unwrap() > 0 && report["cpu"]["memory_gib"].as_f64().unwrap() > 0.0);
    assert_eq!(report["cpu_ready"], true);
    let names: Vec<&Value> = report["algorithms"].as_array().unwrap().iter().map(|a| &a["name"]).collect();
    for name in ["echo", "grpo", "max_rl", "opd", "opsd", "sft"] {
        assert!(names.contains(&&Value::from(name)), "no {name} in {names:?}");
    }
    let parts = report["cuda"]["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 6);
    assert_eq!(report["cuda"]["optional"][0]["name"], "NCCL");
    for part in parts {
        assert_eq!(part["found"] == true, part["remedy"] == Value::Null, "{part}");
    }
    let ready = report["cuda_ready"] == true;
    assert_eq!(ready, parts.iter().all(|part| part["found"] == true));
    assert!(!ready || (cfg!(feature = "cuda") && !report["cuda"]["gpus"].as_array().unwrap().is_empty()));

    let asked = scratch.prl("doctor --cuda");
    assert_eq!(asked.code, Some(if ready { 0 } else { 2 }), "{asked}");
    assert_eq!(asked.stderr, "");
    if !cfg!(feature = "cuda") {
        assert!(asked.stdout.contains("--features cuda") && asked.stdout.contains("Not ready for a GPU"), "{asked}");
    }
}

#[test]
fn a_binary_without_algorithms_is_not_ready() {
    let scratch = Scratch::new();
    fs::copy(env!("CARGO_BIN_EXE_prl"), scratch.path("prl")).unwrap();
    let mut alone = Command::new(scratch.path("prl"));
    alone.arg("doctor").env_remove("PRL_PLUGIN_PATH").stdin(Stdio::null());
    let done = Running::start(alone).wait();
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stdout.contains("libgrpo.so") && done.stdout.contains("there is no algorithm"), "{done}");
}

#[test]
fn a_broken_algorithm_is_named_with_its_reason() {
    let scratch = Scratch::new();
    fs::copy(env!("CARGO_BIN_EXE_prl"), scratch.path("prl")).unwrap();
    scratch.write("libgrpo.so", "no library");
    let mut alone = Command::new(scratch.path("prl"));
    alone.arg("doctor").env_remove("PRL_PLUGIN_PATH").stdin(Stdio::null());
    let done = Running::start(alone).wait();
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stdout.contains("libgrpo.so cannot be used: "), "{done}");
}

#[test]
fn a_home_that_is_no_text_is_no_obstacle() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new();
    let mut command = scratch.command("doctor --json");
    command.env("HOME", std::ffi::OsStr::from_bytes(b"/tmp/\xff")).env_remove("XDG_CACHE_HOME");
    let done = Running::start(command).wait().ok();
    assert!(serde_json::from_str::<Value>(&done.stdout).is_ok(), "{done}");
}
