//! `prl diff`: runs that are the same, and every kind of difference.

use crate::support::{Finished, Scratch, refused, rl_toml};
use serde_json::Value;
use std::fs;

/// Without a lead nothing is under way at a checkpoint, so that stopping there changes nothing.
fn rl(scratch: &Scratch, out: &str, words: &str) {
    let small = "--orchestrator.batch-size 16 --orchestrator.group-size 4 --no-orchestrator.eval";
    let words = format!("--orchestrator.max-async-level 0 --ckpt.interval 1 {words}");
    scratch.prl(&format!("rl @ {} {small} --output-dir {out} {words}", rl_toml())).ok();
}

fn diff(scratch: &Scratch, words: &str, code: i32) -> Value {
    let done: Finished = scratch.prl(&format!("diff {words} --json"));
    assert_eq!((done.code, done.stderr.as_str()), (Some(code), ""), "{done}");
    let found: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(found["equal"], code == 0);
    found
}

/// How many entries each part has: config, metrics, order, weights, checkpoints.
fn counts(found: &Value) -> [usize; 5] {
    let of = |part: &Value| part.as_array().unwrap().len();
    [
        of(&found["config"]["keys"]),
        of(&found["metrics"]["differ"]),
        of(&found["order"]["differ"]),
        of(&found["weights"]["differ"]),
        of(&found["checkpoints"]["differ"]),
    ]
}

#[test]
fn equal_runs_are_equal_with_and_without_a_stop() {
    let scratch = Scratch::new();
    rl(&scratch, "a", "--max-steps 4");
    rl(&scratch, "b", "--max-steps 4");
    let found = diff(&scratch, "a b", 0);
    assert_eq!(counts(&found), [0; 5]);
    assert_eq!((&found["metrics"]["common"], &found["order"]["common"]), (&4.into(), &4.into()));
    // On the way a checkpoint may be left out where the disk is slow; the last one never.
    assert_eq!(found["checkpoints"]["common"].as_array().unwrap().last(), Some(&4.into()));
    let told = scratch.prl("diff a b").ok().stdout;
    assert!(told.ends_with("\nnothing differs\n") && told.contains("wall-clock ones left out"), "{told}");

    rl(&scratch, "c", "--max-steps 2");
    let shorter = diff(&scratch, "a c", 1);
    assert_eq!(shorter["metrics"]["only_a"], serde_json::json!([3, 4]));
    rl(&scratch, "c", "--max-steps 4 --ckpt.resume-step -1");
    assert_eq!(counts(&diff(&scratch, "a c", 0)), [0; 5]);

    // The clock's metrics are never the same.
    let timed = diff(&scratch, "a b --times", 1);
    let names: Vec<&str> =
        timed["metrics"]["differ"].as_array().unwrap().iter().map(|m| m["metric"].as_str().unwrap()).collect();
    assert!(names.contains(&"time/step") && names.contains(&"perf/throughput"), "{names:?}");
    assert!(
        names.iter().all(|name| name.split('/').any(|part| ["time", "timing", "perf", "ckpt"].contains(&part))),
        "{names:?}"
    );
}

#[test]
fn whatever_differs_is_named() {
    let scratch = Scratch::new();
    rl(&scratch, "a", "--max-steps 2");
    rl(&scratch, "seed", "--max-steps 2 --seed 1");
    let found = diff(&scratch, "a seed", 1);
    assert_eq!(found["config"]["keys"], serde_json::json!([{ "key": "seed", "a": 0, "b": 1 }]));
    assert_eq!((&found["order"]["differ"][0]["step"], &found["order"]["differ"][0]["at"]), (&1.into(), &0.into()));
    assert!(counts(&found).iter().all(|count| *count > 0), "{found}");

    rl(&scratch, "lr", "--max-steps 2 --trainer.optim.lr 1e-4");
    let found = diff(&scratch, "a lr", 1);
    assert_eq!(found["config"]["keys"], serde_json::json!([{ "key": "trainer.optim.lr", "a": 3e-4, "b": 1e-4 }]));
    let metric =
        |name: &str| found["metrics"]["differ"].as_array().unwrap().iter().find(|m| m["metric"] == name).cloned();
    let lr = metric("optim/lr").unwrap();
    assert_eq!(
        (&lr["first_step"], &lr["steps"], &lr["a"], &lr["b"]),
        (&1.into(), &2.into(), &serde_json::json!([3e-4]), &serde_json::json!([1e-4]))
    );
    assert!(
        (lr["max_rel"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-12
            && (lr["max_abs"].as_f64().unwrap() - 2e-4).abs() < 1e-12
    );
    // The first step computes the same before it moves the weights.
    assert_eq!(metric("loss/mean").map(|loss| loss["first_step"].clone()), Some(2.into()));
    let text = scratch.prl("diff a lr").stdout;
    assert!(text.contains("trainer.optim.lr") && text.ends_with("the runs differ\n"), "{text}");
    assert!(text.contains("model.safetensors") && text.contains("optim/lr"), "{text}");
}

#[test]
fn missing_files_are_differences_and_bad_ones_bad_input() {
    let scratch = Scratch::new();
    rl(&scratch, "a", "--max-steps 2");
    rl(&scratch, "b", "--max-steps 2");
    fs::remove_file(scratch.path("b/checkpoints/step_2/trainer/optimizer.safetensors")).unwrap();
    let found = diff(&scratch, "a b", 1);
    assert_eq!(counts(&found), [0, 0, 0, 0, 1]);
    let one = &found["checkpoints"]["differ"][0];
    assert_eq!(
        (&one["step"], &one["file"], &one["b"]),
        (&2.into(), &"trainer/optimizer.safetensors".into(), &Value::Null)
    );

    // A step that only one run has saved is told, and no difference.
    fs::remove_dir_all(scratch.path("b/checkpoints/step_2")).unwrap();
    let found = diff(&scratch, "a b", 0);
    assert_eq!(found["checkpoints"]["only_a"], serde_json::json!([2]));

    let path = scratch.path("b/rollouts/step_2/train/effective/traces.jsonl");
    let whole = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = whole.lines().collect();
    lines.reverse();
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    let found = diff(&scratch, "a b", 1);
    assert_eq!((counts(&found), &found["order"]["differ"][0]["reordered"]), ([0, 0, 1, 0, 0], &true.into()));
    fs::remove_file(&path).unwrap();
    assert_eq!(diff(&scratch, "a b", 1)["order"]["only_a"], serde_json::json!([2]));
    fs::write(&path, "{}\n").unwrap();
    refused(&scratch.prl("diff a b"), &["step_2/train/effective/traces.jsonl, line 1", "task"]);
    fs::write(&path, whole).unwrap();

    let metrics = scratch.path("b/metrics.jsonl");
    let whole = fs::read_to_string(&metrics).unwrap();
    let last = whole.lines().last().unwrap();
    fs::write(&metrics, format!("{whole}{last}\n")).unwrap();
    let twice = diff(&scratch, "a b", 1);
    assert_eq!(twice["metrics"]["differ"][0]["b"].as_array().unwrap().len(), 2, "recorded twice");
    fs::remove_file(&metrics).unwrap();
    assert_eq!(diff(&scratch, "a b", 1)["metrics"]["only_a"], serde_json::json!([1, 2]));
    refused(&scratch.prl("diff a none"), &["`none` does not exist"]);
    fs::create_dir(scratch.path("empty")).unwrap();
    refused(&scratch.prl("diff empty a"), &["`empty` is no run"]);
}
