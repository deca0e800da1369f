//! Configuration as the binary sees it: dry runs, dumps, help.

use crate::support::{Scratch, files, refused as assert_refused, repo};
use std::fs;

#[test]
fn a_dry_run_writes_what_loads_to_the_same() {
    let scratch = Scratch::new();
    let done = scratch.rl("out", "--dry-run --max-steps 2 --seed 7").ok();
    assert!(done.stdout.contains("max_steps = 2"), "{done}");
    let dumped = files(&scratch.path("out"));
    let names: Vec<&str> = dumped.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["configs/", "configs/inference.toml", "configs/orchestrator.toml", "configs/rl.toml", "configs/trainer.toml"]
    );
    fs::copy(scratch.path("out/configs/rl.toml"), scratch.path("again.toml")).unwrap();
    scratch.prl("rl @ again.toml --dry-run").ok();
    assert!(files(&scratch.path("out")) == dumped, "another dump");

    // The dump runs, too.
    scratch.prl("rl @ again.toml").ok();
    scratch.rl("flags", "--max-steps 2 --seed 7").ok();
    assert!(scratch.run("out").weights(2) == scratch.run("flags").weights(2), "other weights");
}

#[test]
fn algorithms_of_environments_are_mixed_in_one_run() {
    let scratch = Scratch::new();
    let env = repo().join("envs/reverse-text.wasm");
    let one = |name: &str, algo: &str| format!("[[orchestrator.train.env]]\nid = {env:?}\nname = \"{name}\"\n{algo}\n");
    let mixed =
        [one("a", ""), one("b", "algo = { type = \"max_rl\" }"), one("c", "algo = { type = \"echo\" }")].concat();
    let mixed = scratch.write("mixed.toml", mixed);
    let words = format!("@ {mixed} --max-steps 1");
    let dry = scratch.rl("dry", &format!("{words} --dry-run")).ok();
    assert!(dry.stdout.contains("orchestrator.train.env.1.algo.type = \"max_rl\""), "{dry}");
    let done = scratch.rl("run", &words).ok();
    assert!(done.stdout.contains("algorithm echo, grpo, max_rl"), "{done}");
    scratch.prl("rl @ dry/configs/rl.toml --dry-run").ok();

    let refused = |more: &str, words: &[&str]| {
        assert_refused(&scratch.rl("bad", &format!("@ {mixed} {more}")), words);
    };
    refused(
        "--orchestrator.train.env.1.algo.k 1",
        &["`orchestrator.train.env.1.algo`", "`max_rl`", "unknown field `k`"],
    );
    refused("--orchestrator.train.env.2.algo.type nope", &["`orchestrator.train.env.2.algo.type`", "`nope`"]);
    let lone = scratch.rl("bad", &format!("@ {mixed} --orchestrator.train.env.1.group-size 1"));
    assert_eq!(lone.code, Some(2), "{lone}");
    assert!(lone.stderr.contains("`group_size` of environment `b` is 1, but `max_rl` compares"), "{lone}");
}

#[test]
fn a_dry_run_leaves_a_finished_run_alone() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 1 --no-ckpt").ok();
    let before = files(&scratch.path("out"));
    let done = scratch.rl("out", "--max-steps 9 --dry-run");
    assert_eq!(done.code, Some(2), "{done}");
    assert!(files(&scratch.path("out")) == before);
}

#[test]
fn every_example_is_valid() {
    let scratch = Scratch::new();
    let mut seen = 0;
    for example in fs::read_dir(repo().join("examples")).unwrap() {
        for toml in fs::read_dir(example.unwrap().path()).unwrap().map(|e| e.unwrap().path()) {
            let name = toml.file_name().unwrap().to_str().unwrap();
            let Some(kind) = ["rl", "sft"].into_iter().find(|kind| name == format!("{kind}.toml")) else { continue };
            scratch.prl(&format!("{kind} @ {} --dry-run --output-dir {kind}_{seen}", toml.display())).ok();
            seen += 1;
        }
    }
    assert!(seen >= 2);
}

#[test]
fn help_goes_to_standard_output() {
    let scratch = Scratch::new();
    for words in ["--help", "rl --help", "sft -h", "trainer --help", "doctor --help", "--version"] {
        let done = scratch.prl(words).ok();
        assert!(done.stderr.is_empty() && !done.stdout.is_empty(), "{done}");
    }
    assert!(scratch.prl("rl --help").stdout.contains("max-async-level"));
}
