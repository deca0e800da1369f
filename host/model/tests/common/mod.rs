//! What the integration tests share: the fixtures made by `make_fixtures.py`.
#![allow(dead_code)]

use prl_model::{Decoder, Device, Packed};
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;

/// Every fixture: each family, tied and untied, each rotary variant.
pub const FIXTURES: [&str; 5] = ["qwen3", "qwen2", "llama", "llama-linear", "llama-yarn"];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn cpu() -> burn::tensor::Device {
    Device::Cpu.open().unwrap()
}

pub fn load(name: &str) -> Decoder {
    Decoder::load_hf(&folder(name), &cpu()).unwrap()
}

/// What transformers computed.
pub struct Expected {
    bytes: Vec<u8>,
}

impl Expected {
    pub fn load(name: &str) -> Self {
        Expected { bytes: std::fs::read(folder(name).join("expected.safetensors")).unwrap() }
    }

    pub fn floats(&self, tensor: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(tensor).unwrap();
        assert_eq!(view.dtype(), Dtype::F32);
        view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub fn ints(&self, tensor: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(tensor).unwrap();
        assert_eq!(view.dtype(), Dtype::I32);
        view.data().as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b) as u32).collect()
    }

    /// Names of the parameters whose gradient is known.
    pub fn gradients(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let mut names: Vec<String> =
            file.names().iter().filter_map(|n| n.strip_prefix("grad.")).map(str::to_string).collect();
        names.sort();
        names
    }

    pub fn batch(&self) -> Packed {
        Packed {
            ids: self.ints("ids"),
            doc_lens: self.ints("doc_lens").iter().map(|n| *n as usize).collect(),
            temperatures: self.floats("temperatures"),
        }
    }
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// |a - b| / |b| as vectors.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (difference / size.max(1e-300)).sqrt()
}
