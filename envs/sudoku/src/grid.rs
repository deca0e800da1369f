//! A grid: its text, and how many solutions it has. Owns the rules of the game; must not know how puzzles are drawn or
//! scored.

use prl_env::Rng;

/// A 4x4 or 9x9 grid; 0 is an empty cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    cells: Vec<u8>,
    /// Cells along the side of a box.
    side: usize,
}

/// Digits in use along each row, column and box: bit d for digit d.
#[derive(Default)]
struct Used {
    rows: [u16; 9],
    columns: [u16; 9],
    boxes: [u16; 9],
}

impl Grid {
    /// An empty grid of `size` (4 or 9) cells along a side.
    pub fn empty(size: usize) -> Self {
        Grid { cells: vec![0; size * size], side: if size == 9 { 3 } else { 2 } }
    }

    /// Reads 16 or 81 cells: a digit, or `.` `_` `0` for an empty one. Anything else between them is passed over.
    pub fn read(text: &str) -> Option<Self> {
        let mut cells = Vec::new();
        for c in text.chars() {
            match c {
                '0' | '.' | '_' => cells.push(0),
                '1'..='9' => cells.push(c as u8 - b'0'),
                _ => {}
            }
            if cells.len() > 81 {
                return None;
            }
        }
        let side = match cells.len() {
            16 => 2,
            81 => 3,
            _ => return None,
        };
        Some(Grid { cells, side })
    }

    /// The cells, row by row.
    pub fn cells(&self) -> &[u8] {
        &self.cells
    }

    /// Cells along the side of a box.
    pub fn side(&self) -> usize {
        self.side
    }

    fn size(&self) -> usize {
        self.side * self.side
    }

    /// Whether no cell is empty.
    pub fn is_full(&self) -> bool {
        self.cells.iter().all(|cell| *cell != 0)
    }

    /// The cells as one line of digits and dots.
    pub fn line(&self) -> String {
        self.cells.iter().map(|cell| if *cell == 0 { '.' } else { char::from(b'0' + cell) }).collect()
    }

    /// The rows, one a line, with spaces between the cells.
    pub fn rows(&self) -> String {
        let line: Vec<char> = self.line().chars().collect();
        let row = |cells: &[char]| cells.iter().map(char::to_string).collect::<Vec<_>>().join(" ");
        line.chunks(self.size()).map(row).collect::<Vec<_>>().join("\n")
    }

    /// Empties a cell, and tells what stood there.
    pub fn take(&mut self, at: usize) -> u8 {
        std::mem::take(&mut self.cells[at])
    }

    /// Fills a cell.
    pub fn put(&mut self, at: usize, digit: u8) {
        self.cells[at] = digit;
    }

    /// How many solutions it has, counted up to `most`.
    pub fn solutions(&self, most: usize) -> usize {
        let mut grid = self.clone();
        let mut found = 0;
        if let Some(mut used) = grid.used() {
            grid.search(&mut used, None, &mut |_| {
                found += 1;
                found == most
            });
        }
        found
    }

    /// A full grid, drawn at random.
    pub fn full(size: usize, rng: &mut Rng) -> Option<Self> {
        let mut grid = Grid::empty(size);
        let mut full = None;
        let mut used = grid.used()?;
        grid.search(&mut used, Some(rng), &mut |grid| {
            full = Some(grid.clone());
            true
        });
        full
    }

    fn box_of(&self, at: usize) -> usize {
        let (row, column) = (at / self.size(), at % self.size());
        row / self.side * self.side + column / self.side
    }

    /// What is in use; `None` when a digit is too large, or twice where it may be once.
    fn used(&self) -> Option<Used> {
        let mut used = Used::default();
        for (at, digit) in self.cells.iter().enumerate().filter(|(_, digit)| **digit != 0) {
            if usize::from(*digit) > self.size() || self.taken(&used, at) & (1 << digit) != 0 {
                return None;
            }
            self.flip(&mut used, at, *digit);
        }
        Some(used)
    }

    fn taken(&self, used: &Used, at: usize) -> u16 {
        used.rows[at / self.size()] | used.columns[at % self.size()] | used.boxes[self.box_of(at)]
    }

    fn flip(&self, used: &mut Used, at: usize, digit: u8) {
        used.rows[at / self.size()] ^= 1 << digit;
        used.columns[at % self.size()] ^= 1 << digit;
        used.boxes[self.box_of(at)] ^= 1 << digit;
    }

    /// Calls `found` with every solution until it says so; digits are tried in a random order where there is an `rng`.
    fn search(&mut self, used: &mut Used, mut rng: Option<&mut Rng>, found: &mut dyn FnMut(&Grid) -> bool) -> bool {
        // The empty cell that can hold the fewest digits.
        let mut best: Option<(usize, u16)> = None;
        for at in (0..self.cells.len()).filter(|at| self.cells[*at] == 0) {
            let open = !self.taken(used, at) & (((1u32 << (self.size() + 1)) - 2) as u16);
            if best.is_none_or(|(_, least)| open.count_ones() < least.count_ones()) {
                best = Some((at, open));
                if open.count_ones() < 2 {
                    break;
                }
            }
        }
        let Some((at, open)) = best else { return found(self) };
        let mut digits: Vec<u8> = (1..=self.size() as u8).filter(|digit| open & (1 << digit) != 0).collect();
        if let Some(rng) = rng.as_deref_mut() {
            rng.shuffle(&mut digits);
        }
        for digit in digits {
            self.flip(used, at, digit);
            self.cells[at] = digit;
            let stop = self.search(used, rng.as_deref_mut(), found);
            self.cells[at] = 0;
            self.flip(used, at, digit);
            if stop {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A known puzzle of the newspapers, and its solution.
    const KNOWN: &str = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79";
    const SOLVED: &str = "534678912672195348198342567859761423426853791713924856961537284287419635345286179";

    #[test]
    fn solutions_are_counted() {
        let grid = Grid::read(KNOWN).unwrap();
        assert_eq!((grid.solutions(2), Grid::read(SOLVED).unwrap().solutions(2)), (1, 1));
        assert_eq!(Grid::empty(4).solutions(1000), 288);
        assert_eq!(Grid::empty(9).solutions(5), 5);
        // A digit twice in a row, and one that is too large.
        assert_eq!(Grid::read("11..............").unwrap().solutions(2), 0);
        assert_eq!(Grid::read("5...............").unwrap().solutions(2), 0);
        let mut none = grid.clone();
        none.put(2, 1);
        assert_eq!(none.solutions(2), 0);
    }

    #[test]
    fn text_is_read_and_written() {
        let grid = Grid::read("| 1 2 | 3 4 |\n|-----+-----|\n[[3,4],[_,0]]\n. . . .\n4321").unwrap();
        assert_eq!((grid.line().as_str(), grid.side()), ("123434......4321", 2));
        assert_eq!(grid.rows(), "1 2 3 4\n3 4 . .\n. . . .\n4 3 2 1");
        assert!(!grid.is_full() && Grid::read(SOLVED).unwrap().is_full());
        assert_eq!((Grid::read(""), Grid::read(&"1".repeat(17)), Grid::read(&"1".repeat(1000))), (None, None, None));
    }

    #[test]
    fn full_grids_keep_the_rules_and_differ() {
        let mut rng = Rng::new(3);
        for size in [4, 9] {
            let grids: Vec<Grid> = (0..20).map(|_| Grid::full(size, &mut rng).unwrap()).collect();
            assert!(grids.iter().all(|grid| grid.is_full() && grid.solutions(2) == 1));
            assert!(grids[1..].iter().any(|grid| grid != &grids[0]));
        }
    }
}
