//! Matrix products.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{Context, Element, Matrix, Onto};

use crate::bench::{EXACT, ROUNDED, Random, Table, empty, error, f64s, filled, read};
use crate::reference;

use super::Done;

/// Products of T and, from T, of f32 results that are added to.
pub fn products<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [m, n, k] in [[1, 8, 8], [1, 1, 1], [37, 61, 53], [128, 192, 64], [70, 8, 200], [65_536, 16, 24]] {
        for (ta, tb) in [(false, false), (false, true), (true, false)] {
            let shape = format!("{m}x{n}x{k} {ta} {tb}");
            let (lda, ldb) = (if ta { m } else { k }, if tb { k } else { n });
            let (a, b, other) = (r.values::<T>(m * k, 1.0), r.values::<T>(k * n, 1.0), r.values::<T>(m * n, 3.0));
            let at = |i: usize, p: usize| if ta { p * m + i } else { i * k + p };
            let bt = |p: usize, j: usize| if tb { j * k + p } else { p * n + j };
            let (a64, b64) = (f64s(&a), f64s(&b));
            let want = reference::product(m, n, k, |i, p| a64[at(i, p)], |p, j| b64[bt(p, j)]);
            let with = |x: f64| -> Vec<f64> { want.iter().map(|w| w + x).collect() };
            // One of them starts at an odd element.
            let da = c.upload(&[&[T::from_f32(f32::NAN)], &a[..]].concat())?;
            let (db, dother) = (c.upload(&b)?, c.upload(&other)?);
            let da = da.slice(1..);
            let (a, b) =
                (Matrix { data: &da, stride: lda, transposed: ta }, Matrix { data: &db, stride: ldb, transposed: tb });
            let mut y = empty::<T>(c, m * n)?;
            c.gemm([m, n, k], a, b, &mut y, n, Onto::Nothing)?;
            t.of::<T>("gemm", &shape, error(read(c, &y)?, &want), ROUNDED);
            let mut y = filled::<T>(c, m * n, 0.5)?;
            c.gemm([m, n, k], a, b, &mut y, n, Onto::Itself)?;
            t.of::<T>("gemm onto itself", &shape, error(read(c, &y)?, &with(0.5)), ROUNDED);
            let mut y = empty::<T>(c, m * n)?;
            c.gemm([m, n, k], a, b, &mut y, n, Onto::Other(&dother))?;
            let sum: Vec<f64> = want.iter().zip(f64s(&other)).map(|(w, o)| w + o).collect();
            t.of::<T>("gemm onto another", &shape, error(read(c, &y)?, &sum), ROUNDED);
            t.holds("gemm keeps the other", &shape, f64s(&c.download(&dother)?) == f64s(&other));
            let mut y = filled::<f32>(c, m * n, 0.5)?;
            c.gemm([m, n, k], a, b, &mut y, n, Onto::Itself)?;
            t.of::<T>("gemm, f32 += a b", &shape, error(read(c, &y)?, &with(0.5)), EXACT);
        }
    }
    Ok(())
}

/// Products of few rows, as in decoding, which stream the weights: up to eight rows and one more, columns and terms that fill no
/// block. A row's bits do not depend on the rows beside it.
pub fn few<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [n, k] in [[8, 8], [24, 40], [1000, 256], [1024, 3072], [8195, 264]] {
        let (b, other) = (r.values::<T>(k * n, 1.0), r.values::<T>(9 * n, 3.0));
        let a = r.values::<T>(9 * k, 1.0);
        let (a64, b64) = (f64s(&a), f64s(&b));
        let (da, db, dother) = (c.upload(&a)?, c.upload(&b)?, c.upload(&other)?);
        let mut whole = Vec::new();
        for m in [9, 8, 7, 3, 1] {
            let shape = format!("{m}x{n}x{k}");
            let want = reference::product(m, n, k, |i, p| a64[i * k + p], |p, j| b64[j * k + p]);
            let (x, w) = (Matrix::new(&da, k), Matrix::t(&db, k));
            let mut y = empty::<T>(c, m * n)?;
            c.gemm([m, n, k], x, w, &mut y, n, Onto::Nothing)?;
            let got = read(c, &y)?;
            t.of::<T>("few rows", &shape, error(got.clone(), &want), ROUNDED);
            if m <= 8 {
                if m == 8 {
                    whole = got.clone();
                }
                // The library's kernels for f32 promise nothing.
                let alone = size_of::<T>() != 2 || got == whole[..m * n];
                t.holds("few rows, each for itself", &shape, alone);
            }
            let mut y = empty::<T>(c, m * n)?;
            c.gemm([m, n, k], x, w, &mut y, n, Onto::Other(&dother))?;
            let sum: Vec<f64> = want.iter().zip(f64s(&other)).map(|(w, o)| w + o).collect();
            t.of::<T>("few rows onto another", &shape, error(read(c, &y)?, &sum), ROUNDED);
            let mut y = empty::<f32>(c, m * n)?;
            c.gemm([m, n, k], x, w, &mut y, n, Onto::Nothing)?;
            t.of::<T>("few rows, f32", &shape, error(read(c, &y)?, &want), EXACT);
        }
    }
    Ok(())
}
