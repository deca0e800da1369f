//! `prl rl`: batches of tokens, difficulty pools, retries, the pace, and what is said about what is under way.

use crate::support::{Row, Scratch, repo, rl_toml, rows, value};

/// The example on its finite split, in batches of tokens.
fn words(more: &str) -> String {
    format!(
        "rl @ {} --output-dir out --max-steps 3 --orchestrator.batch-size None --orchestrator.token-batch-size 700 \
         --orchestrator.max-inflight-rollouts 16 --orchestrator.group-size 4 --orchestrator.eval.num-examples 8 \
         --orchestrator.log.interval 0.01 --orchestrator.tasks-per-minute 100000 --ckpt.interval 2 \
         --orchestrator.train.env.0.split eval --orchestrator.train.env.0.curriculum.sampler.type difficulty_pool \
         {more}",
        rl_toml()
    )
}

#[test]
fn a_batch_of_tokens_from_difficulty_pools_is_trained_and_resumed() {
    let scratch = Scratch::new();
    let done = scratch.prl(&words("")).ok();
    assert!(done.stdout.contains("Pipeline | Step "), "{done}");
    let run = scratch.run("out");
    for row in run.steps() {
        let name = |class: &str| format!("curriculum/reverse-text/{class}/tasks");
        let tasks = ["pools/hard", "pools/normal", "pools/easy", "unseen"].map(|class| value(&row, &name(class)));
        assert_eq!(tasks.iter().sum::<f64>(), 256.0);
        assert_eq!(value(&row, "rollouts/retried"), 0.0);
    }
    let status = rows(&run.path("status.jsonl"));
    assert!(status.iter().all(|row| value(row, "time") > 1.7e9 && value(row, "dispatcher/inflight_train") <= 16.0));
    assert!(status.iter().any(|row| value(row, "dispatcher/inflight_train") > 0.0), "{}", status.len());

    let progress = std::fs::read_to_string(run.path("checkpoints/step_3/orchestrator/progress.json")).unwrap();
    let progress: Row = serde_json::from_str(&progress).unwrap();
    assert!(progress["lengths"]["rollouts"].as_u64().unwrap() >= 8);
    assert!(progress["rewards"]["reverse-text"].as_object().unwrap().len() > 2);
    scratch.prl(&words("--max-steps 4 --ckpt.resume-step 3")).ok();
    let steps = run.steps();
    assert_eq!(value(steps.last().unwrap(), "step"), 4.0);
    assert!(value(steps.last().unwrap(), "curriculum/reverse-text/unseen/tasks") < 256.0);
}

#[test]
fn a_failed_rollout_is_tried_again() {
    let scratch = Scratch::new();
    let envs = repo().join("envs").display().to_string();
    let table = "[[orchestrator.train.env]]\nid = \"reverse-text\"\n\
         [[orchestrator.train.env]]\nid = \"misbehave\"\nsplit = \"nan\"\n";
    let toml = scratch.write("envs.toml", table.replace("id = \"", &format!("id = \"{envs}/")));
    scratch.rl("out", &format!("@ {toml} --max-steps 4 --seq-len 512 --orchestrator.max-retries 2 --seed 3")).ok();
    let run = scratch.run("out");
    let all: Vec<Row> =
        (1..=4).flat_map(|n| rows(&run.path(&format!("rollouts/step_{n}/train/all/traces.jsonl")))).collect();
    let failed = all.iter().filter(|row| row["error"]["kind"] == "EnvError").count();
    assert!(failed > 0 && failed < all.len(), "{failed} of {}", all.len());
    for row in &all {
        let tries = if row["error"].is_null() { None } else { Some(2) };
        assert_eq!(row.get("attempt").and_then(|n| n.as_u64()), tries, "{row:?}");
    }
    let retried: f64 = run.series("rollouts/retried").iter().sum();
    assert_eq!(retried, 2.0 * failed as f64);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let scratch = Scratch::new();
    let refused_with = |words: &str, say: &[&str]| {
        let done = scratch.rl("out", words);
        assert!(done.code == Some(2) && say.iter().all(|text| done.stderr.contains(text)), "{done}");
    };
    refused_with("--orchestrator.token-batch-size 900", &["`orchestrator.batch_size`", "set only one"]);
    refused_with(
        "--orchestrator.train.env.0.curriculum.sampler.type difficulty_pool",
        &["`train.env.reverse-text.curriculum.pools`", "`train` is unbounded"],
    );
    refused_with(
        "--orchestrator.train.env.0.curriculum.gates.flat.type advantage",
        &["curriculum.gates.flat` does not fit"],
    );
}
