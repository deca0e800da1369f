//! What the machine has: memory and GPUs. Owns how that is found out without any of it being there; must not know what it is
//! for.

mod memory;

pub use memory::{Memory, memory};

use prl_kernels::libraries::{self, GpuInfo};
use prl_model::Device;

/// Bytes as GiB.
pub fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// Memory of the device that computes, GiB: the GPU's own, or what this process may have of the machine's; 0 where it cannot
/// be read.
pub fn total_memory_gib(device: Device) -> f64 {
    match device {
        Device::Cpu => memory().map_or(0.0, |memory| gib(memory.total)),
        Device::Cuda(index) => gpu(index).map_or(0.0, |gpu| gib(gpu.bytes as u64)),
    }
}

/// A GPU by its index; `None` where the driver does not show it.
pub fn gpu(index: usize) -> Option<GpuInfo> {
    libraries::driver().ok()?.gpus.ok()?.into_iter().nth(index)
}
