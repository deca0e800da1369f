//! Key/value caches and the forward pass that grows them: prefill and decode of many sequences in one call.
//!
//! Owns the cache's blocks and `extend`. Must not know sampling, scheduling or policy versions.

use std::sync::Arc;

use rayon::prelude::*;

use crate::adapter::{self, AdapterView, RowAdapters};
use crate::attention::{KEY_BLOCK, PackedHead, QUERY_BLOCK, Rows, Scratch, attend, block_sizes, padded};
use crate::forward::{Rest, check_ids, embed_rows, finish_layer};
use crate::gemm::nt;
use crate::meter::{Held, Meter};
use crate::projection::Projection;
use crate::rows::{RopeTable, heads_rows, norm_rows};
use crate::shared::Shared;
use crate::weights::{Dims, WeightsView};

/// Up to this many weights, each thread runs its own sequences through the whole decoder (the weights stay in the
/// processor's caches); above, threads split every product instead, so that weights are read once.
const SPLIT_SEQUENCES_MAX: usize = 16 << 20;
/// Fewest new tokens that are worth a thread of their own: one narrow tile.
const SPLIT_TOKENS_MIN: usize = 8;

/// Keys and values of one sequence. Cloning forks it: blocks are shared until one side changes them.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    len: usize,
    blocks: Vec<Arc<Block>>,
    meter: Meter,
}

/// [`KEY_BLOCK`] positions of all layers: `[layer][kv head][keys | values]`.
#[derive(Clone, Debug)]
struct Block {
    values: Vec<f32>,
    _held: Held,
}

impl KvCache {
    /// Positions of a block, the unit in which room is taken and shared.
    pub const BLOCK: usize = KEY_BLOCK;

    /// An empty cache for a decoder of these dimensions, which counts what it takes on `meter`.
    pub fn new(dims: &Dims, meter: &Meter) -> Self {
        let Dims { layers, kv_heads, head_dim, .. } = *dims;
        Self { layers, kv_heads, head_dim, len: 0, blocks: Vec::new(), meter: meter.clone() }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all positions from `len` on; does nothing if there are none.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(KEY_BLOCK));
    }

    /// Bytes that `more` positions would take: of new blocks, and of a shared one that they would change.
    pub fn growth(&self, more: usize) -> usize {
        let new = (self.len + more).div_ceil(KEY_BLOCK) - self.blocks.len();
        let changed = self.blocks.get(self.len / KEY_BLOCK).filter(|block| more > 0 && Arc::strong_count(block) > 1);
        (new + usize::from(changed.is_some())) * self.block_len() * size_of::<f32>()
    }

    fn head_len(&self) -> usize {
        let (keys, values) = block_sizes(self.head_dim);
        keys + values
    }

    fn block_len(&self) -> usize {
        self.layers * self.kv_heads * self.head_len()
    }

    /// Makes room for `more` positions and returns all blocks; those that will be written are unshared.
    fn reserve(&mut self, more: usize) -> Vec<Shared<'static, f32>> {
        let first = self.len / KEY_BLOCK;
        let (len, need) = (self.block_len(), (self.len + more).div_ceil(KEY_BLOCK));
        let new = || Block { values: vec![0.0; len], _held: self.meter.hold(len * size_of::<f32>()) };
        self.blocks.resize_with(need, || Arc::new(new()));
        let pointer = |(i, b): (usize, &mut Arc<Block>)| {
            Shared::of(match i >= first {
                true => Arc::make_mut(b).values.as_mut_ptr(),
                false => b.values.as_ptr().cast_mut(),
            })
        };
        self.blocks.iter_mut().enumerate().map(pointer).collect()
    }
}

/// One sequence's part of an [`extend`] call.
pub struct ExtendItem<'a> {
    /// Grows by `ids.len()` positions.
    pub cache: &'a mut KvCache,
    /// New tokens, at least one.
    pub ids: &'a [u32],
    /// After how many of them, counted from the last, logits are wanted.
    pub logits: usize,
    /// What is added to the matrices.
    pub adapter: Option<AdapterView<'a>>,
}

/// One sequence while a call runs.
struct Sequence<'a> {
    ids: &'a [u32],
    first_row: usize,
    past: usize,
    blocks: Vec<Shared<'static, f32>>,
    logits: usize,
    adapter: Option<AdapterView<'a>>,
}

/// Keys and values of one layer and head of a sequence.
struct CachedHead<'a> {
    blocks: &'a [Shared<'static, f32>],
    offset: usize,
    keys_len: usize,
}

impl PackedHead for CachedHead<'_> {
    fn keys(&self, b: usize) -> *const f32 {
        self.blocks[b].at(self.offset)
    }

    fn values(&self, b: usize) -> *const f32 {
        self.blocks[b].at(self.offset + self.keys_len)
    }
}

/// Appends each item's tokens to its cache and returns the logits after the last tokens of the items that want them,
/// [wanted tokens, vocab], in the order of the items and their tokens. Prefill and decode may be mixed; the bits of an item's logits
/// depend on its own tokens only. Weights must have passed [`WeightsView::validate`].
///
/// # Panics
/// If an item has no tokens, an id is outside the vocabulary, or a cache or an adapter was made for other dimensions.
pub fn extend(w: &WeightsView<'_>, batch: &mut [ExtendItem<'_>]) -> Vec<f32> {
    let d = w.dims;
    let wanted: usize = batch.iter().map(|i| i.logits.min(i.ids.len())).sum();
    let mut logits = vec![0.0f32; wanted * d.vocab];
    let mut sequences = Vec::with_capacity(batch.len());
    for item in batch.iter_mut() {
        check_ids(d, item.ids);
        assert!(!item.ids.is_empty(), "an extend item must have at least one token");
        let c = &item.cache;
        let same = (c.layers, c.kv_heads, c.head_dim) == (d.layers, d.kv_heads, d.head_dim);
        assert!(same, "the cache was made for other dimensions");
        if let Some(adapter) = &item.adapter {
            adapter.assert_fits(d);
        }
        let past = c.len;
        let blocks = item.cache.reserve(item.ids.len());
        item.cache.len += item.ids.len();
        let logits = item.logits.min(item.ids.len());
        sequences.push(Sequence { ids: item.ids, first_row: 0, past, blocks, logits, adapter: item.adapter });
    }
    let threads = rayon::current_num_threads();
    let tokens: usize = sequences.iter().map(|s| s.ids.len()).sum();
    let parts = threads.min(tokens / SPLIT_TOKENS_MIN).min(sequences.len());
    if parts > 1 && d.parameters() <= SPLIT_SEQUENCES_MAX {
        let groups = balance(&mut sequences, parts);
        let mut rest = logits.as_mut_slice();
        let mut tasks = Vec::with_capacity(groups.len());
        for group in groups {
            let own = group.iter().map(|s| s.logits).sum::<usize>() * d.vocab;
            let (mine, others) = rest.split_at_mut(own);
            rest = others;
            tasks.push((group, mine));
        }
        tasks.into_par_iter().with_max_len(1).for_each(|(group, out)| run(w, false, group, out));
    } else {
        run(w, threads > 1, &mut sequences, &mut logits);
    }
    logits
}

/// Cuts the sequences, in order, into at most `parts` runs of about equal numbers of tokens.
fn balance<'s, 'a>(sequences: &'s mut [Sequence<'a>], parts: usize) -> Vec<&'s mut [Sequence<'a>]> {
    let total: usize = sequences.iter().map(|s| s.ids.len()).sum();
    let mut out = Vec::with_capacity(parts);
    let (mut rest, mut done) = (sequences, 0);
    for part in 1..=parts {
        let mut count = 0;
        while count < rest.len() && (part == parts || (done + rest[count].ids.len() / 2) * parts < total * part) {
            done += rest[count].ids.len();
            count += 1;
        }
        let (own, others) = std::mem::take(&mut rest).split_at_mut(count);
        rest = others;
        if !own.is_empty() {
            out.push(own);
        }
    }
    out
}

/// Runs a group of sequences through the decoder, over the pool's threads if `parallel`.
fn run<'a>(w: &WeightsView<'_>, parallel: bool, sequences: &mut [Sequence<'a>], logits: &mut [f32]) {
    let d = w.dims;
    let (h, q, kv, hd) = (d.hidden, d.q_width(), d.kv_width(), d.head_dim);
    let width = q + 2 * kv;
    let mut rows = 0;
    for s in sequences.iter_mut() {
        s.first_row = rows;
        rows += s.ids.len();
    }
    let ids: Vec<u32> = sequences.iter().flat_map(|s| s.ids.iter().copied()).collect();
    let positions: Vec<usize> = sequences.iter().flat_map(|s| s.past..s.past + s.ids.len()).collect();
    let table = RopeTable::new(w.rope, positions.into_iter());
    let entries: Vec<u32> = (0..rows as u32).collect();
    let mut x = vec![0.0f32; rows * h];
    embed_rows(w, &ids, &mut x);
    let mut buffers = Rest::new(d, rows);
    let mut qkv = vec![0.0f32; rows * width];
    let mut attn = vec![0.0f32; rows * q];
    let (keys_len, values_len) = block_sizes(hd);
    for (i, layer) in w.layers.iter().enumerate() {
        let adapted = |s: &'_ Sequence<'a>| Some((s.first_row..s.first_row + s.ids.len(), s.adapter?.get(i)?));
        let adapters: RowAdapters<'_> = sequences.iter().filter_map(adapted).collect();
        let normed = &mut buffers.narrow;
        norm_rows(&x, layer.input_norm, d.norm_eps, normed);
        // SAFETY: the buffers have the widths of the weights.
        unsafe {
            let to = qkv.as_mut_ptr();
            nt(parallel, rows, q, h, normed.as_ptr(), h, layer.q.as_ptr(), to, width);
            nt(parallel, rows, kv, h, normed.as_ptr(), h, layer.k.as_ptr(), to.add(q), width);
            nt(parallel, rows, kv, h, normed.as_ptr(), h, layer.v.as_ptr(), to.add(q + kv), width);
            let x = (normed.as_ptr(), h, h);
            adapter::add(&adapters, Projection::Q, x, (to, width, q));
            adapter::add(&adapters, Projection::K, x, (to.add(q), width, kv));
            adapter::add(&adapters, Projection::V, x, (to.add(q + kv), width, kv));
        }
        heads_rows(d, layer, &table, &entries, &mut qkv, None);
        let attn_out = Shared::new(&mut attn);
        let qkv = &qkv;
        let task = |scratch: &mut Scratch, s: &Sequence<'_>, g: usize| {
            let offset = (i * d.kv_heads + g) * (keys_len + values_len);
            // SAFETY: a task owns this sequence's (layer, head) part of the cache and of the output; the blocks
            // reach to the sequence's last position.
            unsafe {
                append(s, offset, qkv, width, q + g * hd, q + kv + g * hd, hd);
                let head = CachedHead { blocks: &s.blocks, offset, keys_len };
                attend_group(d, s, g, &head, qkv, attn_out, scratch);
            }
        };
        let work: usize = sequences.iter().map(|s| s.ids.len() * (s.past + s.ids.len())).sum::<usize>() * q;
        if parallel && work >= 1 << 16 {
            let pairs = (0..sequences.len() * d.kv_heads).into_par_iter();
            let sequences = &*sequences;
            pairs.for_each_init(Scratch::default, |scratch, p| {
                task(scratch, &sequences[p / d.kv_heads], p % d.kv_heads);
            });
        } else {
            let mut scratch = Scratch::default();
            for s in sequences.iter() {
                (0..d.kv_heads).for_each(|g| task(&mut scratch, s, g));
            }
        }
        finish_layer(parallel, d, layer, &adapters, &attn, &mut x, &mut buffers);
    }
    let last = |s: &Sequence<'_>| (s.first_row + s.ids.len() - s.logits)..(s.first_row + s.ids.len());
    let wanted: Vec<usize> = sequences.iter().flat_map(last).collect();
    let mut hidden = vec![0.0f32; wanted.len() * h];
    for (to, row) in hidden.chunks_exact_mut(h).zip(&wanted) {
        norm_rows(&x[row * h..][..h], w.final_norm, d.norm_eps, to);
    }
    // SAFETY: logits holds one row of the vocabulary for each wanted row.
    unsafe {
        nt(parallel, wanted.len(), d.vocab, h, hidden.as_ptr(), h, w.head().as_ptr(), logits.as_mut_ptr(), d.vocab);
    }
}

/// Writes the new keys and values of one head into the cache.
///
/// # Safety
/// The blocks must reach to the sequence's last position, and nobody else may use this head's part of them.
unsafe fn append(s: &Sequence<'_>, offset: usize, qkv: &[f32], width: usize, key: usize, value: usize, hd: usize) {
    let (keys_len, wide) = (hd * KEY_BLOCK, padded(hd));
    for t in 0..s.ids.len() {
        let (block, slot) = ((s.past + t) / KEY_BLOCK, (s.past + t) % KEY_BLOCK);
        let row = &qkv[(s.first_row + t) * width..];
        let keys = s.blocks[block].at(offset);
        // SAFETY: slot is inside the block's keys and values.
        unsafe {
            for (i, x) in row[key..key + hd].iter().enumerate() {
                *keys.add(i * KEY_BLOCK + slot) = *x;
            }
            std::ptr::copy_nonoverlapping(row[value..].as_ptr(), keys.add(keys_len + slot * wide), hd);
        }
    }
}

/// Attention of the query heads that share key/value head `g`.
///
/// # Safety
/// As [`append`], for the output rows too.
unsafe fn attend_group(
    d: &Dims,
    s: &Sequence<'_>,
    g: usize,
    head: &CachedHead<'_>,
    qkv: &[f32],
    out: Shared<'_, f32>,
    scratch: &mut Scratch,
) {
    let (q, hd, group) = (d.q_width(), d.head_dim, d.heads / d.kv_heads);
    let width = q + 2 * d.kv_width();
    let at = |column: usize, t: usize| qkv[(s.first_row + t) * width + column..].as_ptr();
    let to = |column: usize, t: usize| out.at((s.first_row + t) * q + column);
    // SAFETY: by the caller's word.
    unsafe {
        if s.ids.len() == 1 {
            // One position: the group's heads are the rows.
            let queries = Rows { data: at(g * group * hd, 0), stride: hd };
            attend(queries, group, s.past, 0, head, hd, to(g * group * hd, 0), hd, scratch);
        } else {
            for column in (g * group..(g + 1) * group).map(|h| h * hd) {
                for t in (0..s.ids.len()).step_by(QUERY_BLOCK) {
                    let queries = Rows { data: at(column, t), stride: width };
                    let rows = QUERY_BLOCK.min(s.ids.len() - t);
                    attend(queries, rows, s.past + t, 1, head, hd, to(column, t), q, scratch);
                }
            }
        }
    }
}
