//! Which processor a model lives on. Owns the way from a name to burn's device, without a panic where there is none;
//! must not know models.

use crate::ModelError;
use std::fmt;

/// A processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by index.
    Cuda(usize),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl Device {
    /// burn's handle.
    ///
    /// # Errors
    /// A GPU in a build without CUDA, without a driver, or beyond those that are there.
    pub fn open(self) -> Result<burn::tensor::Device, ModelError> {
        match self {
            Device::Cpu => Ok(burn::tensor::Device::flex()),
            Device::Cuda(index) => {
                open_cuda(index).map_err(|reason| ModelError::Device { device: self.to_string(), reason })
            }
        }
    }
}

#[cfg(not(feature = "burn-cuda"))]
fn open_cuda(_index: usize) -> Result<burn::tensor::Device, String> {
    Err("the reference kernels on a GPU need a binary built with `--features burn-cuda`; use `--kernels fast`, or the \
         device `cpu`"
        .into())
}

/// Asks the driver first: burn would panic on a worker thread.
#[cfg(feature = "burn-cuda")]
fn open_cuda(index: usize) -> Result<burn::tensor::Device, String> {
    let count = cuda_devices()?;
    if index < count {
        Ok(burn::tensor::Device::cuda(index))
    } else {
        Err(format!("this machine has {count} CUDA devices, numbered from 0"))
    }
}

#[cfg(feature = "burn-cuda")]
fn cuda_devices() -> Result<usize, String> {
    type CuInit = unsafe extern "C" fn(u32) -> i32;
    type CuDeviceGetCount = unsafe extern "C" fn(*mut i32) -> i32;
    let missing = |e: libloading::Error| format!("the NVIDIA driver is not installed ({e})");
    // SAFETY: libcuda has no constructors with preconditions; both symbols have had these signatures since CUDA 2.
    let (status, count) = unsafe {
        let driver = libloading::Library::new("libcuda.so.1").map_err(missing)?;
        let init: libloading::Symbol<'_, CuInit> = driver.get(b"cuInit\0").map_err(missing)?;
        let get_count: libloading::Symbol<'_, CuDeviceGetCount> = driver.get(b"cuDeviceGetCount\0").map_err(missing)?;
        let mut count = 0;
        let status = match init(0) {
            0 => get_count(&mut count),
            error => error,
        };
        // The driver keeps threads and exit handlers: it stays loaded.
        std::mem::forget(driver);
        (status, count)
    };
    if status == 0 { Ok(count.max(0) as usize) } else { Err(format!("the NVIDIA driver reports error {status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error_that_names_it() {
        assert!(Device::Cpu.open().is_ok());
        let error = Device::Cuda(99).open().unwrap_err().to_string();
        assert!(error.starts_with("device `cuda:99`: "), "{error}");
    }
}
