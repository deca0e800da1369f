//! Descriptions of matrices for Hopper's copies of boxes of memory.
//!
//! Owns the driver's call that makes one. Must not know what the matrices are.

use cudarc::driver::sys;

use super::context::{Context, driver};
use super::{CudaError, check, context::int};

const OP: &str = "describing a matrix";

/// What a kernel takes as its `Map`.
pub(super) type TensorMap = sys::CUtensorMap;

impl Context {
    /// A matrix of bf16 at `address` of `[rows, columns]`, `stride` elements from row to row, in boxes of 64 columns and
    /// `box_rows` rows that lie swizzled by 128 bytes in shared memory.
    ///
    /// # Errors
    /// If the matrix has no rows, or the address or the stride is not a multiple of 16 bytes.
    pub(super) fn tensor_map(
        &self,
        address: u64,
        [rows, columns]: [usize; 2],
        stride: usize,
        box_rows: u32,
    ) -> Result<TensorMap, CudaError> {
        check(OP, address.is_multiple_of(16) && stride.is_multiple_of(8), || {
            format!("rows at {address:#x} with a stride of {stride} elements do not start at multiples of 16 bytes")
        })?;
        let sizes = [int(OP, columns)? as u64, int(OP, rows)? as u64];
        let (strides, boxes, steps) = ([stride as u64 * 2], [64, box_rows], [1, 1]);
        let mut map = TensorMap { opaque: [0; 16] };
        self.select()?;
        // SAFETY: all arrays have the two dimensions' lengths; the address is only noted.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                address as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(driver(OP))?;
        Ok(map)
    }
}
