//! The environment as a host sees it: tasks, scores, splits, arguments, and whatever may be said to it.

use super::*;
use prl_env::ErrorCode;
use prl_env::testing::Harness;
use proptest::prelude::*;
use std::collections::HashSet;

fn harness(args: &str) -> Harness<Sudoku> {
    Harness::new(args).expect("valid arguments")
}

fn given(task: &Task) -> Grid {
    Grid::read(task.payload_value()["given"].as_str().unwrap()).unwrap()
}

#[test]
fn tasks_are_reproducible_unique_and_as_asked() {
    for (size, difficulty, counts) in [
        (4, "easy", 9..=10),
        (4, "hard", 5..=6),
        (9, "easy", 42..=48),
        (9, "medium", 33..=38),
        (9, "hard", 27..=30),
        (4, "mixed", 5..=10),
    ] {
        let args = format!("{{\"size\": {size}, \"difficulty\": \"{difficulty}\"}}");
        let (left, right) = (harness(&args), harness(&args));
        for (split, index) in (0..15).map(|i| ("train", i)).chain((0..15).map(|i| ("eval", i))) {
            let task = left.task(split, index, 5).unwrap();
            assert_eq!(task, right.task(split, index, 5).unwrap());
            let grid = given(&task);
            let filled = grid.cells().iter().filter(|cell| **cell != 0).count();
            assert!(counts.contains(&filled), "{filled}");
            assert_eq!((grid.cells().len(), grid.solutions(2)), (size * size, 1));
            let payload = task.payload_value();
            let played = left.answer(&task, payload["demonstration"].as_str().unwrap()).unwrap();
            assert_eq!(["solved", "cells", "givens", "format"].map(|name| played.value(name)), [1.0; 4]);
            assert!((played.reward - 1.5).abs() < 1e-12);
        }
        left.conforms(3).unwrap();
    }
    let harness = harness(r#"{"system_prompt": false}"#);
    assert_eq!(harness.task("eval", 3, 1).unwrap().prompt, harness.task("eval", 3, 2).unwrap().prompt);
    assert_ne!(harness.task("train", 3, 1).unwrap().prompt, harness.task("train", 3, 2).unwrap().prompt);
    assert_eq!(harness.task("train", 3, 1).unwrap().prompt.len(), 1);
}

#[test]
fn no_solution_is_in_both_splits() {
    let harness = harness("{}");
    let eval: HashSet<_> = (0..EVAL_TASKS).map(|index| harness.task("eval", index, 0).unwrap().answer_text()).collect();
    assert!(eval.len() > 20, "{}", eval.len());
    assert!((0..1000).all(|index| !eval.contains(&harness.task("train", index, 3).unwrap().answer_text())));
}

#[test]
fn grids_are_scored_cell_by_cell() {
    let harness = harness("{}");
    let task =
        harness.task("train", 0, 0).unwrap().answer("1234341221434321").payload(json!({ "given": "1...34.......32." }));
    let score = |text: &str| {
        let played = harness.answer(&task, text).unwrap();
        ["solved", "cells", "givens", "format", "parsed"].map(|name| played.value(name))
    };
    assert_eq!(score("<answer>1234 3412 2143 4321</answer>"), [1.0; 5]);
    assert_eq!(score("<answer>[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]</answer>"), [1.0; 5]);
    // Without a tag it is no more than well filled.
    assert_eq!(score("1234\n3412\n2143\n4321"), [1.0, 1.0, 1.0, 0.0, 1.0]);
    assert_eq!(score("<think>1234</think>1234\n3412\n2143\n4321"), [1.0, 1.0, 1.0, 0.0, 1.0]);
    // Two of the eleven empty cells are wrong, then one of the five givens.
    assert_eq!(score("<answer>1234 3412 2143 4322 </answer>"), [0.0, 10.0 / 11.0, 1.0, 1.0, 1.0]);
    assert_eq!(score("<answer>2234 3412 2143 4321</answer>"), [0.0, 1.0, 0.8, 1.0, 1.0]);
    // The puzzle itself keeps the givens.
    assert_eq!(score("<answer>1... 34.. .... .32.</answer>"), [0.0, 0.0, 1.0, 0.0, 1.0]);
    for text in ["", "<answer></answer>", "<answer>1234</answer>", "<answer>1234 3412 2143 43211</answer>", "no idea"] {
        assert_eq!(score(text), [0.0; 5], "{text}");
    }
    for (answer, payload) in [("1", json!({ "given": "1...34.......32." })), ("1234341221434321", json!({}))] {
        let other = task.clone().answer(answer).payload(payload);
        assert_eq!(harness.answer(&other, "").unwrap_err().code, ErrorCode::InvalidTask);
    }
}

#[test]
fn arguments_are_checked() {
    for args in [r#"{"size": 6}"#, r#"{"difficulty": "evil"}"#, r#"{"givens": 30}"#] {
        assert_eq!(Harness::<Sudoku>::new(args).err().expect("refused").code, ErrorCode::InvalidConfig);
    }
}

#[test]
fn a_megabyte_is_scored() {
    let harness = harness("{}");
    let task = harness.task("eval", 0, 0).unwrap();
    for piece in ["<answer>", "</answer>", "1", ".", "é", "\u{0}", "</think>"] {
        harness.answer(&task, &piece.repeat(1_000_000 / piece.len())).unwrap();
    }
}

proptest! {
    #[test]
    fn whatever_is_said_is_scored(text in any::<String>(), pieces in proptest::collection::vec(proptest::sample::select(vec![
        "<answer>", "</answer>", "1", "2", "3 4", "1234", ".", "\n", "</think>", "é", "9",
    ]), 0..20)) {
        let harness = harness("{}");
        let task = harness.task("train", 1, 1).unwrap();
        for said in [text, pieces.concat(), format!("<answer>{}</answer>", pieces.concat())] {
            let played = harness.answer(&task, &said).unwrap();
            prop_assert!((0.0..=1.5).contains(&played.reward));
        }
    }

    #[test]
    fn every_seed_gives_a_puzzle(index in any::<u64>(), seed in any::<u64>()) {
        let harness = harness(r#"{"difficulty": "hard"}"#);
        let task = harness.task("train", index, seed).unwrap();
        prop_assert_eq!(given(&task).solutions(2), 1);
    }
}
