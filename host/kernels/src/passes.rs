//! Which passes a call's new tokens make, and in which order their rows lie.
//!
//! Owns what is read by rows alone, by rows together, and without caches. Must not know what is computed for rows, or on what.

/// Most new tokens of a sequence that are worth a recorded pass, in which every row reads its context by itself.
const SHORT: usize = 64;
/// Most rows of a recorded pass.
const RECORDED_ROWS: usize = 1024;
/// New tokens of a sequence from which on they read caches together.
const TOGETHER: usize = 16;

/// New tokens of one sequence that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Row of the first.
    pub row: usize,
    /// How many.
    pub rows: usize,
    /// Position of the first.
    pub position: usize,
    /// Their sequence.
    pub seq: usize,
}

/// New tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct New {
    /// Positions that its cache holds.
    pub past: usize,
    /// At least one.
    pub count: usize,
    /// Whether labels are scored after each.
    pub scored: bool,
}

/// How rows of a pass can read caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reads {
    /// The pass is one of the few shapes that are recorded.
    pub recorded: bool,
    /// Keys and values are in half precision.
    pub half: bool,
    /// A token's bits must not depend on what is computed beside it.
    pub exact: bool,
}

/// The sequences of the passes of a call, and whether a pass is recorded: that one is apart from the rest.
pub(crate) fn parts(all: &[New], records: bool) -> Vec<(Vec<usize>, bool)> {
    let short = |new: &New| new.count <= SHORT && !new.scored;
    let (small, large): (Vec<usize>, Vec<usize>) = (0..all.len()).partition(|i| short(&all[*i]));
    let rows: usize = small.iter().map(|i| all[*i].count).sum();
    let parts = match records && rows <= RECORDED_ROWS {
        true => vec![(small, true), (large, false)],
        false => vec![((0..all.len()).collect(), false)],
    };
    parts.into_iter().filter(|(part, _)| !part.is_empty()).collect()
}

/// The rows of a pass: those that read caches by themselves, behind them those that read caches together with others of their
/// sequence, and then whole new sequences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassRows {
    /// Which sequence comes when.
    pub order: Vec<usize>,
    /// Rows that read caches by themselves.
    pub cached: usize,
    /// Positions that the longest of those reads.
    pub longest: usize,
    /// Rows that read caches together; their sequences are counted in this order.
    pub spans: Vec<Span>,
    /// Lengths of the new sequences.
    pub fresh: Vec<usize>,
}

impl PassRows {
    /// The rows of `part` of a call's sequences.
    pub fn new(all: &[New], part: &[usize], Reads { recorded, half, exact }: Reads) -> Self {
        let is_fresh = |new: &New| !recorded && new.past == 0 && new.count > 1 && !(half && exact);
        let is_span = |new: &New| !recorded && half && new.count >= TOGETHER && !is_fresh(new);
        let mut rows = PassRows { order: part.to_vec(), ..PassRows::default() };
        rows.order.sort_by_key(|i| (is_fresh(&all[*i]), is_span(&all[*i])));
        let mut row = 0;
        for (seq, i) in rows.order.iter().enumerate() {
            let new = &all[*i];
            if is_fresh(new) {
                rows.fresh.push(new.count);
            } else if is_span(new) {
                rows.spans.push(Span { row, rows: new.count, position: new.past, seq });
            } else {
                rows.cached += new.count;
                rows.longest = rows.longest.max(new.past + new.count);
            }
            row += new.count;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn new() -> impl Strategy<Value = New> {
        let past = prop_oneof![Just(0), 1usize..300];
        let count = prop_oneof![Just(1), 2usize..20, 60usize..70, Just(500)];
        (past, count, prop::bool::weighted(0.2)).prop_map(|(past, count, scored)| New { past, count, scored })
    }

    proptest! {
        /// Every sequence is in one pass, every row in one place, and nothing reads in a way that it cannot.
        #[test]
        fn every_row_has_one_place(
            all in prop::collection::vec(new(), 1..60),
            records in any::<bool>(),
            (half, exact) in any::<(bool, bool)>(),
        ) {
            let passes = parts(&all, records);
            let mut seen: Vec<usize> = passes.iter().flat_map(|(part, _)| part.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..all.len()).collect::<Vec<_>>());
            prop_assert!(passes.iter().filter(|(_, recorded)| *recorded).count() <= usize::from(records));
            for (part, recorded) in passes {
                let rows = PassRows::new(&all, &part, Reads { recorded, half, exact });
                let count: usize = part.iter().map(|i| all[*i].count).sum();
                let together: usize = rows.spans.iter().map(|span| span.rows).sum();
                prop_assert_eq!(rows.cached + together + rows.fresh.iter().sum::<usize>(), count);
                let mut order = rows.order.clone();
                order.sort_unstable();
                prop_assert_eq!(order, part.clone());
                if recorded {
                    prop_assert!(count <= RECORDED_ROWS && rows.cached == count);
                    prop_assert!(part.iter().all(|i| all[*i].count <= SHORT && !all[*i].scored));
                }
                // The three kinds follow each other; spans and new sequences are whole.
                let alone = rows.order.len() - rows.spans.len() - rows.fresh.len();
                let (own, rest) = rows.order.split_at(alone);
                prop_assert_eq!(own.iter().map(|i| all[*i].count).sum::<usize>(), rows.cached);
                prop_assert_eq!(own.iter().map(|i| all[*i].past + all[*i].count).max().unwrap_or(0), rows.longest);
                let (spans, fresh) = rest.split_at(rows.spans.len());
                let mut row = rows.cached;
                for ((n, i), span) in spans.iter().enumerate().zip(&rows.spans) {
                    let want = Span { row, rows: all[*i].count, position: all[*i].past, seq: alone + n };
                    prop_assert_eq!(*span, want);
                    prop_assert!(half && span.rows >= TOGETHER);
                    row += span.rows;
                }
                for (i, len) in fresh.iter().zip(&rows.fresh) {
                    prop_assert_eq!((all[*i].past, all[*i].count), (0, *len));
                    prop_assert!(*len > 1 && !(half && exact));
                }
            }
        }
    }
}
