//! Fractions of two 128-bit integers. Owns their arithmetic and their text; must not know how text is read.

use std::fmt;

/// Most places of [`Rational::decimal`].
const PLACES: u32 = 30;

/// An exact fraction in lowest terms. Operations give `None` where a part would not fit into 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rational {
    num: i128,
    /// Positive.
    den: i128,
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Rational {
    /// `num / den`; `None` when `den` is 0.
    pub fn new(num: i128, den: i128) -> Option<Self> {
        if den == 0 {
            return None;
        }
        let shared = i128::try_from(gcd(num.unsigned_abs(), den.unsigned_abs())).ok()?;
        let (num, den) = (num / shared, den / shared);
        if den < 0 {
            Some(Rational { num: num.checked_neg()?, den: den.checked_neg()? })
        } else {
            Some(Rational { num, den })
        }
    }

    /// The numerator in lowest terms; it carries the sign.
    pub fn numerator(self) -> i128 {
        self.num
    }

    /// The denominator in lowest terms, positive.
    pub fn denominator(self) -> i128 {
        self.den
    }

    /// Whether it is whole.
    pub fn is_integer(self) -> bool {
        self.den == 1
    }

    /// The sum.
    pub fn plus(self, other: Self) -> Option<Self> {
        let left = self.num.checked_mul(other.den)?;
        Rational::new(left.checked_add(other.num.checked_mul(self.den)?)?, self.den.checked_mul(other.den)?)
    }

    /// The difference.
    pub fn minus(self, other: Self) -> Option<Self> {
        self.plus(other.negated()?)
    }

    /// The product.
    pub fn times(self, other: Self) -> Option<Self> {
        // Reduced crosswise first, so that it fits whenever the result does.
        let (left, right) = (Rational::new(self.num, other.den)?, Rational::new(other.num, self.den)?);
        Rational::new(left.num.checked_mul(right.num)?, left.den.checked_mul(right.den)?)
    }

    /// The quotient; also `None` when `other` is 0.
    pub fn over(self, other: Self) -> Option<Self> {
        self.times(Rational::new(other.den, other.num)?)
    }

    /// The negative.
    pub fn negated(self) -> Option<Self> {
        Some(Rational { num: self.num.checked_neg()?, den: self.den })
    }

    /// This to a whole power; `None` for 0 to a negative one.
    pub fn pow(self, exponent: i32) -> Option<Self> {
        let (num, den) =
            (self.num.checked_pow(exponent.unsigned_abs())?, self.den.checked_pow(exponent.unsigned_abs())?);
        if exponent < 0 { Rational::new(den, num) } else { Rational::new(num, den) }
    }

    /// Rounded to so many places, halves away from zero.
    pub fn rounded(self, places: u32) -> Option<Self> {
        let scale = 10i128.checked_pow(places)?;
        let scaled = self.times(Rational::new(scale, 1)?)?;
        let (whole, rest) = (scaled.num / scaled.den, (scaled.num % scaled.den).unsigned_abs());
        let up = rest >= scaled.den.unsigned_abs() - rest;
        Rational::new(if up { whole.checked_add(self.num.signum())? } else { whole }, scale)
    }

    /// The nearest float.
    pub fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }

    /// As a decimal, such as `-0.25`, when that ends (within 30 places).
    pub fn decimal(self) -> Option<String> {
        let (mut rest, mut twos, mut fives) = (self.den, 0, 0);
        while rest % 2 == 0 {
            (rest, twos) = (rest / 2, twos + 1);
        }
        while rest % 5 == 0 {
            (rest, fives) = (rest / 5, fives + 1);
        }
        let places = twos.max(fives);
        if rest != 1 || places > PLACES {
            return None;
        }
        let scale = 10i128.checked_pow(places)? / self.den;
        let digits = self.num.checked_mul(scale)?.unsigned_abs().to_string();
        let sign = if self.num < 0 { "-" } else { "" };
        if places == 0 {
            return Some(format!("{sign}{digits}"));
        }
        let places = places as usize;
        let digits = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        Some(format!("{sign}{whole}.{fraction}"))
    }
}

impl From<i64> for Rational {
    fn from(value: i64) -> Self {
        Rational { num: value.into(), den: 1 }
    }
}

/// As a decimal where that ends, else as `numerator/denominator`.
impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decimal() {
            Some(text) => f.write_str(&text),
            None => write!(f, "{}/{}", self.num, self.den),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(num: i128, den: i128) -> Rational {
        Rational::new(num, den).unwrap()
    }

    #[test]
    fn arithmetic_is_exact_and_checked() {
        assert_eq!(q(1, 3).plus(q(1, 6)), Some(q(1, 2)));
        assert_eq!(q(1, 3).minus(q(1, 2)), Some(q(-1, 6)));
        assert_eq!(q(-2, 3).times(q(3, 4)), Some(q(1, -2)));
        assert_eq!(q(2, 3).over(q(-4, 3)), Some(q(-1, 2)));
        assert_eq!((q(2, 3).over(q(0, 5)), Rational::new(1, 0)), (None, None));
        assert_eq!((q(-2, 3).pow(3), q(2, 3).pow(-2), q(0, 1).pow(-1)), (Some(q(-8, 27)), Some(q(9, 4)), None));
        let large = q(i128::MAX, 1);
        assert_eq!((large.plus(q(1, 1)), large.times(q(2, 1)), q(2, 1).pow(127)), (None, None, None));
        assert_eq!(large.times(q(3, i128::MAX)), Some(q(3, 1)));
        assert_eq!((Rational::new(i128::MIN, -1), Rational::new(i128::MIN, i128::MIN)), (None, None));
        assert_eq!(q(7, 8).to_f64(), 0.875);
        assert_eq!(
            (q(2, 3).rounded(3), q(-1, 8).rounded(2), q(5, 1).rounded(6)),
            (Some(q(667, 1000)), Some(q(-13, 100)), Some(q(5, 1)))
        );
        assert_eq!(
            (q(1, 3).rounded(0), q(1, 2).rounded(0), q(i128::MAX, 1).rounded(1)),
            (Some(q(0, 1)), Some(q(1, 1)), None)
        );
    }

    #[test]
    fn text_is_decimal_where_that_ends() {
        for (value, text) in [
            (q(0, 7), "0"),
            (q(-12, 4), "-3"),
            (q(1, 8), "0.125"),
            (q(-1, 400), "-0.0025"),
            (q(100, 3), "100/3"),
            (q(1234567, 100), "12345.67"),
        ] {
            assert_eq!(value.to_string(), text);
        }
        assert_eq!(q(1, 1 << 40).decimal(), None);
    }
}
