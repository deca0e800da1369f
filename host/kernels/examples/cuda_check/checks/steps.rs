//! The head's softmax, gradients' norm and AdamW.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{AdamStep, Context, Element, HeadRows, Read, Write};

use crate::bench::{EXACT, ROUNDED, Random, Table, empty, error, f64s, filled, read};
use crate::reference;

use super::Done;

pub fn head<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, vocab] in [[1, 1], [5, 1000], [3, 4099], [9, 151_936], [65_536, 7]] {
        let shape = format!("{rows}x{vocab}");
        let logits = r.floats(rows * vocab, 3.0);
        let labels: Vec<i32> = (0..rows).map(|_| r.below(vocab) as i32).collect();
        let temps: Vec<f32> = (0..rows).map(|i| 1.0 + 0.25 * (i % 9) as f32).collect();
        let (dl, de) = (r.floats(rows, 1.0), r.floats(rows, 0.3));
        let x = f64s(&logits);
        let (dlogits, dlabels, dtemps) = (c.upload(&logits)?, c.upload(&labels)?, c.upload(&temps)?);
        let (ddl, dde) = (c.upload(&dl)?, c.upload(&de)?);
        let of = HeadRows { labels: &dlabels, inv_temp: &dtemps };
        let mut out = [empty::<f32>(c, rows)?, empty::<f32>(c, rows)?, empty::<f32>(c, rows)?];
        let [a, b, z] = &mut out;
        c.head_stats([rows, vocab], &dlogits, of, [a, b, z])?;
        let want: Vec<[f64; 3]> = (0..rows)
            .map(|i| reference::head(&x[i * vocab..][..vocab], labels[i] as usize, f64::from(temps[i])))
            .collect();
        for (i, name) in ["head logprob", "head entropy", "head logz"].into_iter().enumerate() {
            let want: Vec<f64> = want.iter().map(|w| w[i]).collect();
            t.note(name, &shape, error(read(c, &out[i])?, &want), EXACT);
        }
        for with in [false, true] {
            let mut grad = empty::<T>(c, rows * vocab)?;
            let de_of = |i: usize| if with { f64::from(de[i]) } else { 0.0 };
            let dentropy: Option<&dyn Read<f32>> = with.then_some(&dde as _);
            c.head_gradient([rows, vocab], &dlogits, of, [&out[2], &out[1]], &ddl, dentropy, &mut grad)?;
            let want: Vec<f64> = (0..rows)
                .flat_map(|i| {
                    let row = &x[i * vocab..][..vocab];
                    reference::head_gradient(row, labels[i] as usize, f64::from(temps[i]), [f64::from(dl[i]), de_of(i)])
                })
                .collect();
            if vocab == 1 {
                t.of::<T>("head dlogits, one word", &shape, error(read(c, &grad)?, &want), 1e-6);
            } else {
                t.of::<T>("head dlogits", &shape, error(read(c, &grad)?, &want), ROUNDED);
            }
        }
    }
    Ok(())
}

pub fn steps<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for n in [1usize, 3, 1003, 1_000_002] {
        let shape = format!("{n}");
        let (p, mut g, other) = (r.floats(n, 1.0), r.floats(n, 2.0), r.floats(77, 1.0));
        (0..n / 5).for_each(|_| g[r.below(n)] = if r.below(2) == 0 { 0.0 } else { -0.0 });
        let zero = g.iter().filter(|g| **g == 0.0).count() as u64;
        let norm = g.iter().chain(&other).map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let (dg, dother) = (c.upload(&g)?, c.upload(&other)?);
        let (mut scratch, mut clipped) = (c.alloc::<f64>(c.grad_norm_scratch(2))?, empty::<f32>(c, 2)?);
        let mut zeros = c.upload(&[7u64; 2])?;
        c.grad_norm(&[&dg, &dother], 1.0, &mut scratch, &mut clipped, &mut zeros)?;
        t.holds("grad zeros", &shape, c.download(&zeros)? == [zero, 7]);
        let factor = (1.0 / (norm + 1e-6)).min(1.0);
        t.note("grad norm", &shape, error(read(c, &clipped)?, &[norm, factor]), 1e-6);
        let (mut dp, mut dm, mut dv) =
            (filled::<f32>(c, n, 0.0)?, filled::<f32>(c, n, 0.0)?, filled::<f32>(c, n, 0.0)?);
        let mut copy = empty::<T>(c, n)?;
        let fresh = c.upload(&p)?;
        c.copy(&fresh, &mut dp.slice_mut(..n))?;
        let (mut p64, mut m64, mut v64) = (f64s(&p), vec![0.0f64; n], vec![0.0f64; n]);
        for step in 1..=3u32 {
            let s = AdamStep { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, step };
            let masters: [&mut dyn Write<f32>; 3] =
                [&mut dp.slice_mut(..n), &mut dm.slice_mut(..n), &mut dv.slice_mut(..n)];
            c.adamw(s, masters, &dg, &mut copy.slice_mut(..n), &clipped)?;
            let beta = [f64::from(s.beta1), f64::from(s.beta2)];
            for i in 0..n {
                let gi = f64::from(g[i]) * factor;
                m64[i] = beta[0] * m64[i] + (1.0 - beta[0]) * gi;
                v64[i] = beta[1] * v64[i] + (1.0 - beta[1]) * gi * gi;
                let (m, v) = (m64[i] / (1.0 - beta[0].powi(step as i32)), v64[i] / (1.0 - beta[1].powi(step as i32)));
                p64[i] -= f64::from(s.lr) * (f64::from(s.decay) * p64[i] + m / (v.sqrt() + f64::from(s.eps)));
            }
        }
        let got = read(c, &dp)?;
        t.note("adamw master", &shape, error(got.iter().copied(), &p64), 1e-6);
        t.of::<T>("adamw copy", &shape, error(read(c, &copy)?, &p64), ROUNDED);
        // A gradient that is not finite changes nothing.
        let bad = c.upload(&vec![f32::INFINITY; n])?;
        c.grad_norm(&[&bad], 1.0, &mut scratch, &mut clipped, &mut zeros)?;
        let s = AdamStep { lr: 1.0, beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1, step: 4 };
        let masters: [&mut dyn Write<f32>; 3] =
            [&mut dp.slice_mut(..n), &mut dm.slice_mut(..n), &mut dv.slice_mut(..n)];
        c.adamw(s, masters, &bad, &mut copy.slice_mut(..n), &clipped)?;
        t.note("adamw skips", &shape, error(read(c, &dp)?, &got), 0.0);
    }
    Ok(())
}
