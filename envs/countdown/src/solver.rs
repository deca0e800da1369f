//! Solves puzzles by trying everything. Owns the search and the text of a solution; must not know how puzzles are drawn.
//!
//! As in the game, results in between are whole and above zero. An expression that an answer may use beyond that (a
//! fraction in between) is not looked for: whatever is found is a solution.

/// The four operations.
pub const OPERATIONS: [char; 4] = ['+', '-', '*', '/'];
/// Results in between stay below this.
const LIMIT: i64 = 1 << 40;

/// `a operation b`, when that is whole, above zero and not too large.
pub fn combine(a: i64, operation: char, b: i64) -> Option<i64> {
    let value = match operation {
        '+' => a + b,
        '-' => a - b,
        '*' => a.checked_mul(b)?,
        _ if a % b == 0 => a / b,
        _ => return None,
    };
    (1..LIMIT).contains(&value).then_some(value)
}

/// A number given or made, and from what.
#[derive(Clone, Copy)]
enum Node {
    Number(i64),
    Made { operation: char, left: usize, right: usize },
}

struct Search {
    nodes: Vec<Node>,
    target: i64,
    use_all: bool,
}

/// An expression that reaches `target` with the fewest operations, and how many these are; `None` when there is none.
pub fn solve(numbers: &[u32], target: u32, use_all: bool) -> Option<(String, usize)> {
    let most = numbers.len().checked_sub(1)?;
    let nodes = numbers.iter().map(|number| Node::Number(i64::from(*number))).collect();
    let mut search = Search { nodes, target: i64::from(target), use_all };
    let parts: Vec<(i64, usize)> = numbers.iter().enumerate().map(|(at, number)| (i64::from(*number), at)).collect();
    (if use_all { most } else { 1 }..=most).find_map(|operations| {
        let root = search.within(&parts, operations)?;
        Some((search.text(root, 0), operations))
    })
}

impl Search {
    /// The node of the target, made of `parts` with exactly so many operations.
    fn within(&mut self, parts: &[(i64, usize)], operations: usize) -> Option<usize> {
        let mut rest = Vec::with_capacity(parts.len());
        for i in 0..parts.len() {
            for j in 0..parts.len() {
                for operation in OPERATIONS {
                    let ((a, left), (b, right)) = (parts[i], parts[j]);
                    // Sums and products once, not in both orders; nothing is gained from a factor 1.
                    let twice = matches!(operation, '+' | '*') && i > j;
                    let idle = matches!(operation, '*' | '/') && b == 1 && !self.use_all;
                    if i == j || twice || idle {
                        continue;
                    }
                    let Some(value) = combine(a, operation, b) else { continue };
                    if operations == 1 && (value != self.target || self.use_all && parts.len() > 2) {
                        continue;
                    }
                    let node = self.nodes.len();
                    self.nodes.push(Node::Made { operation, left, right });
                    if operations == 1 {
                        return Some(node);
                    }
                    rest.clear();
                    rest.extend((0..parts.len()).filter(|at| *at != i && *at != j).map(|at| parts[at]));
                    rest.push((value, node));
                    if let Some(found) = self.within(&rest, operations - 1) {
                        return Some(found);
                    }
                    self.nodes.truncate(node);
                }
            }
        }
        None
    }

    /// The expression of a node, in brackets where it binds less than `wanted`.
    fn text(&self, node: usize, wanted: u8) -> String {
        match self.nodes[node] {
            Node::Number(value) => value.to_string(),
            Node::Made { operation, left, right } => {
                let binding = if matches!(operation, '+' | '-') { 1 } else { 2 };
                let tight = binding + u8::from(matches!(operation, '-' | '/'));
                let text = format!("{} {operation} {}", self.text(left, binding), self.text(right, tight));
                if binding < wanted { format!("({text})") } else { text }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_numbers::{Dialect, evaluate};

    #[test]
    fn solutions_have_the_fewest_operations() {
        for (numbers, target, use_all, operations) in [
            (&[3, 4, 5][..], 7, false, Some(1)),
            (&[3, 4, 5], 35, false, Some(2)),
            (&[2, 10, 4], 3, false, Some(2)),
            (&[8, 2, 3], 1, false, Some(1)),
            (&[8, 2, 3], 1, true, Some(2)),
            (&[1, 1], 5, false, None),
            (&[7, 5, 1], 35, true, Some(2)),
            (&[100, 75, 50, 25, 6, 3], 952, false, Some(5)),
            (&[5], 5, false, None),
            (&[], 5, false, None),
        ] {
            let found = solve(numbers, target, use_all);
            assert_eq!(found.as_ref().map(|(_, count)| *count), operations, "{numbers:?} {target}: {found:?}");
            if let Some((text, count)) = found {
                let said = evaluate(&text, Dialect::Basic).unwrap();
                assert_eq!((said.value, said.literals.len()), (i64::from(target).into(), count + 1), "{text}");
            }
        }
    }

    #[test]
    fn what_is_not_whole_or_positive_is_not_made() {
        assert_eq!(OPERATIONS.map(|operation| combine(6, operation, 4)), [Some(10), Some(2), Some(24), None]);
        assert_eq!(OPERATIONS.map(|operation| combine(4, operation, 4)), [Some(8), None, Some(16), Some(1)]);
        assert_eq!((combine(4, '-', 6), combine(1 << 39, '*', 2)), (None, None));
    }
}
