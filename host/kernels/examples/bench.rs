//! Speed of the kernels on typical loads: training and decoding of small models, and of one of 135M parameters.
//! `cargo run --release -p prl-kernels --example bench [gemm|small|large]`

use std::time::Instant;

use prl_kernels::{
    Dims, ExtendItem, Grads, KvCache, LayerView, Meter, Rope, WeightsView, backward, extend, forward, gemm_nn, gemm_nt,
    gemm_tn_acc, head_forward_backward, isa, log_softmax_at,
};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn fill(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| (self.next() as f32 / (1u64 << 30) as f32 - 1.0) * scale).collect()
    }

    fn ids(&mut self, n: usize, vocab: usize) -> Vec<u32> {
        (0..n).map(|_| (self.next() % vocab as u64) as u32).collect()
    }
}

/// Median seconds of several runs after a warm-up.
fn time(runs: usize, mut f: impl FnMut()) -> f64 {
    f();
    let mut all: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[runs / 2]
}

fn bench_gemm() {
    let mut rng = Rng(1);
    let shapes = [
        (20_000, 128, 128),
        (20_000, 384, 128),
        (20_000, 128, 384),
        (8_192, 768, 256),
        (64, 384, 128),
        (64, 768, 256),
        (2_048, 1_536, 576),
        (8, 1_536, 576),
        (8, 49_152, 576),
    ];
    for (m, n, k) in shapes {
        let (x, w, mut y) = (rng.fill(m * k, 1.0), rng.fill(n * k, 1.0), vec![0.0; m * n]);
        let flops = 2.0 * (m * n * k) as f64;
        let runs = ((2e9 / flops) as usize).clamp(5, 501);
        let nt = time(runs, || gemm_nt(m, n, k, &x, &w, &mut y));
        let nn = time(runs, || gemm_nn(m, n, k, &x, &w, &mut y, false));
        let mut g = vec![0.0; n * k];
        let tn = time(runs, || gemm_tn_acc(n, k, m, &y, &x, &mut g));
        let rate = |t: f64| flops / t / 1e9;
        println!("gemm {m:6} x {n:6} x {k:5}: nt {:6.1}  nn {:6.1}  tn {:6.1} GFLOP/s", rate(nt), rate(nn), rate(tn));
    }
}

struct Model {
    dims: Dims,
    rope: Rope,
    params: Grads,
}

impl Model {
    fn new(
        layers: usize,
        hidden: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        ffn: usize,
        vocab: usize,
        qk_norm: bool,
    ) -> Self {
        let dims = Dims {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim,
            ffn,
            vocab,
            norm_eps: 1e-6,
            qk_norm,
            qkv_bias: false,
            tied: true,
        };
        let mut params = Grads::zeros(&dims);
        let mut rng = Rng(2);
        params.iter_mut().for_each(|(_, p)| {
            let n = p.len();
            *p = rng.fill(n, 0.05);
        });
        let inv_freq = (0..head_dim / 2).map(|i| 1e6f32.powf(-2.0 * i as f32 / head_dim as f32)).collect();
        Self { dims, rope: Rope { inv_freq, attention_factor: 1.0 }, params }
    }

    fn view(&self) -> WeightsView<'_> {
        let layers = self.params.layers.iter().map(|l| LayerView {
            input_norm: &l.input_norm,
            q: &l.q,
            k: &l.k,
            v: &l.v,
            o: &l.o,
            q_bias: None,
            k_bias: None,
            v_bias: None,
            q_norm: l.q_norm.as_deref(),
            k_norm: l.k_norm.as_deref(),
            post_norm: &l.post_norm,
            gate: &l.gate,
            up: &l.up,
            down: &l.down,
        });
        WeightsView {
            dims: &self.dims,
            rope: &self.rope,
            embed: &self.params.embed,
            layers: layers.collect(),
            final_norm: &self.params.final_norm,
            lm_head: None,
        }
    }

    /// Multiply-adds of all matrices, twice, per token.
    fn flops(&self) -> f64 {
        2.0 * self.dims.parameters() as f64
    }

    fn train(&self, name: &str, docs: usize, len: usize) {
        let w = self.view();
        let tokens = docs * len;
        let mut rng = Rng(3);
        let (ids, labels) = (rng.ids(tokens, self.dims.vocab), rng.ids(tokens, self.dims.vocab));
        let (lens, ones) = (vec![len; docs], vec![1.0; tokens]);
        let mut grads = Grads::zeros(&self.dims);
        let mut parts = [0.0; 3];
        let total = time(3, || {
            let mut at = Instant::now();
            let mut lap = |i: usize| parts[i] = std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
            let acts = forward(&w, &ids, &lens);
            lap(0);
            let hidden = acts.hidden().to_vec();
            let (_, d) = head_forward_backward(&w, &hidden, &labels, &ones, &ones, 1024, &mut grads);
            lap(1);
            backward(&w, acts, &d, &mut grads);
            lap(2);
        });
        let ms = parts.map(|p| p * 1e3);
        println!(
            "train {name} {docs} x {len}: {:.0} ms (fwd {:.0}, head {:.0}, bwd {:.0}), {:.0} tokens/s, {:.0} GFLOP/s",
            total * 1e3,
            ms[0],
            ms[1],
            ms[2],
            tokens as f64 / total,
            3.0 * self.flops() * tokens as f64 / total / 1e9
        );
    }

    fn decode(&self, name: &str, sequences: usize, prompt: usize, steps: usize) {
        let w = self.view();
        let mut rng = Rng(4);
        let prompts: Vec<Vec<u32>> = (0..sequences).map(|_| rng.ids(prompt, self.dims.vocab)).collect();
        let mut caches: Vec<KvCache> = prompts.iter().map(|_| KvCache::new(&self.dims, &Meter::default())).collect();
        let start = Instant::now();
        let mut items: Vec<ExtendItem<'_>> = caches
            .iter_mut()
            .zip(&prompts)
            .map(|(cache, ids)| ExtendItem { cache, ids, logits: 0, adapter: None })
            .collect();
        extend(&w, &mut items);
        let prefill = start.elapsed().as_secs_f64();
        let mut all = Vec::new();
        for _ in 0..steps {
            let next = rng.ids(sequences, self.dims.vocab);
            let start = Instant::now();
            let mut items: Vec<ExtendItem<'_>> = caches
                .iter_mut()
                .zip(next.chunks_exact(1))
                .map(|(cache, ids)| ExtendItem { cache, ids, logits: 1, adapter: None })
                .collect();
            let logits = extend(&w, &mut items);
            let mut sum = 0.0;
            for row in logits.chunks_exact(self.dims.vocab) {
                sum += log_softmax_at(row, 1.0, 1).logprob;
            }
            std::hint::black_box(sum);
            all.push(start.elapsed().as_secs_f64());
        }
        all.sort_by(f64::total_cmp);
        let step = all[steps / 2];
        println!(
            "decode {name} {sequences} sequences: {:.2} ms/step, {:.0} tokens/s, {:.0} GFLOP/s, {:.1} GB/s of weights; prefill {:.0} tokens/s",
            step * 1e3,
            sequences as f64 / step,
            self.flops() * sequences as f64 / step / 1e9,
            4.0 * self.dims.parameters() as f64 / step / 1e9,
            (sequences * prompt) as f64 / prefill
        );
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|o| o == name);
    println!("{:?}, {} threads", isa(), rayon::current_num_threads());
    if wanted("gemm") {
        bench_gemm();
    }
    if wanted("small") {
        let small = Model::new(4, 128, 4, 2, 32, 384, 300, true);
        small.train("h128 L4", 333, 60);
        small.decode("h128 L4", 64, 60, 60);
        small.decode("h128 L4", 128, 60, 60);
        let medium = Model::new(8, 256, 8, 4, 32, 768, 300, true);
        medium.train("h256 L8", 333, 60);
        medium.decode("h256 L8", 64, 60, 60);
        medium.decode("h256 L8", 128, 60, 60);
    }
    if wanted("large") {
        let large = Model::new(30, 576, 9, 3, 64, 1536, 49_152, false);
        large.decode("135M", 1, 60, 8);
        large.decode("135M", 8, 60, 8);
        large.train("135M", 8, 256);
    }
}
