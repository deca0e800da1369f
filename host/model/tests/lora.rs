//! Adapters under training: both implementations agree, sampling has the trainer's bits, what is saved is what was trained, and
//! what cannot be trained is named.

mod common;

use common::{cpu, folder, load};
use prl_kernels::Meter;
use prl_model::{
    Adapter, Answer, Decoder, Extend, Kernels, Learner, LoraOptions, LoraPlan, ModelConfig, Packed, SaveOptions,
    Snapshot, Want,
};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::path::Path;

const SEED: u64 = 11;

fn options(targets: &[&str], saved: &[&str]) -> LoraOptions {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    LoraOptions { rank: 4, alpha: 6.0, dropout: 0.0, target_modules: names(targets), modules_to_save: names(saved) }
}

const ALL: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

fn config(name: &str) -> ModelConfig {
    ModelConfig::load(&folder(name)).unwrap()
}

/// A learner whose adapter does something: a fresh one adds nothing.
fn learner(name: &str, options: &LoraOptions, kernels: Kernels) -> Learner {
    let plan = LoraPlan::new(options.clone(), &config(name)).unwrap();
    let mut learner = Learner::with_lora(load(name), kernels, 5, (plan, SEED)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    learner.weights().unwrap().save_adapter(dir.path(), name).unwrap();
    change(&dir.path().join("adapter_model.safetensors"), |name, i| {
        let x = (i as f32 * 0.37 + name.len() as f32).sin();
        if name.contains("lora_B") { 0.2 * x } else { 0.01 * x }
    });
    learner.load_adapter(dir.path()).unwrap();
    learner
}

/// Adds to every number of a file.
fn change(path: &Path, by: impl Fn(&str, usize) -> f32) {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let changed: Vec<(String, Vec<usize>, Vec<u8>)> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let numbers = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).enumerate();
            let bytes = numbers.flat_map(|(i, x)| (x + by(&name, i)).to_le_bytes()).collect();
            (name, view.shape().to_vec(), bytes)
        })
        .collect();
    let views = changed.iter().map(|(n, shape, b)| (n, TensorView::new(Dtype::F32, shape.clone(), b).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn batch(vocab: usize) -> Packed {
    let doc_lens = vec![9, 1, 14];
    let n: usize = doc_lens.iter().sum();
    let ids = (0..n as u32).map(|i| (i * 7 + i * i) % vocab as u32).collect();
    Packed { ids, doc_lens, temperatures: (0..n).map(|i| 0.7 + 0.02 * i as f32).collect() }
}

fn logits(snapshot: &dyn Snapshot, ids: &[u32], adapter: Option<&Adapter>) -> Vec<f32> {
    let mut cache = snapshot.new_cache(&Meter::default());
    let item = Extend { cache: &mut cache, ids, want: Want::AllLogits, adapter };
    match snapshot.extend(&mut [item]).unwrap().remove(0) {
        Answer::Logits(rows) => rows,
        other => panic!("{other:?}"),
    }
}

fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let size = b.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let off = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    off / size.max(1e-12)
}

#[test]
fn fast_and_reference_agree_on_every_gradient() {
    for (name, targets, saved, dropout) in [
        ("qwen3", &ALL[..], &[][..], 0.0),
        ("qwen3", &["q_proj", "down_proj"], &["embed_tokens", "norm"], 0.3),
        ("qwen2", &["self_attn"], &["mlp", "lm_head"], 0.0),
        ("llama", &[r"layers\.1\..*_proj"], &["input_layernorm"], 0.1),
    ] {
        let saved = if config(name).tied {
            saved.iter().copied().filter(|s| *s != "lm_head").collect()
        } else {
            saved.to_vec()
        };
        let options = LoraOptions { dropout, ..options(targets, &saved) };
        let run = |kernels| {
            let mut learner = learner(name, &options, kernels);
            let batch = batch(learner.config().vocab_size);
            learner.begin(Some(3));
            let stats = learner.forward(&batch).unwrap();
            let gradient: Vec<f32> = (0..batch.ids.len()).map(|t| (t as f32).cos()).collect();
            learner.backward(&gradient, Some(&gradient)).unwrap();
            (stats, learner.gradients().unwrap(), learner.trained())
        };
        let ((fast, a, infos), (reference, b, _)) = (run(Kernels::Fast), run(Kernels::Reference));
        assert!(relative_error(&fast.logprobs, &reference.logprobs) < 1e-5, "{name}");
        assert!(relative_error(&fast.entropy, &reference.entropy) < 1e-4, "{name}");
        assert_eq!((a.len(), b.len()), (infos.len(), infos.len()), "only what is trained has gradients");
        for ((info, a), b) in infos.iter().zip(&a).zip(&b) {
            assert_eq!(a.len(), info.shape.iter().product::<usize>());
            assert!(relative_error(a, b) < 1e-4, "{name} {}: {}", info.name, relative_error(a, b));
        }
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_follows_from_its_seed() {
    let of = |seed| {
        let plan = LoraPlan::new(options(&ALL, &[]), &config("qwen3")).unwrap();
        Learner::with_lora(load("qwen3"), Kernels::Fast, 5, (plan, seed)).unwrap()
    };
    let mut fresh = of(SEED);
    let batch = batch(fresh.config().vocab_size);
    let mut plain = Learner::new(load("qwen3"), Kernels::Fast, 5).unwrap();
    assert_eq!(fresh.forward(&batch).unwrap(), plain.forward(&batch).unwrap());
    let factors = |learner: &Learner| -> Vec<Vec<f32>> {
        let model = learner.weights().unwrap();
        model.parameters().into_iter().map(|(_, parameter)| parameter.to_vec().unwrap()).collect()
    };
    let (own, again, other) = (factors(&fresh), factors(&of(SEED)), factors(&of(SEED + 1)));
    assert!(own == again && own[0] != other[0]);
    let width = fresh.config().hidden_size as f32;
    for (info, values) in fresh.trained().iter().zip(&own) {
        if info.name.ends_with("lora_B.weight") {
            assert!(values.iter().all(|x| *x == 0.0));
        } else if info.name.contains("q_proj") {
            // Uniform within ±1/√in: its variance is a third of the square of that.
            let bound = width.sqrt().recip();
            assert!(values.iter().all(|x| x.abs() <= bound));
            let mean = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
            assert!((0.25..0.42).contains(&(mean / bound / bound)), "{}", mean / bound / bound);
        }
    }
}

#[test]
fn sampling_has_the_bits_of_training_and_dropout_is_for_training_alone() {
    for name in ["qwen3", "qwen2", "llama"] {
        let options = LoraOptions { dropout: 0.5, ..options(&ALL, &["embed_tokens"]) };
        let mut learner = learner(name, &options, Kernels::Fast);
        let batch = batch(learner.config().vocab_size);
        let without = learner.forward(&batch).unwrap();
        let snapshot = learner.snapshot().unwrap();
        let mut start = 0;
        for len in &batch.doc_lens {
            let ids = &batch.ids[start..start + len];
            let rows = logits(snapshot.as_ref(), ids, None);
            for t in 1..*len {
                let row = &rows[(t - 1) * learner.config().vocab_size..][..learner.config().vocab_size];
                let sampled = snapshot.logprob(row, ids[t], batch.temperatures[start + t]);
                assert_eq!(sampled.to_bits(), without.logprobs[start + t].to_bits(), "{name} {t}");
            }
            start += len;
        }
        learner.begin(Some(1));
        let first = learner.forward(&batch).unwrap();
        assert_ne!(first, without);
        assert_eq!(first, learner.forward(&batch).unwrap());
        learner.begin(Some(2));
        assert_ne!(first, learner.forward(&batch).unwrap());
        learner.begin(None);
        assert_eq!(without, learner.forward(&batch).unwrap());
        // Its own adapter is all that it takes.
        let other = Adapter::new(Vec::new());
        let mut cache = snapshot.new_cache(&Meter::default());
        let item = Extend { cache: &mut cache, ids: &[1], want: Want::Logits, adapter: Some(&other) };
        assert!(!snapshot.takes_adapters() && snapshot.extend(&mut [item]).is_err());
    }
}

#[test]
fn what_is_saved_is_what_was_trained() {
    for (name, targets) in [("qwen3", &ALL[..]), ("qwen2", &["v_proj", "o_proj"]), ("llama", &[r"\.0\.mlp"])] {
        let learner = learner(name, &options(targets, &[]), Kernels::Fast);
        let trained = learner.weights().unwrap();
        let own = learner.snapshot().unwrap();
        let ids: Vec<u32> = (1..20).collect();
        let want = logits(own.as_ref(), &ids, None);
        // Beside the model, to the bit.
        let dir = tempfile::tempdir().unwrap();
        trained.save_adapter(dir.path(), "base").unwrap();
        let adapter = Adapter::load(dir.path(), learner.config()).unwrap();
        let plain = load(name).snapshot(Kernels::Fast).unwrap();
        assert_eq!(logits(plain.as_ref(), &ids, Some(&adapter)), want, "{name}");
        // Merged, as far as rounding goes.
        trained.save_hf(dir.path(), &SaveOptions::default()).unwrap();
        let merged = Decoder::load_hf(dir.path(), &cpu()).unwrap().snapshot(Kernels::Fast).unwrap();
        assert!(relative_error(&logits(merged.as_ref(), &ids, None), &want) < 1e-5, "{name}");
        assert!(relative_error(&logits(plain.as_ref(), &ids, None), &want) > 1e-3, "{name}: the adapter does nothing");
        // The reference samples the same.
        let reference = trained.snapshot(Kernels::Reference).unwrap();
        assert!(relative_error(&logits(reference.as_ref(), &ids, None), &want) < 1e-5, "{name}");
    }
}

#[test]
fn training_goes_on_from_its_own_files_alone() {
    let options = options(&["q_proj", "up_proj"], &["norm", "embed_tokens"]);
    let with = |options: &LoraOptions| {
        let plan = LoraPlan::new(options.clone(), &config("qwen3")).unwrap();
        Learner::with_lora(load("qwen3"), Kernels::Fast, 5, (plan, SEED + 5)).unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let mut first = learner("qwen3", &options, Kernels::Fast);
    first.weights().unwrap().save_adapter(dir.path(), "base").unwrap();
    let mut second = with(&options);
    let batch = batch(first.config().vocab_size);
    assert_ne!(first.forward(&batch).unwrap(), second.forward(&batch).unwrap());
    second.load_adapter(dir.path()).unwrap();
    assert_eq!(first.forward(&batch).unwrap(), second.forward(&batch).unwrap());
    let checksum = |learner: &Learner| learner.weights().unwrap().frozen_checksum().unwrap();
    assert_eq!(checksum(&first), checksum(&second), "what is trained is not part of it");
    assert_ne!(checksum(&first), checksum(&with(&LoraOptions { modules_to_save: Vec::new(), ..options.clone() })));

    let settings: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!(settings["target_modules"], serde_json::json!(["q_proj", "up_proj"]));
    assert_eq!(settings["modules_to_save"], serde_json::json!(["model.embed_tokens", "model.norm"]));
    assert_eq!((settings["r"].as_u64(), settings["lora_alpha"].as_i64()), (Some(4), Some(6)));
    assert_eq!(settings["ensure_weight_tying"], config("qwen3").tied);

    for (other, words) in [
        (LoraOptions { alpha: 7.0, ..options.clone() }, "rank 4 and alpha 7"),
        (LoraOptions { rank: 5, ..options.clone() }, "rank 5 and alpha 6"),
        (LoraOptions { target_modules: vec!["k_proj".into()], ..options.clone() }, "k_proj.lora_A.weight` is missing"),
        (LoraOptions { modules_to_save: Vec::new(), ..options.clone() }, "other modules"),
    ] {
        let text = with(&other).load_adapter(dir.path()).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn what_cannot_be_trained_is_named() {
    let refused = |name: &str, options: LoraOptions, words: &[&str]| {
        let text = LoraPlan::new(options, &config(name)).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "no `{word}` in: {text}");
        }
    };
    let (tied, untied) = ("qwen3", "llama");
    assert!(config(tied).tied && !config(untied).tied);
    refused(
        tied,
        options(&["q_proj", "c_attn"], &[]),
        &["`lora.target_modules`", "\"c_attn\"", "q_proj, k_proj", "down_proj"],
    );
    refused(tied, options(&[r"layers\.99\..*"], &[]), &["matches no module", "model.layers.0 to"]);
    refused(tied, options(&["[q"], &[]), &["\"[q\", which is no regular expression"]);
    refused(tied, options(&[], &[]), &["is empty", "q_proj"]);
    refused(untied, options(&[".*"], &[]), &["matches lm_head", "modules_to_save"]);
    refused(tied, options(&["q_proj"], &["lm_head"]), &["`lora.modules_to_save`", "name embed_tokens"]);
    refused(untied, options(&["q_proj"], &["score"]), &["\"score\"", "embed_tokens", "lm_head"]);
    refused(tied, options(&["q_proj"], &["self_attn"]), &["self_attn.q_proj", "leave it out of one"]);
    let numbers = |rank, alpha, dropout| LoraOptions { rank, alpha, dropout, ..options(&["q_proj"], &[]) };
    refused(tied, numbers(0, 1.0, 0.0), &["`lora.rank` is 0"]);
    for alpha in [0.0, -1.0, f64::NAN] {
        refused(tied, numbers(1, alpha, 0.0), &["`lora.alpha`", "above 0"]);
    }
    for dropout in [-0.1, 1.0, f64::NAN] {
        refused(tied, numbers(1, 1.0, dropout), &["`lora.dropout`", "below 1"]);
    }
    let some =
        LoraPlan::new(options(&[r"layers\.[01]\.mlp\.(up|gate)_proj$", "v_proj"], &[]), &config(untied)).unwrap();
    assert!(some.targets().len() >= 2 * 3);
}
