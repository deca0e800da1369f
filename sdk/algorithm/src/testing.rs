//! A test harness for authors: made-up groups, scored in-process through the same C functions a real host calls.
//! Owns a small recording host; must not know any algorithm.

use crate::{Algorithm, Hook, export};
use prl_abi::ids::{role, stream};
use prl_abi::{Bytes, Description, GroupData, Plugin, Str};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr;

/// A group under construction.
#[derive(Clone, Debug)]
pub struct GroupBuilder {
    data: GroupData,
}

impl Default for GroupBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl GroupBuilder {
    /// Group 0 of the environment `test`, task `test:0`, without payload, answer or rollouts.
    pub fn new() -> Self {
        GroupBuilder { data: GroupData::new(0, "test", "test:0", "null".into(), "null".into()) }
    }

    /// The task's identity, payload (JSON) and answer (JSON).
    pub fn task(mut self, key: &str, payload: &str, answer: &str) -> Self {
        self.data.task_key = key.into();
        self.data.task_payload = payload.into();
        self.data.task_answer = answer.into();
        self
    }

    /// Appends a rollout.
    pub fn rollout(mut self, rollout: RolloutBuilder) -> Self {
        let data = &mut self.data;
        data.member.push(data.rollouts() as u32);
        data.reward.push(rollout.reward);
        data.turns.push(rollout.turns.len() as u32);
        data.truncated.push(rollout.truncated.into());
        data.policy_version.push(0);
        data.stop_condition.push("done".into());
        data.score_info.push("null".into());
        for (tokens, reward) in rollout.turns {
            data.turn_tokens.push(tokens);
            data.turn_reward.push(reward.unwrap_or(f64::NAN));
        }
        for (name, value, weight) in rollout.components {
            data.component_name.push(name);
            data.component_value.push(value);
            data.component_weight.push(weight);
        }
        for (name, value) in rollout.metrics {
            data.metric_name.push(name);
            data.metric_value.push(value);
        }
        for mask in rollout.samples {
            for (i, sampled) in mask.into_iter().enumerate() {
                data.token_id.push(i as u32);
                data.mask.push(sampled.into());
                data.sampling_logprob.push(if sampled { -0.5 } else { 0.0 });
                data.role.push(if sampled { role::ASSISTANT } else { role::USER } as u8);
                data.content.push(1);
            }
            data.temperature.push(1.0);
            data.version_min.push(0);
            data.version_max.push(0);
            data.end_sample();
        }
        data.end_rollout();
        self
    }

    /// The columns, for what the builder has no method for.
    pub fn data(&mut self) -> &mut GroupData {
        &mut self.data
    }
}

/// A rollout under construction.
#[derive(Clone, Debug)]
pub struct RolloutBuilder {
    reward: f64,
    truncated: bool,
    samples: Vec<Vec<bool>>,
    turns: Vec<(u64, Option<f64>)>,
    components: Vec<(String, f64, f64)>,
    metrics: Vec<(String, f64)>,
}

impl RolloutBuilder {
    /// A rollout with this total reward and nothing else.
    pub fn new(reward: f64) -> Self {
        RolloutBuilder {
            reward,
            truncated: false,
            samples: Vec::new(),
            turns: Vec::new(),
            components: Vec::new(),
            metrics: Vec::new(),
        }
    }

    /// Appends a sample of `prompt` tokens that were not sampled and `completion` tokens that were.
    pub fn sample(self, prompt: usize, completion: usize) -> Self {
        self.tokens(&[vec![false; prompt], vec![true; completion]].concat())
    }

    /// Appends a sample with this mask: true where the model sampled the token.
    pub fn tokens(mut self, mask: &[bool]) -> Self {
        self.samples.push(mask.to_vec());
        self
    }

    /// Appends a turn.
    pub fn turn(mut self, tokens: u64, reward: Option<f64>) -> Self {
        self.turns.push((tokens, reward));
        self
    }

    /// Appends a line of the rubric.
    pub fn component(mut self, name: &str, value: f64, weight: f64) -> Self {
        self.components.push((name.into(), value, weight));
        self
    }

    /// Appends a metric.
    pub fn metric(mut self, name: &str, value: f64) -> Self {
        self.metrics.push((name.into(), value));
        self
    }

    /// Marks it as cut off.
    pub fn truncated(mut self) -> Self {
        self.truncated = true;
        self
    }
}

/// What was written for one sample; `None` for streams that were not written.
#[derive(Clone, Debug, Default, PartialEq)]
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
        let host = Box::into_raw(Box::new(prl_abi::Host {
            struct_size: size_of::<prl_abi::Host>() as u32,
            abi_version: prl_abi::ABI_VERSION,
            ctx: recorder.cast(),
            log,
            metric,
            rng,
            error,
            assign,
            write,
            drop: drop_rollout,
            save,
            reference,
        }));
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
        self.recorder().prefixes = vec![None; group.data.samples()];
        let outcome = self.score(group, self.table.reference, "reference");
        let prefixes = std::mem::take(&mut self.recorder().prefixes);
        outcome.map(|_| prefixes)
    }

    fn score(&mut self, group: &GroupBuilder, hook: Option<prl_abi::Score>, name: &str) -> Result<Scored, String> {
        let hook = hook.ok_or_else(|| format!("{name} is not in HOOKS"))?;
        let data = &group.data;
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

#[derive(Default)]
struct Recorder {
    data: Option<GroupData>,
    scored: Scored,
    state: Vec<u8>,
    error: Option<String>,
    fault: Option<String>,
    random: u64,
    /// By sample, during `reference` only.
    prefixes: Vec<Option<serde_json::Value>>,
}

impl Recorder {
    fn fail(&mut self, text: String) -> i32 {
        self.fault.get_or_insert(text);
        prl_abi::ERROR
    }
}

/// # Safety
/// `ctx` is the recorder of a running call.
unsafe fn recorder<'a>(ctx: *mut c_void) -> &'a mut Recorder {
    // SAFETY: by the contract of this function.
    unsafe { &mut *ctx.cast() }
}

/// # Safety
/// `raw` follows `prl.h`.
unsafe fn text(raw: Str) -> String {
    // SAFETY: by the contract of this function.
    String::from_utf8_lossy(unsafe { raw.bytes() }.unwrap_or_default()).into_owned()
}

// The callbacks. SAFETY of each: the SDK passes the host's own `ctx` and views that live during the call.

unsafe extern "C" fn log(ctx: *mut c_void, _level: u32, message: Str) {
    unsafe { recorder(ctx).scored.log.push(text(message)) }
}

unsafe extern "C" fn metric(ctx: *mut c_void, name: Str, value: f64) {
    let (recorder, name) = unsafe { (recorder(ctx), text(name)) };
    if value.is_finite() {
        recorder.scored.metrics.push((name, value));
    } else {
        recorder.fail(format!("the metric {name} is {value}"));
    }
}

unsafe extern "C" fn rng(ctx: *mut c_void) -> u64 {
    // splitmix64
    let recorder = unsafe { recorder(ctx) };
    recorder.random = recorder.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = recorder.random;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

unsafe extern "C" fn error(ctx: *mut c_void, message: Str) {
    unsafe { recorder(ctx).error = Some(text(message)) }
}

unsafe extern "C" fn assign(ctx: *mut c_void, rollout: usize, advantage: f64) -> i32 {
    let recorder = unsafe { recorder(ctx) };
    let Some(data) = &recorder.data else { return recorder.fail("`assign` outside of a score".into()) };
    let Some(samples) = data.samples_of(rollout) else {
        return recorder.fail(format!("there is no rollout {rollout}"));
    };
    let value = advantage as f32;
    if !value.is_finite() {
        return recorder.fail(format!("the advantage of rollout {rollout} is {advantage}"));
    }
    for sample in samples {
        let mask = &data.mask[data.tokens_of(sample).unwrap_or(0..0)];
        let values = mask.iter().map(|m| if *m != 0 { value } else { 0.0 }).collect();
        recorder.scored.streams[sample].advantages = Some(values);
    }
    prl_abi::OK
}

unsafe extern "C" fn write(ctx: *mut c_void, id: u32, sample: usize, values: *const f32, n: usize) -> i32 {
    let (recorder, values) = unsafe { (recorder(ctx), prl_abi::view(values, n)) };
    let tokens = recorder.data.as_ref().and_then(|data| data.tokens_of(sample)).map(|range| range.len());
    let Some(tokens) = tokens else { return recorder.fail(format!("there is no sample {sample}")) };
    let values = values.unwrap_or_default();
    if values.len() != tokens {
        return recorder.fail(format!("{n} values for the {tokens} tokens of sample {sample}"));
    }
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        return recorder.fail(format!("{} at token {at} of sample {sample}", values[at]));
    }
    let streams = &mut recorder.scored.streams[sample];
    let place = match id {
        stream::ADVANTAGES => &mut streams.advantages,
        stream::RL_WEIGHTS => &mut streams.rl_weights,
        stream::CE_WEIGHTS => &mut streams.ce_weights,
        stream::REF_KL_WEIGHTS => &mut streams.ref_kl_weights,
        stream::REF_LOGPROBS => &mut streams.ref_logprobs,
        _ => return recorder.fail(format!("there is no stream {id}")),
    };
    *place = Some(values.to_vec());
    prl_abi::OK
}

unsafe extern "C" fn drop_rollout(ctx: *mut c_void, rollout: usize, reason: Str) -> i32 {
    let (recorder, reason) = unsafe { (recorder(ctx), text(reason)) };
    match recorder.scored.dropped.get_mut(rollout) {
        Some(place) => {
            *place = Some(reason);
            prl_abi::OK
        }
        None => recorder.fail(format!("there is no rollout {rollout}")),
    }
}

unsafe extern "C" fn reference(ctx: *mut c_void, sample: usize, messages: Str) -> i32 {
    let (recorder, messages) = unsafe { (recorder(ctx), text(messages)) };
    let Some(place) = recorder.prefixes.get_mut(sample) else {
        return recorder.fail(format!("there is no sample {sample} that could have a reference"));
    };
    match serde_json::from_str(&messages) {
        Ok(messages) => {
            *place = Some(messages);
            prl_abi::OK
        }
        Err(e) => recorder.fail(format!("the messages of sample {sample} are no JSON: {e}")),
    }
}

unsafe extern "C" fn save(ctx: *mut c_void, bytes: Bytes) -> i32 {
    let (recorder, bytes) = unsafe { (recorder(ctx), bytes.bytes()) };
    recorder.state.extend_from_slice(bytes.unwrap_or_default());
    prl_abi::OK
}
