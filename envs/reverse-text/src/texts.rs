//! The word lists and how a text is drawn from one. Owns lengths and feasibility; must not know prompts or rewards.

use prl_env::Rng;

/// Words in a text: least and most.
const COUNT: [usize; 2] = [2, 4];
/// Characters of a word: least and most, in both lists.
const WORD: [usize; 2] = [2, 9];
/// Characters of the shortest text: two words of two and a space.
pub const SHORTEST: usize = least(COUNT[0]);
/// Characters of the longest text: four words of nine and three spaces.
pub const LONGEST: usize = most(COUNT[1]);

const fn least(words: usize) -> usize {
    words * (WORD[0] + 1) - 1
}

const fn most(words: usize) -> usize {
    words * (WORD[1] + 1) - 1
}

/// A list of words with their lengths at hand.
pub struct Words {
    /// Sorted by length.
    words: Vec<&'static str>,
    /// `until[n]`: how many words have at most n characters.
    until: [usize; WORD[1] + 1],
}

impl Words {
    /// The words of the train split.
    pub fn train() -> Self {
        Words::new(include_str!("../words/train.txt"))
    }

    /// The words of the eval split; none of them is in the train list.
    pub fn eval() -> Self {
        Words::new(include_str!("../words/eval.txt"))
    }

    fn new(list: &'static str) -> Self {
        let words: Vec<&str> = list.lines().collect();
        Words { until: std::array::from_fn(|n| words.partition_point(|word| word.len() <= n)), words }
    }

    /// A text of `min..=max` characters (within `SHORTEST..=LONGEST`): a count of words that can fill it, evenly
    /// chosen, then each word evenly from those whose length leaves room for the rest.
    pub fn text(&self, rng: &mut Rng, min: usize, max: usize) -> String {
        let counts: Vec<usize> = (COUNT[0]..=COUNT[1]).filter(|n| least(*n) <= max && most(*n) >= min).collect();
        let count = rng.pick(&counts).copied().unwrap_or(COUNT[0]);
        let mut text = String::new();
        for rest in (0..count).rev() {
            // What the words to come take, each with a space before it.
            let (rest_min, rest_max) = if rest == 0 { (0, 0) } else { (least(rest) + 1, most(rest) + 1) };
            if !text.is_empty() {
                text.push(' ');
            }
            let longest = (max - text.len() - rest_min).min(WORD[1]);
            let shortest = min.saturating_sub(text.len() + rest_max).max(WORD[0]);
            let (from, to) = (self.until[shortest - 1], self.until[longest]);
            text.push_str(self.words[from + rng.below(to - from)]);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_lists_are_large_clean_and_disjoint() {
        let (train, eval) = (Words::train().words, Words::eval().words);
        assert!(train.len() >= 2000 && eval.len() >= 300);
        for list in [&train, &eval] {
            assert!(list.is_sorted_by(|a, b| (a.len(), a) < (b.len(), b)), "sorted by length, without repeats");
            for length in WORD[0]..=WORD[1] {
                assert!(list.iter().any(|word| word.len() == length), "no word of {length} letters");
            }
            let clean =
                |word: &&str| (WORD[0]..=WORD[1]).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase());
            assert!(list.iter().all(clean));
        }
        let train: HashSet<_> = train.into_iter().collect();
        assert!(eval.iter().all(|word| !train.contains(word)));
    }

    #[test]
    fn every_feasible_length_is_met() {
        let words = Words::eval();
        let mut rng = Rng::new(3);
        for min in SHORTEST..=LONGEST {
            for max in min..=LONGEST {
                for _ in 0..4 {
                    let text = words.text(&mut rng, min, max);
                    assert!((min..=max).contains(&text.len()), "{text:?} is not {min}..={max}");
                    assert!((2..=4).contains(&text.split(' ').count()));
                    assert!(text.split(' ').all(|word| words.words.contains(&word)));
                }
            }
        }
    }
}
