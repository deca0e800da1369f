//! Values and gradients against a naive double-precision decoder, for all families.

mod common;

use common::{Family, Model, Naive, Rng, dims};
use prl_kernels::{Dims, Grads, backward, forward, head_backward, head_stats};

struct Case {
    ids: Vec<u32>,
    doc_lens: Vec<usize>,
    labels: Vec<u32>,
    inv_temp: Vec<f32>,
    dlogprob: Vec<f32>,
    dentropy: Vec<f32>,
}

impl Case {
    fn new(dims: &Dims, doc_lens: &[usize], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let n = doc_lens.iter().sum();
        let mut dlogprob = rng.fill(n, 1.0);
        let mut dentropy = rng.fill(n, 0.5);
        if n > 2 {
            (dlogprob[1], dentropy[1]) = (0.0, 0.0);
        }
        Self {
            ids: rng.ids(n, dims.vocab),
            doc_lens: doc_lens.to_vec(),
            labels: rng.ids(n, dims.vocab),
            inv_temp: (0..n).map(|_| 1.0 + 0.4 * rng.unit()).collect(),
            dlogprob,
            dentropy,
        }
    }

    fn gradient(&self, model: &Model, chunk: usize) -> (Vec<(f64, f64)>, Grads) {
        let w = model.view();
        let mut grads = Grads::zeros(&model.dims);
        let acts = forward(&w, &self.ids, &self.doc_lens);
        let hidden = acts.hidden().to_vec();
        let stats = head_stats(&w, &hidden, &self.labels, &self.inv_temp, chunk);
        let d = head_backward(
            &w,
            &hidden,
            &self.labels,
            &self.inv_temp,
            &stats,
            &self.dlogprob,
            Some(&self.dentropy),
            chunk,
            &mut grads,
        );
        backward(&w, acts, &d, &mut grads);
        let values = stats.logprob.iter().zip(&stats.entropy).map(|(a, b)| (f64::from(*a), f64::from(*b))).collect();
        (values, grads)
    }

    fn naive(&self, model: &Model, params: &[(String, Vec<f64>)]) -> Vec<(f64, f64)> {
        let naive = Naive { dims: &model.dims, rope: &model.rope, params };
        naive.stats(&self.ids, &self.doc_lens, &self.labels, &self.inv_temp)
    }

    fn objective(&self, model: &Model, params: &[(String, Vec<f64>)]) -> f64 {
        let values = self.naive(model, params);
        values
            .iter()
            .enumerate()
            .map(|(t, (l, e))| f64::from(self.dlogprob[t]) * l + f64::from(self.dentropy[t]) * e)
            .sum()
    }

    /// Central difference of the naive objective along `direction` of parameter `i`.
    fn derivative(&self, model: &Model, params: &mut [(String, Vec<f64>)], i: usize, direction: &[f64]) -> f64 {
        let step = 1e-5;
        let mut side = |sign: f64| {
            params[i].1.iter_mut().zip(direction).for_each(|(p, d)| *p += sign * step * d);
            let value = self.objective(model, params);
            params[i].1.iter_mut().zip(direction).for_each(|(p, d)| *p -= sign * step * d);
            value
        };
        (side(1.0) - side(-1.0)) / (2.0 * step)
    }
}

fn assert_values(got: &[(f64, f64)], want: &[(f64, f64)]) {
    for (t, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g.0 - w.0).abs() < 2e-5 * (1.0 + w.0.abs()), "logprob of token {t}: {} instead of {}", g.0, w.0);
        assert!((g.1 - w.1).abs() < 2e-5 * (1.0 + w.1.abs()), "entropy of token {t}: {} instead of {}", g.1, w.1);
    }
}

/// Every element of every gradient.
fn check_all(dims: Dims, doc_lens: &[usize], seed: u64) {
    let mut model = Model::random(dims, seed);
    let case = Case::new(&model.dims, doc_lens, seed + 1);
    let (values, mut grads) = case.gradient(&model, 5);
    let mut params = model.doubles();
    assert_values(&values, &case.naive(&model, &params));
    let got: Vec<(String, Vec<f32>)> = grads.iter_mut().map(|(n, g)| (n, g.clone())).collect();
    for (i, (name, got)) in got.iter().enumerate() {
        let mut direction = vec![0.0; got.len()];
        let want: Vec<f64> = (0..got.len())
            .map(|j| {
                direction[j] = 1.0;
                let d = case.derivative(&model, &mut params, i, &direction);
                direction[j] = 0.0;
                d
            })
            .collect();
        let size = want.iter().map(|x| x * x).sum::<f64>().sqrt();
        let off = want.iter().zip(got).map(|(w, g)| (w - f64::from(*g)).powi(2)).sum::<f64>().sqrt();
        assert!(off <= 1e-4 * size + 1e-7, "{name}: off by {off:e} of {size:e}");
        let largest = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (j, (w, g)) in want.iter().zip(got).enumerate() {
            assert!((w - f64::from(*g)).abs() <= 1e-4 * largest + 1e-7, "{name}[{j}]: {g} instead of {w}");
        }
    }
}

/// Random directions through every gradient, and single elements at its ends, for sizes that cross all block borders.
fn check_directions(dims: Dims, doc_lens: &[usize], seed: u64) {
    let mut model = Model::random(dims, seed);
    let case = Case::new(&model.dims, doc_lens, seed + 1);
    let (values, mut grads) = case.gradient(&model, 50);
    let mut params = model.doubles();
    assert_values(&values, &case.naive(&model, &params));
    let mut rng = Rng(seed + 2);
    let got: Vec<(String, Vec<f32>)> = grads.iter_mut().map(|(n, g)| (n, g.clone())).collect();
    for (i, (name, got)) in got.iter().enumerate() {
        let size = got.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let direction: Vec<f64> = got.iter().map(|g| f64::from(*g) / size + 0.1 * f64::from(rng.unit())).collect();
        let want = case.derivative(&model, &mut params, i, &direction);
        let have: f64 = direction.iter().zip(got).map(|(d, g)| d * f64::from(*g)).sum();
        assert!((want - have).abs() <= 1e-4 * size, "{name}: {have} instead of {want}");
        let mut one = vec![0.0; got.len()];
        let j = rng.below(got.len());
        one[j] = 1.0;
        let want = case.derivative(&model, &mut params, i, &one);
        assert!((want - f64::from(got[j])).abs() <= 1e-4 * size, "{name}[{j}]: {} instead of {want}", got[j]);
    }
}

#[test]
fn qwen3_all_elements() {
    check_all(dims(Family::Qwen3, 2, 12, 4, 2, 6, 10, 13, true), &[4, 1, 5], 1);
}

#[test]
fn qwen2_all_elements() {
    check_all(dims(Family::Qwen2, 2, 10, 3, 1, 4, 14, 11, false), &[1, 6, 1, 2], 2);
}

#[test]
fn llama_all_elements() {
    check_all(dims(Family::Llama, 1, 9, 2, 2, 8, 7, 17, true), &[3, 7], 3);
}

#[test]
fn no_layers() {
    check_all(dims(Family::Llama, 0, 6, 1, 1, 2, 3, 5, false), &[2, 3], 4);
}

#[test]
fn qwen3_across_blocks() {
    check_directions(dims(Family::Qwen3, 2, 72, 4, 2, 20, 83, 130, false), &[70, 1, 35, 64], 5);
}

#[test]
fn qwen2_across_blocks() {
    check_directions(dims(Family::Qwen2, 1, 64, 2, 1, 32, 96, 70, true), &[129, 3], 6);
}
