//! Made-up data: `prl trainer`, `prl sft` with `data.type = "fake"`, and `--bench`.

use crate::support::{Finished, Scratch, files, model, repo, value};
use serde_json::Value;
use std::fs;

/// `prl trainer` of the example's model on small made-up batches.
fn trainer(scratch: &Scratch, words: &str) -> Finished {
    let name = model();
    scratch.prl(&format!("trainer --model.name {} --model.seq-len 64 --device cpu {words}", name.display()))
}

/// A model of which there is only the shape.
fn shape_only(scratch: &Scratch) -> String {
    fs::create_dir(scratch.path("shape")).unwrap();
    fs::copy(model().join("config.json"), scratch.path("shape/config.json")).unwrap();
    "--model.name shape --model.debug.random-init --device cpu".into()
}

#[test]
fn the_trainer_trains_alone_and_goes_on_where_it_stopped() {
    let scratch = Scratch::new();
    let done = trainer(&scratch, "--data.fake --max-steps 4 --ckpt --optim.lr 1e-3 --output-dir through").ok();
    let through = scratch.run("through");
    assert_eq!(done.successes().iter().filter(|line| line.contains("Mismatch KL")).count(), 4, "{done}");
    for name in
        ["logs/trainer.log", "configs/trainer.toml", "checkpoints/step_4/manifest.json", "weights/step_4/STABLE"]
    {
        through.has(name);
    }
    for name in "perf/throughput optim/grad_norm entropy/fake/mean is_masked/mean".split(' ') {
        assert!(value(&through.steps()[0], name).is_finite());
    }

    trainer(&scratch, "--data.fake --max-steps 2 --ckpt --optim.lr 1e-3 --output-dir parts").ok();
    let again = trainer(&scratch, "--data.fake --max-steps 4 --optim.lr 1e-3 --output-dir parts");
    assert_eq!(again.code, Some(2), "{again}");
    // What it dumped runs again.
    fs::copy(scratch.path("parts/configs/trainer.toml"), scratch.path("again.toml")).unwrap();
    scratch.prl("trainer @ again.toml --max-steps 4 --ckpt.resume-step -1").ok();
    assert!(scratch.run("parts").weights(4) == through.weights(4), "other weights");
    assert_eq!(scratch.run("parts").series("loss/mean"), through.series("loss/mean"));

    // On the CPU neither precision nor recomputation changes a bit; another seed does.
    let same = "--data.fake --max-steps 4 --ckpt --optim.lr 1e-3";
    let gpu_only = "--matmul-precision highest --model.ac.mode selective --model.ac.targets mlp norm --output-dir same";
    trainer(&scratch, &format!("{same} {gpu_only}")).ok();
    assert!(scratch.run("same").weights(4) == through.weights(4), "other weights");
    trainer(&scratch, &format!("{same} --seed 1 --data.fake.generate-samples --output-dir other")).ok();
    assert_ne!(scratch.run("other").series("loss/mean"), through.series("loss/mean"));
}

#[test]
fn sft_on_made_up_data_needs_only_a_shape() {
    let scratch = Scratch::new();
    let shape = shape_only(&scratch);
    let fake = "--data.type fake --data.seq-len 32 --data.batch-size 4 --optim.lr 1e-2";
    scratch.prl(&format!("sft {shape} {fake} --max-steps 12 --output-dir fixed")).ok();
    let run = scratch.run("fixed");
    let losses = run.series("loss/mean");
    // Every document has a token of its own, which random weights do not know.
    let uniform = 267f64.ln();
    assert!(losses.len() == 12 && (losses[0] - uniform).abs() < 1.0, "{losses:?}");
    assert_eq!(value(&run.steps()[11], "progress/num_tokens"), 12.0 * 4.0 * 32.0);

    let variable = "--data.length variable --data.input-ids random --data.seed 5";
    scratch.prl(&format!("sft {shape} {fake} {variable} --max-steps 2 --output-dir variable")).ok();
    let steps = scratch.run("variable").steps();
    assert!(value(&steps[1], "progress/num_tokens") < 2.0 * 4.0 * 32.0);
}

/// The result of a measurement: four steps told, three counted.
#[track_caller]
fn measured(scratch: &Scratch, done: &Finished, json: &str) -> Value {
    assert_eq!(done.successes().len(), 4, "{done}");
    let table: Vec<&str> = done.stdout.lines().skip_while(|line| *line != "Benchmark").collect();
    assert_eq!(table.len(), 6, "{done}");
    for heading in ["MFU", "Throughput", "Step Time", "Peak Memory"] {
        assert!(table[1].contains(heading), "{done}");
    }
    assert!(table[5].contains("Overall") && table[5].contains(" ± ") && table[5].contains('['), "{done}");
    let result: Value = serde_json::from_slice(&fs::read(scratch.path(json)).unwrap()).unwrap();
    let metrics = &result["metrics"];
    for name in ["throughput", "step_time"] {
        let of = |stat: &str| metrics[name][stat].as_f64().unwrap();
        assert!(of("min") > 0.0 && of("min") <= of("mean") && of("mean") <= of("max") && of("std") >= 0.0, "{result}");
    }
    assert!(metrics["peak_memory"]["gib"].as_f64().unwrap() > 0.0, "{result}");
    assert!(metrics["peak_memory"]["pct"].as_f64().unwrap() > 0.0, "{result}");
    // The peak of this machine's CPU is not known.
    assert_eq!(metrics["mfu"], Value::Null);
    assert_eq!(result["config"]["max_steps"], 4);
    assert_eq!(result["config"]["ckpt"], Value::Null);
    assert_eq!(result["config"]["device"], "cpu");
    assert!(done.stdout.contains("| device cpu | fast kernels"), "{done}");
    result
}

#[test]
fn measurements_write_their_result_and_nothing_else() {
    let scratch = Scratch::new();
    let shape = shape_only(&scratch);
    let done = scratch.prl(&format!("sft {shape} --bench.output-json new/sft.json --ckpt --data.seq-len 64")).ok();
    let result = measured(&scratch, &done, "new/sft.json");
    assert_eq!(result["config"]["data"]["type"], "fake");

    let done = scratch.prl(&format!("trainer {shape} --model.seq-len 64 --bench.output-json new/rl.json")).ok();
    let result = measured(&scratch, &done, "new/rl.json");
    assert_eq!(result["config"]["data"]["fake"]["batch_size"], 2);

    // Configured data is what is measured, and a schedule that needs more steps is no obstacle.
    let toml = repo().join("examples/reverse_text/sft.toml");
    let words = "--data.batch-size 2 --bench.output-json new/env.json --device cpu";
    let done = scratch.prl(&format!("sft @ {} {words}", toml.display())).ok();
    assert_eq!(measured(&scratch, &done, "new/env.json")["config"]["data"]["type"], "env");

    let names: Vec<String> = files(&scratch.path("")).into_keys().collect();
    assert_eq!(names, ["new/", "new/env.json", "new/rl.json", "new/sft.json", "shape/", "shape/config.json"]);
}

#[test]
fn a_result_goes_where_it_was_asked_for_and_nowhere_else() {
    let scratch = Scratch::new();
    let shape = shape_only(&scratch);
    let bench = |place: &str| scratch.prl(&format!("trainer {shape} --model.seq-len 64 --bench.output-json {place}"));
    fs::create_dir(scratch.path("real")).unwrap();
    for (name, text) in [("real/result.json", "old"), ("real/result.json.tmp", "mine"), ("file", "mine")] {
        scratch.write(name, text);
    }
    std::os::unix::fs::symlink("real/result.json", scratch.path("link.json")).unwrap();
    bench("link.json").ok();
    assert!(fs::symlink_metadata(scratch.path("link.json")).unwrap().is_symlink());
    assert!(fs::read_to_string(scratch.path("real/result.json")).unwrap().contains("\"throughput\""));

    let before = files(&scratch.path(""));
    for place in ["/dev/null", "/dev/full", "real", "file/below.json", "/proc/none/result.json"] {
        let done = bench(place);
        assert_eq!(done.code, Some(2), "{place}: {done}");
        assert!(done.stderr.contains("`bench.output_json`") && done.stderr.contains(place), "{done}");
        assert_eq!(done.successes().len(), 0, "{done}");
    }
    assert!(files(&scratch.path("")) == before);

    // Relative to the file that says it, as every path.
    scratch.write("real/bench.toml", "[bench]\noutput_json = \"new/beside.json\"\n");
    scratch.prl(&format!("trainer @ real/bench.toml {shape} --model.seq-len 64")).ok();
    assert!(scratch.path("real/new/beside.json").is_file());
    assert!(!scratch.path("new").exists());
}

#[test]
fn steps_that_do_nothing_are_not_measured() {
    let scratch = Scratch::new();
    let shape = shape_only(&scratch);
    let done = scratch.prl(&format!("trainer {shape} --model.seq-len 64 --optim.lr 1e38 --bench.output-json out.json"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stderr.contains("is not finite") && done.stderr.contains("`optim.lr`"), "{done}");
    assert!(!done.stdout.contains("Benchmark") && !scratch.path("out.json").exists(), "{done}");
}

#[test]
fn what_cannot_fit_is_refused_before_anything_is_allocated() {
    let scratch = Scratch::new();
    let shape = shape_only(&scratch);
    let refused = |words: &str, naming: &[&str]| {
        let done = scratch.prl(words);
        assert_eq!(done.code, Some(2), "{words}: {done}");
        assert!(naming.iter().all(|part| done.stderr.contains(part)), "{words}: {done}");
        assert!(!scratch.path("outputs").exists(), "{words} leaves a folder");
    };
    for len in ["9223372036854775807", "1000000000000", "1048577"] {
        refused(
            &format!("trainer {shape} --bench --model.seq-len {len}"),
            &["`model.seq_len` must be at most 1048576"],
        );
    }
    let needs = ["GiB of memory to train", "a step's batch", "GiB available", "`seq_len`"];
    let batch = "--data.type fake --data.seq-len 1048576 --data.batch-size 1000000";
    refused(&format!("sft {shape} {batch}"), &needs);
    refused(&format!("trainer {shape} --model.seq-len 1048576 --data.fake.batch-size 1000000"), &needs);

    let config = fs::read_to_string(model().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    for (key, value, naming) in [
        ("num_hidden_layers", 4_000_000_000u64, "`num_hidden_layers`"),
        ("intermediate_size", 4_000_000_000_000, "`intermediate_size`"),
        // 3e13 parameters.
        ("vocab_size", 4_000_000_000, "GiB"),
    ] {
        let old = config[key].clone();
        config[key] = value.into();
        if key == "vocab_size" {
            config["hidden_size"] = 8192.into();
        }
        fs::write(scratch.path("shape/config.json"), config.to_string()).unwrap();
        refused(&format!("trainer {shape} --data.fake"), &["shape", naming]);
        config[key] = old;
    }
}

#[test]
fn lost_metrics_are_told_by_the_exit_code() {
    let scratch = Scratch::new();
    let name = model();
    // Files of at most 8 KiB, as on a full disk; the signal that goes with it is ignored.
    let words = format!(
        "trap '' XFSZ; ulimit -f 16; exec {} trainer --model.name {} --model.seq-len 16 --data.fake --device cpu \
         --log.level warning --max-steps 40 --output-dir out",
        env!("CARGO_BIN_EXE_prl"),
        name.display()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &words]).current_dir(scratch.path("")).stdin(std::process::Stdio::null());
    let done = crate::support::Running::start(command).wait();
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stderr.contains("metrics.jsonl is not complete"), "{done}");
    // What is there is whole.
    let steps = scratch.run("out").steps().len();
    assert!((1..40).contains(&steps), "{steps}");
}

#[test]
fn weights_can_be_read_by_whoever_can_read_the_rest() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    trainer(&scratch, "--data.fake --max-steps 1 --ckpt --output-dir out").ok();
    let mode = |name: &str| fs::metadata(scratch.path("out").join(name)).unwrap().permissions().mode();
    for folder in ["weights/step_1", "checkpoints/step_1/trainer"] {
        assert_eq!(mode(&format!("{folder}/model.safetensors")), mode(&format!("{folder}/config.json")));
    }
    let again = trainer(&scratch, "--data.fake --max-steps 1 --output-dir out --ckpt.resume-step -1").ok();
    assert!(again.stdout.contains("There is nothing to do"), "{again}");
}
