//! Bit-for-bit properties: nothing around a token changes what is computed for it.

mod common;

use common::{Family, Model, Rng, dims};
use prl_kernels::{
    CHAIN, Dims, ExtendItem, Grads, KvCache, Meter, backward, extend, forward, gemm_nn, gemm_nt, gemm_tn_acc,
    head_backward, head_forward_backward, head_stats, log_softmax_at,
};
use proptest::prelude::*;

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Runs `f` in a pool of that many threads.
fn with_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a thread pool").install(f)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// A row of a product does not depend on the other rows, on where it stands, or on the number of threads.
    #[test]
    fn gemm_rows_stand_alone(m in 1usize..150, n in 1usize..200, k in 1usize..600, seed in 0u64..1000) {
        let mut rng = Rng(seed);
        let (x, w) = (rng.fill(m * k, 1.0), rng.fill(n * k, 1.0));
        let mut whole = vec![0.0; m * n];
        gemm_nt(m, n, k, &x, &w, &mut whole);
        for threads in [1, 3] {
            let mut again = vec![0.0; m * n];
            with_threads(threads, || gemm_nt(m, n, k, &x, &w, &mut again));
            prop_assert_eq!(bits(&whole), bits(&again));
        }
        for count in [1, 2, m.div_ceil(2)] {
            let first = rng.below(m + 1 - count.min(m));
            let count = count.min(m);
            let mut part = vec![0.0; count * n];
            gemm_nt(count, n, k, &x[first * k..(first + count) * k], &w, &mut part);
            prop_assert_eq!(bits(&part), bits(&whole[first * n..(first + count) * n]));
        }
        let column = rng.below(n);
        let mut one = vec![0.0; m];
        gemm_nt(m, 1, k, &x, &w[column * k..(column + 1) * k], &mut one);
        prop_assert_eq!(bits(&one), bits(&whole.iter().skip(column).step_by(n).copied().collect::<Vec<_>>()));

        // The other two forms are the same sums over transposed operands.
        let wt: Vec<f32> = (0..k * n).map(|i| w[i % n * k + i / n]).collect();
        let xt: Vec<f32> = (0..k * m).map(|i| x[i % m * k + i / m]).collect();
        let mut nn = vec![0.0; m * n];
        gemm_nn(m, n, k, &x, &wt, &mut nn, false);
        prop_assert_eq!(bits(&whole), bits(&nn));
        let mut tn = vec![0.0; m * n];
        gemm_tn_acc(m, n, k, &xt, &wt, &mut tn);
        prop_assert_eq!(bits(&whole), bits(&tn));
        // And k may be split between two stretches.
        let cut = CHAIN * rng.below(k / CHAIN + 1);
        let mut two = vec![0.0; m * n];
        gemm_tn_acc(m, n, cut, &xt, &wt, &mut two);
        gemm_tn_acc(m, n, k - cut, &xt[cut * m..], &wt[cut * n..], &mut two);
        prop_assert_eq!(bits(&whole), bits(&two));
    }

    /// Packed, prefilled, cut into pieces, token by token, alone or in a batch: the same bits.
    #[test]
    fn every_way_through_the_decoder_agrees(
        family in 0usize..3,
        lens in proptest::collection::vec(1usize..90, 1..5),
        head_dim in prop_oneof![Just(8usize), Just(16), Just(20)],
        seed in 0u64..1000,
    ) {
        let family = [Family::Qwen3, Family::Qwen2, Family::Llama][family];
        let model = Model::random(dims(family, 2, 40, 4, 2, head_dim, 56, 75, seed % 2 == 0), seed);
        let w = model.view();
        let d = &model.dims;
        let mut rng = Rng(seed + 7);
        let ids = rng.ids(lens.iter().sum(), d.vocab);
        let labels = rng.ids(ids.len(), d.vocab);
        let acts = forward(&w, &ids, &lens);
        let hidden = acts.hidden().to_vec();
        let inv_temp: Vec<f32> = (0..ids.len()).map(|_| 1.0 + 0.5 * rng.unit()).collect();
        let stats = head_stats(&w, &hidden, &labels, &inv_temp, 16);
        prop_assert_eq!(&stats, &with_threads(3, || head_stats(&w, &hidden, &labels, &inv_temp, 3)));
        prop_assert_eq!(bits(&hidden), bits(with_threads(3, || forward(&w, &ids, &lens)).hidden()));
        let mut logits = vec![0.0; ids.len() * d.vocab];
        gemm_nt(ids.len(), d.vocab, d.hidden, &hidden, w.head(), &mut logits);

        let starts: Vec<usize> = lens.iter().scan(0, |a, n| Some(std::mem::replace(a, *a + n))).collect();
        // Alone in forward.
        for (start, len) in starts.iter().zip(&lens) {
            let alone = forward(&w, &ids[*start..start + len], &[*len]);
            prop_assert_eq!(bits(alone.hidden()), bits(&hidden[start * d.hidden..(start + len) * d.hidden]));
        }
        // Batched through caches in random pieces, mixed prefill and decode.
        for threads in [1usize, 2, 3] {
            let mut caches: Vec<KvCache> = lens.iter().map(|_| KvCache::new(d, &Meter::default())).collect();
            let longest = if threads == 3 { 1 } else { 40 };
            while caches.iter().zip(&lens).any(|(c, n)| c.len() < *n) {
                let mut ends = vec![];
                let mut items = vec![];
                for ((cache, start), len) in caches.iter_mut().zip(&starts).zip(&lens) {
                    let have = cache.len();
                    if have == *len || rng.below(4) == 0 {
                        continue;
                    }
                    let take = (1 + rng.below(longest)).min(len - have);
                    let want_logits = rng.below(5) > 0;
                    if want_logits {
                        ends.push(start + have + take - 1);
                    }
                    items.push(ExtendItem { cache, ids: &ids[start + have..start + have + take], logits: usize::from(want_logits), adapter: None });
                }
                let got = with_threads(threads, || extend(&w, &mut items));
                prop_assert_eq!(got.len(), ends.len() * d.vocab);
                for (row, t) in got.chunks_exact(d.vocab).zip(ends) {
                    prop_assert_eq!(bits(row), bits(&logits[t * d.vocab..(t + 1) * d.vocab]));
                    // What a sampler records is what the trainer computes.
                    let sampled = log_softmax_at(row, inv_temp[t], labels[t]);
                    prop_assert_eq!(sampled.logprob.to_bits(), stats.logprob[t].to_bits());
                    prop_assert_eq!(sampled.entropy.to_bits(), stats.entropy[t].to_bits());
                    prop_assert_eq!(sampled.logz.to_bits(), stats.logz[t].to_bits());
                }
            }
        }
    }
}

/// A vocabulary of several blocks and a decoder too large to be split by sequence take other paths to the same bits.
#[test]
fn large_decoder_agrees() {
    let model = Model::random(dims(Family::Llama, 1, 192, 3, 1, 64, 512, 40_000, true), 11);
    let w = model.view();
    let d = &model.dims;
    let mut rng = Rng(12);
    let (ids, labels) = (rng.ids(70, d.vocab), rng.ids(70, d.vocab));
    let lens = [37, 33];
    let hidden = forward(&w, &ids, &lens).hidden().to_vec();
    let stats = head_stats(&w, &hidden, &labels, &[0.7; 70], 1024);
    for threads in [1, 2] {
        let mut caches = [KvCache::new(d, &Meter::default()), KvCache::new(d, &Meter::default())];
        let [a, b] = &mut caches;
        let mut items = [
            ExtendItem { cache: a, ids: &ids[..37], logits: 1, adapter: None },
            ExtendItem { cache: b, ids: &ids[37..69], logits: 0, adapter: None },
        ];
        let first = with_threads(threads, || extend(&w, &mut items));
        let mut items = [ExtendItem { cache: b, ids: &ids[69..], logits: 1, adapter: None }];
        let second = with_threads(threads, || extend(&w, &mut items));
        for (row, t) in [(&first, 36), (&second, 69)] {
            assert_eq!(log_softmax_at(row, 0.7, labels[t]).logprob.to_bits(), stats.logprob[t].to_bits());
        }
    }
}

/// A fork sees its own continuation only, and truncation forgets for good.
#[test]
fn forks_and_truncation() {
    let model = Model::random(dims(Family::Qwen3, 2, 24, 2, 1, 8, 30, 50, true), 3);
    let w = model.view();
    let mut rng = Rng(4);
    let prompt = rng.ids(45, 50);
    let step =
        |cache: &mut KvCache, ids: &[u32]| extend(&w, &mut [ExtendItem { cache, ids, logits: 1, adapter: None }]);
    let mut trunk = KvCache::new(&model.dims, &Meter::default());
    step(&mut trunk, &prompt);
    let mut fork = trunk.clone();
    let (left, right) = (step(&mut trunk, &[1, 2, 3]), step(&mut fork, &[4, 5, 6]));
    for (tail, got) in [([1, 2, 3], left.clone()), ([4, 5, 6], right)] {
        let mut fresh = KvCache::new(&model.dims, &Meter::default());
        let ids = [prompt.as_slice(), tail.as_slice()].concat();
        assert_eq!(bits(&step(&mut fresh, &ids)), bits(&got));
    }
    step(&mut trunk, &[9; 40]);
    assert_eq!(trunk.len(), 88);
    trunk.truncate(46);
    assert_eq!(trunk.len(), 46);
    assert_eq!(bits(&step(&mut trunk, &[2, 3])), bits(&left));
}

fn gradient(dims: &Dims, threads: usize) -> Vec<u32> {
    let model = Model::random(dims.clone(), 21);
    let mut rng = Rng(22);
    let lens = [100, 3, 61, 240, 1];
    let (ids, labels) = (rng.ids(405, dims.vocab), rng.ids(405, dims.vocab));
    let dlogprob = rng.fill(405, 1.0);
    with_threads(threads, || {
        let w = model.view();
        let mut grads = Grads::zeros(dims);
        let acts = forward(&w, &ids, &lens);
        let hidden = acts.hidden().to_vec();
        let stats = head_stats(&w, &hidden, &labels, &[1.0; 405], 64);
        let d = head_backward(&w, &hidden, &labels, &[1.0; 405], &stats, &dlogprob, None, 64, &mut grads);
        backward(&w, acts, &d, &mut grads);
        let mut out: Vec<u32> = grads.iter_mut().flat_map(|(_, g)| bits(g)).collect();
        out.extend(grads.norm().to_bits().to_le_bytes().map(u32::from));
        out
    })
}

/// Gradients do not depend on threads or timing.
#[test]
fn gradients_are_reproducible() {
    for family in [Family::Qwen3, Family::Qwen2] {
        let dims = dims(family, 2, 128, 4, 2, 32, 200, 300, true);
        let one = gradient(&dims, 1);
        for threads in [2, 3, 3] {
            assert!(one == gradient(&dims, threads), "{family:?}: gradients differ with {threads} threads");
        }
    }
}

/// Where the gradients are known before, one pass over the logits gives what two give.
#[test]
fn one_pass_over_the_logits_equals_two() {
    let (tokens, vocab) = (130, 2_500);
    let model = Model::random(dims(Family::Llama, 0, 24, 1, 1, 24, 3, vocab, false), 31);
    let (w, mut rng) = (model.view(), Rng(32));
    let (hidden, labels) = (rng.fill(tokens * 24, 1.0), rng.ids(tokens, vocab));
    let inv_temp: Vec<f32> = (0..tokens).map(|_| 1.0 + 0.3 * rng.unit()).collect();
    let dlogprob: Vec<f32> = (0..tokens).map(|t| if t % 3 == 0 { 0.0 } else { rng.unit() }).collect();
    let stats = head_stats(&w, &hidden, &labels, &inv_temp, 64);
    let mut two = Grads::zeros(&model.dims);
    let towards = head_backward(&w, &hidden, &labels, &inv_temp, &stats, &dlogprob, None, 64, &mut two);
    for threads in [1, 3] {
        let mut one = Grads::zeros(&model.dims);
        let (logprob, d) =
            with_threads(threads, || head_forward_backward(&w, &hidden, &labels, &inv_temp, &dlogprob, 64, &mut one));
        assert_eq!(bits(&d), bits(&towards));
        let all = |grads: &Grads| grads.slices().into_iter().flat_map(bits).collect::<Vec<u32>>();
        assert!(all(&one) == all(&two), "gradients of the weights differ with {threads} threads");
        for t in 0..tokens {
            let want = if dlogprob[t] == 0.0 { 0.0 } else { stats.logprob[t] };
            assert_eq!(logprob[t].to_bits(), want.to_bits(), "token {t}");
        }
    }
}

#[test]
fn gradient_bookkeeping() {
    let dims = dims(Family::Qwen2, 1, 8, 2, 1, 4, 6, 10, false);
    let mut grads = Grads::zeros(&dims);
    assert_eq!(grads.len(), dims.parameters());
    assert_eq!(grads.zeros_count(), grads.len());
    grads.final_norm[2] = 3.0;
    grads.layers[0].q_bias.as_mut().expect("qkv_bias")[0] = 4.0;
    assert_eq!(grads.norm(), 5.0);
    assert_eq!(grads.zeros_count(), grads.len() - 2);
    grads.scale(0.5);
    assert_eq!(grads.norm(), 2.5);
    let names: Vec<String> = grads.iter_mut().map(|(n, _)| n).collect();
    assert!(names.contains(&"model.layers.0.self_attn.k_proj.bias".to_owned()), "{names:?}");
    assert_eq!(names.last().map(String::as_str), Some("lm_head.weight"));
    grads.zero();
    assert_eq!(grads.norm(), 0.0);
}

/// Weights that do not fit are refused by name.
#[test]
fn misfits_are_named() {
    let model = Model::random(dims(Family::Qwen3, 1, 8, 2, 1, 4, 6, 10, true), 1);
    let mut w = model.view();
    w.layers[0].gate = &w.layers[0].gate[1..];
    let message = w.validate().expect_err("a short weight").to_string();
    assert!(message.contains("model.layers.0.mlp.gate_proj.weight"), "{message}");
    let mut w = model.view();
    w.layers[0].q_norm = None;
    let message = w.validate().expect_err("a missing weight").to_string();
    assert!(message.contains("q_norm.weight` is missing"), "{message}");
}
