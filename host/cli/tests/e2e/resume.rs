//! Going on from a checkpoint, after a stop or a death.

use crate::plugin::built;
use crate::rl::timeless;
use crate::support::{Row, Run, Running, Scratch, files, refused, repo, rows};
use std::path::Path;

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1084
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
    assert!(versions(3).iter().all(|v| *v == 1), "sampled ahead: {:?}", versions(3));
    assert!(versions(4).iter().all(|v| *v == 2), "{:?}", versions(4));
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

/// Metrics that no clock and no memory has a part in, what trained, in order, and the weights after `step`.
fn story(run: &Run, step: u64) -> (Vec<Row>, Vec<String>, Vec<u8>) {
    let mut tasks = Vec::new();
    for step in 1..=step {
        let traces = run.path(&format!("rollouts/step_{step}/train/effective/traces.jsonl"));
        let line = |row: &Row| format!("{step} {} {} {}", row["id"], row["task"]["key"], row["turns"]);
        tasks.extend(rows(&traces).iter().map(line));
    }
    (timeless(run.metrics()), tasks, run.weights(step))
}

/// Each step and each evaluation once, with the same numbers, from the same rollouts, to the same weights.
#[track_caller]
fn same_story(name: &str, a: &Run, b: &Run, step: u64) {
    let (a, b) = (story(a, step), story(b, step));
    for (a, b) in a.0.iter().zip(&b.0) {
        let other: Vec<&String> = a.keys().chain(b.keys()).filter(|key| a.get(*key) != b.get(*key)).collect();
        assert!(other.is_empty(), "{name}: step {}: {other:?}", a["step"]);
    }
    assert!(a.0.len() == b.0.len() && a.1 == b.1, "{name}: other rollouts");
    assert!(a.2 == b.2, "{name}: other weights");
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/2896
#[test]
fn a_run_with_a_stop_is_the_run_without() {
    let scratch = Scratch::new();
    let example = |name: &str| repo().join(format!("examples/{name}/rl.toml")).display().to_string();
    let wasm = |name: &str| repo().join(format!("envs/{name}.wasm")).display().to_string();
    let two = format!(
        r#"[{{"id":"{0}","name":"a","ratio":2}},{{"id":"{0}","name":"b","args":{{"max_chars":12}}}}]"#,
        wasm("reverse-text")
    );
    let eval = format!(r#"[{{"id":"{0}","name":"a"}},{{"id":"{0}","name":"c","interval":1}}]"#, wasm("reverse-text"));
    let two = format!("--orchestrator.train.env {two} --orchestrator.eval.env {eval} --orchestrator.eval.interval 3");
    let rae = format!("--no-orchestrator.eval --plugin {} --orchestrator.algo.type rae", built("rae"));
    // The second has a state, the third mixes environments and evaluates two, the fourth learns what tools answer.
    for (name, toml, words) in [
        ("grpo", "reverse_text", "--no-orchestrator.eval --orchestrator.max-async-level 2"),
        ("rae", "reverse_text", &rae),
        ("two", "reverse_text", &format!("{two} --orchestrator.eval.num-examples 8")),
        ("echo", "tool_use", ""),
    ] {
        let rl = |out: &str, more: &str| {
            let small = "--orchestrator.batch-size 16 --orchestrator.group-size 4";
            scratch.prl(&format!("rl @ {} {small} {words} --output-dir {out} {more}", example(toml))).ok()
        };
        let (through, stopped) = (format!("{name}_through"), format!("{name}_stopped"));
        rl(&through, "--max-steps 6");
        rl(&stopped, "--max-steps 3");
        let ahead = rows(&scratch.path(&format!("{stopped}/rollouts/step_4/train/all/traces.jsonl"))).len();
        assert!(ahead >= 16, "{name}: the batch that a longer run would have sampled is in the checkpoint");
        rl(&stopped, "--max-steps 6 --ckpt.resume-step -1");
        same_story(name, &scratch.run(&through), &scratch.run(&stopped), 6);
    }
}

/// A seeded number below `n`.
fn drawn(seed: u64, n: u64) -> u64 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % n
}

/// https://github.com/NVIDIA-NeMo/RL/issues/3594
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1513
#[test]
fn a_run_that_is_killed_again_and_again_is_the_run_that_is_not() {
    let scratch = Scratch::new();
    let words = "--max-steps 8 --ckpt.interval 1 --orchestrator.eval.interval 2";
    scratch.rl("through", words).ok();
    let words = format!("{words} --ckpt.resume-step -1 --ckpt.allow-fresh");
    let mut kills = 0;
    let done = loop {
        let mut running = Running::start(scratch.command(&scratch.rl_words("killed", &words)));
        if kills == 10 {
            break running.wait();
        }
        // Most of these are inside a step, some while it starts, some while it writes.
        running.wait_for(if kills == 0 { "Starting fresh" } else { "INFO" });
        std::thread::sleep(std::time::Duration::from_millis(drawn(kills as u64 + 1, 700)));
        running.signal("KILL");
        running.wait();
        kills += 1;
    };
    let done = done.ok();
    assert!(done.stdout.contains("Resuming after step ") || done.stdout.contains("Starting fresh"), "{done}");
    same_story("killed", &scratch.run("through"), &scratch.run("killed"), 8);
}

#[test]
fn a_run_may_start_fresh_where_nothing_can_be_gone_on_from() {
    let scratch = Scratch::new();
    refused(&scratch.rl("new", "--ckpt.resume-step -1"), &["`ckpt.resume_step`"]);
    let bad = scratch.rl("new", "--ckpt.resume-step 1 --ckpt.allow-fresh");
    assert!(
        bad.code == Some(2) && bad.stderr.contains("`trainer.ckpt.allow_fresh` needs `trainer.ckpt.resume_step = -1`")
    );
    let words = "--max-steps 2 --no-orchestrator.eval --ckpt.resume-step -1 --ckpt.allow-fresh";
    let done = scratch.rl("new", words).ok();
    assert!(done.stdout.lines().next().unwrap().contains("Starting fresh: there is no complete checkpoint"), "{done}");
    assert_eq!(scratch.run("new").steps().len(), 2);

    // One that was there and is not complete is set aside, with all that came after it.
    std::fs::remove_file(scratch.path("new/checkpoints/step_2/manifest.json")).unwrap();
    let done = scratch.rl("new", words).ok();
    assert!(done.stdout.contains("manifest.json cannot be read") && done.stdout.contains("Starting fresh"), "{done}");
    let run = scratch.run("new");
    assert_eq!(run.steps().len(), 2);
    run.has("orphaned/checkpoints/step_2/trainer/model.safetensors");
    run.has("orphaned/metrics.jsonl");
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1805
#[test]
fn a_run_leaves_out_what_it_is_told_to() {
    let scratch = Scratch::new();
    let words = "--no-orchestrator.eval --trainer.scheduler.type linear --trainer.scheduler.warmup-steps 2 \
                 --trainer.scheduler.decay-steps 0";
    scratch.rl("all", &format!("--max-steps 2 {words}")).ok();
    copy_all(&scratch.path("all"), &scratch.path("less"));
    let skip = "--trainer.ckpt.skip-optimizer --trainer.ckpt.skip-scheduler --orchestrator.ckpt.skip-progress";
    scratch.rl("all", &format!("--max-steps 4 {words} --ckpt.resume-step 2")).ok();
    scratch.rl("less", &format!("--max-steps 4 {words} --ckpt.resume-step 2 {skip}")).ok();
    let (all, less) = (scratch.run("all"), scratch.run("less"));
    let rates = |run: &Run| run.series("optim/lr");
    assert!(
        rates(&all)[2] == 3e-4 && rates(&less)[2] < 1e-6 && rates(&less)[3] == rates(&less)[1],
        "{:?}",
        rates(&less)
    );
    let totals = less.series("progress/total_rollouts");
    assert!(totals[3] < all.series("progress/total_rollouts")[1], "{totals:?}");
    // Without moments the first update after the warm-up is another one.
    assert_ne!(all.weights(4), less.weights(4));
    scratch.rl("less", &format!("--max-steps 5 {words} --ckpt.resume-step 4")).ok();
    assert_eq!(rates(&less)[4], 3e-4, "the schedule goes on from where it began");
}

/// Whether a run died before or after the evaluation of the step that is gone on from, it is on record once.
///
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1491
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/3123
#[test]
fn every_evaluation_is_made_once_over_resumes() {
    let scratch = Scratch::new();
    let evaluated = |run: &Run| -> Vec<u64> {
        let rows = run.metrics().into_iter().filter(|row| row.contains_key("eval/reverse-text/policy_version"));
        rows.map(|row| row["step"].as_u64().unwrap()).collect()
    };
    let lines = |run: &Run, step: u64| rows(&run.path(&format!("rollouts/step_{step}/eval/all/traces.jsonl"))).len();
    for (interval, steps) in [(1, vec![0, 1, 2, 3, 4]), (2, vec![0, 2, 4]), (3, vec![0, 3, 4])] {
        for from in [1, 2, 3] {
            // The first checkpoint of a run: a later one is left out where the disk is slower than the steps.
            let words = format!("--max-steps 4 --ckpt.interval {from} --orchestrator.eval.interval {interval}");
            let fresh = format!("fresh_{interval}_{from}");
            scratch.rl(&fresh, &words).ok();
            assert_eq!(evaluated(&scratch.run(&fresh)), steps, "every {interval}");
            for before in [true, false] {
                let name = format!("{fresh}_{before}");
                copy_all(&scratch.path(&fresh), &scratch.path(&name));
                let run = scratch.run(&name);
                if before {
                    // Its rollouts were written, and the line about them was not.
                    let text = std::fs::read_to_string(run.path("metrics.jsonl")).unwrap();
                    let of_step = format!("{{\"step\":{from},\"eval/");
                    let kept = text.split_inclusive('\n').filter(|line| !line.starts_with(&of_step));
                    std::fs::write(run.path("metrics.jsonl"), kept.collect::<String>()).unwrap();
                }
                scratch.rl(&name, &format!("{words} --ckpt.resume-step {from}")).ok();
                assert_eq!(evaluated(&run), steps, "every {interval}, from {from}, before {before}");
                assert!(steps.iter().all(|step| lines(&run, *step) == 8), "every {interval}, from {from}");
                std::fs::remove_dir_all(scratch.path(&name)).unwrap();
            }
        }
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1537
#[test]
fn what_is_kept_is_counted_from_what_is_there() {
    let scratch = Scratch::new();
    let words = "--no-orchestrator.eval --ckpt.interval 1";
    scratch.rl("out", &format!("--max-steps 6 {words}")).ok();
    for (last, left) in [(5, ["step_4", "step_5"]), (6, ["step_5", "step_6"])] {
        let words = format!("--max-steps {last} {words} --ckpt.resume-step {} --ckpt.keep-last 2", last - 1);
        scratch.rl("out", &words).ok();
        for folder in ["checkpoints", "weights"] {
            let there = files(&scratch.path(&format!("out/{folder}")));
            let there = there.keys().filter(|name| name.ends_with('/') && name.matches('/').count() == 1);
            assert_eq!(there.map(|name| name.trim_end_matches('/')).collect::<Vec<_>>(), left, "{folder}");
        }
    }
    scratch.run("out").has("orphaned/checkpoints/step_5/manifest.json");
    scratch.run("out").has("orphaned/checkpoints/step_6/manifest.json");
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
}

#[test]
fn a_byte_of_any_file_is_missed_and_the_checkpoint_before_is_used() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 2 --ckpt.interval 1 --no-orchestrator.eval").ok();
    let newest = files(&scratch.path("out/checkpoints/step_2"));
    let names: Vec<&String> = newest.keys().filter(|name| !name.ends_with('/')).collect();
    assert!(names.len() > 9, "{names:?}");
    for (n, name) in names.into_iter().enumerate() {
        let run = format!("run_{n}");
        copy_all(&scratch.path("out"), &scratch.path(&run));
        let path = scratch.path(&format!("{run}/checkpoints/step_2/{name}"));
        let mut bytes = std::fs::read(&path).unwrap();
        let at = drawn(n as u64 + 7, bytes.len().max(1) as u64) as usize;
        match bytes.get_mut(at) {
            Some(byte) if n % 3 > 0 => *byte ^= 1 << (n % 7),
            _ => bytes.truncate(at),
        }
        std::fs::write(&path, &bytes).unwrap();
        if Some(&bytes) == newest.get(name) {
            continue; // an empty file has nothing to lose
        }
        refused(&scratch.rl(&run, "--max-steps 2 --ckpt.resume-step 2"), &["`ckpt.resume_step`", name.as_str()]);
        let done = scratch.rl(&run, "--max-steps 1 --no-orchestrator.eval --ckpt.resume-step -1").ok();
        assert!(done.stdout.contains("Resuming after step 1"), "{name}: {done}");
        assert!(done.stdout.contains("WARNING") && done.stdout.contains(name.as_str()), "{name}: {done}");
        scratch.run(&run).has(&format!("orphaned/checkpoints/step_2/{name}"));
        std::fs::remove_dir_all(scratch.path(&run)).unwrap();
    }
}

fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for (name, bytes) in files(from) {
        let path = to.join(&name);
        if name.ends_with('/') { std::fs::create_dir_all(path).unwrap() } else { std::fs::write(path, bytes).unwrap() }
    }
}

/// Files may not be longer than the weights are: what a full disk does to a checkpoint and not to metrics.
/// https://github.com/huggingface/lerobot/pull/4562
/// https://github.com/sgl-project/SpecForge/pull/659
#[test]
fn a_disk_that_is_full_costs_the_checkpoint_and_not_the_run() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 1").ok();
    let words = scratch.rl_words("out", "--max-steps 3 --ckpt.interval 1 --no-orchestrator.eval --ckpt.resume-step 1");
    let prl = scratch.command(&words);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", "sh"]).arg(prl.get_program()).args(prl.get_args());
    limited.current_dir(scratch.path(""));
    let done = Running::start(limited).wait();
    assert_eq!(done.code, Some(1), "{done}");
    assert!(
        done.stdout.contains("checkpoint of step 2 failed") && done.stderr.contains("could not be written"),
        "{done}"
    );
    let run = scratch.run("out");
    assert_eq!(run.steps().len(), 3, "the run went on");
    assert_eq!(run.series("ckpt/failed")[1..].last().map(|failed| *failed >= 1.0), Some(true));
    for folder in ["checkpoints", "weights"] {
        assert_eq!(
            files(&run.path(folder))
                .keys()
                .filter(|name| name.matches('/').count() == 1 && name.ends_with('/'))
                .count(),
            1
        );
    }
    // Where there is room again, it goes on from what is there.
    scratch.rl("out", "--max-steps 3 --no-orchestrator.eval --ckpt.resume-step -1").ok();
    run.has("checkpoints/step_3/manifest.json");
}
