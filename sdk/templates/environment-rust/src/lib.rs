//! Add two numbers. Owns the task and its reward; must not know who trains on it.

use prl_env::{Attempt, Message, Recipe, Result, Rng, Spec, Task};

/// Tasks of the eval split: the same ones in every run, so that runs compare.
const EVAL_TASKS: u64 = 100;

prl_env::args! {
    /// What a run may set, with defaults and bounds; `prl env inspect` shows them.
    pub struct Args {
        /// largest number of a task
        largest: u64 = 99 => [min(1), max(1_000_000)];
    }
}

/// The environment under its arguments.
pub struct Sums {
    args: Args,
}

prl_env::export!(Sums);

impl Recipe for Sums {
    type Args = Args;
    /// What a rollout remembers from turn to turn; one turn needs nothing.
    type State = ();

    fn spec() -> Spec<Self> {
        Spec::<Self>::new("sums", env!("CARGO_PKG_VERSION"), "Add two numbers.")
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .reward("correct", 1.0, |_, attempt| Self::number(attempt) == Some(attempt.answer()))
            .measures("whether the number is the sum")
            .metric("answered", |_, attempt| Self::number(attempt).is_some())
    }

    fn new(args: Args) -> Result<Self> {
        Ok(Sums { args })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        // All randomness comes from what the host hands over: the same numbers, the same task.
        let mut rng = match split {
            "train" => Rng::from_parts(&[seed, index]),
            _ => Rng::from_parts(&[index]),
        };
        let mut number = || rng.below(self.args.largest as usize + 1) as u64;
        let (a, b) = (number(), number());
        let prompt = vec![
            Message::system("Answer with the number alone, inside <answer> tags."),
            Message::user(format!("What is {a} + {b}?")),
        ];
        Ok(Task::new(prompt).answer((a + b).to_string()))
    }
}

impl Sums {
    /// What stands inside the tags.
    fn number(attempt: &Attempt<Self>) -> Option<String> {
        prl_env::tag(&attempt.text(), "answer").map(|text| text.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_env::testing::Harness;

    #[test]
    fn right_answers_are_rewarded() {
        let harness = Harness::<Sums>::new("{}").unwrap();
        let task = harness.task("eval", 0, 0).unwrap().answer("42");
        let reward = |said: &str| harness.answer(&task, said).unwrap().reward;
        assert_eq!(reward("It is <answer> 42 </answer>"), 1.0);
        assert_eq!(reward("<answer>41</answer>"), 0.0);
        assert_eq!(reward("42"), 0.0);
    }

    #[test]
    fn it_keeps_the_contract() {
        Harness::<Sums>::new(r#"{"largest": 5}"#).unwrap().conforms(20).unwrap();
        assert!(Harness::<Sums>::new(r#"{"largest": 0}"#).is_err());
    }
}
