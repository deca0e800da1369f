//! Reads numbers as people and models write them. Owns what counts as a number within a text; must not know where in a
//! completion the answer stands (that is `answer`).
//!
//! A number is digits with an optional point, sign, and any of
//! * thousands separators between groups of three: `,` `_` `'` or a narrow space (`1,234.5`);
//! * a currency sign, on either side of the sign (`-$5`, `$-5`, `£12.50`);
//! * an exponent (`2.5e3`), a fraction (`3/4`), a mixed number (`1 1/2`), LaTeX's `\frac{3}{4}`;
//! * a percent sign after it.
//!
//! A comma that separates no group of three ends the number, so `1,2` is two of them. A sign counts where no digit,
//! letter or closing bracket stands before it, so the last number of `10-3` is 3. Digits right after a letter are no
//! number (`x2`), nor is anything of more than 30 digits.

use crate::Rational;

/// Most digits of a number.
const DIGITS: usize = 30;

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Without regard to the percent sign.
    pub value: Rational,
    /// Whether a percent sign follows.
    pub percent: bool,
}

/// The last number of `text`.
pub fn last(text: &str) -> Option<Reading> {
    let text = plain(text);
    Numbers::of(&text).last()
}

/// The only number of `text`; `None` when there are none or several.
pub fn only(text: &str) -> Option<Reading> {
    let text = plain(text);
    let mut numbers = Numbers::of(&text);
    let first = numbers.next()?;
    numbers.next().is_none().then_some(first)
}

/// `text` in the characters that the rules are stated in.
fn plain(text: &str) -> String {
    let one = |c: char| match c {
        '\u{2212}' | '\u{ff0d}' => '-',
        '\u{ff0b}' => '+',
        '\u{2044}' | '\u{2215}' => '/',
        '\u{2019}' => '\'',
        // Spaces that typography puts between groups of digits.
        '\u{a0}' | '\u{2009}' | '\u{202f}' => '_',
        '０'..='９' => char::from(b'0' + (c as u32 - '０' as u32) as u8),
        other => other,
    };
    let mut plain: String = text.chars().map(one).collect();
    for (latex, short) in [
        ("\\$", "$"),
        ("\\%", "%"),
        ("{,}", ","),
        ("\\,", "_"),
        ("\\!", ""),
        ("\\dfrac", "\\frac"),
        ("\\tfrac", "\\frac"),
    ] {
        if plain.contains(latex) {
            plain = plain.replace(latex, short);
        }
    }
    plain
}

/// The numbers of a plain text, in order.
struct Numbers<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Numbers<'a> {
    fn of(text: &'a str) -> Self {
        Numbers { text: text.as_bytes(), at: 0 }
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    fn starts_with(&self, at: usize, words: &str) -> bool {
        self.text.get(at..).is_some_and(|rest| rest.starts_with(words.as_bytes()))
    }

    /// The end of the digits from `at` on.
    fn digits(&self, at: usize) -> usize {
        at + self.text.get(at..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
    }

    /// The end of whole digits with their separators from `at` on.
    fn grouped(&self, at: usize) -> usize {
        let mut end = self.digits(at);
        if end - at > 3 {
            return end;
        }
        let separator = self.byte(end);
        while matches!(separator, b',' | b'_' | b'\'') && self.byte(end) == separator && self.digits(end + 1) == end + 4
        {
            end += 4;
        }
        end
    }

    fn integer(&self, from: usize, to: usize) -> Option<i128> {
        let digits = self.text.get(from..to)?.iter().filter(|byte| byte.is_ascii_digit());
        let mut value = 0i128;
        for (i, digit) in digits.enumerate() {
            if i == DIGITS {
                return None;
            }
            value = value * 10 + i128::from(digit - b'0');
        }
        Some(value)
    }

    /// Whole digits and a fraction of them after `at`: `3/4`.
    fn fraction(&self, at: usize) -> Option<(Rational, usize)> {
        let slash = self.digits(at);
        let end = self.digits(slash + 1);
        if slash == at || self.byte(slash) != b'/' || end == slash + 1 {
            return None;
        }
        Some((Rational::new(self.integer(at, slash)?, self.integer(slash + 1, end)?)?, end))
    }

    /// `\frac{3}{4}` at `at`.
    fn latex(&self, at: usize) -> Option<(Rational, usize)> {
        let number = |at: usize| {
            let end = self.digits(at + 1);
            let whole = self.byte(at) == b'{' && self.byte(end) == b'}' && end > at + 1;
            whole.then_some((at + 1, end))
        };
        let (from, to) = number(at + "\\frac".len())?;
        let (from_den, to_den) = number(to + 1)?;
        Some((Rational::new(self.integer(from, to)?, self.integer(from_den, to_den)?)?, to_den + 1))
    }

    /// An unsigned number from `at` on: its value, if it has one, and where it ends; `None` when none starts there.
    fn unsigned(&self, at: usize) -> Option<(Option<Rational>, usize)> {
        if self.starts_with(at, "\\frac") {
            return self.latex(at).map(|(value, end)| (Some(value), end));
        }
        if let Some((value, end)) = self.fraction(at) {
            return Some((Some(value), end));
        }
        let whole = self.grouped(at);
        let mut end = whole;
        if self.byte(end) == b'.' && self.byte(end + 1).is_ascii_digit() {
            end = self.digits(end + 1);
        }
        if end == at {
            return None;
        }
        let places = end.saturating_sub(whole + 1);
        let mut value = if places <= DIGITS { self.integer(at, end) } else { None }
            .and_then(|digits| Rational::new(digits, 10i128.checked_pow(places as u32)?));
        if end == whole && whole > at {
            // A mixed number.
            let spaced = if self.byte(end) == b' ' { end + 1 } else { end };
            let fraction = if spaced > end || self.starts_with(end, "\\frac") { self.part(spaced) } else { None };
            if let Some((part, after)) = fraction.filter(|(part, _)| part.numerator() < part.denominator()) {
                return Some((value.and_then(|whole| whole.plus(part)), after));
            }
        }
        if matches!(self.byte(end), b'e' | b'E') {
            let signed = usize::from(matches!(self.byte(end + 1), b'+' | b'-'));
            let after = self.digits(end + 1 + signed);
            if after > end + 1 + signed {
                let exponent = self.integer(end + 1 + signed, after).and_then(|exponent| i32::try_from(exponent).ok());
                let exponent = exponent.filter(|exponent| *exponent <= DIGITS as i32);
                let exponent = exponent.map(|exponent| if self.byte(end + 1) == b'-' { -exponent } else { exponent });
                value = value.and_then(|value| value.times(Rational::from(10).pow(exponent?)?));
                end = after;
            }
        }
        Some((value, end))
    }

    /// The fraction of a mixed number.
    fn part(&self, at: usize) -> Option<(Rational, usize)> {
        if self.starts_with(at, "\\frac") { self.latex(at) } else { self.fraction(at) }
    }

    /// The end of the currency sign at `at`, which is `at` where there is none.
    fn currency(&self, at: usize) -> usize {
        let signs = ["$", "€", "£", "¥", "₹"];
        at + signs.iter().find(|sign| self.starts_with(at, sign)).map_or(0, |sign| sign.len())
    }

    /// A number with all that belongs to it at `at`.
    fn number(&self, at: usize) -> Option<(Option<Reading>, usize)> {
        let before = if at == 0 { b' ' } else { self.byte(at - 1) };
        let glued = before.is_ascii_alphanumeric() || before == b'_';
        let mut start = at;
        let mut negative = false;
        for _ in 0..2 {
            start = self.currency(start);
            if matches!(self.byte(start), b'-' | b'+') && start == at.max(self.currency(at)) {
                negative = self.byte(start) == b'-';
                start += 1;
            }
        }
        if negative && (glued || matches!(before, b')' | b']' | b'}')) || start == at && glued {
            return None;
        }
        let (value, mut end) = self.unsigned(start)?;
        let percent = self.byte(end) == b'%' || self.starts_with(end, " %");
        if percent {
            end += 1 + usize::from(self.byte(end) == b' ');
        }
        let value = value.and_then(|value| if negative { value.negated() } else { Some(value) });
        Some((value.map(|value| Reading { value, percent }), end))
    }
}

impl Iterator for Numbers<'_> {
    type Item = Reading;

    fn next(&mut self) -> Option<Reading> {
        while self.at < self.text.len() {
            match self.number(self.at) {
                Some((value, end)) => {
                    self.at = end;
                    if value.is_some() {
                        return value;
                    }
                }
                // What is glued to a letter is passed over as a whole.
                None => self.at = self.digits(self.at).max(self.at + 1),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<String> {
        let text = plain(text);
        Numbers::of(&text).map(|n| format!("{}{}", n.value, if n.percent { "%" } else { "" })).collect()
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (text, numbers) in [
            ("42", "42"),
            ("-7 and +8", "-7 8"),
            ("$1,234,567.50", "1234567.5"),
            ("-$5, $-6, - $7", "-5 -6 7"),
            ("£12.50 or 3 €", "12.5 3"),
            ("1_000 1'000 1\u{202f}000 1\\,000 1{,}000", "1000 1000 1000 1000 1000"),
            ("1,2,3", "1 2 3"),
            ("1,2345", "1 2345"),
            ("12,34", "12 34"),
            ("1234,567", "1234 567"),
            ("3/4 5/0 -1/2", "0.75 5 0 -0.5"),
            ("1 1/2 cups, 2 3/2", "1.5 2 1.5"),
            ("\\frac{3}{8} and 1\\dfrac{1}{2} \\frac{1}{x}", "0.375 1.5 1"),
            ("50% or 12.5 %", "50% 12.5%"),
            ("50\\% of \\$3", "50% 3"),
            ("2.5e3 1E-2 1e99 3e", "2500 0.01 3"),
            ("10-3 = 7, (4)-1, x-2", "10 3 7 4 1 2"),
            ("ends in 5.", "5"),
            (".5 and -.25", "0.5 -0.25"),
            ("x2 H2O _3", ""),
            ("7km 3rd", "7 3"),
            ("**12** #### 13", "12 13"),
            ("\u{2212}3 ４２", "-3 42"),
            ("", ""),
            ("no number at all, -, $, %, .", ""),
        ] {
            assert_eq!(all(text).join(" "), numbers, "{text}");
        }
        assert_eq!(all(&"9".repeat(31)), Vec::<String>::new());
        assert_eq!(all(&"9".repeat(30)).len(), 1);
    }

    #[test]
    fn last_and_only() {
        let value = |reading: Option<Reading>| reading.map(|reading| reading.value.to_string());
        assert_eq!(value(last("3 of 4 are 5 apples")), Some("5".into()));
        assert_eq!(value(only("5 apples")), Some("5".into()));
        assert_eq!((only("5 of 6"), only("five"), last("none")), (None, None, None));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in any::<String>()) {
            last(&text);
            only(&text);
        }

        #[test]
        fn pieces_of_numbers_are_read(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "1", "23", "456", ",", ".", "-", "$", "€", "%", "/", " ", "e", "\\frac", "{", "}", "_", "\u{a0}", "x", "0", "99999999999999999999",
        ]), 0..40)) {
            last(&pieces.concat());
        }

        #[test]
        fn a_decimal_reads_back(digits in -1_000_000_000i64..1_000_000_000, places in 0u32..7) {
            let value = Rational::new(digits.into(), 10i128.pow(places)).unwrap();
            let read = last(&format!("so it is {value}.")).unwrap();
            prop_assert_eq!(read, Reading { value, percent: false });
        }
    }
}
