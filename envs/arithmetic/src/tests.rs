//! The environment as a host sees it: tasks, scores, splits, arguments, and whatever may be said to it.

use super::*;
use prl_env::ErrorCode;
use prl_env::testing::Harness;
use proptest::prelude::*;
use std::collections::HashSet;

fn harness(args: &str) -> Harness<Arithmetic> {
    Harness::new(args).expect("valid arguments")
}

fn asked(task: &Task) -> String {
    task.prompt.last().map(Message::text).unwrap_or_default()
}

#[test]
fn tasks_are_reproducible_and_solved_by_their_demonstrations() {
    for args in ["{}", r#"{"mark": "boxed", "system_prompt": false, "max_difficulty": 5}"#] {
        let (left, right) = (harness(args), harness(args));
        for (split, index) in (0..300).map(|i| ("train", i)).chain((0..EVAL_TASKS).map(|i| ("eval", i))) {
            let task = left.task(split, index, 5).unwrap();
            assert_eq!(task, right.task(split, index, 5).unwrap());
            let payload = task.payload_value();
            let played = left.answer(&task, payload["demonstration"].as_str().unwrap()).unwrap();
            assert_eq!((played.value("correct"), played.value("format"), played.value("parsed")), (1.0, 1.0, 1.0));
            assert!((played.reward - 1.1).abs() < 1e-12);
            let bare = left.answer(&task, &format!("It is {}.", task.answer_text())).unwrap();
            assert_eq!((bare.value("correct"), bare.value("format"), bare.value("parsed")), (1.0, 0.0, 1.0));
        }
        left.conforms(20).unwrap();
    }
    let harness = harness("{}");
    assert_eq!(asked(&harness.task("eval", 3, 1).unwrap()), asked(&harness.task("eval", 3, 2).unwrap()));
    assert_ne!(asked(&harness.task("train", 3, 1).unwrap()), asked(&harness.task("train", 3, 2).unwrap()));
}

/// What is left of a question without names and things: its numbers, sorted, with the words that do not change.
fn essence(task: &Task) -> (String, Vec<String>) {
    let question = asked(task);
    let mut numbers: Vec<String> =
        question.split(|c: char| !c.is_ascii_digit() && c != '.').map(str::to_owned).collect();
    numbers.sort();
    (task.payload_value()["kind"].to_string(), numbers)
}

#[test]
fn no_problem_is_in_both_splits() {
    for args in ["{}", r#"{"kind": "calculations", "max_difficulty": 1}"#, r#"{"kind": "stories"}"#] {
        let harness = harness(args);
        let eval: HashSet<_> = (0..EVAL_TASKS).map(|index| asked(&harness.task("eval", index, 0).unwrap())).collect();
        for index in 0..3000 {
            let task = harness.task("train", index, 3).unwrap();
            assert!(!eval.contains(&asked(&task)), "{}", asked(&task));
        }
    }
    // The same numbers in another order, or with other operations, are on the same side.
    let harness = harness(r#"{"kind": "calculations"}"#);
    let eval: HashSet<_> = (0..EVAL_TASKS).map(|index| essence(&harness.task("eval", index, 0).unwrap())).collect();
    assert!((0..3000).all(|index| !eval.contains(&essence(&harness.task("train", index, 3).unwrap()))));
}

#[test]
fn answers_are_read_as_they_are_written() {
    let harness = harness("{}");
    let mut task = harness.task("train", 0, 0).unwrap();
    let value = |task: &Task, text: &str| harness.answer(task, text).unwrap().value("correct");
    for (answer, right, wrong) in [
        (
            "1234.5",
            vec!["1,234.5", "$1,234.50", "<answer>2469/2</answer>", "= 1234.5."],
            vec!["1234", "1.234,5", "12345"],
        ),
        ("-3", vec!["\\boxed{-3}", "\u{2212}3", "<answer>x = -3</answer>"], vec!["3", "<answer>-3 or 3</answer>"]),
        ("0.25", vec!["1/4", "\\boxed{\\frac{1}{4}}", "25%", ".25"], vec!["25", "0.2500001"]),
        ("7", vec!["<answer>7 apples</answer> of 9", "7.0", "14/2"], vec!["<answer>8</answer> 7", "seven", ""]),
    ] {
        task.answer = Some(json!(answer).to_string());
        task.payload = json!({ "percent": false }).to_string();
        assert!(right.iter().all(|text| value(&task, text) == 1.0), "{answer}");
        assert!(wrong.iter().all(|text| value(&task, text) == 0.0), "{answer}");
    }
    task.answer = Some(json!("25").to_string());
    task.payload = json!({ "percent": true }).to_string();
    assert_eq!(["25", "25%", "25 %", "0.25"].map(|text| value(&task, text)), [1.0, 1.0, 1.0, 0.0]);
    // A task that was not made here has no answer to meet.
    task.answer = None;
    assert_eq!(value(&task, "25"), 0.0);
}

#[test]
fn arguments_are_checked_and_obeyed() {
    let only = harness(
        r#"{"kind": "calculations", "operations": "*", "min_difficulty": 4, "max_difficulty": 4, "decimals": false}"#,
    );
    for index in 0..50 {
        let task = only.task("train", index, 0).unwrap();
        let text = asked(&task);
        assert!(
            text.contains('*') && !text.contains(['+', '/']) && !text.trim_end_matches('.').contains('.'),
            "{text}"
        );
        assert_eq!(task.tags, ["calculation", "difficulty-4"]);
    }
    let refused = |args: &str| {
        let error = Harness::<Arithmetic>::new(args).err().expect("refused");
        assert_eq!(error.code, ErrorCode::InvalidConfig);
        error.message
    };
    assert_eq!(refused(r#"{"min_difficulty": 4}"#), "min_difficulty = 4 must not be more than max_difficulty = 3");
    assert!(refused(r#"{"operations": ""}"#).contains("must be some of + - * /, each once"));
    assert!(refused(r#"{"operations": "++"}"#).contains("each once"));
    assert!(refused(r#"{"kind": "x"}"#).contains("it must be one of"));
    assert_eq!(only.task("test", 0, 0).unwrap_err().code, ErrorCode::InvalidTask);
    assert_eq!(only.task("eval", EVAL_TASKS, 0).unwrap_err().code, ErrorCode::InvalidTask);
}

#[test]
fn a_megabyte_is_scored() {
    let harness = harness("{}");
    let task = harness.task("eval", 0, 0).unwrap();
    for piece in ["<answer>", "</answer>", "\\boxed{", "9", "1,", "é", "\u{0}", "</think>"] {
        harness.answer(&task, &piece.repeat(1_000_000 / piece.len())).unwrap();
    }
}

proptest! {
    #[test]
    fn whatever_is_said_is_scored(text in any::<String>(), pieces in proptest::collection::vec(proptest::sample::select(vec![
        "<answer>", "</answer>", "\\boxed{", "{", "}", "-", "1", "2.5", "%", "=", "\\frac{1}{0}", "</think>", "é", "\n",
    ]), 0..20)) {
        let harness = harness("{}");
        let task = harness.task("train", 1, 1).unwrap();
        for said in [text, pieces.concat()] {
            let played = harness.answer(&task, &said).unwrap();
            prop_assert!((0.0..=1.1).contains(&played.reward));
        }
    }

    #[test]
    fn every_seed_gives_a_task(index in any::<u64>(), seed in any::<u64>(), difficulty in 1usize..=5) {
        let harness = harness(&format!("{{\"min_difficulty\": {difficulty}, \"max_difficulty\": {difficulty}}}"));
        let task = harness.task("train", index, seed).unwrap();
        let played = harness.answer(&task, &task.answer_text()).unwrap();
        prop_assert_eq!(played.value("correct"), 1.0);
    }
}
