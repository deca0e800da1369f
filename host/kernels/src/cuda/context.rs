//! One GPU: its stream, compiled kernels and products.
//!
//! Owns the order in which work is enqueued. Must not know what the kernels compute.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaModule, CudaStream, DevicePtr, DevicePtrMut, DriverError, result, sys,
};
use cudarc::nvrtc::Ptx;
use rayon::prelude::*;

use super::compile::{Code, Precision, Source, cubin, fresh_cubin};
use super::element::bf16;
use super::element::private::Sealed as _;
use super::gemm::Products;
use super::trace::Trace;
use super::{CudaError, check};
use crate::libraries::{self, LibraryError};

/// Read while weights are set up, written while a step is recorded.
static SETTING_UP: RwLock<()> = RwLock::new(());

/// Keeps steps from being recorded as long as it lives: for who allocates, copies and frees weights on another thread than
/// the one that samples.
pub fn setting_up() -> RwLockReadGuard<'static, ()> {
    SETTING_UP.read().unwrap_or_else(PoisonError::into_inner)
}

/// To record a step; none while something is being set up.
pub(super) fn recording() -> Option<RwLockWriteGuard<'static, ()>> {
    SETTING_UP.try_write().ok()
}

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
    pub(super) context: Arc<CudaContext>,
    pub(super) device: sys::CUdevice,
    pub(super) stream: Arc<CudaStream>,
    arch: String,
    multiprocessors: u32,
    portable: bool,
    deterministic: bool,
    exact: bool,
    cache: Option<PathBuf>,
    modules: Mutex<HashMap<Source, Arc<CudaModule>>>,
    functions: Mutex<HashMap<(Source, &'static str), CudaFunction>>,
    pub(super) products: Products,
    pub(super) traces: Trace,
}

pub(super) fn driver(what: &'static str) -> impl FnOnce(DriverError) -> CudaError {
    move |source| CudaError::Driver { what, source }
}

impl Context {
    /// Opens a GPU by its ordinal. `cache` is a folder for compiled kernels; without it they are compiled at each start.
    ///
    /// # Errors
    /// If the driver or cuBLASLt is missing or no such library, or there is no such GPU.
    pub fn new(ordinal: usize, cache: Option<&Path>) -> Result<Self, CudaError> {
        let driver_found = libraries::driver()?;
        let count = driver_found.gpus.clone()?.len();
        if ordinal >= count {
            return Err(LibraryError::NoSuchGpu { index: ordinal, count }.into());
        }
        libraries::cublas_lt(Some(&driver_found))?;
        let context = CudaContext::new(ordinal).map_err(driver("opening the GPU"))?;
        let device = i32::try_from(ordinal).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_DEVICE));
        let device = device.and_then(result::device::get).map_err(driver("opening the GPU"))?;
        // SAFETY: a context's buffers are used on its one stream below, which orders all accesses. Where another context's
        // stream reads one (a copy of weights to sample from), the maker waits before it hands it over, and the reader
        // waits before it lets go.
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
            device,
            stream,
            arch: format!("sm_{major}{minor}"),
            multiprocessors: u32::try_from(count).unwrap_or(1).max(1),
            portable: false,
            deterministic: false,
            exact: false,
            cache: cache.map(Path::to_path_buf),
            modules: Mutex::default(),
            functions: Mutex::default(),
            products,
            traces: Trace::default(),
        })
    }

    /// The same with the kernels that run on every GPU only, to compare with those for this one.
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// The same with kernels that give the same bits for the same inputs only: attention's backward pass on Hopper then
    /// computes seven products instead of five.
    pub fn deterministic(mut self) -> Self {
        self.deterministic = true;
        self
    }

    /// The same with forward passes whose bits for a token depend on its document's prefix only, not on what else is in the batch or
    /// how the prompt was split, so that training and sampling agree: one order of sums for all products of a forward pass,
    /// however many rows they have, and one loop for all of attention. For what is stored as bf16.
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    /// Whether attention's backward pass for a head dimension is the one whose sums have no fixed order.
    pub(super) fn attention_fused(&self, precision: Precision, dim: usize) -> bool {
        !self.deterministic && matches!(self.attention_source(precision, dim), Source::AttentionHopper(_))
    }

    /// The kernel of attention's forward pass for a head dimension.
    pub(super) fn attention_forward_source(&self, precision: Precision, dim: usize) -> Source {
        match self.attention_source(precision, dim) {
            Source::AttentionHopper(dim) if self.exact => Source::Attention(dim),
            source => source,
        }
    }

    /// The attention kernels for a head dimension on this GPU.
    pub(super) fn attention_source(&self, precision: Precision, dim: usize) -> Source {
        let hopper = !self.portable && self.arch == "sm_90" && matches!(dim, 64 | 128);
        match precision {
            Precision::Full => Source::AttentionFull(dim),
            Precision::Half if hopper => Source::AttentionHopper(dim),
            Precision::Half => Source::Attention(dim),
        }
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn name(&self) -> Result<String, CudaError> {
        self.context.name().map_err(driver("asking for the GPU's name"))
    }

    /// Makes this GPU the calling thread's, as the driver's own calls need it.
    pub(super) fn select(&self) -> Result<(), CudaError> {
        self.context.bind_to_thread().map_err(driver("selecting the GPU"))
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

    /// Most shared memory that a block can have.
    pub(super) fn shared_memory_bytes(&self) -> Result<usize, CudaError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let bytes = self.context.attribute(attribute).map_err(driver("asking for shared memory"))?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    pub(super) fn address<T>(&self, x: In<'_, T>) -> u64 {
        x.device_ptr(&self.stream).0
    }

    pub(super) fn address_mut<T>(&self, x: Out<'_, T>) -> u64 {
        x.device_ptr_mut(&self.stream).0
    }

    /// Compiles and loads every kernel for these head dimensions at once, so that no later operation waits for it:
    /// those that store bf16 if `half`, those that store f32 if `full`.
    ///
    /// # Errors
    /// If NVRTC is missing or refuses a kernel.
    pub fn prepare(&self, head_dims: &[usize], half: bool, full: bool) -> Result<(), CudaError> {
        let mut sources = vec![Source::Draw];
        sources.extend(half.then_some(if self.exact { Source::Chain } else { Source::Few }));
        for (wanted, p) in [(half, bf16::PRECISION), (full, f32::PRECISION)] {
            if wanted {
                sources.extend([Source::Rows(p), Source::Step(p), Source::LowRank(p)]);
                sources.extend(head_dims.iter().flat_map(|d| {
                    [self.attention_source(p, *d), self.attention_forward_source(p, *d), Source::Decode(p, *d)]
                }));
            }
        }
        for dim in head_dims {
            self.check_shared_memory(*dim, half)?;
        }
        {
            let loaded = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
            let mut seen = HashSet::new();
            sources.retain(|s| !loaded.contains_key(s) && seen.insert(*s));
        }
        let compile = |s: &Source| cubin(*s, &self.arch, self.cache.as_deref());
        let codes: Vec<Result<Code, CudaError>> = sources.par_iter().map(compile).collect();
        for (source, code) in sources.into_iter().zip(codes) {
            self.module(source, || code)?;
        }
        Ok(())
    }

    /// The loaded kernels of a source, from `code` the first time.
    fn module(
        &self,
        source: Source,
        code: impl FnOnce() -> Result<Code, CudaError>,
    ) -> Result<Arc<CudaModule>, CudaError> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = modules.get(&source) {
            return Ok(m.clone());
        }
        let load = |bytes| self.context.load_module(Ptx::from_binary(bytes));
        let Code { bytes, cached } = code()?;
        let m = match load(bytes) {
            // The file was damaged, or made by a compiler that this driver is too old for.
            Err(_) if cached => load(fresh_cubin(source, &self.arch, self.cache.as_deref())?),
            loaded => loaded,
        };
        let m = m.map_err(driver("loading kernels"))?;
        modules.insert(source, m.clone());
        Ok(m)
    }

    /// A source's variant that is loaded already, if one is: for kernels that are the same in all of them.
    pub(super) fn either(&self, source: impl Fn(Precision) -> Source) -> Source {
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let (half, full) = (source(Precision::Half), source(Precision::Full));
        if modules.contains_key(&full) && !modules.contains_key(&half) { full } else { half }
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
        self.select()?;
        let (grid, block) = ((grid.0, grid.1, 1), (block.0, block.1, 1));
        let enqueue = || {
            // SAFETY: the caller's.
            unsafe { result::launch_kernel(f.cu_function(), grid, block, shared, self.stream.cu_stream(), arguments) }
                .map_err(driver(name))
        };
        self.traced(|| name.to_owned(), enqueue)
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
