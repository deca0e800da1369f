//! Countdown: reach a target with a few numbers and the four operations. Owns prompts, splits and rewards; puzzles are
//! made by `puzzle` and checked by `solver`. Must not know who trains on it.
//!
//! A puzzle belongs to the eval split when a hash of its numbers says so, and to the train split otherwise: no set of
//! numbers is in both.

mod puzzle;
mod solver;

use prl_env::{Attempt, Error, Message, Recipe, Result, Rng, Spec, Task, Turn};
use prl_numbers::{Dialect, Expression, Rational, evaluate, last_tag};
use puzzle::Puzzle;
use serde_json::json;

/// Tasks of the eval split.
const EVAL_TASKS: u64 = 512;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// least count of numbers; each puzzle draws evenly between the two
        min_numbers: usize = 3 => [min(2), max(6)];
        /// most count of numbers
        max_numbers: usize = 4 => [min(2), max(6)];
        /// smallest number
        smallest: u32 = 1 => [min(1), max(1000)];
        /// largest number
        largest: u32 = 99 => [min(1), max(1000)];
        /// smallest target
        min_target: u32 = 10 => [min(1), max(100000)];
        /// largest target
        max_target: u32 = 100 => [min(1), max(100000)];
        /// fewest operations that a puzzle may be solved with
        min_operations: usize = 2 => [min(1), max(5)];
        /// whether every number must be used; else each at most once
        use_all: bool = false;
        /// whether the rules are sent as a system message, or before the puzzle in the user's
        system_prompt: bool = true;
    }
}

/// The configured environment.
pub struct Countdown {
    args: Args,
}

/// The puzzle at hand.
#[derive(Default)]
pub struct State {
    numbers: Vec<Rational>,
    target: Option<Rational>,
    use_all: bool,
}

prl_env::export!(Countdown);

impl Recipe for Countdown {
    type Args = Args;
    type State = State;

    fn spec() -> Spec<Self> {
        let description = "Reach a target with a few numbers and the four operations, each number at most once.";
        Spec::<Self>::new("countdown", env!("CARGO_PKG_VERSION"), description)
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .reward("correct", 1.0, |_, attempt| {
                said(attempt).is_some_and(|said| allowed(attempt, &said) && Some(said.value) == attempt.state.target)
            })
            .measures("whether the expression uses the numbers as allowed and gives the target")
            .reward("format", 0.1, |_, attempt| said(attempt).is_some_and(|said| allowed(attempt, &said)))
            .measures("whether there is an expression that uses the numbers as allowed")
            .metric("tagged", |_, attempt| tagged(&attempt.text()).is_some())
            .metric("parsed", |_, attempt| said(attempt).is_some())
            .tags(&["math", "puzzle", "single-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        for (low, least, high, most) in [
            ("min_numbers", args.min_numbers, "max_numbers", args.max_numbers),
            ("smallest", args.smallest as usize, "largest", args.largest as usize),
            ("min_target", args.min_target as usize, "max_target", args.max_target as usize),
            ("min_operations", args.min_operations, "min_numbers - 1", args.min_numbers - 1),
        ] {
            if least > most {
                return Err(Error::invalid_config(format!("{low} = {least} must not be more than {high} = {most}")));
            }
        }
        Ok(Countdown { args })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let eval = split == "eval";
        // The eval split is the same whatever the seed, so that runs compare.
        let mut rng = Rng::for_task(split, index, if eval { 0 } else { seed });
        let count = self.args.min_numbers + rng.below(self.args.max_numbers - self.args.min_numbers + 1);
        let Puzzle { numbers, target, solution, operations } = puzzle::draw(&mut rng, &self.args, count, eval)
            .ok_or_else(|| {
                Error::invalid_config(format!(
                    "no puzzle of {count} numbers from {} to {} with a target from {} to {} was found; widen a range",
                    self.args.smallest, self.args.largest, self.args.min_target, self.args.max_target
                ))
            })?;
        let how_often = if self.args.use_all { "exactly" } else { "at most" };
        let rules = format!(
            "Make an arithmetic expression that equals the target. Use + - * / and brackets, and each of the numbers \
             {how_often} once; no other numbers. Put the expression in <answer> tags, for example \
             <answer>(1 + 2) / 3</answer>."
        );
        let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
        let question = format!("Numbers: {}\nTarget: {target}", list.join(", "));
        let prompt = if self.args.system_prompt {
            vec![Message::system(rules), Message::user(question)]
        } else {
            vec![Message::user(format!("{rules}\n\n{question}"))]
        };
        let payload = json!({
            "numbers": numbers,
            "target": target,
            "use_all": self.args.use_all,
            "operations": operations,
            "demonstration": format!("<answer>{solution}</answer>"),
        });
        let mut task = Task::new(prompt).answer(solution).payload(payload);
        task.tags = vec![format!("numbers-{count}"), format!("operations-{operations}")];
        Ok(task)
    }

    fn start(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let payload = attempt.payload();
        let numbers = payload["numbers"].as_array().map(|all| all.iter().filter_map(|n| n.as_i64()).collect());
        let (Some::<Vec<i64>>(numbers), Some(target)) = (numbers, payload["target"].as_i64()) else {
            return Err(Error::invalid_task(format!("the payload of task `{}` holds no puzzle", attempt.task.key)));
        };
        attempt.state = State {
            numbers: numbers.into_iter().map(Rational::from).collect(),
            target: Some(target.into()),
            use_all: payload["use_all"] == true,
        };
        Ok(Turn::next(Vec::new()))
    }
}

/// What stands in the last answer tag after any thoughts.
fn tagged(text: &str) -> Option<&str> {
    last_tag(text.rsplit_once("</think>").map_or(text, |(_, said)| said), "answer")
}

/// The expression in the answer tag, if it has a value. An equals sign and what follows it do not count.
fn said(attempt: &Attempt<Countdown>) -> Option<Expression> {
    let text = attempt.text();
    let inside = tagged(&text)?;
    evaluate(inside.split_once('=').map_or(inside, |(left, _)| left), Dialect::Basic).ok()
}

/// Whether it uses the numbers as the rules say.
fn allowed(attempt: &Attempt<Countdown>, said: &Expression) -> bool {
    let mut left = attempt.state.numbers.clone();
    let found = said.literals.iter().all(|literal| {
        let at = left.iter().position(|number| number == literal);
        at.map(|at| left.swap_remove(at)).is_some()
    });
    found && (left.is_empty() || !attempt.state.use_all)
}

#[cfg(test)]
mod tests;
