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
//! Gradients pass through e^ρ and ρ², never through the masks. Where the rl component is a custom loss, its members are
//! counted and compared here and nothing else; its value comes from elsewhere. Owns these formulas, their derivatives by
//! lp and their metrics; must not know the model, batches of samples, or which algorithm wrote the streams. All arithmetic
//! is f64.

use crate::TrainerError;
use prl_config::Loss;
use prl_types::{BatchItem, Streams, masked_mean};

/// Factor of ρ² in the ref_kl component.
const REF_KL_TAU: f64 = 1e-3;
/// Fall of probability beyond which the ref_kl component drops a token.
const REF_KL_MASK_LOW: f64 = 0.2;

/// A sample as the components see it. Lists have one entry a token.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// The sample's place in its batch, for messages.
    pub index: usize,
    /// Its environment, for messages.
    pub env: &'a str,
    /// True where the model sampled the token.
    pub mask: &'a [bool],
    /// Log-probability when drawn; 0 where the mask is false.
    pub sampling_logprobs: &'a [f32],
    /// Credit and weights.
    pub streams: &'a Streams,
}

impl<'a> Tokens<'a> {
    /// Those of an item that stands at `index` in its batch.
    pub fn of(index: usize, item: &'a BatchItem) -> Self {
        let (mask, sampling_logprobs) = (item.sample.mask(), item.sample.logprobs());
        Tokens { index, env: &item.env, mask, sampling_logprobs, streams: &item.streams }
    }

    /// Weight of a token in the rl component; a sample's first token has no context, so it is never a member.
    pub(crate) fn rl_weight(&self, t: usize) -> f64 {
        if t == 0 || !self.mask[t] {
            return 0.0;
        }
        self.streams.rl_weights.as_ref().map_or(1.0, |w| f64::from(w[t]))
    }

    fn ce_weight(&self, t: usize) -> f64 {
        if t == 0 { 0.0 } else { self.streams.ce_weights.as_ref().map_or(0.0, |w| f64::from(w[t])) }
    }

    fn ref_kl_weight(&self, t: usize) -> f64 {
        if t == 0 { 0.0 } else { self.streams.ref_kl_weights.as_ref().map_or(0.0, |w| f64::from(w[t])) }
    }

    /// Whether a token is in any component.
    pub(crate) fn is_member(&self, t: usize) -> bool {
        self.rl_weight(t) != 0.0 || self.ce_weight(t) != 0.0 || self.ref_kl_weight(t) != 0.0
    }
}

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
    pub fn of(tokens: &Tokens) -> Self {
        let count = |weight: &dyn Fn(usize) -> f64| (0..tokens.mask.len()).filter(|t| weight(*t) != 0.0).count() as u64;
        Counts {
            rl: count(&|t| tokens.rl_weight(t)),
            ce: count(&|t| tokens.ce_weight(t)),
            ref_kl: count(&|t| tokens.ref_kl_weight(t)),
        }
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
/// `logprobs[t]` is the trainer's log-probability of token t. `counts` are those of the whole step. With [`Loss::Custom`]
/// members of rl have a loss and a gradient of 0 here.
///
/// # Errors
/// A component whose tokens lack advantages, reference log-probabilities or a sampling log-probability; lists of different
/// lengths.
pub fn sample_loss(
    loss: &Loss,
    counts: &Counts,
    tokens: &Tokens,
    logprobs: &[f32],
) -> Result<SampleLoss, TrainerError> {
    let n = tokens.mask.len();
    let own = check(tokens, logprobs.len())?;
    let (advantages, reference) = (tokens.streams.advantages.as_deref(), tokens.streams.ref_logprobs.as_deref());
    let mut out = SampleLoss { dlogprob: vec![0.0; n], ..Default::default() };
    let (mut rl, mut ref_kl) = (Masking::new(n), Masking::new(n));
    let mut pull = vec![0.0f32; n];
    for t in 0..n {
        let (rl_w, ce_w, ref_w) = (tokens.rl_weight(t), tokens.ce_weight(t), tokens.ref_kl_weight(t));
        if rl_w == 0.0 && ce_w == 0.0 && ref_w == 0.0 {
            continue;
        }
        let (lp, mu) = (f64::from(logprobs[t]), f64::from(tokens.sampling_logprobs[t]));
        let (rho, delta) = (lp - mu, lp.exp() - mu.exp());
        let ratio = rho.exp();
        let mismatch = rho.exp_m1() - rho;
        let (mut token, mut gradient) = (0.0, 0.0);
        if let Some(rule) = Rule::of(loss).filter(|_| rl_w != 0.0) {
            let a = f64::from(advantages.map_or(0.0, |v| v[t]));
            let (masked, low, high) = rule.masked(a, delta);
            rl.add(t, mismatch, masked, low, high, a > 0.0);
            let (adv_tau, kl_tau) = (rule.adv_tau, rule.kl_tau);
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
    if own.rl > 0 && Rule::of(loss).is_some() {
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
        let member: Vec<bool> = (0..n).map(|t| tokens.ce_weight(t) != 0.0).collect();
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

/// A built-in rl component.
#[derive(Clone, Copy)]
struct Rule {
    adv_tau: f64,
    kl_tau: f64,
    mask: Mask,
}

#[derive(Clone, Copy)]
enum Mask {
    /// By the sign of the advantage.
    Dppo { low: f64, high: f64 },
    /// In either direction.
    Ipo(f64),
}

impl Rule {
    /// `None` where the component is somebody else's.
    fn of(loss: &Loss) -> Option<Self> {
        match loss {
            Loss::Default(l) => {
                let mask = Mask::Dppo { low: l.dppo_mask_low, high: l.dppo_mask_high };
                Some(Rule { adv_tau: l.adv_tau, kl_tau: l.kl_tau, mask })
            }
            Loss::Ipo(l) => Some(Rule { adv_tau: l.adv_tau, kl_tau: l.kl_tau, mask: Mask::Ipo(l.ipo_threshold) }),
            Loss::Custom(_) => None,
        }
    }

    /// Whether the policy term is dropped, and whether the probability fell or rose too far.
    fn masked(&self, advantage: f64, delta: f64) -> (bool, bool, bool) {
        let (fell, rose) = match self.mask {
            Mask::Dppo { low, high } => (advantage <= 0.0 && delta < -low, advantage > 0.0 && delta > high),
            Mask::Ipo(threshold) => (delta < -threshold, delta > threshold),
        };
        (fell || rose, fell, rose)
    }
}

/// The sample's own counts, once everything its components need is known to be there.
fn check(tokens: &Tokens, logprobs: usize) -> Result<Counts, TrainerError> {
    let n = tokens.mask.len();
    let stream = |source| TrainerError::Stream { item: tokens.index, env: tokens.env.into(), source };
    tokens.streams.validate(n).map_err(stream)?;
    for (name, got) in [("logprobs", logprobs), ("sampling_logprobs", tokens.sampling_logprobs.len())] {
        if got != n {
            return Err(stream(prl_types::SampleError::Length { name, got, want: n }));
        }
    }
    let counts = Counts::of(tokens);
    let missing = |component, missing| {
        Err(TrainerError::MissingStream { item: tokens.index, env: tokens.env.into(), component, missing })
    };
    if counts.rl > 0 && tokens.streams.advantages.is_none() {
        return missing("rl", "`advantages`");
    }
    if counts.ref_kl > 0 && tokens.streams.ref_logprobs.is_none() {
        return missing("ref_kl", "`ref_logprobs`");
    }
    match (0..n).find(|t| tokens.ref_kl_weight(*t) != 0.0 && !tokens.mask[*t]) {
        Some(token) => Err(TrainerError::NotSampled { item: tokens.index, env: tokens.env.into(), token }),
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
