//! Numbers that many algorithms take from the rewards of a group, in f64 and exact where they can be. Owns the two ways to
//! lose digits that a plain sum has: equal values whose mean is not the value, and close values whose distance is noise.

/// The mean; exactly the value when all are equal. 0 for an empty list.
pub fn mean(values: &[f64]) -> f64 {
    match values.first() {
        Some(first) => first + mean_distance(values, *first),
        None => 0.0,
    }
}

/// x_i − mean(x), over the distances to the first value: exactly 0 for equal values, and without loss for close ones.
pub fn centred(values: &[f64]) -> Vec<f64> {
    let Some(first) = values.first() else { return Vec::new() };
    let mean = mean_distance(values, *first);
    values.iter().map(|v| (v - first) - mean).collect()
}

fn mean_distance(values: &[f64], from: f64) -> f64 {
    values.iter().map(|v| v - from).sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_themselves_as_mean() {
        for value in [0.1, 1.0 / 3.0, -1e8, 0.0, 1e300] {
            for n in [1, 3, 7, 64] {
                assert_eq!(mean(&vec![value; n]), value);
                assert_eq!(centred(&vec![value; n]), vec![0.0; n]);
            }
        }
        assert_eq!((mean(&[]), centred(&[])), (0.0, vec![]));
    }

    #[test]
    fn close_and_far_values_keep_their_distance() {
        let ulp = f64::from_bits(0.1f64.to_bits() + 1);
        let half = (ulp - 0.1) / 2.0;
        assert_eq!(centred(&[ulp, 0.1]), [half, -half]);
        assert_eq!((mean(&[1e8, -1e8]), centred(&[1e8, -1e8])), (0.0, vec![1e8, -1e8]));
        assert_eq!(centred(&[1.0, 0.0, 0.5, 0.5]), [0.5, -0.5, 0.0, 0.0]);
    }
}
