//! Makes calculations: trees of the four operations, written with no more brackets than needed. Owns what each
//! difficulty allows; must not know prompts or rewards.

use crate::problem::{Problem, Unit};
use prl_env::Rng;
use prl_numbers::Rational;

/// Most places of any number that comes up.
const PLACES: u32 = 4;
/// Numbers that come up stay below this.
const LIMIT: i128 = 10_000_000;

/// What a difficulty allows.
struct Level {
    /// Numbers in it: least and most.
    numbers: [usize; 2],
    /// Largest number to add or subtract.
    terms: usize,
    /// Largest number to multiply or divide by.
    factors: usize,
    /// Decimal places.
    places: u32,
    /// Whether numbers may be below zero.
    negative: bool,
}

const LEVELS: [Level; 5] = [
    Level { numbers: [2, 2], terms: 30, factors: 10, places: 0, negative: false },
    Level { numbers: [2, 3], terms: 100, factors: 12, places: 0, negative: false },
    Level { numbers: [3, 3], terms: 500, factors: 20, places: 1, negative: false },
    Level { numbers: [3, 4], terms: 1000, factors: 50, places: 2, negative: true },
    Level { numbers: [4, 6], terms: 10_000, factors: 100, places: 2, negative: true },
];

/// A part of a calculation.
struct Node {
    value: Rational,
    text: String,
    /// 3 for a number, 2 for a product or quotient, 1 for a sum or difference.
    binding: u8,
}

/// A calculation in the making.
struct Draft<'a> {
    rng: &'a mut Rng,
    level: &'a Level,
    operations: &'a [char],
    places: u32,
    numbers: Vec<Rational>,
    working: Vec<String>,
}

/// A calculation of this difficulty (1 to 5) in these operations; `None` when the numbers drawn do not work out.
pub fn draw(rng: &mut Rng, difficulty: usize, operations: &[char], decimals: bool) -> Option<Problem> {
    let level = LEVELS.get(difficulty.checked_sub(1)?)?;
    let [least, most] = level.numbers;
    let count = least + rng.below(most - least + 1);
    let places = if decimals { rng.below(level.places as usize + 1) as u32 } else { 0 };
    let mut draft = Draft { rng, level, operations, places, numbers: Vec::new(), working: Vec::new() };
    let whole = draft.tree(count)?;
    let Draft { rng, mut numbers, working, .. } = draft;
    let question = match rng.below(4) {
        0 => format!("What is {}?", whole.text),
        1 => format!("Calculate {}.", whole.text),
        2 => format!("Work out {}.", whole.text),
        _ => format!("{} = ?", whole.text),
    };
    numbers.sort_by_key(|number| (number.numerator(), number.denominator()));
    let identity = numbers.iter().flat_map(|number| [number.numerator() as u64, number.denominator() as u64]).collect();
    Some(Problem { kind: "calculation", question, answer: whole.value, unit: Unit::Plain, working, identity })
}

impl Draft<'_> {
    /// A number: up to `largest`, with at most the draft's places.
    fn number(&mut self, largest: usize) -> Option<Node> {
        let places = self.rng.below(self.places as usize + 1) as u32;
        let scale = 10usize.pow(places);
        let digits = 1 + self.rng.below(largest * scale);
        let sign = if self.level.negative && self.rng.below(8) == 0 { -1 } else { 1 };
        self.leaf(Rational::new(sign * digits as i128, scale as i128)?)
    }

    fn leaf(&mut self, value: Rational) -> Option<Node> {
        self.numbers.push(value);
        self.bounded(value)?;
        // A number below zero is put in brackets wherever it stands.
        let text = if value.numerator() < 0 { format!("({value})") } else { value.to_string() };
        Some(Node { value, text, binding: 3 })
    }

    fn bounded(&self, value: Rational) -> Option<()> {
        let places = 10i128.pow(PLACES);
        let fits = value.numerator().abs() < LIMIT * value.denominator() && places % value.denominator() == 0;
        (fits && (self.level.negative || value.numerator() >= 0)).then_some(())
    }

    fn tree(&mut self, count: usize) -> Option<Node> {
        let operation = *self.rng.pick(self.operations)?;
        let (left, right) = match operation {
            '/' => {
                let below = self.part(count - 1, self.level.factors)?;
                let result = Rational::from(2 + self.rng.below(self.level.factors - 1) as i64);
                (self.leaf(below.value.times(result)?)?, below)
            }
            _ => {
                let largest = if operation == '*' { self.level.factors } else { self.level.terms };
                let on_left = 1 + self.rng.below(count - 1);
                let left = self.part(on_left, largest)?;
                (left, self.part(count - on_left, largest)?)
            }
        };
        self.joined(operation, left, right)
    }

    fn part(&mut self, count: usize, largest: usize) -> Option<Node> {
        if count == 1 { self.number(largest) } else { self.tree(count) }
    }

    fn joined(&mut self, operation: char, left: Node, right: Node) -> Option<Node> {
        let (value, binding) = match operation {
            '+' => (left.value.plus(right.value)?, 1),
            '-' => (left.value.minus(right.value)?, 1),
            '*' => (left.value.times(right.value)?, 2),
            _ => (left.value.over(right.value)?, 2),
        };
        self.bounded(value)?;
        let bare = |value: Rational| if value.numerator() < 0 { format!("({value})") } else { value.to_string() };
        self.working.push(format!("{} {operation} {} = {value}", bare(left.value), bare(right.value)));
        let bracketed = |node: Node, wanted: u8| match node.binding < wanted {
            true => format!("({})", node.text),
            false => node.text,
        };
        // To the right of - and / the same binding changes the meaning; after + and * it does not.
        let tight = binding + u8::from(matches!(operation, '-' | '/'));
        let text = format!("{} {operation} {}", bracketed(left, binding), bracketed(right, tight));
        Some(Node { value, text, binding })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_numbers::{Dialect, evaluate};

    #[test]
    fn questions_and_workings_come_to_the_answer() {
        let mut rng = Rng::new(5);
        for difficulty in 1..=5 {
            for operations in ["+-*/", "/", "-", "*", "+"] {
                let operations: Vec<char> = operations.chars().collect();
                let mut found = 0;
                for _ in 0..400 {
                    let Some(problem) = draw(&mut rng, difficulty, &operations, true) else { continue };
                    found += 1;
                    let text = problem.question.trim_start_matches(|c: char| c.is_alphabetic() || c == ' ');
                    let text = text.trim_end_matches([' ', '=', '?', '.']);
                    let value = |text: &str| evaluate(text, Dialect::Basic).map(|found| found.value);
                    assert_eq!(value(text), Ok(problem.answer), "{}", problem.question);
                    for line in &problem.working {
                        let (left, right) = line.split_once(" = ").unwrap();
                        assert_eq!(value(left), value(right), "{line}");
                    }
                    assert!(problem.working.last().unwrap().ends_with(&format!("= {}", problem.answer)));
                    assert!(problem.answer.decimal().is_some());
                    assert!(difficulty > 2 || problem.answer.is_integer());
                    assert!(difficulty > 3 || problem.answer.numerator() >= 0);
                }
                assert!(found > 10, "only {found} of difficulty {difficulty} with {operations:?}");
            }
        }
    }

    #[test]
    fn brackets_are_where_they_are_needed() {
        let level = &LEVELS[4];
        let mut rng = Rng::new(0);
        let places = 0;
        let mut draft =
            Draft { rng: &mut rng, level, operations: &[], places, numbers: Vec::new(), working: Vec::new() };
        let leaf = |draft: &mut Draft, value: i64| draft.leaf(value.into()).unwrap();
        let (a, b, c) = (leaf(&mut draft, 8), leaf(&mut draft, -3), leaf(&mut draft, 2));
        let difference = draft.joined('-', b, c).unwrap();
        let outer = draft.joined('-', a, difference).unwrap();
        assert_eq!(outer.text, "8 - ((-3) - 2)");
        let d = leaf(&mut draft, 4);
        assert_eq!(draft.joined('*', outer, d).unwrap().text, "(8 - ((-3) - 2)) * 4");
        let (e, f, g) = (leaf(&mut draft, 8), leaf(&mut draft, 4), leaf(&mut draft, 2));
        let quotient = draft.joined('/', f, g).unwrap();
        assert_eq!(draft.joined('/', e, quotient).unwrap().text, "8 / (4 / 2)");
    }
}
