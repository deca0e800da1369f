//! Norms, rotation, SwiGLU, biases and embeddings.
//!
//! Owns the shapes. Must not know how errors are measured.

use prl_kernels::cuda::{Context, Element, HeadShape, NormGrads, Read, Write};

use crate::bench::{EXACT, ROUNDED, Random, Table, empty, error, f64s, filled, read};
use crate::reference;

use super::Done;

pub fn norms<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, hidden] in [[1, 8], [1, 64], [7, 576], [301, 1024], [33, 4096], [3, 8192], [65_536, 64]] {
        let shape = format!("{rows}x{hidden}");
        let eps = 1e-6f32;
        let (x, add, dy, through) = (
            r.values::<T>(rows * hidden, 1.5),
            r.values::<T>(rows * hidden, 1.0),
            r.values::<T>(rows * hidden, 1.0),
            r.values::<T>(rows * hidden, 1.0),
        );
        let w: Vec<f32> = r.floats(hidden, 0.3).iter().map(|w| 1.0 + w).collect();
        let (dx, dadd, ddy, dthrough, dw) =
            (c.upload(&x)?, c.upload(&add)?, c.upload(&dy)?, c.upload(&through)?, c.upload(&w)?);
        let w64 = f64s(&w);
        for residual in [false, true] {
            let h: Vec<T> = if residual {
                x.iter().zip(&add).map(|(x, a)| T::from_f32(x.to_f32() + a.to_f32())).collect()
            } else {
                x.clone()
            };
            let h64 = f64s(&h);
            let (mut sum, mut y, mut rstd) =
                (empty::<T>(c, rows * hidden)?, empty::<T>(c, rows * hidden)?, empty::<f32>(c, rows)?);
            let extra: Option<(&dyn Read<T>, _)> = residual.then_some((&dadd as _, &mut sum as _));
            c.rms_norm([rows, hidden], eps, &dx, extra, &dw, &mut y, &mut rstd)?;
            let want: Vec<f64> = h64.chunks(hidden).flat_map(|h| reference::norm(h, &w64, f64::from(eps)).0).collect();
            let want_r: Vec<f64> = h64.chunks(hidden).map(|h| reference::norm(h, &w64, f64::from(eps)).1).collect();
            t.of::<T>("rms_norm y", &shape, error(read(c, &y)?, &want), ROUNDED);
            t.of::<T>("rms_norm rstd", &shape, error(read(c, &rstd)?, &want_r), EXACT);
            if residual {
                t.of::<T>("rms_norm sum", &shape, error(read(c, &sum)?, &h64), 0.0);
            }
            let dh = c.upload(&h)?;
            let (mut gx, mut gw) = (empty::<T>(c, rows * hidden)?, filled::<f32>(c, hidden, 0.25)?);
            let mut scratch = c.alloc(c.norm_scratch(hidden))?;
            let skip: Option<&dyn Read<T>> = residual.then_some(&dthrough as _);
            let mut y_again = empty::<T>(c, rows * hidden)?;
            let again: Option<&mut dyn Write<T>> = if residual { Some(&mut y_again) } else { None };
            let grads = NormGrads { dw: &mut gw, scratch: &mut scratch };
            c.rms_norm_backward([rows, hidden], (&dh, &rstd), &dw, &ddy, skip, &mut gx, again, grads)?;
            if residual {
                t.holds("rms_norm y again", &shape, read(c, &y_again)? == read(c, &y)?);
            }
            let mut want_w = vec![0.25; hidden];
            let (dy64, skip64) = (f64s(&dy), f64s(&through));
            let mut want: Vec<f64> = h64
                .chunks(hidden)
                .zip(dy64.chunks(hidden))
                .flat_map(|(h, d)| reference::norm_grad(h, &w64, f64::from(eps), d, &mut want_w))
                .collect();
            if residual {
                want.iter_mut().zip(&skip64).for_each(|(x, s)| *x += s);
            }
            t.of::<T>("rms_norm dx", &shape, error(read(c, &gx)?, &want), ROUNDED);
            t.of::<T>("rms_norm dw", &shape, error(read(c, &gw)?, &want_w), EXACT);
        }
    }
    Ok(())
}

pub fn ropes<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for (tokens, heads, kv_heads, dim) in [
        (1, 2, 1, 64),
        (37, 3, 1, 96),
        (129, 16, 8, 128),
        (5, 9, 3, 64),
        (50, 5, 1, 32),
        (9, 2, 2, 80),
        (65_536, 1, 1, 64),
    ] {
        let shape = format!("{tokens}x{heads}/{kv_heads}x{dim}");
        let inv_freq: Vec<f32> = (0..dim / 2).map(|i| 1e6f32.powf(-(2.0 * i as f32) / dim as f32)).collect();
        let table = c.rope_table(&inv_freq, 1.0, 70_000)?;
        let positions: Vec<i32> = (0..tokens).map(|_| r.below(70_000) as i32).collect();
        let width = (heads + 2 * kv_heads) * dim;
        let (qkv, dq, dk) = (
            r.values::<T>(tokens * width, 1.0),
            r.values::<T>(tokens * heads * dim, 1.0),
            r.values::<T>(tokens * kv_heads * dim, 1.0),
        );
        let w: [Vec<f32>; 2] = std::array::from_fn(|_| r.floats(dim, 0.3).iter().map(|w| 1.0 + w).collect());
        let w64 = [f64s(&w[0]), f64s(&w[1])];
        let (x64, dq64, dk64) = (f64s(&qkv), f64s(&dq), f64s(&dk));
        let (dev, dpos, ddq, ddk) = (c.upload(&qkv)?, c.upload(&positions)?, c.upload(&dq)?, c.upload(&dk)?);
        let (w0, w1) = (c.upload(&w[0])?, c.upload(&w[1])?);
        for normed in [false, true] {
            let s = HeadShape { heads, kv_heads, dim, eps: 1e-6 };
            let (mut q, mut k) = (empty::<T>(c, tokens * heads * dim)?, empty::<T>(c, tokens * kv_heads * dim)?);
            let weights: Option<[&dyn Read<f32>; 2]> = normed.then_some([&w0, &w1]);
            c.rope(s, &dev, weights, &table, &dpos, (&mut q, &mut k))?;
            let mut dqkv = empty::<T>(c, tokens * width)?;
            let (mut gq, mut gk) = (filled::<f32>(c, dim, 0.5)?, filled::<f32>(c, dim, 0.5)?);
            let mut scratch = c.alloc(c.norm_scratch(2 * dim))?;
            let back = weights.map(|w| (w, [&mut gq as _, &mut gk as _], &mut scratch as _));
            c.rope_backward(s, &dev, back, &table, &dpos, (&ddq, &ddk), &mut dqkv)?;
            let (mut want_q, mut want_k, mut want_d) = (Vec::new(), Vec::new(), vec![0.0; tokens * width]);
            let mut want_w = [vec![0.5; dim], vec![0.5; dim]];
            for tok in 0..tokens {
                let p = positions[tok] as usize;
                for h in 0..heads + kv_heads {
                    let x = &x64[tok * width + h * dim..][..dim];
                    let (i, to, d) = if h < heads {
                        (0, &mut want_q, &dq64[(tok * heads + h) * dim..][..dim])
                    } else {
                        (1, &mut want_k, &dk64[(tok * kv_heads + h - heads) * dim..][..dim])
                    };
                    let y = if normed { reference::norm(x, &w64[i], 1e-6).0 } else { x.to_vec() };
                    to.extend(reference::rotate(&y, p, &inv_freq, false));
                    let d = reference::rotate(d, p, &inv_freq, true);
                    let d = if normed { reference::norm_grad(x, &w64[i], 1e-6, &d, &mut want_w[i]) } else { d };
                    want_d[tok * width + h * dim..][..dim].copy_from_slice(&d);
                }
            }
            t.of::<T>("rope q", &shape, error(read(c, &q)?, &want_q), ROUNDED);
            t.of::<T>("rope k", &shape, error(read(c, &k)?, &want_k), ROUNDED);
            let got = read(c, &dqkv)?;
            let untouched = got.chunks(width).all(|r| r[(heads + kv_heads) * dim..].iter().all(|x| x.is_nan()));
            let part = |x: &[f64]| -> Vec<f64> {
                x.chunks(width).flat_map(|r| r[..(heads + kv_heads) * dim].to_vec()).collect()
            };
            t.of::<T>("rope dqk", &shape, error(part(&got), &part(&want_d)), ROUNDED);
            t.holds("rope leaves dv alone", &shape, untouched);
            if normed {
                t.of::<T>("rope dwq", &shape, error(read(c, &gq)?, &want_w[0]), EXACT);
                t.of::<T>("rope dwk", &shape, error(read(c, &gk)?, &want_w[1]), EXACT);
            }
        }
    }
    Ok(())
}

pub fn swiglu<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, width] in [[1, 8], [3, 1536], [77, 3072], [65_536, 64]] {
        let shape = format!("{rows}x{width}");
        let (gu, dh) = (r.values::<T>(rows * 2 * width, 2.0), r.values::<T>(rows * width, 1.0));
        let (x, d) = (f64s(&gu), f64s(&dh));
        let (dgu, ddh) = (c.upload(&gu)?, c.upload(&dh)?);
        let (mut h, mut again, mut grad) =
            (empty::<T>(c, rows * width)?, empty::<T>(c, rows * width)?, empty::<T>(c, rows * 2 * width)?);
        c.swiglu([rows, width], &dgu, &mut h)?;
        c.swiglu_backward([rows, width], &dgu, &ddh, &mut grad, Some(&mut again))?;
        let (mut want, mut want_g) = (vec![0.0; rows * width], vec![0.0; rows * 2 * width]);
        for i in 0..rows {
            for j in 0..width {
                let (g, u, d) = (x[i * 2 * width + j], x[(i * 2 + 1) * width + j], d[i * width + j]);
                let (s, ds) = reference::silu(g);
                want[i * width + j] = s * u;
                want_g[i * 2 * width + j] = d * u * ds;
                want_g[(i * 2 + 1) * width + j] = d * s;
            }
        }
        t.of::<T>("swiglu h", &shape, error(read(c, &h)?, &want), ROUNDED);
        t.of::<T>("swiglu h again", &shape, error(read(c, &again)?, &want), ROUNDED);
        t.of::<T>("swiglu dgate_up", &shape, error(read(c, &grad)?, &want_g), ROUNDED);
    }
    Ok(())
}

pub fn embeddings<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for (tokens, vocab, hidden) in [(1, 5, 8), (301, 40, 264), (1000, 5000, 1024), (65_536, 300, 64)] {
        let shape = format!("{tokens}/{vocab}x{hidden}");
        let (table, dx) = (r.values::<T>(vocab * hidden, 1.0), r.values::<T>(tokens * hidden, 1.0));
        let ids: Vec<u32> = (0..tokens).map(|_| r.below(vocab) as u32).collect();
        let (table64, dx64) = (f64s(&table), f64s(&dx));
        let signed: Vec<i32> = ids.iter().map(|i| *i as i32).collect();
        let (dtable, dids, ddx) = (c.upload(&table)?, c.upload(&signed)?, c.upload(&dx)?);
        let mut x = empty::<T>(c, tokens * hidden)?;
        c.embed(hidden, &dtable, &dids, &mut x)?;
        let want: Vec<f64> = ids.iter().flat_map(|i| table64[*i as usize * hidden..][..hidden].to_vec()).collect();
        t.of::<T>("embed", &shape, error(read(c, &x)?, &want), 0.0);
        let mut grad = filled::<f32>(c, vocab * hidden, 0.125)?;
        c.embed_backward(hidden, &c.embed_order(&ids, vocab)?, &ddx, &mut grad)?;
        let mut want = vec![0.125; vocab * hidden];
        for (i, id) in ids.iter().enumerate() {
            (0..hidden).for_each(|j| want[*id as usize * hidden + j] += dx64[i * hidden + j]);
        }
        t.of::<T>("embed gradient", &shape, error(read(c, &grad)?, &want), EXACT);
        // Rows back to places of their own, one of them outside.
        let mut places: Vec<i32> = (0..vocab as i32).collect();
        (0..vocab).for_each(|i| places.swap(i, i + r.below(vocab - i)));
        places.truncate(tokens);
        places[0] = vocab as i32;
        let from = c.upload(&dx[..places.len() * hidden])?;
        let mut to = filled::<T>(c, vocab * hidden, 0.5)?;
        c.scatter_rows(hidden, &c.upload(&places)?, &from, &mut to.slice_mut(..vocab * hidden))?;
        let mut want = vec![0.5; vocab * hidden];
        for (i, place) in places.iter().enumerate().skip(1) {
            want[*place as usize * hidden..][..hidden].copy_from_slice(&dx64[i * hidden..][..hidden]);
        }
        t.of::<T>("scatter_rows", &shape, error(read(c, &to)?, &want), 0.0);
    }
    Ok(())
}

pub fn biases<T: Element>(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for [rows, width] in [[1, 8], [301, 264], [5000, 1152], [65_536, 64]] {
        let shape = format!("{rows}x{width}");
        let (x, bias) = (r.values::<T>(rows * width, 1.0), r.floats(width, 1.0));
        let (dx, dbias) = (c.upload(&x)?, c.upload(&bias)?);
        let mut y = empty::<T>(c, rows * width)?;
        c.copy(&dx, &mut y.slice_mut(..rows * width))?;
        c.add_bias([rows, width], &mut y, &dbias)?;
        let x64 = f64s(&x);
        let want: Vec<f64> = x64.iter().enumerate().map(|(i, x)| x + f64::from(bias[i % width])).collect();
        t.of::<T>("bias", &shape, error(read(c, &y)?, &want), ROUNDED);
        let (mut sums, mut scratch) = (filled::<f32>(c, width, 0.5)?, c.alloc(c.norm_scratch(width))?);
        c.column_sums([rows, width], &dx, &mut sums, &mut scratch)?;
        let want: Vec<f64> = (0..width).map(|j| 0.5 + (0..rows).map(|i| x64[i * width + j]).sum::<f64>()).collect();
        t.of::<T>("bias gradient", &shape, error(read(c, &sums)?, &want), EXACT);
    }
    Ok(())
}
