//! Transposing blocks of a matrix, for packing.
//!
//! Owns the vector shuffles. Must not know what is packed or why.

use crate::simd::{Isa, isa};

/// `dst[c][r] = src[r][c]` for `rows × cols`, rows `ld_src` and `ld_dst` apart.
///
/// # Safety
/// Both sides must hold what shapes and strides say and not overlap.
pub(crate) unsafe fn transpose(src: *const f32, ld_src: usize, rows: usize, cols: usize, dst: *mut f32, ld_dst: usize) {
    let (whole_rows, whole_cols) =
        if cfg!(target_arch = "x86_64") && isa() != Isa::Portable { (rows / 8 * 8, cols / 8 * 8) } else { (0, 0) };
    // SAFETY: by the caller's word; the instruction set was checked.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if whole_rows > 0 && whole_cols > 0 {
            transpose_blocks(src, ld_src, whole_rows, whole_cols, dst, ld_dst);
        }
        for c in 0..cols {
            for r in (if c < whole_cols { whole_rows } else { 0 })..rows {
                *dst.add(c * ld_dst + r) = *src.add(r * ld_src + c);
            }
        }
    }
}

/// [`transpose`] of whole blocks of 8 × 8.
///
/// # Safety
/// As [`transpose`]; AVX2 must be present.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_blocks(src: *const f32, ld_src: usize, rows: usize, cols: usize, dst: *mut f32, ld_dst: usize) {
    use std::arch::x86_64::*;
    for r in (0..rows).step_by(8) {
        for c in (0..cols).step_by(8) {
            // SAFETY: the block lies in both matrices by the caller's word.
            unsafe {
                let s = src.add(r * ld_src + c);
                let d = dst.add(c * ld_dst + r);
                let row = |i: usize| _mm256_loadu_ps(s.add(i * ld_src));
                // Pairs of rows, then fours, then halves.
                let (a0, a1) = (_mm256_unpacklo_ps(row(0), row(1)), _mm256_unpackhi_ps(row(0), row(1)));
                let (a2, a3) = (_mm256_unpacklo_ps(row(2), row(3)), _mm256_unpackhi_ps(row(2), row(3)));
                let (a4, a5) = (_mm256_unpacklo_ps(row(4), row(5)), _mm256_unpackhi_ps(row(4), row(5)));
                let (a6, a7) = (_mm256_unpacklo_ps(row(6), row(7)), _mm256_unpackhi_ps(row(6), row(7)));
                let (b0, b1) = (_mm256_shuffle_ps::<0x44>(a0, a2), _mm256_shuffle_ps::<0xee>(a0, a2));
                let (b2, b3) = (_mm256_shuffle_ps::<0x44>(a1, a3), _mm256_shuffle_ps::<0xee>(a1, a3));
                let (b4, b5) = (_mm256_shuffle_ps::<0x44>(a4, a6), _mm256_shuffle_ps::<0xee>(a4, a6));
                let (b6, b7) = (_mm256_shuffle_ps::<0x44>(a5, a7), _mm256_shuffle_ps::<0xee>(a5, a7));
                for (i, (low, high)) in [(b0, b4), (b1, b5), (b2, b6), (b3, b7)].into_iter().enumerate() {
                    _mm256_storeu_ps(d.add(i * ld_dst), _mm256_permute2f128_ps::<0x20>(low, high));
                    _mm256_storeu_ps(d.add((i + 4) * ld_dst), _mm256_permute2f128_ps::<0x31>(low, high));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_of_any_shape() {
        for (rows, cols) in [(1, 1), (8, 8), (9, 17), (24, 7), (64, 40)] {
            let (ld_src, ld_dst) = (cols + 3, rows + 2);
            let src: Vec<f32> = (0..rows * ld_src).map(|i| i as f32).collect();
            let mut dst = vec![-1.0; cols * ld_dst];
            // SAFETY: the buffers have these extents.
            unsafe { transpose(src.as_ptr(), ld_src, rows, cols, dst.as_mut_ptr(), ld_dst) };
            for c in 0..cols {
                for r in 0..ld_dst {
                    let want = if r < rows { src[r * ld_src + c] } else { -1.0 };
                    assert_eq!(dst[c * ld_dst + r], want, "{rows} x {cols} at {r}, {c}");
                }
            }
        }
    }
}
