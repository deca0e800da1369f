//! From a type to a plug-in: the C functions behind [`crate::export!`], the metadata section, and the wall that no panic
//! crosses. Nothing here is called by authors directly.

use crate::{Algorithm, Batch, Credit, Error, Group, Hook, Host, Loss, Prefixes, Reference};
use prl_abi::{ABI_MAJOR, ABI_MINOR, ABI_VERSION, Bytes, Description, Plugin, Str};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Exports an [`Algorithm`] as the plug-in of this `cdylib`: the function `prl_plugin_init` and the section `.prl_meta`.
/// Once per library.
#[macro_export]
macro_rules! export {
    ($algorithm:ty) => {
        const _: () = {
            use $crate::{abi, export};

            const VERSION: &str = ::core::env!("CARGO_PKG_VERSION");
            const LEN: usize = export::metadata_len::<$algorithm>(VERSION);

            #[used]
            #[unsafe(link_section = ".prl_meta")]
            static METADATA: [u8; LEN] = export::metadata::<$algorithm, LEN>(VERSION);

            unsafe extern "C" fn describe(out: *mut abi::Description) -> i32 {
                // SAFETY: the host passes a description that is at least as long as this version's.
                unsafe { export::describe::<$algorithm>(out, &METADATA) }
            }

            static TABLE: abi::Plugin = export::table::<$algorithm>(describe);

            /// The plug-in's entry; see `prl.h`.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn prl_plugin_init(
                host_abi: u32,
                table: *mut *const abi::Plugin,
                error: *mut abi::Str,
            ) -> i32 {
                // SAFETY: the host passes valid places for both results.
                unsafe { export::init(host_abi, &TABLE, table, error) }
            }
        };
    };
}

/// Where an instance lives: the author's value and the host that made it.
struct Instance<A> {
    host: *const prl_abi::Host,
    algorithm: A,
}

/// The table of an algorithm; hooks it does not list stay empty.
pub const fn table<A: Algorithm>(describe: prl_abi::Describe) -> Plugin {
    Plugin {
        magic: prl_abi::MAGIC,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        struct_size: size_of::<Plugin>() as u32,
        reserved: 0,
        describe: Some(describe),
        create: Some(create::<A>),
        destroy: Some(destroy::<A>),
        score_rollout: if has::<A>(Hook::ScoreRollout) { Some(score_rollout::<A>) } else { None },
        score_group: if has::<A>(Hook::ScoreGroup) { Some(score_group::<A>) } else { None },
        save_state: if has::<A>(Hook::State) { Some(save_state::<A>) } else { None },
        load_state: if has::<A>(Hook::State) { Some(load_state::<A>) } else { None },
        loss: if has::<A>(Hook::Loss) { Some(loss::<A>) } else { None },
        reference: if has::<A>(Hook::Reference) { Some(reference::<A>) } else { None },
    }
}

const fn has<A: Algorithm>(hook: Hook) -> bool {
    let mut i = 0;
    while i < A::HOOKS.len() {
        if A::HOOKS[i] as u8 == hook as u8 {
            return true;
        }
        i += 1;
    }
    false
}

/// Answers the host's `prl_plugin_init`.
///
/// # Safety
/// `table_out` and `error` are valid places.
pub unsafe fn init(host_abi: u32, table: &'static Plugin, table_out: *mut *const Plugin, error: *mut Str) -> i32 {
    if host_abi >> 16 != ABI_MAJOR || host_abi < ABI_VERSION {
        // SAFETY: by the contract of this function.
        unsafe { *error = Str::new("it was built for another version of the plug-in ABI") };
        return prl_abi::ERROR;
    }
    static HOOK: Once = Once::new();
    // A cdylib has its own standard library: this hook sees the plug-in's panics only, and keeps them off stderr.
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let at = info.location().map(|l| format!(" at {}:{}", l.file(), l.line())).unwrap_or_default();
            PANIC_AT.with(|place| *place.borrow_mut() = at);
        }));
    });
    // SAFETY: by the contract of this function.
    unsafe { *table_out = table };
    prl_abi::OK
}

thread_local! {
    /// Where this thread panicked last.
    static PANIC_AT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Fills a description.
///
/// # Safety
/// `out` points at a description whose `struct_size` says how long it is.
pub unsafe fn describe<A: Algorithm>(out: *mut Description, metadata: &'static [u8]) -> i32 {
    // SAFETY: by the contract of this function.
    let out = unsafe { &mut *out };
    if (out.struct_size as usize) < offset_of!(Description, metadata) + size_of::<Str>() {
        return prl_abi::ERROR;
    }
    out.action_loss = A::ACTION_LOSS.id();
    out.needs = A::REFERENCE.needs() | A::SOURCE.needs();
    if A::ENTROPY {
        out.needs |= u64::from(prl_abi::ids::needs::ENTROPY);
    }
    out.metadata = Str { ptr: metadata.as_ptr(), len: metadata.len() };
    prl_abi::OK
}

unsafe extern "C" fn create<A: Algorithm>(raw: *const prl_abi::Host, config: Str, out: *mut *mut c_void) -> i32 {
    // SAFETY: `prl.h` promises a valid host, a valid text and a valid place for the result.
    let (host, config) = unsafe { (Host::from_raw(raw), config.bytes()) };
    guard(&host, || {
        let mut json = serde_json::Deserializer::from_slice(config.ok_or("the configuration is null")?);
        let config: A::Config =
            serde_path_to_error::deserialize(&mut json).map_err(|e| match e.path().to_string() {
                path if path == "." => strip_position(e.inner()),
                path => format!("{path}: {}", strip_position(e.inner())),
            })?;
        let instance = Box::new(Instance { host: raw, algorithm: A::new(config, &host)? });
        // SAFETY: as above.
        unsafe { *out = Box::into_raw(instance).cast() };
        Ok(())
    })
}

/// serde_json adds a position in a JSON text that the user never saw.
fn strip_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

unsafe extern "C" fn destroy<A: Algorithm>(instance: *mut c_void) {
    // SAFETY: the host passes what `create` made, once.
    let instance = unsafe { Box::from_raw(instance.cast::<Instance<A>>()) };
    // SAFETY: the host outlives the instance.
    let host = unsafe { Host::from_raw(instance.host) };
    guard(&host, || {
        drop(instance);
        Ok(())
    });
}

unsafe extern "C" fn score_rollout<A: Algorithm>(instance: *mut c_void, group: *const prl_abi::Group) -> i32 {
    // SAFETY: the host passes an instance of `create` and a group that follows `prl.h`.
    unsafe {
        score::<A>(instance, group, |algorithm, group, host| {
            algorithm.score_rollout(&group.rollout(0), &mut Credit::new(host, group))
        })
    }
}

unsafe extern "C" fn score_group<A: Algorithm>(instance: *mut c_void, group: *const prl_abi::Group) -> i32 {
    // SAFETY: as in `score_rollout`.
    unsafe {
        score::<A>(instance, group, |algorithm, group, host| {
            algorithm.score_group(group, &mut Credit::new(host, group))
        })
    }
}

unsafe extern "C" fn reference<A: Algorithm>(instance: *mut c_void, group: *const prl_abi::Group) -> i32 {
    // SAFETY: as in `score_rollout`.
    unsafe {
        score::<A>(instance, group, |algorithm, group, host| {
            algorithm.reference(&group.rollout(0), &mut Prefixes::new(host))
        })
    }
}

/// # Safety
/// `instance` was made by [`create`] and is used by no other thread; `group` follows `prl.h`.
unsafe fn score<A: Algorithm>(
    instance: *mut c_void,
    group: *const prl_abi::Group,
    call: impl FnOnce(&mut A, &Group, &Host) -> Result<(), Error>,
) -> i32 {
    // SAFETY: by the contract of this function.
    let instance = unsafe { &mut *instance.cast::<Instance<A>>() };
    // SAFETY: the host outlives the instance.
    let host = unsafe { Host::from_raw(instance.host) };
    guard(&host, || {
        // SAFETY: by the contract of this function.
        let group = unsafe { Group::from_raw(&*group) }?;
        call(&mut instance.algorithm, &group, &host)
    })
}

unsafe extern "C" fn loss<A: Algorithm>(
    instance: *mut c_void,
    batch: *const prl_abi::Batch,
    out: *mut prl_abi::Loss,
) -> i32 {
    // SAFETY: the host passes an instance of `create`.
    let instance = unsafe { &mut *instance.cast::<Instance<A>>() };
    // SAFETY: the host outlives the instance.
    let host = unsafe { Host::from_raw(instance.host) };
    guard(&host, || {
        // SAFETY: the host passes a batch and a place for the result that follow `prl.h`.
        let (batch, mut out) = unsafe {
            let batch = Batch::from_raw(&*batch)?;
            let out = Loss::from_raw(&mut *out, batch.len(), &host)?;
            (batch, out)
        };
        instance.algorithm.loss(&batch, &mut out)
    })
}

unsafe extern "C" fn save_state<A: Algorithm>(instance: *mut c_void) -> i32 {
    // SAFETY: the host passes an instance of `create`.
    let instance = unsafe { &mut *instance.cast::<Instance<A>>() };
    // SAFETY: the host outlives the instance.
    let host = unsafe { Host::from_raw(instance.host) };
    guard(&host, || host.save(&instance.algorithm.save_state()?))
}

unsafe extern "C" fn load_state<A: Algorithm>(instance: *mut c_void, state: Bytes) -> i32 {
    // SAFETY: the host passes an instance of `create` and bytes that live during the call.
    let (instance, state) = unsafe { (&mut *instance.cast::<Instance<A>>(), state.bytes()) };
    // SAFETY: the host outlives the instance.
    let host = unsafe { Host::from_raw(instance.host) };
    guard(&host, || instance.algorithm.load_state(state.ok_or("the state is null")?))
}

/// Runs author code: an error or a panic becomes a text for the host and a number for the border.
fn guard(host: &Host, call: impl FnOnce() -> Result<(), Error>) -> i32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => prl_abi::OK,
        Ok(Err(error)) => {
            host.error(&error.to_string());
            prl_abi::ERROR
        }
        Err(payload) => {
            let at = PANIC_AT.with(|place| std::mem::take(&mut *place.borrow_mut()));
            host.error(&format!("{}{at}", panic_text(&*payload)));
            // The payload's own drop may panic too; a leak is the lesser harm.
            std::mem::forget(payload);
            prl_abi::PANIC
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

/// Length of [`metadata`].
pub const fn metadata_len<A: Algorithm>(version: &str) -> usize {
    write_metadata::<A, 0>(version).1
}

/// The metadata of an algorithm: one JSON object, made at compile time.
pub const fn metadata<A: Algorithm, const N: usize>(version: &str) -> [u8; N] {
    write_metadata::<A, N>(version).0
}

const fn write_metadata<A: Algorithm, const N: usize>(version: &str) -> ([u8; N], usize) {
    assert!(is_plain(A::NAME), "the name of an algorithm consists of letters, digits, `_` and `-`");
    let asks = matches!(A::REFERENCE, Reference::Policy);
    assert!(asks == has::<A>(Hook::Reference), "Hook::Reference is for Reference::Policy, and the other way round");
    assert!(!A::ENTROPY || has::<A>(Hook::Loss), "ENTROPY is for an algorithm with Hook::Loss");
    let mut w = Writer { bytes: [0; N], len: 0 };
    w.text("{\"name\":\"").text(A::NAME).text("\",\"version\":\"").text(version);
    w.text("\",\"abi\":\"").number(ABI_MAJOR).text(".").number(ABI_MINOR).text("\",\"hooks\":[");
    let mut i = 0;
    while i < A::HOOKS.len() {
        if i > 0 {
            w.text(",");
        }
        w.text("\"").text(A::HOOKS[i].as_str()).text("\"");
        i += 1;
    }
    w.text("],\"action_loss\":\"").text(A::ACTION_LOSS.as_str());
    w.text("\",\"reference\":\"").text(A::REFERENCE.as_str()).text("\",\"source\":\"").text(A::SOURCE.as_str());
    w.text("\",\"entropy\":").text(if A::ENTROPY { "true" } else { "false" });
    w.text(",\"config_schema\":").text(A::CONFIG_SCHEMA).text("}");
    (w.bytes, w.len)
}

const fn is_plain(name: &str) -> bool {
    let bytes = name.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if !(bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_' || bytes[i] == b'-') {
            return false;
        }
        i += 1;
    }
    !bytes.is_empty()
}

/// Counts all bytes and keeps the first N.
struct Writer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    const fn text(&mut self, text: &str) -> &mut Self {
        let mut i = 0;
        while i < text.len() {
            if self.len < N {
                self.bytes[self.len] = text.as_bytes()[i];
            }
            self.len += 1;
            i += 1;
        }
        self
    }

    const fn number(&mut self, number: u32) -> &mut Self {
        if number >= 10 {
            self.number(number / 10);
        }
        let digit = [b'0' + (number % 10) as u8];
        match std::str::from_utf8(&digit) {
            Ok(text) => self.text(text),
            Err(_) => self,
        }
    }
}
