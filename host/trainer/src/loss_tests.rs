//! The loss against numbers worked out by hand, against its own finite differences, and against its own parts.

use super::*;
use prl_config::{DefaultLoss, IpoLoss};
use prl_types::{FinishReason, PolicyVersion, Sample, Sampled, Streams};
use proptest::prelude::*;

/// One prompt token, then sampled tokens with these sampling log-probabilities.
fn item(mu: &[f32], streams: Streams) -> BatchItem {
    let mut sample = Sample::from_prompt(&[1], vec![], 1.0);
    let version = (PolicyVersion(0), PolicyVersion(0));
    sample.push_sampled(&Sampled::from_engine(vec![2; mu.len()], mu.to_vec(), version, FinishReason::Length).unwrap());
    BatchItem::new("env".into(), sample, streams).unwrap()
}

/// Prepends the entry of the prompt token.
fn stream(values: &[f32]) -> Option<Vec<f32>> {
    Some([&[0.0], values].concat())
}

fn advantages(values: &[f32]) -> Streams {
    Streams { advantages: stream(values), ..Default::default() }
}

fn run(loss: &Loss, item: &BatchItem, lp: &[f32]) -> SampleLoss {
    sample_loss(loss, &Counts::of(&Tokens::of(0, item)), &Tokens::of(0, item), &stream(lp).unwrap()).unwrap()
}

fn ln(p: f64) -> f32 {
    p.ln() as f32
}

fn default_loss() -> Loss {
    Loss::Default(DefaultLoss::default())
}

fn ipo_loss() -> Loss {
    Loss::Ipo(IpoLoss::default())
}

fn metric(out: &SampleLoss, name: &str) -> f64 {
    out.metrics.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} in {:?}", out.metrics)).1
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-6 * want.abs().max(1.0), "{got} is not {want}");
}

#[test]
fn default_component_by_hand() {
    // p: 0.5 → 0.6 (Δ 0.1, kept), 0.5 → 0.8 (Δ 0.3, A > 0: masked), 0.8 → 0.5 (Δ −0.3, A < 0: masked),
    //    0.8 → 0.5 (Δ −0.3 but A > 0: kept)
    let it = item(&[ln(0.5), ln(0.5), ln(0.8), ln(0.8)], advantages(&[2.0, 1.0, -1.0, 0.5]));
    let out = run(&default_loss(), &it, &[ln(0.6), ln(0.8), ln(0.5), ln(0.5)]);
    let rho: Vec<f64> = [0.6 / 0.5, 0.8 / 0.5, 0.5 / 0.8, 0.5 / 0.8].map(f64::ln).to_vec();
    let kl = rho.iter().map(|r| 1e-3 * r * r).sum::<f64>();
    near(out.loss, (-2.0 * 1.2 - 0.5 * 0.625 + kl) / 4.0);
    let want = [0.0, -2.0 * 1.2 + 2e-3 * rho[0], 2e-3 * rho[1], 2e-3 * rho[2], -0.5 * 0.625 + 2e-3 * rho[3]];
    for (got, want) in out.dlogprob.iter().zip(want) {
        near(f64::from(*got), want / 4.0);
    }
    let k: Vec<f64> = rho.iter().map(|r| r.exp() - r - 1.0).collect();
    near(metric(&out, "is_masked"), 0.5);
    near(metric(&out, "is_masked_low"), 0.25);
    near(metric(&out, "is_masked_high"), 0.25);
    near(metric(&out, "masked_advantage_positive"), 0.5);
    near(metric(&out, "masked_advantage_negative"), 0.5);
    near(metric(&out, "masked_mismatch_kl"), (k[1] + k[2]) / 2.0);
    near(metric(&out, "unmasked_mismatch_kl"), (k[0] + k[3]) / 2.0);
    assert_eq!(out.token_losses.len(), 4);
}

#[test]
fn zero_advantage_uses_the_low_test() {
    let out = run(&default_loss(), &item(&[ln(0.8), ln(0.2)], advantages(&[0.0, 0.0])), &[ln(0.5), ln(0.9)]);
    near(metric(&out, "is_masked_low"), 0.5);
    near(metric(&out, "is_masked_high"), 0.0);
}

#[test]
fn ipo_component_by_hand() {
    // Δ 0.05 kept, Δ 0.2 and Δ −0.2 masked whatever the advantage's sign.
    let it = item(&[ln(0.5), ln(0.5), ln(0.5)], advantages(&[1.0, -1.0, 1.0]));
    let out = run(&ipo_loss(), &it, &[ln(0.55), ln(0.7), ln(0.3)]);
    let kl: f64 = [1.1f64, 1.4, 0.6].iter().map(|r| 1e-3 * r.ln().powi(2)).sum();
    near(out.loss, (-1.1 + kl) / 3.0);
    near(metric(&out, "is_masked"), 2.0 / 3.0);
    near(metric(&out, "is_masked_low"), 1.0 / 3.0);
    near(metric(&out, "is_masked_high"), 1.0 / 3.0);
}

#[test]
fn ce_and_ref_kl_components_by_hand() {
    let streams = Streams {
        rl_weights: stream(&[0.0, 0.0, 0.0]),
        ce_weights: stream(&[0.5, 0.0, 0.0]),
        ref_kl_weights: stream(&[0.0, 1.0, 2.0]),
        ref_logprobs: stream(&[0.0, ln(0.9), ln(0.9)]),
        ..Default::default()
    };
    // Third token: 0.8 → 0.5, masked by the fixed threshold.
    let out = run(&default_loss(), &item(&[ln(0.5), ln(0.5), ln(0.8)], streams), &[ln(0.25), ln(0.6), ln(0.5)]);
    let (k, rho) = ((0.9f64 / 0.6).ln(), [(0.6f64 / 0.5).ln(), (0.5f64 / 0.8).ln()]);
    let ref_kl = (-k * 1.2 + 1e-3 * rho[0].powi(2) + 2.0 * 1e-3 * rho[1].powi(2)) / 2.0;
    near(out.loss, 0.5 * 4.0f64.ln() + ref_kl);
    near(f64::from(out.dlogprob[1]), -0.5);
    // The pull k is a constant in the gradient.
    near(f64::from(out.dlogprob[2]), (-k * 1.2 + 2e-3 * rho[0]) / 2.0);
    near(f64::from(out.dlogprob[3]), 2.0 * 2e-3 * rho[1] / 2.0);
    near(metric(&out, "nll"), 4.0f64.ln());
    near(metric(&out, "ref_kl"), (k + (0.9f64 / 0.5).ln()) / 2.0);
    near(metric(&out, "ref_kl/is_masked"), 0.5);
    assert_eq!(out.mismatch_kl.len(), 2);
    assert!(out.metrics.iter().all(|(name, _)| *name != "is_masked"));
}

#[test]
fn the_same_policy_has_no_mismatch_at_all() {
    let mu = [-0.3, -2.7, -11.0];
    let out = run(&default_loss(), &item(&mu, advantages(&[1.0, -0.5, 0.0])), &mu);
    assert_eq!(out.mismatch_kl, [0.0; 3]);
    assert_eq!(out.dlogprob, [0.0, -1.0 / 3.0, 0.5 / 3.0, 0.0]);
}

#[test]
fn denominators_are_those_of_the_step() {
    let it = item(&[-1.0, -1.0], advantages(&[1.0, 1.0]));
    let lp = stream(&[-1.0, -1.0]).unwrap();
    let step = Counts { rl: 8, ce: 3, ref_kl: 1 };
    let out = sample_loss(&default_loss(), &step, &Tokens::of(0, &it), &lp).unwrap();
    near(out.loss, -2.0 / 8.0);
    near(f64::from(out.dlogprob[2]), -1.0 / 8.0);
}

#[test]
fn tokens_without_a_component_cost_nothing() {
    let mut it = item(&[-1.0, -1.0], Streams { rl_weights: stream(&[0.0, 0.0]), ..Default::default() });
    it.sample.push_context(&[5, 6], &[]);
    it.streams.rl_weights = Some(vec![0.0; 5]);
    let out = sample_loss(&default_loss(), &Counts::of(&Tokens::of(0, &it)), &Tokens::of(0, &it), &[-1.0; 5]).unwrap();
    assert_eq!(out, SampleLoss { dlogprob: vec![0.0; 5], ..Default::default() });
    assert!(!Counts::of(&Tokens::of(0, &it)).any());
    // Cross-entropy reaches tokens that were not sampled, but never the first.
    it.streams.ce_weights = Some(vec![1.0; 5]);
    assert_eq!(Counts::of(&Tokens::of(0, &it)), Counts { ce: 4, ..Default::default() });
}

#[test]
fn missing_streams_are_named() {
    let error = |streams: Streams| {
        let it = item(&[-1.0, -1.0], streams);
        sample_loss(&default_loss(), &Counts::of(&Tokens::of(0, &it)), &Tokens::of(7, &it), &[-1.0; 3])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(Streams::default()),
        "sample 7 of environment `env` has tokens in the `rl` component but no `advantages`"
    );
    let ref_kl = Streams { ref_kl_weights: stream(&[1.0, 1.0]), ..advantages(&[0.0, 0.0]) };
    assert!(error(ref_kl).contains("`ref_kl` component but no `ref_logprobs`"));
    let mut it = item(&[-1.0], Streams::default());
    it.sample.push_context(&[3], &[]);
    it.streams = Streams {
        rl_weights: Some(vec![0.0; 3]),
        ref_kl_weights: Some(vec![0.0, 0.0, 1.0]),
        ref_logprobs: Some(vec![0.0; 3]),
        ..Default::default()
    };
    let error =
        sample_loss(&default_loss(), &Counts::of(&Tokens::of(0, &it)), &Tokens::of(0, &it), &[-1.0; 3]).unwrap_err();
    assert!(matches!(error, TrainerError::NotSampled { token: 2, .. }));
}

/// L as a function of lp, with everything the gradient does not pass through held at `at`.
fn frozen(loss: &Loss, it: &BatchItem, at: &[f32], lp: &[f64]) -> f64 {
    let tokens = Tokens::of(0, it);
    let counts = Counts::of(&tokens);
    (1..lp.len())
        .map(|t| {
            let mu = f64::from(it.sample.logprobs()[t]);
            let delta = f64::from(at[t]).exp() - mu.exp();
            let rho = lp[t] - mu;
            let a = f64::from(it.streams.advantages.as_ref().map_or(0.0, |v| v[t]));
            let rule = Rule::of(loss).unwrap();
            let (masked, ..) = rule.masked(a, delta);
            let (adv_tau, kl_tau) = (rule.adv_tau, rule.kl_tau);
            let rl = (if masked { 0.0 } else { -adv_tau * a * rho.exp() }) + kl_tau * rho * rho;
            let k = f64::from(it.streams.ref_logprobs.as_ref().map_or(0.0, |v| v[t])) - f64::from(at[t]);
            let ref_kl = (if delta < -0.2 { 0.0 } else { -k * rho.exp() }) + 1e-3 * rho * rho;
            let share = |w: f64, n: u64, x: f64| if w == 0.0 { 0.0 } else { w * x / n as f64 };
            share(tokens.rl_weight(t), counts.rl, rl)
                + share(tokens.ce_weight(t), counts.ce, -lp[t])
                + share(tokens.ref_kl_weight(t), counts.ref_kl, ref_kl)
        })
        .sum()
}

fn routed() -> impl Strategy<Value = (BatchItem, Vec<f32>)> {
    let token = (-3.0f32..-0.05, -3.0f32..-0.05, -2.0f32..2.0, -3.0f32..-0.05, 0usize..3, 0.25f32..2.0);
    prop::collection::vec(token, 1..12).prop_map(|tokens| {
        let pick = |which: usize| {
            Some(
                [&[0.0][..], &tokens.iter().map(|t| if t.4 == which { t.5 } else { 0.0 }).collect::<Vec<_>>()].concat(),
            )
        };
        let streams = Streams {
            advantages: stream(&tokens.iter().map(|t| t.2).collect::<Vec<_>>()),
            rl_weights: pick(0),
            ce_weights: pick(1),
            ref_kl_weights: pick(2),
            ref_logprobs: stream(&tokens.iter().map(|t| t.3).collect::<Vec<_>>()),
        };
        let it = item(&tokens.iter().map(|t| t.0).collect::<Vec<_>>(), streams);
        (it, stream(&tokens.iter().map(|t| t.1).collect::<Vec<_>>()).unwrap())
    })
}

proptest! {
    /// The derivative agrees with central differences of the loss.
    #[test]
    fn gradients_equal_finite_differences((it, lp) in routed(), ipo in any::<bool>()) {
        let loss = if ipo { ipo_loss() } else { default_loss() };
        let out = sample_loss(&loss, &Counts::of(&Tokens::of(0, &it)), &Tokens::of(0, &it), &lp).unwrap();
        let at: Vec<f64> = lp.iter().map(|x| f64::from(*x)).collect();
        prop_assert!((frozen(&loss, &it, &lp, &at) - out.loss).abs() < 1e-9);
        for t in 1..lp.len() {
            let eps = 1e-5;
            let (mut up, mut down) = (at.clone(), at.clone());
            up[t] += eps;
            down[t] -= eps;
            let slope = (frozen(&loss, &it, &lp, &up) - frozen(&loss, &it, &lp, &down)) / (2.0 * eps);
            let got = f64::from(out.dlogprob[t]);
            prop_assert!((got - slope).abs() < 1e-5 * slope.abs().max(1.0), "token {t}: {got} and {slope}");
        }
    }

    /// Components on disjoint tokens add up to what each gives alone.
    #[test]
    fn disjoint_components_are_separate_runs((it, lp) in routed()) {
        let counts = Counts::of(&Tokens::of(0, &it));
        let only = |keep: usize| {
            let mut one = it.clone();
            let off = |on: bool, w: &mut Option<Vec<f32>>| if !on { *w = Some(vec![0.0; lp.len()]) };
            off(keep == 0, &mut one.streams.rl_weights);
            off(keep == 1, &mut one.streams.ce_weights);
            off(keep == 2, &mut one.streams.ref_kl_weights);
            sample_loss(&default_loss(), &counts, &Tokens::of(0, &one), &lp).unwrap()
        };
        let all = sample_loss(&default_loss(), &counts, &Tokens::of(0, &it), &lp).unwrap();
        let parts = [only(0), only(1), only(2)];
        prop_assert!((all.loss - parts.iter().map(|p| p.loss).sum::<f64>()).abs() < 1e-9);
        for t in 0..lp.len() {
            prop_assert_eq!(all.dlogprob[t], parts.iter().map(|p| p.dlogprob[t]).sum::<f32>());
        }
    }

    /// An explicit weight of 1 on the sampled tokens is no weight at all.
    #[test]
    fn weight_one_is_the_default(mu in prop::collection::vec(-3.0f32..0.0, 1..8), shift in -0.5f32..0.0) {
        let lp: Vec<f32> = mu.iter().map(|m| m + shift).collect();
        let absent = item(&mu, advantages(&vec![0.7; mu.len()]));
        let mut explicit = absent.clone();
        explicit.streams.rl_weights = stream(&vec![1.0; mu.len()]);
        prop_assert_eq!(run(&default_loss(), &absent, &lp), run(&default_loss(), &explicit, &lp));
    }
}
