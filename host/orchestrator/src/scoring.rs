//! What happens to a complete group before batching: the environment's group scores, then the algorithm's streams, both
//! checked. Knows nothing of other groups.

use crate::rollout::total_reward;
use crate::{Algorithm, Env, Finished, Scored};
use prl_types::{ErrorKind, Metric, Rollout, RolloutError, Score, Streams};
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
            crate::rollout::fail(rollout, error);
        }
        rollout.streams = self.streams;
        if let Some(name) = self.dropped {
            crate::filters::flag(rollout, name);
            rollout.is_filtered = true;
        }
    }
}

/// Scores a group: one verdict per member, and the algorithm's own numbers.
///
/// # Errors
/// The algorithm failed or gave invalid streams.
pub(crate) async fn score(
    env: Arc<dyn Env>,
    algorithm: Arc<dyn Algorithm>,
    members: Arc<Vec<Finished>>,
) -> Result<(Vec<Verdict>, Vec<Metric>), String> {
    let mut verdicts = vec![Verdict::default(); members.len()];
    let grouped = env.group_scoring();
    if grouped {
        score_together(env.as_ref(), &members, &mut verdicts).await;
    }
    let valid: Vec<usize> =
        (0..members.len()).filter(|i| members[*i].rollout.error.is_none() && verdicts[*i].error.is_none()).collect();
    let needed = if grouped { members.len() } else { algorithm.min_group().max(1) };
    if valid.len() < needed {
        valid.into_iter().for_each(|i| verdicts[i].dropped = Some(INCOMPLETE_GROUP));
        return Ok((verdicts, Vec::new()));
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
        let Scored { streams, metrics } = algorithm.score_group(&group)?;
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
        Ok((verdicts, metrics))
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

async fn score_together(env: &dyn Env, members: &[Finished], verdicts: &mut [Verdict]) {
    let valid: Vec<usize> = (0..members.len()).filter(|i| members[*i].rollout.error.is_none()).collect();
    if valid.len() < members.len() {
        return;
    }
    let group: Vec<&Finished> = members.iter().collect();
    let scores = match env.score_group(&members[0].rollout.task, &group).await {
        Ok(scores) if scores.len() == members.len() => Ok(scores),
        Ok(scores) => Err(format!("`score_group` gave {} scores for {} members", scores.len(), members.len())),
        Err(message) => Err(format!("`score_group` failed: {message}")),
    };
    match scores {
        Ok(scores) => {
            for ((verdict, member), score) in verdicts.iter_mut().zip(members).zip(scores) {
                match total_reward(&score, &member.rollout.turns) {
                    Ok(reward) => verdict.score = Some((score, reward)),
                    Err(error) => verdict.error = Some(error),
                }
            }
        }
        Err(message) => {
            let error = RolloutError { kind: ErrorKind::EnvError, message };
            verdicts.iter_mut().for_each(|v| v.error = Some(error.clone()));
        }
    }
}
