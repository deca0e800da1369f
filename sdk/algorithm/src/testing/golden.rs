//! Golden vectors: groups and batches in a JSON file with the results that another implementation, or an earlier version,
//! gave for them. Owns the format and the comparison; must not know any algorithm.

use super::{BatchBuilder, GroupBuilder, Lost, RecordedBatch, RecordedGroup, SampleStreams, Scored, Tested};
use crate::Algorithm;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    config: Option<Value>,
    /// Largest difference, absolute for values up to 1 and relative beyond; 0: equal after rounding to f32.
    #[serde(default)]
    tolerance: f64,
    #[serde(default)]
    group: Option<RecordedGroup>,
    /// By sample; a stream that is null or left out must not be written.
    #[serde(default)]
    streams: Vec<SampleStreams>,
    /// By rollout, whether it is dropped; left out: none is.
    #[serde(default)]
    dropped: Option<Vec<bool>>,
    #[serde(default)]
    batch: Option<RecordedBatch>,
    #[serde(default)]
    loss: f64,
    #[serde(default)]
    d_logprob: Vec<f32>,
    #[serde(default)]
    d_entropy: Option<Vec<f32>>,
}

/// Runs an algorithm over golden vectors; gives the number of cases. `json` is a list of objects with `name`, `config`
/// (left out: no keys) and `tolerance` (left out: 0), and either `group` ([`RecordedGroup`]), `streams` (by sample) and
/// `dropped` (by rollout, true or false), or `batch` ([`RecordedBatch`]), `loss`, `d_logprob` and `d_entropy`.
///
/// # Errors
/// The first difference with its case; a file that holds no cases.
pub fn check_golden<A: Algorithm>(json: &str) -> Result<usize, String> {
    let cases: Vec<Case> = serde_json::from_str(json).map_err(|e| format!("no golden vectors: {e}"))?;
    if cases.is_empty() {
        return Err("no golden vectors: the list is empty".into());
    }
    for case in &cases {
        case.check::<A>().map_err(|e| format!("{}: {e}", case.name))?;
    }
    Ok(cases.len())
}

impl Case {
    fn check<A: Algorithm>(&self) -> Result<(), String> {
        let config = self.config.as_ref().map_or("{}".into(), Value::to_string);
        let mut tested = Tested::<A>::new(&config)?;
        match (&self.group, &self.batch) {
            (Some(group), None) => self.score(tested.score_group(&GroupBuilder::from_recorded(group.clone())?)?),
            (None, Some(batch)) => self.lost(tested.loss(&BatchBuilder::from_recorded(batch.clone())?)?),
            _ => Err("a case has either `group` or `batch`".into()),
        }
    }

    fn score(&self, scored: Scored) -> Result<(), String> {
        if scored.streams.len() != self.streams.len() {
            return Err(format!("streams of {} samples, the group has {}", self.streams.len(), scored.streams.len()));
        }
        let dropped: Vec<bool> = scored.dropped.iter().map(Option::is_some).collect();
        if self.dropped.as_ref().map_or(dropped.contains(&true), |want| *want != dropped) {
            return Err(format!("dropped: {dropped:?}"));
        }
        for (i, (got, want)) in scored.streams.iter().zip(&self.streams).enumerate() {
            for (name, got, want) in [
                ("advantages", &got.advantages, &want.advantages),
                ("rl_weights", &got.rl_weights, &want.rl_weights),
                ("ce_weights", &got.ce_weights, &want.ce_weights),
                ("ref_kl_weights", &got.ref_kl_weights, &want.ref_kl_weights),
                ("ref_logprobs", &got.ref_logprobs, &want.ref_logprobs),
            ] {
                self.lists(&format!("{name} of sample {i}"), got.as_deref(), want.as_deref())?;
            }
        }
        Ok(())
    }

    fn lost(&self, lost: Lost) -> Result<(), String> {
        if !self.close(lost.loss, self.loss) {
            return Err(format!("the loss is {}, not {}", lost.loss, self.loss));
        }
        self.lists("d_logprob", Some(&lost.d_logprob), Some(&self.d_logprob))?;
        self.lists("d_entropy", lost.d_entropy.as_deref(), self.d_entropy.as_deref())
    }

    fn lists(&self, name: &str, got: Option<&[f32]>, want: Option<&[f32]>) -> Result<(), String> {
        let (Some(got), Some(want)) = (got, want) else {
            return if got.is_none() && want.is_none() {
                Ok(())
            } else {
                Err(format!("{name}: {got:?}, not {want:?}"))
            };
        };
        if got.len() != want.len() {
            return Err(format!("{name}: {} values, not {}", got.len(), want.len()));
        }
        match got.iter().zip(want).position(|(g, w)| !self.close(f64::from(*g), f64::from(*w))) {
            Some(at) => Err(format!("{name}: {} at token {at}, not {}", got[at], want[at])),
            None => Ok(()),
        }
    }

    fn close(&self, got: f64, want: f64) -> bool {
        (got - want).abs() <= self.tolerance * want.abs().max(1.0)
    }
}
