//! Supervised fine-tuning on what a frozen model samples in the environments: cross-entropy on its tokens. Rewards play no
//! part in the loss, but are measured.
//!
//! With lp_t the policy's log-probability of token t that the frozen model sampled:
//!
//! ```text
//! loss_t = −lp_t
//! ```
//!
//! The host does all of it: it samples from the model named in `[orchestrator.algo.sampling.source]`, routes sampled tokens to its ce
//! component, and divides by their number in the step. Learning from a table of conversations is `prl sft`'s.

use prl_sdk::{ActionLoss, Algorithm, Error, Hook, Host, NoConfig, Source};

/// The algorithm.
pub struct Sft;

impl Algorithm for Sft {
    const NAME: &'static str = "sft";
    const ACTION_LOSS: ActionLoss = ActionLoss::Ce;
    const SOURCE: Source = Source::Frozen;
    const HOOKS: &'static [Hook] = &[];
    type Config = NoConfig;

    fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
        Ok(Sft)
    }
}

prl_sdk::export!(Sft);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_options() {
        prl_sdk::testing::check_schema::<Sft>().unwrap();
    }
}
