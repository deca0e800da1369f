//! The decoder's backward pass, layer by layer, from the gradient of the hidden states to those of all weights.
//!
//! Owns the order in which gradients are summed: fixed, whatever the threads do. Must not know losses or optimisers.

use rayon::prelude::*;

use crate::attention::{Rows, Scratch, attend_backward};
use crate::forward::{Activations, LayerActivations, ROWS, starts};
use crate::gemm::{Panels, TnJob, tn_acc_many};
use crate::pool::Buffer;
use crate::rows::{HeadNormGrads, add, heads_rows_backward, norm_rows, norm_rows_backward, swiglu_rows_backward};
use crate::shared::{Shared, for_ranges};
use crate::weights::{Dims, Grads, LayerGrads, LayerView, WeightsView};

/// Adds to `grads` the gradient of Σ dhidden · hidden, for the hidden states of [`forward`](crate::forward()).
///
/// # Panics
/// If `dhidden` does not have the shape of the hidden states.
pub fn backward(w: &WeightsView<'_>, acts: Activations, dhidden: &[f32], grads: &mut Grads) {
    let d = w.dims;
    let (tokens, h) = (acts.tokens(), d.hidden);
    assert_eq!(dhidden.len(), tokens * h, "dhidden must have the shape of the hidden states");
    if tokens == 0 {
        return;
    }
    let Activations { ids, doc_lens, positions, table, layers, last, .. } = acts;
    let mut dx = Buffer::zeros(tokens * h);
    let mut partial = vec![0.0f32; tokens.div_ceil(ROWS) * h];
    {
        let (dx, partial) = (Shared::new(&mut dx), Shared::new(&mut partial));
        for_ranges(true, tokens, ROWS, |rows| {
            let part = rows.start * h..rows.end * h;
            let own = rows.start / ROWS * h;
            // SAFETY: tasks own disjoint rows.
            let (dx, dw) = unsafe { (dx.slice(part.clone()), partial.slice(own..own + h)) };
            norm_rows_backward(&last[part.clone()], w.final_norm, d.norm_eps, &dhidden[part], dx, dw);
        });
    }
    reduce(&partial, &mut grads.final_norm);
    let mut b = Buffers::new(d, tokens);
    let doc_starts = starts(&doc_lens);
    for ((layer, saved), grads) in w.layers.iter().zip(layers).zip(&mut grads.layers).rev() {
        mlp(d, layer, &saved, grads, &mut dx, &mut b);
        attention(d, &saved, &doc_starts, &doc_lens, &mut b);
        let rotation = |rows: &mut [f32], raw: &[f32], first: usize, norms: &mut HeadNormGrads| {
            let n = rows.len() / (d.q_width() + 2 * d.kv_width());
            heads_rows_backward(d, layer, &table, &positions[first..first + n], raw, rows, norms);
        };
        projections(d, layer, &saved, grads, &mut dx, &mut b, rotation);
    }
    embedding(d, &ids, &dx, &mut grads.embed);
}

/// Buffers that all layers share.
struct Buffers {
    /// Hidden activation of the feed-forward block [ffn].
    h: Buffer,
    dgate_up: Buffer,
    /// Normalised input of the block at hand [hidden].
    normed: Buffer,
    dmid: Buffer,
    dattn: Buffer,
    /// Per query head: dq, dk, dv, each [q].
    dheads: Buffer,
    dqkv: Buffer,
    partial: Vec<f32>,
}

impl Buffers {
    fn new(d: &Dims, tokens: usize) -> Self {
        let rows = |width: usize| Buffer::any(tokens * width);
        Self {
            h: rows(d.ffn),
            dgate_up: rows(2 * d.ffn),
            normed: rows(d.hidden),
            dmid: rows(d.hidden),
            dattn: rows(d.q_width()),
            dheads: rows(3 * d.q_width()),
            dqkv: rows(d.q_width() + 2 * d.kv_width()),
            partial: vec![0.0; tokens.div_ceil(ROWS) * (d.hidden + 2 * d.head_dim)],
        }
    }
}

/// From the gradient of the layer's output to that of its middle and of the attention output.
fn mlp(
    d: &Dims,
    layer: &LayerView<'_>,
    saved: &LayerActivations,
    grads: &mut LayerGrads,
    dx: &mut [f32],
    b: &mut Buffers,
) {
    let (h, f, q) = (d.hidden, d.ffn, d.q_width());
    let tokens = dx.len() / h;
    let down = Panels::of_columns(f, h, layer.down);
    let gate = Panels::of_columns(h, f, layer.gate);
    let up = Panels::of_columns(h, f, layer.up);
    let o = Panels::of_columns(q, h, layer.o);
    b.partial.clear();
    b.partial.resize(tokens.div_ceil(ROWS) * h, 0.0);
    {
        let (act, dgu) = (Shared::new(&mut b.h), Shared::new(&mut b.dgate_up));
        let (normed, dmid) = (Shared::new(&mut b.normed), Shared::new(&mut b.dmid));
        let (dattn, partial) = (Shared::new(&mut b.dattn), Shared::new(&mut b.partial));
        let dx = &*dx;
        for_ranges(true, tokens, ROWS, |rows| {
            let n = rows.len();
            let part = |width: usize| rows.start * width..rows.end * width;
            let own = rows.start / ROWS * h;
            let mut dnormed = vec![0.0f32; n * h];
            // SAFETY: tasks own disjoint rows of every buffer; widths are those of the panels.
            unsafe {
                let (act, dgu) = (act.slice(part(f)), dgu.slice(part(2 * f)));
                let (normed, dmid) = (normed.slice(part(h)), dmid.slice(part(h)));
                down.mul(n, dx[part(h)].as_ptr(), h, act.as_mut_ptr(), f, false);
                swiglu_rows_backward(&saved.gate_up[part(2 * f)], f, act, dgu);
                gate.mul(n, dgu.as_ptr(), 2 * f, dnormed.as_mut_ptr(), h, false);
                up.mul(n, dgu.as_ptr().add(f), 2 * f, dnormed.as_mut_ptr(), h, true);
                let mid = &saved.mid[part(h)];
                norm_rows(mid, layer.post_norm, d.norm_eps, normed);
                dmid.copy_from_slice(&dx[part(h)]);
                norm_rows_backward(mid, layer.post_norm, d.norm_eps, &dnormed, dmid, partial.slice(own..own + h));
                o.mul(n, dmid.as_ptr(), h, dattn.at(rows.start * q), q, false);
            }
        });
    }
    reduce(&b.partial, &mut grads.post_norm);
    tn_acc_many(&[
        TnJob {
            m: f,
            n: h,
            k: tokens,
            x: &b.dgate_up,
            ldx: 2 * f,
            w: &b.normed,
            ldw: h,
            y: Shared::new(&mut grads.gate),
        },
        TnJob {
            m: f,
            n: h,
            k: tokens,
            x: &b.dgate_up[f..],
            ldx: 2 * f,
            w: &b.normed,
            ldw: h,
            y: Shared::new(&mut grads.up),
        },
        TnJob { m: h, n: f, k: tokens, x: dx, ldx: h, w: &b.h, ldw: f, y: Shared::new(&mut grads.down) },
        TnJob { m: h, n: q, k: tokens, x: &b.dmid, ldx: h, w: &saved.attn, ldw: q, y: Shared::new(&mut grads.o) },
    ]);
}

/// From the gradient of the attention output to those of rotated queries, keys and values of every query head.
fn attention(d: &Dims, saved: &LayerActivations, doc_starts: &[usize], doc_lens: &[usize], b: &mut Buffers) {
    let (q, kv, hd) = (d.q_width(), d.kv_width(), d.head_dim);
    let width = q + 2 * kv;
    let group = d.heads / d.kv_heads;
    let out = Shared::new(&mut b.dheads);
    let dattn = &b.dattn;
    // Longest first, so that the last task to end is a short one.
    let mut order: Vec<usize> = (0..doc_lens.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(doc_lens[*i]));
    let tasks: Vec<(usize, usize)> = order.into_iter().flat_map(|i| (0..d.heads).map(move |head| (i, head))).collect();
    tasks.par_iter().for_each_init(Scratch::default, |scratch, (i, head)| {
        let (start, len) = (doc_starts[*i], doc_lens[*i]);
        let rows = |column: usize| Rows { data: saved.qkv[start * width + column..].as_ptr(), stride: width };
        let g = head / group;
        let dout = Rows { data: dattn[start * q + head * hd..].as_ptr(), stride: q };
        let to = |part: usize| out.at(start * 3 * q + part * q + head * hd);
        let operands = (rows(head * hd), rows(q + g * hd), rows(q + kv + g * hd), dout);
        // SAFETY: the document's rows exist; tasks own disjoint (rows, heads) of the output.
        unsafe { attend_backward(operands, len, hd, (to(0), to(1), to(2)), 3 * q, scratch) }
    });
}

/// From the gradients of rotated heads to that of the layer's input.
fn projections(
    d: &Dims,
    layer: &LayerView<'_>,
    saved: &LayerActivations,
    grads: &mut LayerGrads,
    dx: &mut [f32],
    b: &mut Buffers,
    rotation: impl Fn(&mut [f32], &[f32], usize, &mut HeadNormGrads) + Sync,
) {
    let (h, q, kv, hd) = (d.hidden, d.q_width(), d.kv_width(), d.head_dim);
    let width = q + 2 * kv;
    let group = d.heads / d.kv_heads;
    let tokens = dx.len() / h;
    let panels = [(q, layer.q, 0), (kv, layer.k, q), (kv, layer.v, q + kv)]
        .map(|(n, w, column)| (Panels::of_columns(h, n, w), column));
    let partial_width = h + 2 * hd;
    b.partial.clear();
    b.partial.resize(tokens.div_ceil(ROWS) * partial_width, 0.0);
    {
        let (dqkv, normed) = (Shared::new(&mut b.dqkv), Shared::new(&mut b.normed));
        let (dx, partial) = (Shared::new(dx), Shared::new(&mut b.partial));
        let (dheads, dmid) = (&b.dheads, &b.dmid);
        for_ranges(true, tokens, ROWS, |rows| {
            let n = rows.len();
            let part = |width: usize| rows.start * width..rows.end * width;
            let own = rows.start / ROWS * partial_width;
            let mut dnormed = vec![0.0f32; n * h];
            let mut norms = HeadNormGrads { q: vec![0.0; hd], k: vec![0.0; hd] };
            // SAFETY: tasks own disjoint rows of every buffer; widths are those of the panels.
            unsafe {
                let (dqkv, normed) = (dqkv.slice(part(width)), normed.slice(part(h)));
                for (row, heads) in dqkv.chunks_exact_mut(width).zip(dheads[part(3 * q)].chunks_exact(3 * q)) {
                    gather_heads(heads, row, q, kv, hd, group);
                }
                let raw = if d.qk_norm { &saved.raw[part(q + kv)] } else { &[][..] };
                rotation(dqkv, raw, rows.start, &mut norms);
                for (i, (p, column)) in panels.iter().enumerate() {
                    p.mul(n, dqkv.as_ptr().add(*column), width, dnormed.as_mut_ptr(), h, i > 0);
                }
                let x = &saved.x[part(h)];
                norm_rows(x, layer.input_norm, d.norm_eps, normed);
                let dx = dx.slice(part(h));
                dx.copy_from_slice(&dmid[part(h)]);
                let sums = partial.slice(own..own + partial_width);
                norm_rows_backward(x, layer.input_norm, d.norm_eps, &dnormed, dx, &mut sums[..h]);
                sums[h..h + hd].copy_from_slice(&norms.q);
                sums[h + hd..].copy_from_slice(&norms.k);
            }
        });
    }
    for sums in b.partial.chunks_exact(partial_width) {
        add(&sums[..h], &mut grads.input_norm);
        if let (Some(qn), Some(kn)) = (&mut grads.q_norm, &mut grads.k_norm) {
            add(&sums[h..h + hd], qn);
            add(&sums[h + hd..], kn);
        }
    }
    if let (Some(qb), Some(kb), Some(vb)) = (&mut grads.q_bias, &mut grads.k_bias, &mut grads.v_bias) {
        for row in b.dqkv.chunks_exact(width) {
            add(&row[..q], qb);
            add(&row[q..q + kv], kb);
            add(&row[q + kv..], vb);
        }
    }
    let job = |n, column: usize, y| TnJob {
        m: n,
        n: h,
        k: tokens,
        x: &b.dqkv[column..],
        ldx: width,
        w: &b.normed,
        ldw: h,
        y,
    };
    tn_acc_many(&[
        job(q, 0, Shared::new(&mut grads.q)),
        job(kv, q, Shared::new(&mut grads.k)),
        job(kv, q + kv, Shared::new(&mut grads.v)),
    ]);
}

/// One token's `[dq | dk | dv]` from its per-query-head gradients: keys and values sum over their group.
fn gather_heads(heads: &[f32], row: &mut [f32], q: usize, kv: usize, hd: usize, group: usize) {
    row[..q].copy_from_slice(&heads[..q]);
    for (part, to) in row[q..].chunks_exact_mut(kv).enumerate() {
        for (g, to) in to.chunks_exact_mut(hd).enumerate() {
            let from = &heads[(part + 1) * q + g * group * hd..][..group * hd];
            to.copy_from_slice(&from[..hd]);
            from[hd..].chunks_exact(hd).for_each(|other| to.iter_mut().zip(other).for_each(|(t, o)| *t += o));
        }
    }
}

/// Adds partial sums, first to last.
fn reduce(partial: &[f32], to: &mut [f32]) {
    for p in partial.chunks_exact(to.len()) {
        add(p, to);
    }
}

/// Adds each token's gradient to its embedding row, in the order of the tokens.
fn embedding(d: &Dims, ids: &[u32], dx: &[f32], embed: &mut [f32]) {
    let h = d.hidden;
    let embed = Shared::new(embed);
    for_ranges(ids.len() * h >= 1 << 16, h, 64, |columns| {
        for (id, dx) in ids.iter().zip(dx.chunks_exact(h)) {
            let at = *id as usize * h;
            // SAFETY: tasks own disjoint columns; ids were checked by the forward pass.
            let to = unsafe { embed.slice(at + columns.start..at + columns.end) };
            to.iter_mut().zip(&dx[columns.clone()]).for_each(|(t, x)| *t += x);
        }
    });
}
