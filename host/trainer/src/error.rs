//! What can go wrong in training.

use prl_model::ModelError;
use prl_types::{SampleError, Step};
use std::path::{Path, PathBuf};

/// Errors of the trainer.
#[derive(Debug, thiserror::Error)]
pub enum TrainerError {
    /// The model's forward, backward or device failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A stream that does not fit its sample.
    #[error("sample {item} of environment `{env}`: {source}")]
    Stream {
        /// Place in the batch.
        item: usize,
        /// The environment.
        env: String,
        /// What is wrong.
        source: SampleError,
    },
    /// Tokens of a component lack what the component computes with.
    #[error("sample {item} of environment `{env}` has tokens in the `{component}` component but no {missing}")]
    MissingStream {
        /// Place in the batch.
        item: usize,
        /// The environment.
        env: String,
        /// The loss component.
        component: &'static str,
        /// The stream.
        missing: &'static str,
    },
    /// A component that compares with the sampling log-probability has a token that was not sampled.
    #[error(
        "sample {item} of environment `{env}` weighs token {token} in the `ref_kl` component, but the model did not \
         sample it; the algorithm must set `ref_kl_weights` to 0 there"
    )]
    NotSampled {
        /// Place in the batch.
        item: usize,
        /// The environment.
        env: String,
        /// Place in the sample.
        token: usize,
    },
    /// A batch out of turn.
    #[error("the batch is for step {got}, but the next step is {want}")]
    OutOfTurn {
        /// The batch's step.
        got: Step,
        /// The trainer's next step.
        want: Step,
    },
    /// The custom loss failed.
    #[error("{reason}")]
    Loss {
        /// Its own word, which names it.
        reason: String,
    },
    /// A setting that cannot work.
    #[error("`{key}` {reason}")]
    Setting {
        /// Dotted key as in the run's configuration.
        key: &'static str,
        /// What is wrong and how to fix it.
        reason: String,
    },
    /// A training document whose lists differ in length.
    #[error("document {index}: the mask has {mask} entries for {ids} tokens")]
    Document {
        /// Which draw.
        index: u64,
        /// Number of tokens.
        ids: usize,
        /// Entries in the mask.
        mask: usize,
    },
    /// A source of documents failed.
    #[error("document {index}: {message}")]
    Source {
        /// Which draw.
        index: u64,
        /// The source's word.
        message: String,
    },
    /// Sources that cannot be mixed as they are to be.
    #[error("{0}")]
    Mixture(String),
    /// A source that yields nothing to train on.
    #[error(
        "{skipped} documents in a row have no trainable token within {seq_len} tokens; raise `data.seq_len` or check \
         `data.loss_mask`"
    )]
    NothingTrainable {
        /// How many were looked at.
        skipped: u64,
        /// The row length.
        seq_len: usize,
    },
    /// The step, or the validation, was given up because a stop was asked for.
    #[error("stopped before it was done")]
    Stopped,
    /// The state of another optimiser than the run's.
    #[error(
        "`{}` is what the optimiser \"{saved}\" remembers, and this run has \"{run}\"; go on with \
         `optim.type = \"{saved}\"`, or begin with an optimiser that has seen nothing: `ckpt.skip_optimizer = true` (in \
         `prl rl` both under `trainer`)", path.display()
    )]
    OtherOptimizer {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        saved: String,
        /// The run's.
        run: &'static str,
    },
    /// The state of a run on other data.
    #[error(
        "the data is not that of the checkpoint: {difference}. Go on with the data as it was, or begin this data at its first \
         document: `ckpt.skip_dataloader = true`"
    )]
    OtherData {
        /// The first difference.
        difference: String,
    },
    /// A state file could not be read or written.
    #[error("cannot {action} `{path}`: {reason}")]
    File {
        /// For example `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

impl TrainerError {
    pub(crate) fn file(action: &'static str, path: &Path, reason: impl ToString) -> Self {
        TrainerError::File { action, path: path.to_path_buf(), reason: reason.to_string() }
    }
}
