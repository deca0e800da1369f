//! What training leaves out of what low-rank additions see.
//!
//! Owns the masks: each a function of a seed, a step, a document, a place in it, a layer and a matrix, and of nothing else. So
//! packing, threads and resumed runs change nothing. Must not know what is added or trained.

use crate::projection::Projection;
use crate::weights::KernelError;

/// Masks of one batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    rate: f32,
    /// One a token.
    keys: Vec<u64>,
}

impl Dropout {
    /// Masks that leave out a share `rate` of [0, 1) of packed documents, for one step of a run.
    ///
    /// # Errors
    /// A share that is out of range.
    ///
    /// # Panics
    /// If the document lengths do not add up to the number of ids.
    pub fn new(rate: f32, (seed, step): (u64, u64), ids: &[u32], doc_lens: &[usize]) -> Result<Self, KernelError> {
        if !(0.0..1.0).contains(&rate) {
            return Err(KernelError::Dropout(rate));
        }
        assert_eq!(doc_lens.iter().sum::<usize>(), ids.len(), "document lengths must add up to the number of ids");
        let run = mix(mix(seed) ^ step);
        let mut keys = Vec::with_capacity(ids.len());
        let mut rest = ids;
        for len in doc_lens {
            let (document, others) = rest.split_at(*len);
            rest = others;
            let document = document.iter().fold(run, |hash, id| mix(hash ^ u64::from(*id)));
            keys.extend((0..*len as u64).map(|place| mix(document ^ mix(place))));
        }
        Ok(Dropout { rate, keys })
    }

    /// How many tokens it has masks for.
    pub(crate) fn tokens(&self) -> usize {
        self.keys.len()
    }

    /// Sets what is left out of a token's row to 0 and multiplies the rest by 1 / (1 - rate).
    ///
    /// # Panics
    /// If there is no such token.
    pub fn apply(&self, token: usize, layer: usize, which: Projection, row: &mut [f32]) {
        let matrix = (layer * Projection::ALL.len() + which as usize) as u64;
        let key = mix(self.keys[token] ^ mix(matrix));
        let left_out = (f64::from(self.rate) * f64::from(1u32 << 16) * f64::from(1u32 << 16)) as u64;
        let factor = 1.0 / (1.0 - self.rate);
        for (i, pair) in row.chunks_mut(2).enumerate() {
            let word = mix(key.wrapping_add(i as u64));
            for (x, drawn) in pair.iter_mut().zip([word & 0xffff_ffff, word >> 32]) {
                *x = if drawn < left_out { 0.0 } else { *x * factor };
            }
        }
    }
}

/// SplitMix64's output function (Steele, Lea and Flood 2014) behind its increment.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(dropout: &Dropout, token: usize, layer: usize, which: Projection) -> Vec<f32> {
        let mut row = vec![1.0; 1001];
        dropout.apply(token, layer, which, &mut row);
        row
    }

    #[test]
    fn masks_follow_the_document_and_leave_out_their_share() {
        let (a, b) = ([1, 2, 3], [4, 5]);
        let packed = Dropout::new(0.3, (7, 2), &[&a[..], &b].concat(), &[3, 2]).unwrap();
        let other = Dropout::new(0.3, (7, 2), &[&b[..], &a].concat(), &[2, 3]).unwrap();
        for (here, there) in [(0, 2), (2, 4), (3, 0), (4, 1)] {
            assert_eq!(mask(&packed, here, 1, Projection::V), mask(&other, there, 1, Projection::V));
        }
        let own = mask(&packed, 1, 1, Projection::V);
        let rest = [(0, 1, Projection::V), (1, 0, Projection::V), (1, 1, Projection::Down)];
        assert!(rest.iter().all(|(token, layer, which)| mask(&packed, *token, *layer, *which) != own));
        for other in [(8, 2), (7, 3)] {
            let other = Dropout::new(0.3, other, &[&a[..], &b].concat(), &[3, 2]).unwrap();
            assert_ne!(mask(&other, 1, 1, Projection::V), own);
        }
        assert!(own.iter().all(|x| *x == 0.0 || *x == 1.0 / 0.7));
        let left_out = own.iter().filter(|x| **x == 0.0).count();
        assert!((240..360).contains(&left_out), "{left_out}");
        for rate in [1.0, -0.1, f32::NAN] {
            assert!(matches!(Dropout::new(rate, (7, 2), &a, &[3]), Err(KernelError::Dropout(_))));
        }
        let none = Dropout::new(0.0, (7, 2), &a, &[3]).unwrap();
        assert_eq!(mask(&none, 0, 0, Projection::Q), [1.0; 1001]);
    }
}
