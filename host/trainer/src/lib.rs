//! Loss components, optimiser, schedules and the gradient step, for reinforcement learning and supervised fine-tuning.
//!
//! Owns how per-token streams become gradients and gradients become weights. Algorithm-blind: must not know an
//! algorithm's name, an environment, how tokens were sampled, or where checkpoints live. Everything here is synchronous;
//! nothing prints.

mod clock;
mod custom;
mod documents;
mod error;
mod fake;
mod fingerprint;
mod loss;
mod metrics;
mod mixture;
mod optim;
mod pack;
mod peak;
mod progress;
mod schedule;
mod sft;
mod spool;
mod state;
mod trainer;

pub use custom::CustomLoss;
pub use documents::{Document, Documents, Drawn, Generated};
pub use error::TrainerError;
pub use fake::{fake_batch, fake_document};
pub use fingerprint::{Fingerprint, PartPrint};
pub use loss::{Counts, SampleLoss, Tokens, sample_loss};
pub use metrics::{StepMetrics, flops_per_token};
pub use mixture::{Mixture, Part, Turns, Until};
pub use pack::pack;
pub use peak::peak_flops;
pub use progress::{Progress, Share, Skip};
pub use schedule::Schedule;
pub use sft::{SftParts, SftTrainer, ValidationPasses};
pub use spool::{Spool, SpoolWriter};
pub use state::TrainerState;
pub use trainer::{StepOutcome, Trainer, TrainerParts, Update};
