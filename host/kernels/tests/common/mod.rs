//! Owned random decoders for the tests, and a naive double-precision decoder to hold the kernels against.
#![allow(dead_code)]

use prl_kernels::{Dims, Grads, Rope, WeightsView};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in (-1, 1).
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn fill(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }

    pub fn ids(&mut self, n: usize, vocab: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(vocab) as u32).collect()
    }
}

/// A decoder that owns its weights, kept in the structure of gradients.
pub struct Model {
    pub dims: Dims,
    pub rope: Rope,
    pub params: Grads,
}

#[derive(Clone, Copy, Debug)]
pub enum Family {
    Qwen3,
    Qwen2,
    Llama,
}

pub fn dims(
    family: Family,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    tied: bool,
) -> Dims {
    Dims {
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        norm_eps: 1e-6,
        qk_norm: matches!(family, Family::Qwen3),
        qkv_bias: matches!(family, Family::Qwen2),
        tied,
    }
}

impl Model {
    pub fn random(dims: Dims, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut params = Grads::zeros(&dims);
        for (name, p) in params.iter_mut() {
            let norm = name.contains("norm");
            let scale = if name.contains("embed") || name.contains("lm_head") {
                0.8
            } else {
                2.0 / (dims.hidden as f32).sqrt()
            };
            p.iter_mut().for_each(|x| *x = if norm { 1.0 + 0.3 * rng.unit() } else { scale * rng.unit() });
        }
        let half = dims.head_dim / 2;
        let inv_freq = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
        Self { dims, rope: Rope { inv_freq, attention_factor: 1.0 }, params }
    }

    pub fn view(&self) -> WeightsView<'_> {
        let view = self.params.as_weights(&self.dims, &self.rope);
        view.validate().expect("a well-formed test model");
        view
    }

    /// All parameters in double precision, by name.
    pub fn doubles(&mut self) -> Vec<(String, Vec<f64>)> {
        self.params.iter_mut().map(|(n, p)| (n, p.iter().map(|x| f64::from(*x)).collect())).collect()
    }
}

/// The same decoder in double precision, as plainly as it can be written.
pub struct Naive<'a> {
    pub dims: &'a Dims,
    pub rope: &'a Rope,
    pub params: &'a [(String, Vec<f64>)],
}

fn matvec(w: &[f64], x: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    w.chunks_exact(x.len())
        .enumerate()
        .map(|(i, row)| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() + bias.map_or(0.0, |b| b[i]))
        .collect()
}

impl Naive<'_> {
    fn find(&self, name: &str) -> Option<&[f64]> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, p)| p.as_slice())
    }

    fn get(&self, name: &str) -> &[f64] {
        self.find(name).unwrap_or_else(|| panic!("no parameter {name}"))
    }

    fn norm(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let r = 1.0 / (mean + f64::from(self.dims.norm_eps)).sqrt();
        x.iter().zip(w).map(|(x, w)| x * r * w).collect()
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for i in 0..half {
            let angle = f64::from(position as f32 * self.rope.inv_freq[i]);
            let (s, c) = (
                angle.sin() * f64::from(self.rope.attention_factor),
                angle.cos() * f64::from(self.rope.attention_factor),
            );
            let (a, b) = (head[i], head[i + half]);
            head[i] = a * c - b * s;
            head[i + half] = b * c + a * s;
        }
    }

    /// Hidden states of one document.
    pub fn hidden(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let d = self.dims;
        let mut x: Vec<Vec<f64>> = ids
            .iter()
            .map(|id| self.get("model.embed_tokens.weight")[*id as usize * d.hidden..][..d.hidden].to_vec())
            .collect();
        for l in 0..d.layers {
            let p = |n: &str| self.get(&format!("model.layers.{l}.{n}"));
            let o = |n: &str| self.find(&format!("model.layers.{l}.{n}"));
            let (mut qs, mut ks, mut vs) = (vec![], vec![], vec![]);
            for (t, x) in x.iter().enumerate() {
                let n = self.norm(x, p("input_layernorm.weight"));
                let mut q = matvec(p("self_attn.q_proj.weight"), &n, o("self_attn.q_proj.bias"));
                let mut k = matvec(p("self_attn.k_proj.weight"), &n, o("self_attn.k_proj.bias"));
                vs.push(matvec(p("self_attn.v_proj.weight"), &n, o("self_attn.v_proj.bias")));
                for (rows, norm) in [(&mut q, o("self_attn.q_norm.weight")), (&mut k, o("self_attn.k_norm.weight"))] {
                    for head in rows.chunks_exact_mut(d.head_dim) {
                        if let Some(w) = norm {
                            let n = self.norm(head, w);
                            head.copy_from_slice(&n);
                        }
                        self.rotate(head, t);
                    }
                }
                qs.push(q);
                ks.push(k);
            }
            for t in 0..ids.len() {
                let mut attn = vec![0.0; d.heads * d.head_dim];
                for h in 0..d.heads {
                    let g = h / (d.heads / d.kv_heads);
                    let q = &qs[t][h * d.head_dim..][..d.head_dim];
                    let part = |rows: &[Vec<f64>], j: usize| rows[j][g * d.head_dim..][..d.head_dim].to_vec();
                    let s: Vec<f64> = (0..=t)
                        .map(|j| {
                            q.iter().zip(part(&ks, j)).map(|(a, b)| a * b).sum::<f64>() / (d.head_dim as f64).sqrt()
                        })
                        .collect();
                    let max = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let z: f64 = s.iter().map(|s| (s - max).exp()).sum();
                    for j in 0..=t {
                        let w = (s[j] - max).exp() / z;
                        for (i, v) in part(&vs, j).into_iter().enumerate() {
                            attn[h * d.head_dim + i] += w * v;
                        }
                    }
                }
                let y = matvec(p("self_attn.o_proj.weight"), &attn, None);
                x[t].iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
            for x in &mut x {
                let n = self.norm(x, p("post_attention_layernorm.weight"));
                let g = matvec(p("mlp.gate_proj.weight"), &n, None);
                let u = matvec(p("mlp.up_proj.weight"), &n, None);
                let a: Vec<f64> = g.iter().zip(u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let y = matvec(p("mlp.down_proj.weight"), &a, None);
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
        }
        x.iter().map(|x| self.norm(x, self.get("model.norm.weight"))).collect()
    }

    /// (log-probability of the label, entropy) after each token of packed documents.
    pub fn stats(&self, ids: &[u32], doc_lens: &[usize], labels: &[u32], inv_temp: &[f32]) -> Vec<(f64, f64)> {
        let head = self.find("lm_head.weight").unwrap_or_else(|| self.get("model.embed_tokens.weight"));
        let mut out = vec![];
        let mut start = 0;
        for len in doc_lens {
            for (i, hidden) in self.hidden(&ids[start..start + len]).iter().enumerate() {
                let z: Vec<f64> =
                    matvec(head, hidden, None).iter().map(|z| z * f64::from(inv_temp[start + i])).collect();
                let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let log_z = max + z.iter().map(|z| (z - max).exp()).sum::<f64>().ln();
                let entropy = -z.iter().map(|z| (z - log_z).exp() * (z - log_z)).sum::<f64>();
                out.push((z[labels[start + i] as usize] - log_z, entropy));
            }
            start += len;
        }
        out
    }
}
