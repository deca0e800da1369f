//! Runs that go on from the state of a step: in deterministic mode as if they had not ended, else without loss or repetition.

use crate::fakes::*;
use crate::schedule::two_envs;
use prl_orchestrator::*;
use prl_types::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Every step from `from` on, as far as no clock has a part in it: what was trained, reported and evaluated.
fn story(log: &Log, from: Step) -> String {
    let trained = log.trained.iter().filter(|b| b.step >= from).map(|b| format!("train {b:?}\n"));
    let steps = log.steps.iter().filter(|r| r.step >= from);
    let steps = steps.map(|r| format!("step {} {}{}\n", r.step, timeless(&r.metrics), timeless(&r.train)));
    let evals = log.evals.iter().filter(|(e, _)| e.step + 1 >= from && e.step > 0);
    let evals = evals.map(|(e, m)| format!("eval {} {} {} {}\n", e.env, e.step, e.policy_version, timeless(m)));
    trained.chain(steps).chain(evals).collect()
}

#[test]
fn a_run_that_goes_on_is_the_run_that_did_not_end() {
    let faulty = || Script {
        turns: 2,
        fault: Arc::new(|task, request| {
            let member = request.map_or(9, |r| r.id.member);
            (mix(&[task.index, u64::from(member)]).is_multiple_of(7)).then_some(Fault::Step)
        }),
        ..Script::default()
    };
    for level in 0..4 {
        let mut s = Settings { max_async_level: level, checkpoints: Some(Due { interval: Some(1) }), ..two_envs(6) };
        // Surplus rollouts of whole groups wait for the next batch.
        s.train[1].group_size = 5;
        s.max_retries = level as u32 % 2;
        if level == 2 {
            (s.token_batch_size, s.max_inflight_rollouts) = (Some(150), Some(16));
        }
        let whole = World::new(level, 40, faulty());
        block_on(whole.run(s.clone())).unwrap();
        let whole = whole.log.lock().unwrap();
        assert_eq!(whole.kept.iter().map(|text| state(text).progress().step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        for (k, text) in (1..).zip(&whole.kept) {
            let resume = state(text);
            assert_eq!(resume.newest_batch(), k + level, "what was sampled ahead is in it");
            let rest = World::new(100 + k, 5 * k, faulty());
            let outcome = block_on(rest.run(Settings { resume: Some(resume), ..s.clone() })).unwrap();
            assert!(!outcome.stopped && outcome.progress.step == 6);
            let rest = rest.log.lock().unwrap();
            let (got, want) = (story(&rest, k + 1), story(&whole, k + 1));
            let first = got.lines().zip(want.lines()).find(|(a, b)| a != b);
            assert!(got == want, "level {level}, from step {k} on: {first:?}");
            let (seen, _) = whole.marks[&k];
            let ids = |log: &Log, from: usize| -> Vec<_> {
                log.rollouts[from..].iter().filter(|(p, ..)| *p == Purpose::Train).map(|(_, s, r)| (*s, r.id)).collect()
            };
            assert_eq!(ids(&rest, 0), ids(&whole, seen), "recorded again, or not");
        }
    }
}

#[test]
fn a_shorter_run_that_goes_on_is_the_longer_one() {
    let s = Settings { checkpoints: Some(Due { interval: None }), max_async_level: 2, ..two_envs(8) };
    let whole = World::new(1, 20, Script::default());
    block_on(whole.run(s.clone())).unwrap();
    // The last step is evaluated whatever its number: 6 is due for both.
    let short = World::new(2, 30, Script::default());
    block_on(short.run(Settings { max_steps: Some(6), ..s.clone() })).unwrap();
    let short = short.log.lock().unwrap();
    assert_eq!((short.kept.len(), short.steps.len(), short.trained.len()), (1, 6, 6));
    let rest = World::new(3, 10, Script::default());
    let done = ["a", "b"].map(str::to_owned).into();
    let resume = Some(state(&short.kept[0]));
    let again = Settings { resume: resume.clone(), evaluated: done, ..s.clone() };
    block_on(rest.run(again)).unwrap();
    let rest = rest.log.lock().unwrap();
    let whole = whole.log.lock().unwrap();
    assert!(rest.evals.iter().all(|(e, _)| e.step > 6), "an evaluation that is on record is not repeated");
    assert_eq!(story(&rest, 8), story(&whole, 8));
    // There is nothing left to do.
    let idle = World::new(4, 0, Script::default());
    let outcome = block_on(idle.run(Settings { resume, max_steps: Some(6), ..s })).unwrap();
    assert_eq!((outcome.progress.step, idle.log.lock().unwrap().trained.len()), (6, 0));
}

#[test]
fn a_stop_completes_the_checkpoint_that_is_due() {
    for (grace, complete) in [(30, true), (0, false)] {
        let s = Settings {
            max_steps: None,
            checkpoints: Some(Due { interval: Some(2) }),
            checkpoint_grace: Duration::from_secs(grace),
            ..settings(1, 8, 4)
        };
        let mut written = 0;
        for after in (500..1500).step_by(50) {
            let world = World::new(after, 40, Script::default());
            let (deps, stop) = world.deps(&s);
            let outcome = block_on(async {
                let running = tokio::spawn(run(s.clone(), deps));
                tokio::time::sleep(Duration::from_millis(after)).await;
                stop.send(true).unwrap();
                running.await.unwrap().unwrap()
            });
            world.check_accounting();
            let log = world.log.lock().unwrap();
            let kept = log.kept.last().map_or(0, |text| state(text).progress().step);
            written += u64::from(kept == outcome.progress.step / 2 * 2);
        }
        assert_eq!(written == 20, complete, "{written}");
    }
}

#[test]
fn a_run_that_dies_again_and_again_trains_what_one_trains_that_does_not() {
    for seed in 0..40 {
        let script = || Script { turns: 1 + seed % 3, ..Script::default() };
        let s = Settings {
            seed,
            max_async_level: seed % 4,
            deterministic: seed % 5 > 1,
            checkpoints: Some(Due { interval: Some(1 + seed % 2) }),
            ..settings(8, 8, 4)
        };
        let (batches, trained) = dying(seed, &s, 30, script).unwrap();
        assert!(trained.iter().map(|b| b.step).eq(1..=8), "seed {seed}");
        let ids: Vec<RolloutId> =
            batches.iter().filter(|(step, _)| *step <= 8).flat_map(|(_, ids)| ids.clone()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "seed {seed}: a rollout trained twice");
        if s.deterministic {
            let whole = World::new(seed, 10, script());
            block_on(whole.run(s)).unwrap();
            let whole = whole.log.lock().unwrap();
            assert!(trained == whole.trained, "seed {seed}: other batches");
        }
    }
}
