//! What a training loop says about steps that left the weights as they were, and when it gives up. Owns the number of such
//! steps in a row; must not know how a step is trained.

use prl_trainer::Update;
use prl_types::Step;

/// So many steps in a row whose loss or gradient is not finite end the run.
const MAX_NOT_FINITE: u32 = 10;

/// Counts the steps in a row whose loss or gradient was not finite.
#[derive(Default)]
pub struct Divergence(u32);

impl Divergence {
    /// Takes in a step's outcome. `lr` is the learning rate's key in the configuration.
    ///
    /// # Errors
    /// It was one step without an update too many.
    pub fn note(&mut self, step: Step, update: Update, lr: &str) -> Result<(), String> {
        match update {
            Update::Applied => self.0 = 0,
            Update::NothingTrainable => {
                tracing::warn!(target: "prl_trainer", "step {step}: no token of the batch trains; the weights stay");
            }
            Update::NotFinite => {
                tracing::warn!(target: "prl_trainer", "step {step}: loss or gradient is not finite; the weights stay");
                self.0 += 1;
                if self.0 == MAX_NOT_FINITE {
                    return Err(format!(
                        "loss or gradient was not finite in {MAX_NOT_FINITE} steps in a row: training has diverged; \
                         lower `{lr}`"
                    ));
                }
            }
        }
        Ok(())
    }
}
