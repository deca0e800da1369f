//! Wordle: find a secret word of five letters in six guesses. Owns prompts, the course of a game and its rewards; words
//! are `words`', feedback is `feedback`'s. Must not know who trains on it.
//!
//! The reward follows the environment of the same name for `verifiers`: a win counts 1 and 1 / guesses more; without a
//! win the last feedback counts 0.2 for each G and 0.1 for each Y; 0.2 for exactly one guess tag in every turn. Unlike
//! there the feedback on the last guess of a lost game counts too, and `-` stands for what is an X there.

mod feedback;
mod words;

use feedback::{LETTERS, Tally, feedback};
use prl_env::{Attempt, Error, Message, Recipe, Result, Spec, Task, Turn};
use serde_json::json;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// guesses that are taken before the game is lost
        guesses: u32 = 6 => [min(1), max(20)];
        /// turns without a valid guess that are forgiven; one more ends the game
        max_invalid: u32 = 3 => [min(0), max(20)];
        /// whether the rules are sent as a system message, or as the user's
        system_prompt: bool = true;
    }
}

/// The configured environment.
pub struct Wordle {
    args: Args,
}

/// The game so far.
#[derive(Default)]
pub struct State {
    secret: String,
    /// What each valid guess met.
    tallies: Vec<Tally>,
    invalid: u32,
    /// Turns with a guess tag, and whether any turn had none or several.
    tagged: u32,
    untidy: bool,
}

impl State {
    fn won(&self) -> bool {
        self.tallies.last().is_some_and(|last| last.right == LETTERS)
    }
}

prl_env::export!(Wordle);

impl Recipe for Wordle {
    type Args = Args;
    type State = State;

    fn spec() -> Spec<Self> {
        let description =
            "Guess a secret word of five letters; every guess is answered with G, Y or - for each letter.";
        Spec::<Self>::new("wordle", env!("CARGO_PKG_VERSION"), description)
            .split("train", Some(words::train()))
            .split("eval", Some(words::eval()))
            .multi_turn(40)
            .reward("correct_answer", 1.0, |_, attempt| attempt.state.won())
            .measures("whether the word was found")
            .reward("partial_answer", 1.0, |_, attempt| match attempt.state.tallies.last() {
                Some(last) if last.right < LETTERS => 0.2 * last.right as f64 + 0.1 * last.elsewhere as f64,
                _ => 0.0,
            })
            .measures(
                "0.2 for each letter in place and 0.1 for each elsewhere in the last guess, if it is not the word",
            )
            .reward("length_bonus", 1.0, |_, attempt| {
                if attempt.state.won() { 1.0 / f64::from(attempt.state.tagged.max(1)) } else { 0.0 }
            })
            .measures("one over the number of guesses, if the word was found")
            .reward("format_reward", 0.2, |_, attempt| !attempt.state.untidy && attempt.state.tagged > 0)
            .measures("whether every turn held exactly one tagged guess")
            .metric("guesses", |_, attempt| attempt.state.tallies.len() as f64)
            .metric("invalid", |_, attempt| f64::from(attempt.state.invalid))
            .tags(&["game", "multi-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        Ok(Wordle { args })
    }

    fn task(&self, split: &str, index: u64, _seed: u64) -> Result<Task> {
        let secret = words::secret(split == "eval", index)
            .ok_or_else(|| Error::internal(format!("split `{split}` has no word {index}")))?;
        let rules = format!(
            "You play Wordle: find a secret English word of {LETTERS} letters in {} guesses. After each guess you are told \
             about each of its letters: G, it is in the word at this place; Y, it is in the word at another place; -, it \
             is not in the word, or not once more. In each turn, think step by step, then give your guess inside \
             <guess>...</guess> tags.",
            self.args.guesses
        );
        let prompt = if self.args.system_prompt {
            vec![Message::system(rules), Message::user("Make your first guess.")]
        } else {
            vec![Message::user(format!("{rules}\n\nMake your first guess."))]
        };
        Ok(Task::new(prompt).answer(secret).payload(json!({})).max_turns(self.args.guesses + self.args.max_invalid))
    }

    fn start(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let secret = attempt.answer();
        if !words::known(&secret) {
            return Err(Error::invalid_task(format!("the answer of task `{}` is no known word", attempt.task.key)));
        }
        attempt.state.secret = secret;
        Ok(Turn::next(Vec::new()))
    }

    fn reply(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let text = attempt.text();
        let said = text.rsplit_once("</think>").map_or(text.as_str(), |(_, said)| said);
        let guesses = guesses(said);
        let state = &mut attempt.state;
        state.tagged += u32::from(!guesses.is_empty());
        state.untidy |= guesses.len() != 1;
        let left = |state: &State| match self.args.guesses.saturating_sub(state.tallies.len() as u32) {
            1 => "You have 1 guess left.".to_owned(),
            left => format!("You have {left} guesses left."),
        };
        let guess = match valid(guesses.last().copied()) {
            Ok(guess) => guess,
            Err(reason) => {
                state.invalid += 1;
                if state.invalid > self.args.max_invalid {
                    return Ok(Turn::terminated("invalid_guesses"));
                }
                return Ok(Turn::say(format!("{reason} {}", left(state))));
            }
        };
        let (marks, tally) = feedback(guess.as_bytes(), state.secret.as_bytes());
        state.tallies.push(tally);
        if state.won() {
            return Ok(Turn::terminated("won"));
        }
        if state.tallies.len() as u32 >= self.args.guesses {
            return Ok(Turn::terminated("lost"));
        }
        let letters: Vec<String> = guess.to_uppercase().chars().map(String::from).collect();
        Ok(Turn::say(format!("{}\n{marks}\n{}", letters.join(" "), left(state))))
    }
}

/// What stands in each guess tag, without the square brackets that some write around it.
fn guesses(text: &str) -> Vec<&str> {
    let parts = text.split("<guess>").skip(1).filter_map(|part| part.split_once("</guess>"));
    parts.map(|(guess, _)| guess.trim().trim_start_matches('[').trim_end_matches(']').trim()).collect()
}

/// The guess as a known word, or what to tell the model about it.
fn valid(guess: Option<&str>) -> std::result::Result<String, String> {
    let guess = guess.ok_or("There is no guess: put it inside <guess>...</guess> tags.")?;
    if guess.len() != LETTERS || !guess.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(format!("A guess is one word of {LETTERS} letters."));
    }
    let guess = guess.to_ascii_lowercase();
    if words::known(&guess) { Ok(guess) } else { Err(format!("{guess} is not in the word list.")) }
}

#[cfg(test)]
mod tests;
