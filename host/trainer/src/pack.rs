//! Which samples share a forward pass. Owns first-fit decreasing; must not know samples beyond their lengths.

/// Packs documents of the given lengths into bins of at most `capacity` tokens: longest first (equal ones in their
/// order), each into the first bin with room. A document longer than `capacity` counts as `capacity` tokens (it is to
/// be cut); empty ones are left out. Returns the documents of each bin.
pub fn pack(lens: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lens.len()).filter(|i| lens[*i] > 0).collect();
    order.sort_by_key(|i| std::cmp::Reverse(lens[*i]));
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for i in order {
        let len = lens[i].min(capacity);
        match bins.iter_mut().find(|(used, _)| used + len <= capacity) {
            Some((used, bin)) => {
                *used += len;
                bin.push(i);
            }
            None => bins.push((len, vec![i])),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn longest_first_into_the_first_bin_with_room() {
        assert_eq!(pack(&[3, 7, 5, 0, 2, 5, 99], 10), [vec![6], vec![1, 0], vec![2, 5], vec![4]]);
        assert_eq!(pack(&[], 10), Vec::<Vec<usize>>::new());
    }

    proptest! {
        #[test]
        fn every_document_once_and_no_bin_too_full(lens in prop::collection::vec(0usize..40, 0..60), cap in 1usize..50) {
            let bins = pack(&lens, cap);
            let mut seen: Vec<usize> = bins.concat();
            seen.sort_unstable();
            let want: Vec<usize> = (0..lens.len()).filter(|i| lens[*i] > 0).collect();
            prop_assert_eq!(seen, want);
            let used: Vec<usize> = bins.iter().map(|b| b.iter().map(|i| lens[*i].min(cap)).sum()).collect();
            prop_assert!(used.iter().all(|u| *u <= cap));
            // First fit: no bin would have taken what opened a later one, so at most one is half empty.
            prop_assert!(used.iter().filter(|u| **u * 2 <= cap).count() <= 1);
            prop_assert_eq!(bins, pack(&lens, cap));
        }
    }
}
