//! Named random streams. Every seed is a pure function of the run's seed, a name and the ids of what it is for; there
//! is no shared generator whose position could depend on timing.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A generator keyed by the run's seed, a stream name and two ids.
pub(crate) fn stream(run_seed: u64, name: &str, a: u64, b: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (slot, word) in key.chunks_exact_mut(8).zip([run_seed, fnv1a(name), a, b]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// The first word of [`stream`]: a seed to hand on.
pub fn derive(run_seed: u64, name: &str, a: u64, b: u64) -> u64 {
    stream(run_seed, name, a, b).next_u64()
}

/// 0..n in a random order (Fisher-Yates).
pub(crate) fn permutation(rng: &mut ChaCha8Rng, n: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..n).collect();
    for i in (1..order.len()).rev() {
        let j = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    order
}

/// Uniform in [0, 1), 53 bits.
pub(crate) fn unit(word: u64) -> f64 {
    (word >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// FNV-1a, 64 bits: stable over versions and platforms.
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_every_part_of_their_name() {
        let base = derive(1, "rollout", 2, 3);
        assert_eq!(base, derive(1, "rollout", 2, 3));
        for other in [derive(2, "rollout", 2, 3), derive(1, "task", 2, 3), derive(1, "rollout", 3, 2)] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn permutations_are_permutations() {
        let mut p = permutation(&mut stream(7, "shuffle", 0, 0), 100);
        assert_ne!(p[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        p.sort_unstable();
        assert!(p.into_iter().eq(0..100));
        assert!(permutation(&mut stream(7, "shuffle", 0, 0), 0).is_empty());
        assert!(unit(u64::MAX) < 1.0 && unit(0) == 0.0);
    }
}
