//! A test harness for authors: made-up or recorded groups and batches, run in-process through the same C functions that
//! a real host calls; golden vectors ([`check_golden`]); and a check of a loss's derivatives by finite differences
//! ([`check_loss`], [`check_gradient`]). Must not know any algorithm.

mod batch;
mod golden;
mod gradient;
mod group;
mod recorded;
mod recorder;

pub use batch::BatchBuilder;
pub use golden::check_golden;
pub use gradient::{GradientReport, check_gradient, check_gradient_of, check_loss, made_up_batch};
pub use group::{GroupBuilder, RolloutBuilder};
pub use recorded::{
    RecordedBatch, RecordedBatchSample, RecordedComponent, RecordedGroup, RecordedMetric, RecordedRollout,
    RecordedSample, RecordedTurn, Span,
};

use crate::{Algorithm, Hook, export};
use prl_abi::{Bytes, Description, Plugin, Str};
use recorder::Recorder;
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr;

/// What was written for one sample; `None` for streams that were not written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)] // see `crate::Stream`
pub struct SampleStreams {
    pub advantages: Option<Vec<f32>>,
    pub rl_weights: Option<Vec<f32>>,
    pub ce_weights: Option<Vec<f32>>,
    pub ref_kl_weights: Option<Vec<f32>>,
    pub ref_logprobs: Option<Vec<f32>>,
}

/// What an algorithm did with a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// By sample of the group.
    pub streams: Vec<SampleStreams>,
    /// By rollout: why it was dropped.
    pub dropped: Vec<Option<String>>,
    /// In the order in which they were given.
    pub metrics: Vec<(String, f64)>,
    /// Log lines.
    pub log: Vec<String>,
}

/// What a loss said of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lost {
    /// The batch's addend to the step's loss.
    pub loss: f64,
    /// By token; those of tokens that are no members are 0, as in a run.
    pub d_logprob: Vec<f32>,
    /// By token, likewise; `None` without [`Algorithm::ENTROPY`].
    pub d_entropy: Option<Vec<f32>>,
    /// By token.
    pub token_loss: Vec<f32>,
    /// In the order in which they were given.
    pub metrics: Vec<(String, f64)>,
}

/// Scores one group with a fresh instance: `score_rollout` on each rollout is not called, `score_group` is.
///
/// # Errors
/// The text of the algorithm, of a panic, or of a broken rule of the ABI.
pub fn score<A: Algorithm>(config: &str, group: &GroupBuilder) -> Result<Scored, String> {
    Tested::<A>::new(config)?.score_group(group)
}

/// Checks that `CONFIG_SCHEMA` is an object schema that allows no other keys, that the algorithm refuses unknown keys, and
/// that each property's `default` is a value it takes.
///
/// # Errors
/// What is wrong.
pub fn check_schema<A: Algorithm>() -> Result<(), String> {
    let schema: serde_json::Value =
        serde_json::from_str(A::CONFIG_SCHEMA).map_err(|e| format!("CONFIG_SCHEMA is no JSON: {e}"))?;
    if schema["type"] != "object" || schema["additionalProperties"] != false {
        return Err("CONFIG_SCHEMA needs \"type\": \"object\" and \"additionalProperties\": false".into());
    }
    if serde_json::from_str::<A::Config>(r#"{"no such key": 0}"#).is_ok() {
        return Err("the configuration takes unknown keys: add #[serde(deny_unknown_fields)]".into());
    }
    let required = |key: &String| schema["required"].as_array().is_some_and(|r| r.iter().any(|k| k == key));
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        if let (Some(default), false) = (property.get("default"), required(key)) {
            let config = serde_json::json!({ key: default }).to_string();
            Tested::<A>::new(&config).map_err(|e| format!("the default of `{key}` is refused: {e}"))?;
        }
    }
    Ok(())
}

/// An instance of an algorithm behind the C functions of its table.
pub struct Tested<A: Algorithm> {
    table: Plugin,
    instance: *mut c_void,
    /// Both made by `Box::into_raw`, at fixed addresses, freed on drop; the host points at the recorder.
    recorder: *mut Recorder,
    host: *mut prl_abi::Host,
    _algorithm: PhantomData<A>,
}

impl<A: Algorithm> Tested<A> {
    /// Creates an instance from a JSON configuration.
    ///
    /// # Errors
    /// The text of the algorithm or of a panic.
    pub fn new(config: &str) -> Result<Self, String> {
        unsafe extern "C" fn no_description(_: *mut Description) -> i32 {
            prl_abi::ERROR
        }
        let table = export::table::<A>(no_description);
        let recorder = Box::into_raw(Box::new(Recorder::default()));
        let host = Box::into_raw(Box::new(recorder::table(recorder)));
        let mut tested = Tested { table, instance: ptr::null_mut(), recorder, host, _algorithm: PhantomData };
        let create = tested.table.create.ok_or("no `create` in the table")?;
        // SAFETY: the host lives until the instance is destroyed.
        let code = unsafe { create(host, Str::new(config), &mut tested.instance) };
        tested.outcome(code)?;
        Ok(tested)
    }

    /// The recorder, between two calls.
    fn recorder(&mut self) -> &mut Recorder {
        // SAFETY: made in `new`, freed on drop; callbacks use it only during a call, when this borrow has ended.
        unsafe { &mut *self.recorder }
    }

    /// Scores a group.
    ///
    /// # Errors
    /// The text of the algorithm, of a panic, or of a broken rule of the ABI.
    pub fn score_group(&mut self, group: &GroupBuilder) -> Result<Scored, String> {
        self.score(group, self.table.score_group, "score_group")
    }

    /// Shows a group of one rollout to `score_rollout`.
    ///
    /// # Errors
    /// As [`Tested::score_group`].
    pub fn score_rollout(&mut self, group: &GroupBuilder) -> Result<Scored, String> {
        self.score(group, self.table.score_rollout, "score_rollout")
    }

    /// Shows a group of one rollout to `reference`: by sample, the messages that it asks for.
    ///
    /// # Errors
    /// As [`Tested::score_group`].
    pub fn reference(&mut self, group: &GroupBuilder) -> Result<Vec<Option<serde_json::Value>>, String> {
        self.recorder().prefixes = vec![None; group.columns().samples()];
        let outcome = self.score(group, self.table.reference, "reference");
        let prefixes = std::mem::take(&mut self.recorder().prefixes);
        outcome.map(|_| prefixes)
    }

    fn score(&mut self, group: &GroupBuilder, hook: Option<prl_abi::Score>, name: &str) -> Result<Scored, String> {
        let hook = hook.ok_or_else(|| format!("{name} is not in HOOKS"))?;
        let data = group.columns();
        let recorder = self.recorder();
        recorder.scored = Scored {
            streams: vec![SampleStreams::default(); data.samples()],
            dropped: vec![None; data.rollouts()],
            ..Default::default()
        };
        recorder.data = Some(data.clone());
        recorder.random = 0;
        let view = data.view();
        // SAFETY: the instance is alive, the view lives during the call.
        let code = unsafe { hook(self.instance, view.raw()) };
        self.outcome(code)?;
        Ok(std::mem::take(&mut self.recorder().scored))
    }

    /// The loss of a batch.
    ///
    /// # Errors
    /// The text of the algorithm or of a panic; a result that is not finite; [`Hook::Loss`] is not listed.
    pub fn loss(&mut self, batch: &BatchBuilder) -> Result<Lost, String> {
        let hook = self.table.loss.ok_or_else(|| format!("{} is not in HOOKS", Hook::Loss.as_str()))?;
        let columns = batch.columns(A::ENTROPY);
        let tokens = columns.token_id.len();
        let mut lost = Lost {
            d_logprob: vec![0.0; tokens],
            d_entropy: A::ENTROPY.then(|| vec![0.0; tokens]),
            token_loss: vec![0.0; tokens],
            ..Lost::default()
        };
        let mut out = prl_abi::Loss {
            struct_size: size_of::<prl_abi::Loss>() as u32,
            reserved: 0,
            loss: 0.0,
            d_logprob: lost.d_logprob.as_mut_ptr(),
            d_entropy: lost.d_entropy.as_mut().map_or(ptr::null_mut(), |list| list.as_mut_ptr()),
            token_loss: lost.token_loss.as_mut_ptr(),
        };
        let recorder = self.recorder();
        (recorder.data, recorder.scored, recorder.random) = (None, Scored::default(), 0);
        let view = columns.view();
        // SAFETY: the instance is alive; view and lists live during the call.
        let code = unsafe { hook(self.instance, view.raw(), &mut out) };
        self.outcome(code)?;
        lost.loss = out.loss;
        lost.metrics = std::mem::take(&mut self.recorder().scored.metrics);
        let lists = [Some(&mut lost.d_logprob), lost.d_entropy.as_mut()];
        for (list, name) in lists.into_iter().flatten().zip(["d_logprob", "d_entropy"]) {
            if let Some(at) = list.iter().position(|v| !v.is_finite()) {
                return Err(format!("{name} is {} at token {at}", list[at]));
            }
            list.iter_mut().zip(columns.rl_weight).filter(|(_, w)| **w == 0.0).for_each(|(v, _)| *v = 0.0);
        }
        if lost.loss.is_finite() { Ok(lost) } else { Err(format!("the loss is {}", lost.loss)) }
    }

    /// The saved state.
    ///
    /// # Errors
    /// The text of the algorithm or of a panic; [`Hook::State`] is not listed.
    pub fn save_state(&mut self) -> Result<Vec<u8>, String> {
        let hook = self.table.save_state.ok_or_else(|| format!("{} is not in HOOKS", Hook::State.as_str()))?;
        self.recorder().state.clear();
        // SAFETY: the instance is alive.
        let code = unsafe { hook(self.instance) };
        self.outcome(code)?;
        Ok(std::mem::take(&mut self.recorder().state))
    }

    /// Loads a state.
    ///
    /// # Errors
    /// As [`Tested::save_state`].
    pub fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        let hook = self.table.load_state.ok_or_else(|| format!("{} is not in HOOKS", Hook::State.as_str()))?;
        // SAFETY: the instance is alive, the bytes live during the call.
        let code = unsafe { hook(self.instance, Bytes::new(state)) };
        self.outcome(code)
    }

    fn outcome(&mut self, code: i32) -> Result<(), String> {
        let text = self.recorder().error.take();
        match (code, self.recorder().fault.take()) {
            (prl_abi::OK, None) => Ok(()),
            (prl_abi::OK, Some(fault)) => Err(fault),
            (prl_abi::PANIC, _) => Err(format!("panicked: {}", text.unwrap_or_default())),
            (_, fault) => Err(text.or(fault).unwrap_or_default()),
        }
    }
}

impl<A: Algorithm> Drop for Tested<A> {
    fn drop(&mut self) {
        if let (Some(destroy), false) = (self.table.destroy, self.instance.is_null()) {
            // SAFETY: made by `create`, destroyed once.
            unsafe { destroy(self.instance) }
        }
        // SAFETY: made by `Box::into_raw` in `new`, freed once, and nothing points at them any more.
        unsafe {
            drop(Box::from_raw(self.host));
            drop(Box::from_raw(self.recorder));
        }
    }
}
