//! Many random settings, faults, delays and stops: no deadlock, exact accounting, bounded staleness and concurrency.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

struct Case {
    settings: Settings,
    script: Script,
    max_ms: u64,
    stop_after: Option<Duration>,
}

fn case(seed: u64) -> Case {
    let pick = |what: u64, n: u64| mix(&[seed, what]) % n;
    let group_size = 1 + pick(0, 4) as u32;
    let mut s = settings(1 + pick(1, 5), 1 + pick(2, 12) as usize, group_size);
    if pick(3, 2) == 0 {
        s.train.push(TrainEnv { ratio: 0.5, ..train_env("b", 1 + pick(4, 5) as u32) });
    }
    if pick(5, 2) == 0 {
        s.eval = vec![eval_env("a", 1 + pick(6, 3)), eval_env("c", 1 + pick(7, 4))];
        s.skip_first_eval = pick(8, 2) == 0;
    }
    s.deterministic = pick(9, 3) > 0;
    s.max_async_level = pick(10, 4);
    s.max_off_policy_steps = s.max_async_level + pick(11, 3);
    s.max_inflight_rollouts = (pick(12, 2) == 0).then(|| 1 + pick(13, 10) as usize);
    s.seed = seed;
    s.max_error_rate = 0.99;
    s.pre_batch_filters[2].enforce = pick(14, 3) == 0;
    let faults = pick(15, 4);
    let script = Script {
        turns: 1 + pick(16, 3),
        bridge: pick(17, 2) == 0,
        min_group: 1,
        size: (pick(18, 2) == 0).then(|| 1 + pick(19, 20)),
        fault: Arc::new(move |task, request| {
            let r = request?;
            match mix(&[seed, task.index, r.id.group.0, u64::from(r.id.member), 77]) % 40 {
                x if x >= 2 * faults => None,
                x if x.is_multiple_of(4) => Some(Fault::Open),
                x if x % 4 == 1 => Some(Fault::Step),
                x if x % 4 == 2 => Some(Fault::Reward(f64::NAN)),
                _ => Some(Fault::Engine),
            }
        }),
        ..Script::default()
    };
    let stop_after = (pick(20, 5) == 0).then(|| Duration::from_millis(pick(21, 600)));
    Case { settings: s, script, max_ms: pick(22, 60), stop_after }
}

/// Whether the run came to its last step.
fn check(seed: u64) -> bool {
    let Case { settings: s, script, max_ms, stop_after } = case(seed);
    let world = World::new(seed, max_ms, script);
    let (deps, stop) = world.deps(&s);
    let result = block_on(async {
        let running = tokio::spawn(run(s.clone(), deps));
        if let Some(after) = stop_after {
            tokio::time::sleep(after).await;
            let _ = stop.send(true);
        }
        let limit = Duration::from_secs(24 * 3600);
        tokio::time::timeout(limit, running).await.expect("deadlock").expect("panic")
    });
    world.check_accounting();
    let log = world.log.lock().unwrap();
    assert!(world.max_live.load(SeqCst) <= s.max_inflight());
    for (step, oldest, newest) in log.versions() {
        assert!(step - 1 - oldest <= s.max_off_policy_steps && newest < step, "step {step}: v{oldest}..v{newest}");
    }
    for (step, ids) in &log.batches {
        assert!(!ids.is_empty() && ids.len() <= s.batch_size, "step {step}");
    }
    let trained: Vec<RolloutId> = log.batches.iter().flat_map(|(_, ids)| ids.clone()).collect();
    assert_eq!(trained.iter().collect::<BTreeSet<_>>().len(), trained.len(), "a rollout trained twice");
    assert!(log.steps.iter().map(|r| r.step).eq(1..=log.steps.len() as u64));
    let finite = |m: &std::collections::BTreeMap<String, f64>| m.values().all(|v| v.is_finite());
    assert!(log.steps.iter().all(|r| finite(&r.metrics)) && log.evals.iter().all(|(_, m)| finite(m)));
    match result {
        Ok(outcome) if !outcome.stopped => {
            assert_eq!(log.steps.len() as u64, s.max_steps.unwrap());
            assert_eq!(outcome.progress.step, s.max_steps.unwrap());
            true
        }
        Ok(outcome) => {
            assert_eq!(outcome.progress.step, log.steps.len() as u64);
            false
        }
        Err(Error::NothingToTrain { .. } | Error::EnvFailedAtStart { .. } | Error::ErrorRate { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn five_hundred_schedules() {
    let mut completed = 0;
    for seed in 0..500 {
        match std::panic::catch_unwind(|| check(seed)) {
            Ok(done) => completed += usize::from(done),
            Err(panic) => {
                eprintln!("schedule {seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    assert!(completed > 200, "only {completed} runs came to their last step");
}
