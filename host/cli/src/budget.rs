//! Whether a model, and what is computed of it at a time, fits into main memory, told before any of it is allocated. Owns
//! the estimate, which counts only what is certainly needed: who passes may still be short of memory, who does not cannot run.

use crate::failure::{Failure, input};
use crate::machine::{self, Memory};
use prl_config::Optim;
use prl_model::ModelConfig;
use std::path::Path;

/// f32.
const WEIGHT: u128 = 4;
/// Where a GPU trains, the weights as they are read and as they are handed over.
const HANDED_OVER: u128 = 8;

/// What is trained at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Whether a GPU's memory holds gradients, moments and activations.
    pub gpu: bool,
    /// Tokens of a pass; 0 where they are not known beforehand.
    pub pass: usize,
    /// Bytes of a step's batch.
    pub batch: u128,
    /// Numbers that the optimiser remembers of a parameter; see [`remembered`].
    pub moments: u8,
    /// Numbers that are trained, where it is not the whole model.
    pub trained: Option<usize>,
}

/// How many numbers an optimiser remembers of every parameter at least.
pub fn remembered(optim: &Optim) -> u8 {
    match optim {
        Optim::AdamW(_) => 2,
        Optim::Muon(_) => 1,
        Optim::Sgd(sgd) => u8::from(sgd.momentum > 0.0),
        Optim::SignSgd(_) => 0,
    }
}

/// For a model that is only read.
pub fn check_weights(dir: &Path) -> Result<(), Failure> {
    let config = read(dir)?;
    fits(dir, "hold its weights", &[("weights", config.parameters() as u128 * WEIGHT)], machine::memory())
}

/// For a model that is trained.
pub fn check_training(dir: &Path, load: impl FnOnce(&ModelConfig) -> Load) -> Result<(), Failure> {
    let config = read(dir)?;
    fits(dir, "train", &parts(&config, load(&config)), machine::memory())
}

fn read(dir: &Path) -> Result<ModelConfig, Failure> {
    ModelConfig::load(dir).map_err(input(format_args!("model `{}`", dir.display())))
}

fn parts(config: &ModelConfig, load: Load) -> [(&'static str, u128); 3] {
    let parameters = config.parameters() as u128;
    if load.gpu {
        return [("weights", parameters * HANDED_OVER), ("activations", 0), ("a step's batch", load.batch)];
    }
    let trained = load.trained.map_or(parameters, |trained| trained as u128);
    [
        ("weights, gradients and moments", WEIGHT * (parameters + trained * (1 + u128::from(load.moments)))),
        ("activations", load.pass as u128 * activations(config)),
        ("a step's batch", load.batch),
    ]
}

/// Bytes that the layers keep of a token for the backward pass.
fn activations(config: &ModelConfig) -> u128 {
    let [h, f, layers] = [config.hidden_size, config.intermediate_size, config.layers].map(|n| n as u128);
    let q = config.heads as u128 * config.head_dim as u128;
    let kv = config.kv_heads as u128 * config.head_dim as u128;
    let normed = if config.qk_norm() { q + kv } else { 0 };
    4 * (layers * (2 * h + 2 * q + 2 * kv + normed + 2 * f) + 2 * h)
}

fn fits(dir: &Path, to: &str, parts: &[(&str, u128)], memory: Option<Memory>) -> Result<(), Failure> {
    let need: u128 = parts.iter().map(|(_, bytes)| bytes).sum();
    let Some(memory) = memory.filter(|memory| need > u128::from(memory.available)) else { return Ok(()) };
    let gib = |bytes: u128| bytes as f64 / f64::from(1u32 << 30);
    let listed: Vec<String> = parts
        .iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(what, bytes)| format!("{what} {:.1}", gib(*bytes)))
        .collect();
    let shorter = match parts.iter().any(|(what, bytes)| *what != parts[0].0 && *bytes > 0) {
        true => "a smaller model, a shorter `seq_len` or a smaller batch",
        false => "a smaller model",
    };
    Err(Failure::input(format_args!(
        "model `{}` needs at least {:.1} GiB of memory to {to} ({}), and this machine has {:.1} GiB available; use {shorter}, \
         or a machine with more memory",
        dir.display(),
        gib(need),
        listed.join(", "),
        machine::gib(memory.available)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        let text = r#"{"model_type": "qwen3", "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
            "tie_word_embeddings": true}"#;
        ModelConfig::parse(text, Path::new("config.json")).unwrap()
    }

    #[test]
    fn parts_add_up() {
        let config = config();
        let parameters = config.parameters() as u128;
        let [weights, passes, batch] = parts(&config, Load { pass: 10, batch: 7, moments: 2, ..Load::default() });
        assert_eq!((weights.1, batch.1), (16 * parameters, 7));
        // x, mid; q and its raw; k, v and k's raw; attention's output; gate and up.
        let layer = 2 * 64 + 2 * 64 + 3 * 32 + 64 + 2 * 128;
        assert_eq!(passes.1, 10 * 4 * (2 * layer + 2 * 64));
        let on_gpu = parts(&config, Load { gpu: true, pass: usize::MAX, moments: 2, ..Load::default() });
        assert_eq!(on_gpu.map(|(_, bytes)| bytes), [8 * parameters, 0, 0]);
        // Of what is frozen there are the weights alone.
        let adapter = parts(&config, Load { moments: 2, trained: Some(100), ..Load::default() });
        assert_eq!(adapter[0].1, 4 * parameters + 12 * 100);
    }

    #[test]
    fn optimisers_that_remember_less_need_less() {
        let config = config();
        let sgd = |momentum| Optim::Sgd(prl_config::Sgd { momentum, ..Default::default() });
        for (optim, bytes) in [
            (Optim::AdamW(prl_config::AdamW::default()), 16),
            (Optim::Muon(prl_config::Muon::default()), 12),
            (sgd(0.9), 12),
            (sgd(0.0), 8),
            (Optim::SignSgd(prl_config::SignSgd::default()), 8),
        ] {
            let load = Load { moments: remembered(&optim), ..Load::default() };
            assert_eq!(parts(&config, load)[0].1, bytes * config.parameters() as u128, "{optim:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_with_both_numbers() {
        let memory = Some(Memory { total: 16 << 30, available: 12 << 30 });
        let need = |gib: u128| [("weights", gib << 30), ("activations", 1 << 30)];
        assert!(fits(Path::new("m"), "train", &need(11), memory).is_ok());
        assert!(fits(Path::new("m"), "train", &need(1 << 40), None).is_ok());
        let error = fits(Path::new("m"), "train", &need(20), memory).unwrap_err();
        assert_eq!(error.code, 2);
        for naming in ["model `m`", "21.0 GiB", "weights 20.0", "12.0 GiB available", "`seq_len`"] {
            assert!(error.text.contains(naming), "{}", error.text);
        }
    }
}
