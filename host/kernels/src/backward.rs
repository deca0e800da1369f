//! The decoder's backward pass, layer by layer, from the gradient of the hidden states to those of all weights that have one.
//!
//! Owns the order in which gradients are summed: fixed, whatever the threads do. Must not know losses or optimisers.

use rayon::prelude::*;

use crate::adapter::{AdapterLayer, Additions, LayerAdditions};
use crate::attention::{Rows, Scratch, attend_backward};
use crate::forward::{Activations, LayerActivations, ROWS, starts};
use crate::gemm::{Panels, TnJob, tn_acc_many};
use crate::pool::Buffer;
use crate::projection::Projection;
use crate::rows::{HeadNormGrads, add, heads_rows_backward, norm_rows, norm_rows_backward, swiglu_rows_backward};
use crate::shared::{Shared, for_ranges};
use crate::weights::{Dims, Grads, LayerGrads, LayerView, WeightsView};

/// Adds to `grads` the gradient of Σ dhidden · hidden, for the hidden states of [`forward`](crate::forward()).
///
/// # Panics
/// If `dhidden` does not have the shape of the hidden states.
pub fn backward(w: &WeightsView<'_>, acts: Activations, dhidden: &[f32], grads: &mut Grads) {
    backward_with(w, &Additions::default(), acts, dhidden, grads);
}

/// [`backward`] for [`forward_with`](crate::forward_with()) of the same `additions`, whose gradients `grads` has room for.
///
/// # Panics
/// As [`backward`]; additions as [`forward_with`](crate::forward_with()) has it.
pub fn backward_with(
    w: &WeightsView<'_>,
    additions: &Additions<'_>,
    acts: Activations,
    dhidden: &[f32],
    grads: &mut Grads,
) {
    let d = w.dims;
    let (tokens, h) = (acts.tokens(), d.hidden);
    assert_eq!(dhidden.len(), tokens * h, "dhidden must have the shape of the hidden states");
    additions.assert_fits(d, tokens);
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
    grads.adapter.resize_with(d.layers, AdapterLayer::default);
    let all = w.layers.iter().zip(layers).zip(grads.layers.iter_mut().zip(&mut grads.adapter)).enumerate();
    for (i, ((layer, saved), (grads, of_additions))) in all.rev() {
        let (additions, mut grads) = (additions.layer(i), (grads, of_additions));
        mlp(d, (layer, &additions), &saved, &mut grads, &mut dx, &mut b);
        attention(d, &saved, &doc_starts, &doc_lens, &mut b);
        let rotation = |rows: &mut [f32], raw: &[f32], first: usize, norms: &mut HeadNormGrads| {
            let n = rows.len() / (d.q_width() + 2 * d.kv_width());
            heads_rows_backward(d, layer, &table, &positions[first..first + n], raw, rows, norms);
        };
        projections(d, (layer, &additions), &saved, &mut grads, &mut dx, &mut b, rotation);
    }
    if !grads.embed.is_empty() {
        embedding(d, &ids, &dx, &mut grads.embed);
    }
}

/// Gradients of a layer's weights and of its additions.
type OfLayer<'a> = (&'a mut LayerGrads, &'a mut AdapterLayer);

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
    (layer, additions): (&LayerView<'_>, &LayerAdditions<'_>),
    saved: &LayerActivations,
    (grads, of_additions): &mut OfLayer<'_>,
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
                let dout = dx[part(h)].as_ptr();
                down.mul(n, dout, h, act.as_mut_ptr(), f, false);
                additions.add_backward(Projection::Down, rows.clone(), (dout, h, h), (act.as_mut_ptr(), f, f));
                swiglu_rows_backward(&saved.gate_up[part(2 * f)], f, act, dgu);
                gate.mul(n, dgu.as_ptr(), 2 * f, dnormed.as_mut_ptr(), h, false);
                up.mul(n, dgu.as_ptr().add(f), 2 * f, dnormed.as_mut_ptr(), h, true);
                let to = (dnormed.as_mut_ptr(), h, h);
                additions.add_backward(Projection::Gate, rows.clone(), (dgu.as_ptr(), 2 * f, f), to);
                additions.add_backward(Projection::Up, rows.clone(), (dgu.as_ptr().add(f), 2 * f, f), to);
                let mid = &saved.mid[part(h)];
                norm_rows(mid, layer.post_norm, d.norm_eps, normed);
                dmid.copy_from_slice(&dx[part(h)]);
                norm_rows_backward(mid, layer.post_norm, d.norm_eps, &dnormed, dmid, partial.slice(own..own + h));
                let to = dattn.at(rows.start * q);
                o.mul(n, dmid.as_ptr(), h, to, q, false);
                additions.add_backward(Projection::O, rows.clone(), (dmid.as_ptr(), h, h), (to, q, q));
            }
        });
    }
    reduce(&b.partial, &mut grads.post_norm);
    let dgu = &b.dgate_up;
    weights(&mut [
        (f, h, (dgu, 2 * f), (&b.normed, h), &mut grads.gate),
        (f, h, (&dgu[f..], 2 * f), (&b.normed, h), &mut grads.up),
        (h, f, (dx, h), (&b.h, f), &mut grads.down),
        (h, q, (&b.dmid, h), (&saved.attn, q), &mut grads.o),
    ]);
    for (which, x, dy) in [
        (Projection::Gate, (&*b.normed, h, h), (&**dgu, 2 * f, f)),
        (Projection::Up, (&*b.normed, h, h), (&dgu[f..], 2 * f, f)),
        (Projection::Down, (&*b.h, f, f), (&*dx, h, h)),
        (Projection::O, (&*saved.attn, q, q), (&*b.dmid, h, h)),
    ] {
        additions.factors(which, tokens, x, dy, of_additions);
    }
}

/// Adds to the gradients of matrices `[out, in]`, each given as out, in, the gradient of its output and its input, rows of both
/// at their strides. Those of frozen matrices are empty.
fn weights(of: &mut [(usize, usize, (&[f32], usize), (&[f32], usize), &mut Vec<f32>)]) {
    let trained = of.iter_mut().filter(|(.., y)| !y.is_empty());
    let jobs: Vec<TnJob<'_>> = trained
        .map(|(m, n, (x, ldx), (w, ldw), y)| {
            let k = x.len().div_ceil(*ldx);
            TnJob { m: *m, n: *n, k, x, ldx: *ldx, w, ldw: *ldw, y: Shared::new(y) }
        })
        .collect();
    tn_acc_many(&jobs);
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
    (layer, additions): (&LayerView<'_>, &LayerAdditions<'_>),
    saved: &LayerActivations,
    (grads, of_additions): &mut OfLayer<'_>,
    dx: &mut [f32],
    b: &mut Buffers,
    rotation: impl Fn(&mut [f32], &[f32], usize, &mut HeadNormGrads) + Sync,
) {
    let (h, q, kv, hd) = (d.hidden, d.q_width(), d.kv_width(), d.head_dim);
    let width = q + 2 * kv;
    let group = d.heads / d.kv_heads;
    let tokens = dx.len() / h;
    let parts = [(Projection::Q, layer.q, 0, q), (Projection::K, layer.k, q, kv), (Projection::V, layer.v, q + kv, kv)];
    let panels = parts.map(|(which, w, column, out)| (Panels::of_columns(h, out, w), which, column, out));
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
                for (i, (p, which, column, out)) in panels.iter().enumerate() {
                    let dy = dqkv.as_ptr().add(*column);
                    p.mul(n, dy, width, dnormed.as_mut_ptr(), h, i > 0);
                    additions.add_backward(*which, rows.clone(), (dy, width, *out), (dnormed.as_mut_ptr(), h, h));
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
        let norms = [Some(&mut grads.input_norm), grads.q_norm.as_mut(), grads.k_norm.as_mut()];
        for (to, part) in norms.into_iter().zip([0..h, h..h + hd, h + hd..h + 2 * hd]) {
            // Of frozen weights there is none.
            if let Some(to) = to.filter(|to| !to.is_empty()) {
                add(&sums[part], to);
            }
        }
    }
    let biases = [&mut grads.q_bias, &mut grads.k_bias, &mut grads.v_bias];
    for (to, part) in biases.into_iter().zip([0..q, q..q + kv, q + kv..width]) {
        if let Some(to) = to.as_mut().filter(|to| !to.is_empty()) {
            b.dqkv.chunks_exact(width).for_each(|row| add(&row[part.clone()], to));
        }
    }
    weights(&mut [
        (q, h, (&b.dqkv, width), (&b.normed, h), &mut grads.q),
        (kv, h, (&b.dqkv[q..], width), (&b.normed, h), &mut grads.k),
        (kv, h, (&b.dqkv[q + kv..], width), (&b.normed, h), &mut grads.v),
    ]);
    for (which, _, column, out) in parts {
        additions.factors(which, tokens, (&b.normed, h, h), (&b.dqkv[column..], width, out), of_additions);
    }
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

/// Adds partial sums, first to last; nothing to what is frozen.
fn reduce(partial: &[f32], to: &mut [f32]) {
    if to.is_empty() {
        return;
    }
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
