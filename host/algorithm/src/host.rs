//! The host's callbacks: what a plug-in may do while one of its functions runs. Owns the check of every argument that
//! comes from a plug-in and the place where results gather; must not call plug-ins.

use prl_abi::ids::{log, stream};
use prl_abi::{Bytes, GroupData, Str};
use prl_types::{Metric, Streams};
use serde_json::Value;
use std::ffi::c_void;
use std::mem::size_of;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The place behind `prl_host.ctx` of one instance.
pub(crate) struct Context {
    plugin: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    random: u64,
    /// The plug-in's text for a failure.
    error: Option<String>,
    /// The first rule that a callback saw broken.
    fault: Option<String>,
    metrics: Vec<Metric>,
    places: Places,
}

/// By sample: the messages that it asked for.
pub(crate) type Prefixes = Vec<Option<Value>>;

/// What a call may write to; all are absent where it may write to nothing.
#[derive(Default)]
pub(crate) struct Places {
    /// For `assign`, `write` and `drop`.
    pub sink: Option<Sink>,
    /// For `save`.
    pub state: Option<Vec<u8>>,
    /// For `reference`.
    pub prefixes: Option<Prefixes>,
}

/// Where the streams of the group being scored gather.
pub(crate) struct Sink {
    /// The group.
    pub data: Arc<GroupData>,
    /// By sample of the group.
    pub streams: Vec<Streams>,
    /// By rollout: why it was dropped.
    pub dropped: Vec<Option<String>>,
}

/// What one call left behind.
pub(crate) struct Outcome {
    pub error: Option<String>,
    pub fault: Option<String>,
    pub metrics: Vec<Metric>,
    pub places: Places,
}

impl Context {
    pub fn new(plugin: &str) -> Arc<Self> {
        Arc::new(Context { plugin: plugin.into(), inner: Mutex::default() })
    }

    /// The table of callbacks for this context, which must outlive its use.
    pub fn table(self: &Arc<Self>) -> prl_abi::Host {
        prl_abi::Host {
            struct_size: size_of::<prl_abi::Host>() as u32,
            abi_version: prl_abi::ABI_VERSION,
            ctx: Arc::as_ptr(self).cast_mut().cast(),
            log: log_line,
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

    /// Opens a call. `seed` starts its random numbers.
    pub fn begin(&self, seed: u64, places: Places) {
        *self.lock() = Inner { random: seed, places, ..Inner::default() };
    }

    /// Closes a call.
    pub fn end(&self) -> Outcome {
        let Inner { error, fault, metrics, places, .. } = std::mem::take(&mut *self.lock());
        Outcome { error, fault, metrics, places }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn fail(&mut self, text: impl Into<String>) -> i32 {
        self.fault.get_or_insert(text.into());
        prl_abi::ERROR
    }
}

/// One step of splitmix64 (Steele et al., 2014): the next state and 64 bits.
pub(crate) fn splitmix(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, z ^ (z >> 31))
}

/// # Safety
/// `ctx` is the pointer of [`Context::table`], and the context is alive: `prl.h` allows callbacks only while a function of
/// the instance runs.
unsafe fn context<'a>(ctx: *mut c_void) -> &'a Context {
    // SAFETY: by the contract of this function; the context is only ever borrowed shared.
    unsafe { &*ctx.cast::<Context>() }
}

/// # Safety
/// `raw` follows `prl.h`: null, or readable for its length during the call.
pub(crate) unsafe fn text(raw: Str) -> String {
    // SAFETY: by the contract of this function.
    String::from_utf8_lossy(unsafe { raw.bytes() }.unwrap_or_default()).into_owned()
}

unsafe extern "C" fn log_line(ctx: *mut c_void, level: u32, message: Str) {
    // SAFETY: called by a plug-in as `prl.h` says; the same holds for every callback below.
    let (context, message) = unsafe { (context(ctx), text(message)) };
    let plugin = &context.plugin;
    match level {
        log::ERROR => tracing::error!("algorithm {plugin}: {message}"),
        log::WARN => tracing::warn!("algorithm {plugin}: {message}"),
        log::DEBUG => tracing::debug!("algorithm {plugin}: {message}"),
        _ => tracing::info!("algorithm {plugin}: {message}"),
    }
}

unsafe extern "C" fn metric(ctx: *mut c_void, name: Str, value: f64) {
    // SAFETY: as in `log_line`.
    let (mut inner, name) = unsafe { (context(ctx).lock(), text(name)) };
    if name.is_empty() {
        inner.fail("it gave a metric without a name");
    } else if value.is_finite() {
        inner.metrics.push(Metric { name, value });
    } else {
        inner.fail(format!("its metric `{name}` is {value}"));
    }
}

unsafe extern "C" fn rng(ctx: *mut c_void) -> u64 {
    // SAFETY: as in `log_line`.
    let mut inner = unsafe { context(ctx) }.lock();
    let (state, bits) = splitmix(inner.random);
    inner.random = state;
    bits
}

unsafe extern "C" fn error(ctx: *mut c_void, message: Str) {
    // SAFETY: as in `log_line`.
    let (mut inner, message) = unsafe { (context(ctx).lock(), text(message)) };
    inner.error = Some(message);
}

unsafe extern "C" fn assign(ctx: *mut c_void, rollout: usize, advantage: f64) -> i32 {
    // SAFETY: as in `log_line`.
    let mut inner = unsafe { context(ctx) }.lock();
    let inner = &mut *inner;
    let Some(sink) = &mut inner.places.sink else { return inner.fail("it called `assign` outside of a score") };
    let Some(samples) = sink.data.samples_of(rollout) else {
        let n = sink.dropped.len();
        return inner.fail(format!("it assigned an advantage to rollout {rollout} of a group of {n}"));
    };
    let value = advantage as f32;
    if !value.is_finite() {
        return inner.fail(format!("the advantage of rollout {rollout} is {advantage}"));
    }
    for sample in samples {
        let mask = &sink.data.mask[sink.data.tokens_of(sample).unwrap_or(0..0)];
        sink.streams[sample].advantages = Some(mask.iter().map(|m| if *m != 0 { value } else { 0.0 }).collect());
    }
    prl_abi::OK
}

unsafe extern "C" fn write(ctx: *mut c_void, id: u32, sample: usize, values: *const f32, n: usize) -> i32 {
    // SAFETY: as in `log_line`.
    let mut inner = unsafe { context(ctx) }.lock();
    let inner = &mut *inner;
    let Some(name) = stream::ALL.iter().find(|(_, i)| *i == id).map(|(name, _)| name.to_lowercase()) else {
        return inner.fail(format!("it wrote to a stream {id}, which does not exist"));
    };
    let Some(sink) = &mut inner.places.sink else { return inner.fail("it called `write` outside of a score") };
    let Some(tokens) = sink.data.tokens_of(sample).map(|tokens| tokens.len()) else {
        let samples = sink.streams.len();
        return inner.fail(format!("it wrote `{name}` to sample {sample} of a group with {samples} samples"));
    };
    if n != tokens {
        return inner.fail(format!("it wrote {n} values of `{name}` for the {tokens} tokens of sample {sample}"));
    }
    // SAFETY: as in `log_line`.
    let Some(values) = (unsafe { prl_abi::view(values, n) }) else {
        return inner.fail(format!("it wrote `{name}` from a null pointer"));
    };
    if let Some(at) = values.iter().position(|v| !v.is_finite()) {
        return inner.fail(format!("`{name}` is {} at token {at} of sample {sample}", values[at]));
    }
    let streams = &mut sink.streams[sample];
    let place = match id {
        stream::ADVANTAGES => &mut streams.advantages,
        stream::RL_WEIGHTS => &mut streams.rl_weights,
        stream::CE_WEIGHTS => &mut streams.ce_weights,
        stream::REF_KL_WEIGHTS => &mut streams.ref_kl_weights,
        _ => &mut streams.ref_logprobs,
    };
    *place = Some(values.to_vec());
    prl_abi::OK
}

unsafe extern "C" fn drop_rollout(ctx: *mut c_void, rollout: usize, reason: Str) -> i32 {
    // SAFETY: as in `log_line`.
    let (mut inner, reason) = unsafe { (context(ctx).lock(), text(reason)) };
    let inner = &mut *inner;
    let Some(sink) = &mut inner.places.sink else { return inner.fail("it called `drop` outside of a score") };
    match sink.dropped.get_mut(rollout) {
        Some(place) => {
            *place = Some(if reason.is_empty() { "no reason given".into() } else { reason });
            prl_abi::OK
        }
        None => {
            let n = sink.dropped.len();
            inner.fail(format!("it dropped rollout {rollout} of a group of {n}"))
        }
    }
}

unsafe extern "C" fn save(ctx: *mut c_void, bytes: Bytes) -> i32 {
    // SAFETY: as in `log_line`.
    let (mut inner, bytes) = unsafe { (context(ctx).lock(), bytes.bytes()) };
    match (&mut inner.places.state, bytes) {
        (Some(state), Some(bytes)) => {
            state.extend_from_slice(bytes);
            prl_abi::OK
        }
        (None, _) => inner.fail("it called `save` outside of save_state"),
        (_, None) => inner.fail("it saved state from a null pointer"),
    }
}

unsafe extern "C" fn reference(ctx: *mut c_void, sample: usize, messages: Str) -> i32 {
    // SAFETY: as in `log_line`.
    let (mut inner, messages) = unsafe { (context(ctx).lock(), text(messages)) };
    let inner = &mut *inner;
    let Some(prefixes) = &mut inner.places.prefixes else {
        return inner.fail("it called `reference` outside of reference");
    };
    let samples = prefixes.len();
    let Some(place) = prefixes.get_mut(sample) else {
        return inner.fail(format!("it asked for a reference of sample {sample} of a rollout with {samples} samples"));
    };
    match prefix(&messages) {
        Ok(messages) => {
            *place = Some(messages);
            prl_abi::OK
        }
        Err(reason) => inner.fail(format!("its messages for sample {sample} are no list of messages: {reason}")),
    }
}

/// Messages as `prl.h` allows them.
fn prefix(json: &str) -> Result<Value, String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // read to be checked
    struct Message {
        role: prl_types::Role,
        content: String,
    }
    serde_json::from_str::<Vec<Message>>(json).map_err(|e| e.to_string())?;
    serde_json::from_str(json).map_err(|e| e.to_string())
}

/// A table of callbacks at a fixed address, freed when this is dropped.
pub(crate) struct HostTable {
    raw: *mut prl_abi::Host,
    context: Arc<Context>,
}

impl HostTable {
    pub fn new(context: Arc<Context>) -> Self {
        HostTable { raw: Box::into_raw(Box::new(context.table())), context }
    }

    pub fn as_ptr(&self) -> *const prl_abi::Host {
        self.raw
    }

    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for HostTable {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` above, freed once; instances that hold the pointer are gone by then.
        drop(unsafe { Box::from_raw(self.raw) });
        self.raw = ptr::null_mut();
    }
}
