//! Matrix products through cuBLASLt.
//!
//! Owns the library's handle, its workspace and one chosen algorithm per shape. Must not know what is multiplied.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::sys::cudaDataType as Type;
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaSlice, CudaStream};

use super::chain::Chains;
use super::compile::Precision;
use super::context::{Context, In, Out, driver};
use super::element::Element;
use super::forward::{Forward, Places};
use super::{CudaError, check, holds};

const WORKSPACE_BYTES: usize = 64 << 20;
/// Shapes whose algorithms are remembered. Batches come in nearly every number of tokens, so that a long run would
/// remember without end.
const MOST_PLANS: usize = 4096;

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

/// What a product is added to.
#[derive(Clone, Copy)]
pub enum Onto<'a, C> {
    /// Nothing: `c = a · b`.
    Nothing,
    /// What the result held before: `c += a · b`.
    Itself,
    /// Another matrix with the result's shape and stride: `c = other + a · b`.
    Other(In<'a, C>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub strides: [usize; 3],
    transposed: [bool; 2],
    types: [Type; 2],
    /// What the addresses of a, b, what is added to, and the result are multiples of, at most 256.
    align: [u32; 4],
}

impl Shape {
    /// Of `x · wᵀ` in bf16 with an f32 result or not, all addresses being multiples of 16.
    pub fn forward([m, n, k]: [usize; 3], strides: [usize; 3], float: bool) -> Self {
        let types = [Type::CUDA_R_16BF, if float { Type::CUDA_R_32F } else { Type::CUDA_R_16BF }];
        Self { m, n, k, strides, transposed: [false, true], types, align: [16; 4] }
    }
}

/// A product as the library describes it, and how it computes it.
pub(super) struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
    algo: sys::cublasLtMatmulAlgo_t,
}

/// An algorithm of the library's.
pub(super) type Algorithm = sys::cublasLtMatmulAlgo_t;

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
    pub(super) chains: Chains,
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
        // SAFETY: scratch memory; cuBLASLt writes before it reads.
        let workspace = unsafe { stream.alloc(WORKSPACE_BYTES) }.map_err(driver("allocating cuBLASLt's workspace"))?;
        let handle = lt::create_handle().map_err(blas("opening cuBLASLt"))?;
        Ok(Self { handle, workspace, plans: Mutex::default(), chains: Chains::default() })
    }

    /// With the algorithm that the library thinks best.
    fn plan(&self, s: Shape) -> Result<Plan, CudaError> {
        let mut plan = self.describe(s)?;
        let found = self.algorithms(&plan, s, 1, false)?.into_iter().next();
        let none = lt::CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
        plan.algo = found.ok_or(none).map_err(blas(format!("planning the product {s:?}")))?;
        Ok(plan)
    }

    /// With an algorithm that is known already, or `None` where it cannot take the shape.
    pub(super) fn plan_with(&self, s: Shape, algo: Algorithm) -> Result<Option<Plan>, CudaError> {
        let mut plan = self.describe(s)?;
        plan.algo = algo;
        let [a, b, c] = plan.layouts;
        // SAFETY: descriptors are live; plain data is written to `found`.
        let fits = unsafe {
            let mut found: sys::cublasLtMatmulHeuristicResult_t = std::mem::zeroed();
            let checked = sys::cublasLtMatmulAlgoCheck(self.handle, plan.desc, a, b, c, c, &plan.algo, &mut found);
            checked.result().is_ok() && found.workspaceSize <= WORKSPACE_BYTES
        };
        Ok(fits.then_some(plan))
    }

    /// A product without an algorithm.
    pub(super) fn describe(&self, s: Shape) -> Result<Plan, CudaError> {
        use sys::{cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Attribute};
        let failed = || blas(format!("planning the product {s:?}"));
        // The library counts columns first, so rows of ours are its columns: it computes cᵀ = bᵀ · aᵀ.
        let stored = |rows, columns, t: bool| if t { (columns, rows) } else { (rows, columns) };
        let layout = |element, (rows, columns): (usize, usize), stride: usize| {
            lt::create_matrix_layout(element, columns as u64, rows as u64, stride as i64).map_err(failed())
        };
        // Without a FAST variant f32 factors are multiplied in full, never as TF32.
        let desc = lt::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, Type::CUDA_R_32F).map_err(failed())?;
        let layouts = [
            layout(s.types[0], stored(s.k, s.n, s.transposed[1]), s.strides[1])?,
            layout(s.types[0], stored(s.m, s.k, s.transposed[0]), s.strides[0])?,
            layout(s.types[1], (s.m, s.n), s.strides[2])?,
        ];
        // SAFETY: attribute values have the sizes given; everything created here is destroyed in `Plan::drop`.
        unsafe {
            let plan = Plan { desc, layouts, algo: std::mem::zeroed() };
            for (which, t) in [
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSA, s.transposed[1]),
                (Attribute::CUBLASLT_MATMUL_DESC_TRANSB, s.transposed[0]),
            ] {
                let op = i32::from(t); // CUBLAS_OP_N is 0, CUBLAS_OP_T 1
                let at = std::ptr::from_ref(&op).cast::<c_void>();
                lt::set_matmul_desc_attribute(desc, which, at, size_of::<i32>()).map_err(failed())?;
            }
            Ok(plan)
        }
    }

    /// At most so many algorithms for a product, the best first as the library sees it; those that cut no sums if `whole`.
    pub(super) fn algorithms(
        &self,
        plan: &Plan,
        s: Shape,
        most: usize,
        whole: bool,
    ) -> Result<Vec<Algorithm>, CudaError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Preference;
        let failed = || blas(format!("planning the product {s:?}"));
        let preference = lt::create_matmul_pref().map_err(failed())?;
        // SAFETY: attribute values have the sizes given; `found` has room for `most`, of which `count` are written.
        let found = unsafe {
            let prefer = || {
                let at = std::ptr::from_ref(&WORKSPACE_BYTES).cast::<c_void>();
                let bytes = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
                lt::set_matmul_pref_attribute(preference, bytes, at, size_of::<usize>())?;
                // As the library counts: its first factor is our b.
                for (which, align) in [
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.align[1]),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.align[0]),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.align[2]),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.align[3]),
                ] {
                    let at = std::ptr::from_ref(&align).cast::<c_void>();
                    lt::set_matmul_pref_attribute(preference, which, at, size_of::<u32>())?;
                }
                if whole {
                    let none = 0u32; // CUBLASLT_REDUCTION_SCHEME_NONE
                    let at = std::ptr::from_ref(&none).cast::<c_void>();
                    let schemes = Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
                    lt::set_matmul_pref_attribute(preference, schemes, at, size_of::<u32>())?;
                }
                let [a, b, c] = plan.layouts;
                let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![std::mem::zeroed(); most];
                let (at, mut count) = (found.as_mut_ptr(), 0);
                let room = i32::try_from(most).unwrap_or(i32::MAX);
                let (handle, desc) = (self.handle, plan.desc);
                let asked =
                    sys::cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, c, preference, room, at, &mut count);
                // What the library says where it has none.
                if asked != sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                    asked.result()?;
                }
                found.truncate(usize::try_from(count).unwrap_or(0));
                Ok(found)
            };
            let found = prefer();
            let _ = lt::destroy_matmul_pref(preference);
            found.map_err(failed())?
        };
        let works = |f: &&sys::cublasLtMatmulHeuristicResult_t| f.state.result().is_ok();
        Ok(found.iter().filter(works).map(|f| f.algo).collect())
    }

    /// How many parts an algorithm cuts sums into.
    pub(super) fn split(algo: &Algorithm) -> Option<u32> {
        let (mut parts, mut written) = (0u32, 0);
        let which = sys::cublasLtMatmulAlgoConfigAttributes_t::CUBLASLT_ALGO_CONFIG_SPLITK_NUM;
        let at = std::ptr::from_mut(&mut parts).cast::<c_void>();
        // SAFETY: the attribute is a u32.
        let got = unsafe { sys::cublasLtMatmulAlgoConfigGetAttribute(algo, which, at, size_of::<u32>(), &mut written) };
        got.result().is_ok().then_some(parts)
    }
}

impl Context {
    /// `c = onto + a · b` for `[m, k] · [k, n]`; c is row-major with `c_stride`. Sums are f32; a result in bf16 is rounded
    /// once, after `onto` was added.
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
        onto: Onto<'_, C>,
    ) -> Result<(), CudaError> {
        const OP: &str = "product";
        if m == 0 || n == 0 {
            return Ok(());
        }
        check(OP, k > 0, || "the inner dimension is 0".to_owned())?;
        check(OP, size_of::<A>() <= size_of::<C>(), || "f32 factors need an f32 result".to_owned())?;
        let stored = |rows, columns, t: bool| if t { (columns, rows) } else { (rows, columns) };
        let need = |name: &str, len, (rows, columns): (usize, usize), stride| {
            check(OP, stride >= columns, || format!("{name} has rows of {columns} at a stride of {stride}"))?;
            holds(OP, name, len, (rows - 1) * stride + columns)
        };
        need("a", a.data.len(), stored(m, k, a.transposed), a.stride)?;
        need("b", b.data.len(), stored(k, n, b.transposed), b.stride)?;
        need("c", c.len(), (m, n), c_stride)?;
        if let Onto::Other(other) = onto {
            need("what is added to", other.len(), (m, n), c_stride)?;
        }
        let (a_at, b_at, c_at) = (self.address(a.data), self.address(b.data), self.address_mut(c));
        let (onto_at, beta) = match onto {
            Onto::Nothing => (c_at, 0.0f32),
            Onto::Itself => (c_at, 1.0),
            Onto::Other(other) => (self.address(other), 1.0),
        };
        let places = Places { a: a_at, b: b_at, onto: if beta == 0.0 { 0 } else { onto_at }, c: c_at };
        let float = size_of::<C>() == 4;
        if A::PRECISION == Precision::Half && !a.transposed && b.transposed {
            let p = Forward { shape: [m, n, k], places, strides: [a.stride, b.stride, c_stride], float };
            // Only gradients are added to themselves.
            if self.is_exact() && !matches!(onto, Onto::Itself) {
                // SAFETY: buffers were checked against the shape.
                return unsafe { self.chain(&p) };
            }
            if p.is_of_few() {
                // SAFETY: as above.
                return unsafe { self.few(&p) };
            }
        }
        let shape = Shape {
            m,
            n,
            k,
            strides: [a.stride, b.stride, c_stride],
            transposed: [a.transposed, b.transposed],
            types: [A::TYPE, C::TYPE],
            align: [a_at, b_at, onto_at, c_at].map(|x| 1 << x.trailing_zeros().min(8)),
        };
        let mut plans = self.products.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() >= MOST_PLANS && !plans.contains_key(&shape) {
            plans.clear();
        }
        let plan = match plans.entry(shape) {
            std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::hash_map::Entry::Vacant(e) => e.insert(self.products.plan(shape)?),
        };
        // SAFETY: buffers were checked against the shape.
        unsafe { self.multiply(shape, plan, places) }
    }

    /// Enqueues a product.
    ///
    /// # Safety
    /// The places are of buffers of this context that hold what the shape says, which is the plan's.
    pub(super) unsafe fn multiply(&self, shape: Shape, plan: &Plan, at: Places) -> Result<(), CudaError> {
        self.select()?;
        let (alpha, beta) = (1.0f32, if at.onto == 0 { 0.0f32 } else { 1.0 });
        let onto = if at.onto == 0 { at.c } else { at.onto };
        let workspace = self.address(&self.products.workspace);
        let Shape { m, n, k, types, .. } = shape;
        let name = || format!("product {m} x {n} x {k}{}", if types[1] == types[0] { "" } else { ", f32" });
        // SAFETY: the caller's; the plan's descriptors are live.
        let enqueue = || unsafe {
            lt::matmul(
                self.products.handle,
                plan.desc,
                std::ptr::from_ref(&alpha).cast(),
                std::ptr::from_ref(&beta).cast(),
                at.b as *const c_void,
                plan.layouts[0],
                at.a as *const c_void,
                plan.layouts[1],
                onto as *const c_void,
                plan.layouts[2],
                at.c as *mut c_void,
                plan.layouts[2],
                &plan.algo,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                self.stream.cu_stream().cast(),
            )
            .map_err(blas(format!("multiplying {shape:?}")))
        };
        self.traced(name, enqueue)
    }
}
