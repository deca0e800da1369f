//! The run directory: checkpoints, weights, rollout log, and where everything else lies.
//!
//! Owns the layout under `output_dir`, who may use it, and how files get there whole: written aside, synced, renamed.
//! Must not know what is in the files. Nothing outside the names listed in [`RunDir`] is ever moved or removed.

mod error;
mod files;
mod records;
mod rollouts;
mod run_dir;
mod steps;
mod view;

pub use error::StoreError;
pub use files::{digest, sha256, write_atomic};
pub use records::Marks;
pub use rollouts::{RolloutLog, Split, Subset, read_lines};
pub use run_dir::{Create, RunDir};
pub use steps::{Checkpoints, Keep, Manifest, ManifestFile, StepWriter};
pub use view::{RunView, files_below};
