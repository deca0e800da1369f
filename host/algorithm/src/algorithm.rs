//! An instance of a plug-in: scores groups, saves and loads its state. Owns the validation of results; must not know what
//! the numbers mean.

use crate::clock::timed;
use crate::host::{HostTable, Outcome, Places, Sink, splitmix};
use crate::view::group_data;
use crate::{ActionLoss, AlgorithmError, Hook, Metadata, stamp_loss_routing};
use prl_abi::Bytes;
use prl_types::{Metric, Rollout, Streams};
use serde_json::Value;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// A call that takes longer is worth a warning: the whole run waits for it.
const SLOW_CALL: Duration = Duration::from_secs(1);

/// Keeps the random numbers of `reference` apart from those of scoring.
const REFERENCE_STREAM: u64 = 1;

/// What an algorithm did with rollouts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// By rollout, by sample: validated, and routed to the algorithm's loss. Those of dropped rollouts are not for use.
    pub streams: Vec<Vec<Streams>>,
    /// By rollout: why the algorithm took it out of training.
    pub dropped: Vec<Option<String>>,
    /// Numbers it gave; names may repeat.
    pub metrics: Vec<Metric>,
    /// Wall-clock seconds of the call.
    pub seconds: f64,
}

/// A running instance of an algorithm.
pub struct Algorithm {
    pub(crate) metadata: Metadata,
    pub(crate) table: prl_abi::Plugin,
    pub(crate) host: HostTable,
    pub(crate) instance: *mut c_void,
    pub(crate) seed: u64,
}

// SAFETY: `prl.h` promises that an instance may be used by one thread after another.
unsafe impl Send for Algorithm {}

impl Algorithm {
    pub(crate) fn new(
        metadata: Metadata,
        table: prl_abi::Plugin,
        host: HostTable,
        instance: *mut c_void,
        seed: u64,
    ) -> Self {
        Algorithm { metadata, table, host, instance, seed }
    }

    /// The plug-in's name.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// The loss component that sampled tokens feed.
    pub fn action_loss(&self) -> ActionLoss {
        self.metadata.action_loss
    }

    /// Whether it has an optional function.
    pub fn has(&self, hook: Hook) -> bool {
        self.metadata.hooks.contains(&hook)
    }

    /// Shows a finished rollout to the algorithm. Keep the streams in [`Rollout::streams`]: the group's scoring starts from
    /// them. Gives empty streams at once when it has no such hook.
    ///
    /// # Errors
    /// The plug-in's failure, panic or invalid result.
    pub fn score_rollout(&mut self, rollout: &Rollout) -> Result<Scored, AlgorithmError> {
        // Members are counted from 1 here, so that a rollout and its group draw different random numbers.
        let (hook, stream) = (self.table.score_rollout, u64::from(rollout.id.member) + 1);
        self.score(&[rollout], hook, "score_rollout", stream)
    }

    /// Asks the algorithm what stands before a finished rollout's samples when the live policy scores them: by sample, a
    /// list of messages ({"role", "content"}), or `None` where it wants no reference. Nothing is asked of an algorithm
    /// without such a hook. Put the log-probabilities into [`Rollout::streams`] before scoring.
    ///
    /// # Errors
    /// The plug-in's failure, panic or invalid result: a sample that is not there, messages that are none.
    pub fn reference(&mut self, rollout: &Rollout) -> Result<Vec<Option<Value>>, AlgorithmError> {
        let nothing = vec![None; rollout.samples.len()];
        let Some(hook) = self.table.reference else { return Ok(nothing) };
        let data = group_data(&[rollout]);
        let view = data.view();
        let seed = mix(&[self.seed, rollout.id.group.0, u64::from(rollout.id.member) + 1, REFERENCE_STREAM]);
        self.host.context().begin(seed, Places { prefixes: Some(nothing), ..Places::default() });
        // SAFETY: the instance is alive and borrowed exclusively; the view lives during the call.
        let (code, time) = timed(|| unsafe { hook(self.instance, view.raw()) });
        self.note("reference", time);
        Ok(self.finish("reference", code)?.places.prefixes.unwrap_or_default())
    }

    /// Scores a complete group: its members that ended without an error and have samples, in order. Routes sampled tokens
    /// to the declared loss.
    ///
    /// # Errors
    /// The plug-in's failure, panic or invalid result: values that are not finite, wrong lengths, a rollout left without
    /// the streams its loss needs.
    pub fn score_group(&mut self, rollouts: &[&Rollout]) -> Result<Scored, AlgorithmError> {
        if rollouts.is_empty() {
            return Ok(Scored::default());
        }
        let mut scored = self.score(rollouts, self.table.score_group, "score_group", 0)?;
        for (i, rollout) in rollouts.iter().enumerate() {
            if scored.dropped[i].is_some() {
                continue;
            }
            for (j, (sample, streams)) in rollout.samples.iter().zip(&mut scored.streams[i]).enumerate() {
                stamp_loss_routing(self.metadata.action_loss, sample, streams);
                if let Some(missing) = missing_stream(sample.mask(), streams) {
                    let reason = format!("sample {j} of rollout {i} is left without {missing}");
                    return Err(self.output("score_group", reason));
                }
            }
        }
        Ok(scored)
    }

    /// As a run scores a complete group: each of its members alone, then all together. What was said of a member alone, a
    /// reason to drop it and metrics among it, is in the result.
    ///
    /// # Errors
    /// As [`Algorithm::score_rollout`] and [`Algorithm::score_group`].
    pub fn score_whole_group(&mut self, rollouts: &[&Rollout]) -> Result<Scored, AlgorithmError> {
        if !self.has(Hook::ScoreRollout) {
            return self.score_group(rollouts);
        }
        let (mut seen, mut early, mut metrics, mut seconds) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        for rollout in rollouts {
            let alone = self.score_rollout(rollout)?;
            metrics.extend(alone.metrics);
            seconds += alone.seconds;
            early.push(alone.dropped.into_iter().next().flatten());
            let streams = alone.streams.into_iter().next().unwrap_or_default();
            seen.push(Rollout { streams, ..(*rollout).clone() });
        }
        let mut scored = self.score_group(&seen.iter().collect::<Vec<_>>())?;
        scored.metrics.splice(0..0, metrics);
        scored.seconds += seconds;
        for (late, early) in scored.dropped.iter_mut().zip(early) {
            *late = late.take().or(early);
        }
        Ok(scored)
    }

    /// What a checkpoint must hold; empty for an algorithm without state.
    ///
    /// # Errors
    /// The plug-in's failure or panic.
    pub fn save_state(&mut self) -> Result<Vec<u8>, AlgorithmError> {
        let Some(save) = self.table.save_state else { return Ok(Vec::new()) };
        self.host.context().begin(self.seed, Places { state: Some(Vec::new()), ..Places::default() });
        // SAFETY: the instance is alive and borrowed exclusively.
        let code = unsafe { save(self.instance) };
        let outcome = self.finish("save_state", code)?;
        Ok(outcome.places.state.unwrap_or_default())
    }

    /// Takes back what [`Algorithm::save_state`] gave. Call it before any scoring.
    ///
    /// # Errors
    /// The plug-in's failure or panic; a state for an algorithm that has none.
    pub fn load_state(&mut self, state: &[u8]) -> Result<(), AlgorithmError> {
        let Some(load) = self.table.load_state else {
            if state.is_empty() {
                return Ok(());
            }
            return Err(AlgorithmError::NoState { name: self.metadata.name.clone(), len_bytes: state.len() });
        };
        self.host.context().begin(self.seed, Places::default());
        // SAFETY: the instance is alive and borrowed exclusively; the bytes live during the call.
        let code = unsafe { load(self.instance, Bytes::new(state)) };
        self.finish("load_state", code).map(|_| ())
    }

    fn score(
        &mut self,
        rollouts: &[&Rollout],
        hook: Option<prl_abi::Score>,
        call: &'static str,
        stream: u64,
    ) -> Result<Scored, AlgorithmError> {
        let before = |r: &Rollout, i: usize| r.streams.get(i).cloned().unwrap_or_default();
        let streams = rollouts.iter().flat_map(|r| (0..r.samples.len()).map(|i| before(r, i))).collect();
        let sink = Sink { data: Arc::new(group_data(rollouts)), streams, dropped: vec![None; rollouts.len()] };
        let Some(hook) = hook else { return Ok(collect(rollouts, sink, Vec::new(), Duration::ZERO)) };
        let data = Arc::clone(&sink.data);
        let view = data.view();
        let group = rollouts.first().map_or(0, |r| r.id.group.0);
        let places = Places { sink: Some(sink), ..Places::default() };
        self.host.context().begin(mix(&[self.seed, group, stream]), places);
        // SAFETY: the instance is alive and borrowed exclusively; the view lives during the call.
        let (code, time) = timed(|| unsafe { hook(self.instance, view.raw()) });
        self.note(call, time);
        let outcome = self.finish(call, code)?;
        match outcome.places.sink {
            Some(sink) => Ok(collect(rollouts, sink, outcome.metrics, time)),
            None => Err(self.output(call, "its streams are gone".into())),
        }
    }

    /// Warns of a call that others wait for.
    pub(crate) fn note(&self, call: &'static str, time: Duration) {
        if time > SLOW_CALL {
            tracing::warn!("algorithm {} took {:.1} s in {call}", self.metadata.name, time.as_secs_f64());
        }
    }

    /// Closes a call whose function returned `code`.
    pub(crate) fn finish(&self, call: &'static str, code: i32) -> Result<Outcome, AlgorithmError> {
        let mut outcome = self.host.context().end();
        let name = self.metadata.name.clone();
        let mut text = || outcome.error.take().unwrap_or_else(|| format!("it returned {code} without a reason"));
        // A broken rule first: the plug-in's own text is often a consequence of it.
        match (code, outcome.fault.take()) {
            (prl_abi::PANIC, _) => Err(AlgorithmError::Panic { name, call, reason: text() }),
            (_, Some(reason)) => Err(AlgorithmError::Output { name, call, reason }),
            (prl_abi::OK, None) => Ok(outcome),
            (_, None) => Err(AlgorithmError::Failed { name, call, reason: text() }),
        }
    }

    pub(crate) fn output(&self, call: &'static str, reason: String) -> AlgorithmError {
        AlgorithmError::Output { name: self.metadata.name.clone(), call, reason }
    }
}

impl Drop for Algorithm {
    fn drop(&mut self) {
        if let Some(destroy) = self.table.destroy {
            self.host.context().begin(self.seed, Places::default());
            // SAFETY: made by `create`, destroyed once; the host's table is freed after this.
            unsafe { destroy(self.instance) };
            if let Some(text) = self.host.context().end().error {
                tracing::warn!("algorithm {} failed in destroy: {text}", self.metadata.name);
            }
        }
    }
}

/// The stream a sample's live tokens need and lack.
fn missing_stream(mask: &[bool], streams: &Streams) -> Option<&'static str> {
    let live = |weights: &Option<Vec<f32>>| weights.as_ref().is_some_and(|w| w.iter().any(|w| *w != 0.0));
    let rl = match &streams.rl_weights {
        None => mask.iter().any(|m| *m),
        Some(weights) => weights.iter().zip(mask).any(|(w, m)| *m && *w != 0.0),
    };
    if rl && streams.advantages.is_none() {
        return Some("advantages");
    }
    (live(&streams.ref_kl_weights) && streams.ref_logprobs.is_none()).then_some("reference log-probabilities")
}

fn collect(rollouts: &[&Rollout], sink: Sink, metrics: Vec<Metric>, time: Duration) -> Scored {
    let mut flat = sink.streams.into_iter();
    let streams = rollouts.iter().map(|r| flat.by_ref().take(r.samples.len()).collect()).collect();
    Scored { streams, dropped: sink.dropped, metrics, seconds: time.as_secs_f64() }
}

/// One seed out of several numbers.
pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, part| splitmix(state ^ part).1)
}
