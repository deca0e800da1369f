//! Matrix products through cuBLASLt.
//!
//! Owns the library's handle, its workspace and one chosen algorithm per shape. Must not know what is multiplied.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use super::element::bf16;
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaSlice, CudaStream};

use super::context::{Context, In, Out, driver};
use super::{CudaError, check, holds};

const WORKSPACE_BYTES: usize = 64 << 20;

/// An element type of a product: [`bf16`] (tensor cores, f32 sums) or `f32` (full f32 arithmetic).
pub trait Element: private::Sealed {}
impl Element for bf16 {}
impl Element for f32 {}

mod private {
    pub trait Sealed {
        const TYPE: cudarc::cublaslt::sys::cudaDataType;
        const BYTES: usize;
    }
    impl Sealed for super::bf16 {
        const TYPE: cudarc::cublaslt::sys::cudaDataType = cudarc::cublaslt::sys::cudaDataType::CUDA_R_16BF;
        const BYTES: usize = 2;
    }
    impl Sealed for f32 {
        const TYPE: cudarc::cublaslt::sys::cudaDataType = cudarc::cublaslt::sys::cudaDataType::CUDA_R_32F;
        const BYTES: usize = 4;
    }
}

/// A row-major matrix in a buffer: element (i, j) of what is multiplied is `data[i · stride + j]`, or
/// `data[j · stride + i]` if transposed.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    /// The elements, from the first one on.
    pub data: In<'a, T>,
    /// Elements from one stored row to the next.
    pub stride: usize,
    /// Whether the transpose of what is stored takes part.
    pub transposed: bool,
}

impl<'a, T> Matrix<'a, T> {
    /// The stored matrix itself.
    pub fn new(data: In<'a, T>, stride: usize) -> Self {
        Self { data, stride, transposed: false }
    }

    /// The stored matrix's transpose.
    pub fn t(data: In<'a, T>, stride: usize) -> Self {
        Self { data, stride, transposed: true }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    strides: [usize; 3],
    transposed: [bool; 2],
    half_in: bool,
    half_out: bool,
    add: bool,
}

struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: descriptors are plain data of the library, changed by nobody after creation.
unsafe impl Send for Plan {}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: created by `plan`, destroyed once.
        unsafe {
            for l in self.layouts {
                let _ = lt::destroy_matrix_layout(l);
            }
            let _ = lt::destroy_matmul_desc(self.desc);
        }
    }
}

pub(super) struct Products {
    handle: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    plans: Mutex<HashMap<Shape, Plan>>,
}

// SAFETY: the library allows a handle on any thread; plans are behind a lock.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

impl Drop for Products {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        let _ = unsafe { lt::destroy_handle(self.handle) };
    }
}

fn blas(what: impl Into<String>) -> impl FnOnce(lt::CublasError) -> CudaError {
    move |source| CudaError::Blas { what: what.into(), source }
}

impl Products {
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::Missing { library: "libcublasLt.so", package: "the CUDA toolkit's cuBLAS" });
        }
        // SAFETY: scratch memory; cuBLASLt writes before it reads.
        let workspace = unsafe { stream.alloc(WORKSPACE_BYTES) }.map_err(driver("allocating cuBLASLt's workspace"))?;
        let handle = lt::create_handle().map_err(blas("opening cuBLASLt"))?;
        Ok(Self { handle, workspace, plans: Mutex::default() })
    }

    fn plan(&self, s: Shape) -> Result<Plan, CudaError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        use sys::{cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Attribute, cudaDataType as Type};
        let failed = || blas(format!("planning the product {s:?}"));
        let element = |half| if half { Type::CUDA_R_16BF } else { Type::CUDA_R_32F };
        // The library counts columns first, so rows of ours are its columns: it computes cᵀ = bᵀ · aᵀ.
        let stored = |rows, columns, t: bool| if t { (columns, rows) } else { (rows, columns) };
        let layout = |half, (rows, columns): (usize, usize), stride: usize| {
            lt::create_matrix_layout(element(half), columns as u64, rows as u64, stride as i64).map_err(failed())
        };
        let desc = lt::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F).map_err(failed())?;
        let layouts = [
            layout(s.half_in, stored(s.k, s.n, s.transposed[1]), s.strides[1])?,
            layout(s.half_in, stored(s.m, s.k, s.transposed[0]), s.strides[0])?,
            layout(s.half_out, (s.m, s.n), s.strides[2])?,
        ];
        // SAFETY: attribute values have the sizes given; everything created here is destroyed in `Plan::drop`.
        unsafe {
            let mut plan = Plan { desc, layouts, algo: std::mem::zeroed() };
            for (which, t) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, s.transposed[1]),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, s.transposed[0]),
            ] {
                let op = i32::from(t); // CUBLAS_OP_N is 0, CUBLAS_OP_T 1
                let at = std::ptr::from_ref(&op).cast::<c_void>();
                lt::set_matmul_desc_attribute(desc, which, at, size_of::<i32>()).map_err(failed())?;
            }
            let preference = lt::create_matmul_pref().map_err(failed())?;
            let at = std::ptr::from_ref(&WORKSPACE_BYTES).cast::<c_void>();
            let most = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let found = lt::set_matmul_pref_attribute(preference, most, at, size_of::<usize>()).and_then(|()| {
                let [a, b, c] = layouts;
                lt::get_matmul_algo_heuristic(self.handle, desc, a, b, c, c, preference)
            });
            let _ = lt::destroy_matmul_pref(preference);
            plan.algo = found.map_err(failed())?.algo;
            Ok(plan)
        }
    }
}

impl Context {
    /// `c = a · b`, or `c += a · b` if `add`, for `[m, k] · [k, n]`; c is row-major with `c_stride`. Sums are f32.
    ///
    /// # Errors
    /// If a buffer is too short for its shape or cuBLASLt has no algorithm for it.
    pub fn gemm<A: Element, C: Element>(
        &self,
        [m, n, k]: [usize; 3],
        a: Matrix<'_, A>,
        b: Matrix<'_, A>,
        c: Out<'_, C>,
        c_stride: usize,
        add: bool,
    ) -> Result<(), CudaError> {
        const OP: &str = "product";
        if m == 0 || n == 0 {
            return Ok(());
        }
        check(OP, k > 0, || "the inner dimension is 0".to_owned())?;
        check(OP, A::BYTES <= C::BYTES, || "f32 factors need an f32 result".to_owned())?;
        let stored = |rows, columns, t: bool| if t { (columns, rows) } else { (rows, columns) };
        let need = |name: &str, len, (rows, columns): (usize, usize), stride| {
            check(OP, stride >= columns, || format!("{name} has rows of {columns} at a stride of {stride}"))?;
            holds(OP, name, len, (rows - 1) * stride + columns)
        };
        need("a", a.data.len(), stored(m, k, a.transposed), a.stride)?;
        need("b", b.data.len(), stored(k, n, b.transposed), b.stride)?;
        need("c", c.len(), (m, n), c_stride)?;
        let shape = Shape {
            m,
            n,
            k,
            strides: [a.stride, b.stride, c_stride],
            transposed: [a.transposed, b.transposed],
            half_in: A::BYTES == 2,
            half_out: C::BYTES == 2,
            add,
        };
        let mut plans = self.products.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => e.insert(self.products.plan(shape)?),
        };
        let (alpha, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let (a, b, c) = (self.address(a.data), self.address(b.data), self.address_mut(c));
        let workspace = self.address(&self.products.workspace);
        // SAFETY: buffers were checked against the shape; the plan's descriptors are live behind the lock.
        unsafe {
            lt::matmul(
                self.products.handle,
                plan.desc,
                std::ptr::from_ref(&alpha).cast(),
                std::ptr::from_ref(&beta).cast(),
                b as *const c_void,
                plan.layouts[0],
                a as *const c_void,
                plan.layouts[1],
                c as *const c_void,
                plan.layouts[2],
                c as *mut c_void,
                plan.layouts[2],
                &plan.algo,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )
        }
        .map_err(blas(format!("multiplying {shape:?}")))
    }
}
