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
use super::inputs::{Counts, Inputs, Views};
use super::prepare;
use super::replay::{Key, Replays, bucket};
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
    replays: Replays,
}

/// Rows of a call, those that read caches first, and behind them whole new sequences.
struct Pass {
    inputs: Inputs,
    /// Rows that read caches.
    cached: usize,
    /// Positions that the longest of those reads.
    longest: usize,
    /// Lengths of the new sequences.
    fresh: Vec<usize>,
    /// Wanted rows that tokens are drawn from: the first ones.
    drawn: usize,
    /// The wanted rows of each answer, in the order of the call.
    places: Vec<Range<usize>>,
}

impl Pass {
    fn fresh_tokens(&self) -> usize {
        self.fresh.iter().sum()
    }

    /// Makes it one of the few shapes that are recorded, if it is a step that comes again and again: one new token for each
    /// sequence, and something wanted of it.
    fn round_up(&mut self) -> bool {
        let Counts { rows, sequences, wanted } = self.inputs.counts();
        let steady = self.fresh.is_empty() && rows == sequences && rows == wanted;
        let Some(rows) = bucket(rows).filter(|_| steady) else { return false };
        self.inputs.pad(rows);
        self.cached = rows;
        self.longest = self.longest.next_power_of_two().max(512);
        true
    }
}

/// Scratch memory of a pass.
struct Regions<'a, T> {
    x: Region<'a, T>,
    mid: Region<'a, T>,
    y: Region<'a, T>,
    rstd: Region<'a, f32>,
    qkv: Region<'a, T>,
    q: Region<'a, T>,
    k: Region<'a, T>,
    out: Region<'a, T>,
    gate_up: Region<'a, T>,
    act: Region<'a, T>,
    lse: Region<'a, f32>,
    scratch: Region<'a, f32>,
    last: Region<'a, T>,
    hidden: Region<'a, T>,
    logits: Region<'a, f32>,
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

    fn scratch_len(&self, pass: &Pass) -> usize {
        self.c.cache_attention_scratch(self.cache_layout(), pass.cached.min(CACHED_ROWS), pass.longest)
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
        let mut pass = self.pass(items)?;
        let again = !self.c.is_traced() && pass.round_up();
        let need = self.arena_bytes(&pass);
        if work.arena.as_ref().is_none_or(|(_, len)| *len < need) {
            work.arena = None;
            let len = need + need / 4;
            work.arena = Some((Arena::new(&self.c, len)?, len));
        }
        let Work { rotation, arena: Some((arena, _)), logits: pinned, replays } = &mut *work else {
            return Ok(Vec::new());
        };
        let table = rotation.table(&self.c, &self.weights.rope, longest)?;
        let answers = match again {
            true => self.replay(&pass, table, arena, pinned, replays)?,
            false => self.run(&pass, table, arena, pinned)?,
        };
        drop(waits);
        for item in items {
            item.cache.stored(item.ids.len());
        }
        Ok(answers)
    }

    fn pass(&self, items: &mut [Item<'_, T>]) -> Result<Pass, CudaError> {
        let c = &*self.c;
        let is_fresh = |i: &Item<'_, T>| i.cache.is_empty() && i.ids.len() > 1;
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|i| is_fresh(&items[*i]));
        let (mut inputs, mut fresh) = (Inputs::default(), Vec::new());
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
            inputs.ids.extend(item.ids.iter().map(|id| *id as i32));
            inputs.positions.extend((past..past + item.ids.len()).map(|p| p as i32));
            inputs.seq.resize(inputs.ids.len(), s as i32);
            let (base, capacity) = item.cache.grow(c, item.ids.len())?;
            inputs.bases.push(base);
            inputs.capacities.push(capacity as i32);
            last[i] = inputs.ids.len() as i32 - 1;
        }
        let (mut whole, mut places) = (Vec::new(), Vec::new());
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
                    places.push(inputs.wanted.len()..inputs.wanted.len() + 1);
                    inputs.wanted.push(row);
                    inputs.inv_temp.push(t);
                    inputs.uniform.push(u);
                }
            }
        }
        inputs.wanted.extend(whole);
        inputs.inv_temp.resize(inputs.wanted.len(), 1.0);
        inputs.uniform.resize(inputs.wanted.len(), 0.0);
        Ok(Pass { inputs, cached, longest, fresh, drawn, places })
    }

    fn arena_bytes(&self, pass: &Pass) -> usize {
        bytes(&self.region_lens(pass).map(|(len, size)| len * size))
    }

    /// Elements of each of [`Regions`], and an element's bytes.
    fn region_lens(&self, pass: &Pass) -> [(usize, usize); 15] {
        let d = &self.weights.layout.dims;
        let Counts { rows, wanted, .. } = pass.inputs.counts();
        let row = |width: usize| (rows * width, size_of::<T>());
        let float = |len: usize| (len, 4);
        [
            row(d.hidden),
            row(d.hidden),
            row(d.hidden),
            float(rows),
            row(self.weights.layout.qkv_width()),
            row(d.q_width()),
            row(d.kv_width()),
            row(d.q_width()),
            row(2 * d.ffn),
            row(d.ffn),
            float(d.heads * pass.fresh_tokens()),
            float(self.scratch_len(pass)),
            (wanted * d.hidden, size_of::<T>()),
            (wanted * d.hidden, size_of::<T>()),
            float(wanted * d.vocab),
        ]
    }

    /// At the same addresses for every pass of the same shape, as long as the arena is the same.
    fn regions<'a>(&self, pass: &Pass, arena: &'a mut Arena) -> Result<Regions<'a, T>, CudaError> {
        let mut carver = arena.carve();
        let lens = self.region_lens(pass).map(|(len, _)| len);
        let [x, mid, y, rstd, qkv, q, k, out, gate_up, act, lse, scratch, last, hidden, logits] = lens;
        Ok(Regions {
            x: carver.take(x)?,
            mid: carver.take(mid)?,
            y: carver.take(y)?,
            rstd: carver.take(rstd)?,
            qkv: carver.take(qkv)?,
            q: carver.take(q)?,
            k: carver.take(k)?,
            out: carver.take(out)?,
            gate_up: carver.take(gate_up)?,
            act: carver.take(act)?,
            lse: carver.take(lse)?,
            scratch: carver.take(scratch)?,
            last: carver.take(last)?,
            hidden: carver.take(hidden)?,
            logits: carver.take(logits)?,
        })
    }

    /// Enqueues the pass and brings what is wanted to the host.
    fn run(
        &self,
        pass: &Pass,
        table: &RopeTable,
        arena: &mut Arena,
        pinned: &mut Option<Pinned<f32>>,
    ) -> Result<Vec<Answer>, CudaError> {
        let c = &*self.c;
        let counts = pass.inputs.counts();
        let block = c.upload(&pass.inputs.pack())?;
        let tiles = if pass.fresh.is_empty() { None } else { Some(c.tiles(&pass.fresh)?) };
        let mut regions = self.regions(pass, arena)?;
        let mut drawn = c.alloc::<i32>(2 * counts.wanted)?;
        self.enqueue(pass, &Views::new(&block, counts)?, tiles.as_ref(), table, &mut regions)?;
        let on_host = match pass.drawn {
            0 => Vec::new(),
            rows => {
                self.draw(rows, &Views::new(&block, counts)?, &regions.logits, &mut drawn)?;
                c.download(&drawn)?
            }
        };
        self.answers(pass, &on_host, &regions.logits, pinned)
    }

    /// The same for a step that is recorded.
    fn replay(
        &self,
        pass: &Pass,
        table: &RopeTable,
        arena: &mut Arena,
        pinned: &mut Option<Pinned<f32>>,
        replays: &mut Replays,
    ) -> Result<Vec<Answer>, CudaError> {
        let c = &*self.c;
        let counts = pass.inputs.counts();
        let mut regions = self.regions(pass, arena)?;
        let weights = [c.address_of(&self.weights.matrices), c.address_of(&self.weights.vectors)];
        let addresses = [weights[0], weights[1], c.address(&regions.x), c.address_of(table.start())];
        let key = Key { counts, longest: pass.longest, addresses };
        let buffers = replays.run(c, key, &pass.inputs.pack(), |buffers| {
            let views = Views::new(&buffers.inputs, counts)?;
            self.enqueue(pass, &views, None, table, &mut regions)?;
            self.draw(counts.wanted, &views, &regions.logits, &mut buffers.drawn)
        })?;
        c.read_pinned(&buffers.drawn, &mut buffers.on_host, 2 * counts.wanted)?;
        let on_host = buffers.on_host.as_slice()?;
        self.answers(pass, on_host, &regions.logits, pinned)
    }

    /// Enqueues the decoder over the rows of a pass, up to the logits of the wanted ones.
    fn enqueue(
        &self,
        pass: &Pass,
        inputs: &Views<'_>,
        tiles: Option<&Tiles>,
        table: &RopeTable,
        r: &mut Regions<'_, T>,
    ) -> Result<(), CudaError> {
        let (c, layout) = (&*self.c, &self.weights.layout);
        let d = &layout.dims;
        let Counts { rows: n, wanted, .. } = pass.inputs.counts();
        let (h, f) = (d.hidden, d.ffn);
        let (q_width, kv_width, width) = (d.q_width(), d.kv_width(), layout.qkv_width());
        let matrices = self.weights.matrices.as_view();
        let vectors = self.weights.vectors.as_view();
        let (shape, heads, scale) = (layout.heads(), layout.head_layout(), layout.scale());
        let cached = self.cache_layout();
        let cache = CacheRows {
            bases: &inputs.bases,
            capacities: &inputs.capacities,
            seq: &inputs.seq,
            position: &inputs.positions,
        };
        c.embed(h, &matrices.slice(layout.embed.clone()), &inputs.ids, &mut r.x)?;
        for (i, spans) in layout.layers.iter().enumerate() {
            let w = LayerWeights::new(layout, spans, &matrices, &vectors);
            c.rms_norm([n, h], d.norm_eps, &r.x, None, &w.input_norm, &mut r.y, &mut r.rstd)?;
            c.gemm([n, width, h], Matrix::new(&r.y, h), Matrix::t(&w.qkv, h), &mut r.qkv, width, Onto::Nothing)?;
            if let Some(bias) = &w.bias {
                c.add_bias([n, width], &mut r.qkv, bias)?;
            }
            let norms = w.head_norms.as_ref().map(|n| [&n[0] as In<'_, f32>, &n[1]]);
            c.rope(shape, &r.qkv, norms, table, &inputs.positions, (&mut r.q, &mut r.k))?;
            let v = r.qkv.behind(q_width + kv_width);
            // SAFETY: the caches' blocks are held by the items, and `grow` made them big enough for every row; rows of no
            // sequence reach none.
            unsafe { c.cache_store(i, cached, n, (&r.k, kv_width), (&v, width), cache)? };
            for start in (0..pass.cached).step_by(CACHED_ROWS) {
                let slab = start..pass.cached.min(start + CACHED_ROWS);
                let (seq, position) = (inputs.seq.slice(slab.clone()), inputs.positions.slice(slab.clone()));
                let cache = CacheRows { seq: &seq, position: &position, ..cache };
                let (q, longest, count) = (r.q.behind(start * q_width), pass.longest, slab.len());
                let mut out = r.out.behind_mut(start * q_width);
                let scratch = &mut r.scratch;
                // SAFETY: as above.
                unsafe {
                    c.cache_attention(i, cached, count, (&q, q_width), cache, longest, scale, &mut out, scratch)?
                };
            }
            if let Some(tiles) = tiles {
                let (q, k) = (r.q.behind(pass.cached * q_width), r.k.behind(pass.cached * kv_width));
                let v = r.qkv.behind(pass.cached * width + q_width + kv_width);
                let a = Attention { q: &q, k: &k, v: &v, layout: heads, scale };
                c.attention(tiles, a, &mut r.out.behind_mut(pass.cached * q_width), q_width, &mut r.lse)?;
            }
            let (out, o) = (Matrix::new(&r.out, q_width), Matrix::t(&w.o, q_width));
            c.gemm([n, h, q_width], out, o, &mut r.mid, h, Onto::Other(&r.x))?;
            c.rms_norm([n, h], d.norm_eps, &r.mid, None, &w.post_norm, &mut r.y, &mut r.rstd)?;
            if !c.few_swiglu([n, f, h], &r.y, &w.gate_up, &mut r.act)? {
                let up = Matrix::t(&w.gate_up, h);
                c.gemm([n, 2 * f, h], Matrix::new(&r.y, h), up, &mut r.gate_up, 2 * f, Onto::Nothing)?;
                c.swiglu([n, f], &r.gate_up, &mut r.act)?;
            }
            let down = Matrix::t(&w.down, f);
            c.gemm([n, h, f], Matrix::new(&r.act, f), down, &mut r.x, h, Onto::Other(&r.mid))?;
        }
        if wanted == 0 {
            return Ok(());
        }
        c.embed(h, &r.x, &inputs.wanted, &mut r.last)?;
        let norm = layout.vector(&vectors, &layout.final_norm);
        c.rms_norm([wanted, h], d.norm_eps, &r.last, None, &norm, &mut r.hidden, &mut r.rstd)?;
        let (hidden, head) = (Matrix::new(&r.hidden, h), matrices.slice(layout.head.clone()));
        c.gemm([wanted, d.vocab, h], hidden, Matrix::t(&head, h), &mut r.logits, d.vocab, Onto::Nothing)
    }

    /// Draws tokens from the first `rows` wanted rows; behind all ids lie the bits of their log-probabilities.
    fn draw(
        &self,
        rows: usize,
        inputs: &Views<'_>,
        logits: &Region<'_, f32>,
        drawn: &mut CudaSlice<i32>,
    ) -> Result<(), CudaError> {
        let all = drawn.len() / 2;
        let (mut ids, mut bits) = drawn.split_at_mut(all);
        // SAFETY: both have four bytes, and every pattern is a float.
        let logprobs = unsafe { bits.transmute_mut::<f32>(all) };
        let short = || CudaError::Shape { op: "sampling", what: "no room for log-probabilities".to_owned() };
        let vocab = self.weights.layout.dims.vocab;
        let (inv_temp, uniform) = (&inputs.inv_temp, &inputs.uniform);
        self.c.draw([rows, vocab], logits, inv_temp, uniform, &mut ids, &mut logprobs.ok_or_else(short)?)
    }

    /// Tokens that were drawn, and logits that are brought to the host.
    fn answers(
        &self,
        pass: &Pass,
        drawn: &[i32],
        logits: &Region<'_, f32>,
        pinned: &mut Option<Pinned<f32>>,
    ) -> Result<Vec<Answer>, CudaError> {
        let (c, vocab) = (&*self.c, self.weights.layout.dims.vocab);
        let all = pass.places.iter().map(|rows| rows.end).max().unwrap_or(0);
        let whole = (all - pass.drawn) * vocab;
        if whole > 0 && pinned.as_ref().is_none_or(|p| p.len() < whole) {
            *pinned = None;
            *pinned = Some(c.pinned(whole.next_power_of_two())?);
        }
        let mut values: &[f32] = &[];
        if let (Some(pinned), true) = (pinned, whole > 0) {
            c.read_pinned(&logits.behind(pass.drawn * vocab), pinned, whole)?;
            values = pinned.as_slice()?;
        }
        let (ids, bits) = drawn.split_at(drawn.len() / 2);
        let answer = |place: &Range<usize>| match place.start.checked_sub(pass.drawn) {
            Some(i) => Answer::Logits(values[i * vocab..(i + place.len()) * vocab].to_vec()),
            None => Answer::Token(ids[place.start] as u32, f32::from_bits(bits[place.start] as u32)),
        };
        Ok(pass.places.par_iter().map(answer).collect())
    }
}
