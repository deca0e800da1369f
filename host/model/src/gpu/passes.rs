//! The kernels' decoder as learner and snapshot. Owns opening a GPU, the self-test before it is trusted, and the way between
//! rows of a batch and the kernels' targets; must not know operations or how memory is laid out.

use super::{Arithmetic, Bits, GpuOptions, Recompute};
use crate::fast::dims;
use crate::fused::{AdamWNumbers, FusedAdamW, FusedStep, Moments};
use crate::learner::{GpuPasses, Rows, inverse};
use crate::sample::{CacheKind, check_ids};
use crate::{
    Adapter, Answer, Cache, Communicator, Decoder, Device, Draw, Extend, ModelConfig, ModelError, Packed, Receiver,
    Score, Snapshot, Underway, Want,
};
use prl_kernels::cuda::decoder::{
    self, Item, Keep, Sampling, StepNumbers, Targets, Training, TrainingOptions, Workspace, self_test,
};
use prl_kernels::cuda::{AdamStep, Context, CudaError, Element, LowRanks, UsedBytes, bf16};
use prl_kernels::{Meter, Rope};
use prl_types::TokenId;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Streams of one GPU.
#[derive(Clone)]
pub(super) struct Opened {
    training: Arc<Context>,
    pub sampling: Arc<Context>,
    index: usize,
}

fn device(index: usize) -> impl Fn(CudaError) -> ModelError {
    move |e| match e {
        CudaError::Memory { .. } => failed(e),
        _ => ModelError::Device { device: format!("cuda:{index}"), reason: e.to_string() },
    }
}

pub(super) fn failed(e: CudaError) -> ModelError {
    match e {
        CudaError::Memory { .. } => ModelError::Memory(e.to_string()),
        _ => ModelError::Execution(e.to_string()),
    }
}

impl Opened {
    pub fn new(index: usize, cache: Option<&Path>, bits: Bits) -> Result<Self, ModelError> {
        let open = || {
            let context = Context::new(index, cache).map_err(device(index))?;
            let context = if bits.deterministic { context.deterministic() } else { context };
            Ok::<_, ModelError>(Arc::new(if bits.exact { context.exact() } else { context }))
        };
        Ok(Opened { training: open()?, sampling: open()?, index })
    }

    pub fn learner(&self, decoder: Decoder, options: &GpuOptions) -> Result<Box<dyn GpuPasses>, ModelError> {
        Ok(match options.arithmetic {
            Arithmetic::Bf16 => Box::new(Trained::<bf16>::new(self, &decoder, options)?),
            Arithmetic::F32 => Box::new(Trained::<f32>::new(self, &decoder, options)?),
        })
    }
}

/// An element type with its kind of cache.
pub(super) trait Stored: Element {
    fn wrap(cache: decoder::Cache<Self>) -> CacheKind;
    fn of(kind: &mut CacheKind) -> Option<&mut decoder::Cache<Self>>;
}

impl Stored for bf16 {
    fn wrap(cache: decoder::Cache<Self>) -> CacheKind {
        CacheKind::Half(cache)
    }

    fn of(kind: &mut CacheKind) -> Option<&mut decoder::Cache<Self>> {
        match kind {
            CacheKind::Half(cache) => Some(cache),
            _ => None,
        }
    }
}

impl Stored for f32 {
    fn wrap(cache: decoder::Cache<Self>) -> CacheKind {
        CacheKind::Full(cache)
    }

    fn of(kind: &mut CacheKind) -> Option<&mut decoder::Cache<Self>> {
        match kind {
            CacheKind::Full(cache) => Some(cache),
            _ => None,
        }
    }
}

fn keep(r: &Recompute) -> decoder::Recompute {
    let keep = if r.all {
        Keep::NONE
    } else {
        Keep { qkv: !r.attention_projections, attention: true, mid: !r.attention_projections, gate_up: !r.feed_forward }
    };
    decoder::Recompute { every: r.every, keep }
}

/// A model being trained.
struct Trained<T: Element> {
    config: Arc<ModelConfig>,
    training: Training<T>,
    sampling: Arc<Context>,
    workspace: Workspace,
    adapters: Arc<Brought<T>>,
    /// Per row of the last batch, its place among the targets.
    places: Vec<Option<usize>>,
}

/// Seed of the self-test's tiny model.
const SELF_TEST_SEED: u64 = 0x7072_6c21;

impl<T: Stored> Trained<T> {
    fn new(opened: &Opened, decoder: &Decoder, options: &GpuOptions) -> Result<Self, ModelError> {
        let on = device(opened.index);
        let config = decoder.config().clone();
        let dims = dims(&config);
        let test = self_test::<T>(&opened.training, &opened.sampling, &dims, SELF_TEST_SEED).map_err(&on)?;
        if !test.passed() {
            return Err(ModelError::Device {
                device: format!("cuda:{}", opened.index),
                reason: format!(
                    "its results are wrong: a tiny step differs from the CPU's by {:.1e} in log-probabilities, {:.1e} in \
                     gradients, {:.1e} in sampled logits and {:.1e} in new weights, where {:.0e} is allowed; check driver \
                     and GPU, or use the device `cpu`",
                    test.stats, test.gradients, test.sampling, test.step, test.limit
                ),
            });
        }
        tracing::debug!(
            "GPU self-test: log-probabilities {:.1e}, gradients {:.1e}, sampling {:.1e} of {:.0e} allowed",
            test.stats,
            test.gradients,
            test.sampling,
            test.limit
        );
        let (inv_freq, attention_factor) = config.rope.frequencies(config.head_dim);
        let values = decoder.parameters().into_iter().map(|p| p.to_vec()).collect::<Result<Vec<_>, _>>()?;
        let slices: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        let options = TrainingOptions {
            recompute: keep(&options.recompute),
            head_chunk: options.head_chunk,
            tokens: options.tokens,
        };
        let rope = Rope { inv_freq, attention_factor };
        let training = Training::new(opened.training.clone(), &dims, rope, options, &slices).map_err(&on)?;
        Ok(Trained {
            config,
            training,
            sampling: opened.sampling.clone(),
            workspace: Workspace::default(),
            adapters: Arc::default(),
            places: Vec::new(),
        })
    }
}

/// The rows that take part, and the place of every row among them.
fn targets(rows: &Rows, takes_part: impl Fn(usize) -> bool) -> (Targets, Vec<Option<usize>>) {
    let (mut targets, mut places) = (Targets::default(), Vec::with_capacity(rows.labels.len()));
    for t in 0..rows.labels.len() {
        let takes_part = takes_part(t);
        places.push(takes_part.then_some(targets.rows.len()));
        if takes_part {
            targets.rows.push(t as i32);
            targets.labels.push(rows.labels[t] as i32);
            targets.inv_temp.push(rows.inv_temp[t]);
        }
    }
    (targets, places)
}

/// Per target → per row, 0 for rows that take no part.
fn spread(places: &[Option<usize>], x: &[f32]) -> Vec<f32> {
    places.iter().map(|at| at.map_or(0.0, |i| x[i])).collect()
}

impl<T: Stored> GpuPasses for Trained<T> {
    fn forward(&mut self, batch: &Packed, rows: &Rows) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        let (targets, places) = targets(rows, |t| rows.predicts[t]);
        self.places = places;
        let stats = self.training.forward(&batch.ids, &batch.doc_lens, targets).map_err(failed)?;
        Ok((spread(&self.places, &stats.logprob), spread(&self.places, &stats.entropy)))
    }

    fn forward_backward(&mut self, batch: &Packed, rows: &Rows, dlogprob: &[f32]) -> Result<Vec<f32>, ModelError> {
        let (targets, places) = targets(rows, |t| dlogprob[t] != 0.0);
        let known: Vec<f32> = targets.rows.iter().map(|t| dlogprob[*t as usize]).collect();
        let stats = self.training.forward_backward(&batch.ids, &batch.doc_lens, &targets, &known).map_err(failed)?;
        Ok(spread(&places, &stats.logprob))
    }

    fn backward(&mut self, dlogprob: &[f32], dentropy: Option<&[f32]>) -> Result<(), ModelError> {
        let pick = |x: &[f32]| -> Vec<f32> {
            self.places.iter().zip(x).filter(|(at, _)| at.is_some()).map(|(_, x)| *x).collect()
        };
        let (dlogprob, dentropy) = (pick(dlogprob), dentropy.map(pick));
        self.training.backward(&dlogprob, dentropy.as_deref()).map_err(failed)
    }

    fn zero(&mut self) -> Result<(), ModelError> {
        self.training.zero().map_err(failed)
    }

    fn gradients(&self) -> Result<Vec<Vec<f32>>, ModelError> {
        self.training.gradients().map_err(failed)
    }

    fn decoder(&self) -> Result<Decoder, ModelError> {
        let values = self.training.parameters().map_err(failed)?;
        let infos = crate::names::parameters(&self.config);
        let pairs = infos.into_iter().zip(values).map(|(info, values)| (info.shape, values));
        Ok(Decoder::assemble(ModelConfig::clone(&self.config), pairs, &Device::Cpu.open()?))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ModelError> {
        let _alone = decoder::setting_up();
        let weights = self.training.weights().map_err(failed)?;
        let sampling = Sampling::new(self.sampling.clone(), weights, self.workspace.clone()).map_err(failed)?;
        Ok(Arc::new(Sampled { config: self.config.clone(), sampling, adapters: self.adapters.clone() }))
    }

    fn wait(&self) -> Result<(), ModelError> {
        self.training.context().synchronize().map_err(failed)
    }

    /// Buffers come from the driver's pool, which knows its own peak; what the process holds besides (kernels, the
    /// library's workspace) stays the same.
    fn peak_bytes(&self) -> Option<u64> {
        let context = self.training.context();
        let pool = context.pool_bytes().ok()?;
        let beside = match context.used_bytes() {
            Some(UsedBytes::Process(bytes)) => bytes.saturating_sub(pool.reserved),
            Some(UsedBytes::Device(_)) | None => 0,
        };
        Some(pool.reserved_high + beside)
    }
}

impl<T: Stored> FusedAdamW for Trained<T> {
    fn step(&mut self, numbers: &AdamWNumbers) -> Result<FusedStep, ModelError> {
        let adam = AdamStep {
            lr: numbers.lr as f32,
            beta1: numbers.betas[0] as f32,
            beta2: numbers.betas[1] as f32,
            eps: numbers.eps as f32,
            decay: numbers.weight_decay as f32,
            step: 0,
        };
        let max_norm = numbers.max_norm.map(|n| n as f32);
        let stepped = self.training.step(StepNumbers { adam, max_norm }).map_err(failed)?;
        Ok(FusedStep {
            grad_norm: f64::from(stepped.grad_norm),
            zero_grad_ratio: stepped.zeros as f64 / self.training.len().max(1) as f64,
            applied: stepped.applied,
        })
    }

    fn moments(&self) -> Result<Option<Moments>, ModelError> {
        let moments = self.training.moments().map_err(failed)?;
        Ok(moments.map(|(updates, [first, second])| Moments { updates: updates as usize, first, second }))
    }

    fn set_moments(&mut self, moments: Option<Moments>) -> Result<(), ModelError> {
        let moments = match moments {
            None => None,
            Some(Moments { updates, first, second }) => {
                let updates = u32::try_from(updates)
                    .map_err(|_| ModelError::Input(format!("{updates} updates are more than can be counted")))?;
                Some((updates, [first, second]))
            }
        };
        self.training.set_moments(moments).map_err(failed)
    }
}

/// Weights to sample from.
pub(super) struct Sampled<T: Element> {
    pub config: Arc<ModelConfig>,
    pub sampling: Sampling<T>,
    pub adapters: Arc<Brought<T>>,
}

/// Adapters that were brought to the GPU, by their numbers, as long as they are there. Whoever samples lets them go, so that nothing
/// is freed while a step is being recorded.
pub(super) struct Brought<T>(Mutex<HashMap<u64, (Weak<()>, Arc<LowRanks<T>>)>>);

impl<T> Default for Brought<T> {
    fn default() -> Self {
        Brought(Mutex::default())
    }
}

impl<T: Element> Brought<T> {
    fn let_go(&self) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, (alive, _)| alive.strong_count() > 0);
    }

    fn of(&self, adapter: &Adapter, sampling: &Sampling<T>) -> Result<Arc<LowRanks<T>>, ModelError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, there)) = all.get(&adapter.id()) {
            return Ok(there.clone());
        }
        let brought = Arc::new(sampling.bring(adapter.layers()).map_err(failed)?);
        all.insert(adapter.id(), (adapter.alive(), brought.clone()));
        Ok(brought)
    }
}

impl<T: Stored> Snapshot for Sampled<T> {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        Cache(T::wrap(self.sampling.new_cache(meter)))
    }

    fn takes_adapters(&self) -> bool {
        true
    }

    fn runs_ahead(&self) -> bool {
        true
    }

    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
        self.begin(batch, &[])?.finish()
    }

    fn begin(&self, batch: &mut [Extend<'_>], follows: &[Option<usize>]) -> Result<Box<dyn Underway>, ModelError> {
        self.adapters.let_go();
        let adapters = batch
            .iter()
            .map(|item| item.adapter.map(|adapter| self.adapters.of(adapter, &self.sampling)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let mut items = Vec::with_capacity(batch.len());
        for (n, (item, adapter)) in batch.iter_mut().zip(&adapters).enumerate() {
            if item.ids.is_empty() {
                return Err(ModelError::Input("a sequence without new tokens".into()));
            }
            check_ids(item.ids, &self.config)?;
            let Some(cache) = T::of(&mut item.cache.0) else {
                return Err(ModelError::Input("a cache of another implementation given to the GPU's".into()));
            };
            let want = match item.want {
                Want::Nothing => decoder::Want::Nothing,
                Want::Logits => decoder::Want::Logits,
                Want::AllLogits => decoder::Want::AllLogits,
                Want::Token(draw) => decoder::Want::Token(drawn(&draw)),
                Want::Scores { labels, temperature, most } => {
                    check_ids(labels, &self.config)?;
                    // There are no more tokens than that.
                    let most = most.min(self.config.vocab_size);
                    decoder::Want::Scores { labels, inv_temp: inverse(temperature), most }
                }
            };
            let follows = follows.get(n).copied().flatten();
            items.push(Item { cache, ids: item.ids, follows, want, adapter: adapter.as_deref() });
        }
        Ok(Box::new(Begun(self.sampling.begin(&mut items).map_err(failed)?)))
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        prl_kernels::log_softmax_at(logits, inverse(temperature), id).logprob
    }

    fn send(&self, to: &Communicator, number: u64) -> Result<(), ModelError> {
        self.sampling.send(&to.inner, number).map_err(failed)
    }

    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        Some(self.awaiting())
    }
}

fn drawn(draw: &Draw) -> decoder::Draw {
    decoder::Draw {
        inv_temp: inverse(draw.temperature),
        uniform: if draw.temperature == 0.0 { -1.0 } else { draw.uniform },
        top_k: draw.top_k.unwrap_or(0),
        top_p: draw.top_p,
        min_p: draw.min_p,
    }
}

/// A step under way.
struct Begun<T>(decoder::Underway<T>);

impl<T: Stored> Underway for Begun<T> {
    fn finish(self: Box<Self>) -> Result<Vec<Answer>, ModelError> {
        let score = |score: decoder::Score| Score { logprob: score.logprob, rank: score.rank, top: score.top };
        let answers = self.0.finish().map_err(failed)?.into_iter();
        Ok(answers
            .map(|answer| match answer {
                decoder::Answer::Logits(row) => Answer::Logits(row),
                decoder::Answer::Token(id, logprob) => Answer::Token(id, logprob),
                decoder::Answer::Scores(scores) => Answer::Scores(scores.into_iter().map(score).collect()),
            })
            .collect())
    }
}
