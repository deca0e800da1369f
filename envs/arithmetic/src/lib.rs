//! Calculations and word problems. Owns prompts, splits and rewards; the problems themselves are made by `expressions`
//! and `stories`. Must not know who trains on them.
//!
//! A problem belongs to the eval split when a hash of its numbers (and, for a story, its kind) says so, and to the
//! train split otherwise: no problem of one is in the other, not even with its terms or its names changed.

mod expressions;
mod problem;
mod stories;

use prl_env::{Attempt, Error, Message, Recipe, Result, Rng, Spec, Task};
use prl_numbers::{Answer, Mark, answer};
use problem::{Problem, Unit};
use serde_json::json;

/// Tasks of the eval split.
const EVAL_TASKS: u64 = 512;
/// Problems drawn before the arguments are held to allow none.
const DRAWS: usize = 5000;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// calculations without words, word problems of several steps, or both in turn by chance
        kind: String = "mixed".to_owned() => [one_of(["calculations", "stories", "mixed"])];
        /// least difficulty of a task; each is drawn evenly between the two
        min_difficulty: usize = 1 => [min(1), max(5)];
        /// most difficulty of a task; a story of difficulty n has n or n + 1 steps, from 2 to 5
        max_difficulty: usize = 3 => [min(1), max(5)];
        /// the operations of calculations: some of + - * /
        operations: String = "+-*/".to_owned();
        /// whether calculations from difficulty 3 on have decimals
        decimals: bool = true;
        /// how the answer has to be marked: <answer>...</answer> or \boxed{...}
        mark: String = "answer".to_owned() => [one_of(["answer", "boxed"])];
        /// whether the instruction is sent as a system message, or at the end of the user's
        system_prompt: bool = true;
    }
}

/// The configured environment.
pub struct Arithmetic {
    args: Args,
    operations: Vec<char>,
}

prl_env::export!(Arithmetic);

impl Recipe for Arithmetic {
    type Args = Args;
    type State = ();

    fn spec() -> Spec<Self> {
        let description = "Calculations and word problems with one exact number as the answer.";
        Spec::<Self>::new("arithmetic", env!("CARGO_PKG_VERSION"), description)
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .reward("correct", 1.0, |_, attempt| right(attempt, &answer(&attempt.text())))
            .measures("whether the number is the right one, exactly")
            .reward("format", 0.1, |recipe, attempt| {
                let found = answer(&attempt.text());
                found.mark == recipe.mark() && found.number.is_some()
            })
            .measures("whether the answer is marked as asked and holds a number")
            .metric("parsed", |_, attempt| answer(&attempt.text()).number.is_some())
            .tags(&["math", "single-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        if args.min_difficulty > args.max_difficulty {
            return Err(Error::invalid_config(format!(
                "min_difficulty = {} must not be more than max_difficulty = {}",
                args.min_difficulty, args.max_difficulty
            )));
        }
        let operations: Vec<char> = "+-*/".chars().filter(|operation| args.operations.contains(*operation)).collect();
        if operations.is_empty() || operations.len() != args.operations.chars().count() {
            let text = format!("operations = {:?} must be some of + - * /, each once", args.operations);
            return Err(Error::invalid_config(text));
        }
        Ok(Arithmetic { args, operations })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let eval = split == "eval";
        // The eval split is the same whatever the seed, so that runs compare.
        let mut rng = Rng::for_task(split, index, if eval { 0 } else { seed });
        let (difficulty, problem) = self.draw(&mut rng, eval)?;
        let mark = |text: &str| match self.mark() {
            Mark::Box => format!("\\boxed{{{text}}}"),
            _ => format!("<answer>{text}</answer>"),
        };
        let instruction = format!(
            "Solve the problem step by step. Write the result as one number in {}: exact, as a decimal or a fraction, not rounded.",
            mark("...")
        );
        let prompt = if self.args.system_prompt {
            vec![Message::system(instruction), Message::user(problem.question.as_str())]
        } else {
            vec![Message::user(format!("{}\n\n{instruction}", problem.question))]
        };
        let answer = problem.answer.to_string();
        let mut demonstration = problem.working.join("\n");
        demonstration.push('\n');
        demonstration.push_str(&mark(&answer));
        let payload = json!({
            "kind": problem.kind,
            "difficulty": difficulty,
            "steps": problem.working.len(),
            "percent": problem.unit == Unit::Percent,
            "demonstration": demonstration,
        });
        let mut task = Task::new(prompt).answer(answer).payload(payload);
        task.tags = vec![problem.kind.into(), format!("difficulty-{difficulty}")];
        Ok(task)
    }
}

impl Arithmetic {
    fn mark(&self) -> Mark {
        if self.args.mark == "boxed" { Mark::Box } else { Mark::Tag }
    }

    /// A problem of the wanted split, with its difficulty.
    fn draw(&self, rng: &mut Rng, eval: bool) -> Result<(usize, Problem)> {
        let Args { kind, min_difficulty, max_difficulty, .. } = &self.args;
        // Drawn once: problems that are more often drawn again must not become rarer.
        let difficulty = min_difficulty + rng.below(max_difficulty - min_difficulty + 1);
        let story = kind == "stories" || kind == "mixed" && rng.below(2) == 0;
        for _ in 0..DRAWS {
            let problem = if story {
                stories::draw(rng, difficulty)
            } else {
                expressions::draw(rng, difficulty, &self.operations, self.args.decimals)
            };
            if let Some(problem) = problem.filter(|problem| problem.in_eval() == eval) {
                return Ok((difficulty, problem));
            }
        }
        Err(Error::internal(format!("no problem of difficulty {difficulty} in {DRAWS} draws")))
    }
}

/// Whether the number found equals the task's. A percent sign divides by 100 unless percent are asked for.
fn right(attempt: &Attempt<Arithmetic>, found: &Answer) -> bool {
    let percent = attempt.payload()["percent"] == true;
    let hundred = prl_numbers::Rational::from(100);
    let value = found.number.and_then(|number| match number.percent && !percent {
        true => number.value.over(hundred),
        false => Some(number.value),
    });
    value.is_some() && value == prl_numbers::last(&attempt.answer()).map(|number| number.value)
}

#[cfg(test)]
mod tests;
