//! Reverse a short text, character by character. Owns the task and its reward; must not know who trains on it.
//!
//! A task is 2 to 4 common English words. Reward `reverse_text` is the difflib ratio of what stands inside
//! `<reversed_text>` against the reversed text, and 0 without the tag. The eval split draws its words from a list
//! that the train split never uses.

mod texts;

use prl_env::{Attempt, Error, Message, Recipe, Result, Rng, Spec, Task};
use serde_json::json;
use std::cell::LazyCell;
use texts::{LONGEST, SHORTEST, Words};

/// The instruction, as a system message or at the head of the user's.
const INSTRUCTION: &str = "Reverse the text character-by-character. Put your answer in <reversed_text> tags.";
const TAG: &str = "reversed_text";
const EVAL_TASKS: u64 = 256;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// least characters of a text, spaces included
        min_chars: usize = 10 => [min(SHORTEST as f64), max(LONGEST as f64)];
        /// most characters of a text, spaces included
        max_chars: usize = 24 => [min(SHORTEST as f64), max(LONGEST as f64)];
        /// whether the instruction is sent as a system message
        system_prompt: bool = true;
        /// share of tasks whose payload holds a right demonstration; the others show a typical mistake
        demonstration_quality: f64 = 1.0 => [min(0), max(1)];
    }
}

/// The configured environment.
pub struct ReverseText {
    args: Args,
    /// Read when the first task is made: an instance that only plays a rollout does without.
    train: LazyCell<Words>,
    eval: LazyCell<Words>,
}

prl_env::export!(ReverseText);

impl Recipe for ReverseText {
    type Args = Args;
    type State = ();

    fn spec() -> Spec<Self> {
        let description = "Reverse 2 to 4 English words character by character.";
        Spec::<Self>::new("reverse-text", env!("CARGO_PKG_VERSION"), description)
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .reward("reverse_text", 1.0, Self::reward)
            .measures("difflib ratio of the tagged text and the reversed one")
            .metric("format", |_, attempt| prl_env::tag(&attempt.text(), TAG).is_some())
            .tags(&["text", "single-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        if args.min_chars > args.max_chars {
            return Err(Error::invalid_config(format!(
                "min_chars = {} must not be more than max_chars = {}",
                args.min_chars, args.max_chars
            )));
        }
        Ok(ReverseText { args, train: LazyCell::new(Words::train), eval: LazyCell::new(Words::eval) })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let text = match split {
            "train" => self.text(&self.train, &[seed, index]),
            // The eval split is the same 256 texts whatever the seed, so that runs compare.
            _ => self.text(&self.eval, &[index]),
        };
        let reversed: String = text.chars().rev().collect();
        let user = Message::user(text.as_str());
        let prompt = if self.args.system_prompt { vec![Message::system(INSTRUCTION), user] } else { vec![user] };
        let demonstration = self.demonstration(&text, &reversed, [seed, index]);
        Ok(Task::new(prompt).answer(reversed).payload(json!({ "text": text, "demonstration": demonstration })))
    }
}

/// Mixed into the seed of demonstrations, so that their mistakes do not follow the words of the text.
const DEMONSTRATION: u64 = 1;

impl ReverseText {
    fn reward(&self, attempt: &Attempt<Self>) -> f64 {
        let said = attempt.text();
        prl_env::tag(&said, TAG).map_or(0.0, |answer| prl_env::ratio(answer, &attempt.answer()))
    }

    fn text(&self, words: &Words, parts: &[u64]) -> String {
        words.text(&mut Rng::from_parts(parts), self.args.min_chars, self.args.max_chars)
    }

    /// An expert's answer, or, for the share of tasks that `demonstration_quality` leaves, a beginner's: without the
    /// tag, not reversed, or ended early.
    fn demonstration(&self, text: &str, reversed: &str, parts: [u64; 2]) -> String {
        let mut rng = Rng::from_parts(&[parts[0], parts[1], DEMONSTRATION]);
        let tagged = |answer: &str| format!("<{TAG}>{answer}</{TAG}>");
        if rng.unit() < self.args.demonstration_quality {
            return tagged(reversed);
        }
        match rng.below(10) {
            0..4 => reversed.to_owned(),
            4..7 => tagged(text),
            _ => tagged(&reversed[..1 + rng.below(5)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_env::ErrorCode;
    use prl_env::testing::Harness;
    use std::collections::HashSet;

    fn harness(args: &str) -> Harness<ReverseText> {
        Harness::new(args).expect("valid arguments")
    }

    fn score(harness: &Harness<ReverseText>, task: &Task, said: &str) -> (f64, f64) {
        let played = harness.answer(task, said).unwrap();
        assert_eq!(played.stop.as_deref(), Some("answered"));
        (played.reward, played.value("format"))
    }

    #[test]
    fn tasks_are_reproducible_and_as_described() {
        let (harness, again) = (harness("{}"), harness("{}"));
        let mut texts = HashSet::new();
        for (split, index, seed) in (0..300).map(|i| ("train", i, 5)).chain((0..EVAL_TASKS).map(|i| ("eval", i, 5))) {
            let task = harness.task(split, index, seed).unwrap();
            assert_eq!(task, again.task(split, index, seed).unwrap());
            let payload = task.payload_value();
            let text = payload["text"].as_str().unwrap().to_owned();
            assert_eq!((task.prompt[0].text().as_str(), task.prompt[1].text()), (INSTRUCTION, text.clone()));
            assert_eq!(score(&harness, &task, payload["demonstration"].as_str().unwrap()), (1.0, 1.0));
            texts.insert(text);
        }
        assert!(texts.len() > 550, "only {} different texts", texts.len());
        let prompt = |split, index, seed| harness.task(split, index, seed).unwrap().prompt;
        assert_eq!(prompt("eval", 3, 1), prompt("eval", 3, 2));
        assert_ne!(prompt("train", 3, 1), prompt("train", 3, 2));
        assert_eq!(harness.task("train", 3, 1).unwrap().key, "train/1/3");
        assert_eq!(harness.task("eval", 3, 1).unwrap().key, "eval/3");
        harness.conforms(10).unwrap();
    }

    #[test]
    fn the_share_of_right_demonstrations_is_as_asked() {
        let harness = harness(r#"{"demonstration_quality": 0.3}"#);
        let right = (0..1000).filter(|index| {
            let task = harness.task("train", *index, 7).unwrap();
            score(&harness, &task, task.payload_value()["demonstration"].as_str().unwrap()).0 == 1.0
        });
        let right = right.count();
        assert!((250..350).contains(&right), "{right} of 1000");
    }

    #[test]
    fn the_reward_is_the_ratio_inside_the_tag() {
        let harness = harness("{}");
        let task = harness.task("train", 0, 0).unwrap().answer("dlrow olleh");
        let score = |said| score(&harness, &task, said);
        assert_eq!(score("let me see <reversed_text>\n dlrow olleh </reversed_text>"), (1.0, 1.0));
        // All 10 characters match: 2·10 / (10 + 11).
        assert_eq!(score("<reversed_text>dlrow oleh</reversed_text>"), (20.0 / 21.0, 1.0));
        assert_eq!(score("<reversed_text></reversed_text>"), (0.0, 1.0));
        assert_eq!(score("dlrow olleh"), (0.0, 0.0));
        assert_eq!(score("<reversed_text>dlrow olleh"), (0.0, 0.0));
    }

    #[test]
    fn arguments_are_checked_and_obeyed() {
        let short = harness(r#"{"min_chars": 5, "max_chars": 6, "system_prompt": false}"#);
        for index in 0..50 {
            let task = short.task("train", index, 0).unwrap();
            assert_eq!(task.prompt.len(), 1);
            assert!((5..=6).contains(&task.prompt[0].text().len()));
        }
        let refused = |args: &str| {
            let error = Harness::<ReverseText>::new(args).err().expect("refused");
            assert_eq!(error.code, ErrorCode::InvalidConfig);
            error.message
        };
        assert!(refused(r#"{"min_char": 5}"#).contains("unknown argument `min_char`"));
        assert!(refused(r#"{"min_chars": 30}"#).contains("min_chars = 30 must not be more than max_chars = 24"));
        assert!(refused(r#"{"max_chars": 400}"#).contains("it must be at most 39"));
        assert!(refused(r#"{"demonstration_quality": 1.5}"#).contains("it must be at most 1"));
        assert!(refused("[").contains("EOF"));
        assert_eq!(short.task("test", 0, 0).unwrap_err().code, ErrorCode::InvalidTask);
        assert_eq!(short.task("eval", EVAL_TASKS, 0).unwrap_err().code, ErrorCode::InvalidTask);
    }
}
