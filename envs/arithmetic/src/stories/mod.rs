//! Makes word problems of 2 to 5 steps. Owns how a story is written down along with its working; what happens in it is
//! told by `people` and `trade`. Must not know prompts or rewards.

mod cast;
mod people;
mod trade;

use crate::problem::{Problem, Unit};
use cast::{ITEMS, Item, PEOPLE, Person};
use prl_env::Rng;
use prl_numbers::Rational;

/// Most places of any number that comes up.
const PLACES: i128 = 10_000;

/// Tells one kind of story; `None` when the numbers drawn do not work out.
type Teller = fn(&mut Story) -> Option<Ending>;

/// A kind of story: who tells it, and how many steps it can have.
struct Kind {
    tell: Teller,
    steps: [usize; 2],
}

const fn kind(tell: Teller, least: usize, most: usize) -> Kind {
    Kind { tell, steps: [least, most] }
}

const KINDS: [Kind; 11] = [
    kind(people::collecting, 2, 5),
    kind(people::ages, 2, 5),
    kind(people::school, 2, 5),
    kind(people::reading, 2, 5),
    kind(people::travel, 2, 5),
    kind(people::shares, 3, 4),
    kind(trade::shopping, 2, 5),
    kind(trade::wages, 2, 5),
    kind(trade::packing, 2, 5),
    kind(trade::baking, 2, 5),
    kind(trade::garden, 2, 5),
];

/// The question at the end of a story.
struct Ending {
    question: String,
    answer: Rational,
    unit: Unit,
}

fn ending(question: String, answer: Rational) -> Option<Ending> {
    Some(Ending { question, answer, unit: Unit::Plain })
}

/// A story in the making.
struct Story<'a> {
    rng: &'a mut Rng,
    difficulty: usize,
    /// How many steps it shall have.
    steps: usize,
    text: String,
    working: Vec<String>,
    quantities: Vec<u64>,
}

/// A story of this difficulty (1 to 5); `None` when the numbers drawn do not work out.
pub fn draw(rng: &mut Rng, difficulty: usize) -> Option<Problem> {
    let steps = (difficulty + rng.below(2)).clamp(2, 5);
    let fitting: Vec<usize> =
        (0..KINDS.len()).filter(|at| (KINDS[*at].steps[0]..=KINDS[*at].steps[1]).contains(&steps)).collect();
    let at = *rng.pick(&fitting)?;
    let mut story =
        Story { rng, difficulty, steps, text: String::new(), working: Vec::new(), quantities: vec![at as u64] };
    let Ending { question, answer, unit } = (KINDS[at].tell)(&mut story)?;
    story.say(&question);
    let Story { text, working, quantities: identity, .. } = story;
    (working.len() == steps).then_some(Problem { kind: "story", question: text, answer, unit, working, identity })
}

impl Story<'_> {
    /// Adds a sentence.
    fn say(&mut self, sentence: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(sentence);
    }

    /// Steps still to be made.
    fn left(&self) -> usize {
        self.steps.saturating_sub(self.working.len())
    }

    fn note(&mut self, value: Rational) -> Rational {
        self.quantities.extend([value.numerator() as u64, value.denominator() as u64]);
        value
    }

    /// A whole number that is told; harder stories have larger ones.
    fn number(&mut self, least: i64, most: i64) -> Rational {
        self.exact(least, most + most * (self.difficulty as i64 - 1) / 2)
    }

    /// A whole number that is told, whatever the difficulty.
    fn exact(&mut self, least: i64, most: i64) -> Rational {
        let value = least + self.rng.below((most - least + 1).max(1) as usize) as i64;
        self.note(value.into())
    }

    /// One of `values`.
    fn one_of(&mut self, values: &[i64]) -> Option<Rational> {
        let value = *self.rng.pick(values)?;
        Some(self.note(value.into()))
    }

    /// A price in dollars; harder stories have cents.
    fn price(&mut self, least: i64, most: i64) -> Option<Rational> {
        let dollars = least + self.rng.below((most - least + 1).max(1) as usize) as i64;
        let cents = if self.difficulty < 3 { 0 } else { 5 * self.rng.below(20) as i64 };
        let value = Rational::new(i128::from(100 * dollars + cents), 100)?;
        Some(self.note(value))
    }

    /// One line of working: `a operation b`, which must come to something above zero with few decimals.
    fn step(&mut self, a: Rational, operation: char, b: Rational) -> Option<Rational> {
        let value = match operation {
            '+' => a.plus(b)?,
            '-' => a.minus(b)?,
            '*' => a.times(b)?,
            _ => a.over(b)?,
        };
        if value.numerator() <= 0 || PLACES % value.denominator() != 0 {
            return None;
        }
        self.working.push(format!("{a} {operation} {b} = {value}"));
        Some(value)
    }

    /// A step that must come to a whole number.
    fn count(&mut self, a: Rational, operation: char, b: Rational) -> Option<Rational> {
        self.step(a, operation, b).filter(|value| value.is_integer())
    }

    fn person(&mut self) -> &'static Person {
        &PEOPLE[self.rng.below(PEOPLE.len())]
    }

    /// So many different people.
    fn people<const N: usize>(&mut self) -> [&'static Person; N] {
        let mut order: Vec<&Person> = PEOPLE.iter().collect();
        self.rng.shuffle(&mut order);
        std::array::from_fn(|at| order[at])
    }

    fn item(&mut self) -> &'static Item {
        &ITEMS[self.rng.below(ITEMS.len())]
    }
}

/// An amount of money as it is written: `$3` or `$3.50`.
fn money(value: Rational) -> String {
    let cents = value.numerator() * 100 / value.denominator();
    if cents % 100 == 0 { format!("${}", cents / 100) } else { format!("${}.{:02}", cents / 100, cents % 100) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_numbers::{Dialect, evaluate};
    use std::collections::HashSet;

    #[test]
    fn workings_come_to_the_answer_in_as_many_steps_as_wanted() {
        let mut rng = Rng::new(11);
        for difficulty in 1..=5 {
            let mut kinds = HashSet::new();
            let mut found = 0;
            for _ in 0..3000 {
                let Some(problem) = draw(&mut rng, difficulty) else { continue };
                found += 1;
                kinds.insert(problem.identity[0]);
                let mut last = None;
                for line in &problem.working {
                    let (left, right) = line.split_once(" = ").unwrap();
                    let value = |text| evaluate(text, Dialect::Basic).map(|found| found.value);
                    assert_eq!(value(left), value(right), "{line}");
                    last = value(right).ok();
                }
                assert_eq!(last, Some(problem.answer), "{}", problem.question);
                assert!((difficulty.max(2)..=(difficulty + 1).min(5)).contains(&problem.working.len()));
                assert!(
                    problem.question.ends_with(['?', '.']) && !problem.question.contains("  "),
                    "{}",
                    problem.question
                );
            }
            assert!(found > 1500, "only {found} of 3000 of difficulty {difficulty}");
            assert!(kinds.len() >= 10, "{kinds:?}");
        }
    }

    /// Every number told is needed: it stands in the working as it stands in the story.
    #[test]
    fn every_quantity_is_used_in_the_working() {
        let mut rng = Rng::new(12);
        for _ in 0..5000 {
            let Some(problem) = draw(&mut rng, 4) else { continue };
            let steps: HashSet<String> = problem
                .working
                .iter()
                .flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
                .collect();
            for pair in problem.identity[1..].chunks(2) {
                let value = Rational::new(pair[0].into(), pair[1].into()).unwrap();
                let hundredth = value.over(100.into()).unwrap();
                assert!(
                    steps.contains(&value.to_string()) || steps.contains(&hundredth.to_string()),
                    "{value} is not in {steps:?}: {}",
                    problem.question
                );
            }
        }
    }

    #[test]
    fn money_has_two_places_or_none() {
        let texts: Vec<String> = [(7, 1), (7, 2), (1, 20)].map(|(a, b)| money(Rational::new(a, b).unwrap())).into();
        assert_eq!(texts, ["$7", "$3.50", "$0.05"]);
    }
}
