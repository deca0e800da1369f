//! What happens to a complete group before batching: the environment's group scores, then the algorithm's streams, both
//! checked. Knows nothing of other groups.

use crate::metrics::is_live;
use crate::rollout::total_reward;
use crate::{Algorithm, Env, Finished, Scored};
use prl_types::{ErrorKind, Metric, Rollout, RolloutError, Score, Step, Streams, masked_mean};
use std::sync::Arc;

/// Name under which a group's rollouts are recorded as filtered when too few members are valid.
const INCOMPLETE_GROUP: &str = "incomplete_group";
/// Name under which rollouts are recorded as filtered that the algorithm does not want to train.
const ALGORITHM: &str = "algorithm";

/// What scoring found about one member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    /// A group score that replaces the member's own, with the total reward.
    pub score: Option<(Score, f64)>,
    /// The group score was invalid.
    pub error: Option<RolloutError>,
    /// One per sample.
    pub streams: Vec<Streams>,
    /// Why it does not train.
    pub dropped: Option<&'static str>,
}

impl Verdict {
    /// Writes the verdict into its rollout.
    pub(crate) fn apply(self, rollout: &mut Rollout) {
        if let Some((score, reward)) = self.score {
            rollout.score = score;
            rollout.reward = reward;
        }
        if let Some(error) = self.error {
            rollout.fail(error);
        }
        let samples = rollout.samples.iter().zip(&self.streams);
        for (branch, (sample, streams)) in rollout.branches.iter_mut().zip(samples) {
            branch.trained = is_live(streams);
            branch.advantage = streams.advantages.as_ref().map(|advantages| masked_mean(advantages, sample.mask()).0);
        }
        rollout.streams = self.streams;
        if let Some(name) = self.dropped {
            crate::filters::flag(rollout, name);
            rollout.is_filtered = true;
        }
    }
}

/// What came of a group.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// One per member.
    pub verdicts: Vec<Verdict>,
    /// The algorithm's own numbers.
    pub metrics: Vec<Metric>,
    /// The algorithm's state after it.
    pub state: Option<String>,
}

/// Scores a group for the batch of `step`.
///
/// # Errors
/// The algorithm failed or gave invalid streams.
pub(crate) async fn score(
    env: Arc<dyn Env>,
    algorithm: Arc<dyn Algorithm>,
    step: Step,
    members: Arc<Vec<Finished>>,
) -> Result<Judged, String> {
    let mut verdicts = together(env.as_ref(), &members).await;
    let valid: Vec<usize> =
        (0..members.len()).filter(|i| members[*i].rollout.error.is_none() && verdicts[*i].error.is_none()).collect();
    if valid.len() < algorithm.min_group().max(1) {
        valid.into_iter().for_each(|i| verdicts[i].dropped = Some(INCOMPLETE_GROUP));
        return Ok(Judged { verdicts, ..Judged::default() });
    }
    let work = move || {
        let rescored: Vec<Option<Rollout>> = valid
            .iter()
            .map(|i| {
                let (score, reward) = verdicts[*i].score.clone()?;
                Some(Rollout { score, reward, ..members[*i].rollout.clone() })
            })
            .collect();
        let group: Vec<&Rollout> =
            valid.iter().zip(&rescored).map(|(i, r)| r.as_ref().unwrap_or(&members[*i].rollout)).collect();
        let Scored { streams, metrics } = algorithm.score_group(step, &group)?;
        if streams.len() != group.len() {
            return Err(format!("it gave streams for {} rollouts of a group of {}", streams.len(), group.len()));
        }
        for ((i, rollout), streams) in valid.iter().zip(&group).zip(streams) {
            match streams {
                Some(streams) => {
                    check(rollout, &streams)?;
                    verdicts[*i].streams = streams;
                }
                None => verdicts[*i].dropped = Some(ALGORITHM),
            }
        }
        let state = algorithm.state()?;
        Ok(Judged { verdicts, metrics, state })
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(e) => Err(e.to_string()),
    }
}

fn check(rollout: &Rollout, streams: &[Streams]) -> Result<(), String> {
    if streams.len() != rollout.samples.len() {
        return Err(format!(
            "it gave {} stream sets for the {} samples of rollout {}",
            streams.len(),
            rollout.samples.len(),
            rollout.id
        ));
    }
    for (sample, streams) in rollout.samples.iter().zip(streams) {
        streams.validate(sample.len()).map_err(|e| format!("rollout {}: {e}", rollout.id))?;
    }
    Ok(())
}

/// The environment's scores of the group's members that did not fail; nothing where it does not score groups.
pub(crate) async fn together(env: &dyn Env, members: &[Finished]) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::default(); members.len()];
    let valid: Vec<usize> = (0..members.len()).filter(|i| members[*i].rollout.error.is_none()).collect();
    if !env.group_scoring() || valid.is_empty() {
        return verdicts;
    }
    let group: Vec<&Finished> = valid.iter().map(|i| &members[*i]).collect();
    let scores = match env.score_group(&members[0].rollout.task, &group).await {
        Ok(scores) if scores.len() == group.len() => Ok(scores),
        Ok(scores) => Err(format!("`score_group` gave {} scores for {} members", scores.len(), group.len())),
        Err(message) => Err(format!("`score_group` failed: {message}")),
    };
    match scores {
        Ok(scores) => {
            for (i, score) in valid.into_iter().zip(scores) {
                match total_reward(&score, &members[i].rollout.turns) {
                    Ok(reward) => verdicts[i].score = Some((score, reward)),
                    Err(error) => verdicts[i].error = Some(error),
                }
            }
        }
        Err(message) => {
            let error = RolloutError { kind: ErrorKind::EnvError, message };
            valid.into_iter().for_each(|i| verdicts[i].error = Some(error.clone()));
        }
    }
    verdicts
}
