//! A loss that is supplied from outside: its interface, and the lists it is called with. Owns the packing of lists and the
//! joining of its answer with the other components; must not know what computes it.

use crate::{SampleLoss, Tokens, TrainerError};
use prl_model::TokenStats;
use prl_types::{LossBatch, LossGradient, Metric, Sample, Step};
use std::path::Path;

/// The rl component as somebody else computes it.
pub trait CustomLoss: Send {
    /// Its name, for metrics and messages.
    fn name(&self) -> &str;

    /// Loss and derivatives of one packed micro-batch that has a member.
    ///
    /// # Errors
    /// A text for the user; the run ends with it.
    fn loss(&mut self, batch: &LossBatch) -> Result<LossGradient, String>;

    /// What a checkpoint must hold of it; nothing for one without a state.
    ///
    /// # Errors
    /// A text for the user; the checkpoint fails with it.
    fn save_state(&mut self) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }

    /// Takes back what [`CustomLoss::save_state`] gave, before its first call.
    ///
    /// # Errors
    /// A text for the user: a state that is not its own.
    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        Err(format!("`{}` has no state to load {} bytes into", self.name(), state.len()))
    }
}

/// File of its state.
const STATE: &str = "loss_state.bin";

/// Writes `loss_state.bin` in `dir`.
pub(crate) fn write_state(dir: &Path, state: &[u8]) -> Result<(), TrainerError> {
    let path = dir.join(STATE);
    std::fs::write(&path, state).map_err(|e| TrainerError::file("write", &path, e))
}

/// The custom loss of a trainer and what it said in the present step.
pub(crate) struct Custom {
    loss: Box<dyn CustomLoss>,
    /// Σ over the step's micro-batches.
    pub value: f64,
    /// In the order in which they were given.
    pub metrics: Vec<Metric>,
    /// Spent inside the loss.
    pub seconds: f64,
    part: u64,
}

impl Custom {
    pub fn new(loss: Box<dyn CustomLoss>) -> Self {
        Custom { loss, value: 0.0, metrics: Vec::new(), seconds: 0.0, part: 0 }
    }

    pub fn name(&self) -> &str {
        self.loss.name()
    }

    /// Its state, where there is one.
    pub fn state(&mut self) -> Result<Option<Vec<u8>>, TrainerError> {
        self.loss.save_state().map_err(|reason| TrainerError::Loss { reason })
    }

    /// Reads back what [`write_state`] wrote.
    pub fn load(&mut self, dir: &Path) -> Result<(), TrainerError> {
        let failed = |reason| TrainerError::Loss { reason };
        let path = dir.join(STATE);
        if !path.exists() && self.state()?.is_none() {
            return Ok(());
        }
        let state = std::fs::read(&path).map_err(|e| TrainerError::file("read", &path, e))?;
        self.loss.load_state(&state).map_err(failed)
    }

    /// Forgets the step before.
    pub fn begin(&mut self) {
        (self.value, self.seconds, self.part) = (0.0, 0.0, 0);
        self.metrics.clear();
    }

    /// The gradient of one micro-batch; `None` when it has no member.
    ///
    /// # Errors
    /// The loss's own, and lists that are not as long as there are tokens.
    pub fn call(
        &mut self,
        step: Step,
        members: u64,
        pack: &Pack,
        stats: &TokenStats,
    ) -> Result<Option<LossGradient>, TrainerError> {
        let part = self.part;
        self.part += 1;
        if pack.weights.iter().all(|w| *w == 0.0) {
            return Ok(None);
        }
        let failed = |reason: String| TrainerError::Loss { reason };
        let gradient = self.loss.loss(&pack.batch((step, part), members, stats)).map_err(failed)?;
        let tokens = pack.weights.len();
        let entropy = gradient.dentropy.as_ref().map_or(tokens, Vec::len);
        for (list, len) in [
            ("dlogprob", gradient.dlogprob.len()),
            ("dentropy", entropy),
            ("token_losses", gradient.token_losses.len()),
        ] {
            if len != tokens {
                return Err(failed(format!("`{}` gave {len} values of {list} for {tokens} tokens", self.loss.name())));
            }
        }
        self.value += gradient.loss;
        self.seconds += gradient.seconds;
        self.metrics.extend_from_slice(&gradient.metrics);
        Ok(Some(gradient))
    }
}

/// The lists of a micro-batch, sample after sample.
#[derive(Default)]
pub(crate) struct Pack {
    starts: Vec<u64>,
    temperatures: Vec<f32>,
    oldest: Vec<u64>,
    newest: Vec<u64>,
    ids: Vec<u32>,
    mask: Vec<u8>,
    sampling: Vec<f32>,
    reference: Vec<f32>,
    referenced: bool,
    advantages: Vec<f32>,
    weights: Vec<f32>,
}

impl Pack {
    pub fn push(&mut self, sample: &Sample, tokens: &Tokens) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        let n = sample.len();
        let (oldest, newest) = sample.versions().unwrap_or_default();
        self.temperatures.push(sample.temperature());
        self.oldest.push(oldest.0);
        self.newest.push(newest.0);
        self.ids.extend_from_slice(sample.token_ids());
        self.mask.extend(sample.mask().iter().map(|m| u8::from(*m)));
        self.sampling.extend_from_slice(sample.logprobs());
        self.weights.extend((0..n).map(|t| tokens.rl_weight(t) as f32));
        let (advantages, reference) = (&tokens.streams.advantages, &tokens.streams.ref_logprobs);
        self.referenced |= reference.is_some();
        for (list, values, absent) in
            [(&mut self.advantages, advantages, 0.0), (&mut self.reference, reference, f32::NAN)]
        {
            match values {
                Some(values) => list.extend_from_slice(values),
                None => list.resize(list.len() + n, absent),
            }
        }
        self.starts.push(self.ids.len() as u64);
    }

    fn batch<'a>(&'a self, (step, part): (Step, u64), members: u64, stats: &'a TokenStats) -> LossBatch<'a> {
        LossBatch {
            step,
            part,
            normalizer: members.max(1) as f64,
            starts: &self.starts,
            temperatures: &self.temperatures,
            oldest: &self.oldest,
            newest: &self.newest,
            token_ids: &self.ids,
            mask: &self.mask,
            trainer_logprobs: &stats.logprobs,
            sampling_logprobs: &self.sampling,
            ref_logprobs: self.referenced.then_some(&self.reference),
            advantages: &self.advantages,
            weights: &self.weights,
            entropy: &stats.entropy,
        }
    }
}

/// Adds a custom loss's word on one sample, whose first token is `first` of the micro-batch, to the other components'.
pub(crate) fn join(own: &mut SampleLoss, tokens: &Tokens, gradient: &LossGradient, first: usize) {
    let n = own.dlogprob.len();
    for (d, more) in own.dlogprob.iter_mut().zip(&gradient.dlogprob[first..]) {
        *d += more;
    }
    let members = (0..n).filter(|t| tokens.is_member(*t));
    for (loss, t) in own.token_losses.iter_mut().zip(members) {
        if tokens.rl_weight(t) != 0.0 {
            *loss += f64::from(gradient.token_losses[first + t]);
        }
    }
}
