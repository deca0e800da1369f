//! Which policy samples what, in which order results appear, and what a resumed run does.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::sync::atomic::Ordering::SeqCst;

pub fn two_envs(steps: u64) -> Settings {
    let mut s = settings(steps, 8, 4);
    s.train.push(TrainEnv { ratio: 2.0, ..train_env("b", 2) });
    s.eval = vec![eval_env("a", 2), eval_env("b", 3)];
    s
}

#[test]
fn results_do_not_depend_on_timing() {
    let faulty = || Script {
        turns: 3,
        fault: std::sync::Arc::new(|task, request| {
            let member = request.map_or(9, |r| r.id.member);
            (mix(&[task.index, u64::from(member)]).is_multiple_of(7)).then_some(Fault::Step)
        }),
        ..Script::default()
    };
    let once = |schedule, max_ms| {
        let world = World::new(schedule, max_ms, faulty());
        block_on(world.run(two_envs(6))).unwrap();
        world.log.lock().unwrap().fingerprint()
    };
    let reference = once(0, 0);
    assert!(reference.contains("trap: index out of bounds"));
    for schedule in 1..12 {
        let other = once(schedule, 1 + schedule * 7);
        let first = reference.lines().zip(other.lines()).find(|(a, b)| a != b);
        assert!(reference == other, "schedule {schedule} differs: {first:?}");
    }
}

#[test]
fn batches_are_sampled_with_one_version_each() {
    for (level, want) in [(0, vec![0, 1, 2, 3, 4, 5]), (1, vec![0, 0, 1, 2, 3, 4]), (2, vec![0, 0, 0, 1, 2, 3])] {
        let world = World::new(5, 40, Script { turns: 2, ..Script::default() });
        block_on(world.run(Settings { max_async_level: level, ..settings(6, 8, 4) })).unwrap();
        let log = world.log.lock().unwrap();
        let got: Vec<u64> = log.versions().into_iter().map(|(_, lo, hi)| if lo == hi { lo } else { 99 }).collect();
        assert_eq!(got, want, "level {level}");
        let lags: Vec<u64> = log.steps.iter().map(|r| r.all.max_off_policy).collect();
        assert_eq!(lags, (1..=6).map(|n: u64| n - 1 - want[n as usize - 1]).collect::<Vec<_>>());
    }
}

#[test]
fn the_next_batch_is_sampled_while_a_step_trains() {
    let world = World::new(1, 40, Script::default());
    let serial = World::new(1, 40, Script::default());
    let seconds = |world: &std::sync::Arc<World>, level| {
        let world = world.clone();
        block_on(async move {
            let start = tokio::time::Instant::now();
            world.run(Settings { max_async_level: level, ..settings(10, 8, 4) }).await.unwrap();
            start.elapsed()
        })
    };
    assert!(seconds(&world, 1) < seconds(&serial, 0));
}

#[test]
fn batches_are_full_and_in_order() {
    let post = vec![Filter { kind: FilterKind::ZeroAdvantage, enforce: false }];
    let world = World::new(3, 30, Script::default());
    block_on(world.run(Settings { post_batch_filters: post, ..settings(5, 12, 4) })).unwrap();
    let log = world.log.lock().unwrap();
    let flat: Vec<RolloutId> = log.batches.iter().flat_map(|(_, ids)| ids.clone()).collect();
    assert!(log.batches.iter().all(|(_, ids)| ids.len() == 12));
    assert!(flat.is_sorted() && flat == log.ids(Purpose::Train));
    assert_eq!(log.batches.iter().map(|(s, _)| *s).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for ((step, ids), batch) in log.batches.iter().zip(&log.trained) {
        assert_eq!((batch.step, batch.items.len()), (*step, ids.len()));
    }
}

#[test]
fn post_batch_filters_ship_less_and_pre_batch_filters_sample_more() {
    let one_zero_group = || Script {
        reward: std::sync::Arc::new(|_, request| match request.id.group.0 % 2 {
            0 => 1.0,
            _ => f64::from(request.id.member % 2),
        }),
        ..Script::default()
    };
    let world = World::new(0, 10, one_zero_group());
    block_on(world.run(settings(3, 8, 4))).unwrap();
    let log = world.log.lock().unwrap();
    assert!(log.batches.iter().all(|(_, ids)| ids.len() == 4 && ids.iter().all(|id| id.group.0 % 2 == 1)));
    assert_eq!((log.steps[0].all.trainable, log.steps[0].all.batch), (4, 8));
    let m = &log.steps[0].metrics;
    assert_eq!((m["train/agg/all/is_filtered/mean"], m["train/agg/all/filters/zero_advantage/mean"]), (0.5, 0.5));
    assert_eq!((m["pre_filters/all/dropped_rate"], m["pre_filters/all/zero_advantage/rate"]), (0.0, 0.5));
    assert_eq!((m["train/a/all/solved_all"], m["train/a/effective/solved_some"]), (0.5, 1.0));
    assert_eq!(m["reward/all/mean"], 0.75);
    let first = &log.steps[0];
    assert_eq!((first.all.reward, first.all.trainable, first.all.batch), (0.75, 4, 8));
    assert_eq!(first.metrics["algo/baseline"], 0.75);

    let world = World::new(0, 10, one_zero_group());
    let pre = vec![Filter { kind: FilterKind::ZeroAdvantage, enforce: true }];
    block_on(world.run(Settings { pre_batch_filters: pre, ..settings(3, 8, 4) })).unwrap();
    let log = world.log.lock().unwrap();
    assert!(log.batches.iter().all(|(_, ids)| ids.len() == 8));
    assert_eq!(log.steps[0].metrics["pre_filters/all/dropped_rate"], 0.5);
}

#[test]
fn concurrency_is_a_hard_cap() {
    for (cap, deterministic) in [(1, true), (3, true), (5, false)] {
        let world = World::new(9, 25, Script { turns: 2, ..Script::default() });
        let s = Settings { max_inflight_rollouts: Some(cap), deterministic, ..two_envs(3) };
        block_on(world.run(s)).unwrap();
        assert!(world.max_live.load(SeqCst) <= cap, "{}", world.max_live.load(SeqCst));
        assert_eq!(world.live.load(SeqCst), 0);
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/issues/2616
#[test]
fn evaluations_come_between_their_step_and_the_next() {
    let world = World::new(2, 50, Script::default());
    block_on(world.run(two_envs(5))).unwrap();
    let log = world.log.lock().unwrap();
    let want = [
        "eval a 0", "eval b 0", "step 1", "step 2", "eval a 2", "step 3", "eval b 3", "step 4", "eval a 4", "step 5",
        "eval a 5", "eval b 5",
    ];
    assert_eq!(log.order, want);
    assert!(log.evals.iter().all(|(eval, _)| eval.policy_version.0 == eval.step && eval.rollouts.len() == 6));
    let versions = |r: &Rollout| r.samples.iter().filter_map(Sample::versions).collect::<Vec<_>>();
    for (eval, metrics) in &log.evals {
        let v = (eval.policy_version, eval.policy_version);
        assert!(eval.rollouts.iter().all(|r| versions(r) == [v]), "an evaluation is of one policy");
        assert_eq!(metrics[&format!("eval/{}/policy_version", eval.env)], eval.step as f64);
        assert!(metrics.contains_key(&format!("eval/{}/effective/avg@2", eval.env)));
    }
    let eval_ids = log.ids(Purpose::Eval);
    assert_eq!(eval_ids.len(), log.evals.len() * 6);
}

#[test]
fn evaluation_never_changes_training() {
    let trained = |with_eval: bool| {
        let world = World::new(4, 30, Script::default());
        let mut s = two_envs(5);
        if !with_eval {
            s.eval.clear();
        }
        block_on(world.run(s)).unwrap();
        let log = world.log.lock().unwrap();
        format!("{:?}", log.trained)
    };
    assert_eq!(trained(true), trained(false));
}

#[test]
fn pass_at_k_needs_binary_rewards() {
    let binary =
        Script { reward: std::sync::Arc::new(|_, request| f64::from(request.id.member == 0)), ..Script::default() };
    let world = World::new(0, 0, binary);
    block_on(world.run(two_envs(1))).unwrap();
    let log = world.log.lock().unwrap();
    let m = &log.evals[0].1;
    assert_eq!((m["eval/a/avg@2"], m["eval/a/pass@1"], m["eval/a/pass@2"]), (0.5, 0.5, 1.0));
    assert_eq!((m["eval/a/effective/pass^1"], m["eval/a/effective/pass^2"]), (0.5, 0.0));
    let world = World::new(0, 0, Script { reward: std::sync::Arc::new(|_, _| 0.5), min_group: 1, ..Script::default() });
    let s = Settings { post_batch_filters: vec![], ..two_envs(1) };
    block_on(world.run(Settings { skip_first_eval: true, ..s })).unwrap();
    let log = world.log.lock().unwrap();
    assert_eq!(log.order, ["step 1", "eval a 1", "eval b 1"]);
    assert!(!log.evals[0].1.contains_key("eval/a/pass@1"));
}

#[test]
fn a_stop_returns_soon_with_what_is_done() {
    let world = World::new(1, 20, Script::default());
    let s = Settings { max_steps: None, ..settings(1, 8, 4) };
    let (deps, stop) = world.deps(&s);
    let (outcome, waited) = block_on(async {
        let running = tokio::spawn(run(s, deps));
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let asked = tokio::time::Instant::now();
        stop.send(true).unwrap();
        (running.await.unwrap().unwrap(), asked.elapsed())
    });
    assert!(waited < std::time::Duration::from_secs(1));
    world.check_accounting();
    let log = world.log.lock().unwrap();
    assert!(outcome.stopped && outcome.progress.step > 2);
    assert_eq!(outcome.progress.step, log.steps.last().unwrap().step);
}

/// https://github.com/thinking-machines-lab/tinker-cookbook/pull/822
#[test]
fn a_free_run_uses_new_versions_at_once_and_keeps_the_bound() {
    for (seed, max_off_policy_steps) in [(1, 1), (2, 2), (3, 8)] {
        let world = World::new(seed, 60, Script { turns: 3, ..Script::default() });
        let s = Settings { deterministic: false, max_off_policy_steps, ..two_envs(12) };
        block_on(world.run(s)).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        assert_eq!(log.policies, (1..=12).collect::<Vec<_>>());
        assert_eq!(log.steps.len(), 12);
        for (step, oldest, _) in log.versions() {
            assert!(step - 1 - oldest <= max_off_policy_steps, "step {step} trained tokens of v{oldest}");
        }
        assert!(log.batches.iter().all(|(_, ids)| ids.len() <= 8));
    }
}

/// https://github.com/thinking-machines-lab/tinker-cookbook/pull/822
#[test]
fn a_free_run_begins_no_batch_ahead_of_its_async_level() {
    for (seed, level) in [(1, 0), (2, 0), (3, 1), (4, 2), (5, 3)] {
        let world = World::new(seed, 60, Script { turns: 3, ..Script::default() });
        let s = Settings {
            deterministic: false,
            max_async_level: level,
            max_off_policy_steps: 8,
            max_inflight_rollouts: Some(64),
            ..settings(12, 8, 4)
        };
        block_on(world.run(s)).unwrap();
        let log = world.log.lock().unwrap();
        let versions = log.versions();
        assert_eq!(versions.len(), 12);
        assert!(log.steps.iter().all(|report| report.metrics["off_policy/dropped"] == 0.0), "pacing discards nothing");
        assert!(level > 0 || versions.iter().all(|(step, oldest, newest)| oldest == newest && *oldest == step - 1));
        // What began with version v or before is enough for batches 1 to v + 1 + level and no more.
        for version in 0..12 {
            let began = log
                .rollouts
                .iter()
                .filter(|(purpose, _, rollout)| *purpose == Purpose::Train && rollout.policy_version.0 <= version);
            assert!(began.count() as u64 <= 8 * (version + 1 + level), "level {level}, version {version}");
        }
    }
}

#[test]
fn no_evaluation_is_passed_over_where_weights_arrive_slowly() {
    for schedule in 0..40 {
        let world = World::new(schedule, 400, Script { min_group: 1, ..Script::default() });
        let s =
            Settings { deterministic: false, eval: vec![eval_env("a", 1)], max_async_level: 3, ..settings(8, 4, 4) };
        block_on(world.run(Settings { max_off_policy_steps: 8, ..s })).unwrap();
        let log = world.log.lock().unwrap();
        assert!(log.evals.iter().map(|(eval, _)| eval.step).eq(0..=8), "schedule {schedule}: {:?}", log.order);
    }
}
