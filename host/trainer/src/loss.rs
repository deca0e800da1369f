//! The loss: three components, each a sum over its member tokens divided by the number of its members in the whole step.
//!
//! ```text
//! L = Σ_rl / N_rl + Σ_ce / N_ce + Σ_ref_kl / N_ref_kl
//!
//! lp trainer log-probability   mu sampling log-probability   ρ = lp − mu   Δ = e^lp − e^mu   A advantage   w weight
//!
//! rl      w·( −keep·adv_tau·A·e^ρ + kl_tau·ρ² )   keep = ¬( A > 0 ? Δ > mask_high : Δ < −mask_low )    (default)
//!                                                 keep = ¬( |Δ| > ipo_threshold )                       (ipo)
//! ce      −w·lp
//! ref_kl  w·( −keep·stop_gradient(ref_lp − lp)·e^ρ + 1e-3·ρ² )    keep = ¬( Δ < −0.2 )
//! ```
//!
//! Gradients pass through e^ρ and ρ², never through the masks. Owns these formulas, their derivatives by lp and their
//! metrics; must not know the model, batches of samples, or which algorithm wrote the streams. All arithmetic is f64.

use crate::TrainerError;
use prl_config::Loss;
use prl_types::{BatchItem, masked_mean};

/// Factor of ρ² in the ref_kl component.
const REF_KL_TAU: f64 = 1e-3;
/// Fall of probability beyond which the ref_kl component drops a token.
const REF_KL_MASK_LOW: f64 = 0.2;

/// Member tokens of each component, summed over a whole step: the denominators of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of the rl component: sampled, with a weight other than 0.
    pub rl: u64,
    /// Tokens of the ce component: with a weight other than 0, sampled or not.
    pub ce: u64,
    /// Tokens of the ref_kl component.
    pub ref_kl: u64,
}

impl Counts {
    /// The members in one sample. A sample's first token has no context, so it is never a member.
    pub fn of(item: &BatchItem) -> Self {
        let count = |weight: fn(&BatchItem, usize) -> f64| {
            (0..item.sample.len()).filter(|t| weight(item, *t) != 0.0).count() as u64
        };
        Counts { rl: count(rl_weight), ce: count(ce_weight), ref_kl: count(ref_kl_weight) }
    }

    /// Members of any component.
    pub fn any(&self) -> bool {
        self.rl + self.ce + self.ref_kl > 0
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.rl += other.rl;
        self.ce += other.ce;
        self.ref_kl += other.ref_kl;
    }
}

/// One sample's share of the loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleLoss {
    /// Its addend of L, denominators included.
    pub loss: f64,
    /// ∂L/∂lp of each token; 0 for tokens without a component.
    pub dlogprob: Vec<f32>,
    /// Loss of each member token, without denominators.
    pub token_losses: Vec<f64>,
    /// e^ρ − ρ − 1 of each member of rl or ref_kl: an estimate of the divergence between sampler and trainer.
    pub mismatch_kl: Vec<f64>,
    /// Means over this sample, by metric name.
    pub metrics: Vec<(&'static str, f64)>,
}

/// Loss and gradient of one sample.
///
/// `logprobs[t]` is the trainer's log-probability of token t. `counts` are those of the whole step; `item` is the
/// sample's place in the batch, for messages.
///
/// # Errors
/// A component whose tokens lack advantages, reference log-probabilities or a sampling log-probability.
pub fn sample_loss(
    loss: &Loss,
    counts: &Counts,
    index: usize,
    item: &BatchItem,
    logprobs: &[f32],
) -> Result<SampleLoss, TrainerError> {
    let n = item.sample.len();
    let own = check(index, item, logprobs.len())?;
    let (advantages, reference) = (item.streams.advantages.as_deref(), item.streams.ref_logprobs.as_deref());
    let mut out = SampleLoss { dlogprob: vec![0.0; n], ..Default::default() };
    let (mut rl, mut ref_kl) = (Masking::new(n), Masking::new(n));
    let mut pull = vec![0.0f32; n];
    for t in 0..n {
        let (rl_w, ce_w, ref_w) = (rl_weight(item, t), ce_weight(item, t), ref_kl_weight(item, t));
        if rl_w == 0.0 && ce_w == 0.0 && ref_w == 0.0 {
            continue;
        }
        let (lp, mu) = (f64::from(logprobs[t]), f64::from(item.sample.logprobs()[t]));
        let (rho, delta) = (lp - mu, lp.exp() - mu.exp());
        let ratio = rho.exp();
        let mismatch = rho.exp_m1() - rho;
        let (mut token, mut gradient) = (0.0, 0.0);
        if rl_w != 0.0 {
            let a = f64::from(advantages.map_or(0.0, |v| v[t]));
            let (masked, low, high) = rl_masked(loss, a, delta);
            rl.add(t, mismatch, masked, low, high, a > 0.0);
            let (adv_tau, kl_tau) = taus(loss);
            let value = Surrogate { keep: !masked, advantage: adv_tau * a, kl_tau, rho, ratio };
            token += rl_w * value.loss();
            out.loss += rl_w * value.loss() / counts.rl.max(1) as f64;
            gradient += rl_w * value.derivative() / counts.rl.max(1) as f64;
        }
        if ce_w != 0.0 {
            token -= ce_w * lp;
            out.loss -= ce_w * lp / counts.ce.max(1) as f64;
            gradient -= ce_w / counts.ce.max(1) as f64;
        }
        if ref_w != 0.0 {
            let k = f64::from(reference.map_or(0.0, |v| v[t])) - lp;
            let masked = delta < -REF_KL_MASK_LOW;
            ref_kl.add(t, mismatch, masked, masked, false, false);
            pull[t] = k as f32;
            let value = Surrogate { keep: !masked, advantage: k, kl_tau: REF_KL_TAU, rho, ratio };
            token += ref_w * value.loss();
            out.loss += ref_w * value.loss() / counts.ref_kl.max(1) as f64;
            gradient += ref_w * value.derivative() / counts.ref_kl.max(1) as f64;
        }
        if rl_w != 0.0 || ref_w != 0.0 {
            out.mismatch_kl.push(mismatch);
        }
        out.token_losses.push(token);
        out.dlogprob[t] = gradient as f32;
    }
    if own.rl > 0 {
        out.metrics.extend([
            ("is_masked", rl.mean_of(&rl.masked)),
            ("is_masked_low", rl.mean_of(&rl.low)),
            ("is_masked_high", rl.mean_of(&rl.high)),
            ("masked_advantage_positive", rl.among_masked(|t| f32::from(rl.positive[t]))),
            ("masked_advantage_negative", rl.among_masked(|t| f32::from(!rl.positive[t]))),
            ("masked_mismatch_kl", rl.among_masked(|t| rl.mismatch[t])),
            ("unmasked_mismatch_kl", rl.among_kept()),
        ]);
    }
    if own.ref_kl > 0 {
        out.metrics.extend([
            ("ref_kl", masked_mean(&pull, &ref_kl.member).0),
            ("ref_kl/is_masked", ref_kl.mean_of(&ref_kl.masked)),
            ("ref_kl/masked_mismatch_kl", ref_kl.among_masked(|t| ref_kl.mismatch[t])),
            ("ref_kl/unmasked_mismatch_kl", ref_kl.among_kept()),
        ]);
    }
    if own.ce > 0 {
        let nll: Vec<f32> = logprobs.iter().map(|lp| -lp).collect();
        let member: Vec<bool> = (0..n).map(|t| ce_weight(item, t) != 0.0).collect();
        out.metrics.push(("nll", masked_mean(&nll, &member).0));
    }
    Ok(out)
}

/// −keep·advantage·e^ρ + kl_tau·ρ², with advantage and keep constant.
struct Surrogate {
    keep: bool,
    advantage: f64,
    kl_tau: f64,
    rho: f64,
    ratio: f64,
}

impl Surrogate {
    fn policy(&self) -> f64 {
        if self.keep { -self.advantage * self.ratio } else { 0.0 }
    }

    fn loss(&self) -> f64 {
        self.policy() + self.kl_tau * self.rho * self.rho
    }

    fn derivative(&self) -> f64 {
        self.policy() + 2.0 * self.kl_tau * self.rho
    }
}

/// Whether the policy term is dropped, and whether the probability fell or rose too far.
fn rl_masked(loss: &Loss, advantage: f64, delta: f64) -> (bool, bool, bool) {
    let (low, high) = match loss {
        Loss::Default(l) => (advantage <= 0.0 && delta < -l.dppo_mask_low, advantage > 0.0 && delta > l.dppo_mask_high),
        Loss::Ipo(l) => (delta < -l.ipo_threshold, delta > l.ipo_threshold),
    };
    (low || high, low, high)
}

fn taus(loss: &Loss) -> (f64, f64) {
    match loss {
        Loss::Default(l) => (l.adv_tau, l.kl_tau),
        Loss::Ipo(l) => (l.adv_tau, l.kl_tau),
    }
}

fn rl_weight(item: &BatchItem, t: usize) -> f64 {
    if t == 0 || !item.sample.mask()[t] {
        return 0.0;
    }
    item.streams.rl_weights.as_ref().map_or(1.0, |w| f64::from(w[t]))
}

fn ce_weight(item: &BatchItem, t: usize) -> f64 {
    if t == 0 { 0.0 } else { item.streams.ce_weights.as_ref().map_or(0.0, |w| f64::from(w[t])) }
}

fn ref_kl_weight(item: &BatchItem, t: usize) -> f64 {
    if t == 0 { 0.0 } else { item.streams.ref_kl_weights.as_ref().map_or(0.0, |w| f64::from(w[t])) }
}

/// The sample's own counts, once everything its components need is known to be there.
fn check(index: usize, item: &BatchItem, logprobs: usize) -> Result<Counts, TrainerError> {
    let n = item.sample.len();
    let stream = |source| TrainerError::Stream { item: index, env: item.env.clone(), source };
    item.streams.validate(n).map_err(stream)?;
    if logprobs != n {
        return Err(stream(prl_types::SampleError::Length { name: "logprobs", got: logprobs, want: n }));
    }
    let counts = Counts::of(item);
    let missing = |component, missing| {
        Err(TrainerError::MissingStream { item: index, env: item.env.clone(), component, missing })
    };
    if counts.rl > 0 && item.streams.advantages.is_none() {
        return missing("rl", "`advantages`");
    }
    if counts.ref_kl > 0 && item.streams.ref_logprobs.is_none() {
        return missing("ref_kl", "`ref_logprobs`");
    }
    match (0..n).find(|t| ref_kl_weight(item, *t) != 0.0 && !item.sample.mask()[*t]) {
        Some(token) => Err(TrainerError::NotSampled { item: index, env: item.env.clone(), token }),
        None => Ok(counts),
    }
}

/// What the metrics of a masked component are made of, per token.
struct Masking {
    member: Vec<bool>,
    masked: Vec<bool>,
    low: Vec<bool>,
    high: Vec<bool>,
    positive: Vec<bool>,
    mismatch: Vec<f32>,
}

impl Masking {
    fn new(n: usize) -> Self {
        let no = || vec![false; n];
        Masking { member: no(), masked: no(), low: no(), high: no(), positive: no(), mismatch: vec![0.0; n] }
    }

    fn add(&mut self, t: usize, mismatch: f64, masked: bool, low: bool, high: bool, positive: bool) {
        self.member[t] = true;
        self.mismatch[t] = mismatch as f32;
        (self.masked[t], self.low[t], self.high[t], self.positive[t]) = (masked, low, high, positive);
    }

    fn mean_of(&self, flags: &[bool]) -> f64 {
        let values: Vec<f32> = flags.iter().map(|f| f32::from(*f)).collect();
        masked_mean(&values, &self.member).0
    }

    fn among_masked(&self, value: impl Fn(usize) -> f32) -> f64 {
        let values: Vec<f32> = (0..self.masked.len()).map(value).collect();
        masked_mean(&values, &self.masked).0
    }

    fn among_kept(&self) -> f64 {
        let kept: Vec<bool> = self.member.iter().zip(&self.masked).map(|(m, x)| *m && !*x).collect();
        masked_mean(&self.mismatch, &kept).0
    }
}

#[cfg(test)]
#[path = "loss_tests.rs"]
mod tests;
