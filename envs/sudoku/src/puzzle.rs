//! Draws puzzles with one solution. Owns how many cells are given and which split a puzzle belongs to; must not know
//! prompts or rewards.

use crate::grid::Grid;
use prl_env::Rng;

/// From the easiest on.
pub const DIFFICULTIES: [&str; 3] = ["easy", "medium", "hard"];
/// Cells given by difficulty: least and most.
const GIVENS_4: [[usize; 2]; 3] = [[9, 10], [7, 8], [5, 6]];
const GIVENS_9: [[usize; 2]; 3] = [[42, 48], [33, 38], [27, 30]];
/// One solution in so many is kept for the eval split.
const EVAL_SHARE: u64 = 8;
/// Full grids drawn until one is of the wanted split and has few enough cells that cannot be spared.
const DRAWS: usize = 2000;

/// A puzzle and its only solution.
#[derive(Clone, Debug, PartialEq)]
pub struct Puzzle {
    pub given: Grid,
    pub solution: Grid,
}

/// A puzzle of `size` (4 or 9) cells along a side, at a place of [`DIFFICULTIES`].
pub fn draw(rng: &mut Rng, size: usize, difficulty: usize, eval: bool) -> Option<Puzzle> {
    let [least, most] = if size == 9 { GIVENS_9[difficulty] } else { GIVENS_4[difficulty] };
    let wanted = least + rng.below(most - least + 1);
    for _ in 0..DRAWS {
        let solution = Grid::full(size, rng)?;
        if in_eval(&solution) != eval {
            continue;
        }
        if let Some(given) = thinned(rng, &solution, wanted) {
            return Some(Puzzle { given, solution });
        }
    }
    None
}

/// Whether a solution is kept for the eval split.
pub fn in_eval(solution: &Grid) -> bool {
    let parts: Vec<u64> = solution.cells().iter().map(|cell| u64::from(*cell)).collect();
    Rng::from_parts(&parts).next_u64().is_multiple_of(EVAL_SHARE)
}

/// The full grid with cells emptied, in a random order, down to `wanted`; `None` when some must stay for the solution
/// to be the only one.
fn thinned(rng: &mut Rng, solution: &Grid, wanted: usize) -> Option<Grid> {
    let mut given = solution.clone();
    let mut order: Vec<usize> = (0..given.cells().len()).collect();
    rng.shuffle(&mut order);
    let mut left = order.len();
    for at in order {
        if left == wanted {
            break;
        }
        let digit = given.take(at);
        if given.solutions(2) == 1 {
            left -= 1;
        } else {
            given.put(at, digit);
        }
    }
    (left == wanted).then_some(given)
}
