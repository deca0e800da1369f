//! On-policy distillation: the policy samples, a frozen teacher says how likely each sampled token is under it, and the
//! policy is drawn towards the teacher where it goes itself. Rewards play no part.
//!
//! With lp_t the policy's log-probability of sampled token t, mu_t that when it was drawn, ref_t the teacher's:
//!
//! ```text
//! minimise  E[Σ_t lp_t − ref_t]                              the reverse KL from the policy to the teacher
//! loss_t  = −keep_t·sg(ref_t − lp_t)·e^(lp_t − mu_t) + 1e-3·(lp_t − mu_t)²
//! keep_t  = e^lp_t − e^mu_t ≥ −0.2
//! ```
//!
//! The host does all of it: it scores every rollout under the teacher named in `[orchestrator.algo.teacher]`, routes sampled
//! tokens to its ref_kl component (the formula above, with sg for stop-gradient), and divides by their number in the step.
//!
//! Sources: Agarwal et al., "On-Policy Distillation of Language Models", arXiv:2306.13649 (samples of the student); the
//! gradient as advantages ref − lp and the mask follow prime-rl.

use prl_sdk::{ActionLoss, Algorithm, Error, Hook, Host, NoConfig, Reference};

/// The algorithm.
pub struct Opd;

impl Algorithm for Opd {
    const NAME: &'static str = "opd";
    const ACTION_LOSS: ActionLoss = ActionLoss::RefKl;
    const REFERENCE: Reference = Reference::Teacher;
    const HOOKS: &'static [Hook] = &[];
    type Config = NoConfig;

    fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
        Ok(Opd)
    }
}

prl_sdk::export!(Opd);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_options() {
        prl_sdk::testing::check_schema::<Opd>().unwrap();
    }
}
