//! The C ABI of algorithm plug-ins, as Rust sees it: `include/prl.h` is the specification and says what every field
//! means, who owns it and how it may grow; this crate mirrors it and holds layout and constants against it in tests.
//!
//! Owns the binary layout, the ids, one owner for the columns of a group ([`GroupData`]) and the typed columns of a batch
//! ([`BatchColumns`]). Must not know how plug-ins are found or loaded, nor what any algorithm computes.
#![no_std]

extern crate alloc;

mod batch;
mod data;
pub mod ids;

pub use batch::{BatchColumns, BatchView};
pub use data::{GroupData, GroupView};

use core::ffi::c_void;

/// Changes when something changes its meaning or place.
pub const ABI_MAJOR: u32 = 1;
/// Grows when something is appended.
pub const ABI_MINOR: u32 = 0;
/// The version as one number: `major << 16 | minor`.
pub const ABI_VERSION: u32 = (ABI_MAJOR << 16) | ABI_MINOR;
/// First field of [`Plugin`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"PRLALGO\x01");
/// The exported symbol, of type [`Init`].
pub const INIT_SYMBOL: &str = "prl_plugin_init";
/// ELF section that holds the metadata, one JSON object.
pub const METADATA_SECTION: &str = ".prl_meta";

/// Success.
pub const OK: i32 = 0;
/// Failure; the text went to [`Host::error`].
pub const ERROR: i32 = 1;
/// A caught bug of the plug-in; the text went to [`Host::error`].
pub const PANIC: i32 = 2;

/// A view of UTF-8 text (`prl_str`). Frozen: it is an element of arrays.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Str {
    /// May be null when `len` is 0.
    pub ptr: *const u8,
    /// Bytes.
    pub len: usize,
}

impl Str {
    /// A view of `text`; the caller keeps `text` alive while the view is in use.
    pub const fn new(text: &str) -> Self {
        Str { ptr: text.as_ptr(), len: text.len() }
    }

    /// No text.
    pub const EMPTY: Str = Str { ptr: core::ptr::null(), len: 0 };

    /// The bytes behind the view; `None` when the pointer is null but the length is not 0.
    ///
    /// # Safety
    /// A non-null `ptr` points at `len` readable bytes that stay unchanged for `'a`.
    pub unsafe fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: by the contract of this function.
        unsafe { view(self.ptr, self.len) }
    }
}

/// A view of bytes (`prl_bytes`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// May be null when `len` is 0.
    pub ptr: *const u8,
    /// Number of bytes.
    pub len: usize,
}

impl Bytes {
    /// A view of `bytes`; the caller keeps them alive while the view is in use.
    pub const fn new(bytes: &[u8]) -> Self {
        Bytes { ptr: bytes.as_ptr(), len: bytes.len() }
    }

    /// The bytes behind the view; `None` when the pointer is null but the length is not 0.
    ///
    /// # Safety
    /// A non-null `ptr` points at `len` readable bytes that stay unchanged for `'a`.
    pub unsafe fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: by the contract of this function.
        unsafe { view(self.ptr, self.len) }
    }
}

/// A slice from a pointer and a length that crossed the border: empty when `len` is 0, `None` when only `ptr` is null.
///
/// # Safety
/// A non-null `ptr` is aligned and points at `len` readable elements that stay unchanged for `'a`.
pub unsafe fn view<'a, T>(ptr: *const T, len: usize) -> Option<&'a [T]> {
    if len == 0 {
        return Some(&[]);
    }
    // SAFETY: non-null here, the rest by the contract of this function.
    (!ptr.is_null()).then(|| unsafe { core::slice::from_raw_parts(ptr, len) })
}

/// One column of input data (`prl_column`). Frozen: it is an element of arrays.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// One of [`ids::col`].
    pub id: u32,
    /// One of [`ids::dtype`].
    pub dtype: u32,
    /// One of [`ids::axis`].
    pub axis: u32,
    /// Elements a row.
    pub width: u32,
    /// Elements in all.
    pub len: usize,
    /// The elements.
    pub ptr: *const c_void,
}

/// The rollouts of one task (`prl_group`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Size of the host's version of this struct.
    pub struct_size: u32,
    /// Number of columns.
    pub n_columns: u32,
    /// The columns, in no particular order.
    pub columns: *const Column,
    /// Rows of the rollout axis.
    pub n_rollouts: usize,
    /// Rows of the sample axis.
    pub n_samples: usize,
    /// Rows of the token axis.
    pub n_tokens: usize,
}

/// A packed micro-batch of whole samples (`prl_batch`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Size of the host's version of this struct.
    pub struct_size: u32,
    /// Number of columns.
    pub n_columns: u32,
    /// The columns, in no particular order.
    pub columns: *const Column,
    /// Rows of the sample axis.
    pub n_samples: usize,
    /// Rows of the token axis.
    pub n_tokens: usize,
    /// Members of the rl component in the whole step, at least 1.
    pub normalizer: f64,
}

/// What a custom loss gives (`prl_loss`). The arrays have one element a token, belong to the host and start as zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Size of the host's version of this struct.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// The micro-batch's addend to the step's loss.
    pub loss: f64,
    /// ∂loss/∂logprob.
    pub d_logprob: *mut f32,
    /// ∂loss/∂entropy; null when the plug-in does not need entropies.
    pub d_entropy: *mut f32,
    /// Loss of each member without denominators.
    pub token_loss: *mut f32,
}

/// Callbacks of the host (`prl_host`). Every one takes [`Host::ctx`] first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Host {
    /// Size of the host's version of this struct.
    pub struct_size: u32,
    /// [`ABI_VERSION`] of the host.
    pub abi_version: u32,
    /// First argument of every callback.
    pub ctx: *mut c_void,
    /// A line for the run's log.
    pub log: unsafe extern "C" fn(ctx: *mut c_void, level: u32, message: Str),
    /// A number for the run's metrics.
    pub metric: unsafe extern "C" fn(ctx: *mut c_void, name: Str, value: f64),
    /// Uniform 64 random bits.
    pub rng: unsafe extern "C" fn(ctx: *mut c_void) -> u64,
    /// The text that belongs to the non-zero value about to be returned.
    pub error: unsafe extern "C" fn(ctx: *mut c_void, message: Str),
    /// One advantage for all sampled tokens of a rollout.
    pub assign: unsafe extern "C" fn(ctx: *mut c_void, rollout: usize, advantage: f64) -> i32,
    /// One stream of one sample.
    pub write: unsafe extern "C" fn(ctx: *mut c_void, stream: u32, sample: usize, values: *const f32, n: usize) -> i32,
    /// Takes a rollout out of training.
    pub drop: unsafe extern "C" fn(ctx: *mut c_void, rollout: usize, reason: Str) -> i32,
    /// Appends to the state being saved.
    pub save: unsafe extern "C" fn(ctx: *mut c_void, bytes: Bytes) -> i32,
    /// Asks for one sample's log-probabilities under the live policy, behind other messages.
    pub reference: unsafe extern "C" fn(ctx: *mut c_void, sample: usize, messages: Str) -> i32,
}

/// What a plug-in is (`prl_description`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Size of the host's version of this struct.
    pub struct_size: u32,
    /// One of [`ids::action`].
    pub action_loss: u32,
    /// Bits of [`ids::needs`]: what the host must provide.
    pub needs: u64,
    /// The text of the metadata section.
    pub metadata: Str,
}

/// The type of [`Plugin::describe`].
pub type Describe = unsafe extern "C" fn(out: *mut Description) -> i32;
/// The type of [`Plugin::create`].
pub type Create = unsafe extern "C" fn(host: *const Host, config: Str, instance: *mut *mut c_void) -> i32;
/// The type of [`Plugin::destroy`].
pub type Destroy = unsafe extern "C" fn(instance: *mut c_void);
/// The type of [`Plugin::score_rollout`], [`Plugin::score_group`] and [`Plugin::reference`].
pub type Score = unsafe extern "C" fn(instance: *mut c_void, group: *const Group) -> i32;
/// The type of [`Plugin::save_state`].
pub type SaveState = unsafe extern "C" fn(instance: *mut c_void) -> i32;
/// The type of [`Plugin::load_state`].
pub type LoadState = unsafe extern "C" fn(instance: *mut c_void, state: Bytes) -> i32;
/// The type of [`Plugin::loss`].
pub type LossFn = unsafe extern "C" fn(instance: *mut c_void, batch: *const Batch, out: *mut Loss) -> i32;
/// The type of the exported function [`INIT_SYMBOL`].
pub type Init = unsafe extern "C" fn(host_abi: u32, table: *mut *const Plugin, error: *mut Str) -> i32;

/// The plug-in's table of functions (`prl_plugin`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Plugin {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`ABI_MAJOR`] of the plug-in.
    pub abi_major: u32,
    /// [`ABI_MINOR`] of the plug-in.
    pub abi_minor: u32,
    /// Size of the plug-in's version of this struct.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Says what the plug-in is.
    pub describe: Option<Describe>,
    /// Makes an instance from a configuration.
    pub create: Option<Create>,
    /// Ends an instance.
    pub destroy: Option<Destroy>,
    /// Optional: sees one rollout when it finishes.
    pub score_rollout: Option<Score>,
    /// Optional: sees a whole group.
    pub score_group: Option<Score>,
    /// Optional: writes the state through [`Host::save`].
    pub save_state: Option<SaveState>,
    /// Optional: takes back what `save_state` wrote.
    pub load_state: Option<LoadState>,
    /// Optional: the custom loss.
    pub loss: Option<LossFn>,
    /// Optional: asks for references under the live policy.
    pub reference: Option<Score>,
}

/// Size of [`Plugin`] in ABI 1.0: no valid table is smaller.
pub const PLUGIN_SIZE_1_0: usize = 96;
