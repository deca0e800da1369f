//! Going on from a checkpoint.

use crate::plugin::built;
use crate::support::{Scratch, files, rows};

#[test]
fn a_run_goes_on_where_it_was() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 2").ok();
    let run = scratch.run("out");
    let before = run.metrics();

    let done = scratch.rl("out", "--max-steps 4 --ckpt.resume-step 2").ok();
    assert!(done.stdout.contains("Resuming after step 2"), "{done}");
    assert!(!done.stdout.contains("Step 2 |") && !done.stdout.contains("(Step 0)"), "{done}");
    let after = run.metrics();
    assert_eq!(after[..before.len()], before, "what was there stays");
    let steps: Vec<u64> = run.steps().iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
    run.has("weights/step_2/STABLE");
    run.has("weights/step_4/STABLE");
    // The engine starts with the checkpoint's weights, and knows how old they are.
    let versions = |step: u64| -> Vec<u64> {
        let traces = rows(&run.path(&format!("rollouts/step_{step}/train/all/traces.jsonl")));
        traces.iter().map(|row| row["policy_version"].as_u64().unwrap()).collect()
    };
    assert!(versions(3).iter().all(|v| *v == 2), "{:?}", versions(3));
    assert!(versions(4).iter().all(|v| (2..=3).contains(v)), "{:?}", versions(4));
    let totals = run.series("progress/total_rollouts");
    assert!(totals.is_sorted_by(|a, b| a < b), "{totals:?}");

    // -1 is the newest; an older one sets the newer aside.
    let done = scratch.rl("out", "--max-steps 5 --ckpt.resume-step -1").ok();
    assert!(done.stdout.contains("Resuming after step 4"), "{done}");
    let done = scratch.rl("out", "--max-steps 3 --ckpt.resume-step 2").ok();
    assert!(done.stdout.contains("Resuming after step 2"), "{done}");
    assert!(!run.path("weights/step_4").exists());
    run.has("orphaned/weights/step_4/STABLE");
    run.has("orphaned/weights/step_5/STABLE");
    assert_eq!(run.series("progress/total_rollouts"), totals[..3], "the same step again");
}

/// Without a lead nothing is under way at a checkpoint, so that stopping there changes nothing.
#[test]
fn a_synchronous_run_is_the_same_with_and_without_a_stop() {
    let scratch = Scratch::new();
    let words = "--orchestrator.max-async-level 0 --no-orchestrator.eval";
    let rl = |out: &str, more: &str| {
        let toml = crate::support::rl_toml();
        let small = "--orchestrator.batch-size 16 --orchestrator.group-size 4";
        scratch.prl(&format!("rl @ {toml} {small} {words} --output-dir {out} {more}")).ok()
    };
    // The second has a state, which goes on too.
    let rae = format!("--plugin {} --orchestrator.algo.type rae", built("rae"));
    for (name, algorithm) in [("grpo", ""), ("rae", rae.as_str())] {
        let (through, stopped) = (format!("{name}_through"), format!("{name}_stopped"));
        rl(&through, &format!("{algorithm} --max-steps 4"));
        rl(&stopped, &format!("{algorithm} --max-steps 2"));
        rl(&stopped, &format!("{algorithm} --max-steps 4 --ckpt.resume-step -1"));
        let (through, stopped) = (scratch.run(&through), scratch.run(&stopped));
        for name in ["loss/mean", "reward/all/mean", "optim/grad_norm", "entropy/all/max"] {
            assert_eq!(through.series(name), stopped.series(name), "{name}");
        }
        assert!(through.weights(4) == stopped.weights(4), "other weights");
    }
}

#[test]
fn what_cannot_be_resumed_is_refused_untouched() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 2").ok();
    let before = files(&scratch.path("out"));

    let done = scratch.rl("out", "--max-steps 4 --ckpt.resume-step 3");
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stderr.starts_with("error: `ckpt.resume_step`: ") && done.stderr.contains("step_3"), "{done}");
    assert!(files(&scratch.path("out")) == before);

    for step in ["-1", "2"] {
        let done = scratch.rl("new", &format!("--max-steps 4 --ckpt.resume-step {step}"));
        assert_eq!(done.code, Some(2), "{done}");
        assert!(done.stderr.starts_with("error: `ckpt.resume_step`: "), "{done}");
        assert!(!scratch.path("new").exists());
    }

    // A damaged checkpoint is not the one that was saved.
    let weights = scratch.path("out/checkpoints/step_2/trainer/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let done = scratch.rl("out", "--max-steps 4 --ckpt.resume-step 2");
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stderr.contains("model.safetensors has changed"), "{done}");
    assert_eq!(rows(&scratch.path("out/metrics.jsonl")).len(), 4);
}
