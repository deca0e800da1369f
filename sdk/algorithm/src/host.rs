//! Safe handles on the host's callbacks: [`Host`] to speak, [`Credit`] to write a group's streams, [`Prefixes`] to ask for
//! references. Knows nothing of what the host does with any.

use crate::{Error, Group, Role};
use prl_abi::ids::{log, stream};
use prl_abi::{Bytes, Str};
use std::ops::Deref;

/// Importance of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// What the host offers while it calls the plug-in.
pub struct Host {
    raw: *const prl_abi::Host,
}

impl Host {
    /// # Safety
    /// `raw` follows `prl.h` for as long as the value lives, which is not longer than a call of the host.
    pub(crate) unsafe fn from_raw(raw: *const prl_abi::Host) -> Self {
        Host { raw }
    }

    fn raw(&self) -> &prl_abi::Host {
        // SAFETY: by the contract of `from_raw`.
        unsafe { &*self.raw }
    }

    /// A line for the run's log.
    pub fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Error => log::ERROR,
            Level::Warn => log::WARN,
            Level::Info => log::INFO,
            Level::Debug => log::DEBUG,
        };
        // SAFETY: the callback takes any text that lives during the call; the same holds for those below.
        unsafe { (self.raw().log)(self.raw().ctx, level, Str::new(message)) }
    }

    /// A finite number for the run's metrics. Several values of one name in one step are averaged.
    pub fn metric(&self, name: &str, value: f64) {
        // SAFETY: as in `log`.
        unsafe { (self.raw().metric)(self.raw().ctx, Str::new(name), value) }
    }

    /// Uniform 64 random bits: a sequence that depends on the run's seed and on the group, never on timing.
    pub fn random(&self) -> u64 {
        // SAFETY: as in `log`.
        unsafe { (self.raw().rng)(self.raw().ctx) }
    }

    pub(crate) fn error(&self, message: &str) {
        // SAFETY: as in `log`.
        unsafe { (self.raw().error)(self.raw().ctx, Str::new(message)) }
    }

    pub(crate) fn save(&self, state: &[u8]) -> Result<(), Error> {
        // SAFETY: as in `log`.
        check(unsafe { (self.raw().save)(self.raw().ctx, Bytes::new(state)) }, || "the host took no state".into())
    }
}

/// A per-token stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Advantage of each token in the rl component.
    Advantages,
    /// Weight of each token in the rl component; 1 on sampled tokens when not written.
    RlWeights,
    /// Weight of each token in the cross-entropy component; 0 when not written.
    CeWeights,
    /// Weight of each token in the reference-KL component; 0 when not written.
    RefKlWeights,
    /// Reference log-probabilities, needed by the reference-KL component.
    RefLogprobs,
}

/// Writes the streams of one group, checked as it goes.
pub struct Credit<'a> {
    host: &'a Host,
    group: &'a Group<'a>,
}

impl<'a> Credit<'a> {
    pub(crate) fn new(host: &'a Host, group: &'a Group<'a>) -> Self {
        Credit { host, group }
    }

    /// Gives `advantage` to every sampled token of a rollout, over all its samples, and 0 to its other tokens. Rounded
    /// once, to f32.
    ///
    /// # Errors
    /// No such rollout, or a value that is not finite in f32.
    pub fn assign(&mut self, rollout: usize, advantage: f64) -> Result<(), Error> {
        // SAFETY: the callback checks its arguments.
        let code = unsafe { (self.host.raw().assign)(self.host.raw().ctx, rollout, advantage) };
        check(code, || format!("rollout {rollout} of {} cannot get the advantage {advantage}", self.group.len()))
    }

    /// Writes a whole stream of one sample ([`crate::Sample::index`]), one finite value a token.
    ///
    /// # Errors
    /// No such sample, another number of values than tokens, a value that is not finite.
    pub fn write(&mut self, stream: Stream, sample: usize, values: &[f32]) -> Result<(), Error> {
        let id = match stream {
            Stream::Advantages => stream::ADVANTAGES,
            Stream::RlWeights => stream::RL_WEIGHTS,
            Stream::CeWeights => stream::CE_WEIGHTS,
            Stream::RefKlWeights => stream::REF_KL_WEIGHTS,
            Stream::RefLogprobs => stream::REF_LOGPROBS,
        };
        let (ptr, n) = (values.as_ptr(), values.len());
        // SAFETY: pointer and length come from one slice that lives during the call.
        let code = unsafe { (self.host.raw().write)(self.host.raw().ctx, id, sample, ptr, n) };
        check(code, || format!("sample {sample} cannot get these {n} values as {stream:?}"))
    }

    /// Takes a rollout out of training; the reason is logged and counted.
    ///
    /// # Errors
    /// No such rollout.
    pub fn drop_rollout(&mut self, rollout: usize, reason: &str) -> Result<(), Error> {
        // SAFETY: the text lives during the call.
        let code = unsafe { (self.host.raw().drop)(self.host.raw().ctx, rollout, Str::new(reason)) };
        check(code, || format!("there is no rollout {rollout} among {}", self.group.len()))
    }

    /// Takes every rollout of the group out of training.
    ///
    /// # Errors
    /// None for a group the host passed.
    pub fn drop_group(&mut self, reason: &str) -> Result<(), Error> {
        (0..self.group.len()).try_for_each(|rollout| self.drop_rollout(rollout, reason))
    }
}

/// Log lines, metrics and random numbers.
impl Deref for Credit<'_> {
    type Target = Host;

    fn deref(&self) -> &Host {
        self.host
    }
}

/// Says which messages stand before a sample when the live policy scores it.
pub struct Prefixes<'a> {
    host: &'a Host,
}

impl<'a> Prefixes<'a> {
    pub(crate) fn new(host: &'a Host) -> Self {
        Prefixes { host }
    }

    /// Asks for the reference log-probabilities of one sample ([`crate::Sample::index`]) behind `messages`, which the host
    /// renders without a generation prompt. No messages: the sample's tokens alone. The last word on a sample counts.
    ///
    /// # Errors
    /// No such sample.
    pub fn ask(&mut self, sample: usize, messages: &[(Role, &str)]) -> Result<(), Error> {
        let message = |(role, content): &(Role, &str)| serde_json::json!({"role": role.as_str(), "content": content});
        let json = serde_json::Value::from_iter(messages.iter().map(message)).to_string();
        // SAFETY: the text lives during the call.
        let code = unsafe { (self.host.raw().reference)(self.host.raw().ctx, sample, Str::new(&json)) };
        check(code, || format!("sample {sample} cannot get a reference"))
    }
}

/// Log lines, metrics and random numbers.
impl Deref for Prefixes<'_> {
    type Target = Host;

    fn deref(&self) -> &Host {
        self.host
    }
}

fn check(code: i32, message: impl FnOnce() -> String) -> Result<(), Error> {
    if code == prl_abi::OK { Ok(()) } else { Err(message().into()) }
}
