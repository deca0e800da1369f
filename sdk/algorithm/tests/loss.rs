//! Custom losses through the harness: what a batch shows, what the checks of derivatives find and what they let pass.

use prl_sdk::testing::{
    BatchBuilder, RecordedBatchSample, Tested, check_golden, check_gradient, check_gradient_of, check_loss,
    made_up_batch,
};
use prl_sdk::{Algorithm, Batch, Error, Hook, Host, Loss, Reference};
use serde::Deserialize;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// −A·e^ρ, and 0.1·entropy on top.
    Smooth,
    /// The same with half of the derivative.
    Halved,
    /// The same with the sign of the entropy's derivative wrong.
    EntropySign,
    /// −min(ratio, 1)·A: a corner at ρ = 0.
    Corner,
    /// −stop_gradient(min(ratio, 1.1))·A·logp.
    Constant,
    /// Divides by the members of the call instead of those of the step.
    Packing,
    /// Not a number at token 3.
    Nan,
    /// The number of calls so far is part of it.
    Drifting,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    kind: Kind,
}

struct Losses(Kind);

impl Algorithm for Losses {
    const NAME: &'static str = "losses";
    const HOOKS: &'static [Hook] = &[Hook::Loss];
    const ENTROPY: bool = true;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        Ok(Losses(config.kind))
    }

    fn loss(&mut self, batch: &Batch, out: &mut Loss) -> Result<(), Error> {
        let entropy = batch.entropy().ok_or("no entropies")?;
        let members = batch.rl_weights().iter().filter(|w| **w != 0.0).count() as f64;
        let n = if self.0 == Kind::Packing { members } else { batch.normalizer() };
        for t in 0..batch.len() {
            let (w, a) = (f64::from(batch.rl_weights()[t]), f64::from(batch.advantages()[t]));
            let lp = f64::from(batch.trainer_logprobs()[t]);
            let ratio = (lp - f64::from(batch.sampling_logprobs()[t])).exp();
            let (value, derivative) = match self.0 {
                Kind::Corner => (-a * ratio.min(1.0), if ratio < 1.0 { -a * ratio } else { 0.0 }),
                Kind::Constant => (-a * ratio.min(1.1) * lp, -a * ratio.min(1.1)),
                Kind::Halved => (-a * ratio, -a * ratio / 2.0),
                _ => (-a * ratio, -a * ratio),
            };
            // Non-members too: the host must clear them.
            out.d_logprob()[t] = if w == 0.0 { 9.0 } else { (w * derivative / n) as f32 };
            if w == 0.0 {
                continue;
            }
            out.add(w * (value + 0.1 * f64::from(entropy[t])) / n);
            out.token_loss()[t] = value as f32;
            let sign = if self.0 == Kind::EntropySign { -1.0 } else { 1.0 };
            out.d_entropy().ok_or("no place for entropies")?[t] = (sign * w * 0.1 / n) as f32;
        }
        if self.0 == Kind::Nan {
            out.d_logprob()[3] = f32::NAN;
        }
        if self.0 == Kind::Drifting {
            out.add(f64::from(CALLS.fetch_add(1, Ordering::Relaxed)));
        }
        out.metric("members", members);
        Ok(())
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

fn config(kind: &str) -> String {
    serde_json::json!({"kind": kind}).to_string()
}

#[test]
fn right_derivatives_pass_and_wrong_ones_are_named() {
    let report = check_loss::<Losses>(&config("smooth")).unwrap();
    assert!(report.checked > 60 && report.kinks.is_empty(), "{report:?}");
    let error = check_loss::<Losses>(&config("halved")).unwrap_err();
    assert!(error.starts_with("made-up batch 0: d loss / d logprob of token "), "{error}");
    let error = check_loss::<Losses>(&config("entropy_sign")).unwrap_err();
    assert!(error.starts_with("made-up batch 0: d loss / d entropy of token "), "{error}");
    let error = check_loss::<Losses>(&config("packing")).unwrap_err();
    assert!(error.starts_with("samples packed together give a loss of "), "{error}");
    assert!(check_loss::<Losses>(&config("nan")).unwrap_err().contains("d_logprob is NaN at token 3"));
    let error = check_gradient::<Losses>(&config("drifting"), &made_up_batch::<Losses>(0)).unwrap_err();
    assert_eq!(error, "two calls with the same batch give different results");
}

fn sample(trainer: &[f32]) -> RecordedBatchSample {
    RecordedBatchSample {
        mask: (0..trainer.len()).map(|t| t > 0).collect(),
        trainer_logprobs: trainer.to_vec(),
        sampling_logprobs: vec![-1.0; trainer.len()],
        advantages: vec![0.5; trainer.len()],
        entropy: Some(vec![0.5; trainer.len()]),
        ..RecordedBatchSample::default()
    }
}

#[test]
fn tokens_on_a_corner_are_counted_and_not_judged() {
    let batch = BatchBuilder::new().recorded(sample(&[0.0, -1.2, -1.0, -0.7]));
    let report = check_gradient::<Losses>(&config("corner"), &batch).unwrap();
    assert_eq!((report.checked, report.kinks), (5, vec![("logprob", 2)]));
    let all = BatchBuilder::new().recorded(RecordedBatchSample {
        rl_weights: Some(vec![0.0, 1.0, 1.0, 1.0]),
        ..sample(&[0.0, -1.0, -1.0, -1.0])
    });
    // The entropies of the three tokens are smooth: as many as there are corners.
    assert_eq!(check_gradient::<Losses>(&config("corner"), &all).unwrap().kinks.len(), 3);
}

#[test]
fn a_stop_gradient_needs_a_word_on_what_is_constant() {
    let batch = made_up_batch::<Losses>(1);
    assert!(check_gradient::<Losses>(&config("constant"), &batch).is_err());
    let report = check_gradient_of::<Losses>(&config("constant"), &batch, |fixed, moved| {
        let token = |t: usize| {
            let ratio = f64::from(fixed.trainer_logprobs()[t] - fixed.sampling_logprobs()[t]).exp().min(1.1);
            let value = -f64::from(fixed.advantages()[t]) * ratio * f64::from(moved.trainer_logprobs()[t]);
            let entropy = 0.1 * f64::from(moved.entropy().unwrap()[t]);
            f64::from(fixed.rl_weights()[t]) * (value + entropy) / fixed.normalizer()
        };
        (0..fixed.len()).map(token).sum()
    });
    assert!(report.unwrap().kinks.is_empty());
}

/// Holds every accessor of a batch against what the test put in.
struct Looks;

impl Algorithm for Looks {
    const NAME: &'static str = "looks";
    const HOOKS: &'static [Hook] = &[Hook::Loss];
    const REFERENCE: Reference = Reference::Teacher;
    type Config = prl_sdk::NoConfig;

    fn new(_config: Self::Config, _host: &Host) -> Result<Self, Error> {
        Ok(Looks)
    }

    fn loss(&mut self, batch: &Batch, out: &mut Loss) -> Result<(), Error> {
        assert_eq!((batch.len(), batch.is_empty(), batch.normalizer()), (5, false, 9.0));
        assert_eq!((batch.token_ids(), batch.mask()), (&[7, 8, 9, 0, 0][..], &[0, 1, 1, 0, 1][..]));
        assert_eq!(batch.rl_weights(), [0.0, 1.0, 1.0, 0.0, 1.0]);
        assert!(batch.entropy().is_none() && out.d_entropy().is_none());
        assert!(batch.ref_logprobs().ok_or("no references")?[3].is_nan());
        let samples: Vec<_> = batch.samples().collect();
        let (a, b) = (samples[0], samples[1]);
        assert_eq!((a.index(), b.index(), a.tokens(), b.tokens()), (0, 1, 0..3, 3..5));
        assert_eq!((a.len(), a.is_empty(), a.token_ids(), a.mask()), (3, false, &[7, 8, 9][..], &[0, 1, 1][..]));
        assert_eq!((a.trainer_logprobs(), b.trainer_logprobs()), (&[0.0, -1.0, -2.0][..], &[0.0, -3.0][..]));
        assert_eq!((a.sampling_logprobs()[1], b.advantages()), (-1.5, &[0.0, -0.25][..]));
        assert_eq!((a.ref_logprobs(), b.ref_logprobs()), (Some(&[0.0, -4.0, -5.0][..]), None));
        assert_eq!((a.temperature(), b.temperature(), a.versions(), b.versions()), (0.5, 1.0, (3, 4), (0, 0)));
        assert_eq!((b.rl_weights(), b.entropy()), (&[0.0, 1.0][..], None));
        out.metric("random", (out.random() >> 40) as f64);
        out.add(-1.0);
        out.add(0.75);
        out.d_logprob()[1] = 0.5;
        out.d_logprob()[0] = 0.5;
        out.token_loss()[4] = 2.0;
        Ok(())
    }
}

const BATCH: &str = r#"{"normalizer": 9, "samples": [
    {"token_ids": [7, 8, 9], "mask": [false, true, true], "trainer_logprobs": [0, -1, -2], "temperature": 0.5,
     "sampling_logprobs": [0, -1.5, -2], "advantages": [0, 0.5, 0.5], "ref_logprobs": [0, -4, -5], "versions": [3, 4]},
    {"mask": [false, true], "trainer_logprobs": [0, -3], "sampling_logprobs": [0, -1], "advantages": [0, -0.25]}]}"#;

#[test]
fn a_loss_sees_the_batch_and_writes_its_result() {
    let lost = Tested::<Looks>::new("{}").unwrap().loss(&BatchBuilder::from_json(BATCH).unwrap()).unwrap();
    assert_eq!((lost.loss, lost.d_logprob, lost.d_entropy), (-0.25, vec![0.0, 0.5, 0.0, 0.0, 0.0], None));
    assert_eq!((lost.token_loss, lost.metrics.len()), (vec![0.0, 0.0, 0.0, 0.0, 2.0], 1));
    let error = BatchBuilder::from_json(&BATCH.replace("[0, -3]", "[0]")).unwrap_err();
    assert_eq!(error, "sample 1: `trainer_logprobs` has 1 entries for the 2 tokens of `mask`");
}

#[test]
fn golden_vectors_are_held_to_their_tolerance() {
    let case = |loss: f64, tolerance: f64| {
        format!(
            r#"[{{"name": "one", "batch": {BATCH}, "loss": {loss}, "d_logprob": [0, 0.5, 0, 0, 0],
                "tolerance": {tolerance}}}]"#
        )
    };
    assert_eq!(check_golden::<Looks>(&case(-0.25, 0.0)), Ok(1));
    assert_eq!(check_golden::<Looks>(&case(-0.26, 0.011)), Ok(1));
    assert_eq!(check_golden::<Looks>(&case(-0.26, 0.0)).unwrap_err(), "one: the loss is -0.25, not -0.26");
    assert!(check_golden::<Looks>("[]").unwrap_err().contains("the list is empty"));
    let more = case(-0.25, 0.0).replace("\"d_logprob\"", "\"d_entropy\": [0, 0, 0, 0, 0], \"d_logprob\"");
    assert!(check_golden::<Looks>(&more).unwrap_err().starts_with("one: d_entropy: None, not Some("));
}
