//! The decoder over packed documents, keeping what the backward pass needs.
//!
//! Owns the order of operations in a layer and the saved activations. Must not know losses, sampling or caches.

use rayon::prelude::*;

use crate::adapter::{self, Additions, LayerAdditions, RowAdapters};
use crate::attention::{Document, QUERY_BLOCK, Rows, Scratch, attend};
use crate::gemm::Panels;
use crate::pool::Buffer;
use crate::projection::Projection;
use crate::rows::{RopeTable, add, heads_rows, norm_rows, sum, swiglu_rows};
use crate::shared::{Shared, for_ranges};
use crate::weights::{Dims, LayerView, WeightsView};

/// Rows per task of the row-wise parts. Fixed, because partial sums of norm gradients follow it.
pub(crate) const ROWS: usize = 96;

/// What one layer leaves for its backward pass; all row-major with one row per token.
pub(crate) struct LayerActivations {
    /// Residual stream into the layer [hidden].
    pub x: Buffer,
    /// Rotated queries, rotated keys, values [q + 2 kv].
    pub qkv: Buffer,
    /// Queries and keys before their norm [q + kv]; empty without `qk_norm`.
    pub raw: Buffer,
    /// Attention output [q].
    pub attn: Buffer,
    /// Residual stream after attention [hidden].
    pub mid: Buffer,
    /// Gate and up projections [2 ffn].
    pub gate_up: Buffer,
}

/// Result of [`forward`]: the hidden states and what [`backward`](crate::backward()) needs.
pub struct Activations {
    pub(crate) ids: Vec<u32>,
    pub(crate) doc_lens: Vec<usize>,
    pub(crate) positions: Vec<u32>,
    pub(crate) table: RopeTable,
    pub(crate) layers: Vec<LayerActivations>,
    pub(crate) last: Buffer,
    pub(crate) hidden: Buffer,
}

impl Activations {
    /// Hidden states after the final norm, [tokens, hidden].
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Tokens in the batch.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }
}

/// Lanes-side panels of the four matrices after attention.
struct Tail {
    o: Panels,
    gate: Panels,
    up: Panels,
    down: Panels,
}

/// Panels of the three matrices before attention.
struct Head {
    q: Panels,
    k: Panels,
    v: Panels,
}

impl Head {
    fn pack(d: &Dims, l: &LayerView<'_>) -> Self {
        let rows = |n, w| Panels::of_rows(n, d.hidden, w);
        Self { q: rows(d.q_width(), l.q), k: rows(d.kv_width(), l.k), v: rows(d.kv_width(), l.v) }
    }
}

impl Tail {
    fn pack(d: &Dims, l: &LayerView<'_>) -> Self {
        Self {
            o: Panels::of_rows(d.hidden, d.q_width(), l.o),
            gate: Panels::of_rows(d.ffn, d.hidden, l.gate),
            up: Panels::of_rows(d.ffn, d.hidden, l.up),
            down: Panels::of_rows(d.hidden, d.ffn, l.down),
        }
    }
}

/// Runs packed documents: positions restart and attention stops at each document's start. Weights must have passed
/// [`WeightsView::validate`].
///
/// # Panics
/// If the document lengths do not add up to the number of ids, a document is empty, or an id is outside the vocabulary.
pub fn forward(w: &WeightsView<'_>, ids: &[u32], doc_lens: &[usize]) -> Activations {
    forward_with(w, &Additions::default(), ids, doc_lens)
}

/// [`forward`] with `additions` to the matrices: without dropout the same bits as [`extend`](crate::extend()) with them.
///
/// # Panics
/// As [`forward`]; additions to a decoder of other dimensions, or with masks for another number of tokens.
pub fn forward_with(w: &WeightsView<'_>, additions: &Additions<'_>, ids: &[u32], doc_lens: &[usize]) -> Activations {
    let d = w.dims;
    check_ids(d, ids);
    additions.assert_fits(d, ids.len());
    assert_eq!(doc_lens.iter().sum::<usize>(), ids.len(), "document lengths must add up to the number of ids");
    assert!(!doc_lens.contains(&0), "a document must have at least one token");
    let tokens = ids.len();
    let positions: Vec<u32> = doc_lens.iter().flat_map(|n| 0..*n as u32).collect();
    let table = RopeTable::new(w.rope, 0..doc_lens.iter().copied().max().unwrap_or(0));
    let (h, qkv_width) = (d.hidden, d.q_width() + 2 * d.kv_width());

    let mut layers: Vec<LayerActivations> = Vec::with_capacity(d.layers);
    let mut x = Buffer::any(tokens * h);
    embed_rows(w, ids, &mut x);
    let mut hidden = Buffer::any(tokens * h);
    let mut qkv = Buffer::any(tokens * qkv_width);
    let mut raw = Buffer::any(if d.qk_norm { tokens * (d.q_width() + d.kv_width()) } else { 0 });
    if let Some(first) = w.layers.first() {
        let head = Head::pack(d, first);
        let (q, r) = (Shared::new(&mut qkv), Shared::new(&mut raw));
        for_ranges(true, tokens, ROWS, |rows| {
            let x = &x[rows.start * h..rows.end * h];
            project(w, (first, &additions.layer(0)), &head, &table, &positions[rows.clone()], x, rows.start, q, r);
        });
    } else {
        norm_rows(&x, w.final_norm, d.norm_eps, &mut hidden);
    }
    for (i, layer) in w.layers.iter().enumerate() {
        let mut attn = Buffer::any(tokens * d.q_width());
        attention(d, &qkv, doc_lens, &mut attn);
        let tail = Tail::pack(d, layer);
        let own = additions.layer(i);
        let next = w.layers.get(i + 1).map(|l| ((l, additions.layer(i + 1)), Head::pack(d, l)));
        let mut mid = Buffer::any(tokens * h);
        let mut gate_up = Buffer::any(tokens * 2 * d.ffn);
        let mut out = Buffer::any(tokens * h);
        let mut next_qkv = Buffer::any(if next.is_some() { qkv.len() } else { 0 });
        let mut next_raw = Buffer::any(if next.is_some() { raw.len() } else { 0 });
        {
            let (mid, gate_up, out) = (Shared::new(&mut mid), Shared::new(&mut gate_up), Shared::new(&mut out));
            let (to, r, hidden) = (Shared::new(&mut next_qkv), Shared::new(&mut next_raw), Shared::new(&mut hidden));
            for_ranges(true, tokens, ROWS, |rows| {
                let (n, a) = (rows.len(), rows.start);
                let part = |width: usize| rows.start * width..rows.end * width;
                let mut wide = vec![0.0f32; n * h.max(d.ffn)];
                let mut narrow = vec![0.0f32; n * h];
                // SAFETY: tasks own disjoint rows of every shared buffer, whose widths are those of the panels.
                unsafe {
                    let (mid, gate_up, out) = (mid.slice(part(h)), gate_up.slice(part(2 * d.ffn)), out.slice(part(h)));
                    tail.o.mul(n, attn[part(d.q_width())].as_ptr(), d.q_width(), narrow.as_mut_ptr(), h, false);
                    let (q, f) = (d.q_width(), d.ffn);
                    let seen = (attn[part(q)].as_ptr(), q, q);
                    own.add(Projection::O, rows.clone(), seen, (narrow.as_mut_ptr(), h, h));
                    sum(&x[part(h)], &narrow, mid);
                    norm_rows(mid, layer.post_norm, d.norm_eps, &mut narrow);
                    tail.gate.mul(n, narrow.as_ptr(), h, gate_up.as_mut_ptr(), 2 * d.ffn, false);
                    tail.up.mul(n, narrow.as_ptr(), h, gate_up.as_mut_ptr().add(d.ffn), 2 * d.ffn, false);
                    let seen = (narrow.as_ptr(), h, h);
                    own.add(Projection::Gate, rows.clone(), seen, (gate_up.as_mut_ptr(), 2 * f, f));
                    own.add(Projection::Up, rows.clone(), seen, (gate_up.as_mut_ptr().add(f), 2 * f, f));
                    swiglu_rows(gate_up, d.ffn, &mut wide[..n * d.ffn]);
                    tail.down.mul(n, wide.as_ptr(), d.ffn, narrow.as_mut_ptr(), h, false);
                    own.add(Projection::Down, rows.clone(), (wide.as_ptr(), f, f), (narrow.as_mut_ptr(), h, h));
                    sum(mid, &narrow, out);
                    match &next {
                        Some(((l, add), head)) => {
                            project(w, (l, add), head, &table, &positions[rows.clone()], out, a, to, r);
                        }
                        None => norm_rows(out, w.final_norm, d.norm_eps, hidden.slice(part(h))),
                    }
                }
            });
        }
        layers.push(LayerActivations { x, qkv, raw, attn, mid, gate_up });
        (x, qkv, raw) = (out, next_qkv, next_raw);
    }
    Activations { ids: ids.to_vec(), doc_lens: doc_lens.to_vec(), positions, table, layers, last: x, hidden }
}

/// Norm, projections, bias, head norm and rotation of rows `x`, written from row `first` on.
fn project(
    w: &WeightsView<'_>,
    (layer, additions): (&LayerView<'_>, &LayerAdditions<'_>),
    head: &Head,
    table: &RopeTable,
    positions: &[u32],
    x: &[f32],
    first: usize,
    qkv: Shared<'_, f32>,
    raw: Shared<'_, f32>,
) {
    let d = w.dims;
    let (n, h, q, kv) = (positions.len(), d.hidden, d.q_width(), d.kv_width());
    let width = q + 2 * kv;
    let mut normed = vec![0.0f32; n * h];
    norm_rows(x, layer.input_norm, d.norm_eps, &mut normed);
    // SAFETY: callers own these rows; widths are those of the panels.
    unsafe {
        let rows = qkv.slice(first * width..(first + n) * width);
        head.q.mul(n, normed.as_ptr(), h, rows.as_mut_ptr(), width, false);
        head.k.mul(n, normed.as_ptr(), h, rows.as_mut_ptr().add(q), width, false);
        head.v.mul(n, normed.as_ptr(), h, rows.as_mut_ptr().add(q + kv), width, false);
        let (tokens, seen) = (first..first + n, (normed.as_ptr(), h, h));
        for (which, column, out) in [(Projection::Q, 0, q), (Projection::K, q, kv), (Projection::V, q + kv, kv)] {
            additions.add(which, tokens.clone(), seen, (rows.as_mut_ptr().add(column), width, out));
        }
        let keep = d.qk_norm.then(|| raw.slice(first * (q + kv)..(first + n) * (q + kv)));
        heads_rows(d, layer, table, positions, rows, keep);
    }
}

/// Panics unless every id is in the vocabulary.
pub(crate) fn check_ids(d: &Dims, ids: &[u32]) {
    if let Some(id) = ids.iter().find(|id| **id as usize >= d.vocab) {
        panic!("token id {id} is outside the vocabulary of {}", d.vocab);
    }
}

/// Copies the embedding rows of `ids`.
pub(crate) fn embed_rows(w: &WeightsView<'_>, ids: &[u32], x: &mut [f32]) {
    let h = w.dims.hidden;
    for (x, id) in x.chunks_exact_mut(h).zip(ids) {
        x.copy_from_slice(&w.embed[*id as usize * h..][..h]);
    }
}

/// Start of each document.
pub(crate) fn starts(doc_lens: &[usize]) -> Vec<usize> {
    doc_lens.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n))).collect()
}

/// Causal attention of every document and head.
fn attention(d: &Dims, qkv: &[f32], doc_lens: &[usize], out: &mut [f32]) {
    let (q, kv, hd) = (d.q_width(), d.kv_width(), d.head_dim);
    let width = q + 2 * kv;
    let group = d.heads / d.kv_heads;
    // Long documents are cut so that tasks stay even; each task packs the prefix that its queries see.
    let span = QUERY_BLOCK * 4;
    let mut tasks = Vec::new();
    for (start, len) in starts(doc_lens).into_iter().zip(doc_lens) {
        for g in 0..d.kv_heads {
            tasks.extend((0..*len).step_by(span).map(|a| (start, g, a, (a + span).min(*len))));
        }
    }
    let out = Shared::new(out);
    let run = |scratch: &mut Scratch, (start, g, from, to): &(usize, usize, usize, usize)| {
        let row = |column: usize, r: usize| qkv[(start + r) * width + column..].as_ptr();
        // SAFETY: rows start..start + to exist; tasks own disjoint (rows, heads) of the output.
        unsafe {
            let keys = Rows { data: row(q + g * hd, 0), stride: width };
            let values = Rows { data: row(q + kv + g * hd, 0), stride: width };
            let packed = Document::pack(keys, values, *to, hd);
            for head in g * group..(g + 1) * group {
                for first in (*from..*to).step_by(QUERY_BLOCK) {
                    let queries = Rows { data: row(head * hd, first), stride: width };
                    let rows = QUERY_BLOCK.min(to - first);
                    let to = out.at((start + first) * q + head * hd);
                    attend(queries, rows, first, 1, &packed, hd, to, q, scratch);
                }
            }
        }
    };
    tasks.par_iter().for_each_init(Scratch::default, |scratch, task| run(scratch, task));
}

/// One layer's part after attention for rows in place, through the unpacked weights and what `adapters` add to them:
/// `x += o·attn`, `x += mlp(x)`.
pub(crate) fn finish_layer(
    parallel: bool,
    d: &Dims,
    layer: &LayerView<'_>,
    adapters: &RowAdapters<'_>,
    attn: &[f32],
    x: &mut [f32],
    s: &mut Rest,
) {
    let (n, h) = (x.len() / d.hidden, d.hidden);
    let Rest { narrow, gate_up, wide } = s;
    // SAFETY: the buffers have the widths of the weights.
    unsafe {
        crate::gemm::nt(
            parallel,
            n,
            h,
            d.q_width(),
            attn.as_ptr(),
            d.q_width(),
            layer.o.as_ptr(),
            narrow.as_mut_ptr(),
            h,
        );
        let q = d.q_width();
        adapter::add(adapters, Projection::O, (attn.as_ptr(), q, q), (narrow.as_mut_ptr(), h, h));
        add(narrow, x);
        norm_rows(x, layer.post_norm, d.norm_eps, narrow);
        let gu = gate_up.as_mut_ptr();
        crate::gemm::nt(parallel, n, d.ffn, h, narrow.as_ptr(), h, layer.gate.as_ptr(), gu, 2 * d.ffn);
        crate::gemm::nt(parallel, n, d.ffn, h, narrow.as_ptr(), h, layer.up.as_ptr(), gu.add(d.ffn), 2 * d.ffn);
        let (normed, f) = (narrow.as_ptr(), d.ffn);
        adapter::add(adapters, Projection::Gate, (normed, h, h), (gu, 2 * f, f));
        adapter::add(adapters, Projection::Up, (normed, h, h), (gu.add(f), 2 * f, f));
        let step = (1 << 14) / d.ffn + 1;
        let wide_rows = Shared::new(wide);
        let gate_up = &*gate_up;
        for_ranges(parallel && n * d.ffn >= 1 << 15, n, step, |r| {
            let to = wide_rows.slice(r.start * d.ffn..r.end * d.ffn);
            swiglu_rows(&gate_up[r.start * 2 * d.ffn..r.end * 2 * d.ffn], d.ffn, to);
        });
        crate::gemm::nt(parallel, n, h, d.ffn, wide.as_ptr(), d.ffn, layer.down.as_ptr(), narrow.as_mut_ptr(), h);
        adapter::add(adapters, Projection::Down, (wide.as_ptr(), f, f), (narrow.as_mut_ptr(), h, h));
        add(narrow, x);
    }
}

/// Buffers of [`finish_layer`], for a fixed number of rows.
pub(crate) struct Rest {
    pub narrow: Vec<f32>,
    gate_up: Vec<f32>,
    wide: Vec<f32>,
}

impl Rest {
    pub fn new(d: &Dims, rows: usize) -> Self {
        Self { narrow: vec![0.0; rows * d.hidden], gate_up: vec![0.0; rows * 2 * d.ffn], wide: vec![0.0; rows * d.ffn] }
    }
}
