//! The one reduction helper: masked means and summaries. Nothing else in the project divides by a count.

use serde::{Deserialize, Serialize};

/// Mean of `values` where `mask` is true, in f64. An empty selection gives 0 with count 0, never NaN.
pub fn masked_mean(values: &[f32], mask: &[bool]) -> (f64, usize) {
    let (mut sum, mut count) = (0.0f64, 0usize);
    for (v, m) in values.iter().zip(mask) {
        if *m {
            sum += f64::from(*v);
            count += 1;
        }
    }
    (if count == 0 { 0.0 } else { sum / count as f64 }, count)
}

/// Mean, spread and extremes of a list; all 0 for an empty one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// Median (linear interpolation).
    pub median: f64,
    /// 10th percentile (linear interpolation).
    pub p10: f64,
    /// 90th percentile (linear interpolation).
    pub p90: f64,
}

impl Summary {
    /// Summarises `values`; order does not matter.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut v: Vec<f64> = values.into_iter().collect();
        if v.is_empty() {
            return Summary::default();
        }
        v.sort_by(f64::total_cmp);
        let n = v.len() as f64;
        let mean = v.iter().sum::<f64>() / n;
        let var = v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let quantile = |q: f64| {
            let at = q * (n - 1.0);
            let (lo, hi) = (at.floor() as usize, at.ceil() as usize);
            v[lo] + (v[hi] - v[lo]) * (at - at.floor())
        };
        Summary {
            count: v.len(),
            mean,
            std: var.sqrt(),
            min: v[0],
            max: v[v.len() - 1],
            median: quantile(0.5),
            p10: quantile(0.1),
            p90: quantile(0.9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_selections_are_zero_not_nan() {
        assert_eq!(masked_mean(&[1.0], &[false]), (0.0, 0));
        assert_eq!(Summary::of([]), Summary::default());
    }

    #[test]
    fn masked_rows_do_not_dilute() {
        assert_eq!(masked_mean(&[2.0, 9.0, 4.0], &[true, false, true]), (3.0, 2));
        let s = Summary::of([3.0, 1.0, 2.0]);
        assert_eq!((s.mean, s.min, s.max, s.median), (2.0, 1.0, 3.0, 2.0));
    }
}
