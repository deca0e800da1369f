//! What the orchestrator hands to the trainer.

use crate::{Sample, SampleError, Step, Streams};
use serde::{Deserialize, Serialize};

/// One sample with its streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct BatchItem {
    /// Environment name, for per-environment metrics.
    pub env: String,
    /// The tokens.
    pub sample: Sample,
    /// The algorithm's word on each token.
    pub streams: Streams,
}

/// An item as a checkpoint holds it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    env: String,
    sample: Sample,
    streams: Streams,
}

impl TryFrom<Written> for BatchItem {
    type Error = SampleError;

    fn try_from(Written { env, sample, streams }: Written) -> Result<Self, SampleError> {
        BatchItem::new(env, sample, streams)
    }
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The step that trains on it.
    pub step: Step,
    /// In (group, member, branch) order.
    pub items: Vec<BatchItem>,
}
