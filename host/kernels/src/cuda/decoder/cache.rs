//! Keys and values of one sequence in one block of GPU memory.
//!
//! Owns the block's growth and when it is shared. Must not know what is stored.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::cuda::context::driver;
use crate::cuda::{Context, CudaError, CudaSlice, Element, holds};
use crate::{Held, Meter};

/// Positions of the smallest block; every larger one is a power of two times this.
const SMALLEST: usize = 256;

/// Keys and values of one sequence: `[layers][k, v][capacity][kv_heads · head_dim]`. A clone shares the block until one
/// of the two grows.
#[derive(Clone)]
pub struct Cache<T> {
    block: Option<Arc<(CudaSlice<T>, Held)>>,
    capacity: usize,
    len: usize,
    /// Layers times two, and the width of a position.
    shape: [usize; 2],
    meter: Meter,
}

impl<T: Element> Cache<T> {
    /// An empty cache.
    pub(super) fn new(shape: [usize; 2], meter: &Meter) -> Self {
        Self { block: None, capacity: 0, len: 0, shape, meter: meter.clone() }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes that `more` positions would take: of a larger block, or of its own one where it is shared.
    pub fn growth(&self, more: usize) -> usize {
        match self.own(more) {
            Some(_) => 0,
            None => self.bytes(self.capacity_for(self.len + more)),
        }
    }

    /// Its block, if nobody else has it and `more` positions fit.
    fn own(&self, more: usize) -> Option<&CudaSlice<T>> {
        let fits = self.len + more <= self.capacity;
        self.block.as_ref().filter(|block| fits && Arc::strong_count(block) == 1).map(|block| &block.0)
    }

    fn capacity_for(&self, need: usize) -> usize {
        self.capacity.max(need.div_ceil(SMALLEST).next_power_of_two() * SMALLEST)
    }

    fn bytes(&self, capacity: usize) -> usize {
        let [slabs, width] = self.shape;
        slabs * capacity * width * size_of::<T>()
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Makes room for `more` positions in a block of its own; the address of the block and its capacity.
    pub(super) fn grow(&mut self, c: &Context, more: usize) -> Result<(u64, usize), CudaError> {
        if let Some(block) = self.own(more) {
            return Ok((c.address_of(block), self.capacity));
        }
        let capacity = self.capacity_for(self.len + more);
        let [slabs, width] = self.shape;
        let mut block = c.alloc::<T>(slabs * capacity * width)?;
        if let Some(old) = &self.block {
            let strides = [self.capacity * width, capacity * width];
            copy_slabs(c, slabs, strides, self.len * width, &old.0, &mut block)?;
        }
        let address = c.address_of(&block);
        let held = self.meter.hold(self.bytes(capacity));
        (self.block, self.capacity) = (Some(Arc::new((block, held))), capacity);
        Ok((address, capacity))
    }

    /// Counts positions that were stored.
    pub(super) fn stored(&mut self, more: usize) {
        self.len += more;
    }
}

/// Copies the first `width` elements of each of `slabs` rows, at strides of their own.
fn copy_slabs<T: Element>(
    c: &Context,
    slabs: usize,
    [from_stride, to_stride]: [usize; 2],
    width: usize,
    from: &CudaSlice<T>,
    to: &mut CudaSlice<T>,
) -> Result<(), CudaError> {
    if width == 0 {
        return Ok(());
    }
    let rows = |stride: usize| (slabs - 1) * stride + width;
    holds("growth of a cache", "the old block", from.len(), rows(from_stride))?;
    holds("growth of a cache", "the new block", to.len(), rows(to_stride))?;
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: device,
        srcHost: std::ptr::null(),
        srcDevice: c.address(from),
        srcArray: std::ptr::null_mut(),
        srcPitch: from_stride * size_of::<T>(),
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: device,
        dstHost: std::ptr::null_mut(),
        dstDevice: c.address_mut(to),
        dstArray: std::ptr::null_mut(),
        dstPitch: to_stride * size_of::<T>(),
        WidthInBytes: width * size_of::<T>(),
        Height: slabs,
    };
    c.select()?;
    // SAFETY: both buffers were checked to hold their rows.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, c.stream.cu_stream()) }.result().map_err(driver("copying a cache"))
}
