//! Instruction-set choice, made once per process, and the scalar helpers that the compiler vectorises under it.
//!
//! Owns the detection and the `simd_fn!` wrapper. Must not know any model: only lanes, fused multiply-adds and reductions.

use std::sync::OnceLock;

/// The instruction sets this crate has code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 F/BW/DQ/VL and FMA.
    Avx512,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// Anything else: plain Rust, with fused multiply-add where the target always has it.
    Portable,
}

/// Whether the portable code may use `mul_add` without falling into a library call.
pub(crate) const PORTABLE_FMA: bool = cfg!(target_arch = "aarch64");

/// The instruction set of this process: detected once, never changed, so that equal inputs give equal bits all along.
pub fn isa() -> Isa {
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Isa {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2") && has!("fma");
    if avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl") {
        Isa::Avx512
    } else if avx2 {
        Isa::Avx2
    } else {
        Isa::Portable
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Isa {
    Isa::Portable
}

/// Defines a function whose body is compiled once per instruction set and picked at run time.
/// The body may use the constant `FMA` with [`fma`].
macro_rules! simd_fn {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<const FMA: bool>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { body::<true>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { body::<true>($($arg),*) }
            match $crate::simd::isa() {
                // SAFETY: `isa` answers so only where the processor has these features.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body::<{ $crate::simd::PORTABLE_FMA }>($($arg),*),
            }
        }
    };
}
pub(crate) use simd_fn;

/// `a * b + c`, fused where `FMA` says that the hardware does it.
#[inline(always)]
pub(crate) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Lanes of every reduction in this crate. Element `i` always goes to lane `i % LANES`, whatever the vector width.
pub(crate) const LANES: usize = 16;

/// Sum of the lanes, as a fixed tree.
#[inline(always)]
pub(crate) fn sum_lanes(v: [f32; LANES]) -> f32 {
    let mut a = [0.0f32; 8];
    for i in 0..8 {
        a[i] = v[i] + v[i + 8];
    }
    ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}

/// Greatest lane; a NaN lane is passed over.
#[inline(always)]
pub(crate) fn max_lanes(v: [f32; LANES]) -> f32 {
    let mut m = f32::NEG_INFINITY;
    for x in v {
        m = if x > m { x } else { m };
    }
    m
}

/// eˣ with a relative error below 2e-7. Below -87.33 the result is exactly 0, above 88 it saturates; NaN stays NaN.
/// Range reduction by ln 2 in two parts and a polynomial of degree 7 (coefficients of the Cephes library's `expf`).
#[inline(always)]
pub(crate) fn exp<const FMA: bool>(x: f32) -> f32 {
    const LOW: f32 = -87.33;
    const HIGH: f32 = 88.02;
    const MAGIC: f32 = 12_582_912.0;
    let c = if x < LOW { LOW } else { x };
    let c = if c > HIGH { HIGH } else { c };
    let t = fma::<FMA>(c, std::f32::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = fma::<FMA>(n, -0.693_359_4, c);
    let r = fma::<FMA>(n, 2.121_944_4e-4, r);
    let p = fma::<FMA>(1.987_569_1e-4, r, 1.398_199_9e-3);
    let p = fma::<FMA>(p, r, 8.333_452e-3);
    let p = fma::<FMA>(p, r, 4.166_579_6e-2);
    let p = fma::<FMA>(p, r, 1.666_666_5e-1);
    let p = fma::<FMA>(p, r, 5e-1);
    let y = fma::<FMA>(p, r * r, r + 1.0);
    let scale = f32::from_bits(t.to_bits().wrapping_add(127) << 23);
    if x < LOW { 0.0 } else { y * scale }
}

/// Sine and cosine of an angle in radians, both rounded from a double-precision evaluation (angles up to 1e6).
#[inline(always)]
pub(crate) fn sin_cos(angle: f32) -> (f32, f32) {
    use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let a = f64::from(angle);
    let t = a * FRAC_2_PI + MAGIC;
    let n = t - MAGIC;
    let r = a - n * FRAC_PI_2;
    let z = r * r;
    let s = 1.0 / 6_227_020_800.0;
    let s = s * z - 1.0 / 39_916_800.0;
    let s = s * z + 1.0 / 362_880.0;
    let s = s * z - 1.0 / 5_040.0;
    let s = s * z + 1.0 / 120.0;
    let s = s * z - 1.0 / 6.0;
    let sin = r + r * z * s;
    let c = 1.0 / 479_001_600.0;
    let c = c * z - 1.0 / 3_628_800.0;
    let c = c * z + 1.0 / 40_320.0;
    let c = c * z - 1.0 / 720.0;
    let c = c * z + 1.0 / 24.0;
    let c = c * z - 0.5;
    let cos = 1.0 + z * c;
    let quadrant = t.to_bits();
    let (s, c) = if quadrant & 1 == 1 { (cos, sin) } else { (sin, cos) };
    let s = if quadrant & 2 == 2 { -s } else { s };
    let c = if quadrant.wrapping_add(1) & 2 == 2 { -c } else { c };
    (s as f32, c as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_total() {
        let mut worst = 0.0f64;
        for i in 0..200_000 {
            let x = -87.0 + i as f32 * (175.0 / 200_000.0);
            let want = f64::from(x).exp();
            for got in [exp::<true>(x), exp::<false>(x)] {
                worst = worst.max(((f64::from(got) - want) / want).abs());
            }
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
        assert_eq!(exp::<true>(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp::<true>(0.0), 1.0);
        assert!(exp::<true>(f32::NAN).is_nan());
        assert!(exp::<true>(1e9).is_finite());
    }

    #[test]
    fn sin_cos_is_accurate() {
        for i in 0..100_000u32 {
            let x = i as f32 * 1.37;
            let (s, c) = sin_cos(x);
            assert!((f64::from(s) - f64::from(x).sin()).abs() < 6.1e-8, "sin {x}");
            assert!((f64::from(c) - f64::from(x).cos()).abs() < 6.1e-8, "cos {x}");
        }
    }
}
