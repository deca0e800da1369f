//! Steps of reinforcement learning on a tiny model.

mod common;

use common::{VOCAB, adamw, bits, constant, learner, with_weights};
use prl_config::{AdamW, DefaultLoss, LinearScheduler, Loss, Optim, Scheduler};
use prl_model::{Kernels, Learner, Packed};
use prl_trainer::{Skip, StepOutcome, Trainer, TrainerError, TrainerParts, Update};
use prl_types::{Batch, BatchItem, FinishReason, PolicyVersion, Sample, Sampled, Streams};

const PROMPT: usize = 3;

fn parts() -> TrainerParts {
    TrainerParts {
        loss: Loss::Default(DefaultLoss::default()),
        optim: adamw(1e-2),
        scheduler: constant(),
        max_steps: Some(10),
        seq_len: 48,
        peak_flops: None,
    }
}

fn trainer(parts: TrainerParts) -> Trainer {
    Trainer::new(learner(2), parts).unwrap()
}

/// A sample with the log-probabilities that `learner` gives it now, as if just sampled.
fn item(learner: &mut Learner, env: &str, i: u32, len: usize, advantage: f32) -> BatchItem {
    let ids: Vec<u32> = (0..(PROMPT + len) as u32).map(|t| (t * 7 + i * 11 + t * t * i) % VOCAB).collect();
    let packed = Packed { ids: ids.clone(), doc_lens: vec![ids.len()], temperatures: vec![0.9; ids.len()] };
    let logprobs = learner.forward(&packed).unwrap().logprobs;
    let version = (PolicyVersion(0), PolicyVersion(0));
    let mut sample = Sample::from_prompt(&ids[..PROMPT], vec![], 0.9);
    let finish = FinishReason::Length;
    sample.push_sampled(
        &Sampled::from_engine(ids[PROMPT..].to_vec(), logprobs[PROMPT..].to_vec(), version, finish).unwrap(),
    );
    let advantages = Some(vec![advantage; ids.len()]);
    BatchItem::new(env.into(), sample, Streams { advantages, ..Default::default() }).unwrap()
}

fn batch(step: u64) -> Batch {
    let mut at = learner(2);
    let items = (0..9)
        .map(|i| {
            let env = if i % 2 == 0 { "a" } else { "b" };
            item(&mut at, env, i, 4 + 3 * i as usize, if i % 3 == 0 { 1.0 } else { -0.5 })
        })
        .collect();
    Batch { step, items }
}

/// Without the metrics that measure the machine.
fn timeless(outcome: &StepOutcome) -> Vec<(String, u64)> {
    let timed = |name: &str| name.starts_with("perf/") || name.starts_with("time/");
    outcome.metrics.iter().filter(|(k, _)| !timed(k)).map(|(k, v)| (k.clone(), v.to_bits())).collect()
}

#[test]
fn a_step_reports_exactly_these_metrics() {
    let mut trainer = trainer(TrainerParts { peak_flops: Some(1e12), ..parts() });
    let outcome = trainer.train_step(&batch(1)).unwrap();
    assert_eq!(outcome.update, Update::Applied);
    let mut want: Vec<String> = Vec::new();
    for of in ["all", "a", "b"] {
        for kind in ["entropy", "mismatch_kl"] {
            want.extend(["mean", "std", "max"].map(|s| format!("{kind}/{of}/{s}")));
        }
    }
    want.extend(["mean", "median", "std", "min", "max"].map(|s| format!("loss/{s}")));
    for name in [
        "is_masked",
        "is_masked_low",
        "is_masked_high",
        "masked_advantage_positive",
        "masked_advantage_negative",
        "masked_mismatch_kl",
        "unmasked_mismatch_kl",
    ] {
        want.extend(["mean", "max"].map(|s| format!("{name}/{s}")));
    }
    want.extend(["lr", "grad_norm", "zero_grad_ratio", "skipped_steps"].map(|s| format!("optim/{s}")));
    want.extend(["throughput", "throughput_per_gpu", "mfu", "peak_memory"].map(|s| format!("perf/{s}")));
    want.extend(["forward_backward", "step"].map(|s| format!("time/{s}")));
    want.push("zero_trainable_batches".into());
    want.sort_unstable();
    assert_eq!(outcome.metrics.keys().cloned().collect::<Vec<_>>(), want);
    assert_eq!(outcome.metrics["mismatch_kl/all/max"], 0.0);
    assert_eq!(outcome.metrics["optim/lr"], 1e-2);
    assert!(outcome.metrics["optim/grad_norm"] > 0.0);
    assert_eq!(trainer.progress().total_samples, 9);
}

#[test]
fn advantage_moves_probability_and_replays_mismatch() {
    let mut trainer = trainer(parts());
    let mut at = learner(2);
    let good = item(&mut at, "a", 1, 8, 1.0);
    let mut last = f64::NEG_INFINITY;
    for step in 1..=4 {
        let outcome = trainer.train_step(&Batch { step, items: vec![good.clone()] }).unwrap();
        // The samples stay those of the first weights, so the ratio grows until the mask bites.
        assert!(-outcome.metrics["loss/mean"] > last || outcome.metrics["is_masked/mean"] > 0.0);
        last = -outcome.metrics["loss/mean"];
        assert_eq!(outcome.metrics["mismatch_kl/all/mean"] > 0.0, step > 1);
    }
}

#[test]
fn the_same_steps_give_the_same_bits() {
    let (mut a, mut b) = (trainer(parts()), trainer(parts()));
    for step in 1..=2 {
        let (x, y) = (a.train_step(&batch(step)).unwrap(), b.train_step(&batch(step)).unwrap());
        assert_eq!(timeless(&x), timeless(&y));
    }
    assert_eq!(bits(a.learner()), bits(b.learner()));
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    let linear = Scheduler::Linear(LinearScheduler { warmup_steps: 2, decay_steps: 2, min_lr: 1e-3 });
    let parts = TrainerParts { scheduler: linear, ..parts() };
    let mut whole = trainer(parts.clone());
    let mut first = trainer(parts.clone());
    for step in 1..=2 {
        whole.train_step(&batch(step)).unwrap();
        first.train_step(&batch(step)).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    first.state().unwrap().write(dir.path()).unwrap();
    let mut second = Trainer::new(with_weights(first.learner().weights().unwrap().decoder), parts).unwrap();
    drop(first);
    second.load_state(dir.path(), Skip::default()).unwrap();
    assert_eq!(second.progress(), whole.progress());
    for step in 3..=4 {
        let (x, y) = (whole.train_step(&batch(step)).unwrap(), second.train_step(&batch(step)).unwrap());
        assert_eq!(timeless(&x), timeless(&y));
    }
    assert_eq!(bits(whole.learner()), bits(second.learner()));
}

#[test]
fn state_before_the_first_update_is_state_too() {
    let dir = tempfile::tempdir().unwrap();
    trainer(parts()).state().unwrap().write(dir.path()).unwrap();
    let mut loaded = trainer(parts());
    loaded.train_step(&batch(1)).unwrap();
    loaded.load_state(dir.path(), Skip::default()).unwrap();
    assert_eq!(loaded.progress().step, 0);
}

#[test]
fn damaged_or_foreign_state_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut saved = trainer(parts());
    saved.train_step(&batch(1)).unwrap();
    saved.state().unwrap().write(dir.path()).unwrap();
    let file = dir.path().join("optimizer.safetensors");
    let good = std::fs::read(&file).unwrap();

    let mut other = Trainer::new(learner(1), parts()).unwrap();
    let error = other.load_state(dir.path(), Skip::default()).unwrap_err().to_string();
    assert!(error.contains("it holds"), "{error}");
    assert_eq!(other.progress().step, 0);

    for cut in [0, 7, 100, good.len() - 1] {
        std::fs::write(&file, &good[..cut]).unwrap();
        assert!(
            matches!(trainer(parts()).load_state(dir.path(), Skip::default()), Err(TrainerError::File { .. })),
            "cut at {cut}"
        );
    }
    std::fs::write(&file, &good).unwrap();
    std::fs::write(dir.path().join("trainer.json"), "{\"step\": 1}").unwrap();
    assert!(trainer(parts()).load_state(dir.path(), Skip::default()).is_err());
}

/// https://github.com/huggingface/trl/issues/6369
/// https://github.com/huggingface/trl/pull/6439
#[test]
fn fully_masked_rows_change_nothing_at_all() {
    let (mut plain, mut padded) = (trainer(parts()), trainer(parts()));
    let mut with_rows = batch(1);
    let mut at = learner(2);
    for i in 0..5 {
        let mut idle = item(&mut at, "a", 20 + i, 6 + 5 * i as usize, 1.0);
        idle.streams.rl_weights = Some(vec![0.0; idle.sample.len()]);
        with_rows.items.insert(2 * i as usize, idle);
    }
    let (x, y) = (plain.train_step(&batch(1)).unwrap(), padded.train_step(&with_rows).unwrap());
    assert_eq!(timeless(&x), timeless(&y));
    assert_eq!(bits(plain.learner()), bits(padded.learner()));
}

/// https://github.com/unslothai/unsloth-zoo/pull/1286
/// https://github.com/huggingface/trl/pull/3248
#[test]
fn a_batch_without_a_trainable_token_updates_nothing() {
    let mut trainer = trainer(parts());
    let before = bits(trainer.learner());
    let mut idle = batch(1);
    for it in &mut idle.items {
        it.streams.rl_weights = Some(vec![0.0; it.sample.len()]);
    }
    let outcome = trainer.train_step(&idle).unwrap();
    assert_eq!(outcome.update, Update::NothingTrainable);
    assert_eq!((outcome.metrics["loss/mean"], outcome.metrics["zero_trainable_batches"]), (0.0, 1.0));
    let outcome = trainer.train_step(&Batch { step: 2, items: vec![] }).unwrap();
    assert_eq!(outcome.metrics["zero_trainable_batches"], 2.0);
    assert!(outcome.metrics.values().all(|v| v.is_finite()));
    assert_eq!(bits(trainer.learner()), before);
    // The optimiser has not moved either: the next step is a first step.
    let (mut fresh, third) = (self::trainer(parts()), Batch { step: 3, ..batch(3) });
    trainer.train_step(&third).unwrap();
    fresh.train_step(&batch(1)).unwrap();
    assert_eq!(bits(trainer.learner()), bits(fresh.learner()));
}

#[test]
fn a_step_that_is_not_finite_is_left_out() {
    let mut trainer = trainer(parts());
    let before = bits(trainer.learner());
    let mut broken = batch(1);
    let sample = &broken.items[3].sample;
    let n = sample.len() - PROMPT;
    let version = (PolicyVersion(0), PolicyVersion(0));
    let ids = sample.token_ids().to_vec();
    let mut bad = Sample::from_prompt(&ids[..PROMPT], vec![], 0.9);
    // e^(lp + 2000) overflows.
    bad.push_sampled(
        &Sampled::from_engine(ids[PROMPT..].to_vec(), vec![-2000.0; n], version, FinishReason::Length).unwrap(),
    );
    broken.items[3].sample = bad;
    broken.items[3].streams.advantages = Some(vec![0.1; n + PROMPT]);
    let outcome = trainer.train_step(&broken).unwrap();
    assert_eq!(outcome.update, Update::NotFinite);
    assert_eq!(outcome.metrics["optim/skipped_steps"], 1.0);
    assert!(outcome.metrics.values().all(|v| v.is_finite()));
    assert_eq!(bits(trainer.learner()), before);
    let mut fresh = self::trainer(parts());
    trainer.train_step(&batch(2)).unwrap();
    fresh.train_step(&batch(1)).unwrap();
    assert_eq!(bits(trainer.learner()), bits(fresh.learner()));
}

#[test]
fn packing_does_not_change_the_loss() {
    let step = |seq_len| trainer(TrainerParts { seq_len, ..parts() }).train_step(&batch(1)).unwrap().metrics;
    let (narrow, wide) = (step(33), step(400));
    for name in ["loss/mean", "loss/std", "entropy/all/mean", "entropy/b/max", "is_masked/mean"] {
        assert_eq!(narrow[name].to_bits(), wide[name].to_bits(), "{name}");
    }
    let (a, b) = (narrow["optim/grad_norm"], wide["optim/grad_norm"]);
    assert!((a - b).abs() < 1e-5 * a, "{a} and {b}");
    // Cut samples keep what is within the row.
    assert!(step(8)["loss/mean"].is_finite());
}

#[test]
fn plain_burn_operations_train_the_same_way() {
    let reference = Learner::new(learner(2).weights().unwrap().decoder, Kernels::Reference, 7).unwrap();
    let (mut fast, mut reference) = (trainer(parts()), Trainer::new(reference, parts()).unwrap());
    for step in 1..=2 {
        let (x, y) = (fast.train_step(&batch(step)).unwrap(), reference.train_step(&batch(step)).unwrap());
        for name in ["loss/mean", "optim/grad_norm", "entropy/all/mean"] {
            let (x, y) = (x.metrics[name], y.metrics[name]);
            assert!((x - y).abs() < 1e-3 * x.abs().max(0.1), "{name} at step {step}: {x} and {y}");
        }
    }
}

#[test]
fn gradients_are_clipped_to_the_largest_norm() {
    let optim = Optim::AdamW(AdamW { lr: 1e-3, max_norm: Some(1e-3), ..AdamW::default() });
    let mut trainer = trainer(TrainerParts { optim, ..parts() });
    let norm = trainer.train_step(&batch(1)).unwrap().metrics["optim/grad_norm"];
    assert!(norm > 1e-2, "the reported norm {norm} is the one before clipping");
    let dir = tempfile::tempdir().unwrap();
    trainer.state().unwrap().write(dir.path()).unwrap();
    let bytes = std::fs::read(dir.path().join("optimizer.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let squares: f64 = file
        .tensors()
        .iter()
        .filter(|(name, _)| name.ends_with(".exp_avg"))
        .flat_map(|(_, t)| bytemuck::pod_collect_to_vec::<u8, f32>(t.data()))
        .map(|x| f64::from(x).powi(2))
        .sum();
    // After one update the first moment is 0.1 of the gradient.
    assert!((squares.sqrt() / 0.1 - 1e-3).abs() < 1e-6, "{}", squares.sqrt() / 0.1);
}

#[test]
fn mistakes_are_typed() {
    let mut trainer = trainer(parts());
    assert!(matches!(trainer.train_step(&batch(2)), Err(TrainerError::OutOfTurn { got: 2, want: 1 })));
    let before = bits(trainer.learner());
    let mut bad = batch(1);
    bad.items[8].streams.advantages = None;
    let error = trainer.train_step(&bad).unwrap_err().to_string();
    assert_eq!(error, "sample 8 of environment `a` has tokens in the `rl` component but no `advantages`");
    assert_eq!((bits(trainer.learner()) == before, trainer.progress().step), (true, 0));
    // Nothing of the failed step is left in the gradients.
    trainer.train_step(&batch(1)).unwrap();
    let mut fresh = self::trainer(parts());
    fresh.train_step(&batch(1)).unwrap();
    assert_eq!(bits(trainer.learner()), bits(fresh.learner()));
    let error = Trainer::new(learner(1), TrainerParts { seq_len: 1, ..parts() }).err().unwrap().to_string();
    assert!(error.contains("`trainer.model.seq_len` = 1"), "{error}");
}
