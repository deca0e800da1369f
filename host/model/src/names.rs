//! Names and shapes of a decoder's parameters in Hugging Face layout, in one fixed order. Owns that order, which is
//! also the order of parameter ids and of gradients; must not know values.

use crate::ModelConfig;
use crate::fast::dims;
use prl_kernels::Projection;

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

/// The embedding's name.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// The head's, where it is not the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";

/// The module that a parameter is of.
pub(crate) fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// Whether a parameter is the embedding of a model whose head it is too.
pub(crate) fn is_tied_embedding(config: &ModelConfig, name: &str) -> bool {
    config.tied && name == EMBEDDING
}

/// Every parameter of the model: embedding, layers from the first to the last, final norm, untied head.
pub fn parameters(config: &ModelConfig) -> Vec<ParameterInfo> {
    use Projection::{Down, Gate, K, O, Q, Up, V};
    let (h, d, dims) = (config.hidden_size, config.head_dim, dims(config));
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], kind| all.push(ParameterInfo { name, shape: shape.to_vec(), kind });
    add(EMBEDDING.to_owned(), &[config.vocab_size, h], Kind::Matrix);
    for i in 0..config.layers {
        let norm = |name: &str| format!("model.layers.{i}.{name}.weight");
        add(norm("input_layernorm"), &[h], Kind::Norm);
        for which in [Q, K, V, O] {
            add(which.weight(i), &which.shape(&dims), Kind::Matrix);
        }
        for which in [Q, K, V].into_iter().filter(|_| config.qkv_bias()) {
            add(which.bias(i), &which.shape(&dims)[..1], Kind::Bias);
        }
        if config.qk_norm() {
            add(norm("self_attn.q_norm"), &[d], Kind::Norm);
            add(norm("self_attn.k_norm"), &[d], Kind::Norm);
        }
        add(norm("post_attention_layernorm"), &[h], Kind::Norm);
        for which in [Gate, Up, Down] {
            add(which.weight(i), &which.shape(&dims), Kind::Matrix);
        }
    }
    add("model.norm.weight".to_owned(), &[h], Kind::Norm);
    if !config.tied {
        add(HEAD.to_owned(), &[config.vocab_size, h], Kind::Matrix);
    }
    all
}
