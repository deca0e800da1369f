//! Next-token logits of many sequences at a time, over cached keys and values.
//!
//! Owns what a call may ask for, the memory that calls share, and the order in which passes are enqueued. Must not know
//! requests or groups.

use std::sync::{Arc, Mutex, PoisonError};

use crate::cuda::context::driver;
use crate::cuda::{CacheLayout, Context, CudaError, CudaSlice, DrawRows, Element, LowRanks, RopeTable, check};
use crate::passes::{New, parts};
use crate::{AdapterLayer, AdapterView, Meter};

use super::arena::Arena;
use super::cache::Cache;
use super::inputs::Views;
use super::pass::Pass;
use super::prepare;
use super::regions::{Cut, Regions};
use super::replay::{Key, Replays};
use super::rotation::Rotation;
use super::underway::{Part, Slot, Underway, room};
use super::weights::Weights;

/// One sequence's part of a call.
pub struct Item<'a, T> {
    /// What came before.
    pub cache: &'a mut Cache<T>,
    /// The new tokens, at least one.
    pub ids: &'a [u32],
    /// Where it is the token that this answer of the call begun before draws, which is then the only one; `ids` says how many
    /// only.
    pub follows: Option<usize>,
    /// What is wanted of the token that follows.
    pub want: Want<'a>,
    /// What is added to the weights for it, from [`Sampling::bring`].
    pub adapter: Option<&'a LowRanks<T>>,
}

impl<T: Element> Item<'_, T> {
    /// What the order of rows depends on.
    fn tokens(&self) -> New {
        New { past: self.cache.len(), count: self.ids.len(), scored: matches!(self.want, Want::Scores { .. }) }
    }
}

/// What an item wants of the distribution of the token that follows its last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want<'a> {
    /// Nothing.
    Nothing,
    /// Its logits.
    Logits,
    /// The logits after every one of its tokens.
    AllLogits,
    /// A token.
    Token(Draw),
    /// How likely a label is after each of its tokens.
    Scores {
        /// As many as tokens.
        labels: &'a [u32],
        /// One over the temperature.
        inv_temp: f32,
        /// How many of the likeliest tokens are told beside each.
        most: usize,
    },
}

/// How a token is drawn; fields as those of [`DrawRows`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// One over the temperature.
    pub inv_temp: f32,
    /// In [0, 1), or negative for the most likely token.
    pub uniform: f64,
    /// 0 keeps all.
    pub top_k: usize,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
}

impl Draw {
    /// From the whole distribution.
    pub fn plain(inv_temp: f32, uniform: f64) -> Self {
        Self { inv_temp, uniform, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// The answer to a [`Want`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `[vocab]`, or `[tokens, vocab]` where all were wanted.
    Logits(Vec<f32>),
    /// The token and ln p of it.
    Token(u32, f32),
    /// Of each token.
    Scores(Vec<Score>),
}

/// How likely a label is.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// ln p.
    pub logprob: f32,
    /// Its place by likelihood, from 1.
    pub rank: u32,
    /// The likeliest tokens and ln p of each, equals in order of ids.
    pub top: Vec<(u32, f32)>,
}

/// Weights and the memory to sample from them.
pub struct Sampling<T: Element> {
    pub(super) c: Arc<Context>,
    pub(super) weights: Arc<Weights<T>>,
    pub(super) work: Workspace,
}

/// Memory that calls use again, whichever weights they are of. For one model: it holds its rotation's table.
#[derive(Clone, Default)]
pub struct Workspace(pub(super) Arc<Mutex<Work>>);

#[derive(Default)]
pub(super) struct Work {
    rotation: Rotation,
    /// Inputs, scratch, and drawn tokens as pairs, on the GPU.
    shared: Option<Shared>,
    replays: Replays,
    /// For passes to come.
    pub slots: Vec<Slot>,
    /// The pair of each answer of the last call that is a drawn token.
    pairs: Vec<Option<usize>>,
}

struct Shared {
    inputs: CudaSlice<u8>,
    arena: Arena,
    arena_bytes: usize,
    drawn: CudaSlice<i32>,
}

/// Most pairs that are there from the start.
const PAIRS: usize = 2048;

impl Shared {
    /// Memory that holds so much, the old one where it does. What passes under way have in the old one is freed behind them,
    /// but drawn tokens are taken along.
    fn reserve(old: Option<Self>, c: &Context, inputs: usize, arena: usize, pairs: usize) -> Result<Self, CudaError> {
        let Some(mut old) = old else {
            return Ok(Self {
                inputs: c.alloc(inputs.next_power_of_two())?,
                arena: Arena::new(c, arena)?,
                arena_bytes: arena,
                drawn: c.zeros(2 * pairs.max(PAIRS))?,
            });
        };
        if old.inputs.len() < inputs {
            old.inputs = c.alloc(inputs.next_power_of_two())?;
        }
        if old.arena_bytes < arena {
            // The old one goes first.
            let Self { inputs, drawn, .. } = old;
            let arena_bytes = arena + arena / 4;
            old = Self { inputs, arena: Arena::new(c, arena_bytes)?, arena_bytes, drawn };
        }
        if old.drawn.len() < 2 * pairs {
            let mut more = c.zeros(2 * pairs.next_power_of_two())?;
            c.copy(&old.drawn, &mut more)?;
            old.drawn = more;
        }
        Ok(old)
    }
}

/// Waits for the GPU when it goes, on a way out that leaves nothing under way.
struct Waits<'a>(Option<&'a Context>);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // What fails here has failed, or will fail, in the operation itself.
        let _ = self.0.map(Context::synchronize);
    }
}

impl<T: Element> Sampling<T> {
    /// Samples on the stream of `c`, which need not be the one the weights were made on.
    ///
    /// # Errors
    /// If a kernel does not compile.
    pub fn new(c: Arc<Context>, weights: Weights<T>, work: Workspace) -> Result<Self, CudaError> {
        prepare::<T>(&c, weights.layout.dims.head_dim)?;
        Ok(Self { c, weights: Arc::new(weights), work })
    }

    fn shape(&self) -> [usize; 2] {
        let d = &self.weights.layout.dims;
        [2 * d.layers, d.kv_width()]
    }

    pub(super) fn cache_layout(&self) -> CacheLayout {
        let d = &self.weights.layout.dims;
        CacheLayout { heads: d.heads, kv_heads: d.kv_heads, dim: d.head_dim }
    }

    /// An adapter on the GPU, for items.
    ///
    /// # Errors
    /// More layers than the decoder has, a factor of another shape than its matrices have, not enough memory.
    pub fn bring(&self, adapter: &[AdapterLayer]) -> Result<LowRanks<T>, CudaError> {
        let d = &self.weights.layout.dims;
        let fits = AdapterView::new(adapter, d);
        let fits = fits.map_err(|e| CudaError::Shape { op: "adapter", what: e.to_string() })?;
        LowRanks::new(&self.c, fits)
    }

    /// An empty cache for one sequence.
    pub fn new_cache(&self, meter: &Meter) -> Cache<T> {
        Cache::new(self.shape(), meter)
    }

    /// Runs each item's ids behind what its cache holds and leaves them there. Returns what the items that want something
    /// want, in order. Ids are below the vocabulary.
    ///
    /// # Errors
    /// As [`Sampling::begin`] and [`Underway::finish`].
    pub fn extend(&self, items: &mut [Item<'_, T>]) -> Result<Vec<Answer>, CudaError> {
        self.begin(items)?.finish()
    }

    /// The same without waiting: the next call may begin before this one's answers are there, and follow what it draws.
    ///
    /// # Errors
    /// An item without ids, a cache of another shape, labels that are not as many as tokens, an item that follows an answer
    /// that is no token, not enough memory, a failing GPU.
    pub fn begin(&self, items: &mut [Item<'_, T>]) -> Result<Underway<T>, CudaError> {
        let begun = self.try_begin(items);
        if begun.is_err() {
            items.iter_mut().for_each(|item| item.cache.shrink());
            self.work.0.lock().unwrap_or_else(PoisonError::into_inner).pairs.clear();
        }
        begun
    }

    fn try_begin(&self, items: &mut [Item<'_, T>]) -> Result<Underway<T>, CudaError> {
        const OP: &str = "sampling";
        let mut work = self.work.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pairs = Vec::with_capacity(items.len());
        for item in items.iter() {
            check(OP, !item.ids.is_empty(), || "a sequence without new tokens".to_owned())?;
            check(OP, item.cache.shape() == self.shape(), || "a cache of another model".to_owned())?;
            if let Want::Scores { labels, .. } = item.want {
                check(OP, labels.len() == item.ids.len(), || "not a label for each token".to_owned())?;
            }
            let pair = item.follows.map(|answer| work.pairs.get(answer).copied().flatten());
            check(OP, pair.is_none_or(|p| p.is_some() && item.ids.len() == 1), || {
                "a sequence that goes on with what was not drawn".to_owned()
            })?;
            pairs.push(pair.flatten());
        }
        let c = &*self.c;
        let longest = items.iter().map(|i| i.cache.len() + i.ids.len()).max().unwrap_or(0);
        let mut waits = Waits(Some(c));
        let tokens: Vec<New> = items.iter().map(Item::tokens).collect();
        let passes = parts(&tokens, !c.is_traced())
            .iter()
            .map(|part| Pass::new(c, items, &tokens, part, &pairs))
            .collect::<Result<Vec<_>, _>>()?;
        let arena = passes.iter().map(|pass| self.arena_bytes(pass)).max().unwrap_or(0);
        let inputs = passes.iter().map(|pass| pass.inputs.counts().bytes()).max().unwrap_or(0);
        let all_pairs = passes.iter().map(|pass| pass.inputs.wanted.len()).sum();
        let Work { rotation, shared, replays, slots, pairs } = &mut *work;
        let old = shared.take();
        let shared = shared.insert(Shared::reserve(old, c, inputs, arena, all_pairs)?);
        let table = rotation.table(c, &self.weights.rope, longest)?;
        let (mut parts, mut first) = (Vec::with_capacity(passes.len()), 0);
        for pass in passes {
            let mut slot = slots.pop().unwrap_or_default();
            self.pass(&pass, first, table, shared, replays, &mut slot)?;
            parts.push((first, Part { pass, slot }));
            first += parts.last().map_or(0, |(_, part)| part.pass.inputs.wanted.len());
        }
        let mut drawn: Vec<(usize, Option<usize>)> =
            parts.iter().flat_map(|(first, part)| part.pass.pairs(*first)).collect();
        drawn.sort_unstable_by_key(|(item, _)| *item);
        *pairs = drawn.into_iter().map(|(_, pair)| pair).collect();
        let done = c.stream.record_event(None).map_err(driver("recording an event"))?;
        waits.0 = None;
        for item in items.iter_mut() {
            item.cache.stored(item.ids.len());
        }
        Ok(Underway {
            parts: parts.into_iter().map(|(_, part)| part).collect(),
            items: items.len(),
            vocab: self.weights.layout.dims.vocab,
            done,
            work: self.work.clone(),
            _weights: self.weights.clone(),
        })
    }

    /// Enqueues a pass, and the copies that bring what is wanted to the host. Its first wanted row's pair is `first`.
    fn pass(
        &self,
        pass: &Pass,
        first: usize,
        table: &RopeTable,
        Shared { inputs, arena, drawn, .. }: &mut Shared,
        replays: &mut Replays,
        slot: &mut Slot,
    ) -> Result<(), CudaError> {
        let (c, vocab) = (&*self.c, self.weights.layout.dims.vocab);
        let counts = pass.inputs.counts();
        let packed = pass.inputs.pack();
        let pinned = room(c, &mut slot.inputs, packed.len())?;
        pinned.write(&packed)?;
        c.write_pinned(pinned, packed.len(), inputs)?;
        let views = Views::new(inputs, counts)?;
        if !pass.pairs.is_empty() {
            let pairs = c.upload(&pass.pairs)?;
            // SAFETY: tables are held by the items' caches, and nothing enqueued before needs the entries that change.
            unsafe { c.cache_pages::<T>(self.weights.layout.dims.head_dim, &pairs)? };
        }
        let cut = Cut::new(c, pass, self.weights.layout.dims.heads)?;
        let mut regions = self.regions(pass, arena)?;
        let addresses = [
            c.address_of(self.weights.matrices()),
            c.address_of(self.weights.vectors()),
            c.address_of(inputs),
            c.address_of(drawn),
            c.address(&regions.x),
            c.address_of(table.start()),
        ];
        let mut all = || {
            self.enqueue(pass, &views, &cut, table, drawn, &mut regions)?;
            self.draw(counts.wanted, first, &views, &regions, drawn)
        };
        match pass.recorded && first == 0 {
            true => replays.run(c, Key { counts, longest: pass.longest, addresses }, all)?,
            false => all()?,
        }
        if pass.drawn > 0 {
            let pairs = drawn.slice(2 * first..2 * (first + pass.drawn));
            c.read_pinned(&pairs, room(c, &mut slot.drawn, pairs.len())?, pairs.len())?;
        }
        let logits = (pass.logits_rows()) * vocab;
        if logits > 0 {
            let rows = regions.logits.behind(pass.drawn * vocab);
            c.read_pinned(&rows, room(c, &mut slot.logits, logits)?, logits)?;
        }
        self.score(pass, &views, &mut regions)?;
        let words = counts.scored * Context::score_words(pass.most);
        if words > 0 && counts.scored > 0 {
            c.read_pinned(&regions.scores, room(c, &mut slot.scores, words)?, words)?;
        }
        Ok(())
    }

    /// Draws tokens from the first `rows` wanted rows, as pairs from `first` on.
    fn draw(
        &self,
        rows: usize,
        first: usize,
        inputs: &Views<'_>,
        regions: &Regions<'_, T>,
        drawn: &mut CudaSlice<i32>,
    ) -> Result<(), CudaError> {
        let how = DrawRows {
            inv_temp: &inputs.inv_temp,
            uniform: &inputs.uniform,
            top_k: &inputs.top_k,
            top_p: &inputs.top_p,
            min_p: &inputs.min_p,
        };
        let vocab = self.weights.layout.dims.vocab;
        self.c.draw([rows, vocab], &regions.logits, how, &mut drawn.slice_mut(2 * first..2 * (first + rows)))
    }
}
