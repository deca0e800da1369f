//! How much of the GPU's memory is in use.
//!
//! Owns the questions to the driver's pool and to NVIDIA's management library, which is looked for at run time. Must not
//! know what the memory is used for.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::{result, sys};

use super::CudaError;
use super::context::{Context, driver};

/// Bytes that buffers of this process took from the driver's pool. Products' workspaces are among them; compiled kernels
/// and the driver's own memory are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBytes {
    /// In buffers now.
    pub used: u64,
    /// The most that ever was in buffers at once.
    pub used_high: u64,
    /// Taken from the GPU now.
    pub reserved: u64,
    /// The most that ever was taken from the GPU.
    pub reserved_high: u64,
}

/// Bytes of the GPU's memory in use, as the management library tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBytes {
    /// By this process, everything included.
    Process(u64),
    /// By all processes: the library does not tell them apart here, as in a container.
    Device(u64),
}

impl Context {
    /// Free and total bytes of the GPU's memory.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn memory_bytes(&self) -> Result<(usize, usize), CudaError> {
        self.context.mem_get_info().map_err(driver("asking for the GPU's memory"))
    }

    /// What the driver's pool, where all buffers come from, holds and held at most.
    ///
    /// # Errors
    /// If the driver has no pool for this GPU.
    pub fn pool_bytes(&self) -> Result<PoolBytes, CudaError> {
        use sys::CUmemPool_attribute as Attribute;
        self.select()?;
        // SAFETY: the device came from the driver.
        let pool = unsafe { result::device::get_default_mem_pool(self.device) };
        let pool = pool.map_err(driver("asking for the GPU's memory pool"))?;
        let ask = |which| {
            let mut bytes = 0u64;
            // SAFETY: these attributes are 64-bit counts.
            unsafe { sys::cuMemPoolGetAttribute(pool, which, std::ptr::from_mut(&mut bytes).cast()) }
                .result()
                .map_err(driver("asking for the GPU's memory pool"))?;
            Ok::<_, CudaError>(bytes)
        };
        Ok(PoolBytes {
            used: ask(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_high: ask(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            reserved: ask(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_high: ask(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
        })
    }

    /// Bytes of this GPU's memory in use now, as NVIDIA's management library tells them; `None` if it is not there or
    /// does not answer. A high-water mark is the largest of what was seen.
    pub fn used_bytes(&self) -> Option<UsedBytes> {
        let mut bus = [0 as c_char; 32];
        // SAFETY: the driver writes at most as many bytes, with a zero at the end.
        unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, self.device) }.result().ok()?;
        Library::get()?.used_bytes(&bus)
    }
}

/// As `nvmlProcessInfo_v2_t`, the rows that `nvmlDeviceGetComputeRunningProcesses_v3` fills.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: c_uint,
    bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// As `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

const SUCCESS: c_int = 0;
/// `nvmlProcessInfo_t::usedGpuMemory` where it is not known.
const UNKNOWN: u64 = u64::MAX;

type Device = *mut c_void;
type ByBus = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
type Processes = unsafe extern "C" fn(Device, *mut c_uint, *mut Process) -> c_int;
type MemoryInfo = unsafe extern "C" fn(Device, *mut Memory) -> c_int;

/// The management library's functions that are needed.
struct Library {
    by_bus: ByBus,
    processes: Processes,
    memory: MemoryInfo,
}

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

impl Library {
    /// The library, opened and started once and kept.
    fn get() -> Option<&'static Self> {
        static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
        LIBRARY.get_or_init(Self::open).as_ref()
    }

    fn open() -> Option<Self> {
        const RTLD_NOW: c_int = 2;
        let name = CString::new("libnvidia-ml.so.1").ok()?;
        // SAFETY: the name ends with a zero; the library's start-up code is the driver's.
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let function = |name: &str| {
            let name = CString::new(name).ok()?;
            // SAFETY: the library is open and is never closed.
            let at = unsafe { dlsym(library, name.as_ptr()) };
            (!at.is_null()).then_some(at)
        };
        // SAFETY: the functions have these types in every version of the library that has them.
        unsafe {
            let start: unsafe extern "C" fn() -> c_int = std::mem::transmute(function("nvmlInit_v2")?);
            let out = Self {
                by_bus: std::mem::transmute::<*mut c_void, ByBus>(function("nvmlDeviceGetHandleByPciBusId_v2")?),
                processes: std::mem::transmute::<*mut c_void, Processes>(function(
                    "nvmlDeviceGetComputeRunningProcesses_v3",
                )?),
                memory: std::mem::transmute::<*mut c_void, MemoryInfo>(function("nvmlDeviceGetMemoryInfo")?),
            };
            (start() == SUCCESS).then_some(out)
        }
    }

    /// `bus` is the GPU's address as the driver writes it, with a zero at the end.
    fn used_bytes(&self, bus: &[c_char]) -> Option<UsedBytes> {
        let mut device = std::ptr::null_mut();
        // SAFETY: `bus` ends with a zero.
        if unsafe { (self.by_bus)(bus.as_ptr(), &mut device) } != SUCCESS {
            return None;
        }
        let mut rows = [Process::default(); 256];
        let mut count = rows.len() as c_uint;
        // SAFETY: the library fills at most `count` rows and says how many it filled.
        if unsafe { (self.processes)(device, &mut count, rows.as_mut_ptr()) } == SUCCESS {
            let me = std::process::id();
            let mine = rows.iter().take(count as usize).find(|p| p.pid == me && p.bytes != UNKNOWN);
            if let Some(p) = mine {
                return Some(UsedBytes::Process(p.bytes));
            }
        }
        let mut memory = Memory::default();
        // SAFETY: the library fills the structure.
        let answer = unsafe { (self.memory)(device, &mut memory) };
        (answer == SUCCESS).then_some(UsedBytes::Device(memory.used))
    }
}
