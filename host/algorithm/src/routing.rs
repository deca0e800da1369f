//! Which loss component a rollout's sampled tokens feed. Owns the routing rule; must not know which algorithm asks.

use prl_types::{Sample, Streams};
use serde::{Deserialize, Serialize};

/// The loss component that sampled tokens feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionLoss {
    /// Policy gradient on advantages.
    Rl,
    /// Cross-entropy on the sampled tokens.
    Ce,
    /// Reverse KL to reference log-probabilities on the sampled tokens.
    RefKl,
}

/// Routes a sample's sampled tokens to the component the algorithm declared. `Rl` writes nothing. `Ce` sets every rl weight
/// to 0 and the ce weight of sampled tokens to 1, keeping other tokens' ce weights; `RefKl` likewise with ref_kl weights.
pub fn stamp_loss_routing(action: ActionLoss, sample: &Sample, streams: &mut Streams) {
    let weights = match action {
        ActionLoss::Rl => return,
        ActionLoss::Ce => &mut streams.ce_weights,
        ActionLoss::RefKl => &mut streams.ref_kl_weights,
    };
    let weights = weights.get_or_insert_with(|| vec![0.0; sample.len()]);
    for (weight, sampled) in weights.iter_mut().zip(sample.mask()) {
        if *sampled {
            *weight = 1.0;
        }
    }
    streams.rl_weights = Some(vec![0.0; sample.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_types::{FinishReason, PolicyVersion, Sampled};

    fn sample() -> Sample {
        let v = (PolicyVersion(0), PolicyVersion(0));
        let mut sample = Sample::from_prompt(&[1, 2], vec![], 1.0);
        sample.push_sampled(&Sampled::from_engine(vec![3], vec![-1.0], v, FinishReason::Length).unwrap());
        sample.push_context(&[4], &[]);
        sample
    }

    #[test]
    fn rl_ships_no_weights() {
        let mut streams = Streams { advantages: Some(vec![0.0, 0.0, 1.0, 0.0]), ..Default::default() };
        let before = streams.clone();
        stamp_loss_routing(ActionLoss::Rl, &sample(), &mut streams);
        assert_eq!(streams, before);
    }

    #[test]
    fn ce_merges_into_an_existing_stream() {
        let mut streams = Streams { ce_weights: Some(vec![0.0, 0.0, 0.0, 0.1]), ..Default::default() };
        stamp_loss_routing(ActionLoss::Ce, &sample(), &mut streams);
        assert_eq!(streams.ce_weights, Some(vec![0.0, 0.0, 1.0, 0.1]));
        assert_eq!(streams.rl_weights, Some(vec![0.0; 4]));
        assert_eq!(streams.ref_kl_weights, None);
    }

    #[test]
    fn ref_kl_weights_the_sampled_tokens() {
        let mut streams = Streams::default();
        stamp_loss_routing(ActionLoss::RefKl, &sample(), &mut streams);
        assert_eq!(streams.ref_kl_weights, Some(vec![0.0, 0.0, 1.0, 0.0]));
        assert_eq!((streams.rl_weights, streams.ce_weights), (Some(vec![0.0; 4]), None));
    }
}
