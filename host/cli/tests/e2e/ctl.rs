//! A running run is told things, and an algorithm runs beside it.

use crate::plugin::built;
use crate::support::{Running, Scratch, refused};
use std::fs;
use std::path::Path;

/// A shipped algorithm's file.
fn shipped(name: &str) -> String {
    Path::new(env!("CARGO_BIN_EXE_prl")).with_file_name(format!("lib{name}.so")).display().to_string()
}

#[test]
fn a_run_tells_where_it_stands_takes_a_new_algorithm_and_stops() {
    let scratch = Scratch::new();
    refused(&scratch.prl("ctl status nowhere"), &["no run listens in `nowhere`", "output directory"]);
    // Longer than the name of a socket can be.
    let out = "deep/".repeat(30) + "out";
    let words = scratch.rl_words(&out, "--max-steps 100000 --no-orchestrator.eval");
    let mut running = Running::start(scratch.command(&words));
    running.wait_for("Step 1 ");
    let status = scratch.prl(&format!("ctl status {out} --json")).ok();
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert!(status["step"].as_u64().unwrap() >= 1 && status["max_steps"] == 100_000, "{status}");
    assert_eq!(status["algorithms"]["reverse-text"], "grpo");
    assert!(scratch.prl(&format!("ctl status {out}")).ok().stdout.contains(" of 100000 | grpo on reverse-text"));

    fs::copy(shipped("grpo"), scratch.path("rebuilt.so")).unwrap();
    let done = scratch.prl(&format!("ctl swap-algo {out} rebuilt.so")).ok();
    assert!(
        done.stdout.starts_with("environment `reverse-text`: grpo ") && done.stdout.contains(" from step "),
        "{done}"
    );
    running.wait_for("algorithm grpo is ");
    let swap = |words: &str| scratch.prl(&format!("ctl swap-algo {out} {words}"));
    refused(&swap(&shipped("max_rl")), &["no environment uses the algorithm `max_rl`", "`reverse-text` has `grpo`"]);
    refused(&swap("rebuilt.so --env other"), &["no training environment `other`", "there are `reverse-text`"]);
    refused(&swap("missing.so"), &["missing.so"]);
    fs::write(scratch.path("empty.so"), "").unwrap();
    refused(&swap("empty.so"), &["empty.so", "empty"]);

    scratch.prl(&format!("ctl stop {out}")).ok();
    let done = running.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(143), ""), "{done}");
    refused(&scratch.prl(&format!("ctl stop {out}")), &["no run listens"]);
}

#[test]
fn fine_tuning_is_reached_too() {
    let scratch = Scratch::new();
    let toml = crate::support::repo().join("examples/reverse_text/sft.toml");
    let words = format!("sft @ {} --output-dir out --max-steps 100000 --data.batch-size 1", toml.display());
    let mut running = Running::start(scratch.command(&words));
    running.wait_for("Step 1 |");
    let status = scratch.prl("ctl status out").ok().stdout;
    assert!(status.contains(" of 100000 | process "), "{status}");
    assert!(scratch.prl("inspect out").ok().stdout.contains(" is running"));
    refused(&scratch.prl(&format!("ctl swap-algo out {}", shipped("grpo"))), &["uses no algorithm"]);
    scratch.prl("ctl stop out").ok();
    let done = running.wait();
    assert_eq!((done.code, done.stderr.as_str()), (Some(143), ""), "{done}");
}

#[test]
fn a_loss_is_swapped_with_its_algorithm() {
    let (scratch, plugin) = (Scratch::new(), built("gspo"));
    let loss = "--trainer.loss.type custom --trainer.loss.name gspo";
    let words = format!("--max-steps 100000 --no-orchestrator.eval --plugin {plugin} {loss}");
    for (algo, swapped) in [("grpo", 1), ("gspo", 2)] {
        let mut running = Running::start(
            scratch.command(&scratch.rl_words(algo, &format!("{words} --orchestrator.algo.type {algo}"))),
        );
        running.wait_for("Step 1 ");
        let done = scratch.prl(&format!("ctl swap-algo {algo} {plugin}")).ok();
        assert_eq!(done.stdout.lines().count(), swapped, "{done}");
        assert!(done.stdout.contains("the loss: gspo ") && done.stdout.contains(" from step "), "{done}");
        let other = scratch.prl(&format!("ctl swap-algo {algo} {plugin} --env reverse-text"));
        match algo {
            "grpo" => refused(&other, &["no environment uses the algorithm `gspo`"]),
            _ => assert!(!other.ok().stdout.contains("the loss"), "only the environment's"),
        }
        running.wait_for("Step ");
        scratch.prl(&format!("ctl stop {algo}")).ok();
        assert_eq!(running.wait().code, Some(143));
    }
}

#[test]
fn a_shadow_is_measured_and_trains_nothing() {
    let scratch = Scratch::new();
    let words = "--max-steps 2 --no-orchestrator.eval";
    scratch.rl("alone", words).ok();
    let shadow = r#"--orchestrator.shadow-algo [{"type":"max_rl"},{"type":"grpo"}]"#;
    scratch.rl("beside", &format!("{words} {shadow}")).ok();
    let (alone, beside) = (scratch.run("alone"), scratch.run("beside"));
    assert_eq!(alone.weights(2), beside.weights(2));
    assert_eq!(beside.series("algo/shadow/max_rl/failed"), [0.0; 2]);
    assert_eq!(beside.series("algo/shadow/grpo/advantages/std"), beside.series("algo/grpo/advantages/std"));
    assert_ne!(beside.series("algo/shadow/max_rl/advantages/std"), beside.series("algo/grpo/advantages/std"));
    let correlation = beside.series("algo/shadow/max_rl/correlation")[0];
    assert!(correlation > 0.99, "{correlation}");
    assert!(!alone.steps()[0].contains_key("algo/grpo/advantages/std"));
    for (shadow, words) in [
        (r#"[{"type":"opd"}]"#, "`opd` needs a reference or a source that the run's `grpo` does not have"),
        (r#"[{"type":"nothing"}]"#, "`orchestrator.shadow_algo.0.type`"),
    ] {
        refused(&scratch.rl("no", &format!("--max-steps 1 --orchestrator.shadow-algo {shadow}")), &[words]);
    }
}
