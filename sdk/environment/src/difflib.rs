//! The similarity of Python's `difflib.SequenceMatcher(None, a, b).ratio()`, value for value: Ratcliff–Obershelp
//! matching blocks, with the "popular element" rule for second texts of 200 characters or more. Not symmetric.

use std::collections::HashMap;

/// From this length of `b` on, characters that make up more than 1 % of it (plus one) start no match.
const AUTOJUNK_FROM: usize = 200;

/// 2·M/T, where M counts the characters in matching blocks and T those of both texts; 1.0 for two empty texts.
/// Characters are Unicode scalar values, as in Python.
pub fn ratio(a: &str, b: &str) -> f64 {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let total = a.len() + b.len();
    if total == 0 {
        return 1.0;
    }
    2.0 * Matcher::new(&a, &b).matches() as f64 / total as f64
}

struct Matcher<'a> {
    a: &'a [char],
    b: &'a [char],
    /// Where each character that may start a match stands in `b`, ascending.
    positions: HashMap<char, Vec<usize>>,
    /// Run lengths that end at each position of `b` (shifted by one), for the current and the previous row of `a`.
    runs: [Vec<usize>; 2],
}

impl<'a> Matcher<'a> {
    fn new(a: &'a [char], b: &'a [char]) -> Self {
        let mut positions: HashMap<char, Vec<usize>> = HashMap::new();
        for (j, c) in b.iter().enumerate() {
            positions.entry(*c).or_default().push(j);
        }
        if b.len() >= AUTOJUNK_FROM {
            let popular = b.len() / 100 + 1;
            positions.retain(|_, at| at.len() <= popular);
        }
        Matcher { a, b, positions, runs: [vec![0; b.len() + 1], vec![0; b.len() + 1]] }
    }

    /// Characters in matching blocks.
    fn matches(mut self) -> usize {
        let mut sum = 0;
        let mut todo = vec![(0, self.a.len(), 0, self.b.len())];
        while let Some((alo, ahi, blo, bhi)) = todo.pop() {
            let (i, j, size) = self.longest(alo, ahi, blo, bhi);
            if size > 0 {
                sum += size;
                todo.push((alo, i, blo, j));
                todo.push((i + size, ahi, j + size, bhi));
            }
        }
        sum
    }

    /// The longest block within both ranges; of equally long ones the first in `a`, then the first in `b`.
    fn longest(&mut self, alo: usize, ahi: usize, blo: usize, bhi: usize) -> (usize, usize, usize) {
        let (mut besti, mut bestj, mut size) = (alo, blo, 0);
        let [mut previous, mut current] = std::mem::take(&mut self.runs);
        let mut before: &[usize] = &[];
        for i in alo..ahi {
            let at = self.positions.get(&self.a[i]).map_or(&[][..], Vec::as_slice);
            for &j in at.iter().filter(|j| (blo..bhi).contains(*j)) {
                let run = previous[j] + 1;
                current[j + 1] = run;
                if run > size {
                    (besti, bestj, size) = (i + 1 - run, j + 1 - run, run);
                }
            }
            before.iter().for_each(|j| previous[j + 1] = 0);
            std::mem::swap(&mut previous, &mut current);
            before = at;
        }
        before.iter().for_each(|j| previous[j + 1] = 0);
        self.runs = [previous, current];
        // Popular characters start no block but may lengthen one.
        while besti > alo && bestj > blo && self.a[besti - 1] == self.b[bestj - 1] {
            (besti, bestj, size) = (besti - 1, bestj - 1, size + 1);
        }
        while besti + size < ahi && bestj + size < bhi && self.a[besti + size] == self.b[bestj + size] {
            size += 1;
        }
        (besti, bestj, size)
    }
}
