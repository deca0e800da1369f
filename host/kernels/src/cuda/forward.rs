//! Products `x · wᵀ` in bf16, as all of a forward pass are, for kernels of our own.
//!
//! Owns what such a kernel is told. Must not know which kernels there are.

use super::CudaError;
use super::compile::Source;
use super::context::{Context, args, grid, int};

/// Where the factors, what is added to and the result of a product are; nothing is added where the second is 0.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub a: u64,
    pub b: u64,
    pub onto: u64,
    pub c: u64,
}

/// A product `x · wᵀ` in bf16 as addresses, checked by whoever has the buffers.
pub(super) struct Forward {
    pub shape: [usize; 3],
    pub places: Places,
    /// Of x, w, and the result.
    pub strides: [usize; 3],
    /// Whether the result is f32, which then is added to nothing.
    pub float: bool,
}

impl Forward {
    /// Whether factors are whole chunks of sixteen bytes.
    pub fn is_whole(&self) -> bool {
        let whole = |address: u64, stride: usize| address.is_multiple_of(16) && stride.is_multiple_of(8);
        self.shape[2].is_multiple_of(8)
            && whole(self.places.a, self.strides[0])
            && whole(self.places.b, self.strides[1])
            && !(self.float && self.places.onto != 0)
    }
}

impl Context {
    /// Enqueues a kernel over so many blocks of columns and rows.
    ///
    /// # Safety
    /// The kernel takes what is named here, and as for [`Context::few`].
    pub(super) unsafe fn launch_forward(
        &self,
        kernel: (Source, &'static str),
        blocks: [usize; 2],
        threads: u32,
        shared: u32,
        p: &Forward,
    ) -> Result<(), CudaError> {
        const OP: &str = "product";
        let ([m, n, k], [x, w, out], at) = (p.shape, p.strides, p.places);
        // SAFETY: arguments are those of the kernels; the rest is the caller's.
        unsafe {
            self.launch(
                kernel,
                (grid(OP, blocks[0])?, grid(OP, blocks[1])?),
                (threads, 1),
                shared,
                args![
                    at.a,
                    at.b,
                    at.onto,
                    at.c,
                    int(OP, m)?,
                    int(OP, n)?,
                    int(OP, k)?,
                    int(OP, x)?,
                    int(OP, w)?,
                    int(OP, out)?
                ],
            )
        }
    }
}
