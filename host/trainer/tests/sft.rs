//! Supervised fine-tuning of a tiny model.

mod common;
#[path = "common/stored.rs"]
mod stored;

use common::{CONFIG, VOCAB, adamw, bits, constant, learner, with_weights};
use prl_model::{Decoder, Device, Learner, ModelConfig, Packed};
use prl_trainer::{
    Document, Documents, Generated, Mixture, SftParts, SftTrainer, Skip, TrainerError, Turns, Until, Update,
    ValidationPasses,
};
use std::path::Path;
use stored::{part, stored};

fn parts() -> SftParts {
    SftParts {
        optim: adamw(1e-2),
        scheduler: constant(),
        max_steps: None,
        seq_len: 24,
        batch_size: 4,
        micro_batch_size: 2,
        validation: ValidationPasses { seq_len: 24, rows: 1 },
        peak_flops: None,
    }
}

/// Counts upwards from a start, in steps of 1 or 2; the first three tokens are the prompt.
fn document(n: u64) -> Document {
    let (start, by, len) = (n as u32 * 5, 1 + n as u32 % 2, 6 + n as usize % 7);
    Document {
        ids: (0..len as u32).map(|t| (start + t * by) % VOCAB).collect(),
        mask: (0..len).map(|t| t >= 3).collect(),
    }
}

fn documents(n: u64) -> Vec<Document> {
    (0..n).map(document).collect()
}

fn trainer(parts: SftParts, source: impl Documents + 'static) -> SftTrainer {
    SftTrainer::new(learner(2), parts, Box::new(source)).unwrap()
}

/// Mean −log p over all targets, straight from the model.
fn mean_nll(documents: &[Document]) -> f64 {
    let (mut nll, mut n) = (0.0, 0);
    for d in documents {
        let packed = Packed { ids: d.ids.clone(), doc_lens: vec![d.ids.len()], temperatures: vec![1.0; d.ids.len()] };
        let stats = learner(2).forward(&packed).unwrap();
        for t in 1..d.ids.len() {
            if d.mask[t] {
                nll -= f64::from(stats.logprobs[t]);
                n += 1;
            }
        }
    }
    nll / f64::from(n)
}

#[test]
fn the_loss_is_the_token_mean_whatever_the_rows() {
    let want = mean_nll(&documents(9));
    for (seq_len, batch_size, micro_batch_size) in [(12, 32, 1), (12, 32, 4), (40, 16, 16)] {
        let parts = SftParts { seq_len, batch_size, micro_batch_size, ..parts() };
        let mut trainer = trainer(parts, stored(&documents(9), None, Some(1)));
        let outcome = trainer.train_step().unwrap().unwrap();
        assert!((outcome.metrics["loss/mean"] - want).abs() < 1e-6);
        assert_eq!(outcome.metrics["progress/num_samples"], 9.0);
        assert!(trainer.train_step().unwrap().is_none(), "one epoch is all");
    }
}

/// Passes of one row and one pass of all rows are the same step, but for the order of sums.
#[test]
fn passes_add_up() {
    let after = |micro_batch_size: usize| {
        let parts = SftParts { micro_batch_size, optim: adamw(1e-3), ..parts() };
        let mut trainer = trainer(parts, stored(&documents(23), Some(9), None));
        let metrics = (0..3).map(|_| trainer.train_step().unwrap().unwrap().metrics).last().unwrap();
        let weights: Vec<f32> = bits(trainer.learner()).into_iter().map(f32::from_bits).collect();
        (weights, metrics["loss/mean"], metrics["optim/grad_norm"])
    };
    let (whole, loss, norm) = after(4);
    for micro_batch_size in [1, 2] {
        let (weights, loss_of_parts, norm_of_parts) = after(micro_batch_size);
        assert!((loss - loss_of_parts).abs() < 1e-6 && (norm - norm_of_parts).abs() < 1e-5 * norm);
        let apart = whole.iter().zip(&weights).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Three steps of at most 1e-3 each.
        assert!(apart < 2e-5, "{apart}");
    }
}

/// A model that gives no finite number to a document with the last token of the vocabulary in it, and is well otherwise.
fn poisoned() -> Learner {
    let text = CONFIG.replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    let config = ModelConfig::parse(&text, Path::new("config.json")).unwrap();
    let mut decoder = Decoder::init(config, 5, &Device::Cpu.open().unwrap());
    let last = VOCAB as usize - 1;
    decoder.embed = decoder.embed.map(|embed| {
        let row = [last..last + 1, 0..embed.dims()[1]];
        let poison = embed.clone().slice(row.clone()) * f32::NAN;
        embed.slice_assign(row, poison)
    });
    with_weights(decoder)
}

/// A row each, so that rows, passes and documents are the same.
fn one_a_pass(batch_size: usize) -> SftParts {
    SftParts { seq_len: 8, batch_size, micro_batch_size: 1, ..parts() }
}

/// Of 8 tokens, none of which is the last of the vocabulary but where that is asked for.
fn whole_row(n: u32, bad: bool) -> Document {
    let mut ids: Vec<u32> = (0..8).map(|t| (n * 3 + t) % (VOCAB - 1)).collect();
    if bad {
        ids[2] = VOCAB - 1;
    }
    Document { mask: (0..8).map(|t| t >= 3 + n as usize % 3).collect(), ids }
}

#[test]
fn a_pass_that_is_not_finite_is_left_out_and_the_step_is_that_of_the_others() {
    let run = |rows: &[(u32, bool)]| {
        let rows: Vec<Document> = rows.iter().map(|(n, bad)| whole_row(*n, *bad)).collect();
        let count = rows.len();
        let source = Box::new(stored(&rows, None, Some(1)));
        let mut trainer = SftTrainer::new(poisoned(), one_a_pass(count), source).unwrap();
        let outcome = trainer.train_step().unwrap().unwrap();
        (bits(trainer.learner()), outcome, trainer.progress().skipped_steps)
    };
    let (weights, rest, _) = run(&[(0, false), (2, false), (3, false)]);
    assert_eq!((rest.update, rest.metrics["loss/nan_count"]), (Update::Applied, 0.0));
    for rows in [
        [(0, false), (1, true), (2, false), (3, false), (9, true)],
        [(1, true), (0, false), (2, false), (9, true), (3, false)],
    ] {
        let (with_bad, outcome, skipped) = run(&rows);
        assert_eq!((outcome.update, outcome.metrics["loss/nan_count"], skipped), (Update::Applied, 2.0, 0));
        assert_eq!(outcome.metrics["loss/mean"].to_bits(), rest.metrics["loss/mean"].to_bits());
        assert_eq!(outcome.metrics["optim/grad_norm"].to_bits(), rest.metrics["optim/grad_norm"].to_bits());
        assert!(with_bad == weights, "other weights");
    }

    let before = bits(&poisoned());
    let (weights, none, skipped) = run(&[(1, true), (4, true)]);
    assert_eq!((none.update, none.metrics["loss/nan_count"], skipped), (Update::NotFinite, 2.0, 1));
    assert!(weights == before && !none.metrics.contains_key("loss/mean"));
}

#[test]
fn validation_says_what_training_says() {
    let still = SftParts { optim: adamw(0.0), batch_size: 64, micro_batch_size: 1, ..parts() };
    let mut trainer = trainer(still, stored(&documents(20), None, None));
    let validated = trainer.validate(&mut stored(&documents(20), None, Some(1))).unwrap()["val/loss"];
    let mut once = SftTrainer::new(learner(2), SftParts { batch_size: 64, micro_batch_size: 1, ..parts() }, {
        Box::new(stored(&documents(20), None, Some(1)))
    })
    .unwrap();
    let trained = once.train_step().unwrap().unwrap().metrics["loss/mean"];
    assert!((validated - trained).abs() < 1e-12, "{validated} {trained}");
    trainer.train_step().unwrap();
    assert_eq!(
        trainer.validate(&mut stored(&documents(20), None, Some(1))).unwrap()["val/loss"].to_bits(),
        validated.to_bits(),
        "lr 0 moves"
    );
}

#[test]
fn validation_has_rows_and_passes_of_its_own() {
    let all = documents(20);
    let want = mean_nll(&all);
    let longest = all.iter().map(|d| d.ids.len()).max().unwrap();
    for (seq_len, rows) in [(longest, 1), (24, 3), (100, 100)] {
        // Training would cut every document.
        let parts = SftParts { seq_len: 5, validation: ValidationPasses { seq_len, rows }, ..parts() };
        let metrics = trainer(parts, stored(&all, None, None)).validate(&mut stored(&all, None, Some(1))).unwrap();
        assert!((metrics["val/loss"] - want).abs() < 1e-6, "{seq_len} {rows}");
        assert_eq!((metrics["val/nan_count"], metrics["val/skipped_documents"]), (0.0, 0.0));
    }
    let short = SftParts { validation: ValidationPasses { seq_len: 5, rows: 2 }, ..parts() };
    let metrics = trainer(short, stored(&all, None, None)).validate(&mut stored(&all, None, Some(1))).unwrap();
    assert!((metrics["val/loss"] - want).abs() > 1e-3);
    let none = SftParts { validation: ValidationPasses { seq_len: 1, rows: 2 }, ..parts() };
    let error = SftTrainer::new(learner(1), none, Box::new(stored(&all, None, None))).err().unwrap();
    assert_eq!(error.to_string(), "`val.data.seq_len` = 1 leaves no token to predict");
}

#[test]
fn documents_that_are_not_finite_are_left_out_of_a_validation_and_counted() {
    let validate = |rows: &[(u32, bool)]| {
        let rows: Vec<Document> = rows.iter().map(|(n, bad)| whole_row(*n, *bad)).collect();
        let source = Box::new(stored(&rows, None, Some(1)));
        let mut trainer = SftTrainer::new(poisoned(), parts(), source).unwrap();
        trainer.validate(&mut stored(&rows, None, Some(1))).unwrap()
    };
    let good = validate(&[(0, false), (2, false), (3, false)]);
    let mixed = validate(&[(0, false), (1, true), (2, false), (9, true), (3, false)]);
    assert_eq!((good["val/nan_count"], mixed["val/nan_count"]), (0.0, 2.0));
    assert!((good["val/loss"] - mixed["val/loss"]).abs() < 1e-9, "{good:?} {mixed:?}");
    let bad = validate(&[(1, true)]);
    assert!(bad["val/nan_count"] == 1.0 && !bad.contains_key("val/loss"), "{bad:?}");
}

#[test]
fn it_learns_what_it_is_shown() {
    let mut trainer = trainer(parts(), stored(&documents(40), Some(1), None));
    let before = trainer.validate(&mut stored(&documents(40), None, Some(1))).unwrap()["val/loss"];
    assert!((before - mean_nll(&documents(40))).abs() < 1e-6);
    for _ in 0..60 {
        assert_eq!(trainer.train_step().unwrap().unwrap().update, Update::Applied);
    }
    let after = trainer.validate(&mut stored(&documents(40), None, Some(1))).unwrap()["val/loss"];
    assert!(after < 0.5 * before, "{before} → {after}");
}

#[test]
fn validation_changes_nothing() {
    let mut a = trainer(parts(), stored(&documents(20), Some(1), None));
    let mut b = trainer(parts(), stored(&documents(20), Some(1), None));
    for _ in 0..3 {
        a.validate(&mut stored(&documents(7), None, Some(1))).unwrap();
        a.train_step().unwrap();
        b.train_step().unwrap();
    }
    assert_eq!(bits(a.learner()), bits(b.learner()));
    assert!(a.validate(&mut stored(&[], None, Some(1))).unwrap().is_empty());
}

#[test]
fn a_resumed_run_goes_on_bit_for_bit() {
    let source = || stored(&documents(23), Some(9), None);
    let (mut whole, mut first) = (trainer(parts(), source()), trainer(parts(), source()));
    for _ in 0..3 {
        whole.train_step().unwrap();
        first.train_step().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    first.state().unwrap().write(dir.path()).unwrap();
    let weights = with_weights(first.learner().weights().unwrap().decoder);
    let mut second = SftTrainer::new(weights, parts(), Box::new(source())).unwrap();
    second.load_state(dir.path(), Skip::default()).unwrap();
    for _ in 0..3 {
        let (x, y) = (whole.train_step().unwrap().unwrap(), second.train_step().unwrap().unwrap());
        for name in ["loss/mean", "optim/grad_norm", "progress/epoch", "progress/num_tokens"] {
            assert_eq!(x.metrics[name].to_bits(), y.metrics[name].to_bits(), "{name}");
        }
    }
    assert_eq!(bits(whole.learner()), bits(second.learner()));
}

#[test]
fn other_data_is_no_way_to_go_on() {
    let source = |documents: &[Document], seed| stored(documents, Some(seed), None);
    let all = documents(23);
    let mut first = trainer(parts(), source(&all, 9));
    first.train_step().unwrap();
    let dir = tempfile::tempdir().unwrap();
    first.state().unwrap().write(dir.path()).unwrap();
    let load = |source: Box<dyn Documents>, skip| {
        let mut second = SftTrainer::new(learner(2), parts(), source).unwrap();
        second.load_state(dir.path(), skip).map(|()| second.progress().documents)
    };
    let used = first.progress().documents;
    assert!(used > 0 && load(Box::new(source(&all, 9)), Skip::default()).unwrap() == used);
    let mut other = all.clone();
    other[5].ids[0] = (other[5].ids[0] + 1) % VOCAB;
    let told = |source: Mixture| match load(Box::new(source), Skip::default()) {
        Err(TrainerError::OtherData { difference }) => difference,
        other => panic!("{other:?}"),
    };
    assert!(told(source(&other, 9)).starts_with("`all` has as many tokens as before, but others"));
    assert!(told(source(&all[..22], 9)).starts_with("`all` is 22 documents of "));
    assert_eq!(told(source(&all, 8)), "`data.seed` is 8, and was 9");
    assert_eq!(told(stored(&all, None, None)), "`data.shuffle` is false, and was true");
    let masked = |mut document: Document| {
        document.mask[4] = !document.mask[4];
        document
    };
    assert!(told(source(&all.iter().cloned().map(masked).collect::<Vec<_>>(), 9)).contains("loss mask"));
    let error = load(Box::new(source(&other, 9)), Skip::default()).unwrap_err().to_string();
    assert!(
        error.contains("not that of the checkpoint") && error.ends_with("`ckpt.skip_dataloader = true`"),
        "{error}"
    );
    // What has no end is not what it was, either.
    assert!(load(Box::new(Generated(|n| Ok(document(n)))), Skip::default()).is_err());
    let begun_anew = Skip { dataloader: true, ..Skip::default() };
    assert_eq!(load(Box::new(source(&other, 9)), begun_anew).unwrap(), 0);

    // Sources without an end are told by how they begin.
    let mut first = trainer(parts(), Generated(|n| Ok(document(n))));
    first.train_step().unwrap();
    first.state().unwrap().write(dir.path()).unwrap();
    assert!(load(Box::new(Generated(|n| Ok(document(n)))), Skip::default()).is_ok());
    assert!(load(Box::new(Generated(|n| Ok(document(n + 1)))), Skip::default()).is_err());
}

#[test]
fn a_mixture_says_what_it_is_made_of_and_goes_on_over_the_end_of_an_epoch() {
    let source = || {
        let parts = vec![part("a", &documents(9)), part("b", &documents(17)[9..])];
        let turns = Turns { probabilities: Some(vec![0.7, 0.3]), until: Until::All, seed: 2 };
        Mixture::new(parts, &turns, Some(4), None).unwrap()
    };
    let len = source().epoch_len();
    let mut whole = trainer(parts(), source());
    let mut metrics = Vec::new();
    // The border of the first epoch lies within the last of the steps before the stop.
    while whole.epoch() == 0 {
        metrics.push(whole.train_step().unwrap().unwrap().metrics);
    }
    assert!(whole.progress().documents > len as u64);
    let last = metrics.last().unwrap();
    for what in ["samples", "tokens"] {
        let share = |name: &str| last[&format!("progress/{name}/ratio_{what}")];
        assert!((share("a") + share("b") - 1.0).abs() < 1e-12);
        assert!(share("a") > share("b") && share("b") > 0.0, "{last:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    whole.state().unwrap().write(dir.path()).unwrap();
    let weights = with_weights(whole.learner().weights().unwrap().decoder);
    let mut second = SftTrainer::new(weights, parts(), Box::new(source())).unwrap();
    second.load_state(dir.path(), Skip::default()).unwrap();
    for _ in 0..4 {
        let (x, y) = (whole.train_step().unwrap().unwrap(), second.train_step().unwrap().unwrap());
        let same = |name: &&String| !name.starts_with("time/") && !name.starts_with("perf/");
        let of = |metrics: &prl_trainer::StepMetrics| -> Vec<(String, u64)> {
            metrics.keys().filter(same).map(|name| (name.clone(), metrics[name].to_bits())).collect()
        };
        assert_eq!(of(&x.metrics), of(&y.metrics));
    }
    assert_eq!(bits(whole.learner()), bits(second.learner()));
}

#[test]
fn a_generator_never_ends_and_metrics_are_complete() {
    let mut trainer = trainer(SftParts { peak_flops: Some(1e12), ..parts() }, Generated(|n| Ok(document(n))));
    let outcome = trainer.train_step().unwrap().unwrap();
    let mut names = vec![
        "loss/mean",
        "loss/nan_count",
        "perf/mfu",
        "perf/peak_memory",
        "perf/throughput",
        "perf/throughput_per_gpu",
    ];
    names.extend(["optim/grad_norm", "optim/lr", "optim/skipped_steps", "optim/zero_grad_ratio"]);
    names.extend(["progress/epoch", "progress/num_samples", "progress/num_tokens", "progress/skipped_documents"]);
    names.extend(["time/forward_backward", "time/load_data", "time/step"]);
    names.sort_unstable();
    assert_eq!(outcome.metrics.keys().map(String::as_str).collect::<Vec<_>>(), names);
    let failing = Generated(|_| Err("no more ideas".to_string()));
    let error = self::trainer(parts(), failing).train_step().unwrap_err().to_string();
    assert_eq!(error, "document 0: no more ideas");
    let bad = SftParts { micro_batch_size: 3, ..parts() };
    let error = SftTrainer::new(learner(1), bad, Box::new(Generated(|n| Ok(document(n))))).err().unwrap();
    assert_eq!(error.to_string(), "`data.micro_batch_size` = 3 must divide `batch_size` = 4");
}

#[test]
fn a_stop_gives_a_step_up_between_two_passes() {
    let mut trainer = SftTrainer::new(learner(1), parts(), Box::new(Generated(|n| Ok(document(n))))).unwrap();
    let before = trainer.learner().gradients().unwrap();
    let calls = std::sync::atomic::AtomicU32::new(0);
    // Not before the first pass, but before the second.
    trainer.stop_when(move || calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0);
    assert!(matches!(trainer.train_step(), Err(TrainerError::Stopped)));
    assert_eq!(trainer.progress().step, 0);
    assert_eq!(trainer.learner().gradients().unwrap(), before);
}

#[test]
fn a_stop_gives_a_validation_up_between_two_passes() {
    let mut trainer = trainer(parts(), stored(&documents(20), None, None));
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let seen = calls.clone();
    trainer.stop_when(move || seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 1);
    let stopped = trainer.validate(&mut stored(&documents(20), None, Some(1)));
    assert!(matches!(stopped, Err(TrainerError::Stopped)), "{stopped:?}");
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 3);
}
