//! What the trainer sees of a model: [`Learner`]. Owns packed batches and the shift between tokens and the rows that
//! predict them; must not know losses, sampling or the optimiser's rule.

use crate::fused::FusedAdamW;
use crate::host::HostLearner;
use crate::names::{self, ParameterInfo};
use crate::sample::check_ids;
use crate::{Decoder, Gpu, GpuOptions, LoraPlan, ModelConfig, ModelError, Snapshot, Trained};
use prl_types::TokenId;
use std::path::Path;
use std::sync::Arc;

/// Which implementation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// The kernels of prl-kernels on the CPU: a token's value depends on its document's prefix only, bit for bit.
    Fast,
    /// Plain burn operations on any device. Slow, easy to check, and what the fast one is held against.
    Reference,
}

/// Whole documents one after another. Each token sees its own document's prefix only; positions restart at 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packed {
    /// The tokens of all documents.
    pub ids: Vec<TokenId>,
    /// Tokens of each document; they sum up to the number of tokens.
    pub doc_lens: Vec<usize>,
    /// The temperature each token was drawn at; 0 (greedy) counts as 1. That of a document's first token is unused.
    pub temperatures: Vec<f32>,
}

/// Per token, in the order of [`Packed::ids`]: facts about the distribution the token was drawn from, at its
/// temperature, in nats. A document's first token has no prefix: it counts as drawn uniformly (-ln V, ln V).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// log p(token | its document before it).
    pub logprobs: Vec<f32>,
    /// Entropy of that distribution.
    pub entropy: Vec<f32>,
}

/// Row t of the hidden states predicts token t + 1: labels and temperatures moved to the rows that predict them.
/// Rows at the end of a document predict nothing; they carry label 0 and get gradient 0.
pub(crate) struct Rows {
    pub labels: Vec<TokenId>,
    pub inv_temp: Vec<f32>,
    pub predicts: Vec<bool>,
}

impl Rows {
    fn new(batch: &Packed) -> Rows {
        let n = batch.ids.len();
        let mut rows = Rows { labels: vec![0; n], inv_temp: vec![1.0; n], predicts: vec![false; n] };
        let mut start = 0;
        for len in &batch.doc_lens {
            for t in start..start + len - 1 {
                rows.labels[t] = batch.ids[t + 1];
                rows.inv_temp[t] = inverse(batch.temperatures[t + 1]);
                rows.predicts[t] = true;
            }
            start += len;
        }
        rows
    }

    /// Per row → per token, with `first` for the tokens nothing predicts.
    fn to_tokens(&self, rows: &[f32], first: f32) -> Vec<f32> {
        let mut out = vec![first; rows.len()];
        for t in 0..rows.len() {
            if self.predicts[t] {
                out[t + 1] = rows[t];
            }
        }
        out
    }

    /// Per token → per row, 0 where a row predicts nothing.
    fn to_rows(&self, tokens: &[f32]) -> Vec<f32> {
        (0..tokens.len()).map(|t| if self.predicts[t] { tokens[t + 1] } else { 0.0 }).collect()
    }
}

/// 1 / temperature, the factor on logits; 0 counts as 1.
pub(crate) fn inverse(temperature: f32) -> f32 {
    if temperature == 0.0 { 1.0 } else { 1.0 / temperature }
}

/// A model on a GPU; lists are per row.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) trait GpuPasses: FusedAdamW {
    fn forward(&mut self, batch: &Packed, rows: &Rows) -> Result<(Vec<f32>, Vec<f32>), ModelError>;
    fn backward(&mut self, dlogprob: &[f32], dentropy: Option<&[f32]>) -> Result<(), ModelError>;
    fn forward_backward(&mut self, batch: &Packed, rows: &Rows, dlogprob: &[f32]) -> Result<Vec<f32>, ModelError>;
    fn zero(&mut self) -> Result<(), ModelError>;
    fn gradients(&self) -> Result<Vec<Vec<f32>>, ModelError>;
    fn decoder(&self) -> Result<Decoder, ModelError>;
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ModelError>;
    fn wait(&self) -> Result<(), ModelError>;
    fn peak_bytes(&self) -> Option<u64>;
}

/// Who takes the optimiser's steps.
pub enum Stepper<'a> {
    /// The caller.
    Host(&'a mut HostLearner),
    /// The model itself.
    Fused(&'a mut dyn FusedAdamW),
}

enum Side {
    Host(Box<HostLearner>),
    Gpu(Box<dyn GpuPasses>),
}

/// Short rows are packed together up to so many tokens on a GPU.
const GPU_PASS_TOKENS: usize = 2048;

/// Tokens that go into a pass, where rows are of at most `row` tokens: our kernels on a GPU are not busy with fewer than some
/// thousand.
pub fn pass_tokens(row: usize, on_gpu: bool) -> usize {
    if on_gpu { row.max(GPU_PASS_TOKENS) } else { row }
}

/// The model being trained: parameters, and gradients that add up over backward passes until they are used.
pub struct Learner {
    config: Arc<ModelConfig>,
    side: Side,
    last: Option<Rows>,
}

impl Learner {
    /// Takes over a model on whatever device burn has it. `head_chunk` is how many rows of logits exist at a time.
    ///
    /// # Errors
    /// The fast kernels and a device other than the CPU.
    pub fn new(decoder: Decoder, kernels: Kernels, head_chunk: usize) -> Result<Learner, ModelError> {
        Self::here(Trained::whole(decoder), kernels, head_chunk, 0)
    }

    /// As [`Learner::new`], to train an adapter and what else the plan names; the rest is frozen and has no gradients. What is
    /// random follows from `seed`.
    ///
    /// # Errors
    /// As there.
    pub fn with_lora(
        decoder: Decoder,
        kernels: Kernels,
        head_chunk: usize,
        (plan, seed): (LoraPlan, u64),
    ) -> Result<Learner, ModelError> {
        Self::here(Trained::adapter(decoder, plan, seed), kernels, head_chunk, seed)
    }

    fn here(model: Trained, kernels: Kernels, head_chunk: usize, seed: u64) -> Result<Learner, ModelError> {
        let config = model.decoder.config().clone();
        let host = HostLearner::new(model, kernels, head_chunk, seed)?;
        Ok(Learner { config, side: Side::Host(Box::new(host)), last: None })
    }

    /// Moves a model to a GPU, after a tiny step there was held against the CPU's.
    ///
    /// # Errors
    /// A shape that the GPU's kernels cannot take, a GPU that computes wrongly, not enough memory.
    pub fn on_gpu(decoder: Decoder, gpu: &Gpu, options: &GpuOptions) -> Result<Learner, ModelError> {
        let config = decoder.config().clone();
        Ok(Learner { config, side: Side::Gpu(gpu.learner(decoder, options)?), last: None })
    }

    /// Tokens that go into a pass, as [`pass_tokens`] has it.
    pub fn pass_tokens(&self, row: usize) -> usize {
        pass_tokens(row, matches!(self.side, Side::Gpu(_)))
    }

    /// The model's shape.
    pub fn config(&self) -> &Arc<ModelConfig> {
        &self.config
    }

    /// Names and shapes of what is trained, in the order of its gradients.
    pub fn trained(&self) -> Vec<ParameterInfo> {
        match &self.side {
            Side::Host(host) => host.model.parameters().into_iter().map(|(info, _)| info).collect(),
            Side::Gpu(_) => names::parameters(&self.config),
        }
    }

    /// Says which step the next passes are of, for what is random in training; passes of no step leave nothing out.
    pub fn begin(&mut self, step: Option<u64>) {
        if let Side::Host(host) = &mut self.side {
            host.step = step;
        }
    }

    /// Goes on from what [`Trained::save_adapter`] wrote.
    ///
    /// # Errors
    /// As [`Trained::load_adapter`]; a model without an adapter.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), ModelError> {
        match &mut self.side {
            Side::Host(host) => host.model.load_adapter(dir),
            Side::Gpu(_) => Err(ModelError::Input("there is no adapter on a GPU".into())),
        }
    }

    /// Logprob and entropy of every token.
    ///
    /// # Errors
    /// Lists that do not fit together, ids outside the vocabulary, a failing device.
    pub fn forward(&mut self, batch: &Packed) -> Result<TokenStats, ModelError> {
        self.last = None;
        check(batch, &self.config)?;
        let rows = Rows::new(batch);
        let (logprobs, entropy) = match &mut self.side {
            Side::Host(host) => {
                let dropout = host.dropout(batch)?;
                host.passes.forward(&host.model, dropout, batch, &rows)?
            }
            Side::Gpu(gpu) => gpu.forward(batch, &rows)?,
        };
        let uniform = (self.config.vocab_size as f32).ln();
        let stats =
            TokenStats { logprobs: rows.to_tokens(&logprobs, -uniform), entropy: rows.to_tokens(&entropy, uniform) };
        self.last = Some(rows);
        Ok(stats)
    }

    /// Adds the gradient of Σ_t dlogprob_t · logprob_t + dentropy_t · entropy_t over the tokens of the last forward
    /// pass, which it uses up. Entries of first tokens are ignored.
    ///
    /// # Errors
    /// No forward pass before it, lists of another length, a failing device.
    pub fn backward(&mut self, dlogprob: &[f32], dentropy: Option<&[f32]>) -> Result<(), ModelError> {
        let Some(rows) = self.last.take() else {
            return Err(ModelError::Input("backward needs a forward pass before it".into()));
        };
        let want = rows.labels.len();
        for (name, len) in [("dlogprob", dlogprob.len()), ("dentropy", dentropy.map_or(want, <[f32]>::len))] {
            if len != want {
                return Err(ModelError::Input(format!("`{name}` has {len} entries for {want} tokens")));
            }
        }
        let dlogprob = rows.to_rows(dlogprob);
        let dentropy = dentropy.map(|d| rows.to_rows(d));
        match &mut self.side {
            Side::Host(host) => host.passes.backward(&host.model, &rows, dlogprob, dentropy),
            Side::Gpu(gpu) => gpu.backward(&dlogprob, dentropy.as_deref()),
        }
    }

    /// Both passes where the gradients towards the log-probabilities are known before, which saves a product with the
    /// head. Returns the log-probabilities of the tokens whose gradient is not 0; what it gives for others says nothing.
    ///
    /// # Errors
    /// As for [`Learner::forward`] and [`Learner::backward`].
    pub fn forward_backward(&mut self, batch: &Packed, dlogprob: &[f32]) -> Result<Vec<f32>, ModelError> {
        self.last = None;
        check(batch, &self.config)?;
        if dlogprob.len() != batch.ids.len() {
            let text = format!("`dlogprob` has {} entries for {} tokens", dlogprob.len(), batch.ids.len());
            return Err(ModelError::Input(text));
        }
        let rows = Rows::new(batch);
        let dlogprob = rows.to_rows(dlogprob);
        let logprobs = match &mut self.side {
            Side::Host(host) => {
                let dropout = host.dropout(batch)?;
                host.passes.forward_backward(&host.model, dropout, batch, &rows, dlogprob)?
            }
            Side::Gpu(gpu) => gpu.forward_backward(batch, &rows, &dlogprob)?,
        };
        Ok(rows.to_tokens(&logprobs, 0.0))
    }

    /// Sets all gradients to 0.
    ///
    /// # Errors
    /// The device failed.
    pub fn zero_grads(&mut self) -> Result<(), ModelError> {
        match &mut self.side {
            Side::Host(host) => {
                host.zero_grads();
                Ok(())
            }
            Side::Gpu(gpu) => gpu.zero(),
        }
    }

    /// A copy of every gradient, in the order of [`Learner::trained`].
    ///
    /// # Errors
    /// The device failed.
    pub fn gradients(&self) -> Result<Vec<Vec<f32>>, ModelError> {
        match &self.side {
            Side::Host(host) => host.gradients(),
            Side::Gpu(gpu) => gpu.gradients(),
        }
    }

    /// Who takes the optimiser's next step. A forward pass that was not used is forgotten.
    pub fn stepper(&mut self) -> Stepper<'_> {
        self.last = None;
        match &mut self.side {
            Side::Host(host) => Stepper::Host(host),
            Side::Gpu(gpu) => Stepper::Fused(gpu.as_mut()),
        }
    }

    /// The present weights, to sample from.
    ///
    /// # Errors
    /// As for [`Decoder::snapshot`]; not enough memory for a copy on a GPU.
    pub fn snapshot(&self) -> Result<Arc<dyn Snapshot>, ModelError> {
        match &self.side {
            Side::Host(host) => host.model.snapshot(host.kernels),
            Side::Gpu(gpu) => gpu.snapshot(),
        }
    }

    /// The present weights: shared with the model, or copied from the GPU.
    ///
    /// # Errors
    /// The device failed.
    pub fn weights(&self) -> Result<Trained, ModelError> {
        match &self.side {
            Side::Host(host) => Ok(host.model.clone()),
            Side::Gpu(gpu) => gpu.decoder().map(Trained::whole),
        }
    }

    /// Waits until the device has done all that was asked of it, so that a clock may be read.
    ///
    /// # Errors
    /// The device failed.
    pub fn wait(&self) -> Result<(), ModelError> {
        match &self.side {
            Side::Host(_) => Ok(()),
            Side::Gpu(gpu) => gpu.wait(),
        }
    }

    /// The most memory of the GPU that the process held so far, bytes; none on the CPU.
    pub fn device_peak_bytes(&self) -> Option<u64> {
        match &self.side {
            Side::Host(_) => None,
            Side::Gpu(gpu) => gpu.peak_bytes(),
        }
    }
}

fn check(batch: &Packed, config: &ModelConfig) -> Result<(), ModelError> {
    let error = |text: String| Err(ModelError::Input(text));
    let tokens = batch.ids.len();
    if tokens == 0 {
        return error("no tokens".into());
    }
    if batch.doc_lens.iter().sum::<usize>() != tokens || batch.doc_lens.contains(&0) {
        return error(format!("document lengths {:?} do not cover {tokens} tokens", batch.doc_lens));
    }
    if batch.temperatures.len() != tokens {
        return error(format!("{} temperatures for {tokens} tokens", batch.temperatures.len()));
    }
    if let Some(t) = batch.temperatures.iter().find(|t| !(t.is_finite() && **t >= 0.0)) {
        return error(format!("temperature {t}"));
    }
    check_ids(&batch.ids, config)
}
