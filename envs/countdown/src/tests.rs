//! The environment as a host sees it: tasks, scores, splits, arguments, and whatever may be said to it.

use super::*;
use prl_env::ErrorCode;
use prl_env::testing::Harness;
use proptest::prelude::*;
use std::collections::HashSet;

fn harness(args: &str) -> Harness<Countdown> {
    Harness::new(args).expect("valid arguments")
}

fn numbers(task: &Task) -> Vec<u64> {
    let payload = task.payload_value();
    payload["numbers"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

#[test]
fn tasks_are_reproducible_solvable_and_as_asked() {
    for (args, counts, all) in [
        ("{}", 3..=4, false),
        (r#"{"min_numbers": 2, "max_numbers": 2, "min_operations": 1, "system_prompt": false}"#, 2..=2, false),
        (
            r#"{"min_numbers": 5, "max_numbers": 6, "min_target": 100, "max_target": 999, "min_operations": 3}"#,
            5..=6,
            false,
        ),
        (r#"{"use_all": true}"#, 3..=4, true),
    ] {
        let (left, right) = (harness(args), harness(args));
        for (split, index) in (0..100).map(|i| ("train", i)).chain((0..100).map(|i| ("eval", i))) {
            let task = left.task(split, index, 5).unwrap();
            assert_eq!(task, right.task(split, index, 5).unwrap());
            let payload = task.payload_value();
            assert!(counts.contains(&numbers(&task).len()));
            let played = left.answer(&task, payload["demonstration"].as_str().unwrap()).unwrap();
            assert_eq!((played.value("correct"), played.value("format")), (1.0, 1.0), "{payload}");
            assert!((played.reward - 1.1).abs() < 1e-12);
            assert_eq!(all, task.prompt[0].text().contains("exactly once"));
        }
        left.conforms(5).unwrap();
    }
    let harness = harness("{}");
    assert_eq!(harness.task("eval", 3, 1).unwrap().prompt, harness.task("eval", 3, 2).unwrap().prompt);
    assert_ne!(harness.task("train", 3, 1).unwrap().prompt, harness.task("train", 3, 2).unwrap().prompt);
}

#[test]
fn no_numbers_are_in_both_splits() {
    for args in ["{}", r#"{"largest": 12, "max_numbers": 3}"#] {
        let harness = harness(args);
        let sorted = |split, index| {
            let mut all = numbers(&harness.task(split, index, 3).unwrap());
            all.sort_unstable();
            all
        };
        let eval: HashSet<_> = (0..EVAL_TASKS).map(|index| sorted("eval", index)).collect();
        assert!((0..3000).all(|index| !eval.contains(&sorted("train", index))));
    }
}

#[test]
fn expressions_are_scored_by_value_and_numbers() {
    let harness = harness("{}");
    let mut task = harness.task("train", 0, 0).unwrap();
    let put = |task: &mut Task, use_all: bool| {
        task.payload = json!({ "numbers": [8, 3, 3, 25], "target": 8, "use_all": use_all }).to_string();
    };
    put(&mut task, false);
    let score = |task: &Task, text: &str| {
        let played = harness.answer(task, text).unwrap();
        (played.value("correct"), played.value("format"), played.value("parsed"), played.value("tagged"))
    };
    assert_eq!(score(&task, "<answer>8 * 3 / 3</answer>"), (1.0, 1.0, 1.0, 1.0));
    // Fractions in between are exact.
    assert_eq!(score(&task, "<answer>8 / 3 * 3 = 8</answer>"), (1.0, 1.0, 1.0, 1.0));
    assert_eq!(score(&task, "<think><answer>3</answer></think> so <answer>[3 ÷ 3] · 8</answer>"), (1.0, 1.0, 1.0, 1.0));
    assert_eq!(score(&task, "<answer>25 - 8</answer>"), (0.0, 1.0, 1.0, 1.0));
    assert_eq!(score(&task, "<answer>8 * 8 / 8</answer>"), (0.0, 0.0, 1.0, 1.0));
    assert_eq!(score(&task, "<answer>4 + 4</answer>"), (0.0, 0.0, 1.0, 1.0));
    assert_eq!(score(&task, "<answer>8 +</answer>"), (0.0, 0.0, 0.0, 1.0));
    assert_eq!(score(&task, "<answer>8 / (3 - 3)</answer>"), (0.0, 0.0, 0.0, 1.0));
    assert_eq!(score(&task, "8 * 3 / 3"), (0.0, 0.0, 0.0, 0.0));
    put(&mut task, true);
    assert_eq!(score(&task, "<answer>8 * 3 / 3</answer>"), (0.0, 0.0, 1.0, 1.0));
    assert_eq!(score(&task, "<answer>25 - 8 - 3 * 3</answer>"), (1.0, 1.0, 1.0, 1.0));
    task.payload = "{}".into();
    assert_eq!(harness.answer(&task, "").unwrap_err().code, ErrorCode::InvalidTask);
}

#[test]
fn arguments_are_checked() {
    let refused = |args: &str| {
        let error = Harness::<Countdown>::new(args).err().expect("refused");
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        error.message
    };
    assert_eq!(refused(r#"{"min_numbers": 5}"#), "min_numbers = 5 must not be more than max_numbers = 4");
    assert_eq!(refused(r#"{"smallest": 100}"#), "smallest = 100 must not be more than largest = 99");
    assert_eq!(refused(r#"{"min_target": 200}"#), "min_target = 200 must not be more than max_target = 100");
    assert_eq!(refused(r#"{"min_numbers": 2}"#), "min_operations = 2 must not be more than min_numbers - 1 = 1");
    let none = harness(r#"{"largest": 1}"#).task("train", 0, 0).unwrap_err();
    assert_eq!(none.code, ErrorCode::InvalidConfig);
    let words = " numbers from 1 to 1 with a target from 10 to 100 was found; widen a range";
    assert!(none.message.ends_with(words), "{}", none.message);
}

#[test]
fn a_megabyte_is_scored() {
    let harness = harness("{}");
    let task = harness.task("eval", 0, 0).unwrap();
    for piece in ["<answer>", "</answer>", "(", "1+", "é", "\u{0}", "</think>"] {
        let long = piece.repeat(1_000_000 / piece.len());
        harness.answer(&task, &long).unwrap();
        harness.answer(&task, &format!("<answer>{long}</answer>")).unwrap();
    }
}

proptest! {
    #[test]
    fn whatever_is_said_is_scored(text in any::<String>(), pieces in proptest::collection::vec(proptest::sample::select(vec![
        "<answer>", "</answer>", "(", ")", "-", "1", "25", "+", "*", "/", "=", "0", "</think>", "é", "\n", " ",
    ]), 0..20)) {
        let harness = harness("{}");
        let task = harness.task("train", 1, 1).unwrap();
        for said in [text, pieces.concat(), format!("<answer>{}</answer>", pieces.concat())] {
            let played = harness.answer(&task, &said).unwrap();
            prop_assert!((0.0..=1.1).contains(&played.reward));
        }
    }

    #[test]
    fn every_seed_gives_a_puzzle(index in any::<u64>(), seed in any::<u64>()) {
        let harness = harness("{}");
        let task = harness.task("train", index, seed).unwrap();
        let played = harness.answer(&task, &format!("<answer>{}</answer>", task.answer_text())).unwrap();
        prop_assert_eq!(played.value("correct"), 1.0);
    }
}
