//! The word lists. Owns which words may be secret, in which split, and which may be guessed; must not know the game.

use crate::feedback::LETTERS;
use prl_env::Rng;

/// Words that may be secret: sorted, one a line.
const ANSWERS: &str = include_str!("../words/answers.txt");
/// Further words that may be guessed: sorted, one a line.
const GUESSES: &str = include_str!("../words/guesses.txt");
/// From one word to the next.
const STRIDE: usize = LETTERS + 1;
/// One answer in so many of the alphabet is kept for the eval split.
const EVAL_SHARE: usize = 8;

fn count(list: &str) -> usize {
    list.len() / STRIDE
}

fn at(list: &str, index: usize) -> Option<&str> {
    list.get(index * STRIDE..index * STRIDE + LETTERS)
}

/// How many secrets the eval split has.
pub fn eval() -> u64 {
    count(ANSWERS).div_ceil(EVAL_SHARE) as u64
}

/// How many secrets the train split has.
pub fn train() -> u64 {
    count(ANSWERS) as u64 - eval()
}

/// The secret at `index` of a split; their order is random and always the same.
pub fn secret(eval: bool, index: u64) -> Option<&'static str> {
    let mut order: Vec<u16> =
        (0..count(ANSWERS)).filter(|at| (at % EVAL_SHARE == 0) == eval).map(|at| at as u16).collect();
    Rng::new(0).shuffle(&mut order);
    at(ANSWERS, usize::from(*order.get(usize::try_from(index).ok()?)?))
}

/// Whether it may be guessed (lower case).
pub fn known(word: &str) -> bool {
    [ANSWERS, GUESSES].into_iter().any(|list| {
        let (mut low, mut high) = (0, count(list));
        while low < high {
            let middle = (low + high) / 2;
            match at(list, middle).map(|other| other.cmp(word)) {
                Some(std::cmp::Ordering::Equal) => return true,
                Some(std::cmp::Ordering::Less) => low = middle + 1,
                _ => high = middle,
            }
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_lists_are_large_clean_and_disjoint() {
        let mut all = HashSet::new();
        for list in [ANSWERS, GUESSES] {
            let words: Vec<&str> = list.lines().collect();
            assert_eq!(list.len(), words.len() * STRIDE, "every line ends, the last one too");
            assert!(words.is_sorted());
            assert!(
                words.iter().all(|word| word.len() == LETTERS && word.bytes().all(|byte| byte.is_ascii_lowercase()))
            );
            assert!(words.iter().all(|word| known(word)));
            assert!(words.into_iter().all(|word| all.insert(word)), "a word is there twice");
        }
        assert!(train() >= 2000 && eval() >= 250, "{} and {}", train(), eval());
        assert!(all.len() > 6000, "{}", all.len());
        assert!(!["", "crane ", "xxxxx", "CRANE", "zzzzz", "aaaaa", "ab", "crané"].into_iter().any(known));
    }

    #[test]
    fn every_answer_is_the_secret_of_one_task() {
        let train: HashSet<_> = (0..train()).map(|index| secret(false, index).unwrap()).collect();
        let eval: HashSet<_> = (0..eval()).map(|index| secret(true, index).unwrap()).collect();
        assert_eq!(train.len() + eval.len(), count(ANSWERS));
        assert!(train.is_disjoint(&eval));
        assert_eq!((secret(false, train.len() as u64), secret(true, u64::MAX)), (None, None));
        // Not in the order of the alphabet.
        let first: HashSet<u8> = (0..20).map(|index| secret(false, index).unwrap().as_bytes()[0]).collect();
        assert!(first.len() > 5);
    }
}
