//! Whatever a guest does is a value, and costs one rollout.

use super::common::{Lines, Setup, context, limits, load, plain, play, sandbox, step, wasm};
use prl_environment::{
    EnvError, Failure, GroupMember, GuestErrorCode, Isolation, Limits, LogLevel, Pool, RolloutContext,
};
use prl_types::ErrorKind;
use serde_json::json;
use std::time::Duration;

const CALLS: [&str; 5] = ["get-task", "open", "start", "step", "score"];

/// Runs the task that misbehaves in `CALLS[at]`.
async fn provoke(pool: &Pool, act: &str, at: u64) -> EnvError {
    let run = async {
        let task = pool.task(act, at, 1).await?;
        play(pool, &task, 0, "hello").await
    };
    let error = run.await.err().unwrap_or_else(|| panic!("`{act}` at {at} went through"));
    assert_eq!(error.call, CALLS[at as usize], "{error}");
    assert_eq!(error.kind(), ErrorKind::EnvError);
    error
}

async fn still_works(pool: &Pool) {
    let task = pool.task("honest", 5, 1).await.unwrap();
    let score = play(pool, &task, 1, "hello").await.unwrap();
    assert_eq!((score.total(), score.metrics[0].value), (3.0, 5.0));
}

fn quick() -> Limits {
    Limits { call_timeout: Duration::from_millis(300), ..limits() }
}

#[tokio::test]
async fn a_panic_is_told_with_its_text_in_every_call() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        let pool = Setup { isolation, workers: 1, ..Setup::default() }.pool("misbehave").await.unwrap();
        for at in 0..5 {
            let error = provoke(&pool, "panic", at).await;
            let Failure::Trap { reason, said } = &error.failure else { panic!("{error}") };
            assert!(reason.contains("unreachable"), "{reason}");
            assert!(said.as_ref().is_some_and(|said| said.contains("misbehaving on purpose")), "{said:?}");
            assert!(!error.is_retryable());
            still_works(&pool).await;
        }
        assert_eq!((pool.stats().ended, pool.stats().live), (5, 0));
    }
}

#[tokio::test]
async fn an_endless_loop_is_interrupted_in_every_call() {
    let pool = Setup { limits: quick(), ..Setup::default() }.pool("misbehave").await.unwrap();
    for at in 0..5 {
        let error = provoke(&pool, "loop", at).await;
        assert_eq!(error.failure, Failure::CallTimeout { limit: quick().call_timeout });
    }
    still_works(&pool).await;
}

#[tokio::test]
async fn memory_and_stack_are_bounded() {
    let pool = Setup::default().pool("misbehave").await.unwrap();
    for at in [0, 3] {
        let error = provoke(&pool, "bomb", at).await;
        let Failure::OutOfMemory { wanted_bytes, limit_bytes } = error.failure else { panic!("{error}") };
        assert!(limit_bytes == 32 << 20 && wanted_bytes > limit_bytes);
        let error = provoke(&pool, "stack", at).await;
        assert!(matches!(error.failure, Failure::Trap { .. }), "{error}");
    }
    still_works(&pool).await;
}

#[tokio::test]
async fn what_it_hands_over_is_bounded_and_checked() {
    let limits = Limits { memory_bytes: 256 << 20, ..limits() };
    let pool = Setup { limits, ..Setup::default() }.pool("misbehave").await.unwrap();
    for at in [0, 2, 3, 4] {
        assert_eq!(provoke(&pool, "huge", at).await.failure, Failure::TooMuchData { limit_bytes: 1 << 20 });
    }
    for (act, at, words) in [
        ("nan", 3, "reward of `turn` is NaN"),
        ("inf", 3, "reward of `turn` is -inf"),
        ("large", 3, "reward of `turn` is 1e308; values must be finite and at most 1e9 in magnitude"),
        ("nan", 2, "it gives a reward before the first turn"),
        ("nan", 4, "reward component `turns` is inf"),
        ("inf", 4, "reward component `turns` is -inf"),
        ("large", 4, "reward component `turns` is 1e308"),
        ("undeclared", 3, "metric `surprise` is not in its description"),
        ("undeclared", 4, "reward component `surprise` is not in its description"),
        ("twice", 3, "metric `calls` is there twice"),
        ("twice", 4, "reward component `turns` is there twice"),
        ("image", 0, "a user message holds a part of kind `other`; this prl handles text only"),
        ("image", 2, "a user message holds a part of kind `other`; this prl handles text only"),
        ("bad-json", 0, "the task's payload is not JSON"),
        ("bad-json", 3, "there is no sampling hint `temperature`; there are `max_tokens` and `stop`"),
        ("bad-json", 4, "the score's info is not JSON"),
        ("silent", 3, "it neither stops nor says anything"),
        ("tools", 0, "it offers tools, which its features do not say"),
        ("tools", 3, "it offers tools, which its features do not say"),
        ("tool-id", 2, "a tool result answers call `call_99`, which the last turn does not hold"),
        ("tool-id", 3, "a tool result answers call `call_99`, which the last turn does not hold"),
    ] {
        let error = provoke(&pool, act, at).await;
        assert!(matches!(&error.failure, Failure::Invalid(reason) if reason.contains(words)), "{error}");
    }
    for (act, words) in [("utf8", "invalid utf-8"), ("gigabyte", "out of bounds")] {
        for at in [0, 2, 3] {
            let error = provoke(&pool, act, at).await;
            assert!(matches!(&error.failure, Failure::Trap { reason, .. } if reason.contains(words)), "{error}");
        }
    }
    still_works(&pool).await;
}

#[tokio::test]
async fn a_typed_error_ends_the_rollout_and_keeps_its_advice() {
    let pool = Setup::default().pool("misbehave").await.unwrap();
    for at in 0..5 {
        let error = provoke(&pool, "error", at).await;
        assert!(matches!(&error.failure, Failure::Guest { code: GuestErrorCode::Upstream, .. }), "{error}");
        assert!(error.is_retryable());
    }
    assert_eq!(pool.stats().ended, 0, "no instance had to go for it");
}

#[tokio::test]
async fn a_bad_start_is_told_at_once() {
    for (act, words) in [
        ("panic", "in `configure`: it crashed"),
        ("loop", "in `configure`: no answer within 0.3 s"),
        ("bomb", "in `configure`: out of memory"),
        ("refuse", "in `configure`: invalid config: `act` is a bad idea"),
    ] {
        let setup = Setup { args: json!({ "act": act }), limits: quick(), ..Setup::default() };
        let error = setup.pool("misbehave").await.err().expect("the start fails").to_string();
        assert!(error.contains(words), "{error}");
    }
    let tiny = plain(Limits { memory_bytes: 1 << 16, ..limits() });
    let error = sandbox().load(&wasm("misbehave"), &tiny).await.err().unwrap().to_string();
    assert!(error.contains("in `instantiate`: out of memory"), "{error}");
}

#[tokio::test]
async fn the_log_is_routed_and_bounded() {
    let lines = Lines::default();
    let pool = Setup { lines: lines.clone(), workers: 1, ..Setup::default() }.pool("misbehave").await.unwrap();
    let task = pool.task("flood", 3, 1).await.unwrap();
    play(&pool, &task, 7, "hello").await.unwrap();
    let lines = lines.take();
    // Three turns, each with one debug line, the flood and the note about what was dropped.
    assert_eq!(lines.len(), 3 * 101);
    assert!(lines.iter().all(|line| line.worker == 0 && line.rollout.as_deref() == Some("0.7")));
    assert_eq!((lines[0].level, lines[0].message.as_str()), (LogLevel::Debug, "flood in step"));
    assert_eq!((lines[1].level, lines[1].message.as_str()), (LogLevel::Info, "line 0"));
    assert_eq!(lines[100].level, LogLevel::Warn);
    assert!(lines[100].message.starts_with("99902 more lines dropped"), "{}", lines[100].message);
}

/// https://github.com/PrimeIntellect-ai/verifiers/issues/726
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_dies_and_the_others_finish() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        for act in ["panic", "loop", "bomb"] {
            let limits = Limits { call_timeout: Duration::from_secs(1), ..limits() };
            let pool = Setup { isolation, workers: 2, limits, ..Setup::default() }.pool("misbehave").await.unwrap();
            let bad = pool.task(act, 3, 1).await.unwrap();
            let good = pool.task("honest", 5, 1).await.unwrap();
            // All alive at once, then each steps.
            let mut sessions = Vec::new();
            for member in 0..12 {
                let task = if member == 4 { &bad } else { &good };
                let mut session = pool.open(task, context(member)).await.unwrap();
                session.start().await.unwrap();
                sessions.push(session);
            }
            assert_eq!(pool.stats().live, 12);
            let all = sessions.into_iter().map(|mut session| {
                tokio::spawn(async move {
                    for _ in 0..3 {
                        step(&mut session, "hello").await?;
                    }
                    session.score(None).await
                })
            });
            for (member, done) in all.collect::<Vec<_>>().into_iter().enumerate() {
                let result = done.await.unwrap();
                match member {
                    4 => assert_eq!(result.unwrap_err().call, "step"),
                    // Also when its instance was replaced under it: the score counts every call.
                    _ => assert_eq!(result.unwrap().metrics[0].value, 5.0, "member {member}, {act}, {isolation:?}"),
                }
            }
            let stats = pool.stats();
            assert_eq!((stats.live, stats.ended, stats.failed), (0, 1, 1), "{act}, {isolation:?}");
            assert_eq!(stats.replayed > 0, isolation == Isolation::Worker, "{act}, {isolation:?}");
        }
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_ends_its_rollout_only() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        let pool = Setup { isolation, workers: 1, ..Setup::default() }.pool("misbehave").await.unwrap();
        let (bad, good) = (pool.task("loop", 3, 1).await.unwrap(), pool.task("honest", 5, 1).await.unwrap());
        let mut kept = pool.open(&good, context(0)).await.unwrap();
        let mut hung = pool.open(&bad, context(1)).await.unwrap();
        let given_up = tokio::time::timeout(Duration::from_millis(50), step(&mut hung, "hello")).await;
        assert!(given_up.is_err());
        assert_eq!(step(&mut hung, "again").await.unwrap_err().failure, Failure::Over);
        assert!(step(&mut kept, "hello").await.is_ok());
        drop((hung, kept));
        assert_eq!(pool.stats().live, 0);
        still_works(&pool).await;
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/2360
/// https://github.com/verl-project/verl/issues/7155
#[tokio::test]
async fn the_rollout_has_a_deadline_over_all_phases() {
    let limits = Limits { rollout_timeout: Duration::from_millis(200), ..limits() };
    let limit = limits.rollout_timeout;
    let pool = Setup { limits, ..Setup::default() }.pool("misbehave").await.unwrap();
    // Inside a call, and between two calls.
    let bad = pool.task("loop", 3, 1).await.unwrap();
    let mut hung = pool.open(&bad, context(0)).await.unwrap();
    assert_eq!(step(&mut hung, "hello").await.unwrap_err().failure, Failure::RolloutTimeout { limit });
    let good = pool.task("honest", 5, 1).await.unwrap();
    let mut slow = pool.open(&good, context(1)).await.unwrap();
    tokio::time::sleep(slow.time_left() + Duration::from_millis(1)).await;
    assert_eq!(step(&mut slow, "hello").await.unwrap_err().failure, Failure::RolloutTimeout { limit });
}

#[tokio::test]
async fn groups_are_scored_as_a_whole() {
    assert!(load("misbehave").await.info().features.group_scoring);
    let pool = Setup::default().pool("misbehave").await.unwrap();
    let task = pool.task("honest", 5, 1).await.unwrap();
    let member = |n: u32| GroupMember {
        context: context(n),
        messages: vec![super::common::says("x"); n as usize],
        truncated: None,
        score: prl_types::Score::default(),
        reward: 0.0,
    };
    let scores = pool.score_group(&task, &[member(2), member(0), member(5)]).await.unwrap();
    assert_eq!(scores.iter().map(prl_types::Score::total).collect::<Vec<_>>(), [2.0, 0.0, 5.0]);
}

/// One in a hundred crashes at random, one never ends: all others complete, and the counts add up.
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1801
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_rollouts_with_random_crashes_and_an_endless_one() {
    const ROLLOUTS: u32 = 1000;
    let limits = Limits { call_timeout: Duration::from_secs(2), ..limits() };
    let pool = Setup { limits, max_rollouts: 100, ..Setup::default() }.pool("misbehave").await.unwrap();
    let sometimes = pool.task("sometimes", 3, 1).await.unwrap();
    let endless = pool.task("loop", 3, 1).await.unwrap();
    let all: Vec<_> = (0..ROLLOUTS)
        .map(|n| {
            let (pool, task) = (pool.clone(), if n == 500 { endless.clone() } else { sometimes.clone() });
            tokio::spawn(async move {
                let context = RolloutContext { seed: u64::from(n), ..context(n) };
                let mut session = pool.open(&task, context).await?;
                session.start().await?;
                while step(&mut session, "hello").await?.stop.is_none() {}
                session.score(None).await
            })
        })
        .collect();
    let (mut finished, mut crashed, mut late) = (0, 0, 0);
    for done in all {
        match done.await.unwrap().map_err(|error| error.failure) {
            Ok(score) => {
                assert_eq!(score.total(), 3.0);
                finished += 1;
            }
            Err(Failure::Trap { said, .. }) => {
                assert!(said.is_some_and(|said| said.contains("one in a hundred")));
                crashed += 1;
            }
            Err(Failure::CallTimeout { .. }) => late += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!((finished + crashed + late, late), (ROLLOUTS, 1));
    assert!((1..40).contains(&crashed), "{crashed} crashed");
    let stats = pool.stats();
    assert_eq!((stats.opened, stats.live), (u64::from(ROLLOUTS), 0));
    assert_eq!((stats.failed, stats.ended), (u64::from(crashed + late), u64::from(crashed + late)));
}

/// KiB of memory that the process holds by itself.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

async fn episodes(count: u32) {
    let pool = Setup { max_rollouts: 8, ..Setup::default() }.pool("misbehave").await.unwrap();
    let (good, bad) = (pool.task("honest", 5, 1).await.unwrap(), pool.task("panic", 4, 1).await.unwrap());
    let mut after_some = 0;
    for n in 0..count {
        if n == count / 10 {
            after_some = resident();
        }
        let task = if n % 50 == 0 { &bad } else { &good };
        let played = play(&pool, task, n, "hello").await;
        assert_eq!(played.is_err(), n % 50 == 0);
    }
    let grown = resident().saturating_sub(after_some);
    assert!(grown < 16 << 10, "{grown} KiB more after {count} episodes than after {}", count / 10);
}

#[tokio::test]
async fn memory_stays_flat_over_many_episodes() {
    episodes(5_000).await;
}

#[tokio::test]
#[ignore = "takes ten seconds; the test before it is its short form"]
async fn memory_stays_flat_over_a_hundred_thousand_episodes() {
    episodes(100_000).await;
}
