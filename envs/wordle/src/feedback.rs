//! What a guess is told. Owns the rule for letters that occur more than once; must not know the game around it.

/// Letters of a word.
pub const LETTERS: usize = 5;

/// How much of a guess is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Letters at their place.
    pub right: usize,
    /// Letters that belong elsewhere.
    pub elsewhere: usize,
}

/// A mark for each letter of `guess`, with spaces between, and their tally. Both words are `a` to `z`. A letter is
/// marked as often as the secret has it: first where it is at its place, then from the left.
pub fn feedback(guess: &[u8], secret: &[u8]) -> (String, Tally) {
    let mut left = [0u8; 256];
    for (_, letter) in guess.iter().zip(secret).filter(|(guess, secret)| guess != secret) {
        left[usize::from(*letter)] += 1;
    }
    let mut tally = Tally::default();
    let marks: Vec<&str> = guess
        .iter()
        .zip(secret)
        .map(|(guess, secret)| {
            let left = &mut left[usize::from(*guess)];
            if guess == secret {
                tally.right += 1;
                "G"
            } else if *left > 0 {
                *left -= 1;
                tally.elsewhere += 1;
                "Y"
            } else {
                "-"
            }
        })
        .collect();
    (marks.join(" "), tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn letters_are_marked_as_often_as_they_occur() {
        for (guess, secret, marks) in [
            ("crane", "crane", "G G G G G"),
            ("crane", "moist", "- - - - -"),
            ("slate", "least", "Y Y G Y Y"),
            ("allay", "llama", "Y G Y Y -"),
            ("speed", "abide", "- - Y - Y"),
            ("speed", "erase", "Y - Y Y -"),
            ("geese", "eject", "- Y G - -"),
            ("eerie", "abbey", "Y - - - -"),
            ("eerie", "there", "Y - Y - G"),
        ] {
            assert_eq!(feedback(guess.as_bytes(), secret.as_bytes()).0, marks, "{guess} {secret}");
        }
    }

    /// The rule as a person would apply it: strike a letter of the secret out for every mark.
    fn by_hand(guess: &str, secret: &str) -> String {
        let mut rest: Vec<Option<char>> = secret.chars().map(Some).collect();
        let mut marks = ["-"; LETTERS];
        for (at, letter) in guess.chars().enumerate() {
            if rest[at] == Some(letter) {
                (rest[at], marks[at]) = (None, "G");
            }
        }
        for (at, letter) in guess.chars().enumerate().filter(|(at, _)| secret.as_bytes()[*at] != guess.as_bytes()[*at])
        {
            if let Some(found) = rest.iter().position(|other| *other == Some(letter)) {
                (rest[found], marks[at]) = (None, "Y");
            }
        }
        marks.join(" ")
    }

    proptest! {
        #[test]
        fn equals_the_rule_by_hand(guess in "[a-d]{5}", secret in "[a-d]{5}") {
            let (marks, tally) = feedback(guess.as_bytes(), secret.as_bytes());
            prop_assert_eq!(&marks, &by_hand(&guess, &secret));
            prop_assert_eq!((tally.right, tally.elsewhere), (marks.matches('G').count(), marks.matches('Y').count()));
        }
    }
}
