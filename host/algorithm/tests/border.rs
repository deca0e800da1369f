//! What crosses the border: results, states, random numbers, and every misbehaviour that is not a crash.

mod common;

use common::{group, in_c, load, misbehave, rollout};
use prl_algorithm::{Algorithm, AlgorithmError, Hook, Scored};
use prl_types::{Rollout, Streams};
use serde_json::json;
use std::sync::{Arc, Mutex};

fn bad(mode: &str) -> Algorithm {
    misbehave().create(&json!({"mode": mode}), 9).unwrap()
}

fn score(algorithm: &mut Algorithm, rollouts: &[Rollout]) -> Result<Scored, AlgorithmError> {
    algorithm.score_group(&rollouts.iter().collect::<Vec<_>>())
}

#[test]
fn every_bad_result_has_its_own_line() {
    for (mode, line) in [
        ("error", "the algorithm `misbehave` failed in score_group: out of ideas"),
        ("nothing", "gave an invalid result in score_group: sample 0 of rollout 0 is left without advantages"),
        ("nan", "`advantages` is NaN at token 0 of sample 0"),
        ("overflow", "the advantage of rollout 0 is 1000"),
        ("short", "it wrote 4 values of `advantages` for the 5 tokens of sample 0"),
        ("long", "it wrote 6 values of `advantages` for the 5 tokens of sample 0"),
        ("no such rollout", "it assigned an advantage to rollout 2 of a group of 2"),
        ("infinite metric", "its metric `speed` is inf"),
        ("no reference", "sample 0 of rollout 0 is left without reference log-probabilities"),
    ] {
        let error = score(&mut bad(mode), &group(&[0.0, 1.0])).unwrap_err().to_string();
        assert!(error.contains(line), "{mode}: {error}");
        assert!(error.contains("`misbehave`"), "{error}");
    }
}

#[test]
fn a_panic_is_an_error_with_its_text_and_the_instance_survives() {
    let mut algorithm = bad("panic");
    for _ in 0..2 {
        let error = score(&mut algorithm, &group(&[0.0, 1.0])).unwrap_err();
        assert!(matches!(error, AlgorithmError::Panic { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("panicked in score_group: index out of bounds: the len is 0 but the index is 2"),
            "{text}"
        );
        assert!(text.contains("lib.rs:"), "the place of the panic: {text}");
    }
    let error = misbehave().create(&json!({"mode": "panic in new"}), 0).err().unwrap();
    assert!(error.to_string().contains("panicked in create: no instance for panic in new"), "{error}");
}

#[test]
fn a_bad_configuration_comes_back_with_the_plugins_own_text() {
    let error = |config| misbehave().create(&config, 0).err().unwrap().to_string();
    assert_eq!(
        error(json!({"mode": "drop", "colour": 1})),
        "the algorithm `misbehave` rejects its configuration: colour: unknown field `colour`, expected `mode`"
    );
    assert!(error(json!({"mode": 3})).ends_with("mode: invalid type: integer `3`, expected a string"));
    assert!(error(json!({})).ends_with("missing field `mode`"));
}

#[test]
fn rollouts_and_groups_can_be_dropped() {
    let scored = score(&mut bad("drop"), &group(&[0.5, 1.0])).unwrap();
    assert_eq!(scored.dropped, [Some("too easy".to_owned()), None]);
    assert_eq!(scored.streams[1][0].advantages.as_deref(), Some(&[0.0, 0.0, 1.0, 1.0, 1.0][..]));
    let scored = score(&mut bad("drop all"), &group(&[0.5, 1.0])).unwrap();
    assert_eq!(scored.dropped, [Some("no signal".to_owned()), Some("no signal".to_owned())]);
}

#[test]
fn streams_of_a_rollout_are_there_when_its_group_is_scored() {
    let mut algorithm = bad("drop");
    assert!(algorithm.has(Hook::ScoreRollout));
    let mut rollouts = group(&[0.5, 1.0]);
    for rollout in &mut rollouts {
        let mut scored = algorithm.score_rollout(rollout).unwrap();
        rollout.streams = scored.streams.remove(0);
    }
    let scored = score(&mut algorithm, &rollouts).unwrap();
    assert_eq!(scored.streams[1][0].ce_weights.as_deref(), Some(&[0.25, 0.25, 0.0, 0.0, 0.0][..]));
    let fresh = group(&[0.5, 1.0]);
    let whole = bad("drop").score_whole_group(&fresh.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!((whole.streams, whole.dropped), (scored.streams, scored.dropped), "in one call as in its parts");
    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    assert!(!grpo.has(Hook::ScoreRollout));
    assert_eq!(grpo.score_rollout(&rollouts[0]).unwrap().streams, [rollouts[0].streams.clone()]);
}

#[test]
fn states_and_random_numbers_resume() {
    let metric = |scored: &Scored, name: &str| scored.metrics.iter().find(|m| m.name == name).unwrap().value;
    let mut algorithm = bad("random");
    let first = score(&mut algorithm, &group(&[0.5])).unwrap();
    let state = algorithm.save_state().unwrap();
    assert_eq!(state, 1u64.to_le_bytes());

    let mut resumed = bad("random");
    resumed.load_state(&state).unwrap();
    let mut next = group(&[0.5]);
    next[0].id.group.0 += 1;
    let (a, b) = (score(&mut algorithm, &next).unwrap(), score(&mut resumed, &next).unwrap());
    assert_eq!((metric(&a, "groups"), metric(&b, "groups")), (2.0, 2.0));
    assert_eq!(metric(&a, "random"), metric(&b, "random"), "random numbers depend on seed and group alone");
    assert_ne!(metric(&a, "random"), metric(&first, "random"));
    let mut other = misbehave().create(&json!({"mode": "random"}), 10).unwrap();
    assert_ne!(metric(&score(&mut other, &next).unwrap(), "random"), metric(&a, "random"));

    let error = resumed.load_state(b"abc").unwrap_err().to_string();
    assert_eq!(error, "the algorithm `misbehave` failed in load_state: the state is not 8 bytes");
    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    assert_eq!(grpo.save_state().unwrap(), b"");
    grpo.load_state(b"").unwrap();
    assert!(matches!(grpo.load_state(b"abc").unwrap_err(), AlgorithmError::NoState { len_bytes: 3, .. }));
}

#[test]
fn an_empty_group_and_rollouts_without_samples_are_no_work() {
    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    assert_eq!(grpo.score_group(&[]).unwrap(), Scored::default());
    let scored = score(&mut grpo, &[rollout(0, 1.0, &[]), rollout(1, 0.0, &[(1, 1), (2, 2)])]).unwrap();
    assert_eq!(scored.streams.iter().map(Vec::len).collect::<Vec<_>>(), [0, 2]);
}

#[test]
fn instances_move_between_threads() {
    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    let scored = std::thread::spawn(move || score(&mut grpo, &group(&[0.0, 1.0])).unwrap()).join().unwrap();
    assert_eq!(scored.streams[1][0].advantages.as_ref().unwrap()[4], 0.5);
}

#[test]
fn a_plugin_in_c_works_from_the_header_alone() {
    let Some(plugin) = in_c("a_plugin_in_c_works_from_the_header_alone", "zscore") else { return };
    assert_eq!(plugin.metadata().name, "zscore");
    let mut algorithm = plugin.create(&json!({}), 0).unwrap();
    let scored = score(&mut algorithm, &group(&[1.0, 0.0, 1.0, 0.0])).unwrap();
    let want = (0.5 / (0.5 + 1e-6)) as f32;
    assert_eq!(scored.streams[0][0].advantages.as_deref(), Some(&[0.0, 0.0, want, want, want][..]));
    assert_eq!((scored.metrics[0].name.as_str(), scored.metrics[0].value), ("zscore/std", 0.5));
    let error = plugin.create(&json!({"a": 1}), 0).err().unwrap().to_string();
    assert!(error.ends_with("zscore has no options"), "{error}");
}

#[test]
fn a_call_that_sleeps_is_waited_for_and_warned_of() {
    let log = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).without_time().with_ansi(false).finish();
    let scored = tracing::subscriber::with_default(subscriber, || score(&mut bad("sleep"), &group(&[0.0, 1.0])));
    let scored = scored.unwrap();
    assert_eq!(scored.streams[1][0].advantages.as_ref().unwrap()[4], 1.0);
    assert!(scored.seconds >= 1.0, "{}", scored.seconds);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        text.contains("WARN") && text.contains("algorithm misbehave took 1.") && text.contains("in score_group"),
        "{text}"
    );
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[test]
fn states_that_are_not_its_own_are_refused() {
    let state = bad("bad state").save_state().unwrap();
    let error = bad("drop").load_state(&state).unwrap_err().to_string();
    assert_eq!(error, "the algorithm `misbehave` failed in load_state: the state is not 8 bytes");
    let error = bad("panic").save_state().unwrap_err().to_string();
    assert!(error.starts_with("the algorithm `misbehave` panicked in save_state: no state at "), "{error}");
    let error = bad("panic").load_state(b"123").unwrap_err().to_string();
    assert!(error.starts_with("the algorithm `misbehave` panicked in load_state: 3 bytes are too many"), "{error}");
}

/// A crash of native code is the one thing that a host does not survive; `prl.h` says so.
#[test]
fn a_fault_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_fault_in_a_process_of_its_own", "--ignored", "--test-threads=1"])
        .output()
        .unwrap();
    assert_eq!(child.status.signal(), Some(11), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
#[ignore = "ends the process it runs in: a_fault_ends_the_process runs it in one of its own"]
fn a_fault_in_a_process_of_its_own() {
    let _ = score(&mut bad("fault"), &group(&[0.0]));
}

#[test]
fn references_are_asked_for_and_handed_back() {
    let two = || rollout(0, 1.0, &[(1, 2), (2, 1)]);
    let asked = bad("references").reference(&two()).unwrap();
    assert_eq!(asked, [Some(json!([{"role": "system", "content": "think \"twice\""}])), None]);
    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    assert_eq!(grpo.reference(&two()).unwrap(), [None, None], "an algorithm that asks for nothing");

    let mut known = two();
    known.streams =
        vec![Streams { ref_logprobs: Some(vec![0.0, -2.0, -3.5]), ..Streams::default() }, Streams::default()];
    let scored = score(&mut bad("references"), &[known, two()]).unwrap();
    let metric = |name: &str| scored.metrics.iter().find(|m| m.name == name).unwrap().value;
    assert_eq!((metric("known"), metric("first")), (1.0, -3.5), "one sample of four has a reference");
    assert_eq!(scored.streams[0][0].ref_logprobs.as_deref(), Some(&[0.0, -2.0, -3.5][..]), "and it is its stream too");

    for (mode, line) in [
        ("no such sample", "in reference: it asked for a reference of sample 2 of a rollout with 2 samples"),
        ("ignored sample", "in reference: it asked for a reference of sample 99 of a rollout with 2 samples"),
        ("panic", "panicked in reference: no idea what to ask"),
    ] {
        let error = bad(mode).reference(&two()).unwrap_err().to_string();
        assert!(error.contains(line), "{mode}: {error}");
    }
}
