//! Next-token logits of many sequences at a time, over cached keys and values.
//!
//! Owns the order of layers without a backward pass and the rows of a call. Must not know sampling, requests or groups.

use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, Mutex, PoisonError};

use rayon::prelude::*;

use crate::Meter;
use crate::cuda::{
    Attention, CacheLayout, CacheRows, Context, CudaError, CudaSlice, Element, In, Matrix, Onto, Pinned, RopeTable,
    Tiles, check,
};

use super::arena::{Arena, Region, bytes};
use super::cache::Cache;
use super::prepare;
use super::rotation::Rotation;
use super::weights::{LayerWeights, Weights};

/// One sequence's part of a call.
pub struct Item<'a, T> {
    /// What came before.
    pub cache: &'a mut Cache<T>,
    /// The new tokens, at least one.
    pub ids: &'a [u32],
    /// What is wanted of the token that follows.
    pub want: Want,
}

/// What an item wants of the distribution of the token that follows its last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Want {
    /// Nothing.
    Nothing,
    /// Its logits.
    Logits,
    /// The logits after every one of its tokens.
    AllLogits,
    /// A token, drawn as [`Context::draw`] does.
    Token {
        /// One over the temperature.
        inv_temp: f32,
        /// In [0, 1), or negative for the most likely token.
        uniform: f64,
    },
}

/// The answer to a [`Want`].
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// `[vocab]`, or `[tokens, vocab]` where all were wanted.
    Logits(Vec<f32>),
    /// The token and ln p of it.
    Token(u32, f32),
}

/// Weights and the memory to sample from them.
pub struct Sampling<T: Element> {
    c: Arc<Context>,
    weights: Weights<T>,
    work: Workspace,
}

/// Memory that calls use again, whichever weights they are of. For one model: it holds its rotation's table.
#[derive(Clone, Default)]
pub struct Workspace(Arc<Mutex<Work>>);

/// Rows that attend to caches at a time; bounds the scratch that long contexts need.
const CACHED_ROWS: usize = 512;

/// Waits for the GPU when it goes, on every way out.
struct Waits<'a>(&'a Context);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // What fails here has failed, or will fail, in the operation itself.
        let _ = self.0.synchronize();
    }
}

#[derive(Default)]
struct Work {
    rotation: Rotation,
    arena: Option<(Arena, usize)>,
    logits: Option<Pinned<f32>>,
}

/// Rows of a call, those that read caches first, and behind them whole new sequences.
struct Rows {
    ids: CudaSlice<i32>,
    positions: CudaSlice<i32>,
    seq: CudaSlice<i32>,
    bases: CudaSlice<u64>,
    capacities: CudaSlice<i32>,
    total: usize,
    /// Rows that read caches.
    cached: usize,
    /// Positions that the longest of those reads.
    longest: usize,
    fresh: Tiles,
    /// Rows that tokens are drawn from, and behind them rows whose logits are wanted.
    wanted: Vec<i32>,
    /// Of the rows that tokens are drawn from.
    inv_temp: Vec<f32>,
    uniform: Vec<f64>,
    /// The wanted rows of each answer, in the order of the call.
    places: Vec<Range<usize>>,
}

impl<T: Element> Sampling<T> {
    /// Samples on the stream of `c`, which need not be the one the weights were made on.
    ///
    /// # Errors
    /// If a kernel does not compile.
    pub fn new(c: Arc<Context>, weights: Weights<T>, work: Workspace) -> Result<Self, CudaError> {
        prepare::<T>(&c, weights.layout.dims.head_dim)?;
        Ok(Self { c, weights, work })
    }

    fn shape(&self) -> [usize; 2] {
        let d = &self.weights.layout.dims;
        [2 * d.layers, d.kv_width()]
    }

    fn scratch_len(&self, rows: &Rows) -> usize {
        self.c.cache_attention_scratch(self.cache_layout(), rows.cached.min(CACHED_ROWS), rows.longest)
    }

    fn cache_layout(&self) -> CacheLayout {
        let d = &self.weights.layout.dims;
        CacheLayout { heads: d.heads, kv_heads: d.kv_heads, dim: d.head_dim }
    }

    /// An empty cache for one sequence.
    pub fn new_cache(&self, meter: &Meter) -> Cache<T> {
        Cache::new(self.shape(), meter)
    }

    /// Runs each item's ids behind what its cache holds and leaves them there. Returns what the items that want something
    /// want, in order. Ids are below the vocabulary.
    ///
    /// # Errors
    /// An item without ids, a cache of another shape, not enough memory, a failing GPU.
    pub fn extend(&self, items: &mut [Item<'_, T>]) -> Result<Vec<Answer>, CudaError> {
        for item in items.iter() {
            check("sampling", !item.ids.is_empty(), || "a sequence without new tokens".to_owned())?;
            check("sampling", item.cache.shape() == self.shape(), || "a cache of another model".to_owned())?;
        }
        let mut work = self.work.0.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = items.iter().map(|i| i.cache.len() + i.ids.len()).max().unwrap_or(0);
        // The weights may be freed on another stream once this returns.
        let waits = Waits(&self.c);
        let rows = self.rows(items)?;
        let need = self.arena_bytes(&rows);
        if work.arena.as_ref().is_none_or(|(_, len)| *len < need) {
            work.arena = None;
            let len = need + need / 4;
            work.arena = Some((Arena::new(&self.c, len)?, len));
        }
        let Work { rotation, arena: Some((arena, _)), logits: pinned } = &mut *work else {
            return Ok(Vec::new());
        };
        let table = rotation.table(&self.c, &self.weights.rope, longest)?;
        let answers = self.run(&rows, table, arena, pinned)?;
        drop(waits);
        for item in items {
            item.cache.stored(item.ids.len());
        }
        Ok(answers)
    }

    fn rows(&self, items: &mut [Item<'_, T>]) -> Result<Rows, CudaError> {
        let c = &*self.c;
        let is_fresh = |i: &Item<'_, T>| i.cache.is_empty() && i.ids.len() > 1;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| is_fresh(&items[*i]));
        let (mut ids, mut positions, mut seq) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bases, mut capacities, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = vec![0i32; items.len()];
        let (mut cached, mut longest) = (0, 0);
        for (s, i) in order.into_iter().enumerate() {
            let item = &mut items[i];
            let past = item.cache.len();
            if is_fresh(item) {
                fresh.push(item.ids.len());
            } else {
                cached += item.ids.len();
                longest = longest.max(past + item.ids.len());
            }
            ids.extend(item.ids.iter().map(|id| *id as i32));
            positions.extend((past..past + item.ids.len()).map(|p| p as i32));
            seq.resize(ids.len(), s as i32);
            let (base, capacity) = item.cache.grow(c, item.ids.len())?;
            bases.push(base);
            capacities.push(capacity as i32);
            last[i] = ids.len() as i32 - 1;
        }
        let (mut wanted, mut whole) = (Vec::new(), Vec::new());
        let (mut inv_temp, mut uniform, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let drawn = items.iter().filter(|i| matches!(i.want, Want::Token { .. })).count();
        for (item, row) in items.iter().zip(last) {
            let mut add = |rows: RangeInclusive<i32>| {
                let first = drawn + whole.len();
                whole.extend(rows);
                places.push(first..drawn + whole.len());
            };
            match item.want {
                Want::Nothing => {}
                Want::Logits => add(row..=row),
                Want::AllLogits => add(row + 1 - item.ids.len() as i32..=row),
                Want::Token { inv_temp: t, uniform: u } => {
                    places.push(wanted.len()..wanted.len() + 1);
                    wanted.push(row);
                    inv_temp.push(t);
                    uniform.push(u);
                }
            }
        }
        wanted.extend(whole);
        Ok(Rows {
            total: ids.len(),
            ids: c.upload(&ids)?,
            positions: c.upload(&positions)?,
            seq: c.upload(&seq)?,
            bases: c.upload(&bases)?,
            capacities: c.upload(&capacities)?,
            cached,
            longest,
            fresh: c.tiles(&fresh)?,
            wanted,
            inv_temp,
            uniform,
            places,
        })
    }

    fn arena_bytes(&self, rows: &Rows) -> usize {
        let d = &self.weights.layout.dims;
        let n = rows.total;
        let row = |width: usize| n * width * size_of::<T>();
        let scratch = self.scratch_len(rows);
        let wanted = rows.wanted.len();
        let hidden = row(d.hidden);
        bytes(&[
            hidden,
            hidden,
            hidden,
            n * 4,
            row(self.weights.layout.qkv_width()),
            row(d.q_width()),
            row(d.kv_width()),
            row(d.q_width()),
            row(2 * d.ffn),
            row(d.ffn),
            d.heads * rows.fresh.tokens() * 4,
            scratch * 4,
            wanted * d.hidden * size_of::<T>(),
            wanted * d.hidden * size_of::<T>(),
            wanted * d.vocab * 4,
        ])
    }

    fn run(
        &self,
        rows: &Rows,
        table: &RopeTable,
        arena: &mut Arena,
        pinned: &mut Option<Pinned<f32>>,
    ) -> Result<Vec<Answer>, CudaError> {
        let (c, layout) = (&*self.c, &self.weights.layout);
        let d = &layout.dims;
        let (n, h, f, wanted) = (rows.total, d.hidden, d.ffn, rows.wanted.len());
        let (q_width, kv_width, width) = (d.q_width(), d.kv_width(), layout.qkv_width());
        let mut carver = arena.carve();
        let (mut x, mut mid, mut y) = (carver.take::<T>(n * h)?, carver.take::<T>(n * h)?, carver.take::<T>(n * h)?);
        let mut rstd = carver.take::<f32>(n)?;
        let mut qkv = carver.take::<T>(n * width)?;
        let (mut q, mut k) = (carver.take::<T>(n * q_width)?, carver.take::<T>(n * kv_width)?);
        let mut out = carver.take::<T>(n * q_width)?;
        let (mut gate_up, mut act) = (carver.take::<T>(n * 2 * f)?, carver.take::<T>(n * f)?);
        let mut lse = carver.take::<f32>(d.heads * rows.fresh.tokens())?;
        let mut scratch = carver.take::<f32>(self.scratch_len(rows))?;
        let (mut last, mut hidden) = (carver.take::<T>(wanted * h)?, carver.take::<T>(wanted * h)?);
        let mut logits = carver.take::<f32>(wanted * d.vocab)?;

        let matrices = self.weights.matrices.as_view();
        let vectors = self.weights.vectors.as_view();
        let (shape, heads, scale) = (layout.heads(), layout.head_layout(), layout.scale());
        let cached = self.cache_layout();
        let cache =
            CacheRows { bases: &rows.bases, capacities: &rows.capacities, seq: &rows.seq, position: &rows.positions };
        c.embed(h, &matrices.slice(layout.embed.clone()), &rows.ids, &mut x)?;
        for (i, spans) in layout.layers.iter().enumerate() {
            let w = LayerWeights::new(layout, spans, &matrices, &vectors);
            c.rms_norm([n, h], d.norm_eps, &x, None, &w.input_norm, &mut y, &mut rstd)?;
            c.gemm([n, width, h], Matrix::new(&y, h), Matrix::t(&w.qkv, h), &mut qkv, width, Onto::Nothing)?;
            if let Some(bias) = &w.bias {
                c.add_bias([n, width], &mut qkv, bias)?;
            }
            let norms = w.head_norms.as_ref().map(|n| [&n[0] as In<'_, f32>, &n[1]]);
            c.rope(shape, &qkv, norms, table, &rows.positions, (&mut q, &mut k))?;
            let v = qkv.behind(q_width + kv_width);
            // SAFETY: the caches' blocks are held by the items, and `grow` made them big enough for every row.
            unsafe { c.cache_store(i, cached, n, (&k, kv_width), (&v, width), cache)? };
            for start in (0..rows.cached).step_by(CACHED_ROWS) {
                let slab = start..rows.cached.min(start + CACHED_ROWS);
                let (seq, position) = (rows.seq.slice(slab.clone()), rows.positions.slice(slab.clone()));
                let cache = CacheRows { seq: &seq, position: &position, ..cache };
                let (q, longest, count) = (q.behind(start * q_width), rows.longest, slab.len());
                let mut out = out.behind_mut(start * q_width);
                // SAFETY: as above.
                unsafe {
                    c.cache_attention(i, cached, count, (&q, q_width), cache, longest, scale, &mut out, &mut scratch)?;
                }
            }
            if rows.fresh.tokens() > 0 {
                let (q, k) = (q.behind(rows.cached * q_width), k.behind(rows.cached * kv_width));
                let v = qkv.behind(rows.cached * width + q_width + kv_width);
                let a = Attention { q: &q, k: &k, v: &v, layout: heads, scale };
                c.attention(&rows.fresh, a, &mut out.behind_mut(rows.cached * q_width), q_width, &mut lse)?;
            }
            c.gemm(
                [n, h, q_width],
                Matrix::new(&out, q_width),
                Matrix::t(&w.o, q_width),
                &mut mid,
                h,
                Onto::Other(&x),
            )?;
            c.rms_norm([n, h], d.norm_eps, &mid, None, &w.post_norm, &mut y, &mut rstd)?;
            let up = Matrix::t(&w.gate_up, h);
            c.gemm([n, 2 * f, h], Matrix::new(&y, h), up, &mut gate_up, 2 * f, Onto::Nothing)?;
            c.swiglu([n, f], &gate_up, &mut act)?;
            c.gemm([n, h, f], Matrix::new(&act, f), Matrix::t(&w.down, f), &mut x, h, Onto::Other(&mid))?;
        }
        if wanted == 0 {
            return Ok(Vec::new());
        }
        c.embed(h, &x, &c.upload(&rows.wanted)?, &mut last)?;
        let norm = layout.vector(&vectors, &layout.final_norm);
        c.rms_norm([wanted, h], d.norm_eps, &last, None, &norm, &mut hidden, &mut rstd)?;
        let head = matrices.slice(layout.head.clone());
        c.gemm(
            [wanted, d.vocab, h],
            Matrix::new(&hidden, h),
            Matrix::t(&head, h),
            &mut logits,
            d.vocab,
            Onto::Nothing,
        )?;
        self.answers(rows, &logits, pinned)
    }

    /// Draws tokens and brings what is wanted to the host.
    fn answers(
        &self,
        rows: &Rows,
        logits: &Region<'_, f32>,
        pinned: &mut Option<Pinned<f32>>,
    ) -> Result<Vec<Answer>, CudaError> {
        let (c, vocab) = (&*self.c, self.weights.layout.dims.vocab);
        let drawn = rows.uniform.len();
        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        if drawn > 0 {
            let (inv_temp, uniform) = (c.upload(&rows.inv_temp)?, c.upload(&rows.uniform)?);
            let (mut to, mut lp) = (c.alloc::<i32>(drawn)?, c.alloc::<f32>(drawn)?);
            c.draw([drawn, vocab], logits, &inv_temp, &uniform, &mut to, &mut lp)?;
            (ids, logprobs) = (c.download(&to)?, c.download(&lp)?);
        }
        let whole = (rows.wanted.len() - drawn) * vocab;
        if whole > 0 && pinned.as_ref().is_none_or(|p| p.len() < whole) {
            *pinned = None;
            *pinned = Some(c.pinned(whole.next_power_of_two())?);
        }
        let mut values: &[f32] = &[];
        if let (Some(pinned), true) = (pinned, whole > 0) {
            c.read_pinned(&logits.behind(drawn * vocab), pinned, whole)?;
            values = pinned.as_slice()?;
        }
        let answer = |place: &Range<usize>| match place.start.checked_sub(drawn) {
            Some(i) => Answer::Logits(values[i * vocab..(i + place.len()) * vocab].to_vec()),
            None => Answer::Token(ids[place.start] as u32, logprobs[place.start]),
        };
        Ok(rows.places.par_iter().map(answer).collect())
    }
}
