//! A pass over the decoder: its scratch memory, and its operations in order.
//!
//! Owns what is computed from what. Must not know who asked for it or where answers go.

use crate::cuda::{
    AddedTo, Attention, CacheRows, Context, CudaError, CudaSlice, CudaView, Element, In, LowRankRows, Matrix, Onto,
    Out, QueryTiles, RopeTable, Tiles,
};

use super::arena::{Arena, Region, bytes};
use super::inputs::{Counts, Views};
use super::pass::Pass;
use super::sampling::Sampling;
use super::weights::LayerWeights;

/// Rows that attend to caches at a time; bounds the scratch that long contexts need.
const CACHED_ROWS: usize = 512;
/// Rows by whose logits labels are scored at a time.
const SCORED_ROWS: usize = 256;

/// Rows that are attended to together, cut into tiles: of new sequences, and of such as have a past.
pub(super) struct Cut {
    pub fresh: Option<Tiles>,
    pub spans: Option<QueryTiles>,
}

impl Cut {
    pub fn new(c: &Context, pass: &Pass, heads: usize) -> Result<Self, CudaError> {
        let fresh = if pass.fresh.is_empty() { None } else { Some(c.tiles(&pass.fresh)?) };
        let spans = if pass.spans.is_empty() { None } else { Some(c.query_tiles(&pass.spans, heads)?) };
        Ok(Self { fresh, spans })
    }
}

/// Scratch memory of a pass.
pub(super) struct Regions<'a, T> {
    pub x: Region<'a, T>,
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
    low: Region<'a, f32>,
    scratch: Region<'a, f32>,
    last: Region<'a, T>,
    hidden: Region<'a, T>,
    pub logits: Region<'a, f32>,
    ids: Region<'a, i32>,
    pub scores: Region<'a, i32>,
}

impl<T: Element> Sampling<T> {
    pub(super) fn arena_bytes(&self, pass: &Pass) -> usize {
        bytes(&self.region_lens(pass).map(|(len, size)| len * size))
    }

    /// Elements of each of [`Regions`], and an element's bytes.
    fn region_lens(&self, pass: &Pass) -> [(usize, usize); 18] {
        let (layout, d) = (&self.weights.layout, &self.weights.layout.dims);
        let Counts { rows, wanted, scored, rank, .. } = pass.inputs.counts();
        let heads = wanted.max(scored.min(SCORED_ROWS));
        let row = |width: usize| (rows * width, size_of::<T>());
        let float = |len: usize| (len, 4);
        let slab = pass.cached.min(CACHED_ROWS);
        [
            row(d.hidden),
            row(d.hidden),
            row(d.hidden),
            float(rows.max(heads)),
            row(layout.qkv_width()),
            row(d.q_width()),
            row(d.kv_width()),
            row(d.q_width()),
            row(2 * d.ffn),
            row(d.ffn),
            float(d.heads * pass.fresh_tokens()),
            float(self.c.low_rank_scratch(rows, rank)),
            float(self.c.cache_attention_scratch::<T>(self.cache_layout(), slab, pass.longest)),
            (heads * d.hidden, size_of::<T>()),
            (heads * d.hidden, size_of::<T>()),
            float(heads * d.vocab),
            float(rows),
            float(scored * Context::score_words(pass.most)),
        ]
    }

    /// At the same addresses for every pass of the same shape, as long as the arena is the same.
    pub(super) fn regions<'a>(&self, pass: &Pass, arena: &'a mut Arena) -> Result<Regions<'a, T>, CudaError> {
        let mut carver = arena.carve();
        let lens = self.region_lens(pass).map(|(len, _)| len);
        let [x, mid, y, rstd, qkv, q, k, out, gate_up, act, lse, low, scratch, last, hidden, logits, ids, scores] =
            lens;
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
            low: carver.take(low)?,
            scratch: carver.take(scratch)?,
            last: carver.take(last)?,
            hidden: carver.take(hidden)?,
            logits: carver.take(logits)?,
            ids: carver.take(ids)?,
            scores: carver.take(scores)?,
        })
    }

    /// Enqueues the decoder over the rows of a pass, up to the logits of the wanted ones.
    pub(super) fn enqueue(
        &self,
        pass: &Pass,
        inputs: &Views<'_>,
        cut: &Cut,
        table: &RopeTable,
        drawn: &CudaSlice<i32>,
        r: &mut Regions<'_, T>,
    ) -> Result<(), CudaError> {
        let (c, layout) = (&*self.c, &self.weights.layout);
        let d = &layout.dims;
        let Counts { rows: n, wanted, rank, .. } = pass.inputs.counts();
        let (h, f) = (d.hidden, d.ffn);
        let (q_width, kv_width, width) = (d.q_width(), d.kv_width(), layout.qkv_width());
        let matrices = self.weights.matrices().as_view();
        let vectors = self.weights.vectors().as_view();
        let (shape, heads, scale) = (layout.heads(), layout.head_layout(), layout.scale());
        let cached = self.cache_layout();
        let cache = CacheRows {
            tables: &inputs.tables,
            capacities: &inputs.capacities,
            seq: &inputs.seq,
            position: &inputs.positions,
        };
        let added = |layer| LowRankRows { adapters: &inputs.adapters, seq: &inputs.seq, rank, layer };
        let (qkv, up) = (AddedTo::Qkv([q_width, kv_width, kv_width]), AddedTo::GateUp(f));
        c.take(&inputs.ids, drawn, &mut r.ids)?;
        c.embed(h, &matrices.slice(layout.embed.clone()), &r.ids, &mut r.x)?;
        for (i, spans) in layout.layers.iter().enumerate() {
            let w = LayerWeights::new(layout, spans, &matrices, &vectors);
            c.rms_norm([n, h], d.norm_eps, &r.x, None, &w.input_norm, &mut r.y, &mut r.rstd)?;
            c.gemm([n, width, h], Matrix::new(&r.y, h), Matrix::t(&w.qkv, h), &mut r.qkv, width, Onto::Nothing)?;
            if let Some(bias) = &w.bias {
                c.add_bias([n, width], &mut r.qkv, bias)?;
            }
            if rank > 0 {
                // SAFETY: items hold their adapters, which are of this decoder's shape.
                unsafe { c.add_low_rank(n, added(i), (&r.y, h, h), (&mut r.qkv, width), qkv, &mut r.low)? };
            }
            let norms = w.head_norms.as_ref().map(|n| [&n[0] as In<'_, f32>, &n[1]]);
            c.rope(shape, &r.qkv, norms, table, &inputs.positions, (&mut r.q, &mut r.k))?;
            let v = r.qkv.behind(q_width + kv_width);
            // SAFETY: the caches' pages are held by the items, and `grow` made them enough for every row and its sequence's alone
            // where rows are written; rows of no sequence reach none.
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
            if let Some(tiles) = &cut.spans {
                // SAFETY: as above.
                unsafe { c.cache_tiles(i, cached, tiles, (&r.q, q_width), cache, scale, &mut r.out)? };
            }
            if let Some(tiles) = &cut.fresh {
                let first = pass.first_fresh();
                let (q, k) = (r.q.behind(first * q_width), r.k.behind(first * kv_width));
                let v = r.qkv.behind(first * width + q_width + kv_width);
                let a = Attention { q: &q, k: &k, v: &v, layout: heads, scale };
                c.attention(tiles, a, &mut r.out.behind_mut(first * q_width), q_width, &mut r.lse)?;
            }
            let (out, o) = (Matrix::new(&r.out, q_width), Matrix::t(&w.o, q_width));
            c.gemm([n, h, q_width], out, o, &mut r.mid, h, Onto::Other(&r.x))?;
            if rank > 0 {
                let (x, y) = ((&r.out as In<'_, T>, q_width, q_width), (&mut r.mid as Out<'_, T>, h));
                // SAFETY: as above.
                unsafe { c.add_low_rank(n, added(i), x, y, AddedTo::O(h), &mut r.low)? };
            }
            c.rms_norm([n, h], d.norm_eps, &r.mid, None, &w.post_norm, &mut r.y, &mut r.rstd)?;
            if c.is_exact() || rank > 0 || !c.few_swiglu([n, f, h], &r.y, &w.gate_up, &mut r.act)? {
                let gate_up = Matrix::t(&w.gate_up, h);
                c.gemm([n, 2 * f, h], Matrix::new(&r.y, h), gate_up, &mut r.gate_up, 2 * f, Onto::Nothing)?;
                if rank > 0 {
                    // SAFETY: as above.
                    unsafe { c.add_low_rank(n, added(i), (&r.y, h, h), (&mut r.gate_up, 2 * f), up, &mut r.low)? };
                }
                c.swiglu([n, f], &r.gate_up, &mut r.act)?;
            }
            let down = Matrix::t(&w.down, f);
            c.gemm([n, h, f], Matrix::new(&r.act, f), down, &mut r.x, h, Onto::Other(&r.mid))?;
            if rank > 0 {
                let (x, y) = ((&r.act as In<'_, T>, f, f), (&mut r.x as Out<'_, T>, h));
                // SAFETY: as above.
                unsafe { c.add_low_rank(n, added(i), x, y, AddedTo::Down(h), &mut r.low)? };
            }
        }
        match wanted {
            0 => Ok(()),
            _ => self.logits(&inputs.wanted, r),
        }
    }

    /// The logits of some rows of `x`.
    fn logits(&self, rows: &CudaView<'_, i32>, r: &mut Regions<'_, T>) -> Result<(), CudaError> {
        let (c, layout) = (&*self.c, &self.weights.layout);
        let (d, n) = (&layout.dims, rows.len());
        let (h, vectors) = (d.hidden, self.weights.vectors().as_view());
        c.embed(h, &r.x, rows, &mut r.last)?;
        let norm = layout.vector(&vectors, &layout.final_norm);
        c.rms_norm([n, h], d.norm_eps, &r.last, None, &norm, &mut r.hidden, &mut r.rstd)?;
        let (hidden, head) = (Matrix::new(&r.hidden, h), self.weights.matrices().slice(layout.head.clone()));
        c.gemm([n, d.vocab, h], hidden, Matrix::t(&head, h), &mut r.logits, d.vocab, Onto::Nothing)
    }

    /// Scores labels by the logits of their rows, some at a time.
    pub(super) fn score(&self, pass: &Pass, inputs: &Views<'_>, r: &mut Regions<'_, T>) -> Result<(), CudaError> {
        let (c, vocab) = (&*self.c, self.weights.layout.dims.vocab);
        let (all, words) = (pass.inputs.counts().scored, Context::score_words(pass.most));
        for start in (0..all).step_by(SCORED_ROWS) {
            let some = start..all.min(start + SCORED_ROWS);
            self.logits(&inputs.scored.slice(some.clone()), r)?;
            let (labels, inv_temp) = (inputs.labels.slice(some.clone()), inputs.scored_inv_temp.slice(some.clone()));
            let mut scores = r.scores.behind_mut(start * words);
            c.score([some.len(), vocab, pass.most], &r.logits, &labels, &inv_temp, &mut scores)?;
        }
        Ok(())
    }
}
