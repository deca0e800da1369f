//! `config.json` of a Hugging Face folder. Owns which architectures the decoder covers and what their keys mean; must
//! not know tensors or weight files.

use crate::{ModelError, RopeConfig};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;

/// The file's name within a model folder.
pub const CONFIG_FILE: &str = "config.json";

/// Every layer is a list entry in many places.
const MOST_LAYERS: usize = 10_000;
/// Beyond any machine, and so few that counting bytes does not overflow.
const MOST_PARAMETERS: f64 = (1u64 << 48) as f64;

/// The supported families: one decoder with small differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// RMSNorm on each head of q and k.
    Qwen3,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Neither.
    Llama,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::Qwen3, Family::Qwen2, Family::Llama];

    /// The `model_type` in `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Qwen3 => "qwen3",
            Family::Qwen2 => "qwen2",
            Family::Llama => "llama",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Family::Qwen3 => "Qwen3ForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Llama => "LlamaForCausalLM",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.model_type())
    }
}

/// The shape of a decoder, as far as its computation depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Architecture.
    pub family: Family,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Inner width of the feed-forward block.
    pub intermediate_size: usize,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Longest context the model was made for, tokens.
    pub max_position_embeddings: usize,
    /// Whether the output projection is the embedding matrix.
    pub tied: bool,
    /// Standard deviation of random initial weights.
    pub initializer_range: f32,
    /// The whole file, unknown keys included, so that it can be written back.
    pub raw: Map<String, Value>,
}

impl ModelConfig {
    /// Reads `config.json` of a model folder.
    ///
    /// # Errors
    /// No such folder or file, no JSON, or a key that is missing or not supported.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(CONFIG_FILE);
        if dir.is_dir() && !path.exists() {
            return Err(ModelError::NotAModel { dir: dir.to_path_buf(), missing: CONFIG_FILE });
        }
        let text = std::fs::read_to_string(&path).map_err(ModelError::io("read", &path))?;
        Self::parse(&text, &path)
    }

    /// Reads the text of a `config.json`; `path` is only for messages.
    ///
    /// # Errors
    /// As for [`ModelConfig::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ModelError> {
        let json = |reason: String| ModelError::Json { path: path.to_path_buf(), reason };
        let value: Value = serde_json::from_str(text).map_err(|e| json(e.to_string()))?;
        let Value::Object(raw) = value else { return Err(json("must be a JSON object".into())) };
        let keys = Keys { path, raw: &raw };
        let family = keys.family()?;
        keys.refuse_unsupported()?;

        let (hidden_size, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
        let kv_heads = keys.optional_size("num_key_value_heads")?.unwrap_or(heads);
        let head_dim = match (keys.optional_size("head_dim")?, family) {
            (Some(d), _) => d,
            (None, Family::Qwen3) => 128,
            (None, _) => hidden_size / heads,
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(keys.error("num_key_value_heads", format!("is {kv_heads}, must divide {heads} query heads")));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(keys.error("head_dim", format!("is {head_dim}, must be even and above 0")));
        }
        let max_position_embeddings = match (keys.optional_size("max_position_embeddings")?, family) {
            (Some(n), _) => n,
            (None, Family::Llama) => 2048,
            (None, _) => 32_768,
        };
        let config = ModelConfig {
            family,
            vocab_size: keys.size("vocab_size")?,
            hidden_size,
            layers: keys.size("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            intermediate_size: keys.size("intermediate_size")?,
            norm_eps: keys.positive("rms_norm_eps", 1e-6)?,
            rope: RopeConfig::parse(&raw, path, max_position_embeddings)?,
            max_position_embeddings,
            tied: keys.flag("tie_word_embeddings")?,
            initializer_range: keys.positive("initializer_range", 0.02)?,
            raw: raw.clone(),
        };
        if config.layers > MOST_LAYERS {
            let reason =
                format!("is {}, which is more than the {MOST_LAYERS} layers that are supported", config.layers);
            return Err(keys.error("num_hidden_layers", reason));
        }
        let parameters = config.counted();
        if parameters > MOST_PARAMETERS {
            let reason = format!("and the other sizes make {parameters:.1e} parameters, more than any machine holds");
            return Err(keys.error("hidden_size", reason));
        }
        Ok(config)
    }

    /// Whether q, k and v have biases.
    pub fn qkv_bias(&self) -> bool {
        self.family == Family::Qwen2
    }

    /// Whether each head of q and k is normalised.
    pub fn qk_norm(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Number of trained numbers, tied matrices counted once.
    pub fn parameters(&self) -> usize {
        self.counted() as usize
    }

    /// The same of any sizes, without a list that could be too long. f64 is exact up to 2^53, which is beyond what is let
    /// through.
    fn counted(&self) -> f64 {
        let [h, f, vocab, layers] =
            [self.hidden_size, self.intermediate_size, self.vocab_size, self.layers].map(|n| n as f64);
        let q = self.heads as f64 * self.head_dim as f64;
        let kv = self.kv_heads as f64 * self.head_dim as f64;
        let biases = if self.qkv_bias() { q + 2.0 * kv } else { 0.0 };
        let norms = if self.qk_norm() { 2.0 * self.head_dim as f64 } else { 0.0 };
        let layer = h * (2.0 * q + 2.0 * kv + 3.0 * f + 2.0) + biases + norms;
        let embeddings = if self.tied { 1.0 } else { 2.0 };
        embeddings * vocab * h + layers * layer + h
    }
}

struct Keys<'a> {
    path: &'a Path,
    raw: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn error(&self, key: &str, reason: impl Into<String>) -> ModelError {
        ModelError::config(self.path, key, reason)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.raw.get(key).filter(|v| !v.is_null())
    }

    fn family(&self) -> Result<Family, ModelError> {
        let listed = Family::ALL.map(Family::model_type).join(", ");
        let Some(value) = self.get("model_type") else {
            return Err(self.error("model_type", format!("is missing; supported are {listed}")));
        };
        let family = Family::ALL.into_iter().find(|f| value.as_str() == Some(f.model_type()));
        let family = family
            .ok_or_else(|| self.error("model_type", format!("is {value}, which is not supported ({listed} are)")))?;
        if let Some(Value::Array(names)) = self.get("architectures")
            && !names.is_empty()
            && !names.iter().any(|n| n.as_str() == Some(family.architecture()))
        {
            let got = Value::Array(names.clone());
            let want = family.architecture();
            return Err(self.error("architectures", format!("is {got}; a language model has {want}")));
        }
        Ok(family)
    }

    fn refuse_unsupported(&self) -> Result<(), ModelError> {
        for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            if self.flag(key)? {
                return Err(self.error(key, "is true, which is not supported"));
            }
        }
        if let Some(value) = self.get("hidden_act").filter(|v| v.as_str() != Some("silu")) {
            return Err(self.error("hidden_act", format!("is {value}; only \"silu\" is supported")));
        }
        if let Some(value) = self.get("quantization_config") {
            let method = value.get("quant_method").map(Value::to_string).unwrap_or_else(|| "set".into());
            return Err(self.error("quantization_config", format!("is {method}; quantised weights cannot be trained")));
        }
        if let Some(Value::Array(types)) = self.get("layer_types")
            && let Some(other) = types.iter().find(|t| t.as_str() != Some("full_attention"))
        {
            return Err(self.error("layer_types", format!("has {other}; only \"full_attention\" is supported")));
        }
        Ok(())
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().filter(|n| (1..=u64::from(u32::MAX)).contains(n)) {
            Some(n) => Ok(Some(n as usize)),
            None => Err(self.error(key, format!("is {value}, must be a whole number above 0"))),
        }
    }

    fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.optional_size(key)?.ok_or_else(|| self.error(key, "is missing"))
    }

    fn positive(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_f64().map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0) {
            Some(v) => Ok(v),
            None => Err(self.error(key, format!("is {value}, must be a number above 0"))),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(b)) => Ok(*b),
            Some(value) => Err(self.error(key, format!("is {value}, must be true or false"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RopeScaling;
    use serde_json::json;

    fn parse(edit: impl FnOnce(&mut Map<String, Value>)) -> Result<ModelConfig, ModelError> {
        let mut value = json!({
            "model_type": "llama", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "rope_theta": 1e4,
        });
        edit(value.as_object_mut().unwrap());
        ModelConfig::parse(&value.to_string(), Path::new("m/config.json"))
    }

    fn error(edit: impl FnOnce(&mut Map<String, Value>)) -> String {
        parse(edit).unwrap_err().to_string()
    }

    fn set(key: &'static str, value: Value) -> impl FnOnce(&mut Map<String, Value>) {
        move |c| drop(c.insert(key.into(), value))
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let c = parse(|_| ()).unwrap();
        assert_eq!((c.head_dim, c.tied, c.norm_eps, c.max_position_embeddings), (4, false, 1e-6, 2048));
        let c = parse(set("model_type", json!("qwen3"))).unwrap();
        assert_eq!((c.head_dim, c.qk_norm(), c.qkv_bias(), c.max_position_embeddings), (128, true, false, 32_768));
        assert!(parse(set("model_type", json!("qwen2"))).unwrap().qkv_bias());
        assert_eq!(parse(|c| drop(c.remove("num_key_value_heads"))).unwrap().kv_heads, 4);
    }

    #[test]
    fn what_is_not_supported_is_refused_by_key() {
        let text = error(set("model_type", json!("gemma2")));
        assert_eq!(
            text,
            "`m/config.json`: key `model_type` is \"gemma2\", which is not supported (qwen3, qwen2, llama are)"
        );
        for (key, value, want) in [
            ("hidden_size", json!(null), "key `hidden_size` is missing"),
            ("vocab_size", json!(0), "key `vocab_size` is 0, must be a whole number above 0"),
            ("num_key_value_heads", json!(3), "must divide 4 query heads"),
            ("head_dim", json!(5), "is 5, must be even"),
            ("hidden_act", json!("gelu"), "only \"silu\" is supported"),
            ("attention_bias", json!(true), "key `attention_bias` is true, which is not supported"),
            ("use_sliding_window", json!(true), "key `use_sliding_window` is true"),
            ("layer_types", json!(["sliding_attention"]), "only \"full_attention\" is supported"),
            ("architectures", json!(["LlamaForSequenceClassification"]), "a language model has LlamaForCausalLM"),
            ("quantization_config", json!({"quant_method": "gptq"}), "quantised weights cannot be trained"),
            ("tie_word_embeddings", json!("yes"), "must be true or false"),
            ("rms_norm_eps", json!(-1), "must be a number above 0"),
            ("rope_theta", json!(0), "key `rope_theta` is 0, must be above 0"),
            (
                "rope_scaling",
                json!({"type": "dynamic", "factor": 2.0}),
                "supported are default, linear, llama3 and yarn",
            ),
            ("rope_scaling", json!({"rope_type": "linear"}), "key `rope_scaling.factor` is missing"),
            ("rope_parameters", json!({"rope_type": "longrope"}), "key `rope_parameters.rope_type` is \"longrope\""),
            ("partial_rotary_factor", json!(0.5), "key `partial_rotary_factor` is not supported, only 1.0 is"),
        ] {
            let text = error(set(key, value));
            assert!(text.contains(want), "{text}");
        }
        let parse = |text: &str| ModelConfig::parse(text, Path::new("c.json")).unwrap_err().to_string();
        assert!(parse("[]").contains("must be a JSON object"));
        assert!(parse("{").starts_with("`c.json` is not valid"));
    }

    #[test]
    fn parameters_are_counted_as_they_are_listed() {
        for family in ["llama", "qwen2", "qwen3"] {
            for tied in [false, true] {
                let config = parse(|c| {
                    c.insert("model_type".into(), json!(family));
                    c.insert("tie_word_embeddings".into(), json!(tied));
                    c.insert("num_hidden_layers".into(), json!(3));
                });
                let config = config.unwrap();
                let listed = crate::names::parameters(&config);
                assert_eq!(
                    config.parameters(),
                    listed.iter().map(|p| p.shape.iter().product::<usize>()).sum::<usize>()
                );
            }
        }
    }

    #[test]
    fn sizes_that_no_machine_holds_are_refused() {
        let most = json!(u32::MAX - 1);
        assert!(error(set("num_hidden_layers", most.clone())).contains("more than the 10000 layers"));
        for key in ["vocab_size", "num_attention_heads", "head_dim", "intermediate_size"] {
            let text = error(|c| {
                c.insert("head_dim".into(), json!(4));
                for huge in [key, "hidden_size"] {
                    c.insert(huge.into(), most.clone());
                }
            });
            assert!(text.contains("parameters, more than any machine holds"), "{key}: {text}");
        }
    }

    #[test]
    fn older_and_newer_files_spell_the_same_rotary_embedding() {
        let old = parse(|c| {
            c.insert("rope_theta".into(), json!(5e5));
            let llama3 = json!({"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                "original_max_position_embeddings": 64});
            c.insert("rope_scaling".into(), llama3);
        });
        let new = parse(|c| {
            c.remove("rope_theta");
            let llama3 = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
            c.insert("rope_parameters".into(), llama3);
        });
        assert_eq!(old.unwrap().rope, new.unwrap().rope);
        let plain = parse(set("rope_scaling", Value::Null)).unwrap().rope;
        assert_eq!(plain, RopeConfig { theta: 1e4, scaling: RopeScaling::Default });
        assert_eq!(plain.frequencies(4), (vec![1.0, 0.01], 1.0));
    }
}
