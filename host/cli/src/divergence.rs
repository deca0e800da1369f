//! What a training loop says about steps that left the weights as they were, and when it gives up. Owns the number of such
//! steps in a row and in all; must not know how a step is trained.

use prl_trainer::Update;
use prl_types::Step;

/// So many steps in a row whose loss or gradient is not finite end the run.
const MAX_NOT_FINITE: u32 = 10;

/// Counts the steps whose loss or gradient was not finite.
#[derive(Default)]
pub struct Divergence {
    in_a_row: u32,
    left_out: u64,
    /// Whether some step was another one.
    finite: bool,
}

impl Divergence {
    /// Takes in a step's outcome. `lr` is the learning rate's key in the configuration.
    ///
    /// # Errors
    /// It was one step without an update too many.
    pub fn note(&mut self, step: Step, update: Update, lr: &str) -> Result<(), String> {
        match update {
            Update::Applied => (self.in_a_row, self.finite) = (0, true),
            Update::NothingTrainable => {
                self.finite = true;
                tracing::warn!(target: "prl_trainer", "step {step}: no token of the batch trains; the weights stay");
            }
            Update::NotFinite => {
                tracing::warn!(target: "prl_trainer", "step {step}: loss or gradient is not finite; the weights stay");
                self.in_a_row += 1;
                self.left_out += 1;
                if self.in_a_row == MAX_NOT_FINITE {
                    return Err(format!(
                        "loss or gradient was not finite in {MAX_NOT_FINITE} steps in a row: training has diverged; \
                         lower `{lr}`"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether the steps so far came to anything.
    ///
    /// # Errors
    /// There were some, and each was left out.
    pub fn check(&self) -> Result<(), String> {
        match self.left_out {
            n if n > 0 && !self.finite => Err(format!(
                "loss or gradient was not finite in every step ({n}): the weights are those that the run began with; look at \
                 the model and the data"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_learnt_nothing_is_told_from_one_that_left_steps_out() {
        let after = |updates: &[Update]| {
            let mut divergence = Divergence::default();
            updates.iter().zip(1..).try_for_each(|(update, step)| divergence.note(step, *update, "lr")).unwrap();
            divergence.check()
        };
        assert!(after(&[]).is_ok() && after(&[Update::Applied, Update::NotFinite]).is_ok());
        assert!(after(&[Update::NotFinite, Update::NothingTrainable]).is_ok());
        assert!(after(&[Update::NotFinite; 3]).unwrap_err().contains("every step (3)"));
    }
}
