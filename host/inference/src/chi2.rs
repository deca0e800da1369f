//! For tests: whether counts are what a distribution gives.

/// Pearson's χ² of counts against exact probabilities; what has none must not be there. The bound is the 1 − 1e-6 quantile
/// for 5 degrees of freedom, so there are at most six outcomes.
#[track_caller]
pub(crate) fn assert_follows(seen: &[usize], exact: &[f64], what: &str) {
    assert!(exact.iter().filter(|p| **p > 0.0).count() <= 6 && seen.len() == exact.len());
    let draws: usize = seen.iter().sum();
    let mut chi2 = 0.0;
    for (n, p) in seen.iter().zip(exact) {
        let want = p * draws as f64;
        match *p > 0.0 {
            true => chi2 += (*n as f64 - want).powi(2) / want,
            false => assert_eq!(*n, 0, "{what}: {seen:?}"),
        }
    }
    assert!(chi2 < 35.9, "chi² {chi2} for {what}: {seen:?}");
}
