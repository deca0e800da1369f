//! Sudoku, 4x4 and 9x9. Owns prompts, splits and rewards; puzzles are made by `puzzle` and checked by `grid`. Must not
//! know who trains on it.
//!
//! A puzzle belongs to the eval split when a hash of its solution says so, and to the train split otherwise: no
//! solution is in both.

mod grid;
mod puzzle;

use grid::Grid;
use prl_env::{Attempt, Error, Message, Recipe, Result, Rng, Spec, Task, Turn};
use puzzle::{DIFFICULTIES, Puzzle};
use serde_json::json;

/// Tasks of the eval split.
const EVAL_TASKS: u64 = 256;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// cells along a side
        size: usize = 4 => [one_of([4, 9])];
        /// how many cells are given: 4x4 has 9 to 10, 7 to 8 or 5 to 6, 9x9 has 42 to 48, 33 to 38 or 27 to 30
        difficulty: String = "mixed".to_owned() => [one_of(["easy", "medium", "hard", "mixed"])];
        /// whether the rules are sent as a system message, or before the puzzle in the user's
        system_prompt: bool = true;
    }
}

/// The configured environment.
pub struct Sudoku {
    args: Args,
}

/// The puzzle at hand, and what was made of it.
#[derive(Default)]
pub struct State {
    given: Grid,
    solution: Grid,
}

prl_env::export!(Sudoku);

impl Recipe for Sudoku {
    type Args = Args;
    type State = State;

    fn spec() -> Spec<Self> {
        let description = "Fill 4x4 and 9x9 sudokus that have one solution.";
        Spec::<Self>::new("sudoku", env!("CARGO_PKG_VERSION"), description)
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .reward("solved", 1.0, |_, attempt| said(attempt).is_some_and(|said| said == attempt.state.solution))
            .measures("whether the grid is the solution")
            .reward("cells", 0.3, |_, attempt| share(attempt, |given| given == 0))
            .measures("the share of empty cells that are filled right")
            .reward("givens", 0.1, |_, attempt| share(attempt, |given| given != 0))
            .measures("the share of given cells that are kept")
            .reward("format", 0.1, |_, attempt| {
                tagged(&attempt.text()).is_some() && said(attempt).is_some_and(|said| said.is_full())
            })
            .measures("whether the tag holds a full grid")
            .metric("parsed", |_, attempt| said(attempt).is_some())
            .tags(&["puzzle", "single-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        Ok(Sudoku { args })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let eval = split == "eval";
        // The eval split is the same whatever the seed, so that runs compare.
        let mut rng = Rng::for_task(split, index, if eval { 0 } else { seed });
        let at = DIFFICULTIES.iter().position(|name| *name == self.args.difficulty);
        let difficulty = at.unwrap_or_else(|| rng.below(DIFFICULTIES.len()));
        let size = self.args.size;
        let Puzzle { given, solution } = puzzle::draw(&mut rng, size, difficulty, eval)
            .ok_or_else(|| Error::internal(format!("no {size}x{size} puzzle was found")))?;
        let rules = format!(
            "Fill in the sudoku: every row, every column and every {0}x{0} box holds each of the digits 1 to {size} \
             once. A dot is an empty cell. Put the whole grid in <answer> tags, one row a line.",
            given.side()
        );
        let prompt = if self.args.system_prompt {
            vec![Message::system(rules), Message::user(given.rows())]
        } else {
            vec![Message::user(format!("{rules}\n\n{}", given.rows()))]
        };
        let payload = json!({
            "given": given.line(),
            "difficulty": DIFFICULTIES[difficulty],
            "demonstration": format!("<answer>\n{}\n</answer>", solution.rows()),
        });
        let mut task = Task::new(prompt).answer(solution.line()).payload(payload);
        task.tags = vec![format!("{size}x{size}"), DIFFICULTIES[difficulty].into()];
        Ok(task)
    }

    fn start(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        let given = attempt.payload()["given"].as_str().and_then(Grid::read);
        let solution = Grid::read(&attempt.answer()).filter(Grid::is_full);
        match (given, solution) {
            (Some(given), Some(solution)) if given.cells().len() == solution.cells().len() => {
                attempt.state = State { given, solution };
                Ok(Turn::next(Vec::new()))
            }
            _ => Err(Error::invalid_task(format!("task `{}` holds no sudoku and solution", attempt.task.key))),
        }
    }
}

/// What stands in the last answer tag.
fn tagged(text: &str) -> Option<&str> {
    let end = text.rfind("</answer>")?;
    text[..end].rfind("<answer>").map(|start| &text[start + "<answer>".len()..end])
}

/// The grid in the answer tag, or, without one, the grid that the whole text is; only what follows any thoughts counts.
fn said(attempt: &Attempt<Sudoku>) -> Option<Grid> {
    let text = attempt.text();
    let text = text.rsplit_once("</think>").map_or(text.as_str(), |(_, said)| said);
    let grid = Grid::read(tagged(text).unwrap_or(text))?;
    (grid.cells().len() == attempt.state.given.cells().len()).then_some(grid)
}

/// The share of right cells among those whose given digit (0: none) is `counted`; 0 without a grid.
fn share(attempt: &Attempt<Sudoku>, counted: impl Fn(u8) -> bool) -> f64 {
    let Some(said) = said(attempt) else { return 0.0 };
    let State { given, solution } = &attempt.state;
    let cells = given.cells().iter().zip(solution.cells()).zip(said.cells());
    let counted: Vec<bool> =
        cells.filter(|((given, _), _)| counted(**given)).map(|((_, right), said)| right == said).collect();
    if counted.is_empty() {
        return 1.0;
    }
    counted.iter().filter(|right| **right).count() as f64 / counted.len() as f64
}

#[cfg(test)]
mod tests;
