//! Runs with models on servers: teachers, sources of rollouts, and the policy itself.

use crate::inference::start;
use crate::support::{Scratch, refused, rows};
use std::fs;

/// Two steps of few rollouts, without evaluation, with `algo` and a served model at `place`.
fn words(algo: &str, place: &str, address: &str) -> String {
    format!(
        "--max-steps 2 --no-orchestrator.eval --orchestrator.algo.type {algo} --orchestrator.algo.{place}.name tiny \
         --orchestrator.algo.{place}.base-url http://{address}/v1"
    )
}

#[test]
fn a_teacher_scores_what_the_policy_samples() {
    let scratch = Scratch::new();
    let (server, address) = start(&scratch, "");
    scratch.rl("opd", &words("opd", "teacher", &address)).ok();
    let run = scratch.run("opd");
    // The teacher is the policy that the run starts with, and every bit of a log-probability gets here.
    let pull = run.series("ref_kl/mean");
    assert!(pull[0] == 0.0 && pull[1] != 0.0, "{pull:?}");
    let grpo = format!(
        "--max-steps 1 --orchestrator.algo.teacher.name tiny --orchestrator.algo.teacher.base-url http://{address}/v1"
    );
    refused(&scratch.rl("no", &grpo), &["`orchestrator.algo.teacher`", "`grpo` asks no teacher", "remove it"]);
    let other = words("opd", "teacher", &address).replace("name tiny", "name big");
    refused(&scratch.rl("no", &other), &["`orchestrator.algo.teacher.name`", "no model `big`", "which has `tiny`"]);
    drop(server);
    let gone = words("opd", "teacher", &address) + " --orchestrator.algo.teacher.wait-for-ready-timeout 0";
    refused(&scratch.rl("no", &gone), &["`orchestrator.algo.teacher`", "refused"]);
    refused(&scratch.rl("no", "--orchestrator.algo.type opd"), &["`orchestrator.algo.teacher` is missing", "base_url"]);
    assert!(!scratch.path("no").exists());
}

#[test]
fn another_model_answers_for_the_policy_to_learn_from() {
    let scratch = Scratch::new();
    let (_server, address) = start(&scratch, "");
    scratch.rl("sft", &words("sft", "sampling.source", &address)).ok();
    let run = scratch.run("sft");
    assert!(run.series("nll/mean").iter().all(|nll| *nll > 0.0));
    // Nothing is known of how likely its tokens were, and it has no age.
    assert_eq!((run.series("mismatch_kl/all/mean"), run.series("off_policy/max")), (vec![0.0; 2], vec![0.0; 2]));
    let effective = rows(&run.path("rollouts/step_1/train/effective/traces.jsonl"));
    assert!(effective.iter().all(|trace| trace["turns"][0]["tokens"].as_u64() > Some(0)));
    let policy = words("grpo", "sampling.source", &address);
    refused(&scratch.rl("no", &policy), &["`orchestrator.algo.sampling.source`", "must be the policy's"]);
    refused(&scratch.rl("no", "--orchestrator.algo.type sft"), &["`orchestrator.algo.sampling.source` is missing"]);
}

#[test]
fn the_policy_teaches_itself_behind_a_hint() {
    let scratch = Scratch::new();
    scratch.rl("opsd", "--max-steps 2 --no-orchestrator.eval --orchestrator.algo.type opsd").ok();
    let pull = scratch.run("opsd").series("ref_kl/mean");
    assert!(pull.iter().all(|pull| *pull < 0.0), "{pull:?}");
    let none =
        "--max-steps 2 --no-orchestrator.eval --orchestrator.algo.type opsd --orchestrator.algo.demo_key nothing";
    let done = scratch.rl("nothing", none);
    assert!(done.code == Some(1) && done.stderr.contains("(demo_key)"), "{done}");
}

#[test]
fn the_policy_is_sampled_on_a_server() {
    let scratch = Scratch::new();
    let (server, address) = start(&scratch, "");
    let client = format!("--orchestrator.model.client.base-url http://{address}/v1");
    let sync = format!("--max-steps 3 --orchestrator.max-async-level 0 --orchestrator.eval.interval 2 {client}");
    scratch.rl("served", &sync).ok();
    let run = scratch.run("served");
    // What the server draws with is what was trained, to the bit.
    assert_eq!(run.series("mismatch_kl/all/mean"), [0.0; 3]);
    let kept: Vec<_> = fs::read_dir(run.path("broadcasts")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(kept.len(), 2, "{kept:?}");
    run.has("broadcasts/step_3/STABLE");

    // Going on sends the checkpoint's weights again.
    scratch.rl("served", &format!("{} --ckpt.resume-step 3", sync.replace("--max-steps 3", "--max-steps 4"))).ok();
    assert_eq!(run.series("mismatch_kl/all/mean"), [0.0; 4]);

    let lopsided = format!("{client} --orchestrator.model.client.admin-base-url http://a:1 http://b:2");
    let lopsided = scratch.rl("no", &lopsided);
    assert_eq!(lopsided.code, Some(2), "{lopsided}");
    assert!(lopsided.stderr.contains("admin_base_url` has 2 addresses for the 1 of"), "{lopsided}");
    // From GPU to GPU, which needs one.
    let nccl = scratch.rl("no", &format!("{client} --weight-broadcast.type nccl"));
    refused(&nccl, &["`weight_broadcast.type", "GPU"]);
    drop(server);
    let gone = format!("{client} --orchestrator.model.client.wait-for-ready-timeout 0");
    refused(&scratch.rl("no", &gone), &["`orchestrator.model.client`", "refused"]);
    assert!(!scratch.path("no").exists());
}
