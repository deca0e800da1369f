//! What the machine has: memory, GPUs, CUDA's libraries. Owns how that is found out without any of it being there; must not
//! know what it is for.

pub mod driver;
pub mod toolkit;

use driver::Gpu;
use prl_model::Device;

/// Bytes in a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Memory of the device that computes, GiB: the GPU's own, or the machine's; 0 where it cannot be read.
pub fn total_memory_gib(device: Device) -> f64 {
    match device {
        Device::Cpu => memory_gib("MemTotal").unwrap_or(0.0),
        Device::Cuda(index) => gpu(index).map_or(0.0, |gpu| gpu.memory_gib),
    }
}

/// A GPU by its index; `None` where the driver does not show it.
pub fn gpu(index: usize) -> Option<Gpu> {
    driver::open().ok()?.gpus.ok()?.into_iter().nth(index)
}

/// A line of `/proc/meminfo`, GiB.
pub fn memory_gib(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = rest.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024.0 / GIB)
}
