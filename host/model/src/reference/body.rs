//! The transformer body: token ids in, normalised hidden states out. Owns the order of operations, which is that of
//! the transformers library; must not know the output projection, losses or gradients.

use crate::Trained;
use crate::decoder::{Decoder, Layer, Matrix, Vector};
use crate::lora::Lora;
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use prl_kernels::{Dropout, Projection};
use prl_types::TokenId;

/// What one sequence has behind it.
pub(super) struct Past {
    /// Per layer keys and values, `[kv_heads, len, head_dim]`; empty before the first call.
    pub layers: Vec<(Tensor<3>, Tensor<3>)>,
    /// Tokens.
    pub len: usize,
}

pub(super) struct Body<'a> {
    decoder: &'a Decoder,
    lora: Option<&'a Lora>,
    dropout: Option<&'a Dropout>,
    device: Device,
}

/// Rotation of each token: `[tokens, 1, head_dim / 2]`.
struct Rotation {
    cos: Tensor<3>,
    sin: Tensor<3>,
}

impl<'a> Body<'a> {
    pub(super) fn new(model: &'a Trained, dropout: Option<&'a Dropout>) -> Self {
        let Trained { decoder, lora } = model;
        Body { decoder, lora: lora.as_ref(), dropout, device: decoder.device() }
    }

    /// x·Wᵀ, and scale · (x'·Aᵀ)·Bᵀ where the matrix has an adapter; x' is x without what is dropped.
    fn linear(&self, x: Tensor<2>, w: &Matrix, index: usize, which: Projection) -> Tensor<2> {
        let y = x.clone().matmul(w.val().transpose());
        let Some(lora) = self.lora else { return y };
        let Some(at) = lora.plan.targets().iter().position(|target| *target == (index, which)) else { return y };
        let pair = &lora.pairs[at];
        let seen = match self.dropout {
            Some(dropout) => x.clone() * self.mask(dropout, x.dims(), index, which),
            None => x,
        };
        y + seen.matmul(pair.a.val().transpose()).matmul(pair.b.val().transpose()).mul_scalar(lora.plan.scale())
    }

    /// `[tokens, width]`: 0 for what is left out, and what the rest is multiplied by.
    fn mask(&self, dropout: &Dropout, [tokens, width]: [usize; 2], index: usize, which: Projection) -> Tensor<2> {
        let mut values = vec![1.0; tokens * width];
        for (token, row) in values.chunks_exact_mut(width).enumerate() {
            dropout.apply(token, index, which, row);
        }
        Tensor::from_data(TensorData::new(values, [tokens, width]), &self.device)
    }

    /// `ids` holds sequences of `lens` tokens. Returns `[tokens, hidden]` after the last norm. With `pasts`, each
    /// sequence continues its past, which grows by it.
    pub(super) fn forward(&self, ids: &[TokenId], lens: &[usize], mut pasts: Option<&mut Vec<Past>>) -> Tensor<2> {
        let config = self.decoder.config();
        let starts: Vec<usize> = match &pasts {
            Some(pasts) => pasts.iter().map(|p| p.len).collect(),
            None => vec![0; lens.len()],
        };
        let rotation = self.rotation(&starts, lens);
        let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids.clone(), [ids.len()]), &self.device);
        let mut x = self.decoder.embed.val().select(0, ids);
        for (i, layer) in self.decoder.layers.iter().enumerate() {
            let h = rms_norm(x.clone(), &layer.input_norm, config.norm_eps);
            let a = self.attention(layer, i, h, &rotation, lens, pasts.as_deref_mut());
            x = x + self.linear(a, &layer.o, i, Projection::O);
            let h = rms_norm(x.clone(), &layer.post_norm, config.norm_eps);
            let gate = silu(self.linear(h.clone(), &layer.gate, i, Projection::Gate));
            let up = self.linear(h, &layer.up, i, Projection::Up);
            x = x + self.linear(gate * up, &layer.down, i, Projection::Down);
        }
        if let Some(pasts) = pasts {
            for (past, len) in pasts.iter_mut().zip(lens) {
                past.len += len;
            }
        }
        rms_norm(x, &self.decoder.norm, config.norm_eps)
    }

    /// `[tokens, hidden]` → `[tokens, heads · head_dim]`.
    fn attention(
        &self,
        layer: &Layer,
        index: usize,
        h: Tensor<2>,
        rotation: &Rotation,
        lens: &[usize],
        mut pasts: Option<&mut Vec<Past>>,
    ) -> Tensor<2> {
        let config = self.decoder.config();
        let (heads, kv_heads, d) = (config.heads, config.kv_heads, config.head_dim);
        let tokens = h.dims()[0];
        let project = |w: &Matrix, which, bias: &Option<Vector>, heads: usize| -> Tensor<3> {
            let mut y = self.linear(h.clone(), w, index, which);
            if let Some(bias) = bias {
                y = y + bias.val().unsqueeze::<2>();
            }
            y.reshape([tokens, heads, d])
        };
        let norm = |x: Tensor<3>, w: &Option<Vector>| match w {
            Some(w) => rms_norm(x, w, config.norm_eps),
            None => x,
        };
        let q = rotate(norm(project(&layer.q, Projection::Q, &layer.q_bias, heads), &layer.q_norm), rotation)
            .swap_dims(0, 1);
        let k = rotate(norm(project(&layer.k, Projection::K, &layer.k_bias, kv_heads), &layer.k_norm), rotation)
            .swap_dims(0, 1);
        let v = project(&layer.v, Projection::V, &layer.v_bias, kv_heads).swap_dims(0, 1);

        let mut out = Vec::with_capacity(lens.len());
        let mut start = 0;
        for (s, len) in lens.iter().enumerate() {
            let part = |x: &Tensor<3>| x.clone().narrow(1, start, *len);
            let (q, mut k, mut v) = (part(&q), part(&k), part(&v));
            let mut past_len = 0;
            if let Some(past) = pasts.as_deref_mut().map(|p| &mut p[s]) {
                past_len = past.len;
                if let Some((old_k, old_v)) = past.layers.get(index) {
                    k = Tensor::cat(vec![old_k.clone(), k], 1);
                    v = Tensor::cat(vec![old_v.clone(), v], 1);
                    past.layers[index] = (k.clone(), v.clone());
                } else {
                    past.layers.push((k.clone(), v.clone()));
                }
            }
            out.push(self.attend(q, k, v, past_len));
            start += len;
        }
        Tensor::cat(out, 0).reshape([tokens, heads * d])
    }

    /// One sequence: q `[heads, n, d]` at positions from `past_len` on, k and v `[kv_heads, past_len + n, d]`. Gives
    /// `[n, heads, d]`.
    fn attend(&self, q: Tensor<3>, k: Tensor<3>, v: Tensor<3>, past_len: usize) -> Tensor<3> {
        let [heads, n, d] = q.dims();
        let [kv_heads, total, _] = k.dims();
        let share = |x: Tensor<3>| -> Tensor<3> {
            let group = heads / kv_heads;
            x.reshape([kv_heads, 1, total, d]).expand([kv_heads, group, total, d]).reshape([heads, total, d])
        };
        let scores = q.matmul(share(k).swap_dims(1, 2)).mul_scalar((d as f32).powf(-0.5));
        let scores = if n == 1 { scores } else { scores.mask_fill(self.future(n, past_len), f32::NEG_INFINITY) };
        softmax(scores, 2).matmul(share(v)).swap_dims(0, 1)
    }

    /// `[1, n, past_len + n]`: true where a key lies after the query.
    fn future(&self, n: usize, past_len: usize) -> Tensor<3, Bool> {
        let query = Tensor::<1, Int>::arange(past_len as i64..(past_len + n) as i64, &self.device);
        let key = Tensor::<1, Int>::arange(0..(past_len + n) as i64, &self.device);
        let (query, key) = (query.reshape([1, n, 1]), key.reshape([1, 1, past_len + n]));
        key.expand([1, n, past_len + n]).greater(query.expand([1, n, past_len + n]))
    }

    /// Angles in f32 as position · frequency, on the host so that they are the same on every device.
    fn rotation(&self, starts: &[usize], lens: &[usize]) -> Rotation {
        let config = self.decoder.config();
        let (frequencies, factor) = config.rope.frequencies(config.head_dim);
        let tokens: usize = lens.iter().sum();
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for (start, len) in starts.iter().zip(lens) {
            for position in *start..start + len {
                for f in &frequencies {
                    let angle = position as f32 * f;
                    cos.push(angle.cos() * factor);
                    sin.push(angle.sin() * factor);
                }
            }
        }
        let shape = [tokens, 1, frequencies.len()];
        let table = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), &self.device);
        Rotation { cos: table(cos), sin: table(sin) }
    }
}

/// x / sqrt(mean(x²) + eps) · w over the last dimension.
fn rms_norm<const D: usize>(x: Tensor<D>, w: &Vector, eps: f32) -> Tensor<D> {
    let mean = x.clone().square().mean_dim(D - 1);
    x * mean.add_scalar(eps).sqrt().recip() * w.val().unsqueeze::<D>()
}

/// Rotates the pairs (i, i + head_dim / 2) of `[tokens, heads, head_dim]`.
fn rotate(x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
    let half = x.dims()[2] / 2;
    let (a, b) = (x.clone().narrow(2, 0, half), x.narrow(2, half, half));
    let (cos, sin) = (&rotation.cos, &rotation.sin);
    Tensor::cat(vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos.clone() + a * sin.clone()], 2)
}
