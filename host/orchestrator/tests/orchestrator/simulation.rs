//! Many random settings, faults, delays, pauses and stops: no deadlock, exact accounting, bounded staleness, concurrency
//! and pace.
//!
//! `PRL_SCHEDULES=17..18 cargo test --release -p prl-orchestrator -- --ignored schedules` runs others than the first ten
//! thousand.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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
    let one_in = |n: u64, what: u64| pick(what, n) == 0;
    let group_size = 1 + pick(0, 4) as u32;
    let mut s = settings(1 + pick(1, 5), 1 + pick(2, 12) as usize, group_size);
    if one_in(2, 3) {
        s.train.push(TrainEnv { ratio: 0.5, ..train_env("b", 1 + pick(4, 5) as u32) });
    }
    if one_in(2, 5) {
        s.eval = vec![eval_env("a", 1 + pick(6, 3)), eval_env("c", 1 + pick(7, 4))];
        s.skip_first_eval = one_in(2, 8);
    }
    s.deterministic = pick(9, 3) > 0;
    s.max_async_level = pick(10, 4);
    s.max_off_policy_steps = s.max_async_level + pick(11, 3);
    s.max_inflight_rollouts = one_in(2, 12).then(|| 1 + pick(13, 10) as usize);
    s.seed = seed;
    s.max_error_rate = 0.99;
    s.pre_batch_filters[2].enforce = one_in(3, 14);
    s.max_retries = if one_in(3, 23) { 1 + pick(24, 3) as u32 } else { 0 };
    if one_in(4, 27) {
        s.token_batch_size = Some(20 + pick(28, 600) as usize);
        s.max_inflight_rollouts = Some(1 + pick(13, 10) as usize);
    }
    s.tasks_per_minute = one_in(5, 29).then(|| 1 + pick(30, 600) as u32);
    s.status_interval = one_in(2, 38).then_some(Duration::from_millis(50));
    let size = one_in(2, 18).then(|| 1 + pick(19, 20));
    for env in &mut s.train {
        if size.is_some() && one_in(2, 36) {
            let pool = |(i, weight): (u64, f64)| DifficultyPool {
                name: format!("p{i}"),
                threshold: i as f64 / 2.0,
                weight: weight * pick(40 + i, 3) as f64,
            };
            env.curriculum.pools = [(0, 1.0), (1, 0.1), (2, 3.0)].map(pool).into();
        }
        if one_in(4, 37) {
            let gate = AdvantageRange { name: "flat".into(), reject_min: -0.1, reject_max: 0.1 };
            env.curriculum.gates.push(gate);
        }
    }
    let (hangs, timeout) = (one_in(5, 31), one_in(2, 32).then(|| Duration::from_millis(1 + pick(33, 20_000))));
    s.train.iter_mut().for_each(|env| env.timeout = timeout);
    s.eval.iter_mut().for_each(|env| env.timeout = timeout);
    let faults = pick(15, 4);
    let script = Script {
        // Endless ones end with the context, or with the timeout.
        turns: if one_in(6, 34) { u64::MAX } else { 1 + pick(16, 3) },
        bridge: one_in(2, 17),
        min_group: 1,
        group_scoring: one_in(4, 35),
        size,
        fault: Arc::new(move |task, request| {
            let Some(r) = request else {
                return (mix(&[seed, task.index, 78]) % 60 < faults).then_some(Fault::Task);
            };
            let x = mix(&[seed, task.index, r.id.group.0, u64::from(r.id.member), 77]);
            if hangs && (x >> 32).is_multiple_of(16) {
                return Some(Fault::Hang);
            }
            match x % 40 {
                x if x >= 2 * faults => None,
                x if x.is_multiple_of(4) => Some(Fault::Open),
                x if x % 4 == 1 => Some(Fault::Step),
                x if x % 4 == 2 => Some(Fault::Reward(f64::NAN)),
                _ => Some(Fault::Engine),
            }
        }),
        strikes: if one_in(2, 25) { 1 + pick(26, 2) as usize } else { usize::MAX },
        pause_ms: if one_in(4, 39) { pick(43, 950) } else { 0 },
        train_ms: if one_in(3, 44) { 3000 } else { 0 },
        ..Script::default()
    };
    // What hangs without a limit has to be stopped.
    let stop = one_in(5, 20) || hangs && timeout.is_none();
    let stop_after = stop.then(|| Duration::from_millis(pick(21, if one_in(2, 45) { 600 } else { 60_000 })));
    Case { settings: s, script, max_ms: pick(22, 60), stop_after }
}

/// Runs a case with the delays of `schedule`.
fn play(case: Case, schedule: u64) -> (Result<Outcome, Error>, Arc<World>) {
    let Case { settings, script, max_ms, stop_after } = case;
    block_on(async {
        let world = World::new(schedule, max_ms, script);
        let (deps, stop) = world.deps(&settings);
        let running = tokio::spawn(run(settings, deps));
        if let Some(after) = stop_after {
            tokio::time::sleep(after).await;
            let _ = stop.send(true);
        }
        let limit = Duration::from_secs(7 * 24 * 3600);
        (tokio::time::timeout(limit, running).await.expect("deadlock").expect("panic"), world)
    })
}

/// Whether the run came to its last step.
fn check(seed: u64) -> bool {
    let Case { settings: s, stop_after, .. } = case(seed);
    let (result, world) = play(case(seed), seed);
    world.check_accounting();
    check_dispatch(&s, &world);
    let log = world.log.lock().unwrap();
    for (step, oldest, newest) in log.versions() {
        assert!(step - 1 - oldest <= s.max_off_policy_steps && newest < step, "step {step}: v{oldest}..v{newest}");
    }
    let reported: BTreeMap<RolloutId, &Rollout> =
        log.rollouts.iter().filter(|(p, ..)| *p == Purpose::Train).map(|(_, _, r)| (r.id, r)).collect();
    let mut trained = 0;
    let mut left = reported.clone();
    for (step, ids) in &log.batches {
        let rollouts: Vec<&Rollout> = ids.iter().map(|id| left.remove(id).expect("a rollout trained twice")).collect();
        assert!(rollouts.iter().all(|r| r.is_effective()), "step {step}");
        trained += ids.len();
        let all_but_last: usize = rollouts.iter().rev().skip(1).map(|r| r.total_tokens()).sum();
        match s.token_batch_size {
            Some(tokens) => assert!(!ids.is_empty() && all_but_last < tokens, "step {step}"),
            None => assert!(!ids.is_empty() && ids.len() <= s.batch_size, "step {step}"),
        }
    }
    assert_eq!(reported.len(), trained + left.len());
    assert!(log.steps.iter().map(|r| r.step).eq(1..=log.steps.len() as u64));
    let finite = |m: &BTreeMap<String, f64>| m.values().all(|v| v.is_finite());
    assert!(log.steps.iter().all(|r| finite(&r.metrics)) && log.evals.iter().all(|(_, m)| finite(m)));
    match result {
        Ok(outcome) if !outcome.stopped => {
            assert_eq!(log.steps.len() as u64, s.max_steps.unwrap());
            assert_eq!(outcome.progress.step, s.max_steps.unwrap());
            // Nothing but a limit on time makes results depend on it.
            if s.deterministic && s.train[0].timeout.is_none() && stop_after.is_none() {
                let mut other = case(seed);
                other.max_ms = 1 + 2 * other.max_ms;
                other.settings.tasks_per_minute = None;
                let (_, other) = play(other, seed + 1);
                let (here, there) = (log.fingerprint(), other.log.lock().unwrap().fingerprint());
                let first = here.lines().zip(there.lines()).find(|(here, there)| here != there);
                assert!(here == there, "timing changed the results: {first:?}");
            }
            if s.train[0].timeout.is_none() && stop_after.is_none() {
                check_deaths(seed, &log);
            }
            true
        }
        Ok(outcome) => {
            assert!(stop_after.is_some());
            assert_eq!(outcome.progress.step, log.steps.len() as u64);
            false
        }
        Err(Error::NothingToTrain { .. } | Error::EnvFailedAtStart { .. } | Error::ErrorRate { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// The same run, which dies now and then and goes on, trains the same; where timing counts, it trains nothing twice.
fn check_deaths(seed: u64, whole: &Log) {
    let mut s = case(seed).settings;
    s.tasks_per_minute = None;
    s.checkpoints = Some(Due { interval: Some(1 + mix(&[seed, 50]) % 3) });
    let last = s.max_steps.unwrap();
    match dying(seed, &s, case(seed).max_ms, || case(seed).script) {
        Ok((batches, trained)) => {
            assert!(trained.iter().map(|batch| batch.step).eq(1..=last));
            let ids = batches.iter().filter(|(step, _)| *step <= last).flat_map(|(_, ids)| ids);
            let mut seen = BTreeSet::new();
            assert!(ids.into_iter().all(|id| seen.insert(*id)), "a rollout trained twice");
            assert!(!s.deterministic || trained == whole.trained, "other batches");
        }
        Err(error) => assert!(!s.deterministic, "{error}"),
    }
}

/// Concurrency, pace and retries.
fn check_dispatch(s: &Settings, world: &World) {
    assert!(world.max_live.load(SeqCst) <= s.max_inflight());
    for now in world.status.lock().unwrap().iter() {
        assert!(now.inflight_train + now.inflight_eval <= s.max_inflight());
        assert!(now.metrics.values().all(|value| value.is_finite()));
    }
    let starts = world.starts.lock().unwrap();
    if let Some(rate) = s.tasks_per_minute {
        // At most a full bucket and what leaves it within the minute.
        for window in starts.windows(2 * rate as usize + 2) {
            let span = window[window.len() - 1].0.duration_since(window[0].0);
            assert!(span > Duration::from_millis(59_900), "{} starts in {span:?}", window.len());
        }
    }
    let log = world.log.lock().unwrap();
    assert!(log.rollouts.iter().all(|(_, _, r)| r.attempt <= s.max_retries));
}

/// Checks schedules on all processors; the number that came to their last step.
fn schedules(seeds: Range<u64>) -> u64 {
    let (next, completed, failed) = (AtomicU64::new(seeds.start), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while let Some(seed) = Some(next.fetch_add(1, SeqCst)).filter(|seed| *seed < seeds.end) {
            match std::panic::catch_unwind(AssertUnwindSafe(|| check(seed))) {
                Ok(done) => drop(completed.fetch_add(u64::from(done), SeqCst)),
                Err(_) => {
                    failed.fetch_add(1, SeqCst);
                    eprintln!(
                        "schedule {seed} failed; to repeat it:\n  PRL_SCHEDULES={seed}..{} cargo test --release -p \
                         prl-orchestrator -- --ignored schedules",
                        seed + 1
                    );
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    assert_eq!(failed.into_inner(), 0, "schedules failed");
    completed.into_inner()
}

#[test]
fn five_hundred_schedules() {
    let completed = schedules(0..500);
    assert!(completed > 200, "only {completed} runs came to their last step");
}

#[test]
#[ignore = "takes about a minute"]
fn ten_thousand_schedules() {
    let range = std::env::var("PRL_SCHEDULES").ok().map(|text| {
        let (from, to) = text.split_once("..").expect("PRL_SCHEDULES is a range such as 17..18");
        from.parse().expect("a number")..to.parse().expect("a number")
    });
    let began = std::time::Instant::now();
    let seeds = range.unwrap_or(0..10_000);
    let completed = schedules(seeds.clone());
    println!("schedules {seeds:?}: {completed} came to their last step, in {:.1} s", began.elapsed().as_secs_f64());
}
