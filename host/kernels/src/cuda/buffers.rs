//! Buffers on the GPU and copies from and to them.
//!
//! Owns page-locked memory and the waiting that makes copies safe. Must not know what buffers hold.

use cudarc::driver::{CudaEvent, CudaSlice, DevicePtr, DeviceRepr, PinnedHostSlice, ValidAsZeroBits, result};

use super::context::{Context, In, Out, driver};
use super::{CudaError, holds};

/// Page-locked host memory that the GPU copies to and from, see [`Context::read_pinned`] and [`Context::write_pinned`].
pub struct Pinned<T> {
    memory: PinnedHostSlice<T>,
    len: usize,
    /// Reached when the last copy from or to it is done.
    copied: Option<CudaEvent>,
}

impl<T: ValidAsZeroBits> Pinned<T> {
    /// Elements that fit.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no element fits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The contents; waits for the last copy to it.
    ///
    /// # Errors
    /// If an operation before or the copy failed on the GPU.
    pub fn as_slice(&mut self) -> Result<&[T], CudaError> {
        let at = self.wait()?;
        // SAFETY: `len` elements, all zeroed once, and no copy is under way.
        Ok(unsafe { std::slice::from_raw_parts(at, self.len) })
    }

    /// Puts other contents at the front; waits for the last copy from or to it.
    ///
    /// # Errors
    /// If they do not fit, or an operation before or the copy failed on the GPU.
    pub fn write(&mut self, contents: &[T]) -> Result<(), CudaError>
    where
        T: Copy,
    {
        holds("page-locked memory", "it", self.len, contents.len())?;
        let at = self.wait()?;
        // SAFETY: `len` elements, at least as many as `contents` has, which lies elsewhere; no copy is under way.
        unsafe { std::ptr::copy_nonoverlapping(contents.as_ptr(), at, contents.len()) };
        Ok(())
    }

    fn wait(&mut self) -> Result<*mut T, CudaError> {
        if let Some(copied) = &self.copied {
            copied.synchronize().map_err(driver("waiting for a copy"))?;
            self.copied = None;
        }
        self.memory.as_mut_ptr().map_err(driver("waiting for a copy"))
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if let Some(copied) = &self.copied {
            // The memory must not be freed under a copy; a broken GPU copies nothing any more.
            let _ = copied.synchronize();
        }
    }
}

impl Context {
    /// Where a buffer lies in the GPU's memory, for operations that find buffers by their address.
    pub fn address_of<T>(&self, x: &CudaSlice<T>) -> u64 {
        x.device_ptr(&self.stream).0
    }

    /// A buffer with undefined contents.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>, CudaError> {
        // SAFETY: contents are written by an operation before they are read; every bit pattern of T used here is valid.
        unsafe { self.stream.alloc(len) }.map_err(driver("allocating memory"))
    }

    /// A buffer of zeros.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<CudaSlice<T>, CudaError> {
        self.stream.alloc_zeros(len).map_err(driver("allocating memory"))
    }

    /// Copies host memory to a new buffer.
    ///
    /// # Errors
    /// If there is not enough memory or the driver reports an error.
    pub fn upload<T: DeviceRepr>(&self, from: &[T]) -> Result<CudaSlice<T>, CudaError> {
        self.stream.clone_htod(from).map_err(driver("copying to the GPU"))
    }

    /// Copies host memory to the front of a buffer.
    ///
    /// # Errors
    /// If `to` is too short or the driver reports an error.
    pub fn upload_into<T: DeviceRepr>(&self, from: &[T], to: Out<'_, T>) -> Result<(), CudaError> {
        holds("copy to the GPU", "the destination", to.len(), from.len())?;
        self.select()?;
        // SAFETY: both hold as many bytes; the driver has read pageable memory when this returns.
        unsafe { result::memcpy_htod_async(self.address_mut(to), from, self.stream.cu_stream()) }
            .map_err(driver("copying to the GPU"))
    }

    /// A buffer's contents, after everything enqueued before.
    ///
    /// # Errors
    /// If the driver reports an error, of this or of an operation before.
    pub fn download<T: DeviceRepr>(&self, from: In<'_, T>) -> Result<Vec<T>, CudaError> {
        let mut out = Vec::with_capacity(from.len());
        self.select()?;
        let copied = if from.len() == 0 {
            Ok(())
        } else {
            // SAFETY: room for as many elements was reserved, and the stream is waited for before anybody looks at them.
            let to = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr(), from.len()) };
            // SAFETY: as above.
            unsafe { result::memcpy_dtoh_async(to, self.address(from), self.stream.cu_stream()) }
        };
        self.synchronize()?;
        copied.map_err(driver("copying from the GPU"))?;
        // SAFETY: written by the copy, which is done.
        unsafe { out.set_len(from.len()) };
        Ok(out)
    }

    /// Copies the front of a buffer over all of `to`, after everything enqueued before.
    ///
    /// # Errors
    /// If `from` is too short or the driver reports an error, of this or of an operation before.
    pub fn read_into<T: DeviceRepr>(&self, from: In<'_, T>, to: &mut [T]) -> Result<(), CudaError> {
        holds("copy from the GPU", "the source", from.len(), to.len())?;
        self.select()?;
        // SAFETY: `from` holds as much, and the stream is waited for while `to` is borrowed.
        let copied = unsafe { result::memcpy_dtoh_async(to, self.address(from), self.stream.cu_stream()) };
        self.synchronize()?;
        copied.map_err(driver("copying from the GPU"))
    }

    /// Page-locked host memory of zeros, which the GPU copies to at full speed and without making the host wait.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn pinned<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<Pinned<T>, CudaError> {
        // Cached by the processor, unlike the write-combined memory that is the default: it is there to be read.
        // SAFETY: zeroed below, before anybody looks at it.
        let mut memory = unsafe { self.context.alloc_pinned_with_flags::<T>(len.max(1), 0) }
            .map_err(driver("allocating page-locked memory"))?;
        let at = memory.as_mut_ptr().map_err(driver("allocating page-locked memory"))?;
        // SAFETY: the memory is `len.max(1)` elements long, and zeros are valid.
        unsafe { at.write_bytes(0, len.max(1)) };
        Ok(Pinned { memory, len, copied: None })
    }

    /// Enqueues a copy of the front of a buffer over the first `count` elements of page-locked memory.
    ///
    /// # Errors
    /// If one of them is too short or the driver reports an error.
    pub fn read_pinned<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        from: In<'_, T>,
        to: &mut Pinned<T>,
        count: usize,
    ) -> Result<(), CudaError> {
        holds("copy from the GPU", "the source", from.len(), count)?;
        holds("copy from the GPU", "the page-locked memory", to.len, count)?;
        let memory = to.wait()?;
        self.select()?;
        // SAFETY: both hold `count` elements; `Pinned` waits for the event before it is read, written or freed.
        unsafe {
            let memory = std::slice::from_raw_parts_mut(memory, count);
            result::memcpy_dtoh_async(memory, self.address(from), self.stream.cu_stream())
        }
        .map_err(driver("copying from the GPU"))?;
        self.mark(to)
    }

    /// Enqueues a copy of the first `count` elements of page-locked memory over the front of a buffer.
    ///
    /// # Errors
    /// If one of them is too short or the driver reports an error.
    pub fn write_pinned<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        from: &mut Pinned<T>,
        count: usize,
        to: Out<'_, T>,
    ) -> Result<(), CudaError> {
        holds("copy to the GPU", "the page-locked memory", from.len, count)?;
        holds("copy to the GPU", "the destination", to.len(), count)?;
        let memory = from.wait()?;
        self.select()?;
        // SAFETY: both hold `count` elements; `Pinned` waits for the event before it is read, written or freed.
        unsafe {
            let memory = std::slice::from_raw_parts(memory, count);
            result::memcpy_htod_async(self.address_mut(to), memory, self.stream.cu_stream())
        }
        .map_err(driver("copying to the GPU"))?;
        self.mark(from)
    }

    /// Notes the present end of the stream as that of a copy from or to page-locked memory.
    fn mark<T>(&self, memory: &mut Pinned<T>) -> Result<(), CudaError> {
        match self.stream.record_event(None) {
            Ok(event) => memory.copied = Some(event),
            Err(e) => {
                // Nothing would say when the copy is done, so it has to be done now.
                self.synchronize()?;
                return Err(driver("recording an event")(e));
            }
        }
        Ok(())
    }

    /// Copies a buffer to another of the same length or more.
    ///
    /// # Errors
    /// If `to` is too short.
    pub fn copy<T>(&self, from: In<'_, T>, to: Out<'_, T>) -> Result<(), CudaError> {
        holds("copy", "the destination", to.len(), from.len())?;
        let bytes = from.len() * size_of::<T>();
        let (from, to) = (self.address(from), self.address_mut(to));
        self.select()?;
        // SAFETY: both hold `bytes` bytes, and the exclusive reference keeps them apart.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }.map_err(driver("copying"))
    }

    /// Sets a whole buffer to zero.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn fill_zero<T: ValidAsZeroBits>(&self, x: Out<'_, T>) -> Result<(), CudaError> {
        let bytes = x.len() * size_of::<T>();
        self.select()?;
        // SAFETY: the buffer holds `bytes` bytes and zeros are valid.
        unsafe { result::memset_d8_async(self.address_mut(x), 0, bytes, self.stream.cu_stream()) }
            .map_err(driver("setting memory to zero"))
    }
}
