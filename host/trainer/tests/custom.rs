//! A loss from outside in place of the rl component.

mod common;

use common::{VOCAB, adamw, bits, constant, learner};
use prl_config::{CustomLoss as CustomTable, DefaultLoss, Loss};
use prl_model::{Kernels, Learner, Packed};
use prl_trainer::{CustomLoss, Skip, StepOutcome, Trainer, TrainerParts, Update};
use prl_types::{
    Batch, BatchItem, FinishReason, LossBatch, LossGradient, Metric, PolicyVersion, Sample, Sampled, Streams,
};
use std::sync::{Arc, Mutex};

type Formula = Box<dyn FnMut(&LossBatch) -> Result<LossGradient, String> + Send>;

struct Given(Formula);

impl CustomLoss for Given {
    fn name(&self) -> &str {
        "given"
    }

    fn loss(&mut self, batch: &LossBatch) -> Result<LossGradient, String> {
        (self.0)(batch)
    }
}

fn parts(loss: Loss, seq_len: usize) -> TrainerParts {
    TrainerParts { loss, optim: adamw(1e-2), scheduler: constant(), max_steps: Some(10), seq_len, peak_flops: None }
}

fn custom(learner: Learner, formula: Formula, seq_len: usize) -> Trainer {
    let table = Loss::Custom(CustomTable { name: "given".into(), ..CustomTable::default() });
    Trainer::with_loss(learner, parts(table, seq_len), Box::new(Given(formula))).unwrap()
}

fn nothing(batch: &LossBatch) -> LossGradient {
    let tokens = batch.token_ids.len();
    LossGradient { dlogprob: vec![0.0; tokens], token_losses: vec![0.0; tokens], ..LossGradient::default() }
}

/// The default loss, written once more.
fn default_again(batch: &LossBatch) -> LossGradient {
    let settings = DefaultLoss::default();
    let mut out = nothing(batch);
    for t in (0..batch.token_ids.len()).filter(|t| batch.weights[*t] != 0.0) {
        let (lp, mu) = (f64::from(batch.trainer_logprobs[t]), f64::from(batch.sampling_logprobs[t]));
        let (w, a) = (f64::from(batch.weights[t]), f64::from(batch.advantages[t]));
        let (rho, delta) = (lp - mu, lp.exp() - mu.exp());
        let masked = if a > 0.0 { delta > settings.dppo_mask_high } else { delta < -settings.dppo_mask_low };
        let policy = if masked { 0.0 } else { -settings.adv_tau * a * rho.exp() };
        let loss = policy + settings.kl_tau * rho * rho;
        out.token_losses[t] = (w * loss) as f32;
        out.loss += w * loss / batch.normalizer;
        out.dlogprob[t] = (w * (policy + 2.0 * settings.kl_tau * rho) / batch.normalizer) as f32;
    }
    out
}

fn batch(step: u64, streams: impl Fn(u32, usize) -> Streams) -> Batch {
    let mut at = learner(2);
    let items = (0..7u32).map(|i| {
        let len = 8 + 2 * i as usize;
        let ids: Vec<u32> = (0..len as u32).map(|t| (t * 7 + i * 11 + t * t * i) % VOCAB).collect();
        let packed = Packed { ids: ids.clone(), doc_lens: vec![len], temperatures: vec![0.9; len] };
        let logprobs = at.forward(&packed).unwrap().logprobs;
        let version = (PolicyVersion(u64::from(i)), PolicyVersion(9));
        let mut sample = Sample::from_prompt(&ids[..3], vec![], 0.9);
        // As if drawn from somewhat other weights.
        let drawn: Vec<f32> = logprobs[3..].iter().enumerate().map(|(t, lp)| lp + 0.05 * (t as f32).sin()).collect();
        sample.push_sampled(&Sampled::from_engine(ids[3..].to_vec(), drawn, version, FinishReason::Length).unwrap());
        BatchItem::new("e".into(), sample, streams(i, len)).unwrap()
    });
    Batch { step, items: items.collect() }
}

fn advantages(i: u32, len: usize) -> Streams {
    Streams { advantages: Some(vec![if i.is_multiple_of(3) { 1.0 } else { -0.5 }; len]), ..Streams::default() }
}

fn built_in(loss: DefaultLoss, batch: &Batch) -> (StepOutcome, Vec<u32>) {
    let mut trainer = Trainer::new(learner(2), parts(Loss::Default(loss), 48)).unwrap();
    let outcome = trainer.train_step(batch).unwrap();
    (outcome, bits(trainer.learner()))
}

#[test]
fn the_same_formula_gives_the_same_weights() {
    let batch = batch(1, |i, len| {
        let mut weights = vec![1.0; len];
        weights[len - 2] = 0.5;
        Streams { rl_weights: (i == 2).then_some(weights), ..advantages(i, len) }
    });
    let (want, weights) = built_in(DefaultLoss::default(), &batch);
    let mut trainer = custom(learner(2), Box::new(|batch| Ok(default_again(batch))), 48);
    let got = trainer.train_step(&batch).unwrap();
    assert_eq!(got.update, Update::Applied);
    assert_eq!(bits(trainer.learner()), weights);
    for name in ["loss/mean", "loss/median", "loss/min", "loss/max", "loss/std"] {
        assert!((got.metrics[name] - want.metrics[name]).abs() < 1e-6, "{name}");
    }
    for name in ["optim/grad_norm", "mismatch_kl/all/mean", "mismatch_kl/e/max", "entropy/all/mean"] {
        assert_eq!(got.metrics[name], want.metrics[name], "{name}");
    }
    assert!(!got.metrics.contains_key("is_masked/mean"), "the built-in loss's own metrics");
}

#[test]
fn a_loss_sees_what_the_trainer_has() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let formula = move |batch: &LossBatch| {
        let samples = batch.starts.len() - 1;
        assert_eq!((batch.temperatures.len(), batch.oldest.len(), batch.newest.len()), (samples, samples, samples));
        assert_eq!((batch.step, batch.normalizer, batch.newest[0]), (1, 77.0, 9));
        for i in 0..samples {
            let first = batch.starts[i] as usize;
            assert_eq!(&batch.mask[first..first + 4], [0, 0, 0, 1]);
            assert_eq!(batch.trainer_logprobs[first], -(VOCAB as f32).ln(), "a first token counts as drawn uniformly");
            assert!(batch.entropy[first + 1] > 0.0 && batch.entropy[first + 1] < (VOCAB as f32).ln());
            let known = batch.ref_logprobs.map(|list| list[first + 3]);
            log.lock().unwrap().push((batch.part, batch.oldest[i], known));
        }
        let metrics = vec![Metric { name: "part".into(), value: batch.part as f64 }];
        Ok(LossGradient { metrics, seconds: 0.25, ..nothing(batch) })
    };
    let batch = batch(1, |i, len| Streams { ref_logprobs: (i == 6).then(|| vec![-2.0; len]), ..advantages(i, len) });
    let outcome = custom(learner(2), Box::new(formula), 20).train_step(&batch).unwrap();
    let mut seen = seen.lock().unwrap().clone();
    let parts = seen.iter().map(|s| s.0).max().unwrap() + 1;
    assert_eq!(outcome.metrics["loss/given/part"], (parts - 1) as f64 / 2.0, "the mean over parts 0, 1, …");
    assert_eq!(outcome.metrics["time/loss"], 0.25 * parts as f64);
    seen.sort_by_key(|s| s.1);
    assert_eq!(seen.iter().map(|s| s.1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6], "every sample once");
    assert_eq!(seen[6].2, Some(-2.0));
    assert!(seen[..6].iter().all(|s| s.2.is_none_or(f32::is_nan)), "{seen:?}");
}

#[test]
fn the_other_components_stay_the_hosts() {
    let streams = |i: u32, len: usize| {
        let ce = (0..len).map(|t| if t == 1 || t == 5 { 0.25 } else { 0.0 }).collect();
        let zeros = Streams { advantages: Some(vec![0.0; len]), ..Streams::default() };
        Streams { ce_weights: (i < 3).then_some(ce), ..zeros }
    };
    let batch = batch(1, streams);
    let still = DefaultLoss { kl_tau: 0.0, ..DefaultLoss::default() };
    let (want, weights) = built_in(still, &batch);
    let mut trainer = custom(learner(2), Box::new(|batch| Ok(nothing(batch))), 48);
    let got = trainer.train_step(&batch).unwrap();
    assert_eq!(bits(trainer.learner()), weights);
    assert_eq!(
        (got.metrics["loss/mean"], got.metrics["nll/mean"]),
        (want.metrics["loss/mean"], want.metrics["nll/mean"])
    );

    // A step without rl members never asks the loss.
    let only_ce = self::batch(1, |_, len| Streams {
        rl_weights: Some(vec![0.0; len]),
        ce_weights: Some(vec![1.0; len]),
        ..Streams::default()
    });
    let mut trainer = custom(learner(2), Box::new(|_| Err("asked".into())), 48);
    assert_eq!(trainer.train_step(&only_ce).unwrap().update, Update::Applied);
}

/// −mean entropy of the members.
fn entropy_bonus(batch: &LossBatch) -> LossGradient {
    let share = |w: &f32| if *w == 0.0 { 0.0 } else { (-1.0 / batch.normalizer) as f32 };
    let gradient: Vec<f32> = batch.weights.iter().map(share).collect();
    let loss = gradient.iter().zip(batch.entropy).map(|(g, e)| f64::from(*g) * f64::from(*e)).sum();
    LossGradient { loss, dentropy: Some(gradient), ..nothing(batch) }
}

#[test]
fn gradients_by_entropy_reach_the_weights() {
    let run = |learner: Learner| {
        let mut trainer = custom(learner, Box::new(|batch| Ok(entropy_bonus(batch))), 48);
        (1..=3).map(|step| trainer.train_step(&batch(step, advantages)).unwrap().metrics).collect::<Vec<_>>()
    };
    let reference = Learner::new(learner(2).weights().unwrap().decoder, Kernels::Reference, 7).unwrap();
    let (fast, reference) = (run(learner(2)), run(reference));
    for (step, (a, b)) in fast.iter().zip(&reference).enumerate() {
        for name in ["loss/mean", "optim/grad_norm", "entropy/all/mean"] {
            assert!(
                (a[name] - b[name]).abs() <= 2e-4 * b[name].abs(),
                "{name} of step {step}: {} and {}",
                a[name],
                b[name]
            );
        }
        assert!((a["loss/mean"] + a["entropy/all/mean"]).abs() < 1e-6);
    }
    let entropy: Vec<f64> = fast.iter().map(|m| m["entropy/all/mean"]).collect();
    assert!(entropy[0] < entropy[1] && entropy[1] < entropy[2], "{entropy:?}");
}

#[test]
fn packing_changes_nothing() {
    let step = |seq_len| {
        let formula = |batch: &LossBatch| {
            let (a, b) = (default_again(batch), entropy_bonus(batch));
            Ok(LossGradient { loss: a.loss + b.loss, dentropy: b.dentropy, ..a })
        };
        custom(learner(2), Box::new(formula), seq_len).train_step(&batch(1, advantages)).unwrap().metrics
    };
    let (one, many) = (step(128), step(20));
    for name in ["loss/mean", "loss/std", "optim/grad_norm", "entropy/all/mean"] {
        assert!((one[name] - many[name]).abs() <= 1e-5 * one[name].abs(), "{name}: {} and {}", one[name], many[name]);
    }
}

#[test]
fn failures_and_lists_that_do_not_fit_end_the_step() {
    let batch = batch(1, advantages);
    let before = bits(&learner(2));
    let error = |formula: Formula| {
        let mut trainer = custom(learner(2), formula, 48);
        let error = trainer.train_step(&batch).unwrap_err().to_string();
        assert_eq!((bits(trainer.learner()), trainer.progress().step), (before.clone(), 0), "{error}");
        error
    };
    assert_eq!(error(Box::new(|_| Err("no idea".into()))), "no idea");
    let short = error(Box::new(|batch| Ok(LossGradient { dlogprob: vec![0.0], ..nothing(batch) })));
    assert!(short.starts_with("`given` gave 1 values of dlogprob for "), "{short}");
    let short = error(Box::new(|batch| Ok(LossGradient { dentropy: Some(vec![]), ..nothing(batch) })));
    assert!(short.starts_with("`given` gave 0 values of dentropy for "), "{short}");

    let table = || Loss::Custom(CustomTable { name: "given".into(), ..CustomTable::default() });
    let text = Trainer::new(learner(1), parts(table(), 48)).err().unwrap().to_string();
    assert_eq!(text, "`trainer.loss.type` = \"custom\" needs the loss `given` of a plug-in");
    let loss = Box::new(Given(Box::new(|batch| Ok(nothing(batch)))));
    let built_in = parts(Loss::Default(DefaultLoss::default()), 48);
    let text = Trainer::with_loss(learner(1), built_in, loss).err().unwrap().to_string();
    assert_eq!(text, "`trainer.loss.type` = \"default\" leaves no place for the loss `given`");
}

/// Counts its calls.
struct Counting(u8);

impl CustomLoss for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn loss(&mut self, batch: &LossBatch) -> Result<LossGradient, String> {
        self.0 += 1;
        Ok(LossGradient { loss: f64::from(self.0), ..nothing(batch) })
    }

    fn save_state(&mut self) -> Result<Option<Vec<u8>>, String> {
        Ok(Some(vec![self.0]))
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        self.0 = *state.first().ok_or("`counting`: an empty state")?;
        Ok(())
    }
}

#[test]
fn a_checkpoint_holds_its_state() {
    let made = || {
        let table = Loss::Custom(CustomTable { name: "counting".into(), ..CustomTable::default() });
        Trainer::with_loss(learner(2), parts(table, 64), Box::new(Counting(0))).unwrap()
    };
    let advantages = |_: u32, len: usize| Streams { advantages: Some(vec![1.0; len]), ..Streams::default() };
    let mut first = made();
    first.train_step(&batch(1, advantages)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    first.state().unwrap().write(dir.path()).unwrap();
    let value = |outcome: StepOutcome| outcome.metrics["loss/mean"];
    let next = value(first.train_step(&batch(2, advantages)).unwrap());
    let mut second = made();
    second.load_state(dir.path(), Skip::default()).unwrap();
    assert_eq!(value(second.train_step(&batch(2, advantages)).unwrap()), next);
    std::fs::write(dir.path().join("loss_state.bin"), "").unwrap();
    assert!(made().load_state(dir.path(), Skip::default()).unwrap_err().to_string().contains("an empty state"));
    std::fs::remove_file(dir.path().join("loss_state.bin")).unwrap();
    assert!(made().load_state(dir.path(), Skip::default()).unwrap_err().to_string().contains("loss_state.bin"));
}
