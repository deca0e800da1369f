//! Products whose bits do not depend on how many rows they have.
//!
//! Owns the definition of such a product (`chain.cu`) and which of cuBLASLt's algorithms compute it to the bit. Must not know what
//! is multiplied. An algorithm is taken only after its results for made-up factors, whose products cancel, were the definition's;
//! where the library
//! has none, or none that is as fast, the definition's own kernels compute the product.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::compile::Source;
use super::context::{Context, args, grid, int, setting_up};
use super::forward::{Forward, Places};
use super::gemm::{Algorithm, Plan, Products, Shape};
use super::{CudaError, check};

const OP: &str = "exact product";
/// Algorithms that the library is asked for.
const CANDIDATES: usize = 16;
/// Runs by which an algorithm's time is taken.
const TIMED: usize = 5;
/// Rows and columns of the made-up product that an algorithm is tried on, where the real one has as many.
const TRIED: [usize; 2] = [1024, 8192];

/// What an algorithm is chosen for; it holds for all numbers of rows up to a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    rows: usize,
    columns: usize,
    k: usize,
    onto: bool,
    float: bool,
}

/// Algorithms whose results were looked at, and plans of products.
#[derive(Default)]
pub(super) struct Chains(Mutex<Known>);

#[derive(Default)]
struct Known {
    algorithms: HashMap<Kind, Option<Algorithm>>,
    plans: HashMap<(Shape, bool), Option<Plan>>,
}

/// Plans that are remembered.
const MOST_PLANS: usize = 4096;

impl Context {
    /// `out = onto + x · wᵀ`, each element one chain of sums over ascending k, in bf16 products' steps of sixteen.
    ///
    /// # Safety
    /// Places are of buffers of this context that hold what shape and strides say.
    pub(super) unsafe fn chain(&self, p: &Forward) -> Result<(), CudaError> {
        check(OP, p.is_whole(), || {
            format!("{:?} with strides {:?}; widths must be multiples of 8", p.shape, p.strides)
        })?;
        let aligned = [p.places.c, p.places.onto].iter().all(|at| at.is_multiple_of(16));
        if !aligned {
            // SAFETY: the caller's.
            return unsafe { self.chain_kernel(p) };
        }
        let shape = Shape::forward(p.shape, p.strides, p.float);
        let key = (shape, p.places.onto != 0);
        let mut known = self.products.chains.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.plans.contains_key(&key) {
            let plan = match self.algorithm(p, &mut known.algorithms)? {
                Some(algo) => self.products.plan_with(shape, algo)?,
                None => None,
            };
            if known.plans.len() >= MOST_PLANS {
                known.plans.clear();
            }
            known.plans.insert(key, plan);
        }
        match known.plans.get(&key) {
            // SAFETY: the caller's.
            Some(Some(plan)) => unsafe { self.multiply(shape, plan, p.places) },
            // SAFETY: the caller's.
            _ => unsafe { self.chain_kernel(p) },
        }
    }

    /// # Safety
    /// As for [`Context::chain`]; factors are whole chunks of sixteen bytes.
    unsafe fn chain_kernel(&self, p: &Forward) -> Result<(), CudaError> {
        let [m, n, _] = p.shape;
        // Rows, columns, threads, and what a block has on its way: elements of a row and stages.
        let (name, [rows, columns], threads, [line, stages]) = match (m, p.float) {
            (..=16, false) => ("chain_16", [16, 16], 64, [256, 4]),
            (..=16, true) => ("chain_16_float", [16, 16], 64, [256, 4]),
            (17..=64, false) => ("chain_64", [64, 16], 64, [64, 4]),
            (17..=64, true) => ("chain_64_float", [64, 16], 64, [64, 4]),
            (_, false) => ("chain_many", [64, 128], 128, [64, 3]),
            (_, true) => ("chain_many_float", [64, 128], 128, [64, 3]),
        };
        let shared = stages * (rows + columns) * (line + 8) * 2;
        check(OP, m.div_ceil(rows) <= 65535, || format!("{m} rows are not supported"))?;
        // SAFETY: arguments are those of the kernels; the rest is the caller's.
        unsafe {
            self.launch_forward(
                (Source::Chain, name),
                [n.div_ceil(columns), m.div_ceil(rows)],
                threads,
                shared as u32,
                p,
            )
        }
    }

    /// The first of the library's algorithms for such products whose results are the definition's, if one's are.
    fn algorithm(
        &self,
        p: &Forward,
        known: &mut HashMap<Kind, Option<Algorithm>>,
    ) -> Result<Option<Algorithm>, CudaError> {
        let [m, columns, k] = p.shape;
        let kind = Kind { rows: m.next_power_of_two(), columns, k, onto: p.places.onto != 0, float: p.float };
        if let Some(found) = known.get(&kind) {
            return Ok(*found);
        }
        // What allocates beside one that records steps.
        let _alone = setting_up();
        // The most rows of the kind, and as many as fill no tiles.
        let whole = Trial::new(self, &Forward { shape: [kind.rows, columns, k], ..*p })?;
        let odd = Trial::new(self, &Forward { shape: [kind.rows / 2 + 1, columns, k], ..*p })?;
        let (mut found, mut fastest) = (None, whole.time(self, None)?);
        for algo in self.whole_algorithms([kind.rows, columns, k], p)? {
            if whole.passes(self, &algo)? && odd.passes(self, &algo)? {
                let time = whole.time(self, Some(&algo))?;
                if time < fastest {
                    (found, fastest) = (Some(algo), time);
                }
            }
        }
        known.insert(kind, found);
        Ok(found)
    }

    /// Those of the library's algorithms for such products that cut no sums.
    fn whole_algorithms(&self, shape: [usize; 3], p: &Forward) -> Result<Vec<Algorithm>, CudaError> {
        let shape = Shape::forward(shape, p.strides, p.float);
        let found = self.products.algorithms(&self.products.describe(shape)?, shape, CANDIDATES, true)?;
        Ok(found.into_iter().filter(|algo| Products::split(algo) == Some(1)).collect())
    }

    /// How many of the library's algorithms for a product of this shape pass, and of how many that do not cut sums: to be told
    /// by checks.
    ///
    /// # Errors
    /// If there is not enough memory or the GPU fails.
    pub fn exact_algorithms(&self, shape: [usize; 3], float: bool) -> Result<[usize; 2], CudaError> {
        let [_, n, k] = shape;
        let places = Places { a: 0, b: 0, onto: 0, c: 0 };
        let p = Forward { shape, places, strides: [k, k, n], float };
        let (trial, algorithms) = (Trial::new(self, &p)?, self.whole_algorithms(shape, &p)?);
        let mut passed = 0;
        for algo in &algorithms {
            passed += usize::from(trial.passes(self, algo)?);
        }
        Ok([passed, algorithms.len()])
    }
}

/// A made-up product and its result by definition.
struct Trial {
    p: Forward,
    /// The factors, what is added to, the result, and another one's.
    _buffers: [cudarc::driver::CudaSlice<u8>; 5],
    want: u64,
}

impl Trial {
    /// Of a product's kind.
    fn new(c: &Context, of: &Forward) -> Result<Self, CudaError> {
        let ([m, n, k], size) = (of.shape, if of.float { 4 } else { 2 });
        let (m, n) = (m.min(TRIED[0]), n.min(TRIED[1]));
        let onto = if of.places.onto == 0 { 0 } else { m * n };
        let sizes = [m * k * 2, n * k * 2, onto * 2, m * n * size, m * n * size];
        let mut buffers = Vec::with_capacity(sizes.len());
        for bytes in sizes {
            buffers.push(c.zeros::<u8>(bytes.max(16))?);
        }
        let at: Vec<u64> = buffers.iter().map(|b| c.address_of(b)).collect();
        // Of each: elements, width of a row, scale, and the second half of a row over its first. What is added to is as small as
        // what is left of the sums.
        let made = [(m * k, k, 1.0f32, 1.0f32), (n * k, k, 1.0, -1.0), (onto, n, 1e-6, 0.5)];
        for (seed, (at, (count, width, scale, again))) in at.iter().zip(made).enumerate() {
            // SAFETY: arguments are those of `chain_sample`; each buffer has room for its elements.
            unsafe {
                c.launch(
                    (Source::Chain, "chain_sample"),
                    (grid(OP, count.div_ceil(256))?, 1),
                    (256, 1),
                    0,
                    args![*at, int(OP, count)?, int(OP, width)?, scale, again, seed as u32 + 1],
                )?;
            }
        }
        let places = Places { a: at[0], b: at[1], onto: if onto == 0 { 0 } else { at[2] }, c: at[3] };
        let p = Forward { shape: [m, n, k], places, strides: [k, k, n], float: of.float };
        let want = at[4];
        // SAFETY: buffers were made for the shape.
        unsafe { c.chain_kernel(&Forward { places: Places { c: want, ..places }, ..p })? };
        let buffers =
            buffers.try_into().map_err(|_| CudaError::Shape { op: OP, what: "buffers are missing".into() })?;
        Ok(Self { p, _buffers: buffers, want })
    }

    /// The product as an algorithm computes it; `None` if it cannot.
    fn plan(&self, c: &Context, algo: &Algorithm) -> Result<Option<(Shape, Plan)>, CudaError> {
        let shape = Shape::forward(self.p.shape, self.p.strides, self.p.float);
        Ok(c.products.plan_with(shape, *algo)?.map(|plan| (shape, plan)))
    }

    /// Whether an algorithm gives the same bits.
    fn passes(&self, c: &Context, algo: &Algorithm) -> Result<bool, CudaError> {
        let (p, [m, n, _]) = (&self.p, self.p.shape);
        let Some((shape, plan)) = self.plan(c, algo)? else { return Ok(false) };
        let differ = c.zeros::<u32>(1)?;
        let words = (m * n * if p.float { 4 } else { 2 }).div_ceil(4);
        // SAFETY: buffers were made for the shape; arguments are those of `chain_differ`.
        unsafe {
            c.multiply(shape, &plan, p.places)?;
            c.launch(
                (Source::Chain, "chain_differ"),
                (grid(OP, words.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![p.places.c, self.want, int(OP, words)?, c.address_of(&differ)],
            )?;
        }
        Ok(c.download(&differ)?.first() == Some(&0))
    }

    /// Milliseconds of some runs, of an algorithm or of the definition's kernels; infinite where it cannot run.
    fn time(&self, c: &Context, algo: Option<&Algorithm>) -> Result<f32, CudaError> {
        let plan = match algo {
            Some(algo) => match self.plan(c, algo)? {
                Some(plan) => Some(plan),
                None => return Ok(f32::INFINITY),
            },
            None => None,
        };
        // SAFETY: buffers were made for the shape.
        let run = || unsafe {
            match &plan {
                Some((shape, plan)) => c.multiply(*shape, plan, self.p.places),
                None => c.chain_kernel(&self.p),
            }
        };
        run()?;
        let start = c.event()?;
        for _ in 0..TIMED {
            run()?;
        }
        start.until_ms(&c.event()?)
    }
}
