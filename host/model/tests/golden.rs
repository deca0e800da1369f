//! Both implementations against what transformers computed, and against each other.

mod common;

use burn::optim::AdamWConfig;
use common::{Expected, FIXTURES, load, max_difference, relative_error};
use prl_kernels::Meter;
use prl_model::{
    Answer, Cache, Decoder, Extend, HostLearner, Kernels, Learner, Packed, ParamRef, Snapshot, Stepper, Want,
};

const BOTH: [Kernels; 2] = [Kernels::Reference, Kernels::Fast];

/// Rows of logits one behind the other.
fn rows(answers: Vec<Answer>) -> Vec<f32> {
    let row = |answer| match answer {
        Answer::Logits(row) => row,
        Answer::Token(..) | Answer::Scores(_) => panic!("logits"),
    };
    answers.into_iter().flat_map(row).collect()
}

/// Logits of every token of one document, in pieces of the given lengths.
fn logits(snapshot: &dyn Snapshot, ids: &[u32], pieces: &[usize]) -> Vec<f32> {
    let mut cache = snapshot.new_cache(&Meter::default());
    let (mut out, mut start) = (Vec::new(), 0);
    for piece in pieces {
        let item = Extend { cache: &mut cache, ids: &ids[start..start + piece], want: Want::Logits, adapter: None };
        out.extend(rows(snapshot.extend(&mut [item]).unwrap()));
        start += piece;
    }
    assert_eq!(cache.len(), ids.len());
    out
}

fn gradient(decoder: &Decoder, grads: &burn::optim::GradientsParams, name: &str) -> Vec<f32> {
    let at = decoder.infos().iter().position(|info| info.name == name).unwrap();
    match decoder.parameters()[at] {
        ParamRef::Vector(p) => grads.get::<1>(p.id).unwrap().try_into_vec_as::<f32>().unwrap(),
        ParamRef::Matrix(p) => grads.get::<2>(p.id).unwrap().try_into_vec_as::<f32>().unwrap(),
    }
}

fn host(learner: &mut Learner) -> &mut HostLearner {
    match learner.stepper() {
        Stepper::Host(host) => host,
        Stepper::Fused(_) => panic!("a model on the host"),
    }
}

/// Forward and backward of the fixture's loss; gradients of all parameters in order.
fn train(decoder: Decoder, kernels: Kernels, expected: &Expected, chunk: usize) -> (Vec<f32>, Vec<f32>, Vec<Vec<f32>>) {
    let mut learner = Learner::new(decoder, kernels, chunk).unwrap();
    let stats = learner.forward(&expected.batch()).unwrap();
    let weights = expected.floats("weights");
    let dlogprob: Vec<f32> = weights.iter().map(|w| -w).collect();
    let dentropy: Vec<f32> = weights.iter().map(|w| -0.1 * w).collect();
    learner.backward(&dlogprob, Some(&dentropy)).unwrap();
    let copied = learner.gradients().unwrap();
    let mut all = Vec::new();
    host(&mut learner).update(|model, grads| {
        let decoder = &model.decoder;
        all = decoder.infos().iter().map(|info| gradient(decoder, &grads, &info.name)).collect();
        model
    });
    assert_eq!(copied, all);
    (stats.logprobs, stats.entropy, all)
}

#[test]
fn logits_equal_those_of_transformers() {
    for name in FIXTURES {
        let (decoder, expected) = (load(name), Expected::load(name));
        let (batch, want) = (expected.batch(), expected.floats("logits"));
        for kernels in BOTH {
            let snapshot = decoder.snapshot(kernels).unwrap();
            let (mut got, mut start) = (Vec::new(), 0);
            for len in &batch.doc_lens {
                let ids = &batch.ids[start..start + len];
                got.extend(logits(snapshot.as_ref(), ids, &vec![1; *len]));
                start += len;
            }
            let difference = max_difference(&got, &want);
            assert!(difference < 1e-4, "{name} {kernels:?}: {difference}");
        }
    }
}

#[test]
fn logprobs_entropies_and_gradients_equal_those_of_transformers() {
    for name in FIXTURES {
        let expected = Expected::load(name);
        for kernels in BOTH {
            let decoder = load(name);
            let infos = decoder.infos();
            let (logprobs, entropy, grads) = train(decoder, kernels, &expected, 6);
            assert!(max_difference(&logprobs, &expected.floats("logprobs")) < 1e-4, "{name} {kernels:?}");
            assert!(max_difference(&entropy, &expected.floats("entropy")) < 1e-4, "{name} {kernels:?}");
            let names = expected.gradients();
            assert!(names.len() >= 10, "{name}: {names:?}");
            for parameter in names {
                let at = infos.iter().position(|i| i.name == parameter).unwrap();
                let want = expected.floats(&format!("grad.{parameter}"));
                let error = relative_error(&grads[at], &want);
                assert!(error < 1e-4, "{name} {kernels:?} {parameter}: {error}");
            }
        }
    }
}

#[test]
fn fast_and_reference_agree_on_every_gradient() {
    for name in FIXTURES {
        let expected = Expected::load(name);
        let (_, _, fast) = train(load(name), Kernels::Fast, &expected, 1000);
        let (_, _, reference) = train(load(name), Kernels::Reference, &expected, 7);
        for (i, info) in load(name).infos().iter().enumerate() {
            let error = relative_error(&fast[i], &reference[i]);
            assert!(error < 1e-4, "{name} {}: {error}", info.name);
        }
    }
}

#[test]
fn the_fast_forward_is_bitwise_the_same_packed_alone_prefilled_or_decoded() {
    for name in FIXTURES {
        let (decoder, expected) = (load(name), Expected::load(name));
        let batch = expected.batch();
        let mut learner = Learner::new(decoder, Kernels::Fast, 5).unwrap();
        let packed = learner.forward(&batch).unwrap();
        let snapshot = learner.snapshot().unwrap();

        let first = batch.doc_lens[0];
        let mut alone = Learner::new(load(name), Kernels::Fast, 64).unwrap();
        let (ids, temperatures) = (batch.ids[..first].to_vec(), batch.temperatures[..first].to_vec());
        let single = alone.forward(&Packed { ids, doc_lens: vec![first], temperatures }).unwrap();
        assert_eq!(single.logprobs, packed.logprobs[..first], "{name}");
        assert_eq!(single.entropy, packed.entropy[..first], "{name}");

        let mut start = 0;
        for len in &batch.doc_lens {
            let ids = &batch.ids[start..start + len];
            let decoded = logits(snapshot.as_ref(), ids, &vec![1; *len]);
            let vocab = decoded.len() / len;
            for split in [1, 3, len - 1] {
                let rest = logits(snapshot.as_ref(), ids, &[split, len - split]);
                assert_eq!(rest[..vocab], decoded[(split - 1) * vocab..split * vocab], "{name} split {split}");
                assert_eq!(rest[vocab..], decoded[(len - 1) * vocab..], "{name} split {split}");
            }
            for t in 1..*len {
                let row = &decoded[(t - 1) * vocab..t * vocab];
                let got = snapshot.logprob(row, ids[t], batch.temperatures[start + t]);
                assert_eq!(got.to_bits(), packed.logprobs[start + t].to_bits(), "{name} token {t}");
            }
            start += len;
        }
    }
}

#[test]
fn sequences_of_a_batch_do_not_see_each_other_and_forks_share_a_prefix() {
    for kernels in BOTH {
        let decoder = load("qwen3");
        let snapshot = decoder.snapshot(kernels).unwrap();
        let mut prompt = snapshot.new_cache(&Meter::default());
        assert!(prompt.is_empty());
        let silent = snapshot
            .extend(&mut [Extend { cache: &mut prompt, ids: &[5, 6, 7], want: Want::Nothing, adapter: None }])
            .unwrap();
        assert!(silent.is_empty());
        let (mut a, mut b, mut c) = (prompt.clone(), prompt.clone(), snapshot.new_cache(&Meter::default()));
        let together = snapshot
            .extend(&mut [
                Extend { cache: &mut a, ids: &[8], want: Want::Logits, adapter: None },
                Extend { cache: &mut c, ids: &[5, 6, 7, 9], want: Want::Nothing, adapter: None },
                Extend { cache: &mut b, ids: &[9, 10], want: Want::Logits, adapter: None },
            ])
            .map(rows)
            .unwrap();
        assert_eq!((prompt.len(), a.len(), b.len(), c.len()), (3, 4, 5, 4));
        let vocab = snapshot.config().vocab_size;
        let one = logits(snapshot.as_ref(), &[5, 6, 7, 8], &[4]);
        let two = logits(snapshot.as_ref(), &[5, 6, 7, 9, 10], &[5]);
        let tolerance = if kernels == Kernels::Fast { 0.0 } else { 1e-5 };
        assert!(max_difference(&together[..vocab], &one) <= tolerance);
        assert!(max_difference(&together[vocab..], &two) <= tolerance);
    }
}

#[test]
fn an_update_leaves_earlier_snapshots_alone_and_gradients_at_zero() {
    for kernels in BOTH {
        let expected = Expected::load("llama");
        let mut learner = Learner::new(load("llama"), kernels, 16).unwrap();
        let before = learner.snapshot().unwrap();
        let ids = [3, 4, 5];
        let old = logits(before.as_ref(), &ids, &[3]);
        learner.forward(&expected.batch()).unwrap();
        learner.backward(&expected.floats("weights"), None).unwrap();
        let norm = host(&mut learner).grad_norm().unwrap();
        host(&mut learner).scale_grads(0.5);
        assert!((host(&mut learner).grad_norm().unwrap() - norm / 2.0).abs() < 1e-4 * norm && norm > 0.0);
        assert!(host(&mut learner).zero_grad_ratio().unwrap() < 1.0);
        let mut adam = AdamWConfig::new().init();
        host(&mut learner).update(|decoder, grads| adam.step(0.1, decoder, grads));
        assert_eq!(host(&mut learner).grad_norm().unwrap(), 0.0);
        assert_eq!(logits(before.as_ref(), &ids, &[3]), old);
        let new = logits(learner.snapshot().unwrap().as_ref(), &ids, &[3]);
        assert!(max_difference(&new, &old) > 1e-3);
        // The next step works on what the optimiser gave back.
        learner.forward(&expected.batch()).unwrap();
        learner.backward(&expected.floats("weights"), None).unwrap();
    }
}

#[test]
fn gradients_add_up_over_passes() {
    for kernels in BOTH {
        let expected = Expected::load("qwen2");
        let mut learner = Learner::new(load("qwen2"), kernels, 16).unwrap();
        for _ in 0..2 {
            learner.forward(&expected.batch()).unwrap();
            learner.backward(&expected.floats("weights"), None).unwrap();
        }
        let twice = host(&mut learner).grad_norm().unwrap();
        learner.zero_grads().unwrap();
        assert_eq!(host(&mut learner).grad_norm().unwrap(), 0.0);
        learner.forward(&expected.batch()).unwrap();
        learner.backward(&expected.floats("weights"), None).unwrap();
        assert!((twice / host(&mut learner).grad_norm().unwrap() - 2.0).abs() < 1e-5);
    }
}

#[test]
fn misuse_is_an_error_not_a_panic() {
    for kernels in BOTH {
        let decoder = load("llama");
        let snapshot = decoder.snapshot(kernels).unwrap();
        let other = if kernels == Kernels::Fast { Kernels::Reference } else { Kernels::Fast };
        let mut foreign: Cache = decoder.snapshot(other).unwrap().new_cache(&Meter::default());
        let mut cache = snapshot.new_cache(&Meter::default());
        let extend = |cache: &mut Cache, ids: &[u32]| {
            snapshot.extend(&mut [Extend { cache, ids, want: Want::Logits, adapter: None }]).unwrap_err().to_string()
        };
        assert!(extend(&mut foreign, &[1]).contains("cache of another implementation"));
        assert!(extend(&mut cache, &[]).contains("without new tokens"));
        assert!(extend(&mut cache, &[300]).contains("300 is outside the model's vocabulary of 300"));
        assert!(snapshot.extend(&mut []).unwrap().is_empty());

        let mut learner = Learner::new(decoder, kernels, 8).unwrap();
        let batch = |ids: &[u32], doc_lens: &[usize], t: &[f32]| Packed {
            ids: ids.to_vec(),
            doc_lens: doc_lens.to_vec(),
            temperatures: t.to_vec(),
        };
        for (bad, text) in [
            (batch(&[], &[], &[]), "no tokens"),
            (batch(&[1, 2], &[1], &[1.0, 1.0]), "do not cover"),
            (batch(&[1, 2], &[2, 0], &[1.0, 1.0]), "do not cover"),
            (batch(&[1, 2], &[2], &[1.0]), "1 temperatures for 2"),
            (batch(&[1, 2], &[2], &[1.0, f32::NAN]), "temperature NaN"),
            (batch(&[1, 999], &[2], &[1.0, 1.0]), "999 is outside"),
        ] {
            let error = learner.forward(&bad).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(learner.backward(&[0.0], None).unwrap_err().to_string().contains("forward pass"));
        learner.forward(&batch(&[1, 2], &[2], &[1.0, 0.0])).unwrap();
        let error = learner.backward(&[0.0], None).unwrap_err().to_string();
        assert!(error.contains("`dlogprob` has 1 entries for 2 tokens"), "{error}");
    }
}

#[test]
fn first_tokens_count_as_uniform_and_zero_temperature_as_one() {
    let mut learner = Learner::new(load("qwen3"), Kernels::Fast, 8).unwrap();
    let batch = |t: f32| Packed { ids: vec![4, 5, 6], doc_lens: vec![1, 2], temperatures: vec![t; 3] };
    let stats = learner.forward(&batch(1.0)).unwrap();
    let uniform = 300f32.ln();
    assert_eq!((stats.logprobs[0], stats.logprobs[1], stats.entropy[1]), (-uniform, -uniform, uniform));
    assert_eq!(learner.forward(&batch(0.0)).unwrap(), stats);
}
