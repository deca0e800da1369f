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
