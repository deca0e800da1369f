//! Binaries of released ABIs: what was built then must load now, be given the same, and give the same as a build of today.

mod common;

use common::{compile_c, group, gspo, rollout};
use prl_algorithm::{Algorithm, Hook, Plugin, Scored};
use prl_types::{
    LossBatch, LossGradient, Metric, RewardComponent, RoleSpan, Rollout, Score, Streams, Truncation, Turn,
};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/abi_1_0")
}

/// A committed binary; `None` (and a line) on another machine.
fn fixture(test: &str, name: &str) -> Option<Plugin> {
    if std::env::consts::ARCH != "x86_64" {
        eprintln!("skipped {test}: the binary is for x86_64");
        return None;
    }
    Some(Plugin::load(&folder().join(format!("{name}-x86_64.so"))).unwrap())
}

/// Rollouts with something in every column.
fn rich() -> Vec<Rollout> {
    let mut rollouts =
        vec![rollout(0, 1.25, &[(2, 3), (1, 2)]), rollout(2, -0.5, &[(3, 1)]), rollout(3, 0.0, &[(1, 1)])];
    let task = Arc::make_mut(&mut rollouts[0].task);
    task.answer = Some(json!(["é", 1.5]));
    let info = Some(json!({"exact": false}));
    let components = vec![RewardComponent { name: "exact".into(), value: 2.5, weight: 0.5 }];
    rollouts[0].score = Score { components, metrics: vec![Metric { name: "chars".into(), value: 41.0 }], info };
    rollouts[0].turns[1] = Turn { reward: Some(0.25), ..rollouts[0].turns[1].clone() };
    rollouts[1].truncation = Some(Truncation { reason: "context".into() });
    rollouts[1].stop_condition = "max_turns".into();
    let tool = RoleSpan { start: 0, len: 2, role: prl_types::Role::Tool, is_content: false };
    rollouts[2].samples[0].push_context(&[5, 6], &[tool]);
    for rollout in &mut rollouts[..2] {
        let of =
            |n: usize| Streams { ref_logprobs: Some((0..n).map(|t| -0.25 * t as f32).collect()), ..Streams::default() };
        rollout.streams = rollout.samples.iter().map(|s| of(s.len())).collect();
    }
    rollouts
}

/// The loss of two samples, with and without a reference; numbers that f32 holds exactly.
fn loss(algorithm: &mut Algorithm, reference: Option<&[f32]>) -> LossGradient {
    let list = |of: fn(u8) -> u8| (0..7).map(|t| -1.0 - f32::from(of(t)) / 64.0).collect::<Vec<f32>>();
    let weights = [0.0, 1.0, 0.5, 0.0, 0.0, 1.0, -1.0];
    let batch = LossBatch {
        step: 4,
        part: 1,
        normalizer: 12.0,
        starts: &[0, 4, 7],
        temperatures: &[1.0, 0.5],
        oldest: &[3, 4],
        newest: &[5, 6],
        token_ids: &[0, 1, 2, 3, 4, 5, 6],
        mask: &[0, 1, 1, 0, 0, 1, 1],
        trainer_logprobs: &list(|t| t * 5 % 7),
        sampling_logprobs: &list(|t| t * 3 % 7),
        ref_logprobs: reference,
        advantages: &weights,
        weights: &weights,
        entropy: &list(|t| t),
    };
    LossGradient { seconds: 0.0, ..algorithm.loss(&batch).unwrap() }
}

/// Everything a run does with an algorithm, and what came of it.
fn use_all(plugin: &Plugin) -> (Vec<Scored>, Vec<Option<serde_json::Value>>, Vec<u8>, [LossGradient; 2]) {
    let config = json!({"key": [1, "x"]});
    let mut first = plugin.create(&config, 11).unwrap();
    let asked = first.reference(&rich()[0]).unwrap();
    let mut all = Vec::new();
    let mut rollouts = rich();
    for rollout in &mut rollouts {
        let scored = first.score_rollout(rollout).unwrap();
        rollout.streams = scored.streams[0].clone();
        all.push(scored);
    }
    all.push(first.score_group(&rollouts.iter().collect::<Vec<_>>()).unwrap());
    let state = first.save_state().unwrap();
    let mut second = plugin.create(&config, 11).unwrap();
    second.load_state(&state).unwrap();
    all.push(second.score_group(&group(&[1.0, 2.0]).iter().collect::<Vec<_>>()).unwrap());
    all.iter_mut().for_each(|scored| scored.seconds = 0.0);
    let mut last = plugin.create_loss(&config, 11).unwrap();
    let losses = [loss(&mut last, None), loss(&mut last, Some(&[-0.5; 7]))];
    (all, asked, state, losses)
}

#[test]
fn a_binary_of_abi_1_0_means_the_same() {
    let test = "a_binary_of_abi_1_0_means_the_same";
    let Some(old) = fixture(test, "everything") else { return };
    assert_eq!((old.metadata().abi.as_str(), old.metadata().hooks.len()), ("1.0", 5));
    let used = use_all(&old);
    let metric = |scored: &Scored, name: &str| scored.metrics.iter().find(|m| m.name == name).unwrap().value;
    let (scored, asked, state, losses) = &used;
    assert_eq!(asked, &[Some(json!([{"role": "system", "content": "think"}])), None]);
    assert_eq!((metric(&scored[4], "calls"), state.len()), (5.0, 16), "the state came along");
    assert_eq!(scored[3].dropped, [None, None, Some("the last of many".into())]);
    assert_eq!(scored[3].streams[0][0].advantages.as_deref(), Some(&[0.0, 0.0, 0.5, 0.5, 0.5][..]), "assigned");
    assert_eq!(scored[3].streams[1][0].advantages.as_deref(), Some(&[3.0, 2.75, 2.5, 2.25][..]), "written");
    assert_eq!(losses[0].dlogprob, [0.0, 1.0, 2.0, 0.0, 0.0, 5.0, 6.0], "members alone");
    // The sums over every column of version 1.0, as the host that made the binary passed them.
    let sums: Vec<f64> = scored.iter().map(|s| metric(s, "columns")).collect();
    assert_eq!(
        format!("{sums:?} {:?}", losses.each_ref().map(|l| l.loss)),
        include_str!("fixtures/abi_1_0/sums.txt").trim()
    );

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("libeverything.so");
    let Some(()) = compile_c(test, &folder().join("everything.c"), &file, &[]) else { return };
    assert_eq!(use_all(&Plugin::load(&file).unwrap()), used, "today's header means the same");
}

#[test]
fn a_plugin_of_another_rustc_means_the_same() {
    let Some(old) = fixture("a_plugin_of_another_rustc_means_the_same", "gspo-nightly") else { return };
    assert!(old.metadata().hooks.contains(&Hook::Loss));
    let scored = |plugin: &Plugin| {
        let mut algorithm = plugin.create(&json!({}), 5).unwrap();
        let scored = algorithm.score_group(&rich().iter().collect::<Vec<_>>()).unwrap();
        Scored { seconds: 0.0, ..scored }
    };
    assert_eq!(scored(&old), scored(gspo()));
    let lost = |plugin: &Plugin| loss(&mut plugin.create_loss(&json!({"clip_high": 0.1}), 5).unwrap(), None);
    assert_eq!(lost(&old), lost(gspo()));
    assert!(lost(&old).dlogprob.iter().any(|d| *d != 0.0));
    let text = |plugin: &Plugin| plugin.create(&json!({"clip_high": "x"}), 0).err().unwrap().to_string();
    assert_eq!(text(&old), text(gspo()));
}
