//! One GPU: its stream, buffers, compiled kernels and products.
//!
//! Owns the order in which work is enqueued. Must not know what the kernels compute.

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr,
    DriverError, ValidAsZeroBits, result, sys,
};
use cudarc::nvrtc::Ptx;
use rayon::prelude::*;

use super::compile::{Source, cubin};
use super::gemm::Products;
use super::{CudaError, check, holds};

/// A buffer that an operation reads.
pub type In<'a, T> = &'a dyn DevicePtr<T>;
/// A buffer that an operation writes.
pub type Out<'a, T> = &'a mut dyn DevicePtrMut<T>;

/// A point in the stream, for timing.
#[derive(Debug)]
pub struct Event(CudaEvent);

impl Event {
    /// Milliseconds from this event to a later one; waits until both are reached.
    ///
    /// # Errors
    /// If the driver reports an error of anything before.
    pub fn until_ms(&self, later: &Self) -> Result<f32, CudaError> {
        self.0.elapsed_ms(&later.0).map_err(driver("timing"))
    }
}

/// One GPU with a stream of its own. All operations of this module are its methods.
pub struct Context {
    context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    arch: String,
    multiprocessors: u32,
    portable: bool,
    cache: Option<PathBuf>,
    modules: Mutex<HashMap<Source, Arc<CudaModule>>>,
    functions: Mutex<HashMap<(Source, &'static str), CudaFunction>>,
    pub(super) products: Products,
}

pub(super) fn driver(what: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |source| CudaError::Driver { what, source }
}

impl Context {
    /// Opens a GPU by its ordinal. `cache` is a folder for compiled kernels; without it they are compiled at each start.
    ///
    /// # Errors
    /// If the driver or cuBLASLt is missing, or there is no such GPU.
    pub fn new(ordinal: usize, cache: Option<&Path>) -> Result<Self, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Missing { library: "libcuda.so.1", package: "NVIDIA's driver" });
        }
        let context = CudaContext::new(ordinal).map_err(driver("opening the GPU"))?;
        // SAFETY: every buffer of this context is used on the one stream below, which orders all accesses.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver("creating a stream"))?;
        let (major, minor) = context.compute_capability().map_err(driver("asking for the GPU's architecture"))?;
        check("GPU", major >= 8, || {
            format!("compute capability {major}.{minor} lacks bf16 units; 8.0 or newer is needed")
        })?;
        let count = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(driver("counting multiprocessors"))?;
        let products = Products::new(&stream)?;
        Ok(Self {
            context,
            stream,
            arch: format!("sm_{major}{minor}"),
            multiprocessors: u32::try_from(count).unwrap_or(1).max(1),
            portable: false,
            cache: cache.map(Path::to_path_buf),
            modules: Mutex::default(),
            functions: Mutex::default(),
            products,
        })
    }

    /// The same with the kernels that run on every GPU only, to compare with those for this one.
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// The attention kernels for a head dimension on this GPU.
    pub(super) fn attention_source(&self, dim: usize) -> Source {
        let hopper = !self.portable && self.arch == "sm_90" && matches!(dim, 64 | 128);
        if hopper { Source::AttentionHopper(dim) } else { Source::Attention(dim) }
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn name(&self) -> Result<String, CudaError> {
        self.context.name().map_err(driver("asking for the GPU's name"))
    }

    /// Free and total bytes of the GPU's memory.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn memory_bytes(&self) -> Result<(usize, usize), CudaError> {
        self.context.mem_get_info().map_err(driver("asking for the GPU's memory"))
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

    /// Copies a buffer to host memory, after everything enqueued before.
    ///
    /// # Errors
    /// If the driver reports an error, of this or of an operation before.
    pub fn download<T: DeviceRepr>(&self, from: &CudaSlice<T>) -> Result<Vec<T>, CudaError> {
        let out = self.stream.clone_dtoh(from).map_err(driver("copying from the GPU"))?;
        self.synchronize()?;
        Ok(out)
    }

    /// Copies a buffer to another of the same length or more.
    ///
    /// # Errors
    /// If `to` is too short.
    pub fn copy<T>(&self, from: In<'_, T>, to: Out<'_, T>) -> Result<(), CudaError> {
        holds("copy", "the destination", to.len(), from.len())?;
        let bytes = from.len() * size_of::<T>();
        let (from, to) = (self.address(from), self.address_mut(to));
        // SAFETY: both hold `bytes` bytes, and the exclusive reference keeps them apart.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }.map_err(driver("copying"))
    }

    /// Waits until everything enqueued is done.
    ///
    /// # Errors
    /// If an operation failed on the GPU.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.stream.synchronize().map_err(driver("waiting for the GPU"))
    }

    /// Marks the present end of the stream.
    ///
    /// # Errors
    /// If the driver reports an error.
    pub fn event(&self) -> Result<Event, CudaError> {
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        self.stream.record_event(flags).map(Event).map_err(driver("recording an event"))
    }

    /// Blocks for a kernel that walks over its work: a few for each multiprocessor, no more than there is work.
    pub(super) fn blocks(&self, per_multiprocessor: u32, work: usize) -> u32 {
        (self.multiprocessors * per_multiprocessor).min(u32::try_from(work).unwrap_or(u32::MAX)).max(1)
    }

    pub(super) fn address<T>(&self, x: In<'_, T>) -> u64 {
        x.device_ptr(&self.stream).0
    }

    pub(super) fn address_mut<T>(&self, x: Out<'_, T>) -> u64 {
        x.device_ptr_mut(&self.stream).0
    }

    /// Compiles and loads every kernel for these head dimensions at once, so that no later operation waits for it.
    ///
    /// # Errors
    /// If NVRTC is missing or refuses a kernel.
    pub fn prepare(&self, head_dims: &[usize]) -> Result<(), CudaError> {
        let attention = head_dims.iter().map(|d| self.attention_source(*d));
        let sources: Vec<Source> = [Source::Rows, Source::Step].into_iter().chain(attention).collect();
        let compile = |s: &Source| cubin(*s, &self.arch, self.cache.as_deref());
        let codes: Vec<Result<Vec<u8>, CudaError>> = sources.par_iter().map(compile).collect();
        for (source, code) in sources.into_iter().zip(codes) {
            self.module(source, || code)?;
        }
        Ok(())
    }

    /// The loaded kernels of a source, from `code` the first time.
    fn module(
        &self,
        source: Source,
        code: impl FnOnce() -> Result<Vec<u8>, CudaError>,
    ) -> Result<Arc<CudaModule>, CudaError> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = modules.get(&source) {
            return Ok(m.clone());
        }
        let m = self.context.load_module(Ptx::from_binary(code()?)).map_err(driver("loading kernels"))?;
        modules.insert(source, m.clone());
        Ok(m)
    }

    fn function(&self, source: Source, name: &'static str, shared: u32) -> Result<CudaFunction, CudaError> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(f) = functions.get(&(source, name)) {
            return Ok(f.clone());
        }
        let module = self.module(source, || cubin(source, &self.arch, self.cache.as_deref()))?;
        let f = module.load_function(name).map_err(driver("looking up a kernel"))?;
        if shared > 48 << 10 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            f.set_attribute(most, shared as i32).map_err(driver("reserving shared memory"))?;
        }
        functions.insert((source, name), f.clone());
        Ok(f)
    }

    /// Enqueues a kernel. A kernel always gets the same amount of dynamic shared memory.
    ///
    /// # Safety
    /// `arguments` must point to values of the kernel's parameter types in order, and the kernel must stay inside the
    /// buffers named there.
    pub(super) unsafe fn launch(
        &self,
        (source, name): (Source, &'static str),
        grid: (u32, u32),
        block: (u32, u32),
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), CudaError> {
        if grid.0 == 0 || grid.1 == 0 {
            return Ok(());
        }
        let f = self.function(source, name, shared)?;
        self.context.bind_to_thread().map_err(driver("selecting the GPU"))?;
        let (grid, block) = ((grid.0, grid.1, 1), (block.0, block.1, 1));
        // SAFETY: the caller's.
        unsafe { result::launch_kernel(f.cu_function(), grid, block, shared, self.stream.cu_stream(), arguments) }
            .map_err(driver(name))
    }
}

/// Pointers to kernel arguments, alive for the statement they stand in.
macro_rules! args {
    ($($x:expr),* $(,)?) => { &mut [$(std::ptr::from_ref(&$x).cast_mut().cast::<std::ffi::c_void>()),*] };
}
pub(super) use args;

/// A count as the kernels' `int`.
pub(super) fn int(op: &'static str, x: usize) -> Result<i32, CudaError> {
    i32::try_from(x).map_err(|_| CudaError::Shape { op, what: format!("{x} is more than a kernel can count") })
}

/// A count of blocks.
pub(super) fn grid(op: &'static str, x: usize) -> Result<u32, CudaError> {
    int(op, x).map(|x| x as u32)
}
