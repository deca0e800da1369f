//! NVIDIA's driver through dlopen. Owns the calls and what their failures mean; no build needs CUDA for it.

use super::GIB;
use libloading::{Library, Symbol};
use serde::Serialize;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// The driver's library.
pub const FILE: &str = "libcuda.so.1";

/// The driver calls it no error to be there without a GPU; `cuInit` does.
const NO_DEVICE: c_int = 100;
/// Device attributes.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const NAME_BYTES: usize = 256;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Number = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceName = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
type DeviceMemory = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type DeviceAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
type ErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gpu {
    /// As the driver numbers it, which is what `cuda:N` means.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its memory, GiB.
    pub memory_gib: f64,
    /// Major and minor number of its architecture.
    #[serde(rename = "compute_capability", serialize_with = "dotted")]
    pub capability: (i32, i32),
}

fn dotted<S: serde::Serializer>(capability: &(i32, i32), to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{}.{}", capability.0, capability.1))
}

/// A driver that is there.
pub struct Driver {
    /// The newest CUDA it can run, such as `13.0`.
    pub cuda: String,
    /// The GPUs, or why there are none.
    pub gpus: Result<Vec<Gpu>, String>,
}

/// Asks the driver.
///
/// # Errors
/// It is not installed, or not a driver; the system's word on it.
pub fn open() -> Result<Driver, String> {
    // SAFETY: libcuda has no constructors with preconditions.
    let library = unsafe { Library::new(FILE) }.map_err(reason)?;
    // The driver keeps threads and exit handlers: it stays loaded.
    let calls = Calls { library: std::mem::ManuallyDrop::new(library) };
    let version = calls.number(b"cuDriverGetVersion\0")?;
    let cuda = format!("{}.{}", version / 1000, version % 1000 / 10);
    Ok(Driver { cuda, gpus: calls.gpus() })
}

/// The loader's own words, which name the file.
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

struct Calls {
    library: std::mem::ManuallyDrop<Library>,
}

impl Calls {
    /// # Safety
    /// `T` must be the symbol's signature.
    unsafe fn get<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>, String> {
        // SAFETY: the caller's.
        unsafe { self.library.get(name) }.map_err(reason)
    }

    fn number(&self, name: &[u8]) -> Result<c_int, String> {
        let mut value = 0;
        // SAFETY: both functions asked for here take one pointer to a number and have done so since CUDA 2.
        let status = unsafe { self.get::<Number>(name)?(&mut value) };
        self.check(status)?;
        Ok(value)
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        if status == NO_DEVICE {
            return Err("the driver sees no GPU".into());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: writes a pointer to a constant string, or null.
        let known = unsafe { self.get::<ErrorText>(b"cuGetErrorString\0")?(status, &mut text) } == 0 && !text.is_null();
        // SAFETY: a constant string that ends in 0.
        let text = if known { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() } else { String::new() };
        Err(format!("the driver reports error {status} {text}").trim_end().to_string())
    }

    fn gpus(&self) -> Result<Vec<Gpu>, String> {
        // SAFETY: takes flags, which must be 0.
        let status = unsafe { self.get::<Init>(b"cuInit\0")?(0) };
        self.check(status)?;
        let count = self.number(b"cuDeviceGetCount\0")?;
        (0..count).map(|ordinal| self.gpu(ordinal)).collect()
    }

    fn gpu(&self, ordinal: c_int) -> Result<Gpu, String> {
        let (mut device, mut bytes, mut major, mut minor) = (0, 0usize, 0, 0);
        let mut name = [0 as c_char; NAME_BYTES];
        // SAFETY: signatures as in cuda.h; the driver is initialised; the name's length is handed over and leaves room for
        // the 0 at its end.
        unsafe {
            self.check(self.get::<DeviceGet>(b"cuDeviceGet\0")?(&mut device, ordinal))?;
            let room = (NAME_BYTES - 1) as c_int;
            self.check(self.get::<DeviceName>(b"cuDeviceGetName\0")?(name.as_mut_ptr(), room, device))?;
            self.check(self.get::<DeviceMemory>(b"cuDeviceTotalMem_v2\0")?(&mut bytes, device))?;
            let attribute = self.get::<DeviceAttribute>(b"cuDeviceGetAttribute\0")?;
            self.check(attribute(&mut major, MAJOR, device))?;
            self.check(attribute(&mut minor, MINOR, device))?;
        }
        // SAFETY: the last byte is still 0.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Gpu {
            index: usize::try_from(ordinal).unwrap_or(0),
            name,
            memory_gib: bytes as f64 / GIB,
            capability: (major, minor),
        })
    }
}
