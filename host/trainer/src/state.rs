//! What a trainer must remember to go on, beside its weights. Owns which files that makes; must not know when it is taken.

use crate::TrainerError;
use crate::custom;
use crate::optim::SavedOptimizer;
use crate::progress::Progress;
use std::path::Path;

/// The state of a moment: training goes on while it is written. As large as what the optimiser remembers.
pub struct TrainerState {
    pub(crate) optimizer: SavedOptimizer,
    pub(crate) progress: Progress,
    /// Of a loss from outside.
    pub(crate) loss: Option<Vec<u8>>,
}

impl TrainerState {
    /// Writes optimiser, counters and the state of the loss into the folder `dir`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), TrainerError> {
        self.optimizer.write(dir)?;
        self.loss.as_ref().map_or(Ok(()), |state| custom::write_state(dir, state))?;
        self.progress.save(dir)
    }
}
