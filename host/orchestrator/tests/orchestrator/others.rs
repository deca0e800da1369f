//! Models outside the run: rollouts that they answer, and their log-probabilities.

use crate::fakes::*;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_orchestrator::*;
use prl_types::*;
use std::sync::Arc;

/// Says back what it was told last; fails on some tasks.
struct Parrot {
    says: fn(&Question<'_>) -> Result<Answer, String>,
}

impl Source for Parrot {
    fn answer<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Answer, String>> {
        futures::future::ready((self.says)(&question)).boxed()
    }
}

fn script(says: fn(&Question<'_>) -> Result<Answer, String>) -> Script {
    Script { source: Some(Arc::new(Parrot { says })), ..Script::default() }
}

fn echo(question: &Question<'_>) -> Result<Answer, String> {
    let last = question.messages.last().map_or("", |message| &message.content);
    Ok(Answer { message: Message::text(Role::Assistant, last), cut: false })
}

fn run(script: Script, change: impl Fn(&mut Settings)) -> Arc<World> {
    let world = World::new(0, 5, script);
    let mut s = settings(3, 4, 4);
    s.post_batch_filters.clear();
    change(&mut s);
    let _ = block_on(world.run(s));
    world
}

fn rollouts(world: &World) -> Vec<Rollout> {
    world.log.lock().unwrap().rollouts.iter().map(|(_, _, r)| r.clone()).collect()
}

#[test]
fn a_source_answers_in_text_and_its_tokens_train_without_logprobs() {
    let world = run(Script { turns: 2, ..script(echo) }, |s| s.max_off_policy_steps = 1);
    let all = rollouts(&world);
    assert_eq!(all.len(), 12);
    for r in all {
        assert_eq!(r.error, None);
        let said: Vec<&str> = r.turns.iter().map(|t| t.message.content.as_str()).collect();
        assert_eq!(said, ["go", "reply 1"]);
        let sample = &r.samples[0];
        let trained = sample.token_ids().iter().zip(sample.mask()).filter(|(_, mask)| **mask).map(|(id, _)| *id);
        let want = "go".chars().map(u32::from).chain([STOP]).chain("reply 1".chars().map(u32::from)).chain([STOP]);
        assert_eq!(trained.collect::<Vec<_>>(), want.collect::<Vec<_>>());
        assert!(sample.logprobs().iter().all(|p| *p == 0.0));
        assert_eq!(sample.versions(), None);
    }
    // It is no old policy, however long ago it answered.
    let log = world.log.lock().unwrap();
    assert_eq!(log.steps.len(), 3);
    assert!(log.steps.iter().all(|s| s.metrics["off_policy/max"] == 0.0 && s.metrics["off_policy/dropped"] == 0.0));
}

#[test]
fn a_cut_or_long_answer_is_truncated() {
    let cut = |q: &Question<'_>| Ok(Answer { cut: true, ..echo(q)? });
    let long =
        |q: &Question<'_>| Ok(Answer { message: Message::text(Role::Assistant, "x".repeat(q.max_tokens)), cut: false });
    for (says, tokens) in [(cut as fn(&Question<'_>) -> _, 2), (long, 5)] {
        for r in rollouts(&run(script(says), |s| s.train[0].sampling.max_completion_tokens = Some(5))) {
            assert_eq!(r.truncation.map(|t| t.reason).as_deref(), Some("max_completion_tokens"));
            assert_eq!(r.samples[0].output_tokens(), tokens);
            assert!(!r.samples[0].token_ids().contains(&STOP));
        }
    }
}

#[test]
fn a_source_that_fails_costs_its_rollout() {
    let says = |q: &Question<'_>| if q.seed.is_multiple_of(3) { Err("status 503".to_owned()) } else { echo(q) };
    let all = rollouts(&run(script(says), |_| ()));
    let (ill, well): (Vec<_>, Vec<_>) = all.into_iter().partition(|r| r.error.is_some());
    assert!(!ill.is_empty() && !well.is_empty());
    for r in ill {
        let error = r.error.unwrap();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::ProviderError, "status 503"));
    }
}

/// Minus its place for every token.
struct Counts(fn(&Rollout) -> Result<Vec<Option<Vec<f32>>>, String>);

impl Reference for Counts {
    fn logprobs<'a>(&'a self, rollout: &'a Rollout) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, String>> {
        futures::future::ready((self.0)(rollout)).boxed()
    }
}

fn places(rollout: &Rollout) -> Result<Vec<Option<Vec<f32>>>, String> {
    Ok(rollout.samples.iter().map(|s| Some((0..s.len()).map(|i| -(i as f32)).collect())).collect())
}

#[test]
fn the_algorithm_sees_reference_logprobs() {
    let reference = Some(Arc::new(Counts(places)) as Arc<dyn Reference>);
    for r in rollouts(&run(Script { turns: 3, bridge: false, reference, ..Script::default() }, |_| ())) {
        assert_eq!(r.streams.len(), 3);
        for (sample, streams) in r.samples.iter().zip(&r.streams) {
            let logprobs = streams.ref_logprobs.as_ref().unwrap();
            assert_eq!((logprobs.len(), logprobs[sample.len() - 1]), (sample.len(), -(sample.len() as f32 - 1.0)));
            assert!(streams.advantages.is_some());
        }
    }
}

#[test]
fn a_reference_that_fails_or_lies_costs_its_rollout() {
    let faults: [(fn(&Rollout) -> Result<Vec<Option<Vec<f32>>>, String>, &str); 4] = [
        (|_| Err("connection refused".into()), "no reference log-probabilities: connection refused"),
        (|_| Ok(Vec::new()), "the reference scored 0 samples of 1"),
        (|r| places(r).map(|_| vec![Some(vec![0.0])]), "the reference's answer: `ref_logprobs` has 1 entries"),
        (
            |r| places(r).map(|p| vec![p[0].as_ref().map(|p| vec![f32::NAN; p.len()])]),
            "the reference's answer: `ref_logprobs` is NaN",
        ),
    ];
    for (fault, words) in faults {
        let reference = Some(Arc::new(Counts(fault)) as Arc<dyn Reference>);
        let all = rollouts(&run(Script { reference, ..Script::default() }, |_| ()));
        let errors: Vec<RolloutError> = all.into_iter().filter_map(|r| r.error).collect();
        assert!(errors.iter().any(|error| error.message.starts_with(words)), "{errors:?}");
        for error in errors {
            assert!(error.kind == ErrorKind::Cancelled || error.message.starts_with(words), "{}", error.message);
        }
    }
}
