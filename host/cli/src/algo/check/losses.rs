//! What a plug-in's own loss must keep: its derivative, its sum over any packing, the same numbers twice. Owns the made-up
//! tokens and the tolerances.

use super::{Speed, milliseconds};
use crate::algo::tokens::{Columns, Tokens};
use crate::report::Found;
use prl_algorithm::{Algorithm, AlgorithmError};
use prl_types::LossGradient;

/// Step of the differences: exact in f32 on the values it is added to.
const STEP: f32 = 1.0 / 1024.0;
/// Agreement of derivative and difference, as a part of the largest derivative.
const TOLERANCE: f64 = 1e-2;
/// Agreement of the sum over two packings.
const PACKING: f64 = 1e-6;

/// Sequences of the tokens that are tried.
const LENGTHS: [usize; 4] = [7, 1, 12, 4];

/// Everything that is asked of a loss, in the order in which it is told. Without `derivative`, the gradient is taken as it is.
pub fn check(fresh: &impl Fn() -> Result<Algorithm, String>, derivative: bool) -> Vec<(&'static str, Found)> {
    let mut found = vec![("loss", results(fresh))];
    if found[0].1.is_ok() {
        if derivative {
            found.push(("gradient", gradient(fresh)));
        }
        found.push(("packing", packing(fresh)));
    }
    found
}

/// How long a call takes on so many tokens.
pub fn speed(algorithm: &mut Algorithm, tokens: usize) -> Result<Speed, String> {
    let columns = made_up(&[tokens / 16; 16]);
    let out = call(algorithm, &columns)?;
    Ok(Speed { what: format!("loss {}", milliseconds(out.seconds)), seconds: out.seconds })
}

fn call(algorithm: &mut Algorithm, columns: &Columns) -> Result<LossGradient, String> {
    columns.with_batch(|batch| algorithm.loss(batch))?.map_err(|error: AlgorithmError| error.to_string())
}

/// Tokens whose log-probabilities are multiples of 2^-10, so that steps of that size are exact.
fn made_up(lengths: &[usize]) -> Columns {
    let n: usize = lengths.iter().sum();
    let mut state = 1u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    let mut grid = |low: f64, high: f64| ((low + (high - low) * unit()) * 1024.0).round() / 1024.0;
    let trainer: Vec<f64> = (0..n).map(|_| grid(-3.0, -0.1)).collect();
    let inference = trainer.iter().map(|lp| (lp + grid(-0.1, 0.1)).min(-1.0 / 1024.0)).collect();
    let tokens = Tokens {
        inference_logprobs: Some(inference),
        ref_logprobs: Some((0..n).map(|_| grid(-3.0, -0.1)).collect()),
        advantages: Some((0..n).map(|_| grid(-1.0, 1.0)).collect()),
        entropies: Some((0..n).map(|_| grid(0.1, 2.0)).collect()),
        mask: Some((0..n).map(|i| crate::algo::input::Flag(i % 5 != 3)).collect()),
        sequence_lengths: Some(lengths.to_vec()),
        trainer_logprobs: trainer,
        ..Tokens::default()
    };
    tokens.columns().unwrap_or_default()
}

/// Ordinary tokens, a zero advantage everywhere, a policy that did not move, one that moved very far; the same twice.
fn results(fresh: &impl Fn() -> Result<Algorithm, String>) -> Found {
    let ordinary = made_up(&LENGTHS);
    let calm = Columns { advantages: Some(vec![0.0; ordinary.mask.len()]), ..ordinary.clone() };
    let still =
        Columns { trainer_logprobs: ordinary.inference_logprobs.clone().unwrap_or_default(), ..ordinary.clone() };
    let far = Columns { trainer_logprobs: vec![-1e-3; ordinary.mask.len()], ..ordinary.clone() };
    let far = Columns { inference_logprobs: Some(vec![-20.0; ordinary.mask.len()]), ..far };
    let alone = Columns { ref_logprobs: None, ..ordinary.clone() };
    let cases = [
        ("ordinary tokens", ordinary),
        ("advantages of 0", calm),
        ("a policy that did not move", still),
        ("a policy that moved very far", far),
        ("no reference", alone),
    ];
    for (name, columns) in &cases {
        let of = |error: String| format!("{name}: {error}");
        let one = call(&mut fresh()?, columns).map_err(of)?;
        let other = call(&mut fresh()?, columns).map_err(of)?;
        let same = |one: &LossGradient, other: &LossGradient| {
            (one.loss.to_bits(), &one.dlogprob, &one.dentropy)
                == (other.loss.to_bits(), &other.dlogprob, &other.dentropy)
        };
        if !same(&one, &other) {
            return Err(format!("{name}: two instances with one seed give different numbers"));
        }
    }
    Ok(format!("{} batches, finite and the same in two instances", cases.len()))
}

/// The gradient is the derivative of the loss.
fn gradient(fresh: &impl Fn() -> Result<Algorithm, String>) -> Found {
    let columns = made_up(&LENGTHS);
    let mut algorithm = fresh()?;
    let out = call(&mut algorithm, &columns)?;
    let by_logprob = |t: usize, step: f32| {
        let mut moved = columns.clone();
        moved.trainer_logprobs[t] += step;
        moved
    };
    differences(&mut algorithm, &columns.mask, "log-probability", &out.dlogprob, &by_logprob)?;
    if let Some(dentropy) = &out.dentropy {
        let by_entropy = |t: usize, step: f32| {
            let mut moved = columns.clone();
            moved.entropies[t] += step;
            moved
        };
        differences(&mut algorithm, &columns.mask, "entropy", dentropy, &by_entropy)?;
    }
    let members = columns.mask.iter().filter(|m| **m).count();
    Ok(format!("{members} derivatives agree with differences of the loss"))
}

/// Holds a gradient against central differences at the members, where `moved` gives the tokens with one value changed.
fn differences(
    algorithm: &mut Algorithm,
    members: &[bool],
    by: &str,
    gradient: &[f32],
    moved: &dyn Fn(usize, f32) -> Columns,
) -> Result<(), String> {
    let largest = gradient.iter().fold(0.0f64, |largest, d| largest.max(f64::from(d.abs())));
    for t in (0..members.len()).filter(|t| members[*t]) {
        let (above, below) = (call(algorithm, &moved(t, STEP))?.loss, call(algorithm, &moved(t, -STEP))?.loss);
        let (given, difference) = (f64::from(gradient[t]), (above - below) / f64::from(2.0 * STEP));
        if (given - difference).abs() > TOLERANCE * largest.max(difference.abs()) {
            return Err(format!(
                "at token {t} the gradient by {by} is {given:.6}, the loss itself changes by {difference:.6}; if parts of it are \
                 held constant on purpose, say --stop-gradient"
            ));
        }
    }
    Ok(())
}

/// The sum over a step is the same however its samples are packed.
fn packing(fresh: &impl Fn() -> Result<Algorithm, String>) -> Found {
    let whole = made_up(&LENGTHS);
    let members = whole.mask.iter().filter(|m| **m).count() as u64;
    let whole = Columns { normalizer: Some(members), ..whole };
    let together = call(&mut fresh()?, &whole)?;
    let mut apart = LossGradient::default();
    let mut algorithm = fresh()?;
    for tokens in whole.sequences().filter(|tokens| whole.mask[tokens.clone()].contains(&true)) {
        let own = call(&mut algorithm, &whole.part(tokens))?;
        apart.loss += own.loss;
        apart.dlogprob.extend_from_slice(&own.dlogprob);
    }
    let scale = together.loss.abs().max(1.0);
    if (together.loss - apart.loss).abs() > PACKING * scale {
        return Err(format!(
            "{} samples in one batch lose {:.9}, one by one {:.9}; divide by the batch's normalizer, not by what is in it",
            LENGTHS.len(),
            together.loss,
            apart.loss
        ));
    }
    let differs = |(one, other): (&f32, &f32)| f64::from((one - other).abs()) > PACKING * f64::from(one.abs()).max(1.0);
    match together.dlogprob.iter().zip(&apart.dlogprob).position(differs) {
        Some(t) => Err(format!("the gradient of token {t} depends on what else is in its batch")),
        None => Ok(format!("{} samples lose the same in one batch and one by one", LENGTHS.len())),
    }
}
