//! Keys and values of one sequence in pages of GPU memory.
//!
//! Owns which pages a sequence has, its table of them, and when a page is shared. Must not know what is stored.

use std::sync::Arc;

use cudarc::driver::sys;

use crate::cuda::context::driver;
use crate::cuda::{Context, CudaError, CudaSlice, Element, PAGE, holds};
use crate::{Held, Meter};

/// Entries of the smallest table; every larger one is a power of two times this.
const SMALLEST_TABLE: usize = 64;

/// [`PAGE`] positions of all layers, `[layers][k, v][PAGE][kv_heads · head_dim]`, and their bytes' share of the meter.
type Page<T> = Arc<(CudaSlice<T>, Held)>;

/// Keys and values of one sequence. A clone shares all pages; of those that are shared only the last one, if it is not full, is
/// copied when one of the two goes on.
pub struct Cache<T> {
    pages: Vec<Page<T>>,
    table: Option<Table>,
    len: usize,
    /// Layers times two, and the width of a position.
    shape: [usize; 2],
    meter: Meter,
}

/// Addresses of the pages on the GPU.
struct Table {
    list: CudaSlice<u64>,
    /// Entries that are as they should be.
    right: usize,
}

impl<T> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self { pages: self.pages.clone(), table: None, len: self.len, shape: self.shape, meter: self.meter.clone() }
    }
}

/// Where a pass finds a cache.
pub(super) struct Found {
    /// Address of its table.
    pub table: u64,
    /// Positions that its pages have room for.
    pub capacity: usize,
}

impl<T: Element> Cache<T> {
    /// An empty cache.
    pub(super) fn new(shape: [usize; 2], meter: &Meter) -> Self {
        Self { pages: Vec::new(), table: None, len: 0, shape, meter: meter.clone() }
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
        self.pages.truncate(self.len.div_ceil(PAGE));
        if let Some(table) = &mut self.table {
            table.right = table.right.min(self.pages.len());
        }
    }

    /// Bytes that `more` positions would take: of further pages, and of a copy of the last one where it is shared.
    pub fn growth(&self, more: usize) -> usize {
        let copied = usize::from(more > 0 && self.shares_last());
        ((self.len + more).div_ceil(PAGE).saturating_sub(self.pages.len()) + copied) * self.page_bytes()
    }

    /// Whether the next position belongs to a page that somebody else has too.
    fn shares_last(&self) -> bool {
        self.pages.get(self.len / PAGE).is_some_and(|page| Arc::strong_count(page) > 1)
    }

    fn page_len(&self) -> usize {
        let [slabs, width] = self.shape;
        slabs * PAGE * width
    }

    fn page_bytes(&self) -> usize {
        self.page_len() * size_of::<T>()
    }

    pub(super) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn new_page(&self, c: &Context) -> Result<CudaSlice<T>, CudaError> {
        c.alloc(self.page_len())
    }

    fn held(&self, memory: CudaSlice<T>) -> Page<T> {
        Arc::new((memory, self.meter.hold(self.page_bytes())))
    }

    /// Makes room for `more` positions in pages that nobody else has. What is to be written into tables for it comes to `pairs`, as
    /// [`Context::cache_pages`] has them.
    pub(super) fn grow(&mut self, c: &Context, more: usize, pairs: &mut Vec<u64>) -> Result<Found, CudaError> {
        if self.shares_last() {
            let (at, [slabs, width]) = (self.len / PAGE, self.shape);
            let mut own = self.new_page(c)?;
            copy_slabs(c, slabs, PAGE * width, self.len % PAGE * width, &self.pages[at].0, &mut own)?;
            self.pages[at] = self.held(own);
            if let Some(table) = &mut self.table {
                table.right = table.right.min(at);
            }
        }
        while self.pages.len() * PAGE < self.len + more {
            let page = self.new_page(c)?;
            self.pages.push(self.held(page));
        }
        let table = match self.table.take().filter(|table| table.list.len() >= self.pages.len()) {
            Some(enough) => enough,
            None => {
                let len = self.pages.len().next_power_of_two().max(SMALLEST_TABLE);
                Table { list: c.alloc(len)?, right: 0 }
            }
        };
        let table = self.table.insert(table);
        let start = c.address_of(&table.list);
        for (i, page) in self.pages.iter().enumerate().skip(table.right) {
            pairs.extend([start + (i * size_of::<u64>()) as u64, c.address_of(&page.0)]);
        }
        table.right = self.pages.len();
        Ok(Found { table: start, capacity: self.pages.len() * PAGE })
    }

    /// Forgets what [`Cache::grow`] did for a call that failed: its pages, and what its table was to hold.
    pub(super) fn shrink(&mut self) {
        self.pages.truncate(self.len.div_ceil(PAGE));
        self.table = None;
    }

    /// Counts positions that were stored.
    pub(super) fn stored(&mut self, more: usize) {
        self.len += more;
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
