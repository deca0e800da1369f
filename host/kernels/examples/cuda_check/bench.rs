//! Fresh random inputs, poisoned outputs with guard bands, errors and times.
//!
//! Owns how a check is done. Must not know the operations.

use prl_kernels::cuda::{Context, CudaError, CudaSlice, bf16};

/// Elements behind every checked output that no kernel may touch.
const GUARD: usize = 256;
const MARK: u16 = 0x4242;

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

    pub fn halves(&mut self, n: usize, scale: f32) -> Vec<bf16> {
        (0..n).map(|_| bf16::from_f32(self.normal() * scale)).collect()
    }
}

pub fn f64s(x: &[bf16]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
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

/// A bf16 output full of NaN with a guard band behind.
pub fn out_halves(c: &Context, n: usize) -> Result<CudaSlice<bf16>, CudaError> {
    let mut x = vec![bf16::from_f32(f32::NAN); n];
    x.extend([bf16::from_bits(MARK); GUARD]);
    c.upload(&x)
}

/// An f32 output full of `fill` with a guard band behind.
pub fn out_floats(c: &Context, n: usize, fill: f32) -> Result<CudaSlice<f32>, CudaError> {
    let mut x = vec![fill; n];
    x.extend([f32::from_bits(u32::from(MARK)); GUARD]);
    c.upload(&x)
}

/// Contents of an output as f64; a broken guard band turns them to NaN.
pub fn read_halves(c: &Context, x: &CudaSlice<bf16>) -> Result<Vec<f64>, CudaError> {
    let all = c.download(x)?;
    let (x, guard) = all.split_at(all.len() - GUARD);
    let whole = guard.iter().all(|g| g.to_bits() == MARK);
    Ok(x.iter().map(|x| if whole { f64::from(x.to_f32()) } else { f64::NAN }).collect())
}

/// Contents of an output as f64; a broken guard band turns them to NaN.
pub fn read_floats(c: &Context, x: &CudaSlice<f32>) -> Result<Vec<f64>, CudaError> {
    let all = c.download(x)?;
    let (x, guard) = all.split_at(all.len() - GUARD);
    let whole = guard.iter().all(|g| g.to_bits() == u32::from(MARK));
    Ok(x.iter().map(|x| if whole { f64::from(*x) } else { f64::NAN }).collect())
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
