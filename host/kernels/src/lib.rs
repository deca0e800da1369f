//! Fused decoder operations with hand-written backward passes, in f32 on the CPU.
//!
//! Pure functions over slices: the decoder over packed documents and its gradient, the language-model head, key/value
//! caches. Must not know where weights live, files, or anything about reinforcement learning.
//!
//! # Exactness
//! What is computed for a token depends on its own document's prefix only, bit for bit: not on what else is in the
//! batch, on how the document was cut into calls, on the number of threads, or on whether it ran through [`forward()`]
//! or [`extend`]. Every product is a sum of chains of [`CHAIN`] fused multiply-adds in ascending order, every reduction has a
//! fixed shape.
//! Gradients are summed in a fixed order too. Different processors may give different bits; one process never does.

mod adapter;
mod attention;
mod backward;
mod cache;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dropout;
mod forward;
mod gemm;
mod head;
pub mod libraries;
mod meter;
mod micro;
#[cfg(any(feature = "cuda", test))]
mod pages;
#[cfg(any(feature = "cuda", test))]
mod passes;
mod pool;
mod projection;
mod rows;
mod seat;
mod shared;
mod simd;
mod transpose;
mod weights;

pub use adapter::{AdapterLayer, AdapterView, Additions, LowRank};
pub use backward::{backward, backward_with};
pub use cache::{ExtendItem, KvCache, extend};
pub use dropout::Dropout;
pub use forward::{Activations, forward, forward_with};
pub use gemm::{gemm_nn, gemm_nt, gemm_tn_acc};
pub use head::{HeadStats, RowLogProb, head_backward, head_forward_backward, head_stats, log_softmax_at};
pub use meter::{Held, Meter};
pub use micro::CHAIN;
pub use projection::Projection;
pub use seat::{COMMUNICATOR_ID_BYTES, Seat};
pub use simd::{Isa, isa};
pub use weights::{Dims, Grads, KernelError, LayerGrads, LayerView, Rope, WeightsView};
