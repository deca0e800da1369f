//! The innermost tile of every matrix product: fused multiply-add chains over ascending k.
//!
//! Owns the register tiles for each instruction set. Must not know what is multiplied or who runs it.
//!
//! `c[r][l] (+)= Σ_k a[k][l] · b[r][k]`, where `l` are vector lanes and `r` rows. Each element is a sum over ascending
//! stretches of [`CHAIN`] values of k, each stretch one chain `acc = fma(a, b, acc)` from zero. So its bits do not depend
//! on tile shape, lane or row, nor on where k is split, as long as that is at multiples of [`CHAIN`]; and rounding errors
//! grow with the length of a stretch and the number of stretches, not with k.

use crate::simd::{Isa, isa};

/// Products in one chain of a matrix product's sum: see [`gemm_nt`](crate::gemm_nt).
pub const CHAIN: usize = 128;
/// Lanes are handled in groups of this many: operands on the lane side are padded to it.
pub(crate) const LANE_GROUP: usize = 16;
/// Lanes of the widest tile of any kernel.
pub(crate) const LANES_MAX: usize = 64;
/// Lanes of the narrow tile, for products of very few rows.
pub(crate) const NARROW: usize = 8;

/// One register tile. Strides count elements.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Products per element.
    pub k: usize,
    /// Lane-side operand: `a[k * a_k + lane]`.
    pub a: *const f32,
    pub a_k: usize,
    /// Row-side operand: `b[row * b_row + k * b_k]`.
    pub b: *const f32,
    pub b_row: usize,
    pub b_k: usize,
    /// Result: `c[row * c_row + lane]`.
    pub c: *mut f32,
    pub c_row: usize,
    /// Add to `c` instead of replacing it.
    pub accumulate: bool,
}

/// The register tiles of one instruction set.
pub(crate) struct Kernel {
    /// Lanes of a full tile.
    pub lanes: usize,
    /// Rows of a full tile.
    pub rows: usize,
    /// Runs a tile of `lanes` (a multiple of [`LANE_GROUP`]) and `rows`, neither above the full tile.
    run: unsafe fn(lanes: usize, rows: usize, tile: &Tile),
    /// Rows of a full narrow tile.
    narrow_rows: usize,
    /// Runs a tile of [`NARROW`] lanes and at most `narrow_rows` rows.
    run_narrow: unsafe fn(rows: usize, tile: &Tile),
}

/// The kernel of this process.
pub(crate) fn kernel() -> &'static Kernel {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &AVX512,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &AVX2,
        _ => &PORTABLE,
    }
}

#[cfg(target_arch = "x86_64")]
static AVX512: Kernel =
    Kernel { lanes: 64, rows: 6, run: x86::run_avx512, narrow_rows: 12, run_narrow: x86::run_narrow };
#[cfg(target_arch = "x86_64")]
static AVX2: Kernel = Kernel { lanes: 16, rows: 6, run: x86::run_avx2, narrow_rows: 12, run_narrow: x86::run_narrow };
static PORTABLE: Kernel =
    Kernel { lanes: 16, rows: 4, run: run_portable, narrow_rows: 4, run_narrow: run_narrow_portable };

impl Kernel {
    /// Runs `tile` over any number of rows and [`NARROW`] lanes.
    ///
    /// # Safety
    /// As [`Kernel::block`].
    pub unsafe fn narrow(&self, rows: usize, tile: &Tile) {
        for r in (0..rows).step_by(self.narrow_rows) {
            // SAFETY: stays inside the extents that the caller vouches for.
            unsafe {
                let t = Tile { b: tile.b.add(r * tile.b_row), c: tile.c.add(r * tile.c_row), ..*tile };
                (self.run_narrow)(self.narrow_rows.min(rows - r), &t);
            }
        }
    }

    /// Runs `tile` over any number of rows and any multiple of [`LANE_GROUP`] lanes.
    ///
    /// # Safety
    /// All elements that the strides and extents reach must be valid; `c` must not overlap `a` or `b`.
    pub unsafe fn block(&self, lanes: usize, rows: usize, tile: &Tile) {
        debug_assert_eq!(lanes % LANE_GROUP, 0);
        let mut l = 0;
        while l < lanes {
            let width = self.lanes.min(lanes - l);
            let mut r = 0;
            while r < rows {
                let height = self.rows.min(rows - r);
                // SAFETY: stays inside the extents that the caller vouches for.
                unsafe {
                    let t = Tile {
                        a: tile.a.add(l),
                        b: tile.b.add(r * tile.b_row),
                        c: tile.c.add(r * tile.c_row + l),
                        ..*tile
                    };
                    (self.run)(width, height, &t);
                }
                r += height;
            }
            l += width;
        }
    }
}

/// The stretches of `k` values: their lengths, at least one.
fn chains(k: usize) -> impl Iterator<Item = usize> {
    (0..k.max(1)).step_by(CHAIN).map(move |start| CHAIN.min(k - start))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Tile, chains};
    use std::arch::x86_64::*;

    /// # Safety
    /// AVX-512 F must be present; see [`super::Kernel::block`] for the pointers.
    #[target_feature(enable = "avx512f")]
    unsafe fn tile512<const NV: usize, const NR: usize>(t: &Tile) {
        // SAFETY: the caller vouches for every element reached.
        unsafe {
            let (mut a, mut b, mut add) = (t.a, t.b, t.accumulate);
            for depth in chains(t.k) {
                let mut acc = [[_mm512_setzero_ps(); NV]; NR];
                for _ in 0..depth {
                    let mut av = [_mm512_setzero_ps(); NV];
                    for v in 0..NV {
                        av[v] = _mm512_loadu_ps(a.add(v * 16));
                    }
                    for r in 0..NR {
                        let bv = _mm512_set1_ps(*b.add(r * t.b_row));
                        for v in 0..NV {
                            acc[r][v] = _mm512_fmadd_ps(av[v], bv, acc[r][v]);
                        }
                    }
                    // Behind the last row there may be nothing to point at.
                    a = a.wrapping_add(t.a_k);
                    b = b.wrapping_add(t.b_k);
                }
                for r in 0..NR {
                    for v in 0..NV {
                        let c = t.c.add(r * t.c_row + v * 16);
                        _mm512_storeu_ps(c, if add { _mm512_add_ps(_mm512_loadu_ps(c), acc[r][v]) } else { acc[r][v] });
                    }
                }
                add = true;
            }
        }
    }

    /// # Safety
    /// AVX2 and FMA must be present; see [`super::Kernel::block`] for the pointers.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile256<const NV: usize, const NR: usize>(t: &Tile) {
        // SAFETY: the caller vouches for every element reached.
        unsafe {
            let (mut a, mut b, mut add) = (t.a, t.b, t.accumulate);
            for depth in chains(t.k) {
                let mut acc = [[_mm256_setzero_ps(); NV]; NR];
                for _ in 0..depth {
                    let mut av = [_mm256_setzero_ps(); NV];
                    for v in 0..NV {
                        av[v] = _mm256_loadu_ps(a.add(v * 8));
                    }
                    for r in 0..NR {
                        let bv = _mm256_broadcast_ss(&*b.add(r * t.b_row));
                        for v in 0..NV {
                            acc[r][v] = _mm256_fmadd_ps(av[v], bv, acc[r][v]);
                        }
                    }
                    // Behind the last row there may be nothing to point at.
                    a = a.wrapping_add(t.a_k);
                    b = b.wrapping_add(t.b_k);
                }
                for r in 0..NR {
                    for v in 0..NV {
                        let c = t.c.add(r * t.c_row + v * 8);
                        _mm256_storeu_ps(c, if add { _mm256_add_ps(_mm256_loadu_ps(c), acc[r][v]) } else { acc[r][v] });
                    }
                }
                add = true;
            }
        }
    }

    macro_rules! by_rows {
        ($tile:ident, $nv:literal, $rows:expr, $t:expr) => {
            match $rows {
                1 => $tile::<$nv, 1>($t),
                2 => $tile::<$nv, 2>($t),
                3 => $tile::<$nv, 3>($t),
                4 => $tile::<$nv, 4>($t),
                5 => $tile::<$nv, 5>($t),
                _ => $tile::<$nv, 6>($t),
            }
        };
    }

    /// # Safety
    /// As [`tile512`].
    pub(super) unsafe fn run_avx512(lanes: usize, rows: usize, t: &Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match lanes / 16 {
                1 => by_rows!(tile512, 1, rows, t),
                2 => by_rows!(tile512, 2, rows, t),
                3 => by_rows!(tile512, 3, rows, t),
                _ => by_rows!(tile512, 4, rows, t),
            }
        }
    }

    /// # Safety
    /// As [`tile256`].
    pub(super) unsafe fn run_avx2(_lanes: usize, rows: usize, t: &Tile) {
        // SAFETY: passed on to the caller.
        unsafe { by_rows!(tile256, 2, rows, t) }
    }

    /// # Safety
    /// As [`tile256`].
    pub(super) unsafe fn run_narrow(rows: usize, t: &Tile) {
        // SAFETY: passed on to the caller.
        unsafe {
            match rows {
                12 => tile256::<1, 12>(t),
                1..=6 => by_rows!(tile256, 1, rows, t),
                _ => {
                    tile256::<1, 6>(t);
                    let t = Tile { b: t.b.add(6 * t.b_row), c: t.c.add(6 * t.c_row), ..*t };
                    by_rows!(tile256, 1, rows - 6, &t);
                }
            }
        }
    }
}

/// # Safety
/// See [`Kernel::block`].
unsafe fn tile_portable<const NL: usize, const NR: usize>(t: &Tile) {
    use crate::simd::{PORTABLE_FMA, fma};
    let (mut k, mut add) = (0, t.accumulate);
    for depth in chains(t.k) {
        let mut acc = [[0.0f32; NL]; NR];
        // SAFETY: the caller vouches for every element reached.
        unsafe {
            for k in k..k + depth {
                let a = t.a.add(k * t.a_k).cast::<[f32; NL]>().read_unaligned();
                for r in 0..NR {
                    let b = *t.b.add(r * t.b_row + k * t.b_k);
                    for l in 0..NL {
                        acc[r][l] = fma::<PORTABLE_FMA>(a[l], b, acc[r][l]);
                    }
                }
            }
            for r in 0..NR {
                let c = t.c.add(r * t.c_row).cast::<[f32; NL]>();
                if add {
                    let before = c.read_unaligned();
                    for l in 0..NL {
                        acc[r][l] += before[l];
                    }
                }
                c.write_unaligned(acc[r]);
            }
        }
        (k, add) = (k + depth, true);
    }
}

/// # Safety
/// See [`Kernel::block`].
unsafe fn run_portable(_lanes: usize, rows: usize, t: &Tile) {
    // SAFETY: passed on to the caller.
    unsafe {
        match rows {
            1 => tile_portable::<16, 1>(t),
            2 => tile_portable::<16, 2>(t),
            3 => tile_portable::<16, 3>(t),
            _ => tile_portable::<16, 4>(t),
        }
    }
}

/// # Safety
/// See [`Kernel::block`].
unsafe fn run_narrow_portable(rows: usize, t: &Tile) {
    // SAFETY: passed on to the caller.
    unsafe {
        match rows {
            1 => tile_portable::<NARROW, 1>(t),
            2 => tile_portable::<NARROW, 2>(t),
            3 => tile_portable::<NARROW, 3>(t),
            _ => tile_portable::<NARROW, 4>(t),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(kernel: &Kernel, lanes: usize, rows: usize, k: usize, accumulate: bool) -> Vec<f32> {
        let a: Vec<f32> = (0..k * lanes).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
        let b: Vec<f32> = (0..rows * k).map(|i| ((i * 53 % 97) as f32 - 48.0) / 13.0).collect();
        let mut c: Vec<f32> = (0..rows * lanes).map(|i| i as f32 / 7.0).collect();
        let tile = Tile {
            k,
            a: a.as_ptr(),
            a_k: lanes,
            b: b.as_ptr(),
            b_row: k,
            b_k: 1,
            c: c.as_mut_ptr(),
            c_row: lanes,
            accumulate,
        };
        // SAFETY: the three buffers have exactly these extents.
        unsafe { if lanes == NARROW { kernel.narrow(rows, &tile) } else { kernel.block(lanes, rows, &tile) } };
        c
    }

    /// All kernels compute the same chains; those with a fused multiply-add agree bit for bit.
    #[test]
    fn kernels_are_sums_of_chains_over_k() {
        let mut kernels = vec![(&PORTABLE, crate::simd::PORTABLE_FMA)];
        #[cfg(target_arch = "x86_64")]
        {
            if isa() == Isa::Avx512 {
                kernels.push((&AVX512, true));
            }
            if isa() != Isa::Portable {
                kernels.push((&AVX2, true));
            }
        }
        for (kernel, fused) in kernels {
            for (lanes, rows, k, accumulate) in [
                (8, 1, 9, true),
                (8, 11, 40, false),
                (8, 24, 7, true),
                (16, 1, 1, false),
                (48, 7, 33, true),
                (80, 13, 5, false),
                (64, 6, 0, true),
                (8, 5, CHAIN, true),
                (16, 2, CHAIN + 1, false),
                (64, 6, 3 * CHAIN - 1, true),
            ] {
                let got = run(kernel, lanes, rows, k, accumulate);
                for r in 0..rows {
                    for l in 0..lanes {
                        let mut want = if accumulate { (r * lanes + l) as f32 / 7.0 } else { 0.0 };
                        for stretch in (0..k).step_by(CHAIN) {
                            let mut chain = 0.0f32;
                            for i in stretch..k.min(stretch + CHAIN) {
                                let a = (((i * lanes + l) * 37 % 101) as f32 - 50.0) / 17.0;
                                let b = (((r * k + i) * 53 % 97) as f32 - 48.0) / 13.0;
                                chain = if fused { a.mul_add(b, chain) } else { a * b + chain };
                            }
                            want += chain;
                        }
                        assert_eq!(got[r * lanes + l].to_bits(), want.to_bits(), "row {r} lane {l}");
                    }
                }
            }
        }
    }
}
