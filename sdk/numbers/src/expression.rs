//! Evaluates arithmetic expressions exactly. Owns their grammar and limits; must not know what they are for.
//!
//! ```text
//! sum     = product (("+" | "-") product)*
//! product = signed (("*" | "×" | "·" | "/" | "÷" | ":") signed)*
//! signed  = ("+" | "-")* power
//! power   = item ("^" signed)?          calculator only; also written "**"; the exponent is a whole number
//! item    = number "%"? | "(" sum ")"   the percent sign: calculator only
//! ```
//! `[…]` are brackets like `(…)`; LaTeX's `\times`, `\cdot`, `\div`, `\left`, `\right` and `\frac{a}{b}` are understood.

use crate::Rational;
use std::fmt;

/// Longest text, in bytes.
const LENGTH: usize = 4096;
/// Deepest nesting.
const DEPTH: usize = 64;
/// Largest exponent.
const EXPONENT: i128 = 1000;

/// What an expression may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The four operations and brackets.
    Basic,
    /// Powers, percent signs and thousands separators too.
    Calculator,
}

/// An expression's value and what it was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    /// What it comes to.
    pub value: Rational,
    /// The numbers that stand in it, in order.
    pub literals: Vec<Rational>,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing there.
    Empty,
    /// Longer than 4,096 bytes, or nested more than 64 deep.
    TooLong,
    /// Something that has no place there.
    Unexpected(char),
    /// It ends too early.
    Unfinished,
    /// A division by zero.
    DivisionByZero,
    /// A number or result with more than 128 bits, or an exponent that is not whole or beyond 1000.
    TooLarge,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Empty => f.write_str("the expression is empty"),
            Fault::TooLong => f.write_str("the expression is too long"),
            Fault::Unexpected(what) => write!(f, "unexpected {what:?} in the expression"),
            Fault::Unfinished => f.write_str("the expression ends too early"),
            Fault::DivisionByZero => f.write_str("division by zero"),
            Fault::TooLarge => f.write_str("a number is too large"),
        }
    }
}

impl std::error::Error for Fault {}

/// The value of `text`.
///
/// # Errors
/// The first [`Fault`].
pub fn evaluate(text: &str, dialect: Dialect) -> Result<Expression, Fault> {
    if text.len() > LENGTH {
        return Err(Fault::TooLong);
    }
    let mut plain = text.to_owned();
    for (long, short) in [
        ("\\times", "*"),
        ("\\cdot", "*"),
        ("\\div", "/"),
        ("\\left", ""),
        ("\\right", ""),
        ("\\dfrac", "\\frac"),
        ("**", "^"),
        ("×", "*"),
        ("·", "*"),
        ("÷", "/"),
        (":", "/"),
        ("\u{2212}", "-"),
        ("[", "("),
        ("]", ")"),
    ] {
        plain = plain.replace(long, short);
    }
    let mut parser = Parser { rest: plain.trim_start(), dialect, depth: 0, literals: Vec::new() };
    if parser.rest.is_empty() {
        return Err(Fault::Empty);
    }
    let value = parser.sum()?;
    match parser.peek() {
        None => Ok(Expression { value, literals: parser.literals }),
        Some(what) => Err(Fault::Unexpected(what)),
    }
}

struct Parser<'a> {
    /// Never starts with white space.
    rest: &'a str,
    dialect: Dialect,
    depth: usize,
    literals: Vec<Rational>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default().trim_start();
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.rest.starts_with(wanted);
        if found {
            self.skip(wanted.len_utf8());
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), Fault> {
        if self.take(wanted) { Ok(()) } else { Err(self.peek().map_or(Fault::Unfinished, Fault::Unexpected)) }
    }

    fn nested<T>(&mut self, part: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(Fault::TooLong);
        }
        let result = part(self);
        self.depth -= 1;
        result
    }

    fn sum(&mut self) -> Result<Rational, Fault> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value = value.plus(self.product()?).ok_or(Fault::TooLarge)?;
            } else if self.take('-') {
                value = value.minus(self.product()?).ok_or(Fault::TooLarge)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<Rational, Fault> {
        let mut value = self.signed()?;
        loop {
            if self.take('*') {
                value = value.times(self.signed()?).ok_or(Fault::TooLarge)?;
            } else if self.take('/') {
                value = divide(value, self.signed()?)?;
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Result<Rational, Fault> {
        let mut negative = false;
        loop {
            if self.take('-') {
                negative = !negative;
            } else if !self.take('+') {
                break;
            }
        }
        let value = self.power()?;
        if negative { value.negated().ok_or(Fault::TooLarge) } else { Ok(value) }
    }

    fn power(&mut self) -> Result<Rational, Fault> {
        let base = self.item()?;
        if self.dialect != Dialect::Calculator || !self.take('^') {
            return Ok(base);
        }
        let exponent = self.nested(Self::signed)?;
        if !exponent.is_integer() || exponent.numerator().abs() > EXPONENT {
            return Err(Fault::TooLarge);
        }
        if base.numerator() == 0 && exponent.numerator() < 0 {
            return Err(Fault::DivisionByZero);
        }
        base.pow(exponent.numerator() as i32).ok_or(Fault::TooLarge)
    }

    fn item(&mut self) -> Result<Rational, Fault> {
        if self.take('(') {
            let value = self.nested(Self::sum)?;
            self.expect(')')?;
            return Ok(value);
        }
        if self.rest.starts_with("\\frac") {
            self.skip("\\frac".len());
            let mut part = || {
                self.expect('{')?;
                let value = self.nested(Self::sum)?;
                self.expect('}').map(|()| value)
            };
            let (above, below) = (part()?, part()?);
            return divide(above, below);
        }
        let value = self.literal()?;
        self.literals.push(value);
        if self.dialect == Dialect::Calculator && self.take('%') {
            return value.over(Rational::from(100)).ok_or(Fault::TooLarge);
        }
        Ok(value)
    }

    fn literal(&mut self) -> Result<Rational, Fault> {
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let mut end = digits(self.rest);
        let mut text = self.rest[..end].to_owned();
        if self.dialect == Dialect::Calculator && (1..=3).contains(&end) {
            while self.rest[end..].starts_with(',') && digits(&self.rest[end + 1..]) == 3 {
                text.push_str(&self.rest[end + 1..end + 4]);
                end += 4;
            }
        }
        let mut places = 0;
        if self.rest[end..].starts_with('.') {
            places = digits(&self.rest[end + 1..]);
            text.push_str(&self.rest[end + 1..end + 1 + places]);
            end += 1 + places;
        }
        if text.is_empty() {
            return Err(self.peek().map_or(Fault::Unfinished, Fault::Unexpected));
        }
        self.skip(end);
        let value = text.parse::<i128>().map_err(|_| Fault::TooLarge)?;
        let scale = u32::try_from(places).ok().and_then(|places| 10i128.checked_pow(places));
        scale.and_then(|scale| Rational::new(value, scale)).ok_or(Fault::TooLarge)
    }
}

fn divide(above: Rational, below: Rational) -> Result<Rational, Fault> {
    if below.numerator() == 0 {
        return Err(Fault::DivisionByZero);
    }
    above.over(below).ok_or(Fault::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn basic(text: &str) -> String {
        evaluate(text, Dialect::Basic).map_or_else(|fault| fault.to_string(), |found| found.value.to_string())
    }

    fn calculator(text: &str) -> String {
        evaluate(text, Dialect::Calculator).map_or_else(|fault| fault.to_string(), |found| found.value.to_string())
    }

    #[test]
    fn expressions_are_evaluated_exactly() {
        for (text, value) in [
            ("1 + 2 * 3", "7"),
            ("(1 + 2) * 3", "9"),
            ("8 / 3 * 3", "8"),
            ("10 - 3 - 2", "5"),
            ("--5 - -5", "10"),
            ("[2 × 3] ÷ 4", "1.5"),
            ("\\left(6 - 2\\right) \\times \\frac{1}{2} \\div 4", "0.5"),
            ("0.1 + 0.2", "0.3"),
            ("1 / 3", "1/3"),
            ("2 \u{2212} 3 : 1", "-1"),
            ("", "the expression is empty"),
            (" ", "the expression is empty"),
            ("1 +", "the expression ends too early"),
            ("(1", "the expression ends too early"),
            ("1 2", "unexpected '2' in the expression"),
            ("2(3)", "unexpected '(' in the expression"),
            ("1 + x", "unexpected 'x' in the expression"),
            ("é", "unexpected 'é' in the expression"),
            (".", "unexpected '.' in the expression"),
            ("1 / (2 - 2)", "division by zero"),
            ("2 ^ 3", "unexpected '^' in the expression"),
            ("5%", "unexpected '%' in the expression"),
            ("170141183460469231731687303715884105728", "a number is too large"),
            ("99999999999999999999 * 99999999999999999999", "a number is too large"),
        ] {
            assert_eq!(basic(text), value, "{text}");
        }
        for (text, value) in [
            ("2 ** 3 ^ 2", "512"),
            ("-2 ^ 2", "-4"),
            ("2 ^ -2", "0.25"),
            ("0 ^ -1", "division by zero"),
            ("2 ^ 0.5", "a number is too large"),
            ("2 ^ 1001", "a number is too large"),
            ("1,250.5 * 20%", "250.1"),
            ("1,25", "unexpected ',' in the expression"),
        ] {
            assert_eq!(calculator(text), value, "{text}");
        }
    }

    #[test]
    fn literals_are_told_in_order() {
        let found = evaluate("(25 - 5) * 2.50", Dialect::Basic).unwrap();
        assert_eq!(found.literals.iter().map(Rational::to_string).collect::<Vec<_>>(), ["25", "5", "2.5"]);
    }

    #[test]
    fn hostile_expressions_are_faults() {
        for text in ["(".repeat(4000), "-(".repeat(2000), "2^".repeat(2000), "\\frac{".repeat(600)] {
            assert_eq!(calculator(&text), "the expression is too long");
        }
        assert_eq!(basic(&"1".repeat(1_000_000)), "the expression is too long");
        assert_eq!(basic(&"1".repeat(4096)), "a number is too large");
        assert_eq!(basic(&format!("1{}", "+1".repeat(2000))), "2001");
        assert_eq!(basic(&format!("{}1", "-".repeat(4000))), "1");
    }

    proptest! {
        #[test]
        fn any_text_has_a_value_or_a_fault(text in any::<String>()) {
            calculator(&text);
        }

        #[test]
        fn any_pieces_have_a_value_or_a_fault(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "1", "23", "4.5", ".", ",000", "+", "-", "*", "/", "^", "(", ")", "%", " ", "\\frac{1}{2}", "{", "é", "9999999999",
        ]), 0..30)) {
            calculator(&pieces.concat());
        }
    }
}
