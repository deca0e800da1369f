//! `prl rl`: what a run leaves, and that its numbers are right, reproducible and get better.

use crate::support::{Row, Run, Running, SMALL, Scratch, number_after, repo, rl_toml, rows, value};
use serde_json::Value;
use std::fs;

#[test]
fn a_run_leaves_what_is_documented() {
    let scratch = Scratch::new();
    let done = scratch.rl("out", "--max-steps 3 --orchestrator.eval.interval 2 --ckpt.interval 2 --wandb").ok();
    assert_eq!(done.stderr, "");
    let run = scratch.run("out");

    for name in [
        "logs/trainer.log",
        "logs/orchestrator.log",
        "logs/inference.log",
        "logs/envs/train/reverse-text/env_server.log",
        "logs/envs/eval/reverse-text/env_server.log",
        "configs/rl.toml",
        "configs/trainer.toml",
        "configs/orchestrator.toml",
        "configs/inference.toml",
        "metrics.jsonl",
    ] {
        run.has(name);
    }
    for step in [2, 3] {
        run.has(&format!("checkpoints/step_{step}/manifest.json"));
        run.has(&format!("checkpoints/step_{step}/orchestrator/progress.json"));
        run.has(&format!("checkpoints/step_{step}/trainer/model.safetensors"));
        run.has(&format!("checkpoints/step_{step}/trainer/optimizer.safetensors"));
        for file in ["STABLE", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
            run.has(&format!("weights/step_{step}/{file}"));
        }
    }
    assert!(!run.path("weights/step_1").exists() && !run.path("checkpoints/step_1").exists());

    for step in 1..=3 {
        let traces = |subset: &str| rows(&run.path(&format!("rollouts/step_{step}/train/{subset}/traces.jsonl")));
        assert_eq!(traces("all").len(), 16);
        assert!(traces("effective").len() <= 16);
        assert!(traces("all")[0]["turns"][0]["message"]["content"].is_string());
    }
    for step in [0, 2, 3] {
        assert_eq!(rows(&run.path(&format!("rollouts/step_{step}/eval/all/traces.jsonl"))).len(), 8);
        run.has(&format!("rollouts/step_{step}/eval/effective/traces.jsonl"));
    }

    metrics_have_the_usual_names(&run);
    the_console_has_the_usual_tokens(&done.stdout, &run);
    let logged = |name: &str| fs::read_to_string(run.path(name)).unwrap();
    assert!(logged("logs/trainer.log").contains("Mismatch KL"));
    assert!(logged("logs/orchestrator.log").contains("Evaluated reverse-text (Step 3)"));
    the_wandb_file_is_whole(&run);
}

fn metrics_have_the_usual_names(run: &Run) {
    let steps = run.steps();
    let numbers: Vec<u64> = steps.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3]);
    for row in &steps {
        for name in [
            "loss/mean loss/median loss/std loss/min loss/max",
            "entropy/all/mean entropy/all/std entropy/all/max entropy/reverse-text/mean",
            "mismatch_kl/all/mean mismatch_kl/all/std mismatch_kl/all/max mismatch_kl/reverse-text/mean",
            "is_masked/mean is_masked_low/mean is_masked_high/mean masked_advantage_positive/mean",
            "masked_mismatch_kl/mean unmasked_mismatch_kl/mean",
            "optim/lr optim/grad_norm optim/zero_grad_ratio",
            "perf/throughput perf/throughput_per_gpu perf/peak_memory",
            "time/step time/forward_backward time/broadcast_weights",
            "reward/all/mean reward/all/min reward/all/max reward/reverse-text/mean",
            "seq_len/all/mean num_turns/all/mean is_truncated/all/mean",
            "progress/tokens progress/total_tokens progress/total_rollouts",
            "train/reverse-text/all/reward/mean train/reverse-text/effective/reward/mean",
        ]
        .iter()
        .flat_map(|names| names.split(' '))
        {
            assert!(value(row, name).is_finite(), "{name}");
        }
        assert_eq!(value(row, "optim/lr"), 3e-4);
        assert!((1.0..=16.0).contains(&value(row, "progress/rollouts")));
    }
    let evals: Vec<u64> = run
        .metrics()
        .iter()
        .filter(|row| row.contains_key("eval/reverse-text/all/reward/mean"))
        .map(|row| row["step"].as_u64().unwrap())
        .collect();
    assert_eq!(evals, [0, 2, 3]);
}

fn the_console_has_the_usual_tokens(stdout: &str, run: &Run) {
    assert!(!stdout.contains('\u{1b}'), "colours, but this is no terminal");
    let lines: Vec<&str> = stdout.lines().filter(|l| l.contains("SUCCESS") && l.contains("Step")).collect();
    let of = |token: &str| -> Vec<f64> {
        let steps = lines.iter().filter(|line| !line.contains("Evaluated"));
        steps.filter_map(|line| number_after(line, token)).collect()
    };
    let rounded = |name: &str| -> Vec<f64> { run.series(name).iter().map(|v| (v * 1e4).round() / 1e4).collect() };
    assert_eq!(of("Reward"), rounded("reward/all/mean"));
    assert_eq!(of("Mismatch KL"), rounded("mismatch_kl/all/mean"));
    assert_eq!(of("Entropy"), rounded("entropy/all/mean"));
    let losses = lines.iter().filter(|line| line.contains("| Loss ")).count();
    assert_eq!(losses, 3);
    let evaluated: Vec<_> = lines.iter().filter(|line| line.contains("Evaluated reverse-text (Step ")).collect();
    assert_eq!(evaluated.len(), 3);
    assert!(evaluated.iter().all(|line| number_after(line, "Reward").is_some()), "{evaluated:?}");
}

/// The official client's offline file: its folder, its name, its header.
fn the_wandb_file_is_whole(run: &Run) {
    let folders: Vec<_> = fs::read_dir(run.path("wandb")).unwrap().map(|e| e.unwrap().path()).collect();
    let [folder] = &folders[..] else { panic!("{folders:?}") };
    let name = folder.file_name().unwrap().to_str().unwrap();
    let id = name.strip_prefix("offline-run-").and_then(|rest| rest.rsplit_once('-')).unwrap().1;
    let bytes = fs::read(folder.join(format!("run-{id}.wandb"))).unwrap();
    assert_eq!(bytes[..7], [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0]);
    let has = |text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has(id) && has("mismatch_kl/all/mean"));
}

/// Everything but times, and what depends on how fast the disk is.
pub fn timeless(rows: Vec<Row>) -> Vec<Row> {
    let is_time = |name: &str| ["time/", "timing/", "perf/", "ckpt/"].iter().any(|part| name.contains(part));
    let keep = |row: Row| row.into_iter().filter(|(name, _)| !is_time(name) && name != "timing").collect();
    rows.into_iter().map(keep).collect()
}

#[test]
fn the_same_seed_gives_the_same_run_whatever_the_threads() {
    let scratch = Scratch::new();
    scratch.rl("a", "--max-steps 4").ok();
    let mut alone = scratch.command(&scratch.rl_words("b", "--max-steps 4"));
    alone.env("RAYON_NUM_THREADS", "1").env("TOKIO_WORKER_THREADS", "1");
    Running::start(alone).wait().ok();
    scratch.rl("c", "--max-steps 4 --seed 1").ok();
    let (a, b, c) = (scratch.run("a"), scratch.run("b"), scratch.run("c"));

    assert_eq!(timeless(a.metrics()), timeless(b.metrics()));
    assert!(a.weights(4) == b.weights(4), "other weights");
    let traces = "rollouts/step_4/train/effective/traces.jsonl";
    assert_eq!(timeless(rows(&a.path(traces))), timeless(rows(&b.path(traces))));

    assert_ne!(a.series("loss/mean"), c.series("loss/mean"));
    assert!(a.weights(4) != c.weights(4), "another seed, the same weights");
}

#[test]
fn trainer_and_engine_agree_exactly_when_their_weights_do() {
    let scratch = Scratch::new();
    scratch.rl("synchronous", "--max-steps 4 --orchestrator.max-async-level 0").ok();
    scratch.rl("frozen", "--max-steps 4 --trainer.optim.lr 0").ok();
    for name in ["synchronous", "frozen"] {
        let run = scratch.run(name);
        for metric in ["mismatch_kl/all/mean", "mismatch_kl/all/max", "is_masked/mean"] {
            let series = run.series(metric);
            assert_eq!(series.len(), 4);
            assert!(series.iter().all(|v| v.abs() < 1e-6), "{name}: {metric} {series:?}");
        }
    }
    assert_eq!(scratch.run("synchronous").series("off_policy/max"), [0.0; 4]);
    let lead = scratch.run("frozen").series("off_policy/max");
    assert_eq!(lead[0], 0.0);
    assert!(lead[1..].iter().all(|v| *v == 1.0), "{lead:?}");
    // No step of size 0, weight decay included, changes a bit.
    assert!(scratch.run("synchronous").weights(4) != scratch.run("frozen").weights(4), "nothing was trained");
    scratch.rl("again", "--max-steps 1 --trainer.optim.lr 0").ok();
    assert!(scratch.run("again").weights(1) == scratch.run("frozen").weights(4), "a step of size 0 is none");
}

/// https://github.com/allenai/open-instruct/issues/1473
#[test]
fn with_weights_that_stay_the_mismatch_stays_at_zero() {
    let scratch = Scratch::new();
    let words = "--max-steps 50 --trainer.optim.lr 0 --orchestrator.max-async-level 2 --no-orchestrator.eval";
    scratch
        .prl(&format!(
            "rl @ {} {words} --orchestrator.batch-size 8 --orchestrator.group-size 4 --output-dir out",
            rl_toml()
        ))
        .ok();
    for metric in ["mismatch_kl/all/mean", "mismatch_kl/all/max"] {
        assert_eq!(scratch.run("out").series(metric), [0.0; 50], "{metric}");
    }
}

#[test]
fn both_kernels_compute_the_same_step() {
    let scratch = Scratch::new();
    scratch.rl("fast", "--max-steps 1").ok();
    scratch.rl("reference", "--max-steps 1 --kernels reference").ok();
    let (fast, reference) = (&scratch.run("fast").steps()[0], &scratch.run("reference").steps()[0]);
    for name in ["loss/mean", "reward/all/mean", "optim/grad_norm"] {
        let (a, b) = (value(fast, name), value(reference, name));
        assert!((a - b).abs() < 1e-4, "{name}: {a} and {b}");
    }
    assert!((value(fast, "entropy/all/mean") - value(reference, "entropy/all/mean")).abs() < 1e-3);
}

#[test]
fn it_learns() {
    let scratch = Scratch::new();
    let words = "--max-steps 12 --trainer.optim.lr 6e-4 --orchestrator.batch-size 64 --orchestrator.group-size 16";
    scratch.prl(&format!("rl @ {} {SMALL} {words} --no-orchestrator.eval --output-dir out", rl_toml())).ok();
    let rewards = scratch.run("out").series("reward/all/mean");
    assert_eq!(rewards.len(), 12);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&rewards[9..]) > mean(&rewards[..3]) + 0.2, "{rewards:?}");
}

#[test]
fn logs_can_be_json() {
    let scratch = Scratch::new();
    let done = scratch.rl("out", "--max-steps 1 --log.json-logging").ok();
    for line in done.stdout.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(line["message"].is_string() || line["type"] == "progress", "{line}");
    }
}

/// One environment under two names with other arguments, weights and shares, beside one of several turns whose split is
/// named and whose groups are scored together.
#[test]
fn several_environments_share_a_run() {
    let scratch = Scratch::new();
    let envs = repo().join("envs").display().to_string();
    let table = "[[orchestrator.train.env]]\nid = \"reverse-text\"\nname = \"short\"\nargs = { max_chars = 11 }\nratio = 2\n\
         [[orchestrator.train.env]]\nid = \"reverse-text\"\nname = \"half\"\nweights = { reverse_text = 0.5 }\n\
         [[orchestrator.train.env]]\nid = \"misbehave\"\nsplit = \"honest\"\nratio = 2\n";
    let toml = scratch.write("envs.toml", table.replace("id = \"", &format!("id = \"{envs}/")));
    scratch.rl("out", &format!("@ {toml} --max-steps 3 --seq-len 512")).ok();
    let run = scratch.run("out");
    let all: Vec<Row> =
        (1..=3).flat_map(|n| rows(&run.path(&format!("rollouts/step_{n}/train/all/traces.jsonl")))).collect();
    let of = |env: &str| all.iter().filter(|row| row["task"]["env"] == env).collect::<Vec<_>>();
    let (short, half, honest) = (of("short"), of("half"), of("misbehave"));
    assert!(
        !short.is_empty() && !half.is_empty() && !honest.is_empty(),
        "{} {} {}",
        short.len(),
        half.len(),
        honest.len()
    );
    assert!(short.iter().all(|row| row["task"]["payload"]["text"].as_str().unwrap().len() <= 11));
    assert!(half.iter().all(|row| row["reward"].as_f64().unwrap() <= 0.5));
    assert!(half.iter().any(|row| row["score"]["components"][0]["value"].as_f64().unwrap() > 0.0));
    for row in honest {
        // The group's score counts the messages: a prompt, and for each turn the turn and a reply but for the last.
        let turns = row["turns"].as_array().unwrap().len();
        let cut = !row["truncation"].is_null();
        let messages = 2 * turns + usize::from(cut && turns < 3);
        assert_eq!(row["reward"].as_f64(), Some(messages as f64), "{row:?}");
        assert_eq!(row["stop_condition"] == "done", turns == 3, "{row:?}");
    }
}
