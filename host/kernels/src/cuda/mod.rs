//! The decoder's fused operations on an NVIDIA GPU: activations in bf16 or f32; f32 sums, weights' masters and gradients.
//!
//! Owns a stream, its kernels and its products. Must not know models, files other than its own cache of
//! compiled kernels, or anything about reinforcement learning. Libraries (driver, cuBLASLt, NVRTC) are found at run
//! time. Every operation is enqueued on the context's stream and returns at once; shapes are checked before. Sums have a
//! fixed order and no fractions are added with atomics, so the same inputs give the same bits, but for the gradient towards
//! attention's queries where [`Context::deterministic`] was not asked for.

mod attention;
mod buffers;
mod chain;
mod communicator;
mod compile;
mod context;
mod decode;
pub mod decoder;
mod draw;
mod element;
mod embedding;
mod few;
mod forward;
mod gemm;
mod low_rank;
mod memory;
mod rotation;
mod rows;
mod step;
mod tensor_map;
mod tiles;
mod trace;

pub use crate::pages::PAGE;
pub use crate::passes::Span;
pub use attention::{Attention, AttentionGrads, HeadLayout};
pub use buffers::Pinned;
pub use communicator::{Communicator, communicator_id};
pub use context::{Context, Event, In, Out};
pub use cudarc::driver::{
    CudaSlice, CudaView, CudaViewMut, DevicePtr as Read, DevicePtrMut as Write, DeviceRepr as Plain,
};
pub use decode::{CacheLayout, CacheRows, QueryTiles};
pub use draw::DrawRows;
pub use element::{Element, bf16};
pub use embedding::EmbedOrder;
pub use gemm::{Matrix, Onto};
pub use low_rank::{AddedTo, LowRankRows, LowRanks};
pub use memory::{PoolBytes, UsedBytes};
pub use rotation::{HeadShape, RopeTable};
pub use rows::NormGrads;
pub use step::{AdamStep, HeadRows};
pub use tiles::Tiles;
pub use trace::Traced;

use crate::libraries::LibraryError;

/// Why an operation on the GPU could not be done.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library of the driver or toolkit, or the GPU, is not there or cannot be used.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Library(#[from] LibraryError),
    /// The driver refused something, now or in an operation before.
    #[error("{what}: {}", driver_text(source))]
    Driver {
        /// What was being done.
        what: &'static str,
        /// The driver's answer.
        source: cudarc::driver::DriverError,
    },
    /// cuBLASLt refused something.
    #[error("{what}: {source}")]
    Blas {
        /// What was being done.
        what: String,
        /// The library's answer.
        source: cudarc::cublaslt::result::CublasError,
    },
    /// NCCL refused something, or others did not come.
    #[error("{what}: {text}")]
    Nccl {
        /// What was being done.
        what: &'static str,
        /// What became of it.
        text: String,
    },
    /// A kernel did not compile.
    #[error("kernels for {arch} did not compile ({status}): {log}")]
    Compile {
        /// The target.
        arch: String,
        /// NVRTC's answer.
        status: String,
        /// The compiler's messages.
        log: String,
    },
    /// What is to be computed at a time does not fit the GPU's memory.
    #[error(
        "{tokens} tokens in one pass need {:.1} GiB and {:.1} of the GPU's {:.1} GiB are free",
        gib(*need), gib(*free), gib(*total)
    )]
    Memory {
        /// Tokens of the pass.
        tokens: usize,
        /// Bytes it needs.
        need: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes that the GPU has.
        total: usize,
    },
    /// Buffers or sizes do not fit the operation.
    #[error("{op}: {what}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// What does not fit.
        what: String,
    },
}

/// The driver's name for an error and its text.
fn driver_text(error: &cudarc::driver::DriverError) -> String {
    let read = |text: Result<&std::ffi::CStr, _>| text.ok().map(|t: &std::ffi::CStr| t.to_string_lossy().into_owned());
    match (read(error.error_name()), read(error.error_string())) {
        (Some(name), Some(text)) => format!("{text} ({name})"),
        _ => format!("{error:?}"),
    }
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// `Ok` if the condition holds, else a [`CudaError::Shape`].
fn check(op: &'static str, ok: bool, what: impl FnOnce() -> String) -> Result<(), CudaError> {
    if ok { Ok(()) } else { Err(CudaError::Shape { op, what: what() }) }
}

/// Checks that heads have a size that the kernels are made for.
fn check_dim(op: &'static str, dim: usize) -> Result<(), CudaError> {
    check(op, dim.is_multiple_of(16) && (16..=128).contains(&dim), || {
        format!("head dimension {dim} is not a multiple of 16 up to 128")
    })
}

/// Checks that a buffer holds rows of `width` at a stride that vector loads can take.
fn check_rows(
    op: &'static str,
    name: &str,
    len: usize,
    rows: usize,
    stride: usize,
    width: usize,
) -> Result<(), CudaError> {
    check(op, stride >= width && stride.is_multiple_of(8), || {
        format!("{name} has rows of {width} at a stride of {stride}; strides are multiples of 8")
    })?;
    holds(op, name, len, if rows == 0 { 0 } else { (rows - 1) * stride + width })
}

/// Checks that a buffer holds at least `need` elements.
fn holds(op: &'static str, name: &str, len: usize, need: usize) -> Result<(), CudaError> {
    check(op, len >= need, || format!("{name} has {len} elements and needs {need}"))
}
