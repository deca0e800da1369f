//! The derivatives that a loss returns against finite differences of the loss it returns. Owns the choice of steps and the
//! judgement of a difference; must not know any formula.
//!
//! For each member token and each quantity q of it (log-probability, entropy) with the derivative g that the loss gave:
//!
//! ```text
//! D± = ±(L(q ± h) − L(q)) / h      D = (L(q + h) − L(q − h)) / 2h      h = 1e-2, 5e-3, … 3e-4
//!
//! right   |D − g| within tolerance for one of the steps
//! kink    D+ and D− stay apart down to the smallest step and g lies between them: a clip's corner or a mask's edge,
//!         where any such g is a choice; counted, not judged
//! wrong   everything else
//! ```

use super::recorder::splitmix;
use super::{BatchBuilder, Lost, RecordedBatchSample, Tested};
use crate::{Algorithm, Batch, Reference};
use std::fmt;

/// Steps tried, largest first: a small one sees no neighbouring kink, a large one no rounding.
const STEPS: [f64; 6] = [1e-2, 5e-3, 2.5e-3, 1.2e-3, 6e-4, 3e-4];
/// Allowed difference, relative to the derivative or to [`SMALL`] of the largest one.
const TOLERANCE: f64 = 2e-3;
/// Derivatives smaller than this part of the largest one are judged as if they were as large.
const SMALL: f64 = 0.05;

/// What a check looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GradientReport {
    /// Derivatives that were held against differences.
    pub checked: usize,
    /// Places in the batch on whose kink nothing can be said, by quantity.
    pub kinks: Vec<(&'static str, usize)>,
}

#[derive(Clone, Copy)]
enum Quantity {
    Logprob,
    Entropy,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Logprob => "logprob",
            Quantity::Entropy => "entropy",
        }
    }

    fn list(self, batch: &mut BatchBuilder) -> &mut [f32] {
        match self {
            Quantity::Logprob => &mut batch.trainer_logprob,
            Quantity::Entropy => &mut batch.entropy,
        }
    }
}

/// Checks the derivatives of an algorithm's loss on made-up batches, and that packing changes nothing: several samples in
/// one call give the sum of each alone. For a loss that is differentiated as a whole; one with stop-gradients takes
/// [`check_gradient_of`] over [`made_up_batch`].
///
/// # Errors
/// The first derivative that is wrong, or the algorithm's own failure.
pub fn check_loss<A: Algorithm>(config: &str) -> Result<GradientReport, String> {
    let mut all = GradientReport::default();
    for seed in 0..3 {
        let batch = made_up_batch::<A>(seed);
        check_packing::<A>(config, &batch)?;
        let report = check_gradient::<A>(config, &batch).map_err(|e| format!("made-up batch {seed}: {e}"))?;
        all.checked += report.checked;
        all.kinks.extend(report.kinks);
    }
    Ok(all)
}

/// Checks the derivatives of an algorithm's loss on one batch.
///
/// # Errors
/// As [`check_loss`]; more than half of the derivatives are on kinks.
pub fn check_gradient<A: Algorithm>(config: &str, batch: &BatchBuilder) -> Result<GradientReport, String> {
    check::<A>(config, batch, &mut |moved| run::<A>(config, moved).map(|lost| lost.loss))
}

/// Checks the derivatives of a loss that holds some quantities constant. `surrogate(fixed, moved)` is the loss with every
/// constant computed from `fixed` and everything that is differentiated from `moved`: where a formula has
/// stop_gradient(min(e^ρ, c))·logp, the first factor reads `fixed` and logp reads `moved`.
///
/// # Errors
/// As [`check_gradient`].
pub fn check_gradient_of<A: Algorithm>(
    config: &str,
    batch: &BatchBuilder,
    surrogate: impl Fn(&Batch, &Batch) -> f64,
) -> Result<GradientReport, String> {
    check::<A>(config, batch, &mut |moved| {
        let (fixed, moved) = (batch.columns(A::ENTROPY).view(), moved.columns(A::ENTROPY).view());
        // SAFETY: the views follow `prl.h` and live to the end of this block.
        let (fixed, moved) = unsafe { (Batch::from_raw(fixed.raw()), Batch::from_raw(moved.raw())) };
        let text = |e: crate::Error| e.to_string();
        Ok(surrogate(&fixed.map_err(text)?, &moved.map_err(text)?))
    })
}

fn run<A: Algorithm>(config: &str, batch: &BatchBuilder) -> Result<Lost, String> {
    Tested::<A>::new(config)?.loss(batch)
}

fn check<A: Algorithm>(
    config: &str,
    batch: &BatchBuilder,
    value: &mut dyn FnMut(&BatchBuilder) -> Result<f64, String>,
) -> Result<GradientReport, String> {
    let lost = run::<A>(config, batch)?;
    let again = run::<A>(config, batch)?;
    if lost != again {
        return Err("two calls with the same batch give different results".into());
    }
    let members: Vec<usize> =
        batch.columns(false).rl_weight.iter().enumerate().filter(|w| *w.1 != 0.0).map(|w| w.0).collect();
    let mut report = GradientReport::default();
    let quantities = [(Quantity::Logprob, Some(&lost.d_logprob)), (Quantity::Entropy, lost.d_entropy.as_ref())];
    for (quantity, gradient) in quantities {
        let Some(gradient) = gradient else { continue };
        let largest = gradient.iter().fold(0.0, |m: f64, g| m.max(f64::from(g.abs())));
        for t in &members {
            let g = f64::from(gradient[*t]);
            let allowed = TOLERANCE * g.abs().max(SMALL * largest).max(f64::MIN_POSITIVE);
            match judge(batch, quantity, *t, (g, allowed), value)? {
                Verdict::Right => report.checked += 1,
                Verdict::Kink => report.kinks.push((quantity.name(), *t)),
                Verdict::Wrong(d) => {
                    return Err(format!("d loss / d {quantity} of token {t} is {g:e}, finite differences say {d:e}"));
                }
            }
        }
    }
    if report.kinks.len() > report.checked {
        let (kinks, all) = (report.kinks.len(), report.kinks.len() + report.checked);
        return Err(format!(
            "{kinks} of {all} derivatives are on kinks, where nothing can be said: take another batch"
        ));
    }
    Ok(report)
}

enum Verdict {
    Right,
    Kink,
    Wrong(f64),
}

fn judge(
    batch: &BatchBuilder,
    quantity: Quantity,
    token: usize,
    (g, allowed): (f64, f64),
    value: &mut dyn FnMut(&BatchBuilder) -> Result<f64, String>,
) -> Result<Verdict, String> {
    let here = value(batch)?;
    let (mut left, mut right, mut best) = (0.0, 0.0, f64::INFINITY);
    for step in STEPS {
        let mut side = |step: f64| -> Result<(f64, f64), String> {
            let mut moved = batch.clone();
            let place = &mut quantity.list(&mut moved)[token];
            let before = *place;
            *place = (f64::from(before) + step) as f32;
            // The step that f32 made of it.
            let made = f64::from(*place) - f64::from(before);
            Ok((value(&moved)?, made))
        };
        let ((up, plus), (down, minus)) = (side(step)?, side(-step)?);
        (left, right) = ((here - down) / -minus, (up - here) / plus);
        let central = (up - down) / (plus - minus);
        if (central - g).abs() <= allowed {
            return Ok(Verdict::Right);
        }
        if (central - g).abs() < (best - g).abs() {
            best = central;
        }
    }
    let between = g >= left.min(right) - allowed && g <= left.max(right) + allowed;
    Ok(if between && (left - right).abs() > 2.0 * allowed { Verdict::Kink } else { Verdict::Wrong(best) })
}

fn check_packing<A: Algorithm>(config: &str, batch: &BatchBuilder) -> Result<(), String> {
    let together = run::<A>(config, batch)?;
    let mut alone = Lost::default();
    for part in batch.split() {
        let lost = run::<A>(config, &part)?;
        alone.loss += lost.loss;
        alone.d_logprob.extend(lost.d_logprob);
        alone.d_entropy.get_or_insert_default().extend(lost.d_entropy.unwrap_or_default());
    }
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-5 * a.abs().max(b.abs()).max(1e-6);
    let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| close(f64::from(*a), f64::from(*b)));
    let entropy = together.d_entropy.as_ref().is_none_or(|d| same(d, alone.d_entropy.as_deref().unwrap_or_default()));
    if close(together.loss, alone.loss) && same(&together.d_logprob, &alone.d_logprob) && entropy {
        return Ok(());
    }
    let (a, b) = (together.loss, alone.loss);
    Err(format!("samples packed together give a loss of {a}, each alone {b} in sum, or other derivatives"))
}

/// Samples of several lengths with prompts, gaps in the middle, weights and advantages of every kind, and with references
/// for an algorithm that needs them.
pub fn made_up_batch<A: Algorithm>(seed: u64) -> BatchBuilder {
    let mut state = seed;
    let mut unit = || (splitmix(&mut state) >> 40) as f32 / (1u64 << 24) as f32;
    let mut batch = BatchBuilder::new();
    for i in 0..5 {
        let n = 3 + 3 * i;
        let mask: Vec<bool> = (0..n).map(|t| t > 1 && t != 6).collect();
        let sampling: Vec<f32> = mask.iter().map(|m| if *m { -0.05 - 2.5 * unit() } else { 0.0 }).collect();
        let shift = 0.3 * (unit() - 0.5);
        let trainer = |t: usize| if mask[t] { sampling[t] + shift + 0.3 * (unit() - 0.5) } else { -1.0 - unit() };
        let trainer_logprobs = (0..n).map(trainer).collect();
        let advantage = 2.0 * unit() - 1.0;
        batch = batch.recorded(RecordedBatchSample {
            token_ids: Some((0..n as u32).collect()),
            trainer_logprobs,
            advantages: mask.iter().map(|m| if *m { advantage } else { 0.0 }).collect(),
            rl_weights: Some((0..n).map(|t| if mask[t] { [1.0, 1.0, 0.5, 0.0][(t + i) % 4] } else { 0.0 }).collect()),
            ref_logprobs: (A::REFERENCE != Reference::None)
                .then(|| sampling.iter().map(|lp| lp + 0.4 * (unit() - 0.5)).collect()),
            entropy: Some((0..n).map(|_| 0.1 + 2.0 * unit()).collect()),
            sampling_logprobs: sampling,
            mask,
            ..RecordedBatchSample::default()
        });
    }
    let members = batch.columns(false).rl_weight.iter().filter(|w| **w != 0.0).count();
    batch.normalizer((members + 7) as f64)
}
