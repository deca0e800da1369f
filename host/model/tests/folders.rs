//! Model folders: what is written is what is read, and what cannot be read says why.

mod common;

use common::{cpu, folder, load};
use prl_model::{Decoder, Kernels, Learner, ModelConfig, Packed, Precision, SaveOptions};
use safetensors::{Dtype, SafeTensors};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn values(decoder: &Decoder) -> Vec<Vec<f32>> {
    decoder.parameters().iter().map(|p| p.to_vec().unwrap()).collect()
}

/// A copy of a fixture that a test may damage.
fn copy(name: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    for file in ["config.json", "model.safetensors", "generation_config.json"] {
        fs::copy(folder(name).join(file), dir.path().join(file)).unwrap();
    }
    dir
}

fn error(dir: &Path) -> String {
    Decoder::load_hf(dir, &cpu()).unwrap_err().to_string()
}

fn edit_config(dir: &Path, edit: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) {
    let path = dir.join("config.json");
    let mut value: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    edit(value.as_object_mut().unwrap());
    fs::write(&path, value.to_string()).unwrap();
}

#[test]
fn saving_and_loading_is_bitwise_in_one_file_or_many() {
    for name in ["qwen3", "qwen2", "llama"] {
        let decoder = load(name);
        for max_shard_bytes in [usize::MAX, 20_000] {
            let out = TempDir::new().unwrap();
            let options = SaveOptions { companions: Some(folder(name)), max_shard_bytes, precision: Precision::F32 };
            decoder.save_hf(out.path(), &options).unwrap();
            let sharded = out.path().join("model.safetensors.index.json").exists();
            assert_eq!(sharded, max_shard_bytes == 20_000);
            assert_ne!(sharded, out.path().join("model.safetensors").exists());
            let back = Decoder::load_hf(out.path(), &cpu()).unwrap();
            assert_eq!(values(&back), values(&decoder), "{name}");
            assert_eq!(back.config(), decoder.config());
            let copied = fs::read(out.path().join("generation_config.json")).unwrap();
            assert_eq!(copied, fs::read(folder(name).join("generation_config.json")).unwrap());
        }
    }
}

#[test]
fn bf16_halves_the_file_and_rounds_to_nearest() {
    let (decoder, out) = (load("llama"), TempDir::new().unwrap());
    decoder.save_hf(out.path(), &SaveOptions { precision: Precision::Bf16, ..SaveOptions::default() }).unwrap();
    let bytes = fs::read(out.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.tensors().iter().all(|(_, t)| t.dtype() == Dtype::BF16));
    let back = Decoder::load_hf(out.path(), &cpu()).unwrap();
    assert_eq!(back.config().raw["dtype"], "bfloat16");
    for (a, b) in values(&decoder).concat().iter().zip(values(&back).concat()) {
        assert_eq!(half::bf16::from_f32(*a).to_f32(), b);
    }
}

#[test]
fn unknown_keys_of_the_config_survive() {
    let dir = copy("qwen3");
    edit_config(dir.path(), |c| {
        c.insert("someone_elses_key".into(), serde_json::json!({"a": [1, 2.5]}));
    });
    let out = TempDir::new().unwrap();
    Decoder::load_hf(dir.path(), &cpu()).unwrap().save_hf(out.path(), &SaveOptions::default()).unwrap();
    let read = |p: &Path| ModelConfig::load(p).unwrap().raw;
    assert_eq!(read(out.path()), read(dir.path()));
}

#[test]
fn f16_is_read() {
    let dir = copy("llama");
    let bytes = fs::read(dir.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let halves: Vec<(String, Vec<usize>, Vec<u8>)> = file
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            let numbers = t.data().as_chunks::<4>().0;
            let data = numbers.iter().flat_map(|b| half::f16::from_f32(f32::from_le_bytes(*b)).to_le_bytes()).collect();
            (name, t.shape().to_vec(), data)
        })
        .collect();
    let views = halves.iter().map(|(name, shape, data)| {
        (name.clone(), safetensors::tensor::TensorView::new(Dtype::F16, shape.clone(), data).unwrap())
    });
    let written = safetensors::serialize(views, None).unwrap();
    fs::write(dir.path().join("model.safetensors"), written).unwrap();
    let back = Decoder::load_hf(dir.path(), &cpu()).unwrap();
    for (a, b) in values(&load("llama")).concat().iter().zip(values(&back).concat()) {
        assert_eq!(half::f16::from_f32(*a).to_f32(), b);
    }
}

#[test]
fn damaged_folders_say_what_is_wrong_and_where() {
    assert!(error(Path::new("no/such/folder")).contains("cannot read `no/such/folder/config.json`"));

    let dir = copy("qwen3");
    fs::remove_file(dir.path().join("config.json")).unwrap();
    assert!(error(dir.path()).contains("is not a model folder: it has no config.json"));

    let dir = copy("qwen3");
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    assert!(error(dir.path()).contains("has no model.safetensors or model.safetensors.index.json"));

    let weights = |dir: &TempDir| dir.path().join("model.safetensors");
    for keep in [0, 5, 100, 60_000] {
        let dir = copy("qwen3");
        let bytes = fs::read(weights(&dir)).unwrap();
        fs::write(weights(&dir), &bytes[..keep]).unwrap();
        let text = error(dir.path());
        assert!(text.contains("model.safetensors") && (text.contains("cut short") || text.contains("empty")), "{text}");
    }

    let dir = copy("qwen3");
    edit_config(dir.path(), |c| drop(c.insert("num_hidden_layers".into(), 3.into())));
    edit_config(dir.path(), |c| drop(c.remove("layer_types")));
    let text = error(dir.path());
    assert!(text.contains("model.safetensors`: tensor `model.layers.2.input_layernorm.weight` is missing"), "{text}");

    let dir = copy("qwen3");
    edit_config(dir.path(), |c| drop(c.insert("num_hidden_layers".into(), 1.into())));
    let text = error(dir.path());
    assert!(text.contains("tensor `model.layers.1.") && text.contains("is not part of the qwen3 model"), "{text}");

    let dir = copy("qwen3");
    edit_config(dir.path(), |c| drop(c.insert("intermediate_size".into(), 40.into())));
    let text = error(dir.path());
    assert!(text.contains("mlp.gate_proj.weight` has shape [48, 32], config.json asks for [40, 32]"), "{text}");

    let dir = copy("qwen3");
    edit_config(dir.path(), |c| drop(c.insert("tie_word_embeddings".into(), false.into())));
    assert!(error(dir.path()).contains("tensor `lm_head.weight` is missing"));

    let dir = copy("qwen3");
    fs::rename(weights(&dir), dir.path().join("a.safetensors")).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map": {"x": "b.safetensors"}}"#).unwrap();
    assert!(error(dir.path()).contains("cannot read `") && error(dir.path()).contains("b.safetensors`"));
    fs::write(&index, r#"{"weight_map": {"x": "../../etc/passwd"}}"#).unwrap();
    assert!(error(dir.path()).contains("`weight_map` gives no file name for tensor `x`"));
    fs::write(&index, "{}").unwrap();
    assert!(error(dir.path()).contains("it has no `weight_map`"));
}

#[test]
fn a_head_beside_a_tied_embedding_is_ignored() {
    let dir = copy("llama");
    edit_config(dir.path(), |c| drop(c.insert("tie_word_embeddings".into(), true.into())));
    assert!(Decoder::load_hf(dir.path(), &cpu()).unwrap().lm_head.is_none());
}

#[test]
fn random_weights_depend_on_the_seed_only() {
    let config = ModelConfig::load(&folder("qwen2")).unwrap();
    let [a, b, c] = [1, 1, 2].map(|seed| values(&Decoder::init(config.clone(), seed, &cpu())));
    assert_eq!(a, b);
    assert_ne!(a[0], c[0]);
    let infos = Decoder::init(config.clone(), 1, &cpu()).infos();
    for (info, v) in infos.iter().zip(&a) {
        assert_eq!(v.len(), info.shape.iter().product::<usize>(), "{}", info.name);
        let mean = v.iter().sum::<f32>() / v.len() as f32;
        let std = (v.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / v.len() as f32).sqrt();
        match info.name.as_str() {
            n if n.contains("norm") => assert!(v.iter().all(|x| *x == 1.0), "{n}"),
            n if n.ends_with("bias") => assert!(v.iter().all(|x| *x == 0.0), "{n}"),
            n => assert!(mean.abs() < 0.03 && (std / config.initializer_range - 1.0).abs() < 0.1, "{n}: {mean} {std}"),
        }
    }
    assert_eq!(config.parameters(), a.iter().map(Vec::len).sum::<usize>());
}

#[test]
fn a_saved_model_goes_on_as_the_one_it_was_saved_from() {
    let batch = Packed { ids: vec![1, 2, 3, 4], doc_lens: vec![4], temperatures: vec![1.0; 4] };
    let stats = |d: Decoder| Learner::new(d, Kernels::Fast, 4).unwrap().forward(&batch).unwrap();
    let decoder = Decoder::init(ModelConfig::load(&folder("llama")).unwrap(), 5, &cpu());
    let out = TempDir::new().unwrap();
    decoder.save_hf(out.path(), &SaveOptions::default()).unwrap();
    assert_eq!(stats(Decoder::load_hf(out.path(), &cpu()).unwrap()), stats(decoder));
}
