//! `prl inspect`: of runs that are finished, running, half-written, or none at all.

use crate::support::{Running, Scratch, files, refused, repo, rows, value};
use serde_json::Value;
use std::fs;
use std::io::Write;

fn json(scratch: &Scratch, words: &str) -> Value {
    let told = scratch.prl(&format!("inspect {words} --json")).ok().stdout;
    serde_json::from_str(&told).unwrap_or_else(|e| panic!("{e}: {told}"))
}

#[test]
fn it_says_where_a_run_stands() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 3 --orchestrator.eval.interval 2 --ckpt.interval 1").ok();
    let before = files(&scratch.path("out"));
    let told = json(&scratch, "out");
    assert!(files(&scratch.path("out")) == before, "it changed something");
    let run = scratch.run("out");
    let last = &run.steps()[2];
    assert_eq!((&told["step"], &told["max_steps"], &told["running"]), (&3.into(), &3.into(), &Value::Null));
    assert_eq!(
        (&told["config"]["algorithm"], &told["config"]["environments"][0]),
        (&"grpo".into(), &"reverse-text".into())
    );
    for name in ["reward/all/mean", "loss/mean", "entropy/all/mean", "mismatch_kl/all/mean", "optim/grad_norm"] {
        assert_eq!(told["metrics"][name]["value"].as_f64(), Some(value(last, name)), "{name}");
        assert_eq!(told["metrics"][name]["step"], 3);
    }
    let number = |value: &Value| value.as_f64().unwrap();
    let rows: Vec<_> = run.metrics().into_iter().filter(|row| row.contains_key("eval/reverse-text/avg@1")).collect();
    let evals = told["evals"].as_array().unwrap();
    let shown =
        evals.iter().map(|e| (number(&e["step"]), number(&e["policy_version"]), number(&e["measures"]["avg@1"])));
    let want =
        [0.0, 2.0, 3.0].into_iter().zip(&rows).map(|(step, row)| (step, step, value(row, "eval/reverse-text/avg@1")));
    assert_eq!(shown.collect::<Vec<_>>(), want.collect::<Vec<_>>());
    assert_eq!(evals.len(), 3);
    assert!(told["checkpoints"].as_array().unwrap().iter().all(|saved| saved["complete"] == true));

    let chosen = json(&scratch, "out --metric optim/l? --metric reward/*/max");
    let names: Vec<&String> = chosen["metrics"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["optim/lr", "reward/all/max", "reward/reverse-text/max"]);
    refused(&scratch.prl("inspect out --metric nothing/*"), &["no metric of `out` is called `nothing/*`"]);
    refused(&scratch.prl("inspect out --metric a["), &["`--metric a[`"]);

    // What is damaged, set aside or left over is named.
    scratch.rl("out", "--max-steps 2 --ckpt.interval 1 --ckpt.resume-step 1").ok();
    let weights = scratch.path("out/checkpoints/step_1/trainer/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    bytes[1000] ^= 1;
    fs::write(&weights, bytes).unwrap();
    fs::remove_file(scratch.path("out/weights/step_2/STABLE")).unwrap();
    fs::create_dir(scratch.path("out/checkpoints/step_7.tmp")).unwrap();
    let text = scratch.prl("inspect out").ok().stdout;
    for words in [
        "steps        2 of 2",
        "trainer/model.safetensors has changed",
        "STABLE is missing",
        "step_7.tmp",
        "orphaned/checkpoints/step_3",
        "orphaned/metrics_after_step_1.jsonl",
    ] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
}

#[test]
fn it_prints_what_was_said() {
    let scratch = Scratch::new();
    let envs = repo().join("envs").display().to_string();
    // Three turns at most, of which some are cut off; and some rollouts fail in their second call.
    let table = format!(
        "[[orchestrator.train.env]]\nid = \"{envs}/misbehave.wasm\"\nsplit = \"honest\"\n\
         [[orchestrator.train.env]]\nid = \"{envs}/misbehave.wasm\"\nname = \"bad\"\nsplit = \"nan\"\n"
    );
    let toml = scratch.write("envs.toml", table);
    let done = scratch.rl("out", &format!("@ {toml} --max-steps 1 --seq-len 512 --no-orchestrator.eval"));
    let path = scratch.path("out/rollouts/step_1/train/all/traces.jsonl");
    assert!(path.exists(), "{done}");
    let log = rows(&path);
    let listed = scratch.prl("inspect out --step 1").ok().stdout;
    assert_eq!(listed.lines().count(), log.len() + 1, "{listed}");
    let each = scratch.prl("inspect out --step 1 --json").ok().stdout;
    assert_eq!(each.lines().count(), log.len());

    let longest = log.iter().enumerate().max_by_key(|(_, row)| row["turns"].as_array().unwrap().len());
    let (at, row) = longest.unwrap();
    let turns = row["turns"].as_array().unwrap();
    assert!(turns.len() > 1, "{row:?}");
    let shown = scratch.prl(&format!("inspect out --step 1 --rollout {at}")).ok().stdout;
    let id = format!("{}.{}", row["id"]["group"], row["id"]["member"]);
    assert!(shown.starts_with(&format!("rollout   {id} of ")), "{shown}");
    assert!(scratch.prl(&format!("inspect out --step 1 --train --rollout {id}")).ok().stdout.contains(&shown));
    assert_eq!(shown.matches("\n--- turn ").count(), turns.len());
    for turn in turns {
        assert!(shown.contains(&format!("{} tokens", turn["tokens"])), "{shown}");
        for reply in turn["replies"].as_array().unwrap() {
            assert!(shown.contains(reply["content"].as_str().unwrap()), "{shown}");
        }
    }
    // The branches that the record has are enough to say which turns were sampled from which tokens.
    let branches = row["branches"].as_array().unwrap();
    let on_branches: u64 = branches.iter().map(|branch| branch["turns"].as_u64().unwrap()).sum();
    assert_eq!(on_branches, turns.len() as u64);
    assert!(shown.contains("\nbranches  turn"), "{shown}");

    if let Some(at) = log.iter().position(|row| !row["error"].is_null()) {
        let shown = scratch.prl(&format!("inspect out --step 1 --rollout {at}")).ok().stdout;
        let message = log[at]["error"]["message"].as_str().unwrap();
        assert!(shown.contains(&format!("\nerror     EnvError: {message}")), "{shown}");
    }
    assert!(log.iter().any(|row| !row["error"].is_null()), "no rollout failed");
    let words = "--max-steps 1 --no-orchestrator.eval --orchestrator.train.sampling.max-completion-tokens 3";
    scratch.rl("cut", words).ok();
    let shown = scratch.prl("inspect cut --step 1 --rollout 0.0").ok().stdout;
    assert!(shown.contains("truncated (max_completion_tokens)") && shown.contains("3 tokens, length"), "{shown}");
    assert!(scratch.prl("inspect cut --step 1").ok().stdout.contains("  truncated (max_completion_tokens)"));

    let whole: Value =
        serde_json::from_str(&scratch.prl(&format!("inspect out --step 1 --rollout {id} --json")).ok().stdout).unwrap();
    assert_eq!((&whole["rollout"]["turns"], &whole["line"]), (&row["turns"], &(at + 1).into()));
    refused(&scratch.prl("inspect out --step 5"), &["no rollouts of step 5", "there are steps 1 to "]);
    refused(&scratch.prl("inspect out --step 1 --rollout 99.0"), &["is called `99.0`"]);
    refused(&scratch.prl("inspect out --step 1 --eval"), &["no rollouts of that kind in step 1"]);
    let alone = scratch.prl("inspect out --rollout 1.0");
    assert_eq!(alone.code, Some(2), "{alone}");
}

#[test]
fn a_run_may_be_running() {
    let scratch = Scratch::new();
    let words = scratch.rl_words("out", "--max-steps 100000 --no-orchestrator.eval");
    let mut running = Running::start(scratch.command(&words));
    running.wait_for("Step 2 ");
    let told = json(&scratch, "out");
    assert!(told["step"].as_u64().unwrap() >= 1 && told["running"].is_u64(), "{told}");
    assert_eq!(told["running"], told["last_process"]);
    let text = scratch.prl("inspect out").ok().stdout;
    assert!(text.contains(" is running\n") && text.contains(" of 100000\n"), "{text}");
    assert!(scratch.prl("inspect out --step 1").ok().stdout.lines().count() > 4);
    running.signal("TERM");
    running.wait();
    assert_eq!(json(&scratch, "out")["running"], Value::Null);
}

#[test]
fn what_is_half_written_or_foreign_is_told() {
    let scratch = Scratch::new();
    refused(&scratch.prl("inspect none"), &["`none` does not exist"]);
    let file = scratch.write("file", "x");
    refused(&scratch.prl(&format!("inspect {file}")), &["is no folder"]);
    fs::create_dir(scratch.path("foreign")).unwrap();
    fs::write(scratch.path("foreign/results.jsonl"), "{}\n").unwrap();
    refused(&scratch.prl("inspect foreign"), &["`foreign` is no run", "metrics.jsonl"]);

    // A dry run leaves its configuration, a run that was killed early half a line.
    scratch.rl("dry", "--max-steps 2 --dry-run").ok();
    let told = json(&scratch, "dry");
    assert_eq!(
        (&told["step"], &told["max_steps"], &told["metrics"]),
        (&0.into(), &2.into(), &Value::Object([].into_iter().collect()))
    );
    refused(&scratch.prl("inspect dry --step 1"), &["there are none of any step"]);
    let metrics = scratch.path("dry/metrics.jsonl");
    fs::write(&metrics, "{\"step\":1,\"loss/mean\":0.5}\n{\"step\":2,\"loss/me").unwrap();
    let told = json(&scratch, "dry");
    assert_eq!((&told["step"], &told["metrics"]["loss/mean"]["value"]), (&1.into(), &0.5.into()));
    let mut more = fs::OpenOptions::new().append(true).open(&metrics).unwrap();
    more.write_all(b"an\":\n{\"step\":3}\n").unwrap();
    refused(&scratch.prl("inspect dry"), &["dry/metrics.jsonl, line 2"]);
    fs::write(&metrics, "{\"loss/mean\":0.5}\n").unwrap();
    refused(&scratch.prl("inspect dry"), &["dry/metrics.jsonl, line 1", "`step`"]);
    fs::remove_file(&metrics).unwrap();
    fs::write(scratch.path("dry/configs/rl.toml"), "a = \n").unwrap();
    let done = scratch.prl("inspect dry");
    assert!(done.code == Some(2) && done.stderr.contains("dry/configs/rl.toml"), "{done}");
}
