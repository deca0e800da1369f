//! Names and shapes of a decoder's parameters in Hugging Face layout, in one fixed order. Owns that order, which is
//! also the order of parameter ids and of gradients; must not know values.

use crate::ModelConfig;

/// What a parameter is; decides how it is initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A matrix, `[out, in]`, or the embedding `[vocab, hidden]`.
    Matrix,
    /// Scale of an RMSNorm.
    Norm,
    /// Bias of a projection.
    Bias,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    /// Name in safetensors files.
    pub name: String,
    /// One or two lengths.
    pub shape: Vec<usize>,
    /// Matrix, norm or bias.
    pub kind: Kind,
}

/// Every parameter of the model: embedding, layers from the first to the last, final norm, untied head.
pub fn parameters(config: &ModelConfig) -> Vec<ParameterInfo> {
    let (h, d, f) = (config.hidden_size, config.head_dim, config.intermediate_size);
    let (q, kv) = (config.heads * d, config.kv_heads * d);
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], kind| all.push(ParameterInfo { name, shape: shape.to_vec(), kind });
    add("model.embed_tokens.weight".into(), &[config.vocab_size, h], Kind::Matrix);
    for i in 0..config.layers {
        let mut layer = |name: &str, shape: &[usize], kind| add(format!("model.layers.{i}.{name}"), shape, kind);
        layer("input_layernorm.weight", &[h], Kind::Norm);
        layer("self_attn.q_proj.weight", &[q, h], Kind::Matrix);
        layer("self_attn.k_proj.weight", &[kv, h], Kind::Matrix);
        layer("self_attn.v_proj.weight", &[kv, h], Kind::Matrix);
        layer("self_attn.o_proj.weight", &[h, q], Kind::Matrix);
        if config.qkv_bias() {
            layer("self_attn.q_proj.bias", &[q], Kind::Bias);
            layer("self_attn.k_proj.bias", &[kv], Kind::Bias);
            layer("self_attn.v_proj.bias", &[kv], Kind::Bias);
        }
        if config.qk_norm() {
            layer("self_attn.q_norm.weight", &[d], Kind::Norm);
            layer("self_attn.k_norm.weight", &[d], Kind::Norm);
        }
        layer("post_attention_layernorm.weight", &[h], Kind::Norm);
        layer("mlp.gate_proj.weight", &[f, h], Kind::Matrix);
        layer("mlp.up_proj.weight", &[f, h], Kind::Matrix);
        layer("mlp.down_proj.weight", &[h, f], Kind::Matrix);
    }
    add("model.norm.weight".into(), &[h], Kind::Norm);
    if !config.tied {
        add("lm_head.weight".into(), &[config.vocab_size, h], Kind::Matrix);
    }
    all
}
