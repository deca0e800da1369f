//! Adapters over the doors: loaded, listed, asked for by name, loaded anew, unloaded, refused.

use crate::bench::{Bench, folder, options};
use prl_inference::EngineConfig;
use prl_model::ModelConfig;
use prl_server::{AdapterLimits, Options};
use serde_json::{Value, json};
use std::path::Path;

fn bench() -> Bench {
    let adapters = Some(AdapterLimits { count: 2, rank: 4 });
    Bench::with(EngineConfig::new(8, 512), Options { adapters, ..options() })
}

/// A folder as PEFT writes it: additions of `rank` to the first layer's output projection, of a size.
fn write(dir: &Path, rank: usize, size: f32) {
    let config = ModelConfig::load(&folder()).unwrap();
    let settings = json!({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"});
    std::fs::write(dir.join("adapter_config.json"), settings.to_string()).unwrap();
    let (out, input) = (config.hidden_size, config.heads * config.head_dim);
    let name = |factor: &str| format!("base_model.model.model.layers.0.self_attn.o_proj.lora_{factor}.weight");
    let (a, b) = (rank * input, out * rank);
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [rank, input], "data_offsets": [0, 4 * a]},
        name("B"): {"dtype": "F32", "shape": [out, rank], "data_offsets": [4 * a, 4 * (a + b)]},
    });
    let header = header.to_string();
    let value = |i: usize| ((i * 7919 % 97) as f32 / 97.0 - 0.5) * size;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..a + b).flat_map(|i| value(i).to_le_bytes()));
    std::fs::write(dir.join("adapter_model.safetensors"), bytes).unwrap();
}

fn ask(model: &str) -> Value {
    let ids: Vec<u32> = (1..60).collect();
    let params = json!({"max_tokens": 6, "temperature": 0, "logprobs": 0, "ignore_eos": true});
    json!({"model": model, "token_ids": ids, "sampling_params": params})
}

async fn logprobs(bench: &Bench, model: &str) -> Value {
    bench.ok("/inference/v1/generate", ask(model)).await["choices"][0]["logprobs"].clone()
}

#[tokio::test]
async fn adapters_are_asked_for_by_name_and_never_stale() {
    let bench = bench();
    let dir = tempfile::tempdir().unwrap();
    let load = json!({"lora_name": "mine", "lora_path": dir.path()});
    let plain = logprobs(&bench, "tiny").await;
    write(dir.path(), 2, 1.0);
    assert_eq!(bench.ok("/load_lora_adapter", load.clone()).await["rank"], 2);
    let (_, models) = bench.get("/v1/models").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("mine"), &json!("tiny")));
    let first = logprobs(&bench, "mine").await;
    assert_ne!(first, plain);
    // Side by side, each as alone.
    let asked = ["mine", "tiny", "mine"].map(|model| logprobs(&bench, model));
    let together = futures::future::join_all(asked).await;
    assert_eq!(together, [first.clone(), plain.clone(), first.clone()]);
    // The same name again, with other factors: nothing of the old one is left in the cache.
    write(dir.path(), 3, 2.0);
    bench.ok("/v1/load_lora_adapter", load.clone()).await;
    let second = logprobs(&bench, "mine").await;
    assert!(second != first && second != plain);
    let chat = json!({"model": "mine", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2});
    assert_eq!(bench.ok("/v1/chat/completions", chat).await["model"], "mine");
    bench.ok("/v1/unload_lora_adapter", json!({"lora_name": "mine"})).await;
    let (status, answer) = bench.post("/inference/v1/generate", &ask("mine")).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("model_not_found")));
    assert_eq!(logprobs(&bench, "tiny").await, plain);
}

#[tokio::test]
async fn what_cannot_be_loaded_says_why() {
    let bench = bench();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 2, 1.0);
    let load = |name: &str| json!({"lora_name": name, "lora_path": dir.path()});
    bench.ok("/load_lora_adapter", load("a")).await;
    bench.ok("/load_lora_adapter", load("b")).await;
    let wide = tempfile::tempdir().unwrap();
    write(wide.path(), 5, 1.0);
    for (path, body, status, words) in [
        ("/load_lora_adapter", load("c"), 400, "as many as `max_loras` allows"),
        ("/load_lora_adapter", load("tiny"), 400, "cannot name an adapter"),
        ("/load_lora_adapter", json!({"lora_name": "a", "lora_path": wide.path()}), 400, "above `max_lora_rank` = 4"),
        ("/load_lora_adapter", json!({"lora_name": "a", "lora_path": folder()}), 400, "adapter_config.json"),
        ("/load_lora_adapter", json!({"lora_name": "a"}), 400, "lora_path"),
        ("/load_lora_adapter", json!({"lora_name": 1, "lora_path": "x"}), 400, "lora_name"),
        ("/unload_lora_adapter", json!({"lora_name": "z"}), 404, "no adapter `z`"),
    ] {
        let (got, answer) = bench.post(path, &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(got.as_u16() == status && message.contains(words), "{body}: {got} {answer}");
    }
    let (status, answer) = Bench::new().post("/load_lora_adapter", &load("a")).await;
    assert_eq!(status.as_u16(), 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("enable_lora"), "{answer}");
}
