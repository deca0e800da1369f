//! The multi-turn loop: tokens, branches, truncation, rewards and errors of single rollouts.

use crate::fakes::*;
use prl_orchestrator::*;
use prl_types::*;
use std::sync::Arc;
use std::time::Duration;

/// The rollouts of a one-step run.
fn rollouts(script: Script, change: impl Fn(&mut Settings)) -> Vec<Rollout> {
    let world = World::new(0, 5, script);
    let mut s = settings(1, 4, 4);
    s.post_batch_filters.clear();
    change(&mut s);
    let _ = block_on(world.run(s));
    let mut log = world.log.lock().unwrap();
    log.rollouts.drain(..).map(|(_, _, r)| r).collect()
}

#[test]
fn a_bridged_conversation_is_one_verbatim_sample() {
    for r in rollouts(Script { turns: 3, ..Script::default() }, |_| ()) {
        assert_eq!((r.turns.len(), r.samples.len()), (3, 1));
        let sample = &r.samples[0];
        // "task N", the opening "go", then per turn 7 sampled ids and a rendered reply.
        let prompt = format!("task {}", r.task.index).len() + 1 + 3 + 1;
        let reply = "reply 1".len() + 2;
        assert_eq!(sample.len(), prompt + 3 * 7 + 2 * reply);
        let mut at = prompt;
        for (i, turn) in r.turns.iter().enumerate() {
            let ids = &sample.token_ids()[at..at + 7];
            assert!(
                sample.mask()[at..at + 7].iter().all(|m| *m) && sample.logprobs()[at..at + 7].iter().all(|p| *p < 0.0)
            );
            let text: Vec<String> = ids[..6].iter().map(u32::to_string).collect();
            assert_eq!((turn.message.content.clone(), ids[6], turn.tokens), (text.join(" "), STOP, 7));
            at += 7;
            if i < 2 {
                assert!(sample.mask()[at..at + reply].iter().all(|m| !m));
                assert_eq!((sample.token_ids()[at], sample.token_ids()[at + reply - 1]), (1001, 2000));
                assert_eq!((turn.reward, turn.replies.len()), (Some(0.25), 1));
                at += reply;
            }
        }
        assert!(sample.mask()[..prompt].iter().all(|m| !m));
        let scored = r.score.total();
        assert_eq!((r.reward, r.stop_condition.as_str(), r.truncation.is_none()), (scored + 0.5, "solved", true));
        assert_eq!(r.score.metrics, [Metric { name: "replies".into(), value: 2.0 }]);
        assert_eq!(sample.spans().iter().filter(|s| s.role == Role::Assistant).count(), 3);
    }
}

#[test]
fn an_unprovable_prefix_starts_a_branch_and_each_sampled_token_trains_once() {
    for r in rollouts(Script { turns: 3, bridge: false, ..Script::default() }, |_| ()) {
        assert_eq!((r.turns.len(), r.samples.len()), (3, 3));
        assert!(r.samples.iter().all(|s| s.output_tokens() == 7));
        assert!(r.samples.windows(2).all(|w| w[0].len() < w[1].len()));
        assert_eq!(r.streams.len(), 3);
    }
}

/// Whatever turns begin a branch, each sampled token is in one sample and masked there, in the order of the turns, and the
/// record says which turns lie on which branch.
#[test]
fn each_sampled_token_trains_once_whatever_the_branches() {
    let mut shapes = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let turns = 1 + mix(&[seed]) % 6;
        let breaks = Arc::new(move |ids: &[TokenId]| {
            mix(&[seed, ids.len() as u64, u64::from(ids[ids.len() - 2])]).is_multiple_of(2)
        });
        for r in rollouts(Script { turns, breaks, ..Script::default() }, |s| s.seq_len = 2000) {
            assert_eq!((r.error.as_ref(), r.turns.len() as u64), (None, turns), "seed {seed}");
            let sampled = |sample: &Sample| -> Vec<TokenId> {
                let ids = sample.token_ids().iter().zip(sample.mask());
                ids.filter(|(_, masked)| **masked).map(|(id, _)| *id).collect()
            };
            let trained: Vec<TokenId> = r.samples.iter().flat_map(sampled).collect();
            assert_eq!(trained.len(), r.turns.iter().map(|turn| turn.tokens).sum::<usize>(), "seed {seed}");
            let said: Vec<String> = trained.iter().filter(|id| **id != STOP).map(u32::to_string).collect();
            let told: Vec<&str> = r.turns.iter().map(|turn| turn.message.content.as_str()).collect();
            assert_eq!(said.join(" "), told.join(" "), "seed {seed}");
            let mut first = 0;
            for (branch, sample) in r.branches.iter().zip(&r.samples) {
                assert_eq!((branch.first, branch.tokens), (first, sample.len()), "seed {seed}");
                let tokens: usize = r.turns[first..first + branch.turns].iter().map(|turn| turn.tokens).sum();
                assert_eq!(sample.output_tokens(), tokens, "seed {seed}");
                first += branch.turns;
            }
            assert_eq!((first, r.branches.len()), (r.turns.len(), r.samples.len()), "seed {seed}");
            shapes.insert(r.branches.iter().map(|branch| branch.turns).collect::<Vec<_>>());
        }
    }
    assert!(shapes.len() > 15, "{shapes:?}");
}

#[test]
fn a_branch_is_trained_where_the_algorithm_weighs_it() {
    // Of a group with equal rewards no token has an advantage.
    for equal in [false, true] {
        let reward = move |_: &str, request: &OpenRequest| if equal { 1.0 } else { f64::from(request.id.member) };
        let script = Script { turns: 3, bridge: false, reward: Arc::new(reward), ..Script::default() };
        for r in rollouts(script, |_| ()) {
            let advantage = if equal { 0.0 } else { r.reward - 2.0 };
            assert!(r.branches.iter().all(|branch| branch.advantage == Some(advantage)), "{:?}", r.branches);
            assert!(
                r.branches.len() == 3 && r.branches.iter().all(|branch| branch.trained != equal),
                "{:?}",
                r.branches
            );
        }
    }
}

#[test]
fn what_overflows_the_context_leaves_the_system_prompt_whole() {
    let system = "You are terse.";
    for bridge in [true, false] {
        let script = Script {
            turns: 3,
            bridge,
            system: Some(system.into()),
            replies: Arc::new(|_| "a tool's output ".repeat(40)),
            ..Script::default()
        };
        for r in rollouts(script, |s| s.seq_len = 80) {
            assert_eq!(r.truncation.as_ref().map(|cut| cut.reason.as_str()), Some("context"));
            assert!(r.error.is_none() && !r.score.components.is_empty());
            let opening = Message::text(Role::User, "go");
            let whole = tokens(&[&r.task.prompt[..], &[opening]].concat()).ids;
            assert_eq!(r.task.prompt[0].content, system);
            // The one turn before the overflow, behind everything it was told.
            assert_eq!((r.turns.len(), r.samples.len()), (1, 1));
            assert_eq!(r.samples[0].token_ids()[..whole.len()], whole);
            assert_eq!(r.samples[0].len(), whole.len() + 7);
        }
    }
}

#[test]
fn cut_off_rollouts_are_scored_and_say_why() {
    let reasons = |script: Script, change: fn(&mut Settings)| -> Vec<(String, usize, bool)> {
        let all = rollouts(script, change);
        assert!(all.iter().all(|r| r.error.is_none() && !r.score.components.is_empty()));
        all.into_iter().map(|r| (r.truncation.unwrap().reason, r.turns.len(), r.samples[0].len() <= 60)).collect()
    };
    let three = || Script { turns: 3, ..Script::default() };
    let turns = reasons(three(), |s| s.train[0].max_turns = Some(2));
    assert!(turns.iter().all(|r| *r == ("max_turns".to_owned(), 2, true)), "{turns:?}");
    let tokens = reasons(three(), |s| s.train[0].sampling.max_completion_tokens = Some(5));
    assert!(tokens.iter().all(|r| *r == ("max_completion_tokens".to_owned(), 1, true)), "{tokens:?}");
    let context = reasons(three(), |s| s.seq_len = 30);
    assert!(context.iter().all(|r| r.0 == "context" && r.1 == 2), "{context:?}");
    let long_reply = Script { turns: 3, replies: Arc::new(|_| "x".repeat(500)), ..Script::default() };
    let overflow = reasons(long_reply, |s| s.seq_len = 60);
    assert!(overflow.iter().all(|r| *r == ("context".to_owned(), 1, true)), "{overflow:?}");
    // The second turn is never sampled to its end.
    let endless = Script { turns: 3, replies: Arc::new(|_| "\u{138a}".into()), ..Script::default() };
    let late = reasons(endless, |s| s.train[0].timeout = Some(Duration::from_secs(60)));
    assert!(late.iter().all(|r| *r == ("timeout".to_owned(), 1, true)), "{late:?}");
}

#[test]
fn a_rollout_that_is_late_before_its_first_turn_has_nothing_to_score() {
    let hangs = Script { fault: Arc::new(|_, request| request.map(|_| Fault::Hang)), ..Script::default() };
    let world = World::new(0, 0, hangs);
    let mut s = settings(1, 4, 4);
    s.train[0].timeout = Some(Duration::from_secs(60));
    block_on(world.run(s)).unwrap_err();
    let log = world.log.lock().unwrap();
    let error = log.rollouts[0].2.error.as_ref().unwrap();
    assert_eq!(error.kind, ErrorKind::EmptyTrajectory);
    assert_eq!(error.message, "the rollout was cut off (timeout) before the first turn");
}

#[test]
fn hints_hold_for_the_next_turn_beside_the_settings() {
    let hints = SamplingHints { max_tokens: Some(3), stop: vec!["</end>".into()] };
    let world = World::new(0, 0, Script { turns: 3, hints: hints.clone(), ..Script::default() });
    let mut s = settings(1, 4, 4);
    s.train[0].sampling.stop = vec!["\n".into()];
    block_on(world.run(s)).unwrap();
    let log = world.log.lock().unwrap();
    for (_, _, rollout) in &log.rollouts {
        assert_eq!(rollout.turns.iter().map(|turn| turn.tokens).collect::<Vec<_>>(), [7, 3]);
        assert_eq!(rollout.truncation.as_ref().unwrap().reason, "max_completion_tokens");
    }
    let stops: Vec<Vec<String>> = world.stops.lock().unwrap().iter().cloned().collect();
    assert_eq!(stops, [vec!["\n".to_owned()], vec!["\n".into(), "</end>".into()]]);
}

/// https://github.com/huggingface/trl/pull/5773
/// https://github.com/huggingface/trl/pull/5775
#[test]
fn errors_name_whose_fault_it_was_and_never_train() {
    let cases = [
        (Fault::Open, ErrorKind::EnvError, "trap: unreachable"),
        (Fault::Step, ErrorKind::EnvError, "trap: index out of bounds"),
        (Fault::Score, ErrorKind::EnvError, "division by zero"),
        (Fault::Reward(f64::NAN), ErrorKind::EnvError, "reward component `main` is NaN"),
        (Fault::Reward(f64::INFINITY), ErrorKind::EnvError, "is inf"),
        (Fault::Reward(f64::NEG_INFINITY), ErrorKind::EnvError, "is -inf"),
        (Fault::Reward(1e38), ErrorKind::EnvError, "is 1e38"),
        (Fault::Engine, ErrorKind::ProviderError, "out of blocks"),
        (Fault::Empty, ErrorKind::EmptyTrajectory, "sampled no token"),
    ];
    for (fault, kind, text) in cases {
        let fault_of_one = Script {
            fault: Arc::new(move |_, request| request.filter(|r| r.id.member == 1).map(|_| fault)),
            ..Script::default()
        };
        let world = World::new(0, 5, fault_of_one);
        block_on(world.run(Settings { post_batch_filters: vec![], ..settings(1, 3, 4) })).unwrap();
        let log = world.log.lock().unwrap();
        let failed: Vec<&Rollout> = log.rollouts.iter().map(|(_, _, r)| r).filter(|r| r.error.is_some()).collect();
        assert_eq!(failed.len(), 1, "{fault:?}");
        let error = failed[0].error.as_ref().unwrap();
        assert!(error.kind == kind && error.message.contains(text), "{fault:?}: {error:?}");
        assert_eq!(log.batches[0].1.iter().map(|id| id.member).collect::<Vec<_>>(), [0, 2, 3]);
        let m = &log.steps[0].metrics;
        assert_eq!(m[&format!("train/agg/all/error/{kind:?}")], 1.0);
        assert_eq!((m["train/agg/all/has_error/mean"], m["errored_rollouts/all/mean"]), (0.25, 0.25));
        assert!(m.values().chain(log.steps[0].train.values()).all(|v| v.is_finite()));
        assert!(log.trained[0].items.iter().all(|i| i.streams.advantages.iter().flatten().all(|a| a.is_finite())));
    }
}

#[test]
fn an_overlong_prompt_is_an_error_of_its_own() {
    let all = rollouts(Script::default(), |s| s.seq_len = 5);
    assert!(!all.is_empty());
    assert!(all.iter().all(|r| r.error.as_ref().unwrap().kind == ErrorKind::OverlongPromptError));
}

/// https://github.com/huggingface/trl/pull/5773
#[test]
fn a_group_with_too_few_valid_members_is_dropped() {
    for fault in [Fault::Score, Fault::Reward(f64::NAN), Fault::Reward(f64::INFINITY)] {
        let only_one_valid = Script {
            fault: Arc::new(move |_, request| request.filter(|r| r.id.group.0 == 0 && r.id.member > 0).map(|_| fault)),
            ..Script::default()
        };
        let all = rollouts(only_one_valid, |_| ());
        assert_eq!(all.len(), 8);
        assert!(all[0].error.is_none() && all[0].is_filtered && all[0].filters == ["incomplete_group"]);
        assert!(all[1..4].iter().all(|r| r.error.is_some()) && all[4..].iter().all(Rollout::is_effective));
    }
}

#[test]
fn group_scores_replace_single_ones() {
    let all = rollouts(Script { turns: 2, group_scoring: true, ..Script::default() }, |_| ());
    assert_eq!(all.iter().map(|r| r.reward).collect::<Vec<_>>(), [0.25, 1.25, 2.25, 3.25]);
    let advantage = all[3].streams[0].advantages.as_ref().unwrap()[0];
    assert_eq!(advantage, 1.5);
}

#[test]
fn groups_are_scored_without_their_failed_members_and_in_evaluation_too() {
    let script = Script {
        turns: 2,
        group_scoring: true,
        fault: Arc::new(|_, request| request.filter(|r| r.id.member == 1).map(|_| Fault::Step)),
        ..Script::default()
    };
    let world = World::new(0, 5, script);
    let mut s = Settings { post_batch_filters: vec![], ..settings(1, 3, 4) };
    s.eval = vec![EvalEnv { group_size: 3, ..eval_env("e", 1) }];
    block_on(world.run(s)).unwrap();
    world.check_accounting();
    let log = world.log.lock().unwrap();
    let rewards = |rollouts: Vec<&Rollout>| -> Vec<f64> {
        rollouts.into_iter().filter(|r| r.error.is_none()).map(|r| r.reward).collect()
    };
    let train = log.rollouts.iter().filter(|(purpose, ..)| *purpose == Purpose::Train).map(|(_, _, r)| r);
    assert_eq!(rewards(train.collect()), [0.25, 1.25, 2.25]);
    for (eval, metrics) in &log.evals {
        let of_all: Vec<f64> = rewards(eval.rollouts.iter().collect());
        assert_eq!(of_all, [0.25, 1.25].repeat(3), "two members of each of three groups");
        assert_eq!(metrics["eval/e/avg@3"], 0.75);
    }
}
