//! The honest environment, through the whole host.

use super::common::{Setup, completion, context, load, play, step, wasm};
use prl_environment::{EnvFeatures, Failure, Finish, GuestErrorCode, Isolation};
use prl_types::Role;
use serde_json::{Value, json};

#[tokio::test]
async fn describes_itself() {
    let file = load("reverse-text").await;
    let info = file.info();
    assert_eq!((info.name.as_str(), info.metrics.as_slice()), ("reverse-text", &["format".to_owned()][..]));
    assert_eq!((info.components[0].name.as_str(), info.components[0].weight), ("reverse_text", 1.0));
    assert_eq!(
        info.splits.iter().map(|s| (s.name.as_str(), s.size)).collect::<Vec<_>>(),
        [("train", None), ("eval", Some(256))]
    );
    assert_eq!(info.features, EnvFeatures { deterministic: true, ..EnvFeatures::default() });
    assert_eq!(file.imports(), ["prl:env/log@0.1.0", "prl:env/types@0.1.0"], "and nothing of WASI");
    assert_eq!((file.contract_version(), file.sha256().len()), ("0.1.0", 64));
    assert!(file.bytes() < 250_000, "{} bytes", file.bytes());
    assert_eq!(file.path(), wasm("reverse-text"));
}

#[tokio::test]
async fn tasks_and_rewards_cross_the_border() {
    for isolation in [Isolation::Rollout, Isolation::Worker] {
        let pool = Setup { isolation, ..Setup::default() }.pool("reverse-text").await.unwrap();
        let task = pool.task("train", 3, 9).await.unwrap();
        assert_eq!((task.env.as_str(), task.split.as_str(), task.index, task.seed), ("reverse-text", "train", 3, 9));
        assert_eq!(task.prompt.iter().map(|m| m.role).collect::<Vec<_>>(), [Role::System, Role::User]);
        assert_eq!(task.max_turns, Some(1));
        let text = task.payload["text"].as_str().unwrap();
        assert_eq!(task.prompt[1].content, text);
        let reversed: String = text.chars().rev().collect();
        assert_eq!(task.answer, Some(Value::String(reversed.clone())));
        assert_eq!(task, pool.task("train", 3, 9).await.unwrap());

        let good = play(&pool, &task, 0, task.payload["demonstration"].as_str().unwrap()).await.unwrap();
        assert_eq!((good.total(), good.metrics[0].value), (1.0, 1.0));
        let half = play(&pool, &task, 1, &format!("<reversed_text>{}</reversed_text>", &reversed[2..])).await.unwrap();
        let n = reversed.len() as f64;
        assert_eq!(half.total(), 2.0 * (n - 2.0) / (2.0 * n - 2.0));
        let none = play(&pool, &task, 2, &reversed).await.unwrap();
        assert_eq!((none.total(), none.metrics[0].value), (0.0, 0.0));

        let mut cut = pool.open(&task, context(3)).await.unwrap();
        assert_eq!(cut.start().await.unwrap().stop, None);
        let turn = cut.step(completion("<reversed_text>cut", Finish::Length)).await.unwrap();
        assert_eq!(turn.stop.map(|stop| (stop.truncated, stop.reason)), Some((false, "answered".into())));
        assert_eq!(cut.score(Some("max_completion_tokens")).await.unwrap().total(), 0.0);
        let stats = pool.stats();
        assert_eq!((stats.opened, stats.live, stats.failed, stats.ended), (4, 0, 0, 0));
    }
}

#[tokio::test]
async fn bad_requests_are_typed_errors() {
    let pool = Setup::default().pool("reverse-text").await.unwrap();
    let unknown = pool.task("test", 0, 0).await.unwrap_err();
    assert!(unknown.to_string().contains("there is no split `test`, only `train`, `eval`"), "{unknown}");
    let beyond = pool.task("eval", 256, 0).await.unwrap_err();
    assert!(beyond.to_string().contains("split `eval` has 256 tasks"), "{beyond}");
    let task = pool.task("train", 0, 0).await.unwrap();
    assert_eq!(pool.score_group(&task, &[]).await.unwrap_err().call, "score-group");

    // A call out of order is the guest's to refuse, and ends only that rollout.
    let task = pool.task("train", 0, 0).await.unwrap();
    let mut session = pool.open(&task, context(0)).await.unwrap();
    step(&mut session, "one").await.unwrap();
    let twice = step(&mut session, "two").await.unwrap_err();
    assert!(matches!(twice.failure, Failure::Guest { code: GuestErrorCode::InvalidState, .. }), "{twice}");
    assert_eq!(session.score(None).await.unwrap_err().failure, Failure::Over);

    // Arguments are checked before the environment sees them; what a schema cannot say, it says itself.
    for (args, words) in [
        (json!({ "min_char": 3 }), "environment `reverse-text`: `args.min_char` is not an argument; there are `"),
        (json!({ "max_chars": 99 }), "environment `reverse-text`: `args.max_chars` is 99; it must be at most 39"),
        (
            json!({ "min_chars": 30 }),
            "environment `reverse-text` (worker 0) in `configure`: invalid config: min_chars = 30 must not be more than",
        ),
    ] {
        let refused = Setup { args, ..Setup::default() }.pool("reverse-text").await.err().unwrap().to_string();
        assert!(refused.starts_with(words), "{refused}");
    }
}

#[tokio::test]
async fn weights_are_the_runs() {
    let weights = |name: &str, weight: f64| std::iter::once((name.to_owned(), weight)).collect();
    let pool = Setup { weights: weights("reverse_text", 0.25), ..Setup::default() }.pool("reverse-text").await.unwrap();
    assert_eq!(pool.info().components[0].weight, 0.25);
    let task = pool.task("train", 3, 9).await.unwrap();
    let score = play(&pool, &task, 0, task.payload["demonstration"].as_str().unwrap()).await.unwrap();
    assert_eq!((score.components[0].value, score.total()), (1.0, 0.25));
    let refused = Setup { weights: weights("format", 1.0), ..Setup::default() }.pool("reverse-text").await.err();
    assert_eq!(
        refused.unwrap().to_string(),
        "environment `reverse-text`: `weights.format`: there is no reward component `format`; there are `reverse_text`"
    );
}

/// https://github.com/PrimeIntellect-ai/verifiers/issues/400
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn live_rollouts_are_bounded() {
    let pool = Setup { max_rollouts: 5, ..Setup::default() }.pool("reverse-text").await.unwrap();
    let all = (0..200).map(|member| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let task = pool.task("train", u64::from(member), 0).await?;
            play(&pool, &task, member, task.payload["demonstration"].as_str().unwrap_or_default()).await
        })
    });
    for done in all.collect::<Vec<_>>() {
        assert_eq!(done.await.unwrap().unwrap().total(), 1.0);
    }
    let stats = pool.stats();
    assert_eq!((stats.opened, stats.live, stats.failed), (200, 0, 0));
    assert!(stats.peak_live <= 5, "{} alive at once", stats.peak_live);
}
