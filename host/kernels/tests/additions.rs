//! Low-rank additions under training: their values are those of merged weights and, to the bit, of sampling; their gradients are
//! those of a naive double-precision decoder; frozen weights have none.

mod common;

use common::{Family, Model, Naive, Rng, dims};
use prl_kernels::{
    AdapterLayer, AdapterView, Additions, Dims, Dropout, ExtendItem, Grads, KernelError, KvCache, LowRank, Meter,
    Projection, backward_with, extend, forward, forward_with, gemm_nt, head_backward, head_stats,
};

/// Additions of different ranks; some matrices of some layers have none.
fn additions(d: &Dims, rng: &mut Rng) -> Vec<AdapterLayer> {
    let mut layers = vec![AdapterLayer::default(); d.layers];
    for (i, layer) in layers.iter_mut().enumerate() {
        for (p, which) in Projection::ALL.into_iter().enumerate().filter(|(p, _)| (i + p) % 4 != 3) {
            let ([out, input], rank) = (which.shape(d), 1 + (p + i) % 3);
            *layer.slot(which) = Some(LowRank { a: rng.fill(rank * input, 0.4), b: rng.fill(out * rank, 0.4), rank });
        }
    }
    layers
}

fn added<'a>(layers: &'a [AdapterLayer], d: &'a Dims, dropout: Option<&'a Dropout>) -> Additions<'a> {
    Additions::new(AdapterView::new(layers, d).unwrap(), 1.0, dropout).unwrap()
}

struct Batch {
    ids: Vec<u32>,
    doc_lens: Vec<usize>,
    labels: Vec<u32>,
    dlogprob: Vec<f32>,
    ones: Vec<f32>,
}

impl Batch {
    fn new(d: &Dims, doc_lens: &[usize], rng: &mut Rng) -> Self {
        let n = doc_lens.iter().sum();
        let (ids, labels) = (rng.ids(n, d.vocab), rng.ids(n, d.vocab));
        Batch { ids, labels, doc_lens: doc_lens.to_vec(), dlogprob: rng.fill(n, 1.0), ones: vec![1.0; n] }
    }

    /// Σ dlogprob · logprob, and its gradients added to `grads`.
    fn run(&self, model: &Model, additions: &Additions<'_>, grads: &mut Grads) -> f64 {
        let w = model.view();
        let acts = forward_with(&w, additions, &self.ids, &self.doc_lens);
        let hidden = acts.hidden().to_vec();
        let stats = head_stats(&w, &hidden, &self.labels, &self.ones, 9);
        let d = head_backward(&w, &hidden, &self.labels, &self.ones, &stats, &self.dlogprob, None, 9, grads);
        backward_with(&w, additions, acts, &d, grads);
        stats.logprob.iter().zip(&self.dlogprob).map(|(l, d)| f64::from(*l) * f64::from(*d)).sum()
    }

    /// The same value in double precision, of weights that have the additions merged into them.
    fn naive(
        &self,
        model: &Model,
        params: &[(String, Vec<f64>)],
        pairs: &[(String, Vec<f64>)],
        layers: &[AdapterLayer],
    ) -> f64 {
        let mut merged = params.to_vec();
        let mut pairs = pairs.iter();
        for (i, (which, LowRank { rank, .. })) in
            layers.iter().enumerate().flat_map(|(i, l)| l.iter().map(move |p| (i, p)))
        {
            let (Some((_, a)), Some((_, b))) = (pairs.next(), pairs.next()) else { panic!("two factors of each") };
            let name = format!("model.layers.{i}.{}.weight", which.module());
            let (_, matrix) = merged.iter_mut().find(|(n, _)| *n == name).unwrap();
            let input = a.len() / rank;
            for (at, x) in matrix.iter_mut().enumerate() {
                *x += (0..*rank).map(|r| b[at / input * rank + r] * a[r * input + at % input]).sum::<f64>();
            }
        }
        let naive = Naive { dims: &model.dims, rope: &model.rope, params: &merged };
        let stats = naive.stats(&self.ids, &self.doc_lens, &self.labels, &self.ones);
        stats.iter().zip(&self.dlogprob).map(|((l, _), d)| l * f64::from(*d)).sum()
    }
}

/// Name and numbers of every factor, in the order of gradients.
fn factors(layers: &[AdapterLayer]) -> Vec<(String, Vec<f64>)> {
    let doubles = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    let each = |(i, layer): (usize, &AdapterLayer)| {
        let of = |(which, pair): (Projection, &LowRank)| {
            [("A", &pair.a), ("B", &pair.b)].map(|(f, x)| (format!("{i} {which:?} {f}"), doubles(x)))
        };
        layer.iter().flat_map(of).collect::<Vec<_>>()
    };
    layers.iter().enumerate().flat_map(each).collect()
}

#[test]
fn gradients_are_those_of_merged_weights_in_double_precision() {
    for (family, head_dim, ffn, doc_lens, seed) in [
        (Family::Qwen3, 6, 10, &[4, 1, 5][..], 1),
        (Family::Qwen2, 4, 14, &[1, 6, 2], 2),
        (Family::Llama, 8, 130, &[70, 35], 3),
    ] {
        let mut model = Model::random(dims(family, 2, 12, 4, 2, head_dim, ffn, 13, true), seed);
        let mut rng = Rng(seed + 10);
        let layers = additions(&model.dims, &mut rng);
        let batch = Batch::new(&model.dims, doc_lens, &mut rng);
        let of = added(&layers, &model.dims, None);
        let mut grads = Grads::of(&model.dims, |_| false, &layers);
        let value = batch.run(&model, &of, &mut grads);
        let (params, mut pairs) = (model.doubles(), factors(&layers));
        let want = batch.naive(&model, &params, &pairs, &layers);
        assert!((value - want).abs() <= 1e-4 * (1.0 + want.abs()), "{family:?}: {value} instead of {want}");
        let got: Vec<Vec<f32>> = grads.slices().into_iter().filter(|g| !g.is_empty()).map(<[f32]>::to_vec).collect();
        assert_eq!(got.len(), pairs.len(), "frozen weights have no gradient");
        for (i, got) in got.iter().enumerate() {
            let size = got.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let direction: Vec<f64> = got.iter().map(|g| f64::from(*g) / size + 0.1 * f64::from(rng.unit())).collect();
            let mut side = |sign: f64| {
                let before = pairs[i].1.clone();
                pairs[i].1.iter_mut().zip(&direction).for_each(|(p, d)| *p += sign * 1e-5 * d);
                let value = batch.naive(&model, &params, &pairs, &layers);
                pairs[i].1 = before;
                value
            };
            let want = (side(1.0) - side(-1.0)) / 2e-5;
            let have: f64 = direction.iter().zip(got).map(|(d, g)| d * f64::from(*g)).sum();
            assert!((want - have).abs() <= 2e-4 * size + 1e-6, "{family:?} {}: {have} instead of {want}", pairs[i].0);
        }
    }
}

#[test]
fn what_is_frozen_changes_no_bit_of_what_is_not() {
    let model = Model::random(dims(Family::Qwen2, 2, 24, 4, 2, 8, 40, 30, false), 4);
    let mut rng = Rng(5);
    let layers = additions(&model.dims, &mut rng);
    let batch = Batch::new(&model.dims, &[9, 120, 3], &mut rng);
    let of = added(&layers, &model.dims, None);
    let gradients = |trained: &dyn Fn(&str) -> bool| {
        let mut grads = Grads::of(&model.dims, trained, &layers);
        batch.run(&model, &of, &mut grads);
        grads.iter_mut().map(|(name, g)| (name, g.clone())).collect::<Vec<_>>()
    };
    let all = gradients(&|_| true);
    for part in ["embed_tokens", "lm_head", "norm", "q_proj", "mlp.down_proj", "nothing"] {
        for ((name, own), (_, all)) in gradients(&|name| name.contains(part)).iter().zip(&all) {
            let has = name.contains(part) || name.contains("lora_");
            assert!(if has { own == all } else { own.is_empty() }, "{part}: {name}");
        }
    }
}

#[test]
fn training_and_sampling_agree_to_the_bit() {
    for (family, hidden, vocab, seed) in [(Family::Qwen3, 40, 75, 6), (Family::Llama, 192, 300, 7)] {
        let model = Model::random(dims(family, 2, hidden, 4, 2, 16, 150, vocab, true), seed);
        let (w, d) = (model.view(), &model.dims);
        let mut rng = Rng(seed);
        let layers = additions(d, &mut rng);
        let lens = [100, 3, 61];
        let ids = rng.ids(164, d.vocab);
        let hidden = forward_with(&w, &added(&layers, d, None), &ids, &lens).hidden().to_vec();
        assert!(hidden != forward(&w, &ids, &lens).hidden());
        let mut logits = vec![0.0; ids.len() * d.vocab];
        gemm_nt(ids.len(), d.vocab, d.hidden, &hidden, w.head(), &mut logits);
        let mut caches = lens.map(|_| KvCache::new(d, &Meter::default()));
        let starts = [0, 100, 103];
        while caches.iter().zip(lens).any(|(c, n)| c.len() < n) {
            let (mut items, mut rows) = (Vec::new(), Vec::new());
            for ((cache, start), len) in caches.iter_mut().zip(starts).zip(lens) {
                let have = cache.len();
                let take = (1 + rng.below(40)).min(len - have);
                if take > 0 && rng.below(3) > 0 {
                    rows.extend(start + have..start + have + take);
                    let ids = &ids[start + have..start + have + take];
                    items.push(ExtendItem {
                        cache,
                        ids,
                        logits: take,
                        adapter: Some(AdapterView::new(&layers, d).unwrap()),
                    });
                }
            }
            for (got, t) in extend(&w, &mut items).chunks_exact(d.vocab).zip(rows) {
                assert!(got == &logits[t * d.vocab..][..d.vocab], "{family:?} at {t}");
            }
        }
    }
}

#[test]
fn with_dropout_gradients_are_slopes_and_packing_changes_nothing() {
    let model = Model::random(dims(Family::Qwen3, 2, 24, 4, 2, 8, 40, 30, true), 8);
    let mut rng = Rng(9);
    let mut layers = additions(&model.dims, &mut rng);
    let batch = Batch::new(&model.dims, &[7, 110, 2], &mut rng);
    let dropout = Dropout::new(0.4, (3, 1), &batch.ids, &batch.doc_lens).unwrap();
    let run = |layers: &[AdapterLayer], dropout: &Dropout| {
        let mut grads = Grads::of(&model.dims, |_| false, layers);
        let value = batch.run(&model, &added(layers, &model.dims, Some(dropout)), &mut grads);
        (value, grads)
    };
    let (value, grads) = run(&layers, &dropout);
    let other = Dropout::new(0.4, (3, 2), &batch.ids, &batch.doc_lens).unwrap();
    assert_ne!(value, run(&layers, &other).0);
    for (i, which) in [(0, Projection::Q), (0, Projection::Down), (1, Projection::O), (1, Projection::Up)] {
        let Some(got) = grads.adapter[i].get(which).cloned() else { continue };
        let size = got.a.iter().chain(&got.b).map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let step = 2e-3;
        let mut side = |sign: f64| {
            let pair = layers[i].slot(which).as_mut().unwrap();
            let before = pair.clone();
            let go = |to: &mut [f32], along: &[f32]| {
                to.iter_mut().zip(along).for_each(|(x, d)| *x += (sign * step * f64::from(*d) / size) as f32);
            };
            go(&mut pair.a, &got.a);
            go(&mut pair.b, &got.b);
            let value = run(&layers, &dropout).0;
            *layers[i].slot(which) = Some(before);
            value
        };
        let slope = (side(1.0) - side(-1.0)) / (2.0 * step);
        assert!((slope - size).abs() <= 2e-2 * size, "{i} {which:?}: {slope} instead of {size}");
    }
    // A document alone sees what it sees among others.
    let of = added(&layers, &model.dims, Some(&dropout));
    let packed = forward_with(&model.view(), &of, &batch.ids, &batch.doc_lens);
    let alone = Dropout::new(0.4, (3, 1), &batch.ids[7..117], &[110]).unwrap();
    let of = added(&layers, &model.dims, Some(&alone));
    let alone = forward_with(&model.view(), &of, &batch.ids[7..117], &[110]);
    assert!(packed.hidden()[7 * 24..117 * 24] == *alone.hidden());
}

#[test]
fn additions_that_do_not_fit_are_refused() {
    let d = dims(Family::Qwen3, 2, 24, 4, 2, 8, 40, 30, true);
    let layers = additions(&d, &mut Rng(1));
    let refused = |layers: &[AdapterLayer]| AdapterView::new(layers, &d).unwrap_err();
    assert_eq!(refused(&[&layers[..], &layers].concat()), KernelError::AdapterLayers { got: 4, most: 2 });
    type Spoil = fn(&mut LowRank);
    let spoils: [Spoil; 6] = [
        |pair| pair.rank = 0,
        |pair| pair.rank += 1,
        |pair| pair.rank = usize::MAX,
        |pair| pair.a.truncate(1),
        |pair| pair.b.push(0.0),
        |pair| (pair.a, pair.b) = (Vec::new(), Vec::new()),
    ];
    for spoil in spoils {
        let mut layers = layers.clone();
        spoil(layers[1].slot(Projection::Q).as_mut().unwrap());
        let error = refused(&layers);
        assert!(matches!(error, KernelError::Adapter { .. }), "{error}");
        assert!(error.to_string().contains("self_attn.q_proj"), "{error}");
    }
    let fits = AdapterView::new(&layers, &d).unwrap();
    for scale in [f32::NAN, f32::INFINITY] {
        assert!(matches!(Additions::new(fits, scale, None), Err(KernelError::Scale(_))));
    }
    let other = Model::random(dims(Family::Qwen3, 2, 24, 4, 2, 8, 44, 30, true), 1);
    let (of, ids) = (Additions::new(fits, 1.0, None).unwrap(), [1, 2, 3]);
    let run = || drop(forward_with(&other.view(), &of, &ids, &[3]));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err(), "another decoder");
}
