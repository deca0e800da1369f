//! When a run gives up, and what it says.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::sync::Arc;

fn always(fault: Fault) -> Script {
    Script { fault: Arc::new(move |_, _| Some(fault)), ..Script::default() }
}

fn fails(script: Script, s: Settings) -> (Error, Arc<World>) {
    let world = World::new(0, 10, script);
    let error = block_on(world.run(s)).unwrap_err();
    world.check_accounting();
    (error, world)
}

#[test]
fn an_environment_that_fails_in_its_first_call_ends_the_run_at_once() {
    for (fault, text) in [(Fault::Task, "the word list is missing"), (Fault::Open, "trap: unreachable")] {
        let (error, world) = fails(always(fault), settings(5, 8, 4));
        assert!(matches!(&error, Error::EnvFailedAtStart { env, .. } if env == "a"), "{error}");
        assert!(error.to_string().contains(text));
        assert!(world.opened() <= 8 && world.log.lock().unwrap().trained.is_empty());
    }
    let mut s = settings(5, 8, 4);
    s.eval = vec![eval_env("e", 1)];
    let only_eval = Script { fault: Arc::new(|task, _| (task.env == "e").then_some(Fault::Open)), ..Script::default() };
    assert!(matches!(fails(only_eval, s).0, Error::EnvFailedAtStart { env, .. } if env == "e"));
}

/// https://github.com/huggingface/trl/pull/6714
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1596
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1563
#[test]
fn an_environment_that_always_traps_later_ends_the_run_with_its_words_and_counts() {
    let (error, world) = fails(always(Fault::Step), Settings { max_error_rate: 1.0, ..settings(5, 4, 4) });
    let text = error.to_string();
    assert!(matches!(error, Error::NothingToTrain { step: 1, batches: 10, .. }), "{text}");
    assert!(text.contains("40 rollouts failed, 40 of them with `EnvError: trap: index out of bounds`"), "{text}");
    assert!(world.log.lock().unwrap().trained.is_empty());
}

/// https://github.com/NVIDIA-NeMo/Gym/issues/1351
#[test]
fn a_backend_that_goes_away_ends_the_run() {
    let goes_away = Script {
        fault: Arc::new(|_, request| request.filter(|r| r.id.group.0 >= 8 && r.id.member > 0).map(|_| Fault::Step)),
        min_group: 1,
        ..Script::default()
    };
    let s = Settings { max_error_rate: 0.6, post_batch_filters: vec![], ..settings(50, 16, 4) };
    let (error, world) = fails(goes_away, s);
    assert!(matches!(error, Error::ErrorRate { window: 32, .. }), "{error}");
    assert!(error.to_string().contains("index out of bounds"));
    assert!(world.log.lock().unwrap().trained.len() < 5);
}

#[test]
fn one_bad_environment_among_several_ends_the_run() {
    let bad = Script {
        fault: Arc::new(|task, request| (task.env == "b" && request.is_some()).then_some(Fault::Score)),
        ..Script::default()
    };
    let mut s = Settings { max_error_rate: 0.5, post_batch_filters: vec![], ..settings(500, 8, 4) };
    s.train = vec![TrainEnv { ratio: 9.0, ..train_env("a", 4) }, train_env("b", 4)];
    let (error, world) = fails(bad, s);
    assert!(matches!(&error, Error::ErrorRate { env, window: 32, errors: 32, .. } if env == "b"), "{error}");
    assert!(error.to_string().contains("of the last 32 rollouts of environment `b` failed"), "{error}");
    assert!(world.log.lock().unwrap().trained.len() > 10);
}

#[test]
fn an_empty_batch_is_a_step_without_tokens_and_ten_in_a_row_end_the_run() {
    let solved = || Script { reward: Arc::new(|_, _| 1.0), ..Script::default() };
    let world = World::new(0, 0, solved());
    block_on(world.run(settings(9, 4, 4))).unwrap();
    {
        let log = world.log.lock().unwrap();
        assert!(log.batches.is_empty() && log.rollouts.len() == 36 && log.steps.len() == 9);
        assert!(log.steps.iter().all(|s| s.metrics["batch/empty"] == 1.0 && s.all.trainable == 0 && s.all.batch == 4));
    }
    let (error, world) = fails(solved(), settings(20, 4, 4));
    let text = error.to_string();
    assert!(matches!(error, Error::NothingToTrain { step: 10, .. }), "{text}");
    assert!(text.contains("40 were dropped as `zero_advantage`"), "{text}");
    assert_eq!(world.log.lock().unwrap().rollouts.len(), 40);
}

#[test]
fn a_dead_engine_ends_the_run_at_once_with_its_reason() {
    for deterministic in [true, false] {
        let dies = Script {
            turns: 2,
            fault: Arc::new(|_, request| request.filter(|r| r.id.group.0 >= 5).map(|_| Fault::Dead)),
            ..Script::default()
        };
        let (error, world) = fails(dies, Settings { deterministic, ..settings(50, 8, 4) });
        let message = "panic in the engine's thread: kernel exploded".to_owned();
        assert_eq!(error, Error::PolicyEnded { message: message.clone() });
        // What was under way is accounted for, and nothing else is started.
        let log = world.log.lock().unwrap();
        let told = |r: &&(Purpose, Step, Rollout)| r.2.error.as_ref().is_some_and(|error| error.message == message);
        assert!(log.rollouts.iter().filter(told).count() >= 1);
        assert!(log.rollouts.len() <= 48, "{} rollouts", log.rollouts.len());
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/2360
/// https://github.com/verl-project/verl/issues/7155
#[test]
fn one_rollout_of_sixty_four_that_never_ends_keeps_nobody_waiting() {
    let one = RolloutId { group: GroupId(3), member: 2 };
    let hangs = move || Script {
        fault: Arc::new(move |task, request| request.filter(|r| r.id == one && task.env == "a").map(|_| Fault::Hang)),
        ..Script::default()
    };
    // With a deadline its group is complete without it, and the step takes no longer than that.
    let mut s = Settings { post_batch_filters: vec![], ..settings(1, 64, 8) };
    s.train[0].timeout = Some(std::time::Duration::from_secs(60));
    let world = World::new(0, 10, hangs());
    block_on(world.run(s)).unwrap();
    world.check_accounting();
    let log = world.log.lock().unwrap();
    let failed: Vec<RolloutId> =
        log.rollouts.iter().filter(|(_, _, r)| r.error.is_some()).map(|(_, _, r)| r.id).collect();
    assert_eq!(failed, [one]);
    let of_its_group = log.batches[0].1.iter().filter(|id| id.group == one.group).map(|id| id.member);
    assert_eq!(of_its_group.collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6, 7]);
    assert_eq!(log.batches[0].1.len(), 64);
    assert!(log.steps[0].seconds < 61.0, "{} s on the paused clock", log.steps[0].seconds);
    // Without one, groups that are complete do not wait for it, and it is given up once its policy is too old.
    let world = World::new(0, 10, hangs());
    let s =
        Settings { post_batch_filters: vec![], deterministic: false, max_off_policy_steps: 2, ..settings(8, 64, 8) };
    block_on(world.run(s)).unwrap();
    world.check_accounting();
    let log = world.log.lock().unwrap();
    assert_eq!(log.steps.len(), 8);
    let kinds: Vec<ErrorKind> = log
        .rollouts
        .iter()
        .filter(|(_, _, r)| r.id == one)
        .filter_map(|(_, _, r)| Some(r.error.as_ref()?.kind))
        .collect();
    assert_eq!(kinds, [ErrorKind::Cancelled]);
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1801
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1816
#[test]
fn evaluation_beside_training_with_random_crashes_comes_to_its_end() {
    for deterministic in [true, false] {
        let crashes = Script {
            fault: Arc::new(|task, request| {
                let r = request?;
                let draw = mix(&[task.seed, r.step, r.id.group.0, u64::from(r.id.member)]);
                draw.is_multiple_of(100).then_some(Fault::Step)
            }),
            size: None,
            ..Script::default()
        };
        let mut s = Settings { post_batch_filters: vec![], deterministic, ..settings(20, 40, 8) };
        // The same environment for both.
        s.eval = vec![EvalEnv { num_examples: Some(10), ..eval_env("a", 1) }];
        let world = World::new(7, 30, crashes);
        block_on(world.run(s)).unwrap();
        world.check_accounting();
        let log = world.log.lock().unwrap();
        assert!(log.rollouts.len() >= 1000, "{}", log.rollouts.len());
        assert_eq!((log.steps.len(), log.evals.len()), (20, 21));
        let crashed =
            log.rollouts.iter().filter(|(_, _, r)| r.error.as_ref().is_some_and(|e| e.kind == ErrorKind::EnvError));
        assert!((3..40).contains(&crashed.count()));
        let failed: std::collections::BTreeSet<RolloutId> = log
            .rollouts
            .iter()
            .filter(|(p, _, r)| *p == Purpose::Train && r.error.is_some())
            .map(|(_, _, r)| r.id)
            .collect();
        assert!(log.batches.iter().flat_map(|(_, ids)| ids).all(|id| !failed.contains(id)));
    }
}

#[test]
fn a_failed_training_step_ends_the_run_after_what_was_done() {
    let (error, world) = fails(Script { train_fails_at: 3, ..Script::default() }, settings(9, 8, 4));
    assert_eq!(error, Error::Trainer { step: 3, message: "device lost".into() });
    let log = world.log.lock().unwrap();
    assert_eq!(log.order, ["step 1", "step 2"]);
}

#[test]
fn settings_are_checked_before_anything_runs() {
    let base = || settings(5, 8, 4);
    let cases: Vec<(Settings, &str)> = vec![
        (Settings { batch_size: 0, ..base() }, "`batch_size`"),
        (Settings { max_off_policy_steps: 0, ..base() }, "`max_off_policy_steps`: is 0, but `max_async_level` = 1"),
        (Settings { train: vec![], ..base() }, "`train.env`"),
        (Settings { train: vec![train_env("a", 2), train_env("a", 2)], ..base() }, "used twice"),
        (Settings { train: vec![train_env("a", 1)], ..base() }, "needs groups of at least 2"),
        (Settings { train: vec![TrainEnv { split: "x".into(), ..train_env("a", 2) }], ..base() }, "no split `x`"),
        (
            Settings {
                train: vec![TrainEnv {
                    sampling: Sampling { temperature: 0.0, ..Sampling::default() },
                    ..train_env("a", 2)
                }],
                ..base()
            },
            "`train.env.a.sampling.temperature`",
        ),
        (Settings { eval: vec![EvalEnv { num_examples: Some(0), ..eval_env("e", 1) }], ..base() }, "leaves no task"),
    ];
    for (s, text) in cases {
        let (error, world) = fails(Script::default(), s);
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(world.opened(), 0);
    }
    let unbounded = Settings { eval: vec![EvalEnv { num_examples: None, ..eval_env("e", 1) }], ..base() };
    let (error, _) = fails(Script { size: None, ..Script::default() }, unbounded);
    assert!(error.to_string().contains("is unbounded"), "{error}");
}

#[test]
fn a_hanging_rollout_does_not_keep_a_stop_waiting() {
    let hangs = Script {
        fault: Arc::new(|_, request| {
            request.filter(|r| r.id == RolloutId { group: GroupId(3), member: 2 }).map(|_| Fault::Hang)
        }),
        ..Script::default()
    };
    let world = World::new(0, 10, hangs);
    let s = settings(5, 8, 4);
    let (deps, stop) = world.deps(&s);
    let outcome = block_on(async {
        let running = tokio::spawn(run(s, deps));
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        stop.send(true).unwrap();
        tokio::time::timeout(std::time::Duration::from_secs(1), running).await.unwrap().unwrap().unwrap()
    });
    assert_eq!((outcome.stopped, outcome.progress.step), (true, 1));
    world.check_accounting();
    let log = world.log.lock().unwrap();
    let kinds: Vec<_> = log.rollouts.iter().filter_map(|(_, _, r)| r.error.as_ref()).map(|e| e.kind).collect();
    assert_eq!(kinds, [ErrorKind::Cancelled]);
}

#[test]
fn what_everything_waits_for_is_told_when_no_step_comes() {
    // From the sixth group on, one member never answers.
    let fault = |_: &Task, request: Option<&OpenRequest>| {
        request.filter(|r| r.id.group.0 > 6 && r.id.member == 1).map(|_| Fault::Hang)
    };
    let world = World::new(1, 20, Script { fault: Arc::new(fault), ..Script::default() });
    let (deps, stop) = world.deps(&settings(100, 8, 4));
    block_on(async {
        let running = tokio::spawn(run(settings(100, 8, 4), deps));
        tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
        stop.send(true).unwrap();
        running.await.unwrap().unwrap()
    });
    world.check_accounting();
    let stalls = &world.log.lock().unwrap().stalls;
    assert!((3..8).contains(&stalls.len()), "each time the wait has doubled: {stalls:?}");
    let first = &stalls[0];
    assert!(first.starts_with("No step has come to its end for 60") || first.contains("for 600 s"), "{first}");
    assert!(first.contains(" x rollout of a: ") && !first.contains("training"), "{first}");
}
