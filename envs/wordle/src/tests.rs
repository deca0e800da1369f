//! The environment as a host sees it: games, scores, splits, arguments, and whatever may be said to it.

use super::*;
use prl_env::testing::{Harness, Played};
use prl_env::{ErrorCode, Features};
use proptest::prelude::*;

fn harness(args: &str) -> Harness<Wordle> {
    Harness::new(args).expect("valid arguments")
}

/// A game for the secret `crane`.
fn game(harness: &Harness<Wordle>, turns: &[&str]) -> Played {
    let task = harness.task("train", 0, 0).unwrap().answer("crane");
    harness.script(&task, &turns.iter().map(|text| Message::assistant(*text)).collect::<Vec<_>>()).unwrap()
}

fn scores(played: &Played) -> [f64; 4] {
    ["correct_answer", "partial_answer", "length_bonus", "format_reward"].map(|name| played.value(name))
}

fn close(left: f64, right: f64) -> bool {
    (left - right).abs() < 1e-12
}

#[test]
fn tasks_are_reproducible_and_won_by_their_answers() {
    let (left, right) = (harness("{}"), harness("{}"));
    assert!(left.info().features.contains(Features::MULTI_TURN | Features::DETERMINISTIC));
    for (split, index) in (0..100).map(|i| ("train", i)).chain((0..100).map(|i| ("eval", i))) {
        let task = left.task(split, index, 5).unwrap();
        assert_eq!(task, right.task(split, index, 5).unwrap());
        assert_eq!((task.key.as_str(), task.max_turns), (format!("{split}/{index}").as_str(), Some(9)));
        let played = left.answer(&task, &format!("<guess>{}</guess>", task.answer_text())).unwrap();
        assert_eq!((played.stop.as_deref(), scores(&played)), (Some("won"), [1.0, 0.0, 1.0, 1.0]));
        assert!(close(played.reward, 2.2));
    }
    left.conforms(10).unwrap();
    assert_eq!(left.task("train", words::train(), 0).unwrap_err().code, ErrorCode::InvalidTask);
    assert_eq!(left.task("eval", words::eval(), 0).unwrap_err().code, ErrorCode::InvalidTask);
}

#[test]
fn guesses_are_answered_until_the_game_is_over() {
    let harness = harness("{}");
    let played = game(&harness, &["I try <guess>slate</guess>", "<guess>[BRACE]</guess>", "<guess>crane</guess>"]);
    assert_eq!(played.messages[3].text(), "S L A T E\n- - G - G\nYou have 5 guesses left.");
    assert_eq!(played.messages[5].text(), "B R A C E\n- G G Y G\nYou have 4 guesses left.");
    assert_eq!((played.stop.as_deref(), scores(&played)), (Some("won"), [1.0, 0.0, 1.0 / 3.0, 1.0]));
    assert!(close(played.reward, 1.0 + 1.0 / 3.0 + 0.2));
    assert_eq!((played.value("guesses"), played.value("invalid")), (3.0, 0.0));

    let lost = game(&harness, &["<guess>brace</guess>"]);
    assert_eq!((lost.stop.as_deref(), lost.value("guesses"), lost.turns.len()), (Some("lost"), 6.0, 7));
    assert!(close(lost.value("partial_answer"), 3.0 * 0.2 + 0.1) && close(lost.reward, 0.7 + 0.2));
    assert_eq!(lost.messages[11].text().lines().last(), Some("You have 1 guess left."));
}

#[test]
fn invalid_guesses_are_explained_and_bounded() {
    let harness = harness("{}");
    for (said, reply) in [
        ("crane", "There is no guess: put it inside <guess>...</guess> tags. You have 6 guesses left."),
        ("<guess>crane", "There is no guess: put it inside <guess>...</guess> tags. You have 6 guesses left."),
        ("<guess>cranes</guess>", "A guess is one word of 5 letters. You have 6 guesses left."),
        ("<guess>crané</guess>", "A guess is one word of 5 letters. You have 6 guesses left."),
        ("<guess></guess>", "A guess is one word of 5 letters. You have 6 guesses left."),
        ("<guess>qwert</guess>", "qwert is not in the word list. You have 6 guesses left."),
    ] {
        let played = game(&harness, &[said, "<guess>crane</guess>"]);
        assert_eq!(played.messages[3].text(), reply, "{said}");
        assert_eq!((played.value("invalid"), played.value("correct_answer")), (1.0, 1.0));
        let bad = game(&harness, &[said]);
        assert_eq!((bad.stop.as_deref(), bad.value("invalid"), bad.turns.len()), (Some("invalid_guesses"), 4.0, 5));
        assert!(bad.reward <= 0.2);
    }
    // The last of several guesses counts, and the format suffers.
    let two = game(&harness, &["<guess>slate</guess> or <guess>crane</guess>"]);
    assert_eq!(scores(&two), [1.0, 0.0, 1.0, 0.0]);
    let thought = game(&harness, &["<think><guess>slate</guess></think><guess>crane</guess>"]);
    assert_eq!(scores(&thought), [1.0, 0.0, 1.0, 1.0]);
    // The whole of a game fits into the turns of its task.
    let long = game(&harness, &["no", "no", "no", "<guess>slate</guess>"]);
    assert_eq!((long.stop.as_deref(), long.truncated.as_deref()), (Some("lost"), None));
}

#[test]
fn arguments_are_checked_and_obeyed() {
    let short = harness(r#"{"guesses": 2, "max_invalid": 0, "system_prompt": false}"#);
    assert_eq!(game(&short, &["<guess>slate</guess>"]).value("guesses"), 2.0);
    assert_eq!(game(&short, &["x"]).stop.as_deref(), Some("invalid_guesses"));
    let task = short.task("train", 0, 0).unwrap();
    assert_eq!((task.prompt.len(), task.max_turns), (1, Some(2)));
    assert_eq!(Harness::<Wordle>::new(r#"{"guesses": 0}"#).err().expect("refused").code, ErrorCode::InvalidConfig);
    assert_eq!(short.answer(&task.answer("CRANE"), "").unwrap_err().code, ErrorCode::InvalidTask);
}

#[test]
fn a_megabyte_is_answered() {
    let harness = harness("{}");
    for piece in ["<guess>", "</guess>", "<guess>a</guess>", "[", "é", "\u{0}", "</think>"] {
        let long = piece.repeat(1_000_000 / piece.len());
        let played = game(&harness, &[&long, &format!("<guess>{long}</guess>"), "<guess>crane</guess>"]);
        assert!(played.messages[3].text().len() < 100);
    }
}

proptest! {
    #[test]
    fn whatever_is_said_is_answered(text in any::<String>(), guess in "[a-z]{5}", pieces in proptest::collection::vec(proptest::sample::select(vec![
        "<guess>", "</guess>", "crane", "[", "]", "CRANE", "é", "\n", "</think>", "slate",
    ]), 0..12)) {
        let harness = harness("{}");
        let played = game(&harness, &[&text, &pieces.concat(), &format!("<guess>{guess}</guess>"), &format!("<guess>{text}</guess>")]);
        prop_assert!((0.0..=2.2).contains(&played.reward));
        prop_assert!(played.stop.is_some() && played.turns.len() <= 10);
    }
}
