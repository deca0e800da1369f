//! Every optimiser trains a tiny model, goes on bit for bit, and takes nothing from another.

mod common;
#[path = "common/stored.rs"]
mod stored;

use common::{VOCAB, adamw, bits, constant, learner, with_weights};
use prl_config::{Muon, Optim, Sgd, SignSgd};
use prl_trainer::{Document, Mixture, SftParts, SftTrainer, Skip, ValidationPasses};
use std::path::Path;
use stored::stored;

fn sgd(momentum: f64, nesterov: bool) -> Optim {
    Optim::Sgd(Sgd { lr: 0.3, momentum, nesterov, ..Sgd::default() })
}

/// Each with the number of tensors that it remembers of a model with two layers.
fn all() -> Vec<(Optim, usize)> {
    // Per layer 7 matrices and 4 norms; the embedding and the last norm.
    let parameters = 2 * 11 + 2;
    vec![
        (adamw(1e-2), 2 * parameters),
        (sgd(0.9, true), parameters),
        (sgd(0.5, false), parameters),
        (sgd(0.0, false), 0),
        (Optim::Muon(Muon { lr: 1e-2, ..Muon::default() }), 2 * 7 + 2 * (parameters - 2 * 7)),
        (Optim::SignSgd(SignSgd { lr: 3e-3, ..SignSgd::default() }), 0),
    ]
}

fn documents() -> Mixture {
    let document = |n: u32| {
        let (start, by, len) = (n * 5, 1 + n % 2, 6 + n % 7);
        Document { ids: (0..len).map(|t| (start + t * by) % VOCAB).collect(), mask: (0..len).map(|t| t >= 3).collect() }
    };
    stored(&(0..23).map(document).collect::<Vec<_>>(), Some(9), None)
}

fn trainer(optim: &Optim) -> SftTrainer {
    resumed(optim, learner(2))
}

fn parts(optim: &Optim) -> SftParts {
    SftParts {
        optim: optim.clone(),
        scheduler: constant(),
        max_steps: None,
        seq_len: 24,
        batch_size: 4,
        micro_batch_size: 2,
        validation: ValidationPasses { seq_len: 24, rows: 1 },
        peak_flops: None,
    }
}

fn resumed(optim: &Optim, learner: prl_model::Learner) -> SftTrainer {
    SftTrainer::new(learner, parts(optim), Box::new(documents())).unwrap()
}

/// The losses of some steps.
fn steps(trainer: &mut SftTrainer, n: usize) -> Vec<f64> {
    (0..n).map(|_| trainer.train_step().unwrap().unwrap().metrics["loss/mean"]).collect()
}

fn tensors(dir: &Path) -> usize {
    let bytes = std::fs::read(dir.join("optimizer.safetensors")).unwrap();
    safetensors::SafeTensors::deserialize(&bytes).unwrap().len()
}

#[test]
fn ten_steps_are_five_and_five() {
    for (optim, remembered) in all() {
        let mut whole = trainer(&optim);
        let all_losses = steps(&mut whole, 10);
        let mut first = trainer(&optim);
        let mut losses = steps(&mut first, 5);
        let dir = tempfile::tempdir().unwrap();
        first.state().unwrap().write(dir.path()).unwrap();
        assert_eq!(tensors(dir.path()), remembered, "{optim:?}");
        let mut second = resumed(&optim, with_weights(first.learner().weights().unwrap().decoder));
        second.load_state(dir.path(), Skip::default()).unwrap();
        losses.extend(steps(&mut second, 5));
        assert_eq!(losses, all_losses, "{optim:?}");
        assert_eq!(bits(whole.learner()), bits(second.learner()), "{optim:?}");
        let saved = |trainer: &mut SftTrainer| {
            trainer.state().unwrap().write(dir.path()).unwrap();
            std::fs::read(dir.path().join("optimizer.safetensors")).unwrap()
        };
        assert!(saved(&mut whole) == saved(&mut second), "{optim:?}");
    }
}

#[test]
fn each_of_them_learns() {
    for (optim, _) in all() {
        let losses = steps(&mut trainer(&optim), 60);
        let (begin, end) = (losses[..5].iter().sum::<f64>(), losses[55..].iter().sum::<f64>());
        assert!(end < 0.8 * begin, "{optim:?}: {losses:?}");
    }
}

#[test]
fn the_state_of_another_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (saved, _) in all() {
        let mut from = trainer(&saved);
        steps(&mut from, 1);
        from.state().unwrap().write(dir.path()).unwrap();
        for (run, _) in all() {
            let mut to = trainer(&run);
            let before = bits(to.learner());
            let loaded = to.load_state(dir.path(), Skip::default());
            if saved.tag() == run.tag() {
                // With other momentum too: what is not there begins, what is not needed is left.
                loaded.unwrap();
                steps(&mut to, 2);
                continue;
            }
            let error = loaded.unwrap_err().to_string();
            for naming in [
                format!("is what the optimiser \"{}\" remembers, and this run has \"{}\"", saved.tag(), run.tag()),
                format!("`optim.type = \"{}\"`", saved.tag()),
                "`ckpt.skip_optimizer = true`".into(),
            ] {
                assert!(error.contains(&naming), "{error}");
            }
            assert_eq!((to.progress().step, bits(to.learner())), (0, before));
            to.load_state(dir.path(), Skip { optimizer: true, ..Skip::default() }).unwrap();
            assert_eq!(to.progress().step, 1);
            steps(&mut to, 1);
        }
    }
}

/// The format that runs have gone on from since there was but one optimiser.
#[test]
fn adamws_file_has_one_unnamed_count() {
    for (optim, key) in all().into_iter().map(|(optim, _)| {
        let key = if optim.tag() == "adamw" { "updates".to_string() } else { format!("{}.updates", optim.tag()) };
        (optim, key)
    }) {
        let mut trainer = trainer(&optim);
        steps(&mut trainer, 3);
        let dir = tempfile::tempdir().unwrap();
        trainer.state().unwrap().write(dir.path()).unwrap();
        let bytes = std::fs::read(dir.path().join("optimizer.safetensors")).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        assert_eq!(metadata.into_iter().collect::<Vec<_>>(), [(key, "3".to_string())]);
    }
}

fn with_adapter(dropout: f64) -> prl_model::Learner {
    let decoder = learner(2).weights().unwrap().decoder;
    let options = prl_model::LoraOptions {
        rank: 3,
        alpha: 6.0,
        dropout,
        target_modules: vec!["self_attn".into(), "down_proj".into()],
        modules_to_save: vec!["embed_tokens".into(), "norm".into()],
    };
    let plan = prl_model::LoraPlan::new(options, decoder.config()).unwrap();
    prl_model::Learner::with_lora(decoder, prl_model::Kernels::Fast, 7, (plan, 3)).unwrap()
}

/// What is trained, bit by bit.
fn trained(learner: &prl_model::Learner) -> Vec<u32> {
    let model = learner.weights().unwrap();
    model.parameters().iter().flat_map(|(_, p)| p.to_vec().unwrap()).map(f32::to_bits).collect()
}

/// What is not, bit by bit.
fn frozen(learner: &prl_model::Learner) -> Vec<u32> {
    let model = learner.weights().unwrap();
    let trained: Vec<String> = model.parameters().into_iter().map(|(info, _)| info.name).collect();
    let all = model.decoder.infos().into_iter().zip(model.decoder.parameters());
    let frozen = all.filter(|(info, _)| !trained.contains(&info.name));
    frozen.flat_map(|(_, p)| p.to_vec().unwrap()).map(f32::to_bits).collect()
}

#[test]
fn every_optimiser_trains_an_adapter_and_goes_on_bit_for_bit() {
    // Per layer 5 matrices of 2 factors; embedding and last norm.
    let parameters = 2 * 5 * 2 + 2;
    let tensors_of = [2 * parameters, parameters, parameters, 0, 20 + 2 * 2, 0];
    for ((optim, _), want) in all().into_iter().zip(tensors_of) {
        let name = format!("{optim:?}");
        let mut first = resumed(&optim, with_adapter(0.2));
        let at_first = frozen(first.learner());
        assert!(!at_first.is_empty());
        let before = steps(&mut first, 3);
        let dir = tempfile::tempdir().unwrap();
        first.state().unwrap().write(dir.path()).unwrap();
        first.learner().weights().unwrap().save_adapter(dir.path(), "base").unwrap();
        assert_eq!(tensors(dir.path()), want, "{name}");
        let mut learner = with_adapter(0.2);
        learner.load_adapter(dir.path()).unwrap();
        let mut second = resumed(&optim, learner);
        second.load_state(dir.path(), Skip::default()).unwrap();
        assert_eq!(steps(&mut first, 3), steps(&mut second, 3), "{name}");
        assert!(trained(first.learner()) == trained(second.learner()), "{name}");
        assert!(frozen(first.learner()) == at_first, "{name}: something that is frozen has changed");
        assert!(steps(&mut first, 12).last().unwrap() < &before[0], "{name}: nothing is learned");
        // The optimiser's file of a whole model is none of an adapter.
        let error = trainer(&optim).load_state(dir.path(), Skip::default());
        assert_eq!(error.is_err(), want > 0, "{name}");
    }
}

#[test]
fn packing_changes_no_mask() {
    let losses = |micro| {
        let parts = SftParts { micro_batch_size: micro, ..parts(&adamw(1e-2)) };
        let mut trainer = SftTrainer::new(with_adapter(0.4), parts, Box::new(documents())).unwrap();
        // Before the first step nothing is added yet.
        steps(&mut trainer, 2)[1]
    };
    let (one, four) = (losses(1), losses(4));
    assert!((one - four).abs() < 1e-6 * one, "{one} and {four}");
    assert!((one - steps(&mut resumed(&adamw(1e-2), with_adapter(0.0)), 2)[1]).abs() > 1e-5 * one);
}
