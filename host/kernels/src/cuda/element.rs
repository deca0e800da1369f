//! The floats that activations and the weights' working copies are kept in: bf16 to compute fast, f32 to compute exactly.
//!
//! Owns their conversions. Must not know buffers.

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// What operations store activations as: [`bf16`] (products on tensor cores, f32 sums) or `f32` (full f32 arithmetic,
/// nothing rounded to less).
pub trait Element: Copy + Send + Sync + DeviceRepr + ValidAsZeroBits + 'static + private::Sealed {
    /// The nearest value.
    fn from_f32(x: f32) -> Self;
    /// The same value.
    fn to_f32(self) -> f32;
}

impl Element for bf16 {
    fn from_f32(x: f32) -> Self {
        Self::from_f32(x)
    }

    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

impl Element for f32 {
    fn from_f32(x: f32) -> Self {
        x
    }

    fn to_f32(self) -> f32 {
        self
    }
}

pub(super) mod private {
    use cudarc::cublaslt::sys::cudaDataType;

    use super::super::compile::Precision;

    /// What the module's own code needs to know of an element type.
    pub trait Sealed {
        /// cuBLASLt's name of it.
        const TYPE: cudaDataType;
        /// The kernels that store it.
        const PRECISION: Precision;
    }
    impl Sealed for super::bf16 {
        const TYPE: cudaDataType = cudaDataType::CUDA_R_16BF;
        const PRECISION: Precision = Precision::Half;
    }
    impl Sealed for f32 {
        const TYPE: cudaDataType = cudaDataType::CUDA_R_32F;
        const PRECISION: Precision = Precision::Full;
    }
}

/// A bfloat16: the upper half of an f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
#[allow(non_camel_case_types)]
pub struct bf16(u16);

// SAFETY: two plain bytes.
unsafe impl DeviceRepr for bf16 {}
// SAFETY: all bits zero are 0.0.
unsafe impl ValidAsZeroBits for bf16 {}

impl bf16 {
    /// The nearest bf16, ties to even; NaN stays NaN.
    pub fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        if x.is_nan() {
            return Self((bits >> 16) as u16 | 0x40);
        }
        Self((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }

    /// The same value.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// From the sixteen bits.
    pub fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The sixteen bits.
    pub fn to_bits(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::bf16;

    #[test]
    fn rounds_to_nearest_even() {
        let round = |bits: u32| bf16::from_f32(f32::from_bits(bits)).to_bits();
        assert_eq!(round(0x3f80_8000), 0x3f80);
        assert_eq!(round(0x3f81_8000), 0x3f82);
        assert_eq!(round(0x3f80_8001), 0x3f81);
        assert_eq!(round(0x7f7f_ffff), 0x7f80);
        assert_eq!(round(0xff80_0000), 0xff80);
        assert!(bf16::from_f32(f32::NAN).to_f32().is_nan());
        assert!(bf16::from_f32(f32::from_bits(0x7f80_0001)).to_f32().is_nan());
        assert_eq!(bf16::from_bits(0xc049).to_f32(), -3.140_625);
    }
}
