//! Draws puzzles. Owns which puzzles the arguments allow and which split one belongs to; must not know prompts.

use crate::Args;
use crate::solver::{OPERATIONS, combine, solve};
use prl_env::Rng;

/// One set of numbers in so many is kept for the eval split.
const EVAL_SHARE: u64 = 8;
/// Draws before the arguments are held to allow no puzzle.
const DRAWS: usize = 20_000;
/// Solutions looked for before that: they cost more than draws.
const SEARCHES: usize = 200;

/// A puzzle that can be solved.
#[derive(Clone, Debug, PartialEq)]
pub struct Puzzle {
    pub numbers: Vec<u32>,
    pub target: u32,
    /// A solution with the fewest operations.
    pub solution: String,
    /// How many these are.
    pub operations: usize,
}

/// A puzzle of `count` numbers; `None` when the arguments allow none (as far as was looked).
pub fn draw(rng: &mut Rng, args: &Args, count: usize, eval: bool) -> Option<Puzzle> {
    let mut searches = 0;
    for _ in 0..DRAWS {
        let span = (args.largest - args.smallest + 1) as usize;
        let numbers: Vec<u32> = (0..count).map(|_| args.smallest + rng.below(span) as u32).collect();
        if in_eval(&numbers) != eval {
            continue;
        }
        let target = reach(rng, &numbers, args.use_all);
        let Some(target) = target.filter(|target| (args.min_target..=args.max_target).contains(target)) else {
            continue;
        };
        if numbers.contains(&target) && !args.use_all {
            continue;
        }
        searches += 1;
        match solve(&numbers, target, args.use_all) {
            Some((solution, operations)) if operations >= args.min_operations => {
                return Some(Puzzle { numbers, target, solution, operations });
            }
            _ if searches == SEARCHES => return None,
            _ => {}
        }
    }
    None
}

/// Whether these numbers, in any order, are kept for the eval split.
pub fn in_eval(numbers: &[u32]) -> bool {
    let mut parts: Vec<u64> = numbers.iter().map(|number| u64::from(*number)).collect();
    parts.sort_unstable();
    Rng::from_parts(&parts).next_u64().is_multiple_of(EVAL_SHARE)
}

/// What some (or all) of the numbers come to by operations drawn at random.
fn reach(rng: &mut Rng, numbers: &[u32], use_all: bool) -> Option<u32> {
    let mut parts: Vec<i64> = numbers.iter().map(|number| i64::from(*number)).collect();
    rng.shuffle(&mut parts);
    let operations = if use_all { parts.len() - 1 } else { 1 + rng.below(parts.len() - 1) };
    parts.truncate(operations + 1);
    while parts.len() > 1 {
        let a = parts.swap_remove(rng.below(parts.len()));
        let b = parts.swap_remove(rng.below(parts.len()));
        let results: Vec<i64> = OPERATIONS.iter().filter_map(|operation| combine(a, *operation, b)).collect();
        parts.push(*rng.pick(&results)?);
    }
    u32::try_from(*parts.first()?).ok()
}
