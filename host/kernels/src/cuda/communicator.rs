//! Processes with a GPU each that hand buffers on over NCCL.
//!
//! Owns joining their communicator, its one operation (the first process's buffer to all others), waiting with an end, and leaving.
//! Must not know what is in the buffers. NCCL by itself waits for ever for a process that does not come: here every wait has
//! an end and can be called off, and what failed once has left.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, DeviceRepr};
use cudarc::nccl::sys::{self, ncclResult_t as Status};

use super::context::{Context, In, Out, driver};
use super::{CudaError, check};
use crate::{COMMUNICATOR_ID_BYTES, Seat, libraries};

/// Pauses between two looks at what is under way; they grow from the first to the last.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(2)];
/// What marks a configuration as one, and the version that says which of its fields are read.
const CONFIG: (u32, u32) = (0xcafe_beef, 21_800);

/// A new communicator's id. NCCL listens for the others from now on, on the interface that NCCL_SOCKET_IFNAME names or it chooses.
///
/// # Errors
/// If NCCL is missing, too old, or finds no interface.
pub fn communicator_id() -> Result<[u8; COMMUNICATOR_ID_BYTES], CudaError> {
    libraries::nccl()?;
    let mut id = sys::ncclUniqueId { internal: [0; COMMUNICATOR_ID_BYTES] };
    // SAFETY: the library was looked at just now; it writes the id.
    accepted("an id for an NCCL communicator", std::ptr::null_mut(), unsafe { sys::ncclGetUniqueId(&mut id) })?;
    Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]))
}

/// NCCL's handle, good until it is aborted.
struct Handle(sys::ncclComm_t);

// SAFETY: NCCL's handles may be used from any thread, one at a time, which a lock sees to.
unsafe impl Send for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by NCCL and used by nobody else any more. Whatever is under way is broken off.
        let _ = unsafe { sys::ncclCommAbort(self.0) };
    }
}

/// A process's part in a communicator.
pub struct Communicator {
    context: Arc<Context>,
    stream: Arc<CudaStream>,
    seat: Seat,
    /// None once the communicator was left.
    handle: Mutex<Option<Handle>>,
}

impl Communicator {
    /// Waits until all have joined.
    ///
    /// # Errors
    /// If NCCL is missing or too old, refuses, or others do not come in time.
    pub fn join(context: Arc<Context>, seat: Seat) -> Result<Self, CudaError> {
        libraries::nccl()?;
        check("communicator", seat.rank < seat.size, || format!("rank {} of {} processes", seat.rank, seat.size))?;
        let count = |x: usize| {
            c_int::try_from(x).map_err(|_| wrong("joining an NCCL communicator", "too many processes".into()))
        };
        let (rank, size) = (count(seat.rank)?, count(seat.size)?);
        context.select()?;
        let stream = context.context.new_stream().map_err(driver("creating a stream"))?;
        let id = sys::ncclUniqueId { internal: seat.id.map(|byte| std::ffi::c_char::from_ne_bytes([byte])) };
        let mut config = config();
        let mut handle = Handle(std::ptr::null_mut());
        // SAFETY: NCCL reads id and configuration before it returns, and writes the handle.
        let status = unsafe { sys::ncclCommInitRankConfig(&mut handle.0, size, id, rank, &mut config) };
        if handle.0.is_null() {
            std::mem::forget(handle);
            return Err(accepted("joining an NCCL communicator", std::ptr::null_mut(), status)
                .err()
                .unwrap_or_else(|| wrong("joining an NCCL communicator", "no handle was made".into())));
        }
        accepted("joining an NCCL communicator", handle.0, status)?;
        seat.until("joining an NCCL communicator", || idle("joining an NCCL communicator", &handle))?;
        Ok(Self { context, stream, seat, handle: Mutex::new(Some(handle)) })
    }

    /// Sends a whole buffer to all others, who [receive](Self::receive) one of as many bytes; the sender is the one of rank 0.
    /// What made the buffer must be done. Returns when it was sent.
    ///
    /// # Errors
    /// If NCCL reports an error or others do not come in time; the communicator was left then.
    pub fn send<T: DeviceRepr>(&self, x: In<'_, T>) -> Result<(), CudaError> {
        check("communicator", self.seat.rank == 0, || format!("rank {} cannot send", self.seat.rank))?;
        let at = x.device_ptr(&self.stream).0;
        // SAFETY: the sender's buffer is only read.
        unsafe { self.broadcast("sending over NCCL", at, x.len() * size_of::<T>()) }
    }

    /// Fills a whole buffer with what rank 0 sends. Returns when it is there.
    ///
    /// # Errors
    /// As of [`Self::send`].
    pub fn receive<T: DeviceRepr>(&self, x: Out<'_, T>) -> Result<(), CudaError> {
        check("communicator", self.seat.rank != 0, || "rank 0 cannot receive".into())?;
        let (bytes, at) = (x.len() * size_of::<T>(), x.device_ptr_mut(&self.stream).0);
        // SAFETY: the buffer holds as many bytes, and every bit pattern of what is sent is valid.
        unsafe { self.broadcast("receiving over NCCL", at, bytes) }
    }

    /// As [`Self::send`] of a few numbers in the host's memory.
    ///
    /// # Errors
    /// As there.
    pub fn send_numbers(&self, numbers: &[u64]) -> Result<(), CudaError> {
        let there = self.stream.clone_htod(numbers).map_err(driver("copying to the GPU"))?;
        self.send(&there)
    }

    /// As [`Self::receive`] of a few numbers.
    ///
    /// # Errors
    /// As there.
    pub fn receive_numbers(&self, count: usize) -> Result<Vec<u64>, CudaError> {
        let mut there = self.stream.alloc_zeros::<u64>(count).map_err(driver("allocating memory"))?;
        self.receive(&mut there)?;
        self.stream.clone_dtoh(&there).map_err(driver("copying from the GPU"))
    }

    /// # Safety
    /// The address must be that of as many bytes on the GPU, which nobody else uses unless this is the sender.
    unsafe fn broadcast(&self, what: &'static str, at: u64, bytes: usize) -> Result<(), CudaError> {
        let mut held = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handle) = held.as_ref() else { return Err(wrong(what, "the communicator was left".into())) };
        let passed = || {
            self.context.select()?;
            let (at, stream) = (at as *mut c_void, self.stream.cu_stream().cast());
            let kind = sys::ncclDataType_t::ncclUint8;
            // SAFETY: the caller's; sender and receivers name their own buffer.
            let status = unsafe { sys::ncclBroadcast(at, at, bytes, kind, 0, handle.0, stream) };
            accepted(what, handle.0, status)?;
            // Only then is it in the stream.
            self.seat.until(what, || idle(what, handle))?;
            let event = self.stream.record_event(None).map_err(driver("recording an event"))?;
            self.seat.until(what, || {
                idle(what, handle)?;
                event.try_is_complete().map_err(driver("waiting for the GPU"))
            })
        };
        let passed = passed();
        if passed.is_err() {
            // Others may be anywhere now, so that nothing that is sent later would be what it seems.
            *held = None;
            // The buffer must not be let go while a kernel has it; what is wrong with the stream is told already.
            let _ = self.stream.synchronize();
        }
        passed
    }
}

impl Seat {
    /// Waits until something is done.
    fn until(&self, what: &'static str, mut done: impl FnMut() -> Result<bool, CudaError>) -> Result<(), CudaError> {
        let (begun, [mut pause, longest]) = (Instant::now(), PAUSES);
        while !done()? {
            if self.called_off.load(Ordering::Relaxed) {
                return Err(wrong(what, "it was called off".into()));
            }
            if begun.elapsed() > self.patience {
                let (size, seconds) = (self.size, self.patience.as_secs_f64());
                return Err(wrong(what, format!("not all of its {size} processes came within {seconds} s")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
        Ok(())
    }
}

fn wrong(what: &'static str, text: String) -> CudaError {
    CudaError::Nccl { what, text }
}

/// Whether nothing that was asked of NCCL is still on its way into the stream.
fn idle(what: &'static str, handle: &Handle) -> Result<bool, CudaError> {
    let mut status = Status::ncclSuccess;
    // SAFETY: the handle is good; NCCL writes the status.
    accepted(what, handle.0, unsafe { sys::ncclCommGetAsyncError(handle.0, &mut status) })?;
    accepted(what, handle.0, status)?;
    Ok(status != Status::ncclInProgress)
}

/// What NCCL says is wrong, if something is. A handle may have more to tell.
fn accepted(what: &'static str, handle: sys::ncclComm_t, status: Status) -> Result<(), CudaError> {
    if matches!(status, Status::ncclSuccess | Status::ncclInProgress) {
        return Ok(());
    }
    let read = |text: *const std::ffi::c_char| match text.is_null() {
        true => String::new(),
        // SAFETY: NCCL gives constant strings that end in 0.
        false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
    };
    // SAFETY: both take any status and handle, also none.
    let (kind, last) = unsafe { (read(sys::ncclGetErrorString(status)), read(sys::ncclGetLastError(handle))) };
    Err(wrong(what, if last.is_empty() { kind } else { format!("{kind}: {last}") }))
}

/// Calls return at once; everything else is left to NCCL.
fn config() -> sys::ncclConfig_t {
    let (magic, version) = CONFIG;
    // What NCCL takes for not said.
    let (int, text) = (c_int::MIN, std::ptr::null());
    sys::ncclConfig_t {
        size: size_of::<sys::ncclConfig_t>(),
        magic,
        version,
        blocking: 0,
        cgaClusterSize: int,
        minCTAs: int,
        maxCTAs: int,
        netName: text,
        splitShare: int,
        trafficClass: int,
        commName: text,
        collnetEnable: int,
        CTAPolicy: int,
        shrinkShare: int,
        nvlsCTAs: int,
        nChannelsPerNetPeer: int,
        nvlinkCentricSched: int,
        graphUsageMode: int,
        numRmaCtx: int,
        maxP2pPeers: int,
    }
}
