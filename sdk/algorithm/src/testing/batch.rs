//! Made-up batches for a loss, written down in a test or read from JSON. Owns the columns under construction; must not
//! know any formula.

use super::recorded::{RecordedBatch, RecordedBatchSample};
use prl_abi::BatchColumns;

/// A packed micro-batch under construction.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchBuilder {
    normalizer: Option<f64>,
    token_start: Vec<u64>,
    temperature: Vec<f32>,
    version_min: Vec<u64>,
    version_max: Vec<u64>,
    token_id: Vec<u32>,
    mask: Vec<u8>,
    sampling_logprob: Vec<f32>,
    ref_logprob: Vec<f32>,
    referenced: bool,
    advantage: Vec<f32>,
    rl_weight: Vec<f32>,
    pub(super) trainer_logprob: Vec<f32>,
    pub(super) entropy: Vec<f32>,
}

impl Default for BatchBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl BatchBuilder {
    /// A batch without samples, whose step has no other members than its own.
    pub fn new() -> Self {
        BatchBuilder {
            normalizer: None,
            token_start: vec![0],
            temperature: Vec::new(),
            version_min: Vec::new(),
            version_max: Vec::new(),
            token_id: Vec::new(),
            mask: Vec::new(),
            sampling_logprob: Vec::new(),
            ref_logprob: Vec::new(),
            referenced: false,
            advantage: Vec::new(),
            rl_weight: Vec::new(),
            trainer_logprob: Vec::new(),
            entropy: Vec::new(),
        }
    }

    /// A recorded batch: JSON of a [`RecordedBatch`].
    ///
    /// # Errors
    /// No JSON of a batch, or lists that do not fit each other.
    pub fn from_json(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|e| format!("no recorded batch: {e}")).and_then(Self::from_recorded)
    }

    /// A recorded batch.
    ///
    /// # Errors
    /// Lists that do not fit each other.
    pub fn from_recorded(recorded: RecordedBatch) -> Result<Self, String> {
        let mut batch = BatchBuilder { normalizer: recorded.normalizer, ..BatchBuilder::new() };
        for (i, sample) in recorded.samples.into_iter().enumerate() {
            batch.push(sample).map_err(|e| format!("sample {i}: {e}"))?;
        }
        Ok(batch)
    }

    /// Members in the whole step, for a batch that is not all of it.
    pub fn normalizer(mut self, members: f64) -> Self {
        self.normalizer = Some(members);
        self
    }

    /// Appends a sample.
    ///
    /// # Panics
    /// Lists that do not fit each other.
    pub fn recorded(mut self, sample: RecordedBatchSample) -> Self {
        if let Err(error) = self.push(sample) {
            panic!("{error}");
        }
        self
    }

    fn push(&mut self, sample: RecordedBatchSample) -> Result<(), String> {
        let n = sample.mask.len();
        let or =
            |list: Option<Vec<f32>>, value: &dyn Fn(usize) -> f32| list.unwrap_or_else(|| (0..n).map(value).collect());
        let member = |t: usize| f32::from(u8::from(t > 0 && sample.mask[t]));
        self.referenced |= sample.ref_logprobs.is_some();
        for (name, list, place) in [
            ("trainer_logprobs", sample.trainer_logprobs, &mut self.trainer_logprob),
            ("sampling_logprobs", sample.sampling_logprobs, &mut self.sampling_logprob),
            ("advantages", sample.advantages, &mut self.advantage),
            ("rl_weights", or(sample.rl_weights, &member), &mut self.rl_weight),
            ("ref_logprobs", or(sample.ref_logprobs, &|_| f32::NAN), &mut self.ref_logprob),
            ("entropy", or(sample.entropy, &|_| 0.0), &mut self.entropy),
        ] {
            if list.len() != n {
                return Err(format!("`{name}` has {} entries for the {n} tokens of `mask`", list.len()));
            }
            place.extend(list);
        }
        let ids = sample.token_ids.unwrap_or_else(|| vec![0; n]);
        if ids.len() != n {
            return Err(format!("`token_ids` has {} entries for the {n} tokens of `mask`", ids.len()));
        }
        self.token_id.extend(ids);
        self.mask.extend(sample.mask.iter().map(|m| u8::from(*m)));
        self.temperature.push(sample.temperature.unwrap_or(1.0));
        self.version_min.push(sample.versions[0]);
        self.version_max.push(sample.versions[1]);
        self.token_start.push(self.token_id.len() as u64);
        Ok(())
    }

    /// The columns, with entropies if the loss takes them.
    pub(super) fn columns(&self, entropy: bool) -> BatchColumns<'_> {
        let members = self.rl_weight.iter().filter(|w| **w != 0.0).count();
        BatchColumns {
            normalizer: self.normalizer.unwrap_or(members.max(1) as f64),
            token_start: &self.token_start,
            temperature: &self.temperature,
            version_min: &self.version_min,
            version_max: &self.version_max,
            token_id: &self.token_id,
            mask: &self.mask,
            trainer_logprob: &self.trainer_logprob,
            sampling_logprob: &self.sampling_logprob,
            ref_logprob: self.referenced.then_some(&self.ref_logprob),
            advantage: &self.advantage,
            rl_weight: &self.rl_weight,
            entropy: entropy.then_some(&self.entropy),
        }
    }

    /// Each sample as a batch of its own, of the same step.
    pub(super) fn split(&self) -> Vec<BatchBuilder> {
        let normalizer = Some(self.columns(false).normalizer);
        let part = |i: usize| {
            let tokens = self.token_start[i] as usize..self.token_start[i + 1] as usize;
            BatchBuilder {
                normalizer,
                token_start: vec![0, tokens.len() as u64],
                temperature: vec![self.temperature[i]],
                version_min: vec![self.version_min[i]],
                version_max: vec![self.version_max[i]],
                token_id: self.token_id[tokens.clone()].to_vec(),
                mask: self.mask[tokens.clone()].to_vec(),
                sampling_logprob: self.sampling_logprob[tokens.clone()].to_vec(),
                ref_logprob: self.ref_logprob[tokens.clone()].to_vec(),
                referenced: self.referenced,
                advantage: self.advantage[tokens.clone()].to_vec(),
                rl_weight: self.rl_weight[tokens.clone()].to_vec(),
                trainer_logprob: self.trainer_logprob[tokens.clone()].to_vec(),
                entropy: self.entropy[tokens].to_vec(),
            }
        };
        (0..self.temperature.len()).map(part).collect()
    }
}
