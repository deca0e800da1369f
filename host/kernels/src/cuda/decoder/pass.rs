//! The rows of one pass of new tokens: where they lie and what is wanted of them.
//!
//! Owns their order and how many there are. Must not know what is computed for them.

use std::ops::Range;

use crate::cuda::{Context, CudaError, Element, Span};
use crate::passes::{New, PassRows, Reads};

use super::inputs::{Counts, Inputs};
use super::replay::bucket;
use super::sampling::{Item, Want};

/// Rows of a pass: those that read caches by themselves, behind them those that read caches together with others of their
/// sequence, and then whole new sequences.
pub(super) struct Pass {
    pub inputs: Inputs,
    /// What is to be written into tables of pages before, as [`Context::cache_pages`] has it.
    pub pairs: Vec<u64>,
    /// Rows that read caches by themselves.
    pub cached: usize,
    /// Positions that the longest of those reads.
    pub longest: usize,
    /// Rows that read caches together.
    pub spans: Vec<Span>,
    /// Lengths of the new sequences.
    pub fresh: Vec<usize>,
    /// Wanted rows that tokens are drawn from: the first ones.
    pub drawn: usize,
    /// Most likely tokens that are told beside a scored one.
    pub most: usize,
    /// Whether it has one of the few shapes that are recorded.
    pub recorded: bool,
    /// Items that want something, and where their answers are.
    pub places: Vec<(usize, Place)>,
}

/// Where an answer is.
pub(super) enum Place {
    /// A drawn one.
    Token(usize),
    /// Logits behind the drawn ones.
    Logits(Range<usize>),
    /// Scored rows, and how many likeliest tokens are wanted of them.
    Scores(Range<usize>, usize),
}

impl Pass {
    /// The rows of `part` of the items, whose new tokens are `tokens`. Item n follows the token of the pair that `pairs[n]` names.
    pub fn new<T: Element>(
        c: &Context,
        items: &mut [Item<'_, T>],
        tokens: &[New],
        (part, recorded): &(Vec<usize>, bool),
        pairs: &[Option<usize>],
    ) -> Result<Self, CudaError> {
        let reads = Reads { recorded: *recorded, half: size_of::<T>() == 2, exact: c.is_exact() };
        let PassRows { order, cached, longest, spans, fresh } = PassRows::new(tokens, part, reads);
        let (mut inputs, mut written) = (Inputs::default(), Vec::new());
        let mut last = vec![0i32; items.len()];
        for (s, i) in order.into_iter().enumerate() {
            let item = &mut items[i];
            let past = item.cache.len();
            match pairs[i] {
                Some(pair) => inputs.ids.push(-1 - pair as i32),
                None => inputs.ids.extend(item.ids.iter().map(|id| *id as i32)),
            }
            inputs.positions.extend((past..past + item.ids.len()).map(|p| p as i32));
            inputs.seq.resize(inputs.ids.len(), s as i32);
            let found = item.cache.grow(c, item.ids.len(), &mut written)?;
            inputs.tables.push(found.table);
            inputs.capacities.push(found.capacity as i32);
            inputs.adapters.push(item.adapter.map_or(0, |adapter| adapter.table(c)));
            // Few ranks, so that few shapes are recorded.
            let rank = item.adapter.map_or(0, |adapter| adapter.rank().next_power_of_two().max(8));
            inputs.rank = inputs.rank.max(rank);
            last[i] = inputs.ids.len() as i32 - 1;
        }
        let mut pass = Pass {
            inputs,
            pairs: written,
            cached,
            longest,
            spans,
            fresh,
            drawn: 0,
            most: 0,
            recorded: false,
            places: Vec::new(),
        };
        pass.want(part.iter().map(|i| (*i, &items[*i], last[*i])));
        match recorded {
            true => pass.round_up(),
            false => pass.round_a_little(),
        }
        Ok(pass)
    }

    /// Notes what items want of their last rows.
    fn want<'a, 'b: 'a, T: Element + 'a>(&mut self, items: impl Iterator<Item = (usize, &'a Item<'b, T>, i32)>) {
        let (inputs, places) = (&mut self.inputs, &mut self.places);
        let mut whole = Vec::new();
        for (at, item, row) in items {
            let first = row + 1 - item.ids.len() as i32;
            let mut logits = |rows: Range<i32>| {
                let from = whole.len();
                whole.extend(rows);
                places.push((at, Place::Logits(from..whole.len())));
            };
            match item.want {
                Want::Nothing => {}
                Want::Logits => logits(row..row + 1),
                Want::AllLogits => logits(first..row + 1),
                Want::Token(draw) => {
                    places.push((at, Place::Token(inputs.wanted.len())));
                    inputs.wanted.push(row);
                    inputs.inv_temp.push(draw.inv_temp);
                    inputs.uniform.push(draw.uniform);
                    inputs.top_k.push(i32::try_from(draw.top_k).unwrap_or(0));
                    inputs.top_p.push(draw.top_p);
                    inputs.min_p.push(draw.min_p);
                }
                Want::Scores { labels, inv_temp, most } => {
                    let from = inputs.scored.len();
                    inputs.scored.extend(first..row + 1);
                    inputs.labels.extend(labels.iter().map(|id| *id as i32));
                    inputs.scored_inv_temp.resize(inputs.scored.len(), inv_temp);
                    places.push((at, Place::Scores(from..inputs.scored.len(), most)));
                    self.most = self.most.max(most);
                }
            }
        }
        self.drawn = inputs.wanted.len();
        inputs.wanted.extend(whole);
        inputs.complete();
    }

    /// Items that want something, and the pair of what is drawn for them where the first wanted row's pair is `first`.
    pub fn pairs(&self, first: usize) -> impl Iterator<Item = (usize, Option<usize>)> + '_ {
        self.places.iter().map(move |(item, place)| match place {
            Place::Token(row) => (*item, Some(first + row)),
            Place::Logits(_) | Place::Scores(..) => (*item, None),
        })
    }

    /// Wanted rows whose logits are wanted, behind those that tokens are drawn from.
    pub fn logits_rows(&self) -> usize {
        let end = |(_, place): &(usize, Place)| if let Place::Logits(rows) = place { rows.end } else { 0 };
        self.places.iter().map(end).max().unwrap_or(0)
    }

    pub fn fresh_tokens(&self) -> usize {
        self.fresh.iter().sum()
    }

    /// The first row of the new sequences.
    pub fn first_fresh(&self) -> usize {
        self.cached + self.spans.iter().map(|span| span.rows).sum::<usize>()
    }

    /// Makes it one of the few shapes that are recorded: a number of rows, all of which read caches.
    fn round_up(&mut self) {
        let Counts { rows, sequences, wanted, rank, .. } = self.inputs.counts();
        let coarse = |n: usize| if n == 0 { 0 } else { n.next_power_of_two().max(16) };
        // The step that comes again and again has one new token for each sequence and something wanted of it.
        let steady = rows == sequences && rows == wanted;
        let Some(to) = bucket(rows).map(|fine| if steady { fine } else { coarse(rows) }) else { return };
        let wanted = if steady { to } else { coarse(wanted).min(to) };
        self.inputs.pad(Counts { rows: to, sequences: to, wanted, scored: 0, rank });
        self.cached = to;
        self.longest = self.longest.next_power_of_two().max(512);
        self.recorded = true;
    }

    /// Makes it one of fewer shapes, for which products are planned already.
    fn round_a_little(&mut self) {
        let up = |n: usize| {
            n.next_multiple_of(if n <= 64 {
                8
            } else if n <= 1024 {
                64
            } else {
                256
            })
        };
        let Counts { rows, sequences, wanted, scored, rank } = self.inputs.counts();
        self.inputs.pad(Counts { rows: up(rows), sequences, wanted: up(wanted), scored: up(scored), rank });
    }
}
