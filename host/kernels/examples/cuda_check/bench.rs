//! Fresh random inputs, poisoned outputs with guard bands, errors and times.
//!
//! Owns how a check is done. Must not know the operations.

use prl_kernels::cuda::{Context, CudaError, CudaSlice, Element};

/// Elements behind every checked output that no kernel may touch.
pub const GUARD: usize = 256;
/// What the guard band holds: a number that every type has.
pub const MARK: f32 = 48.5;
/// One rounding to bf16 is off by 2⁻⁸ at most, 1.7e-3 as a rule; sums in f32 stay far below 1e-5.
pub const ROUNDED: f64 = 1.0 / 256.0;
/// Limit of what is computed in f32.
pub const EXACT: f64 = 1e-5;

/// A generator of standard normal numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn bits(&mut self) -> u64 {
        // xorshift64* (Vigna 2016)
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 11) as usize % n
    }

    pub fn normal(&mut self) -> f32 {
        let mut unit = || ((self.bits() >> 40) as f64 + 0.5) / (1u64 << 24) as f64;
        let (a, b) = (unit(), unit());
        ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
    }

    pub fn floats(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * scale).collect()
    }

    pub fn values<T: Element>(&mut self, n: usize, scale: f32) -> Vec<T> {
        (0..n).map(|_| T::from_f32(self.normal() * scale)).collect()
    }
}

pub fn f64s<T: Element>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

fn is_half<T>() -> bool {
    size_of::<T>() == 2
}

/// ‖x − reference‖ / ‖reference‖; NaN if anything is.
pub fn error(x: impl IntoIterator<Item = f64>, reference: &[f64]) -> f64 {
    let (mut difference, mut norm, mut count) = (0.0, 0.0, 0);
    for (x, r) in x.into_iter().zip(reference) {
        difference += (x - r) * (x - r);
        norm += r * r;
        count += 1;
    }
    if count != reference.len() {
        return f64::NAN;
    }
    if norm == 0.0 { difference.sqrt() } else { (difference / norm).sqrt() }
}

/// An output full of NaN with a guard band behind.
pub fn empty<T: Element>(c: &Context, n: usize) -> Result<CudaSlice<T>, CudaError> {
    filled(c, n, f32::NAN)
}

/// An output full of `fill` with a guard band behind.
pub fn filled<T: Element>(c: &Context, n: usize, fill: f32) -> Result<CudaSlice<T>, CudaError> {
    let mut x = vec![T::from_f32(fill); n];
    x.extend([T::from_f32(MARK); GUARD]);
    c.upload(&x)
}

/// Contents of an output as f64; a broken guard band turns them to NaN.
pub fn read<T: Element>(c: &Context, x: &CudaSlice<T>) -> Result<Vec<f64>, CudaError> {
    let all = c.download(x)?;
    let (x, guard) = all.split_at(all.len() - GUARD);
    let whole = guard.iter().all(|g| g.to_f32() == MARK);
    Ok(x.iter().map(|x| if whole { f64::from(x.to_f32()) } else { f64::NAN }).collect())
}

/// Errors of one operation over its shapes, and whether all are within the limit.
pub struct Table {
    rows: Vec<(String, f64, f64)>,
}

impl Table {
    pub fn new() -> Self {
        Self { rows: Vec::new() }
    }

    /// Notes an error of `what` (operation and output) that may be at most `limit`.
    pub fn note(&mut self, what: &str, shape: &str, error: f64, limit: f64) {
        if error.is_nan() || error > limit {
            println!("FAIL {what} {shape}: {error:.3e} (limit {limit:.1e})");
        }
        match self.rows.iter_mut().find(|r| r.0 == what) {
            Some(r) if error.is_nan() || error > r.1 => r.1 = error,
            Some(_) => {}
            None => self.rows.push((what.to_owned(), error, limit)),
        }
    }

    /// Notes an error of what is stored as T: at most `limit` in bf16, [`EXACT`] in f32.
    pub fn of<T>(&mut self, what: &str, shape: &str, error: f64, limit: f64) {
        if is_half::<T>() {
            self.note(what, shape, error, limit);
        } else {
            self.note(&format!("f32 {what}"), shape, error, limit.min(EXACT));
        }
    }

    /// Notes whether something holds.
    pub fn holds(&mut self, what: &str, shape: &str, right: bool) {
        self.note(what, shape, f64::from(u8::from(!right)), 0.0);
    }

    /// Prints the largest error of each output; true if all are within their limits.
    pub fn print(&self) -> bool {
        for (what, error, limit) in &self.rows {
            println!("ERROR {what:28} {error:.3e}  limit {limit:.1e}");
        }
        self.rows.iter().all(|r| r.1 <= r.2)
    }
}

/// Median milliseconds of one run, over five groups after a warm-up.
pub fn time(c: &Context, runs: usize, mut f: impl FnMut() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    for _ in 0..3 {
        f()?;
    }
    c.synchronize()?;
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = c.event()?;
        for _ in 0..runs {
            f()?;
        }
        times.push(f64::from(start.until_ms(&c.event()?)?) / runs as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}
