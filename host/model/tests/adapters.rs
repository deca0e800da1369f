//! Adapters: what they do equals what merged weights do, neighbours do not matter, and folders that are refused.

use half::bf16;
use prl_kernels::{AdapterLayer, LowRank, Meter, Projection};
use prl_model::{Adapter, Answer, Decoder, Device, Extend, Kernels, ModelConfig, SaveOptions, Snapshot, Want};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::path::Path;

const CONFIG: &str = r#"{
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 37, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "initializer_range": 0.5, "hidden_act": "silu"
}"#;
const RANK: usize = 3;

fn config() -> ModelConfig {
    ModelConfig::parse(CONFIG, Path::new("config.json")).unwrap()
}

/// Some numbers around 0.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let next = |i: u64| (i + 1 + seed * 1000).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..n as u64).map(|i| next(i) as f32 / (1u64 << 24) as f32 - 0.5).collect()
}

/// Matrices of a layer: name in files, rows, columns.
const MATRICES: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", 32, 16),
    ("self_attn.k_proj", 16, 16),
    ("self_attn.v_proj", 16, 16),
    ("self_attn.o_proj", 16, 32),
    ("mlp.gate_proj", 40, 16),
    ("mlp.up_proj", 40, 16),
    ("mlp.down_proj", 16, 40),
];

fn factors(layer: usize, matrix: usize) -> LowRank {
    let (_, out, input) = MATRICES[matrix];
    let seed = (layer * 7 + matrix) as u64;
    LowRank { a: values(RANK * input, seed), b: values(out * RANK, seed + 100), rank: RANK }
}

/// A layer with these additions alone.
fn layer(pairs: impl IntoIterator<Item = (Projection, LowRank)>) -> AdapterLayer {
    let mut layer = AdapterLayer::default();
    pairs.into_iter().for_each(|(which, pair)| *layer.slot(which) = Some(pair));
    layer
}

fn adapter() -> Adapter {
    let of = |l: usize| layer(Projection::ALL.into_iter().enumerate().map(|(m, which)| (which, factors(l, m))));
    Adapter::new((0..2).map(of).collect())
}

fn logits(snapshot: &dyn Snapshot, sequences: &[(&[u32], Option<&Adapter>)]) -> Vec<Vec<f32>> {
    let mut caches: Vec<_> = sequences.iter().map(|_| snapshot.new_cache(&Meter::default())).collect();
    let items = caches.iter_mut().zip(sequences);
    let mut items: Vec<_> =
        items.map(|(cache, (ids, adapter))| Extend { cache, ids, want: Want::AllLogits, adapter: *adapter }).collect();
    let answers = snapshot.extend(&mut items).unwrap();
    answers.into_iter().map(|a| if let Answer::Logits(rows) = a { rows } else { panic!("logits") }).collect()
}

#[test]
fn an_adapter_does_what_merged_weights_do_whatever_stands_beside_it() {
    let cpu = Device::Cpu.open().unwrap();
    let decoder = Decoder::init(config(), 1, &cpu);
    let snapshot = decoder.snapshot(Kernels::Fast).unwrap();
    let dir = tempfile::tempdir().unwrap();
    decoder.save_hf(dir.path(), &SaveOptions::default()).unwrap();
    merge(&dir.path().join("model.safetensors"));
    let merged = Decoder::load_hf(dir.path(), &cpu).unwrap().snapshot(Kernels::Fast).unwrap();

    let adapter = adapter();
    let ids = [5, 6, 7, 30, 2, 11, 0];
    let plain = logits(snapshot.as_ref(), &[(&ids, None)]);
    let adapted = logits(snapshot.as_ref(), &[(&ids, Some(&adapter))]);
    let want = logits(merged.as_ref(), &[(&ids, None)]);
    let off = adapted[0].iter().zip(&want[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let size = want[0].iter().fold(0.0f32, |most, x| most.max(x.abs()));
    assert!(off <= 2e-5 * size, "{off} of {size}");
    assert!(plain[0].iter().zip(&want[0]).any(|(a, b)| (a - b).abs() > 0.1));

    let other = Adapter::new(vec![layer([(Projection::Up, factors(0, 5))])]);
    let all: [(&[u32], _); 4] =
        [(&ids[..3], Some(&other)), (&ids, None), (&ids, Some(&adapter)), (&ids[2..], Some(&other))];
    let together = logits(snapshot.as_ref(), &all);
    assert_eq!((&together[1], &together[2]), (&plain[0], &adapted[0]));
    // One of another model is refused rather than read beyond its end.
    let short = LowRank { a: values(8, 1), b: values(8, 2), rank: 1 };
    let foreign = Adapter::new(vec![layer([(Projection::Q, short)])]);
    let mut cache = snapshot.new_cache(&Meter::default());
    let item = Extend { cache: &mut cache, ids: &ids, want: Want::Logits, adapter: Some(&foreign) };
    assert!(snapshot.extend(&mut [item]).unwrap_err().to_string().contains("addition of rank 1 to self_attn.q_proj"));
    assert!(decoder.snapshot(Kernels::Reference).unwrap().takes_adapters() != snapshot.takes_adapters());
}

/// Adds the products of the factors to a file's matrices.
fn merge(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut owned: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (name, view) in tensors.tensors() {
        let width = if view.dtype() == Dtype::F32 { 4 } else { 2 };
        let read = |b: &[u8]| match width {
            4 => f32::from_le_bytes(b.try_into().unwrap()),
            _ => bf16::from_le_bytes(b.try_into().unwrap()).to_f32(),
        };
        let mut matrix: Vec<f32> = view.data().chunks_exact(width).map(read).collect();
        for (l, m) in (0..2).flat_map(|l| (0..7).map(move |m| (l, m))) {
            let (of, out, input) = MATRICES[m];
            if name != format!("model.layers.{l}.{of}.weight") {
                continue;
            }
            let LowRank { a, b, rank } = factors(l, m);
            for (i, j) in (0..out).flat_map(|i| (0..input).map(move |j| (i, j))) {
                let sum = (0..rank).map(|r| f64::from(b[i * rank + r]) * f64::from(a[r * input + j])).sum::<f64>();
                matrix[i * input + j] += sum as f32;
            }
        }
        owned.push((name, view.shape().to_vec(), matrix));
    }
    write(path, &owned);
}

fn write(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes);
    let views =
        views.map(|((name, shape, _), bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn folders_are_read_as_peft_writes_them_and_what_is_not_supported_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let settings = |extra: &str| {
        let text = format!("{{\"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 6{extra}}}");
        std::fs::write(dir.path().join("adapter_config.json"), text).unwrap();
    };
    let save = |names: &[(&str, [usize; 2])]| {
        let tensors: Vec<_> = names
            .iter()
            .map(|(name, [r, c])| {
                (format!("base_model.model.model.layers.{name}.weight"), vec![*r, *c], values(r * c, 1))
            })
            .collect();
        write(&dir.path().join("adapter_model.safetensors"), &tensors);
    };
    let load = || Adapter::load(dir.path(), &config());
    let refused = |words: &str| {
        let text = load().unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    refused("adapter_config.json");
    settings("");
    refused("adapter_model.safetensors");
    save(&[("1.mlp.down_proj.lora_A", [3, 40]), ("1.mlp.down_proj.lora_B", [16, 3])]);
    let adapter = load().unwrap();
    assert_eq!(adapter.rank(), 3);
    let snapshot = Decoder::init(config(), 1, &Device::Cpu.open().unwrap()).snapshot(Kernels::Fast).unwrap();
    // alpha / r is 2.
    let pair = LowRank { a: values(120, 1), b: values(48, 1).into_iter().map(|x| 2.0 * x).collect(), rank: 3 };
    let same = Adapter::new(vec![AdapterLayer::default(), layer([(Projection::Down, pair)])]);
    let of = |adapter: &Adapter| logits(snapshot.as_ref(), &[(&[1, 2, 3], Some(adapter))]);
    assert_eq!(of(&adapter), of(&same));
    assert_ne!(adapter.id(), load().unwrap().id());

    for (extra, words) in [
        (", \"use_dora\": true", "`use_dora` is not supported"),
        (", \"bias\": \"all\"", "`bias` is not supported"),
        (", \"rank_pattern\": {\"q_proj\": 4}", "`rank_pattern` is not supported"),
        (", \"modules_to_save\": [\"lm_head\"]", "`modules_to_save` is not supported"),
    ] {
        settings(extra);
        refused(words);
    }
    // Finite, but not as it is used.
    let huge = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 1e300}"#;
    std::fs::write(dir.path().join("adapter_config.json"), huge).unwrap();
    refused("key `lora_alpha` is 1e300");
    settings("");
    for (names, words) in [
        (&[("1.mlp.down_proj.lora_A", [3, 16])][..], "has shape [3, 16] and must have [3, 40]"),
        (&[("1.mlp.down_proj.lora_A", [3, 40])], "one factor of mlp.down_proj only"),
        (&[("2.mlp.down_proj.lora_A", [3, 40])], "belongs to no matrix"),
        (&[("0.mlp.other.lora_A", [3, 40])], "belongs to no matrix"),
    ] {
        save(names);
        refused(words);
    }
    save(&[]);
    refused("holds no tensors");
    for bad in [f32::NAN, f32::INFINITY] {
        let name = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight".to_owned();
        write(&dir.path().join("adapter_model.safetensors"), &[(name, vec![3, 40], vec![bad; 120])]);
        refused(&format!("down_proj.lora_A.weight` holds {bad}"));
    }
    std::fs::write(dir.path().join("adapter_model.safetensors"), b"nonsense").unwrap();
    refused("no valid safetensors file");
}
