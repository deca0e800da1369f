//! The language-model head: log-probabilities and entropies of labels without a [tokens × vocab] buffer, its backward
//! pass, and both at once.
//!
//! Owns the order in which a row of logits is reduced, shared with whoever samples from logits. Must not know losses.

use crate::forward::check_ids;
use crate::gemm::{TnJob, nn, nt, tn_acc_many};
use crate::rows::{RowStats, logits_gradient, stats_block};
use crate::shared::{Shared, for_ranges};
use crate::weights::{Grads, WeightsView};

/// Logits reduced at a time. Part of the definition of a row's bits.
pub(crate) const HEAD_BLOCK: usize = 1024;
/// Tokens whose logits one task holds at a time.
const TASK_ROWS: usize = 96;
/// Most elements of logits' gradients that the backward pass holds at a time.
const GRADIENT_MAX: usize = 4 << 20;

/// Per-token results of [`head_stats`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadStats {
    /// ln p(label) at the token's temperature.
    pub logprob: Vec<f32>,
    /// −Σ p ln p at the token's temperature, in nats.
    pub entropy: Vec<f32>,
    /// ln Σ exp(logit · inv_temp).
    pub logz: Vec<f32>,
}

/// Result of [`log_softmax_at`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowLogProb {
    /// ln p(label).
    pub logprob: f32,
    /// −Σ p ln p, in nats.
    pub entropy: f32,
    /// ln Σ exp(logit · inv_temp).
    pub logz: f32,
}

/// Log-probability of `label` under softmax(logits · inv_temp), with entropy and normaliser. Bit for bit what
/// [`head_stats`] gives for the same logits, so a sampler that records this agrees exactly with the trainer.
///
/// # Panics
/// If the label is outside the row.
pub fn log_softmax_at(logits: &[f32], inv_temp: f32, label: u32) -> RowLogProb {
    let mut stats = RowStats::EMPTY;
    for block in logits.chunks(HEAD_BLOCK) {
        stats_block(&mut stats, block, inv_temp);
    }
    let logz = stats.log_z();
    RowLogProb { logprob: logits[label as usize] * inv_temp - logz, entropy: stats.entropy(), logz }
}

/// Log-probability of each token's label, entropy and normaliser, from hidden states [tokens, hidden]. At most
/// `chunk` tokens' logits are held by one thread, and of those one block of the vocabulary.
///
/// # Panics
/// If lengths disagree or a label is outside the vocabulary.
pub fn head_stats(w: &WeightsView<'_>, hidden: &[f32], labels: &[u32], inv_temp: &[f32], chunk: usize) -> HeadStats {
    let (h, v) = (w.dims.hidden, w.dims.vocab);
    let tokens = labels.len();
    check_ids(w.dims, labels);
    assert_eq!(hidden.len(), tokens * h, "hidden states and labels disagree about the number of tokens");
    assert_eq!(inv_temp.len(), tokens, "temperatures and labels disagree about the number of tokens");
    let mut out = HeadStats { logprob: vec![0.0; tokens], entropy: vec![0.0; tokens], logz: vec![0.0; tokens] };
    let (logprob, entropy, logz) =
        (Shared::new(&mut out.logprob), Shared::new(&mut out.entropy), Shared::new(&mut out.logz));
    let weights = w.head();
    for_ranges(true, tokens, TASK_ROWS.min(chunk.max(1)), |rows| {
        let n = rows.len();
        let mut logits = vec![0.0f32; n * HEAD_BLOCK.min(v)];
        let mut stats = vec![RowStats::EMPTY; n];
        let mut at_label = vec![0.0f32; n];
        for first in (0..v).step_by(HEAD_BLOCK) {
            let width = HEAD_BLOCK.min(v - first);
            let x = hidden[rows.start * h..].as_ptr();
            // SAFETY: n rows of hidden, width rows of the head, n × width logits.
            unsafe { nt(false, n, width, h, x, h, weights[first * h..].as_ptr(), logits.as_mut_ptr(), width) };
            for (i, row) in logits.chunks_exact(width).take(n).enumerate() {
                stats_block(&mut stats[i], row, inv_temp[rows.start + i]);
                if let Some(x) = (labels[rows.start + i] as usize).checked_sub(first).and_then(|j| row.get(j)) {
                    at_label[i] = *x;
                }
            }
        }
        // SAFETY: tasks own disjoint rows.
        let (lp, en, lz) =
            unsafe { (logprob.slice(rows.clone()), entropy.slice(rows.clone()), logz.slice(rows.clone())) };
        for i in 0..n {
            lz[i] = stats[i].log_z();
            lp[i] = at_label[i] * inv_temp[rows.start + i] - lz[i];
            en[i] = stats[i].entropy();
        }
    });
    out
}

/// Adds to `grads` the head's gradient of Σ dlogprob · logprob + Σ dentropy · entropy and returns that towards the
/// hidden states. Tokens whose both factors are zero cost nothing. At most `chunk` tokens' logits are held at a time.
///
/// # Panics
/// If lengths disagree or a label is outside the vocabulary.
pub fn head_backward(
    w: &WeightsView<'_>,
    hidden: &[f32],
    labels: &[u32],
    inv_temp: &[f32],
    stats: &HeadStats,
    dlogprob: &[f32],
    dentropy: Option<&[f32]>,
    chunk: usize,
    grads: &mut Grads,
) -> Vec<f32> {
    let tokens = labels.len();
    let lens = [stats.logz.len(), stats.entropy.len(), dentropy.map_or(tokens, <[f32]>::len)];
    assert_eq!(lens, [tokens; 3], "per-token inputs disagree about the number of tokens");
    let rows = HeadRows { hidden, labels, inv_temp, dlogprob, dentropy };
    gradients(w, &rows, chunk, grads, |t, _| (stats.logz[t], stats.entropy[t]))
}

/// [`head_stats`] and [`head_backward`] in one pass over the logits, for gradients towards log-probabilities that are known
/// before. Returns the log-probability of each token whose factor is not zero, 0 for the others, and the gradient towards
/// the hidden states; both bit for bit those of the two passes.
///
/// # Panics
/// If lengths disagree or a label is outside the vocabulary.
pub fn head_forward_backward(
    w: &WeightsView<'_>,
    hidden: &[f32],
    labels: &[u32],
    inv_temp: &[f32],
    dlogprob: &[f32],
    chunk: usize,
    grads: &mut Grads,
) -> (Vec<f32>, Vec<f32>) {
    let mut logprob = vec![0.0; labels.len()];
    let out = Shared::new(&mut logprob);
    let rows = HeadRows { hidden, labels, inv_temp, dlogprob, dentropy: None };
    let dhidden = gradients(w, &rows, chunk, grads, |t, logits| {
        let row = log_softmax_at(logits, inv_temp[t], labels[t]);
        // SAFETY: every token is asked for once.
        unsafe { *out.at(t) = row.logprob };
        (row.logz, row.entropy)
    });
    (logprob, dhidden)
}

/// What the backward pass is given of each token.
struct HeadRows<'a> {
    hidden: &'a [f32],
    labels: &'a [u32],
    inv_temp: &'a [f32],
    dlogprob: &'a [f32],
    dentropy: Option<&'a [f32]>,
}

/// The gradients of [`head_backward`]. `stats` gives ln Σ exp(logit · inv_temp) and the entropy of a token, whose logits
/// it is shown.
fn gradients(
    w: &WeightsView<'_>,
    rows: &HeadRows<'_>,
    chunk: usize,
    grads: &mut Grads,
    stats: impl Fn(usize, &[f32]) -> (f32, f32) + Sync,
) -> Vec<f32> {
    let HeadRows { hidden, labels, inv_temp, dlogprob, dentropy } = *rows;
    let (h, v) = (w.dims.hidden, w.dims.vocab);
    let tokens = labels.len();
    check_ids(w.dims, labels);
    assert_eq!(hidden.len(), tokens * h, "hidden states and labels disagree about the number of tokens");
    assert_eq!([inv_temp.len(), dlogprob.len()], [tokens; 2], "per-token inputs disagree about the number of tokens");
    let factor = |t: usize| (dlogprob[t], dentropy.map_or(0.0, |d| d[t]));
    let active: Vec<usize> = (0..tokens).filter(|t| factor(*t) != (0.0, 0.0)).collect();
    let weights = w.head();
    // Empty where it is frozen.
    let dw = match &mut grads.lm_head {
        Some(g) => g,
        None => &mut grads.embed,
    };
    let mut dhidden = vec![0.0f32; tokens * h];
    let held = (GRADIENT_MAX / v).clamp(1, chunk.max(1)).min(active.len().max(1));
    let mut logits = vec![0.0f32; held * v];
    let mut rows_of = vec![0.0f32; held * h];
    let dhidden_shared = Shared::new(&mut dhidden);
    for part in active.chunks(held) {
        let n = part.len();
        let step = n.div_ceil(rayon::current_num_threads() * 2).next_multiple_of(12).min(TASK_ROWS);
        {
            let (logits, rows_of) = (Shared::new(&mut logits), Shared::new(&mut rows_of));
            for_ranges(true, n, step, |r| {
                // SAFETY: tasks own disjoint rows of the buffers and of dhidden.
                unsafe {
                    let x = rows_of.slice(r.start * h..r.end * h);
                    let g = logits.slice(r.start * v..r.end * v);
                    for (x, t) in x.chunks_exact_mut(h).zip(&part[r.clone()]) {
                        x.copy_from_slice(&hidden[t * h..][..h]);
                    }
                    nt(false, r.len(), v, h, x.as_ptr(), h, weights.as_ptr(), g.as_mut_ptr(), v);
                    for (row, t) in g.chunks_exact_mut(v).zip(&part[r.clone()]) {
                        let (dl, de) = factor(*t);
                        let (logz, entropy) = stats(*t, row);
                        logits_gradient(row, labels[*t] as usize, inv_temp[*t], logz, entropy, dl, de);
                    }
                    let mut dx = vec![0.0f32; r.len() * h];
                    nn(r.len(), h, v, g.as_ptr(), v, weights.as_ptr(), h, dx.as_mut_ptr(), h, false);
                    for (dx, t) in dx.chunks_exact(h).zip(&part[r.clone()]) {
                        dhidden_shared.slice(t * h..(t + 1) * h).copy_from_slice(dx);
                    }
                }
            });
        }
        if !dw.is_empty() {
            tn_acc_many(&[TnJob { m: v, n: h, k: n, x: &logits, ldx: v, w: &rows_of, ldw: h, y: Shared::new(dw) }]);
        }
    }
    dhidden
}
