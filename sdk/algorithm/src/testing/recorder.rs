//! The callbacks of the harness: a small host that records what a plug-in does. Owns the check of its arguments; must not
//! call plug-ins.

use super::Scored;
use prl_abi::ids::stream;
use prl_abi::{Bytes, GroupData, Str};
use std::ffi::c_void;
use std::mem::size_of;

/// The table of callbacks for a recorder, which must outlive its use.
pub(super) fn table(recorder: *mut Recorder) -> prl_abi::Host {
    prl_abi::Host {
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
    }
}

/// What one call left behind.
#[derive(Default)]
pub(super) struct Recorder {
    pub data: Option<GroupData>,
    pub scored: Scored,
    pub state: Vec<u8>,
    pub error: Option<String>,
    pub fault: Option<String>,
    pub random: u64,
    /// By sample, during `reference` only.
    pub prefixes: Vec<Option<serde_json::Value>>,
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
    splitmix(&mut unsafe { recorder(ctx) }.random)
}

/// splitmix64 (Steele et al., 2014).
pub(super) fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
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
