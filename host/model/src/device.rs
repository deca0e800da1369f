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
    use prl_kernels::libraries::{LibraryError, driver};
    let told = |e: LibraryError| format!("{e}; {}", e.remedy());
    let count = driver().and_then(|driver| driver.gpus).map_err(told)?.len();
    if index < count {
        Ok(burn::tensor::Device::cuda(index))
    } else {
        Err(told(LibraryError::NoSuchGpu { index, count }))
    }
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
