//! Every rule against its formula in f64; what a model that steps itself is asked.

use super::*;
use prl_config::{ConstantScheduler, Scheduler};
use prl_model::{Decoder, ModelConfig};
use prl_model::{FusedAdamW, Moments};
use proptest::prelude::*;

const LR: f64 = 0.05;
const STEPS: usize = 4;

fn try_rule(optim: &Optim) -> Result<Optimizer, TrainerError> {
    Ok(build(optim, &Scheduler::Constant(ConstantScheduler {}), None)?.0)
}

fn rule(optim: &Optim) -> Optimizer {
    try_rule(optim).unwrap()
}

/// Numbers between -1 and 1 that look random; `seed` and place decide.
fn noise(seed: usize, len: usize) -> Vec<f64> {
    let one = |i: usize| {
        let x = ((seed * 7919 + i * 104_729 + 12_345) as f64 * 0.618_033_988_749_895).fract();
        f64::from(((x * 54_321.987).fract() * 2.0 - 1.0) as f32)
    };
    (0..len).map(one).collect()
}

/// The gradient of a step; some entries are 0.
fn grad(step: usize, len: usize) -> Vec<f64> {
    noise(step + 1, len).into_iter().enumerate().map(|(i, g)| if i % 5 == 4 { 0.0 } else { g }).collect()
}

fn f32s(values: &[f64]) -> Vec<f32> {
    values.iter().map(|x| *x as f32).collect()
}

/// The weights after some steps of `rule` on one parameter.
fn trained<const D: usize>(rule: &Rule, shape: [usize; D]) -> Vec<f32> {
    let device = prl_model::Device::Cpu.open().unwrap();
    let len = shape.iter().product();
    let tensor = |values: &[f64]| Tensor::<D>::from_data(burn::tensor::TensorData::new(f32s(values), shape), &device);
    let (mut value, mut state) = (tensor(&noise(0, len)), None);
    for step in 0..STEPS {
        (value, state) = rule.step(LR, value, tensor(&grad(step, len)), state).unwrap();
    }
    value.try_into_vec_as::<f32>().unwrap()
}

/// Holds the rule against a formula: weights, gradient, step (from 1) and two lists of 0 to remember in.
fn holds<const D: usize>(
    rule: &Rule,
    shape: [usize; D],
    mut formula: impl FnMut(&mut [f64], &[f64], usize, &mut [Vec<f64>; 2]),
) {
    let len = shape.iter().product();
    let (mut want, mut kept) = (noise(0, len), [vec![0.0; len], vec![0.0; len]]);
    for step in 0..STEPS {
        formula(&mut want, &grad(step, len), step + 1, &mut kept);
    }
    for (got, want) in trained(rule, shape).into_iter().zip(want) {
        assert!((f64::from(got) - want).abs() < 2e-5 * want.abs().max(0.1), "{shape:?}: {got} is not {want}");
    }
}

fn adamw([decay, b1, b2]: [f64; 3]) -> impl FnMut(&mut [f64], &[f64], usize, &mut [Vec<f64>; 2]) {
    move |p, d, t, [m, v]| {
        for i in 0..p.len() {
            p[i] *= 1.0 - LR * decay;
            m[i] = b1 * m[i] + (1.0 - b1) * d[i];
            v[i] = b2 * v[i] + (1.0 - b2) * d[i] * d[i];
            let root = (v[i] / (1.0 - b2.powi(t as i32))).sqrt();
            p[i] -= LR * (m[i] / (1.0 - b1.powi(t as i32))) / (root + 1e-8);
        }
    }
}

#[test]
fn adamw_is_that_of_torch() {
    let c = prl_config::AdamW { weight_decay: 0.1, betas1: 0.8, betas2: 0.95, ..Default::default() };
    let optimizer = rule(&Optim::AdamW(c));
    holds(&optimizer.others, [5], adamw([0.1, 0.8, 0.95]));
    holds(&optimizer.matrices, [3, 4], adamw([0.1, 0.8, 0.95]));
}

#[test]
fn sgd_is_that_of_torch() {
    for (momentum, nesterov, decay) in [(0.9, true, 0.1), (0.7, false, 0.0), (0.0, false, 0.3)] {
        let c = prl_config::Sgd { momentum, nesterov, weight_decay: decay, ..Default::default() };
        let optimizer = rule(&Optim::Sgd(c));
        let formula = |p: &mut [f64], d: &[f64], t: usize, [b, _]: &mut [Vec<f64>; 2]| {
            for i in 0..p.len() {
                let g = d[i] + decay * p[i];
                b[i] = if t == 1 { g } else { momentum * b[i] + g };
                p[i] -= LR * if nesterov { g + momentum * b[i] } else { b[i] };
            }
        };
        holds(&optimizer.others, [7], formula);
        holds(&optimizer.matrices, [2, 6], formula);
    }
}

#[test]
fn signs_of_zeros_move_nothing() {
    for decay in [0.0, 0.2] {
        let optimizer = rule(&Optim::SignSgd(prl_config::SignSgd { weight_decay: decay, ..Default::default() }));
        assert_eq!(optimizer.max_norm, None);
        let formula = |p: &mut [f64], d: &[f64], _: usize, _: &mut [Vec<f64>; 2]| {
            for i in 0..p.len() {
                let sign = if d[i] == 0.0 { 0.0 } else { d[i].signum() };
                p[i] -= LR * (sign + decay * p[i]);
            }
        };
        holds(&optimizer.others, [9], formula);
        holds(&optimizer.matrices, [4, 3], formula);
    }
}

/// `[n, k] · [k, m]`, row-major.
fn product(a: &[f64], b: &[f64], [n, k, m]: [usize; 3]) -> Vec<f64> {
    let one = |i: usize| (0..k).map(|j| a[i / m * k + j] * b[j * m + i % m]).sum();
    (0..n * m).map(one).collect()
}

fn transposed(a: &[f64], [n, m]: [usize; 2]) -> Vec<f64> {
    (0..n * m).map(|i| a[i % n * m + i / n]).collect()
}

/// The five quintics of Dion's Muon, as they act on a singular value.
fn lifted(x: f64) -> f64 {
    let steps = [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ];
    steps.into_iter().fold(x, |x, (a, b, c)| a * x + b * x.powi(3) + c * x.powi(5))
}

/// Eigenvalues and eigenvectors (in columns) of a symmetric matrix, by Jacobi's rotations.
fn eigen(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut v: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    for (p, q) in (0..40).flat_map(|_| (0..n).flat_map(|p| (p + 1..n).map(move |q| (p, q)))) {
        if a[p * n + q].abs() < 1e-300 {
            continue;
        }
        let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * a[p * n + q]);
        let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
        let t = if theta == 0.0 { 1.0 } else { t };
        let c = 1.0 / (t * t + 1.0).sqrt();
        let s = t * c;
        for k in 0..n {
            let (x, y) = (a[k * n + p], a[k * n + q]);
            (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
            let (x, y) = (v[k * n + p], v[k * n + q]);
            (v[k * n + p], v[k * n + q]) = (c * x - s * y, s * x + c * y);
        }
        for k in 0..n {
            let (x, y) = (a[p * n + k], a[q * n + k]);
            (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
        }
    }
    ((0..n).map(|i| a[i * n + i]).collect(), v)
}

/// What the orthogonalisation should give, by way of singular values: with A·Aᵀ = V·S²·Vᵀ it is V·(f(S/|A|)/S)·Vᵀ·A.
fn orthogonal_of(a: &[f64], [n, m]: [usize; 2]) -> Vec<f64> {
    if n > m {
        return transposed(&orthogonal_of(&transposed(a, [n, m]), [m, n]), [m, n]);
    }
    let norm = a.iter().map(|x| x * x).sum::<f64>().sqrt();
    let (squares, v) = eigen(product(a, &transposed(a, [n, m]), [n, m, n]), n);
    let gains: Vec<f64> = squares.iter().map(|s2| s2.max(1e-24).sqrt()).map(|s| lifted(s / norm) / s).collect();
    let scaled: Vec<f64> = (0..n * n).map(|i| v[i] * gains[i % n]).collect();
    product(&product(&scaled, &transposed(&v, [n, n]), [n, n, n]), a, [n, n, m])
}

#[test]
fn muon_steps_along_the_singular_vectors_of_its_momentum() {
    let c = prl_config::Muon { mu: 0.9, weight_decay: 0.1, ..Default::default() };
    let optimizer = rule(&Optim::Muon(c));
    for shape in [[4, 4], [3, 7], [8, 3], [1, 5], [5, 1]] {
        let scale = 0.2 * (shape[0].max(shape[1]) as f64).sqrt();
        holds(&optimizer.matrices, shape, |p, d, _, [b, _]| {
            for i in 0..p.len() {
                b[i] = 0.9 * b[i] + d[i];
            }
            for (p, u) in p.iter_mut().zip(orthogonal_of(b, shape)) {
                *p -= LR * 0.1 * *p + LR * scale * u;
            }
        });
    }
    // Everything else has AdamW with Muon's betas.
    holds(&optimizer.others, [6], adamw([0.1, 0.9, 0.95]));
}

#[test]
fn only_matrices_of_layers_are_muons() {
    let optimizer = rule(&Optim::Muon(prl_config::Muon::default()));
    let slots =
        |name: &str, kind| optimizer.rule(&ParameterInfo { name: name.into(), shape: vec![2, 2], kind }).slots();
    assert_eq!(slots("model.layers.3.mlp.up_proj.weight", Kind::Matrix), ["momentum_buffer"]);
    for (name, kind) in [
        ("model.embed_tokens.weight", Kind::Matrix),
        ("lm_head.weight", Kind::Matrix),
        ("model.layers.0.input_layernorm.weight", Kind::Norm),
        ("model.layers.0.self_attn.q_proj.bias", Kind::Bias),
    ] {
        assert_eq!(slots(name, kind), ["exp_avg", "exp_avg_sq"], "{name}");
    }
}

#[test]
fn zeros_stay_zeros() {
    assert_eq!(muon::orthogonal(3, 2, &[0.0; 6]), [0.0; 6]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    /// Whatever the shape and the scale: singular values above a hundredth of the norm end within 4 % of 1, others below
    /// 1.15.
    #[test]
    fn singular_values_come_near_one(rows in 1usize..24, columns in 1usize..24, seed in 0usize..1000, scale in -12i32..12) {
        let a: Vec<f64> = noise(seed, rows * columns).iter().map(|x| x * 10f64.powi(scale)).collect();
        let of = |a: &[f64]| {
            let (squares, _) = eigen(product(a, &transposed(a, [rows, columns]), [rows, columns, rows]), rows);
            let mut s: Vec<f64> = squares.iter().map(|x| x.max(0.0).sqrt()).collect();
            s.sort_by(|x, y| y.total_cmp(x));
            s.truncate(columns);
            s
        };
        let norm = a.iter().map(|x| x * x).sum::<f64>().sqrt();
        let u: Vec<f64> = muon::orthogonal(rows, columns, &f32s(&a)).into_iter().map(f64::from).collect();
        // The largest become the largest, but for the ripple around 1.
        let large = of(&a).iter().filter(|s| **s / (norm + 1e-8) > 0.01).count();
        for (i, s) in of(&u).into_iter().enumerate() {
            prop_assert!(s < 1.15, "{s}");
            if norm > 1e-4 && i < large {
                prop_assert!((0.96..1.16).contains(&s), "{s}");
            }
        }
    }
}

/// A step over a whole model is burn's AdamW of every parameter, bit for bit.
#[test]
fn adamw_of_a_model_is_burns() {
    let text = r#"{"model_type": "qwen3", "vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24,
        "tie_word_embeddings": true}"#;
    let config = ModelConfig::parse(text, Path::new("config.json")).unwrap();
    let device = prl_model::Device::Cpu.open().unwrap();
    let decoder = Decoder::init(config, 3, &device);
    let values = |decoder: &Decoder| decoder.parameters().iter().map(|p| p.to_vec().unwrap()).collect::<Vec<_>>();
    let mut want = values(&decoder);
    let mut learner = Learner::new(decoder, prl_model::Kernels::Fast, 8).unwrap();
    let c = prl_config::AdamW { max_norm: None, ..Default::default() };
    let mut optimizer = rule(&Optim::AdamW(c));
    let theirs = burn::optim::AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01).build();
    let mut states: Vec<Option<burn::optim::AdamWState<1>>> = want.iter().map(|_| None).collect();
    for step in 0..3u32 {
        let ids: Vec<u32> = (0..12).map(|t| (t * 5 + step * 3 + t * t) % 19).collect();
        let packed = prl_model::Packed { ids, doc_lens: vec![12], temperatures: vec![1.0; 12] };
        learner.forward(&packed).unwrap();
        learner.backward(&[-0.1; 12], None).unwrap();
        let grads = learner.gradients().unwrap();
        for ((value, grad), state) in want.iter_mut().zip(grads).zip(&mut states) {
            let tensor = |x: Vec<f32>| Tensor::<1>::from_floats(x.as_slice(), &device);
            let own = value.clone();
            let (new, next) = burn::optim::Optimizer::step(&theirs, LR, tensor(own), tensor(grad), state.take());
            (*value, *state) = (new.try_into_vec_as().unwrap(), next);
        }
        assert!(optimizer.apply(&mut learner, LR).unwrap().applied);
        let got = values(&learner.weights().unwrap().decoder);
        let bits = |v: &[Vec<f32>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&got) == bits(&want), "step {step}");
    }
}

/// A model that takes its own steps: notes what it is asked, and fails when told to.
#[derive(Default)]
struct Fused {
    asked: Vec<AdamWNumbers>,
    moments: Option<Moments>,
    fails: bool,
}

impl FusedAdamW for Fused {
    fn step(&mut self, numbers: &AdamWNumbers) -> Result<FusedStep, ModelError> {
        self.asked.push(*numbers);
        if self.fails {
            return Err(ModelError::Execution("out of order".into()));
        }
        Ok(FusedStep { grad_norm: f64::INFINITY, zero_grad_ratio: 0.5, applied: false })
    }

    fn moments(&self) -> Result<Option<Moments>, ModelError> {
        Ok(self.moments.clone())
    }

    fn set_moments(&mut self, moments: Option<Moments>) -> Result<(), ModelError> {
        self.moments = moments;
        Ok(())
    }
}

#[test]
fn a_model_that_steps_itself_gets_the_rule_and_keeps_its_moments() {
    let c = prl_config::AdamW { max_norm: Some(0.0), betas1: 0.8, ..Default::default() };
    let mut optimizer = rule(&Optim::AdamW(c));
    let mut fused = Fused::default();
    let step = optimizer.step(Stepper::Fused(&mut fused), 0.5).unwrap();
    assert!(!step.applied && step.zero_grad_ratio == 0.5);
    let want = AdamWNumbers { lr: 0.5, betas: [0.8, 0.999], eps: 1e-8, weight_decay: 0.01, max_norm: Some(0.0) };
    assert_eq!(fused.asked, [want]);
    fused.fails = true;
    assert!(optimizer.step(Stepper::Fused(&mut fused), 0.5).is_err());

    let info = |name: &str, shape: &[usize], kind| ParameterInfo { name: name.into(), shape: shape.to_vec(), kind };
    let layout = |norm: usize| {
        let infos = [info("w", &[2, 2], Kind::Matrix), info("n", &[norm], Kind::Norm)];
        let parameters = infos.map(|info| (info, optimizer.others.slots())).into();
        Layout { rule: "adamw", parameters, optional: false }
    };
    let (own, other) = (layout(2), layout(3));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE);
    for updates in [0, 7] {
        let values = |x: f32| vec![vec![x; 4], vec![2.0 * x; 2]];
        let full = Moments { updates, first: values(0.5), second: values(0.25) };
        fused.moments = (updates > 0).then_some(full);
        let memory = optimizer.memory(Stepper::Fused(&mut fused)).unwrap();
        SavedOptimizer { layout: own.clone(), memory: memory.clone() }.write(dir.path()).unwrap();
        let read = memory::read(&path, &own).unwrap();
        assert_eq!(read, memory);
        let kept = fused.moments.take();
        optimizer.remember(Stepper::Fused(&mut fused), read).unwrap();
        assert_eq!(fused.moments, kept);
    }
    assert!(memory::read(&path, &other).unwrap_err().to_string().contains("`n.exp_avg`"));
}

#[test]
fn a_model_that_steps_itself_knows_no_other_rule() {
    for optim in [
        Optim::Sgd(prl_config::Sgd::default()),
        Optim::Muon(prl_config::Muon::default()),
        Optim::SignSgd(prl_config::SignSgd::default()),
    ] {
        let mut fused = Fused::default();
        let error = rule(&optim).step(Stepper::Fused(&mut fused), 0.5).unwrap_err().to_string();
        assert_eq!(error, format!("`optim.type` = \"{}\" is for the CPU; a GPU has \"adamw\" alone", optim.tag()));
        assert!(fused.asked.is_empty());
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let told = |optim: Optim| try_rule(&optim).err().unwrap().to_string();
    let betas2 = 1.0 - 1e-9;
    let adamw = Optim::AdamW(prl_config::AdamW { betas2, ..Default::default() });
    let muon = Optim::Muon(prl_config::Muon { betas2, ..Default::default() });
    for optim in [adamw, muon] {
        assert_eq!(told(optim), "`optim.betas2` = 0.999999999 must be at least 0 and below 1");
    }
    let plain = Optim::Sgd(prl_config::Sgd { momentum: 0.0, ..Default::default() });
    assert_eq!(told(plain), "`optim.nesterov` = true needs `optim.momentum` above 0");
}
