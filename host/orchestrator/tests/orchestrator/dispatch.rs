//! What starts when: failed rollouts again, batches of tokens, the pace, evaluations before training, and what is said
//! about it.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::sync::Arc;
use std::time::Duration;

fn one_percent(fault: Fault) -> Script {
    Script {
        fault: Arc::new(move |task, request| {
            let id = request?.id;
            mix(&[task.index, id.group.0, u64::from(id.member)]).is_multiple_of(100).then_some(fault)
        }),
        min_group: 1,
        size: None,
        ..Script::default()
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1801
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1816
#[test]
fn a_failed_rollout_starts_again_with_the_same_seed_while_an_evaluation_overlaps() {
    let s = |max_retries| {
        let mut s = Settings { max_retries, post_batch_filters: vec![], ..settings(10, 100, 4) };
        s.eval = vec![EvalEnv { num_examples: Some(150), ..eval_env("a", 2) }];
        s
    };
    for (fault, kind) in [(Fault::Step, ErrorKind::EnvError), (Fault::Engine, ErrorKind::ProviderError)] {
        // What goes away at the second start costs nothing.
        let world = World::new(1, 20, Script { strikes: 1, ..one_percent(fault) });
        block_on(world.run(s(2))).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        assert!(log.rollouts.len() >= 1000 && log.rollouts.iter().all(|(_, _, r)| r.error.is_none()));
        let again = log.rollouts.iter().filter(|(purpose, _, r)| *purpose == Purpose::Train && r.attempt == 1).count();
        let retried: f64 = log.steps.iter().map(|step| step.metrics["rollouts/retried"]).sum();
        assert!(again > 3 && retried == again as f64);
        assert!(log.evals.iter().any(|(_, metrics)| metrics["eval/a/rollouts/retried"] > 0.0));

        // What does not is given up after so many, and said once.
        let world = World::new(1, 20, one_percent(fault));
        block_on(world.run(s(2))).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        for (_, _, r) in &log.rollouts {
            let failed = r.error.as_ref().map(|error| (error.kind, r.attempt));
            assert!(failed == Some((kind, 2)) || failed.is_none() && r.attempt == 0, "{failed:?}");
        }
    }
    let world = World::new(1, 20, one_percent(Fault::Step));
    block_on(world.run(s(0))).unwrap();
    let log = world.log.lock().unwrap();
    assert!(log.rollouts.iter().all(|(_, _, r)| r.attempt == 0));
    assert!(log.steps.iter().all(|step| step.metrics["rollouts/retried"] == 0.0));
}

#[test]
fn other_errors_are_not_tried_again() {
    let world = World::new(0, 5, Script { fault: Arc::new(|_, _| Some(Fault::Empty)), ..Script::default() });
    let s = Settings { max_retries: 3, ..settings(3, 4, 4) };
    assert!(matches!(block_on(world.run(s)), Err(Error::NothingToTrain { .. })));
    world.check_accounting();
    assert!(world.log.lock().unwrap().rollouts.iter().all(|(_, _, r)| r.attempt == 0));
}

#[test]
fn a_record_says_how_often_its_rollout_was_tried() {
    let world = World::new(1, 0, Script { strikes: 1, fault: Arc::new(|_, _| Some(Fault::Open)), ..Script::default() });
    block_on(world.run(Settings { max_retries: 1, ..settings(1, 4, 4) })).unwrap();
    let mut rollout = world.log.lock().unwrap().rollouts[0].2.clone();
    let record = serde_json::to_value(&rollout).unwrap();
    assert_eq!(record["attempt"], 1);
    assert_eq!(serde_json::from_value::<Rollout>(record).unwrap().attempt, 1);
    rollout.attempt = 0;
    let record = serde_json::to_value(&rollout).unwrap();
    assert_eq!((record.get("attempt"), serde_json::from_value::<Rollout>(record.clone()).unwrap().attempt), (None, 0));
}

fn in_tokens(steps: u64, budget: usize) -> Settings {
    let post = vec![Filter { kind: FilterKind::ZeroAdvantage, enforce: false }];
    Settings {
        token_batch_size: Some(budget),
        max_inflight_rollouts: Some(16),
        post_batch_filters: post,
        ..settings(steps, 1, 4)
    }
}

/// Turns by the task, so that lengths differ.
fn uneven() -> Script {
    Script { turns: 3, replies: Arc::new(|turn| "x".repeat(turn as usize * 17 % 23)), ..Script::default() }
}

#[test]
fn a_batch_of_tokens_takes_whole_rollouts_and_leaves_the_rest_to_the_next() {
    for deterministic in [true, false] {
        let world = World::new(3, 30, uneven());
        block_on(world.run(Settings { deterministic, ..in_tokens(6, 700) })).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        assert_eq!(log.trained.len(), 6);
        for batch in &log.trained {
            let lengths: Vec<usize> = batch.items.iter().map(|item| item.sample.len()).collect();
            let total: usize = lengths.iter().sum();
            assert!(total >= 700 && total - lengths.last().unwrap() < 700, "{lengths:?}");
        }
        if deterministic {
            let flat: Vec<RolloutId> = log.batches.iter().flat_map(|(_, ids)| ids.clone()).collect();
            assert_eq!(flat[..], log.ids(Purpose::Train)[..flat.len()], "nothing is lost between two batches");
            let seen = log.ids(Purpose::Train).len();
            assert!(seen - flat.len() <= 2 * 4, "{seen} sampled for {}", flat.len());
        }
    }
}

#[test]
fn batches_of_tokens_do_not_depend_on_timing() {
    let once = |schedule, max_ms| {
        let world = World::new(schedule, max_ms, uneven());
        let mut s = in_tokens(5, 900);
        s.train.push(TrainEnv { ratio: 2.0, ..train_env("b", 2) });
        s.pre_batch_filters[2].enforce = true;
        block_on(world.run(s)).unwrap();
        world.log.lock().unwrap().fingerprint()
    };
    let reference = once(0, 0);
    assert!((1..8).all(|schedule| once(schedule, 1 + schedule * 9) == reference));
}

/// Runs a script and gives the times of its starts, in seconds.
fn starts(s: Settings, script: Script) -> (Vec<f64>, Arc<World>) {
    let world = block_on(async {
        let world = World::new(2, 40, script);
        world.run(s).await.unwrap();
        world
    });
    world.check_accounting();
    let at = world.starts.lock().unwrap().clone();
    (at.iter().map(|(time, _)| time.duration_since(at[0].0).as_secs_f64()).collect(), world)
}

#[test]
fn starts_keep_the_pace_and_change_nothing_else() {
    let paced = |tasks_per_minute| {
        let mut s = Settings { tasks_per_minute, max_retries: 1, ..settings(4, 8, 4) };
        s.eval = vec![eval_env("a", 2)];
        starts(s, one_percent(Fault::Step))
    };
    let (fast, free) = paced(None);
    let (slow, bound) = paced(Some(12));
    assert_eq!(fast.len(), slow.len());
    assert!(fast.last().unwrap() < &30.0, "{fast:?}");
    // Twelve at once, then one in five seconds.
    let wanted = (slow.len() - 12) as f64 * 5.0;
    assert!((wanted - 0.1..wanted + 30.0).contains(slow.last().unwrap()), "{slow:?}");
    for window in slow.windows(25) {
        assert!(window[24] - window[0] > 59.9, "{window:?}");
    }
    assert_eq!(free.log.lock().unwrap().fingerprint(), bound.log.lock().unwrap().fingerprint());
}

#[test]
fn a_retry_keeps_the_pace_too() {
    let script = Script { strikes: 1, fault: Arc::new(|_, _| Some(Fault::Step)), ..Script::default() };
    let (at, world) = starts(Settings { tasks_per_minute: Some(4), max_retries: 1, ..settings(1, 4, 4) }, script);
    assert_eq!((at.len(), world.log.lock().unwrap().rollouts.len()), (8, 4));
    assert!(at[7] > 59.9, "{at:?}");
}

#[test]
fn training_starts_nothing_before_an_evaluation_is_started_whole() {
    for deterministic in [true, false] {
        let mut s = Settings { deterministic, max_inflight_rollouts: Some(6), ..settings(4, 16, 4) };
        s.eval = vec![EvalEnv { num_examples: Some(9), ..eval_env("e", 1) }];
        let world = World::new(5, 50, Script { turns: 2, ..Script::default() });
        block_on(world.run(s)).unwrap();
        world.check_accounting();
        // 18 rollouts of an evaluation start without one of training between them, though they begin while training is
        // under way.
        let purposes: Vec<Purpose> = world.starts.lock().unwrap().iter().map(|(_, purpose)| *purpose).collect();
        let runs: Vec<usize> =
            purposes.chunk_by(|a, b| a == b).filter(|run| run[0] == Purpose::Eval).map(<[Purpose]>::len).collect();
        assert_eq!(runs.iter().sum::<usize>(), 5 * 18);
        assert!(runs.iter().all(|run| run.is_multiple_of(18)), "{runs:?}");
        assert!(runs.len() >= 2, "{runs:?}");
    }
}

#[test]
fn status_says_where_dispatching_stands() {
    let mut s = Settings {
        status_interval: Some(Duration::from_millis(20)),
        max_inflight_rollouts: Some(6),
        post_batch_filters: vec![],
        ..settings(4, 16, 4)
    };
    s.eval = vec![EvalEnv { num_examples: Some(9), ..eval_env("e", 2) }];
    let world = World::new(5, 50, one_percent(Fault::Score));
    block_on(world.run(s)).unwrap();
    let status = world.status.lock().unwrap();
    assert!(status.iter().any(|now| now.mode == Mode::PreferEval) && status.iter().any(|now| now.inflight_train > 3));
    for now in status.iter() {
        assert!(now.inflight_train + now.inflight_eval <= 6 && now.batch == 16 && (1..=4).contains(&now.step));
        let m = &now.metrics;
        assert_eq!(m["dispatcher/mode"], f64::from(u8::from(now.mode == Mode::PreferEval)));
        assert_eq!(m["dispatcher/inflight_eval"], now.inflight_eval as f64);
        assert!(m["dispatcher/groups_in_flight"] <= 6.0 && m["dispatcher/off_policy_level_max"] <= 1.0);
        // An evaluation that waits for places holds training back.
        assert!(m["dispatcher/queued/eval"] == 0.0 || now.mode == Mode::PreferEval);
    }
    let failed = world.log.lock().unwrap().rollouts.iter().filter(|(_, _, r)| r.error.is_some()).count() as f64;
    let last = &status.last().unwrap().metrics;
    assert!(last["dispatcher/errored/train"] + last["dispatcher/errored/eval"] <= failed);
}

/// https://github.com/thinking-machines-lab/tinker-cookbook/pull/822
#[test]
fn a_slow_trainer_makes_no_stale_batches_and_pacing_discards_nothing() {
    let slow = || Script { train_ms: 3000, turns: 2, min_group: 1, ..Script::default() };
    let run = |deterministic, max_async_level, max_off_policy_steps| {
        let world = World::new(4, 60, slow());
        let s = Settings { deterministic, max_async_level, max_off_policy_steps, ..settings(15, 16, 4) };
        block_on(world.run(Settings { max_inflight_rollouts: Some(64), post_batch_filters: vec![], ..s })).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        assert!(log.versions().iter().all(|(step, oldest, _)| step - 1 - oldest <= max_off_policy_steps));
        let cancelled = log.rollouts.iter().filter(|(_, _, r)| r.error.is_some()).count();
        let dropped: f64 = log.steps.iter().map(|step| step.metrics["off_policy/dropped"]).sum();
        (cancelled as f64 + dropped, log.batches.iter().map(|(_, ids)| ids.len()).sum::<usize>())
    };
    for level in 0..3 {
        assert_eq!(run(true, level, level), (0.0, 15 * 16), "level {level}");
    }
    let (discarded, trained) = run(false, 2, 2);
    assert!(trained == 15 * 16 && discarded <= 64.0, "{discarded} of {trained}");
}
