//! What the orchestrator hands to the trainer.

use crate::{Sample, SampleError, Step, Streams};
use serde::Serialize;

/// One sample with its streams.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchItem {
    /// Environment name, for per-environment metrics.
    pub env: String,
    /// The tokens.
    pub sample: Sample,
    /// The algorithm's word on each token.
    pub streams: Streams,
}

impl BatchItem {
    /// Pairs a sample with its streams.
    ///
    /// # Errors
    /// A stream of the wrong length or with a non-finite value.
    pub fn new(env: String, sample: Sample, streams: Streams) -> Result<Self, SampleError> {
        streams.validate(sample.len())?;
        Ok(BatchItem { env, sample, streams })
    }
}

/// The samples of one training step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// The step that trains on it.
    pub step: Step,
    /// In (group, member, branch) order.
    pub items: Vec<BatchItem>,
}
