//! Difficulty pools and gates in whole runs: what is drawn, what is turned away, and that neither timing nor a resume
//! changes it.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::collections::BTreeMap;
use std::sync::Arc;

fn pool(name: &str, threshold: f64, weight: f64) -> DifficultyPool {
    DifficultyPool { name: name.into(), threshold, weight }
}

fn pools(s: &mut Settings) {
    s.train[0].curriculum.pools = vec![pool("hard", 0.25, 0.1), pool("normal", 0.75, 1.0), pool("easy", 1.0, 0.0)];
    s.post_batch_filters.clear();
}

fn few() -> Script {
    Script { size: Some(24), min_group: 1, ..Script::default() }
}

fn rewarded(world: &Arc<World>) -> BTreeMap<u64, Vec<(Step, f64)>> {
    let mut out = BTreeMap::<u64, Vec<(Step, f64)>>::new();
    for (purpose, step, r) in &world.log.lock().unwrap().rollouts {
        if *purpose == Purpose::Train {
            out.entry(r.task.index).or_default().push((*step, r.reward));
        }
    }
    out
}

#[test]
fn what_is_easy_is_not_drawn_again_and_the_rest_by_weight() {
    let world = World::new(1, 20, Script { reward: Arc::new(|_, _| 1.0), ..few() });
    let mut s = settings(8, 4, 2);
    pools(&mut s);
    block_on(world.run(s.clone())).unwrap();
    // Two groups a batch, all of them right: none comes twice but in one batch.
    let seen = rewarded(&world);
    assert!(seen.values().all(|rollouts| rollouts.iter().all(|(step, _)| *step == rollouts[0].0)), "{seen:?}");
    let log = world.log.lock().unwrap();
    let last = &log.steps[7].metrics;
    assert_eq!(last["curriculum/a/pools/easy/share"], 0.0);
    let tasks =
        ["pools/hard", "pools/normal", "pools/easy", "unseen"].map(|c| last[&format!("curriculum/a/{c}/tasks")]);
    assert_eq!((tasks.iter().sum::<f64>(), tasks[0], tasks[1]), (24.0, 0.0, 0.0));
    assert!(log.steps[0].metrics["curriculum/a/unseen/share"] == 1.0 && tasks[2] >= 12.0);
    drop(log);

    // A third of the tasks is never solved.
    let fixed = |task: &Task, r: Option<&OpenRequest>| r.map(|_| Fault::Reward(f64::from(task.index >= 8)));
    let world = World::new(1, 20, Script { fault: Arc::new(fixed), ..few() });
    s.train[0].curriculum.pools[2].weight = 1.0;
    block_on(world.run(Settings { max_steps: Some(200), ..s })).unwrap();
    let mut counts = [0usize; 2];
    let mut latest = BTreeMap::<u64, f64>::new();
    let log = world.log.lock().unwrap();
    for group in log.rollouts.chunk_by(|a, b| a.2.id.group == b.2.id.group) {
        let mean = group.iter().map(|(_, _, r)| r.reward).sum::<f64>() / group.len() as f64;
        match latest.insert(group[0].2.task.index, mean) {
            Some(before) if before <= 0.25 => counts[0] += 1,
            Some(_) => counts[1] += 1,
            None => {}
        }
    }
    assert!(counts[1] > 10 * counts[0] && counts[0] > 5, "{counts:?}");
}

#[test]
fn curricula_do_not_depend_on_timing_and_survive_a_resume() {
    let mut s = settings(9, 8, 4);
    s.train.push(TrainEnv { ratio: 2.0, ..train_env("b", 2) });
    pools(&mut s);
    s.train[0].curriculum.gates = vec![AdvantageRange { name: "flat".into(), reject_min: -0.1, reject_max: 0.1 }];
    let once = |schedule, s: &Settings| {
        let world = World::new(schedule, 1 + schedule * 7, few());
        block_on(world.run(s.clone())).unwrap();
        world.check_accounting();
        world
    };
    let whole = once(0, &s);
    let whole = whole.log.lock().unwrap();
    for schedule in 1..6 {
        assert_eq!(once(schedule, &s).log.lock().unwrap().fingerprint(), whole.fingerprint());
    }
    s.checkpoints = Some(Due { interval: Some(4) });
    let whole = once(0, &s);
    let whole = whole.log.lock().unwrap();
    let state: State = serde_json::from_str(&whole.kept[0]).unwrap();
    let progress = state.progress();
    assert!(progress.step == 4 && progress.rewards["a"].len() > 2 && !progress.rewards.contains_key("b"));
    let after = state.newest_batch();
    let rest = once(3, &Settings { resume: Some(state), ..s });
    let rest = rest.log.lock().unwrap();
    let tasks = |log: &Log| -> Vec<(RolloutId, u64, String)> {
        let mine = log.rollouts.iter().filter(|(_, step, _)| *step > after);
        mine.map(|(_, _, r)| (r.id, r.task.index, format!("{:?}", r.reward))).collect()
    };
    assert_eq!(tasks(&rest), tasks(&whole));
    assert!(rest.trained == whole.trained[4..]);
}

#[test]
fn a_group_that_a_gate_turns_away_does_not_train_and_is_replaced() {
    // Odd groups have advantages of a half, even ones of a tenth.
    let reward = |_: &str, r: &OpenRequest| {
        let spread = if r.id.group.0.is_multiple_of(2) { 0.2 } else { 1.0 };
        f64::from(r.id.member % 2) * spread
    };
    let world = World::new(0, 10, Script { reward: Arc::new(reward), ..Script::default() });
    let mut s = settings(3, 8, 4);
    s.train[0].curriculum.gates = vec![AdvantageRange { name: "weak".into(), reject_min: -0.15, reject_max: 0.15 }];
    block_on(world.run(s)).unwrap();
    world.check_accounting();
    let log = world.log.lock().unwrap();
    assert_eq!(log.batches.len(), 3);
    assert!(log.batches.iter().all(|(_, ids)| ids.len() == 8 && ids.iter().all(|id| id.group.0 % 2 == 1)));
    let first = &log.steps[0].metrics;
    assert_eq!(first["curriculum/a/gates/weak/rejected"], 2.0);
    assert_eq!(first["train/agg/all/filters/gates/weak/mean"], 0.5);
    let away = log.rollouts.iter().filter(|(_, _, r)| r.filters == ["gates/weak"] && r.is_filtered);
    assert_eq!(away.count(), 24);
}

#[test]
fn a_gate_that_turns_everything_away_ends_the_run_and_says_so() {
    let world = World::new(0, 10, Script::default());
    let mut s = settings(3, 8, 4);
    s.train[0].curriculum.gates = vec![AdvantageRange { name: "all".into(), reject_min: -9.0, reject_max: 9.0 }];
    let error = block_on(world.run(s)).unwrap_err().to_string();
    assert!(error.contains("were dropped as `gates/all`"), "{error}");
}

#[test]
fn an_unbounded_split_has_no_pools() {
    let world = World::new(0, 0, Script { size: None, ..Script::default() });
    let mut s = settings(1, 4, 4);
    pools(&mut s);
    let error = block_on(world.run(s)).unwrap_err().to_string();
    assert_eq!(error, "`train.env.a.curriculum.pools`: difficulty pools need a finite split, and `train` is unbounded");
}
