//! The matrices of a decoder's layer: their names in a model's files, and their shapes. The only table of these names. Must not know
//! values.

use crate::weights::Dims;

/// A matrix of a layer; each may have a low-rank addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Projection {
    /// The query projection.
    Q,
    /// The key projection.
    K,
    /// The value projection.
    V,
    /// The output projection of the attention.
    O,
    /// The gate projection.
    Gate,
    /// The up projection.
    Up,
    /// The down projection.
    Down,
}

impl Projection {
    /// All of them, in the order of additions everywhere.
    pub const ALL: [Projection; 7] = [
        Projection::Q,
        Projection::K,
        Projection::V,
        Projection::O,
        Projection::Gate,
        Projection::Up,
        Projection::Down,
    ];

    /// Its module within a layer, as Hugging Face spells it.
    pub fn module(self) -> &'static str {
        match self {
            Projection::Q => "self_attn.q_proj",
            Projection::K => "self_attn.k_proj",
            Projection::V => "self_attn.v_proj",
            Projection::O => "self_attn.o_proj",
            Projection::Gate => "mlp.gate_proj",
            Projection::Up => "mlp.up_proj",
            Projection::Down => "mlp.down_proj",
        }
    }

    /// The path of its module in a model.
    pub fn path(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.module())
    }

    /// The name of the matrix in a model's files.
    pub fn weight(self, layer: usize) -> String {
        format!("{}.weight", self.path(layer))
    }

    /// The name of its bias there, where it has one.
    pub fn bias(self, layer: usize) -> String {
        format!("{}.bias", self.path(layer))
    }

    /// The names of an addition's factors A and B, as PEFT has them behind its prefix.
    pub fn factors(self, layer: usize) -> [String; 2] {
        ["A", "B"].map(|factor| format!("{}.lora_{factor}.weight", self.path(layer)))
    }

    /// `[out, in]`.
    pub fn shape(self, d: &Dims) -> [usize; 2] {
        let (h, q, kv, f) = (d.hidden, d.q_width(), d.kv_width(), d.ffn);
        match self {
            Projection::Q => [q, h],
            Projection::K | Projection::V => [kv, h],
            Projection::O => [h, q],
            Projection::Gate | Projection::Up => [f, h],
            Projection::Down => [h, f],
        }
    }
}
