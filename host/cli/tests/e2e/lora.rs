//! Training an adapter: what it leaves, that it is exact, that it goes on, and what is refused.

use crate::inference::start;
use crate::support::{Run, Scratch, files, model, refused, repo};
use serde_json::Value;
use std::fs;

/// Few steps of an adapter.
const LORA: &str = "--no-orchestrator.eval --trainer.model.lora --trainer.optim.lr 5e-3";

fn adapter(run: &Run, step: u64) -> Vec<u8> {
    fs::read(run.path(&format!("checkpoints/step_{step}/trainer/adapter_model.safetensors"))).unwrap()
}

#[test]
fn an_adapter_is_trained_exactly_and_handed_over_alone() {
    let scratch = Scratch::new();
    let words = format!("{LORA} --max-steps 4 --orchestrator.max-async-level 0 --ckpt.interval 2");
    let done = scratch.rl("out", &format!("{words} --trainer.ckpt.weights.save-adapter-separately")).ok();
    assert!(done.stdout.contains("Adapter of rank 16 on 28 matrices: 155648 numbers are trained"), "{done}");
    let run = scratch.run("out");
    // What was drawn with is what is trained, to the bit.
    assert_eq!(run.series("mismatch_kl/all/max"), [0.0; 4]);
    // A checkpoint holds the adapter and what the optimiser remembers of it, and nothing of what is frozen.
    for step in [2, 4] {
        let trainer = files(&run.path(&format!("checkpoints/step_{step}/trainer")));
        let names: Vec<&str> = trainer.keys().map(String::as_str).collect();
        let [settings, weights] = ["adapter_config.json", "adapter_model.safetensors"];
        assert_eq!(names, [settings, weights, "base.json", "optimizer.safetensors", "trainer.json"]);
        assert!(trainer[weights].len() < 700_000 && trainer["optimizer.safetensors"].len() < 1_400_000);
        let beside = files(&run.path(&format!("weights/step_{step}/lora_adapters")));
        assert!(beside[weights] == trainer[weights] && beside[settings] == trainer[settings]);
        run.has(&format!("weights/step_{step}/model.safetensors"));
        run.has(&format!("weights/step_{step}/tokenizer.json"));
    }
    assert!(adapter(&run, 2) != adapter(&run, 4));
    // Merged, they are weights like others.
    let merged = run.path("weights/step_4").display().to_string();
    scratch.prl(&format!("rl @ {} --model.name {merged} --dry-run --output-dir dry", crate::support::rl_toml())).ok();
    assert_ne!(run.weights(4), fs::read(model().join("model.safetensors")).unwrap());
}

#[test]
fn a_run_of_an_adapter_with_a_stop_is_the_run_without() {
    let scratch = Scratch::new();
    let words = format!("{LORA} --trainer.model.lora.dropout 0.2 --trainer.model.lora.rank 4 --max-steps");
    scratch.rl("through", &format!("{words} 4")).ok();
    scratch.rl("stopped", &format!("{words} 2")).ok();
    scratch.rl("stopped", &format!("{words} 4 --ckpt.resume-step -1")).ok();
    let (through, stopped) = (scratch.run("through"), scratch.run("stopped"));
    assert!(adapter(&through, 4) == adapter(&stopped, 4));
    assert!(through.weights(4) == stopped.weights(4));
    assert_eq!(through.series("loss/mean"), stopped.series("loss/mean"));
    // Masks are for training: what is drawn has none.
    assert!(through.series("mismatch_kl/all/mean").iter().skip(1).all(|kl| *kl > 0.0));

    // What it cannot go on with is refused, and changes nothing.
    let kept = || (files(&stopped.path("checkpoints")), fs::read(stopped.path("metrics.jsonl")).unwrap());
    let before = kept();
    let resume = "--max-steps 6 --ckpt.resume-step 4";
    let whole = format!("--no-orchestrator.eval {resume}");
    refused(&scratch.rl("stopped", &whole), &["holds an adapter", "`trainer.model.lora`", "adapter_config.json"]);
    let other = format!("{} --ckpt.resume-step 4", format!("{words} 6").replace("lora.rank 4", "lora.rank 8"));
    refused(&scratch.rl("stopped", &other), &["`ckpt.resume_step`", "this run has rank 8 and alpha 32"]);
    let base = scratch.path("stopped/weights/step_2").display().to_string();
    let other = format!("{words} 6 --ckpt.resume-step 4 --model.name {base}");
    refused(&scratch.rl("stopped", &other), &["one to other weights than those of `model.name`"]);
    assert!(kept() == before);
    scratch.rl("whole", "--no-orchestrator.eval --max-steps 1").ok();
    let other = format!("{words} 6 --ckpt.resume-step 1");
    refused(&scratch.rl("whole", &other), &["holds a whole model", "`model.name` = "]);
}

#[test]
fn sft_trains_an_adapter_and_modules_beside_it() {
    let scratch = Scratch::new();
    let toml = repo().join("examples/reverse_text/sft.toml").display().to_string();
    let base = model().display().to_string();
    let sft = |out: &str, words: &str| {
        let small = format!("--model.name {base} --no-model.debug.random-init --data.batch-size 4");
        let scheduler = "--scheduler.type constant --ckpt --output-dir";
        scratch.prl(&format!("sft @ {toml} {small} {scheduler} {out} {words}"))
    };
    let lora = "--model.lora --model.lora.target-modules [\"q_proj\",\"mlp\"] --model.lora.modules-to-save [\"embed_tokens\",\"norm\"]";
    for optim in ["adamw", "sgd", "muon", "sign_sgd"] {
        let words = format!("{lora} --model.lora.dropout 0.1 --optim.type {optim} --optim.lr 1e-3 --max-steps");
        let (through, stopped) = (format!("{optim}_through"), format!("{optim}_stopped"));
        sft(&through, &format!("{words} 4")).ok();
        sft(&stopped, &format!("{words} 2")).ok();
        sft(&stopped, &format!("{words} 4 --ckpt.resume-step 2")).ok();
        assert!(adapter(&scratch.run(&through), 4) == adapter(&scratch.run(&stopped), 4), "{optim}");
    }
    let settings = fs::read(scratch.path("adamw_through/checkpoints/step_4/trainer/adapter_config.json")).unwrap();
    let settings: Value = serde_json::from_slice(&settings).unwrap();
    assert_eq!(settings["modules_to_save"], serde_json::json!(["model.embed_tokens", "model.norm"]));

    let refuse = |words: &str, naming: &[&str]| refused(&sft("no", &format!("--max-steps 1 {words}")), naming);
    refuse(
        "--model.lora.target-modules [\"c_attn\"]",
        &["`model.lora.target_modules`", "\"c_attn\"", "q_proj, k_proj"],
    );
    refuse("--model.lora.modules-to-save [\"lm_head\"]", &["`model.lora.modules_to_save`", "name embed_tokens"]);
    assert!(!scratch.path("no").exists());
    let alone = "--data.fake --model.seq-len 32 --max-steps 2 --model.lora --ckpt --output-dir alone";
    scratch.prl(&format!("trainer --model.name {base} {alone}")).ok();
    assert!(!adapter(&scratch.run("alone"), 2).is_empty());
    let bench = sft("no", "--model.lora --bench --data.type fake").ok();
    assert!(bench.stdout.contains("Benchmark") && !scratch.path("no").exists(), "{bench}");
}

#[test]
fn servers_get_the_adapter_alone() {
    let scratch = Scratch::new();
    let (server, address) = start(&scratch, "--enable-lora");
    let client = format!("--orchestrator.model.client.base-url http://{address}/v1");
    let words = format!("{LORA} --max-steps 3 --orchestrator.max-async-level 0 {client}");
    scratch.rl("served", &words).ok();
    let run = scratch.run("served");
    assert_eq!(run.series("mismatch_kl/all/max"), [0.0; 3]);
    let sent = files(&run.path("broadcasts/step_3"));
    let names: Vec<&str> = sent.keys().map(String::as_str).collect();
    assert_eq!(names, ["STABLE", "adapter_config.json", "adapter_model.safetensors"]);
    // Going on sends the checkpoint's adapter again.
    scratch.rl("served", &format!("{} --ckpt.resume-step 3", words.replace("--max-steps 3", "--max-steps 4"))).ok();
    assert_eq!(run.series("mismatch_kl/all/max"), [0.0; 4]);
    drop(server);
    let (_server, address) = start(&scratch, "");
    let client = format!("--orchestrator.model.client.base-url http://{address}/v1");
    let done = scratch.rl("no", &format!("{LORA} --max-steps 1 {client}"));
    refused(&done, &["`orchestrator.model.client`", "takes no adapters", "enable_lora = true"]);
    assert!(!scratch.path("no").exists());
}
