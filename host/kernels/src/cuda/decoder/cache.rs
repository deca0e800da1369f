//! Keys and values of one sequence in pages of GPU memory.
//!
//! Owns the memory of pages and of their tables; which pages a sequence has is `pages`' business. Must not know what is stored.

use cudarc::driver::sys;

use crate::cuda::context::driver;
use crate::cuda::{Context, CudaError, CudaSlice, Element, holds};
use crate::pages::{Found, Memory, PAGE, Pages};
use crate::{Held, Meter};

/// [`PAGE`] positions of all layers, `[layers][k, v][PAGE][kv_heads · head_dim]`, and their bytes' share of the meter.
type Page<T> = (CudaSlice<T>, Held);

/// Keys and values of one sequence. A clone shares all pages; of those that are shared only the last one, if it is not full, is
/// copied when one of the two goes on.
pub struct Cache<T> {
    pages: Pages<Page<T>, CudaSlice<u64>>,
    /// Layers times two, and the width of a position.
    shape: [usize; 2],
    meter: Meter,
}

/// Elements of a page.
fn page_len([slabs, width]: [usize; 2]) -> usize {
    slabs * PAGE * width
}

/// Bytes of a page.
fn page_bytes<T>(shape: [usize; 2]) -> usize {
    page_len(shape) * size_of::<T>()
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self { pages: self.pages.clone(), shape: self.shape, meter: self.meter.clone() }
    }
}

impl<T: Element> Cache<T> {
    /// An empty cache.
    pub(super) fn new(shape: [usize; 2], meter: &Meter) -> Self {
        Self { pages: Pages::default(), shape, meter: meter.clone() }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.pages.truncate(len);
    }

    /// Bytes that `more` positions would take: of further pages, and of a copy of the last one where it is shared.
    pub fn growth(&self, more: usize) -> usize {
        self.pages.growth(more) * page_bytes::<T>(self.shape)
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Makes room for `more` positions in pages that nobody else has. What is to be written into tables for it comes to `pairs`, as
    /// [`Context::cache_pages`] has them.
    pub(super) fn grow(&mut self, c: &Context, more: usize, pairs: &mut Vec<u64>) -> Result<Found, CudaError> {
        self.pages.grow(&OnGpu { c, shape: self.shape, meter: &self.meter }, more, pairs)
    }

    /// Forgets what [`Cache::grow`] did for a call that failed: its pages, and what its table was to hold.
    pub(super) fn shrink(&mut self) {
        self.pages.shrink();
    }

    /// Counts positions that were stored.
    pub(super) fn stored(&mut self, more: usize) {
        self.pages.stored(more);
    }
}

/// Memory of a GPU for pages of this shape.
struct OnGpu<'a> {
    c: &'a Context,
    shape: [usize; 2],
    meter: &'a Meter,
}

impl<T: Element> Memory<Page<T>> for OnGpu<'_> {
    type Table = CudaSlice<u64>;
    type Error = CudaError;

    fn page(&self) -> Result<Page<T>, CudaError> {
        let memory = self.c.alloc(page_len(self.shape))?;
        Ok((memory, self.meter.hold(page_bytes::<T>(self.shape))))
    }

    fn copy(&self, from: &Page<T>, to: &mut Page<T>, positions: usize) -> Result<(), CudaError> {
        let [slabs, width] = self.shape;
        copy_slabs(self.c, slabs, PAGE * width, positions * width, &from.0, &mut to.0)
    }

    fn table(&self, len: usize) -> Result<CudaSlice<u64>, CudaError> {
        self.c.alloc(len)
    }

    fn address(&self, page: &Page<T>) -> u64 {
        self.c.address_of(&page.0)
    }

    fn address_of(&self, table: &CudaSlice<u64>) -> u64 {
        self.c.address_of(table)
    }
}

/// Copies the first `width` elements of each of `slabs` rows.
fn copy_slabs<T: Element>(
    c: &Context,
    slabs: usize,
    stride: usize,
    width: usize,
    from: &CudaSlice<T>,
    to: &mut CudaSlice<T>,
) -> Result<(), CudaError> {
    if width == 0 {
        return Ok(());
    }
    let need = (slabs - 1) * stride + width;
    holds("copy of a page", "the old one", from.len(), need)?;
    holds("copy of a page", "the new one", to.len(), need)?;
    let device = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE;
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: device,
        srcHost: std::ptr::null(),
        srcDevice: c.address(from),
        srcArray: std::ptr::null_mut(),
        srcPitch: stride * size_of::<T>(),
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: device,
        dstHost: std::ptr::null_mut(),
        dstDevice: c.address_mut(to),
        dstArray: std::ptr::null_mut(),
        dstPitch: stride * size_of::<T>(),
        WidthInBytes: width * size_of::<T>(),
        Height: slabs,
    };
    c.select()?;
    // SAFETY: both buffers were checked to hold their rows.
    unsafe { sys::cuMemcpy2DAsync_v2(&copy, c.stream.cu_stream()) }.result().map_err(driver("copying a page"))
}
