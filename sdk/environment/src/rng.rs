//! A small seeded generator: SplitMix64 (Steele, Lea and Flood, 2014). Owns the only source of randomness an
//! environment has; the same parts give the same numbers on every machine.

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The plain SplitMix64 stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A stream of its own for each list of numbers, such as `[seed, index]`.
    pub fn from_parts(parts: &[u64]) -> Self {
        Rng(parts.iter().fold(0, |state, part| mix(state.wrapping_add(GOLDEN) ^ mix(part.wrapping_add(GOLDEN)))))
    }

    /// The stream of a task: what `get-task` is asked with.
    pub fn for_task(split: &str, index: u64, seed: u64) -> Self {
        let split = split.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        Rng::from_parts(&[split, index, seed])
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// Uniform in `0..n`, without bias; 0 when `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n < 2 {
            return 0;
        }
        // Draws below 2^64 mod n are taken again, so that what is left divides evenly.
        let reject = n.wrapping_neg() % n;
        loop {
            let x = self.next_u64();
            if x >= reject {
                return (x % n) as usize;
            }
        }
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `items`; `None` when there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }

    /// Puts `items` in a random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_stream() {
        let mut rng = Rng::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(got, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn streams_differ_by_part_and_order() {
        let first = |parts: &[u64]| Rng::from_parts(parts).next_u64();
        let all = [first(&[0, 0]), first(&[0, 1]), first(&[1, 0]), first(&[0]), first(&[])];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b));
        }
        assert_eq!(first(&[3, 4]), first(&[3, 4]));
        let task = |split, index, seed| Rng::for_task(split, index, seed).next_u64();
        assert_eq!(task("eval", 1, 2), task("eval", 1, 2));
        assert!(task("eval", 1, 2) != task("train", 1, 2) && task("eval", 1, 2) != task("eval", 2, 1));
    }

    #[test]
    fn draws_are_in_range_and_even() {
        let mut rng = Rng::new(1);
        let mut counts = [0usize; 7];
        for _ in 0..7000 {
            counts[rng.below(7)] += 1;
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
        assert!((0..1000).map(|_| rng.unit()).all(|u| (0.0..1.0).contains(&u)));
        assert_eq!((rng.below(0), rng.below(1), rng.pick::<u8>(&[])), (0, 0, None));
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert!(items != (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
