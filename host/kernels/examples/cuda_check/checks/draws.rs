//! Drawn tokens and scores of labels.
//!
//! Owns the rows and the reference. Must not know how results are noted.

use prl_kernels::cuda::{Context, CudaError, DrawRows};

use crate::bench::{Random, Table};

use super::Done;

/// How one row is drawn from.
#[derive(Clone, Copy)]
struct How {
    inv_temp: f32,
    uniform: f64,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

pub fn draws(c: &Context, r: &mut Random, t: &mut Table) -> Done {
    for vocab in [1, 7, 300, 4099, 151_936] {
        // Rounded logits have many equals.
        for step in [0.0, 0.25] {
            let filters: [(usize, f32, f32); 9] = [
                (0, 1.0, 0.0),
                (1, 1.0, 0.0),
                (50, 1.0, 0.0),
                (5000, 1.0, 0.0),
                (0, 0.9, 0.0),
                (0, 0.05, 0.0),
                (0, 1.0, 0.1),
                (20, 0.8, 0.02),
                (0, 0.9999, 1e-6),
            ];
            let mut how: Vec<How> = filters
                .iter()
                .flat_map(|f| (0..6).map(move |i| (*f, i)))
                .map(|((top_k, top_p, min_p), i)| {
                    let uniform = if i == 0 { 0.0 } else { (r.bits() >> 11) as f64 / (1u64 << 53) as f64 };
                    How { inv_temp: [1.0, 0.4, 2.5][i % 3], uniform, top_k, top_p, min_p }
                })
                .collect();
            how.push(How { inv_temp: 1.0, uniform: -1.0, top_k: 3, top_p: 0.5, min_p: 0.2 });
            how.push(How { inv_temp: 1.0, uniform: 1.0 - f64::EPSILON / 2.0, top_k: 0, top_p: 1.0, min_p: 0.0 });
            let mut logits = r.floats(how.len() * vocab, 2.5);
            if step > 0.0 {
                logits.iter_mut().for_each(|x| *x = (*x / step).round() * step);
            }
            case(c, r, t, &how, &logits, vocab, &format!("{vocab} step {step}"))?;
        }
    }
    unsound(c, t)
}

fn drawn(c: &Context, how: &[How], logits: &[f32], vocab: usize) -> Result<Vec<(usize, f32)>, CudaError> {
    let rows = DrawRows {
        inv_temp: &c.upload(&how.iter().map(|h| h.inv_temp).collect::<Vec<_>>())?,
        uniform: &c.upload(&how.iter().map(|h| h.uniform).collect::<Vec<_>>())?,
        top_k: &c.upload(&how.iter().map(|h| h.top_k as i32).collect::<Vec<_>>())?,
        top_p: &c.upload(&how.iter().map(|h| h.top_p).collect::<Vec<_>>())?,
        min_p: &c.upload(&how.iter().map(|h| h.min_p).collect::<Vec<_>>())?,
    };
    let mut pairs = c.zeros::<i32>(2 * how.len())?;
    c.draw([how.len(), vocab], &c.upload(logits)?, rows, &mut pairs)?;
    Ok(c.download(&pairs)?.chunks_exact(2).map(|p| (p[0] as usize, f32::from_bits(p[1] as u32))).collect())
}

fn case(c: &Context, r: &mut Random, t: &mut Table, how: &[How], logits: &[f32], vocab: usize, shape: &str) -> Done {
    let got = drawn(c, how, logits, vocab)?;
    let mut off = 0.0f64;
    for ((how, row), (id, logprob)) in how.iter().zip(logits.chunks_exact(vocab)).zip(&got) {
        t.holds("draw: the token", shape, may_be(row, how, *id));
        off = off.max((whole(row, how.inv_temp, *id) - f64::from(*logprob)).abs());
    }
    t.note("draw: ln p", shape, off, 2e-5);
    let at = how.len() / 2;
    let alone = drawn(c, &how[at..=at], &logits[at * vocab..][..vocab], vocab)?;
    t.holds("draw: row alone", shape, alone[0].0 == got[at].0 && alone[0].1.to_bits() == got[at].1.to_bits());

    // Drawn ids in the place of others.
    let ids = [4, -1, -(how.len() as i32), 0, -1 - how.len() as i32];
    let pairs: Vec<i32> = got.iter().flat_map(|(id, logprob)| [*id as i32, logprob.to_bits() as i32]).collect();
    let mut taken = c.zeros::<i32>(ids.len())?;
    c.take(&c.upload(&ids)?, &c.upload(&pairs)?, &mut taken)?;
    let want = [4, got[0].0 as i32, got[how.len() - 1].0 as i32, 0, 0];
    t.holds("take", shape, c.download(&taken)? == want);

    for most in [0, 1, 20].into_iter().filter(|most| *most <= vocab) {
        let labels: Vec<i32> = how.iter().map(|_| r.below(vocab) as i32).collect();
        let inv_temp: Vec<f32> = how.iter().map(|h| h.inv_temp).collect();
        let words = Context::score_words(most);
        let mut scored = c.zeros::<i32>(how.len() * words)?;
        let (on, at) = (c.upload(logits)?, c.upload(&inv_temp)?);
        c.score([how.len(), vocab, most], &on, &c.upload(&labels)?, &at, &mut scored)?;
        let scored = c.download(&scored)?;
        for (i, (row, told)) in logits.chunks_exact(vocab).zip(scored.chunks_exact(words)).enumerate() {
            let label = labels[i] as usize;
            let off =
                |id: usize, bits: i32| (whole(row, inv_temp[i], id) - f64::from(f32::from_bits(bits as u32))).abs();
            t.note("score: ln p", shape, off(label, told[0]), 2e-5);
            let rank = row.iter().filter(|x| **x > row[label]).count() + 1;
            t.holds("score: place", shape, told[1] as usize == rank);
            let mut order: Vec<usize> = (0..vocab).collect();
            order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
            let top = told[2..].chunks_exact(2);
            t.holds("score: likeliest", shape, top.clone().zip(&order).all(|(pair, id)| pair[0] as usize == *id));
            let worst = top.map(|pair| off(pair[0] as usize, pair[1])).fold(0.0, f64::max);
            t.note("score: their ln p", shape, worst, 2e-5);
        }
    }
    Ok(())
}

fn weights(row: &[f32], inv_temp: f32) -> Vec<f64> {
    let top = row.iter().copied().fold(f32::MIN, f32::max);
    row.iter().map(|x| (f64::from(x - top) * f64::from(inv_temp)).exp()).collect()
}

/// ln p of `id` over the whole row.
fn whole(row: &[f32], inv_temp: f32, id: usize) -> f64 {
    let w = weights(row, inv_temp);
    w[id].ln() - w.iter().sum::<f64>().ln()
}

/// Whether inverse transform over what the filters keep may give `id`, up to rounding.
fn may_be(row: &[f32], how: &How, id: usize) -> bool {
    let w = weights(row, how.inv_temp);
    if how.uniform < 0.0 {
        return w.iter().position(|x| *x == 1.0) == Some(id);
    }
    let mut order: Vec<f64> = w.iter().copied().filter(|x| *x >= f64::from(how.min_p)).collect();
    order.sort_by(|a, b| b.total_cmp(a));
    let mut floor = f64::from(how.min_p);
    if how.top_k > 0 && how.top_k < order.len() {
        floor = floor.max(order[how.top_k - 1]);
    }
    if how.top_p < 1.0 {
        let kept = order.iter().filter(|x| **x >= floor);
        let want = kept.clone().sum::<f64>() * f64::from(how.top_p);
        let mut sum = 0.0;
        let last = kept.copied().find(|x| {
            sum += x;
            sum >= want * (1.0 - 1e-9)
        });
        floor = floor.max(last.unwrap_or(0.0));
    }
    // Weights that differ by less than f32 tells apart count as equal.
    let keeps = |x: f64| x >= floor * (1.0 - 1e-6);
    let sum = |ids: &[f64]| ids.iter().filter(|x| keeps(**x)).sum::<f64>();
    let (before, all) = (sum(&w[..id]), sum(&w));
    let (target, slack) = (how.uniform * all, 2e-5 * all);
    keeps(w[id]) && before <= target + slack && target <= before + w[id] + slack
}

/// Rows that are no distribution give NaN, whatever is asked of them.
fn unsound(c: &Context, t: &mut Table) -> Done {
    let plain = How { inv_temp: 1.0, uniform: 0.5, top_k: 0, top_p: 1.0, min_p: 0.0 };
    let all = [plain, How { uniform: -1.0, ..plain }, How { top_k: 3, top_p: 0.7, min_p: 0.1, ..plain }];
    for bad in [f32::NAN, f32::INFINITY] {
        for how in all {
            let mut row = vec![0.5f32; 700];
            row[600] = bad;
            t.holds("draw: no distribution", &bad.to_string(), drawn(c, &[how], &row, 700)?[0].1.is_nan());
        }
    }
    for how in all {
        let row = vec![f32::NEG_INFINITY; 700];
        t.holds("draw: nothing likely", "", drawn(c, &[how], &row, 700)?[0].1.is_nan());
    }
    Ok(())
}
