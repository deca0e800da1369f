//! A tiny model and what tests need to look at it.

use prl_config::{AdamW, ConstantScheduler, Optim, Scheduler};
use prl_model::{Decoder, Device, Kernels, Learner, ModelConfig};
use std::path::Path;

/// Entries in the tiny model's vocabulary.
pub const VOCAB: u32 = 29;

/// Of the tiny model.
pub const CONFIG: &str = r#"{
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 29, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "initializer_range": 0.2, "hidden_act": "silu"
}"#;

pub fn learner(layers: usize) -> Learner {
    let text = CONFIG.replace("\"num_hidden_layers\": 2", &format!("\"num_hidden_layers\": {layers}"));
    let config = ModelConfig::parse(&text, Path::new("config.json")).unwrap();
    with_weights(Decoder::init(config, 5, &Device::Cpu.open().unwrap()))
}

pub fn with_weights(decoder: Decoder) -> Learner {
    Learner::new(decoder, Kernels::Fast, 7).unwrap()
}

/// Every weight, bit by bit.
pub fn bits(learner: &Learner) -> Vec<u32> {
    let decoder = learner.weights().unwrap().decoder;
    let parameters = decoder.parameters();
    parameters.iter().flat_map(|p| p.to_vec().unwrap()).map(f32::to_bits).collect()
}

pub fn adamw(lr: f64) -> Optim {
    Optim::AdamW(AdamW { lr, ..AdamW::default() })
}

pub fn constant() -> Scheduler {
    Scheduler::Constant(ConstantScheduler {})
}
