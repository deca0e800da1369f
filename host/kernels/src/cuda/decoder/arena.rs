//! One block of scratch memory that the phases of a pass share.
//!
//! Owns the cutting of the block into typed regions. Must not know what they hold. A phase's regions live as long as
//! its borrow of the arena; the next phase overwrites them.

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys::CUdeviceptr};

use crate::cuda::{Context, CudaError, holds};

/// Regions start at multiples of this, as fresh allocations do.
const ALIGN: usize = 256;

/// The block.
pub(super) struct Arena(CudaSlice<u8>);

impl Arena {
    pub fn new(c: &Context, bytes: usize) -> Result<Self, CudaError> {
        Ok(Self(c.alloc(bytes.max(ALIGN))?))
    }

    /// Starts a phase.
    pub fn carve(&mut self) -> Carver<'_> {
        let (len, stream) = (self.0.len(), self.0.stream().clone());
        let base = self.0.device_ptr_mut(&stream).0;
        Carver { base, at: 0, len, stream, arena: PhantomData }
    }
}

/// Cuts regions off the block, one behind the other.
pub(super) struct Carver<'a> {
    base: CUdeviceptr,
    at: usize,
    len: usize,
    stream: Arc<CudaStream>,
    arena: PhantomData<&'a mut Arena>,
}

impl<'a> Carver<'a> {
    /// The next `len` elements, with undefined contents.
    pub fn take<T>(&mut self, len: usize) -> Result<Region<'a, T>, CudaError> {
        let start = self.at;
        self.at = end(start, len * size_of::<T>());
        holds("scratch memory", "the arena", self.len, self.at)?;
        Ok(Region { address: self.base + start as u64, len, stream: self.stream.clone(), arena: PhantomData })
    }
}

fn end(start: usize, bytes: usize) -> usize {
    start + bytes.next_multiple_of(ALIGN)
}

/// Bytes that regions of so many bytes each take.
pub(super) fn bytes(regions: &[usize]) -> usize {
    regions.iter().fold(0, |at, r| end(at, *r))
}

/// A part of the arena, used like a buffer of its own.
pub(super) struct Region<'a, T> {
    address: CUdeviceptr,
    len: usize,
    stream: Arc<CudaStream>,
    arena: PhantomData<&'a mut [T]>,
}

impl<T> Region<'_, T> {
    /// What lies behind the first `start` elements, to write.
    pub fn behind_mut(&mut self, start: usize) -> Region<'_, T> {
        let start = start.min(self.len);
        Region {
            address: self.address + (start * size_of::<T>()) as u64,
            len: self.len - start,
            stream: self.stream.clone(),
            arena: PhantomData,
        }
    }

    /// The same, to read.
    pub fn behind(&self, start: usize) -> impl DevicePtr<T> + '_ {
        let start = start.min(self.len);
        ReadOnly(Region {
            address: self.address + (start * size_of::<T>()) as u64,
            len: self.len - start,
            stream: self.stream.clone(),
            arena: PhantomData,
        })
    }
}

impl<T> DeviceSlice<T> for Region<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

/// A region that may be shared.
struct ReadOnly<'a, T>(Region<'a, T>);

impl<T> DeviceSlice<T> for ReadOnly<'_, T> {
    fn len(&self) -> usize {
        self.0.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }
}

impl<T> DevicePtr<T> for ReadOnly<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.0.device_ptr(stream)
    }
}

// The one stream of the context orders all accesses, as for every other buffer.
impl<T> DevicePtr<T> for Region<'_, T> {
    fn device_ptr<'a>(&'a self, _stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Sync(None))
    }
}

impl<T> DevicePtrMut<T> for Region<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, _stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        (self.address, SyncOnDrop::Sync(None))
    }
}
