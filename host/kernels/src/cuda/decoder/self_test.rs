//! One tiny step and a few sampled rows on the GPU, held against the CPU's kernels.
//!
//! Owns the tiny model, made of the shapes that decide which kernels run. Must not know the model that is trained.

use std::sync::Arc;

use crate::cuda::{AdamStep, Context, CudaError, Element};
use crate::weights::{Dims, Grads, Rope};
use crate::{AdapterLayer, AdapterView, ExtendItem, HeadStats, KvCache, LowRank, Meter};

use super::cache::Cache;
use super::layout::Layout;
use super::{
    Answer, Draw, Item, Keep, Recompute, RowStats, Sampling, StepNumbers, Targets, Training, TrainingOptions, Want,
    Workspace,
};

const HIDDEN: usize = 128;
const FFN: usize = 192;
/// Odd, so that rows of logits are not aligned.
const VOCAB: usize = 521;
const DOCS: [usize; 4] = [70, 1, 33, 133];

/// Relative differences ‖GPU − CPU‖ / ‖CPU‖, the largest of each kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTest {
    /// Of log-probabilities and entropies.
    pub stats: f64,
    /// Of any one parameter's gradient.
    pub gradients: f64,
    /// Of logits over cached keys and values; infinite if the most likely token is not what is drawn as such.
    pub sampling: f64,
    /// Of any one parameter after a step of AdamW, by how far it moved.
    pub step: f64,
    /// What is allowed.
    pub limit: f64,
}

impl SelfTest {
    /// Whether all differences are those of rounding.
    pub fn passed(&self) -> bool {
        [self.stats, self.gradients, self.sampling, self.step].iter().all(|x| *x <= self.limit)
    }
}

/// Runs the test with heads like those of `dims`, from random numbers of `seed`: trains on the stream of `c` and samples on
/// that of `sampler`, as a run does.
///
/// # Errors
/// If an operation cannot be done at all, or `dims` are not supported.
pub fn self_test<T: Element>(
    c: &Arc<Context>,
    sampler: &Arc<Context>,
    dims: &Dims,
    seed: u64,
) -> Result<SelfTest, CudaError> {
    Layout::new(dims)?;
    let dims = Dims { layers: 2, hidden: HIDDEN, ffn: FFN, vocab: VOCAB, ..dims.clone() };
    let mut random = Random(seed);
    let mut weights = Grads::zeros(&dims);
    for (name, values) in weights.iter_mut() {
        let (offset, scale) = if name.contains("norm") { (1.0, 0.2) } else { (0.0, 0.08) };
        values.iter_mut().for_each(|x| *x = offset + scale * random.unit());
    }
    let half = dims.head_dim / 2;
    let inv_freq = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
    let rope = Rope { inv_freq, attention_factor: 1.0 };
    let tokens: usize = DOCS.iter().sum();
    let ids: Vec<u32> = (0..tokens).map(|_| random.below(VOCAB)).collect();
    let labels: Vec<u32> = (0..tokens).map(|_| random.below(VOCAB)).collect();
    let inv_temp: Vec<f32> = (0..tokens).map(|_| 1.0 + 0.3 * random.unit()).collect();
    let dlogprob: Vec<f32> = (0..tokens).map(|_| random.unit()).collect();
    let dentropy: Vec<f32> = (0..tokens).map(|_| 0.2 * random.unit()).collect();

    let view = weights.as_weights(&dims, &rope);
    let reference = |dentropy: Option<&[f32]>| {
        let activations = crate::forward(&view, &ids, &DOCS);
        let stats = crate::head_stats(&view, activations.hidden(), &labels, &inv_temp, tokens);
        let mut grads = Grads::zeros(&dims);
        let hidden = activations.hidden();
        let dhidden =
            crate::head_backward(&view, hidden, &labels, &inv_temp, &stats, &dlogprob, dentropy, tokens, &mut grads);
        crate::backward(&view, activations, &dhidden, &mut grads);
        (stats, grads)
    };
    let (HeadStats { logprob, entropy, .. }, want) = reference(Some(&dentropy));
    let (_, want_known) = reference(None);
    let options = TrainingOptions { recompute: Recompute::NOTHING, head_chunk: 100, tokens };
    let again = TrainingOptions { recompute: Recompute { every: 1, keep: Keep::NONE }, ..options };
    let mut training = Training::<T>::new(c.clone(), &dims, rope.clone(), options, &weights.slices())?;
    let targets = Targets {
        rows: (0..tokens as i32).collect(),
        labels: labels.iter().map(|l| *l as i32).collect(),
        inv_temp: inv_temp.clone(),
    };
    let stats = |got: &RowStats| relative(&got.logprob, &logprob).max(relative(&got.entropy, &entropy));
    let worst =
        |got: &[Vec<f32>], want: &Grads| got.iter().zip(want.slices()).map(|(a, b)| relative(a, b)).fold(0.0, f64::max);
    let mut stats_off = stats(&training.forward(&ids, &DOCS, targets.clone())?);
    training.backward(&dlogprob, Some(&dentropy))?;
    let mut gradients = worst(&training.gradients()?, &want);
    training.zero()?;
    stats_off = stats_off.max(stats(&training.forward_backward(&ids, &DOCS, &targets, &dlogprob)?));
    let got = training.gradients()?;
    gradients = gradients.max(worst(&got, &want_known));
    let mut recomputing = Training::<T>::new(c.clone(), &dims, rope.clone(), again, &weights.slices())?;
    recomputing.forward_backward(&ids, &DOCS, &targets, &dlogprob)?;
    gradients = gradients.max(worst(&recomputing.gradients()?, &want_known));
    let sampling = sampling(sampler, &training, &view, &ids)?;
    let step = step(&mut training, &weights, &got)?;
    let limit = if size_of::<T>() == 2 { 0.08 } else { 1e-3 };
    Ok(SelfTest { stats: stats_off, gradients, sampling, step, limit })
}

/// A step of AdamW with clipping from the gradients `grads`, against its formula.
fn step<T: Element>(training: &mut Training<T>, before: &Grads, grads: &[Vec<f32>]) -> Result<f64, CudaError> {
    let adam = AdamStep { lr: 1e-2, beta1: 0.9, beta2: 0.99, eps: 1e-8, decay: 0.1, step: 0 };
    let norm = grads.iter().flatten().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let max_norm = 0.5 * norm;
    let stepped = training.step(StepNumbers { adam, max_norm: Some(max_norm as f32) })?;
    if !stepped.applied || (f64::from(stepped.grad_norm) / norm - 1.0).abs() > 1e-4 {
        return Ok(f64::INFINITY);
    }
    let factor = max_norm / (norm + 1e-6);
    let after = training.parameters()?;
    let mut worst = 0.0f64;
    for ((after, before), grads) in after.iter().zip(before.slices()).zip(grads) {
        let moved: Vec<f32> = after.iter().zip(before).map(|(a, b)| a - b).collect();
        let want = |(p, g): (&f32, &f32)| {
            // In the first step both corrected moments are the gradient itself and its square.
            let (p, g) = (f64::from(*p), f64::from(*g) * factor);
            (-f64::from(adam.lr) * (f64::from(adam.decay) * p + g / (g.abs() + f64::from(adam.eps)))) as f32
        };
        worst = worst.max(relative(&moved, &before.iter().zip(grads).map(want).collect::<Vec<f32>>()));
    }
    Ok(worst)
}

/// Two sequences, of which one forks, token by token behind prompts of different lengths.
fn sampling<T: Element>(
    c: &Arc<Context>,
    training: &Training<T>,
    view: &crate::WeightsView<'_>,
    ids: &[u32],
) -> Result<f64, CudaError> {
    let sampling = Sampling::new(c.clone(), training.weights()?, Workspace::default())?;
    let mut worst = 0.0f64;
    let mut ours = vec![sampling.new_cache(&Meter::default()), sampling.new_cache(&Meter::default())];
    let mut theirs = vec![KvCache::new(view.dims, &Meter::default()), KvCache::new(view.dims, &Meter::default())];
    let calls: [&[(usize, &[u32])]; 4] = [
        &[(0, &ids[..40]), (1, &ids[40..41])],
        &[(0, &ids[41..42]), (1, &ids[42..45])],
        &[(2, &ids[45..46])],
        &[(0, &ids[46..47]), (1, &ids[47..50]), (2, &ids[50..51])],
    ];
    for (number, call) in calls.into_iter().enumerate() {
        if number == 2 {
            ours.push(ours[0].clone());
            theirs.push(theirs[0].clone());
        }
        let mut items: Vec<Item<'_, T>> = ours
            .iter_mut()
            .enumerate()
            .filter_map(|(i, cache)| {
                let (_, ids) = call.iter().find(|(of, _)| *of == i)?;
                Some(Item { cache, ids, follows: None, want: Want::Logits, adapter: None })
            })
            .collect();
        let got: Vec<f32> = sampling
            .extend(&mut items)?
            .into_iter()
            .flat_map(|a| if let Answer::Logits(row) = a { row } else { Vec::new() })
            .collect();
        let mut items: Vec<ExtendItem<'_>> = theirs
            .iter_mut()
            .enumerate()
            .filter_map(|(i, cache)| {
                let (_, ids) = call.iter().find(|(of, _)| *of == i)?;
                Some(ExtendItem { cache, ids, logits: 1, adapter: None })
            })
            .collect();
        let want = crate::extend(view, &mut items);
        worst = worst.max(if got.len() == want.len() { relative(&got, &want) } else { f64::NAN });
    }
    // The same step again and again: by hand, then recorded, then replayed.
    for step in 0..4 {
        let next = &ids[51 + step..52 + step];
        let greedy = Want::Token(Draw::plain(1.0, -1.0));
        let wants = [if step % 2 == 0 { greedy } else { Want::Logits }, Want::Logits, greedy];
        let items = ours.iter_mut().zip(wants).map(|(cache, want)| Item {
            cache,
            ids: next,
            follows: None,
            want,
            adapter: None,
        });
        let got = sampling.extend(&mut items.collect::<Vec<_>>())?;
        let items = theirs.iter_mut().map(|cache| ExtendItem { cache, ids: next, logits: 1, adapter: None });
        let rows = crate::extend(view, &mut items.collect::<Vec<_>>());
        for (answer, row) in got.iter().zip(rows.chunks_exact(view.dims.vocab)) {
            worst = worst.max(match answer {
                Answer::Logits(logits) => relative(logits, row),
                Answer::Token(token, logprob) => {
                    let off = (crate::log_softmax_at(row, 1.0, *token).logprob - logprob).abs();
                    let best = row.iter().copied().fold(f32::MIN, f32::max);
                    if off < 0.1 && best - row[*token as usize] < 0.1 { 0.0 } else { f64::INFINITY }
                }
                Answer::Scores(_) => f64::INFINITY,
            });
        }
    }
    // One of two sequences has an adapter.
    let adapter = adapter(view.dims, ids.len() as u64);
    let brought = sampling.bring(&adapter)?;
    for step in 0..3 {
        let next = &ids[56 + step..57 + step];
        let (mut with, mut without) = (ours[1].clone(), ours[2].clone());
        let item = |cache, adapter| Item { cache, ids: next, follows: None, want: Want::Logits, adapter };
        let got = sampling.extend(&mut [item(&mut with, Some(&brought)), item(&mut without, None)])?;
        let (mut with, mut without) = (theirs[1].clone(), theirs[2].clone());
        let item = |cache, adapter| ExtendItem { cache, ids: next, logits: 1, adapter };
        let fits = AdapterView::new(&adapter, view.dims);
        let fits = fits.map_err(|e| CudaError::Shape { op: "self-test", what: e.to_string() })?;
        let rows = crate::extend(view, &mut [item(&mut with, Some(fits)), item(&mut without, None)]);
        for (answer, row) in got.iter().zip(rows.chunks_exact(view.dims.vocab)) {
            worst = worst.max(if let Answer::Logits(logits) = answer { relative(logits, row) } else { f64::INFINITY });
        }
    }
    // A step that begins before the answers of the one before are there, and scores of what it drew.
    let greedy = Want::Token(Draw::plain(1.0, -1.0));
    let ahead = |cache: &mut Cache<T>, ids: &[u32], follows, want| {
        sampling.begin(&mut [Item { cache, ids, follows, want, adapter: None }])
    };
    let mut cache = ours[0].clone();
    let first = ahead(&mut cache, &ids[55..56], None, greedy)?;
    let second = ahead(&mut cache, &ids[..1], Some(0), greedy)?;
    let third = ahead(&mut cache, &ids[..1], Some(0), Want::Logits)?;
    let drawn: Vec<(u32, f32)> = [first.finish()?, second.finish()?]
        .into_iter()
        .flatten()
        .filter_map(|answer| if let Answer::Token(id, logprob) = answer { Some((id, logprob)) } else { None })
        .collect();
    let path: Vec<u32> = std::iter::once(ids[55]).chain(drawn.iter().map(|(id, _)| *id)).collect();
    let mut items = [ExtendItem { cache: &mut theirs[0].clone(), ids: &path, logits: path.len(), adapter: None }];
    let rows = crate::extend(view, &mut items);
    let last = &rows[rows.len() - view.dims.vocab..];
    let is_last = |answer: &Answer| matches!(answer, Answer::Logits(row) if relative(row, last) < 0.1);
    let mut agrees = path.len() == 3 && third.finish()?.first().is_some_and(is_last);
    let scored = Want::Scores { labels: path.get(1..).unwrap_or_default(), inv_temp: 1.0, most: 2 };
    let scores = ahead(&mut ours[0].clone(), &path[..path.len() - 1], None, scored)?.finish()?;
    let Some(Answer::Scores(scores)) = scores.first() else { return Ok(f64::INFINITY) };
    agrees &= scores.len() == drawn.len();
    for (score, (id, logprob)) in scores.iter().zip(&drawn) {
        // Greedy tokens are the likeliest ones, or as good as that: other shapes of products round otherwise.
        agrees &= (score.logprob - logprob).abs() < 0.1 && score.rank > 0 && score.top.len() == 2;
        agrees &= score.top[0].1 - score.logprob < 0.1
            && score.top[1].1 <= score.top[0].1
            && (*id as usize) < view.dims.vocab;
    }
    // The most likely token, asked for as logits and as a token.
    let ask = |want| {
        let mut cache = ours[0].clone();
        let answers = sampling.extend(&mut [Item {
            cache: &mut cache,
            ids: &ids[55..56],
            follows: None,
            want,
            adapter: None,
        }])?;
        Ok::<_, CudaError>(answers.into_iter().next())
    };
    let (row, drawn) = (ask(Want::Logits)?, ask(Want::Token(Draw::plain(1.0, -1.0)))?);
    agrees &= match (row, drawn) {
        (Some(Answer::Logits(row)), Some(Answer::Token(token, logprob))) => {
            let first = crate::log_softmax_at(&row, 1.0, token);
            row.iter().all(|x| *x <= row[token as usize]) && (first.logprob - logprob).abs() < 1e-4
        }
        _ => false,
    };
    Ok(if agrees { worst } else { f64::INFINITY })
}

/// Additions to all matrices but one, of two ranks.
fn adapter(d: &Dims, seed: u64) -> Vec<AdapterLayer> {
    let mut random = Random(seed);
    let mut pair = |rank: usize, out: usize, input: usize| {
        let mut factor = |len: usize, width: usize| {
            (0..len).map(|_| 1.5 * random.unit() / (width as f32).sqrt()).collect::<Vec<f32>>()
        };
        Some(LowRank { a: factor(rank * input, input), b: factor(out * rank, rank), rank })
    };
    let (h, q, kv, f) = (d.hidden, d.q_width(), d.kv_width(), d.ffn);
    let layer = |_| AdapterLayer {
        q: pair(3, q, h),
        k: None,
        v: pair(16, kv, h),
        o: pair(3, h, q),
        gate: pair(3, f, h),
        up: pair(16, f, h),
        down: pair(3, h, f),
    };
    (0..d.layers).map(layer).collect()
}

/// ‖a − b‖ / ‖b‖; NaN and infinities count as infinite.
fn relative(a: &[f32], b: &[f32]) -> f64 {
    let (mut difference, mut norm) = (0.0f64, 0.0f64);
    for (a, b) in a.iter().zip(b) {
        difference += f64::from(a - b).powi(2);
        norm += f64::from(*b).powi(2);
    }
    let ratio = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
    if ratio.is_finite() { ratio } else { f64::INFINITY }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in (−1, 1).
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn below(&mut self, n: usize) -> u32 {
        (self.next() % n as u64) as u32
    }
}
