//! Numbers as decimal digits: judged against a column's limits before anything is expanded.
//!
//! `1e999999999` is ten characters. Whether it fits is decided from the count of its digits and its exponent alone, so
//! that no record can make this program allocate more than a small multiple of its own size (promise P9).

use std::borrow::Cow;

use bigdecimal::num_bigint::{BigInt, Sign};
use bigdecimal::{BigDecimal, Zero};

/// Digits before the point that PostgreSQL's `numeric` holds at most.
pub(super) const MAX_WHOLE_DIGITS: i64 = 131_072;
/// Digits after the point that PostgreSQL's `numeric` holds at most.
pub(super) const MAX_SCALE: i64 = 16_383;
/// Bits of the largest unscaled number that can fit `numeric`: ten bits hold at least three digits.
const MAX_BITS: u64 = (131_072 + 16_383) * 10 / 3;

/// A decimal number: `significand` × 10^`exponent`, negative or not.
///
/// The significand has no zeros at either end; that of zero is empty. The exponent saturates far outside every limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Digits<'a> {
    negative: bool,
    significand: Cow<'a, str>,
    exponent: i64,
}

/// Why a number does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It has digits after the point that would be lost.
    Scale,
    /// It is too large.
    Range,
}

impl<'a> Digits<'a> {
    /// Reads a number in the grammar of JSON; `None` where the text is none.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, parse_exponent(exponent)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return None,
            None => (mantissa, ""),
        };
        if !is_digits(whole) || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let scale = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
        let digits = match (whole.trim_start_matches('0'), fraction) {
            (whole, "") => Cow::Borrowed(whole),
            ("", fraction) => Cow::Borrowed(fraction.trim_start_matches('0')),
            (whole, fraction) => Cow::Owned(format!("{whole}{fraction}")),
        };
        Some(Self { negative, significand: digits, exponent: exponent.saturating_sub(scale) }.trimmed())
    }

    /// The digits of a whole number of 64 bits.
    pub(super) fn of_integer(number: i64) -> Digits<'static> {
        let digits = Cow::Owned(number.unsigned_abs().to_string());
        Digits { negative: number < 0, significand: digits, exponent: 0 }.trimmed()
    }

    /// The digits of an exact decimal; `None` where it has more than any column could hold.
    pub(super) fn of_decimal(number: &BigDecimal) -> Option<Digits<'static>> {
        let (unscaled, scale) = number.as_bigint_and_scale();
        if unscaled.bits() > MAX_BITS {
            return None;
        }
        let digits = Cow::Owned(unscaled.magnitude().to_string());
        Some(
            Digits {
                negative: unscaled.sign() == Sign::Minus,
                significand: digits,
                exponent: scale.saturating_neg(),
            }
            .trimmed(),
        )
    }

    /// The shortest decimal that reads back as this double; `None` for NaN and the infinities.
    pub(super) fn of_double(number: f64) -> Option<Digits<'static>> {
        if !number.is_finite() {
            return None;
        }
        let text = format!("{number:e}");
        let Digits { negative, significand, exponent } = Digits::parse(&text)?;
        Some(Digits { negative, significand: Cow::Owned(significand.into_owned()), exponent })
    }

    fn trimmed(mut self) -> Self {
        let kept = self.significand.trim_end_matches('0').len();
        let cut = i64::try_from(self.significand.len() - kept).unwrap_or(i64::MAX);
        self.significand = match self.significand {
            Cow::Borrowed(digits) => Cow::Borrowed(digits[..kept].trim_start_matches('0')),
            Cow::Owned(mut digits) => {
                digits.truncate(kept);
                let zeros = digits.len() - digits.trim_start_matches('0').len();
                digits.drain(..zeros);
                Cow::Owned(digits)
            }
        };
        self.exponent = if self.significand.is_empty() { 0 } else { self.exponent.saturating_add(cut) };
        self
    }

    /// Digits that count, from the first that is not 0 to the last.
    pub(super) fn significant(&self) -> usize {
        self.significand.len()
    }

    /// Digits before the point; not positive for a number below 0.1 in size.
    fn whole_digits(&self) -> i64 {
        i64::try_from(self.significand.len()).unwrap_or(i64::MAX).saturating_add(self.exponent)
    }

    /// Whether nothing follows the point.
    pub(super) const fn is_whole(&self) -> bool {
        self.exponent >= 0
    }

    /// The number as a whole one within `min..=max`.
    pub(super) fn integer(&self, min: i64, max: i64) -> Result<i64, Unfit> {
        if !self.is_whole() {
            return Err(Unfit::Scale);
        }
        if self.whole_digits() > 19 {
            return Err(Unfit::Range);
        }
        let unsigned = self.significand.bytes().map(|digit| i128::from(digit - b'0'));
        let unsigned = unsigned.chain((0..self.exponent).map(|_| 0)).fold(0, |sum, digit| sum * 10 + digit);
        let number = if self.negative { -unsigned } else { unsigned };
        i64::try_from(number).ok().filter(|number| (min..=max).contains(number)).ok_or(Unfit::Range)
    }

    /// Whether the number fits `numeric(precision, scale)`, or plain `numeric`, digit by digit.
    pub(super) fn fits_numeric(&self, precision_scale: Option<(u32, i32)>) -> Result<(), Unfit> {
        let (whole, scale) = numeric_limits(precision_scale);
        if self.significand.is_empty() {
            Ok(())
        } else if self.whole_digits() > whole {
            Err(Unfit::Range)
        } else if self.exponent.saturating_neg() > scale {
            Err(Unfit::Scale)
        } else {
            Ok(())
        }
    }

    /// The number, normalised. To be asked only for what [`Digits::fits_numeric`].
    pub(super) fn numeric(&self) -> BigDecimal {
        match BigInt::parse_bytes(self.significand.as_bytes(), 10) {
            Some(unscaled) => {
                let unscaled = if self.negative { -unscaled } else { unscaled };
                BigDecimal::new(unscaled, self.exponent.saturating_neg())
            }
            None => BigDecimal::zero(),
        }
    }

    /// The nearest double. Digits beyond its precision are lost.
    pub(super) fn nearest_double(&self) -> Result<f64, Unfit> {
        self.nearest(f64::is_finite, |number| *number == 0.0)
    }

    /// The nearest float of four bytes. Digits beyond its precision are lost.
    pub(super) fn nearest_single(&self) -> Result<f32, Unfit> {
        self.nearest(|number: f32| number.is_finite(), |number| *number == 0.0)
    }

    fn nearest<F: std::str::FromStr + Copy>(
        &self,
        is_finite: impl Fn(F) -> bool,
        is_zero: impl Fn(&F) -> bool,
    ) -> Result<F, Unfit> {
        let sign = if self.negative { "-" } else { "" };
        let digits = if self.significand.is_empty() { "0" } else { &self.significand };
        let exponent = self.exponent.clamp(-100_000_000, 100_000_000);
        let number = format!("{sign}{digits}e{exponent}").parse::<F>().map_err(|_| Unfit::Range)?;
        let lost = is_zero(&number) && !self.significand.is_empty();
        if is_finite(number) && !lost { Ok(number) } else { Err(Unfit::Range) }
    }
}

/// Digits before and after the point that a numeric column holds at most.
fn numeric_limits(precision_scale: Option<(u32, i32)>) -> (i64, i64) {
    match precision_scale {
        Some((precision, scale)) => (i64::from(precision) - i64::from(scale), i64::from(scale)),
        None => (MAX_WHOLE_DIGITS, MAX_SCALE),
    }
}

/// Whether a normalised number fits a numeric column.
pub(super) fn sum_fits_numeric(number: &BigDecimal, precision_scale: Option<(u32, i32)>) -> bool {
    let (whole, scale) = numeric_limits(precision_scale);
    let after = number.fractional_digit_count();
    let digits = i64::try_from(number.digits()).unwrap_or(i64::MAX);
    number.is_zero() || (digits.saturating_sub(after) <= whole && after <= scale)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An exponent; one beyond 64 bits is as good as the largest.
fn parse_exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if !is_digits(digits) {
        return None;
    }
    // Far beyond every limit, and far from overflow when digits are counted in.
    let exponent = digits.parse::<i64>().unwrap_or(i64::MAX).min(i64::MAX / 4);
    Some(if negative { -exponent } else { exponent })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn digits(text: &str) -> Digits<'_> {
        Digits::parse(text).expect("a number")
    }

    #[test]
    fn the_same_number_has_the_same_digits_however_it_is_written() {
        for text in ["1000", "1e3", "1E+3", "1.0e3", "10.00e2", "1000.000", "0.1e4", "0.0010e6"] {
            assert_eq!(digits(text), digits("1000"), "{text}");
        }
        for text in ["0", "-0", "0.000", "0e999999999999999999999999"] {
            assert_eq!(digits(text).significant(), 0, "{text}");
        }
    }

    #[test]
    fn what_json_does_not_call_a_number_is_none() {
        for text in [
            "", "-", "+1", "01", ".5", "1.", "1e", "1e+", "0x1F", "1_000", " 1", "NaN", "1.5.2", "1e1e1", "١",
        ] {
            assert_eq!(Digits::parse(text), None, "{text}");
        }
    }

    #[test]
    fn integers_are_exact_at_their_limits() {
        assert_eq!(digits("9223372036854775807").integer(i64::MIN, i64::MAX), Ok(i64::MAX));
        assert_eq!(digits("-9223372036854775808").integer(i64::MIN, i64::MAX), Ok(i64::MIN));
        assert_eq!(digits("9223372036854775808").integer(i64::MIN, i64::MAX), Err(Unfit::Range));
        assert_eq!(digits("1e3").integer(-32768, 32767), Ok(1000));
        assert_eq!(digits("1.5").integer(i64::MIN, i64::MAX), Err(Unfit::Scale));
        assert_eq!(digits("0.0").integer(0, 0), Ok(0));
    }

    #[test]
    fn an_enormous_exponent_is_judged_without_expanding_it() {
        for text in ["1e999999999", "1e99999999999999999999999999", "123456e2147483648"] {
            assert_eq!(digits(text).fits_numeric(None), Err(Unfit::Range), "{text}");
            assert_eq!(digits(text).integer(i64::MIN, i64::MAX), Err(Unfit::Range), "{text}");
            assert_eq!(digits(text).nearest_double(), Err(Unfit::Range), "{text}");
        }
        for text in ["1e-999999999", "1.5e-99999999999999999999999999"] {
            assert_eq!(digits(text).fits_numeric(None), Err(Unfit::Scale), "{text}");
            assert_eq!(digits(text).integer(i64::MIN, i64::MAX), Err(Unfit::Scale), "{text}");
            assert_eq!(digits(text).nearest_double(), Err(Unfit::Range), "{text}");
        }
        assert_eq!(Digits::of_decimal(&BigDecimal::new(1.into(), -999_999_999)), Some(digits("1e999999999")));
    }

    #[test]
    fn plain_numeric_ends_where_postgresql_ends() {
        assert_eq!(digits("1e131071").fits_numeric(None), Ok(()));
        assert_eq!(digits("1e131072").fits_numeric(None), Err(Unfit::Range));
        assert_eq!(digits("1e-16383").fits_numeric(None), Ok(()));
        assert_eq!(digits("1e-16384").fits_numeric(None), Err(Unfit::Scale));
    }

    #[test]
    fn declared_precision_and_scale_are_kept_digit_by_digit() {
        let column = Some((10, 2));
        assert_eq!(digits("99999999.99").fits_numeric(column), Ok(()));
        assert_eq!(digits("99999999.9900").fits_numeric(column), Ok(()));
        assert_eq!(digits("100000000").fits_numeric(column), Err(Unfit::Range));
        assert_eq!(digits("1.005").fits_numeric(column), Err(Unfit::Scale));
        // PostgreSQL also knows scales below 0 and above the precision.
        assert_eq!(digits("12000").fits_numeric(Some((2, -3))), Ok(()));
        assert_eq!(digits("12500").fits_numeric(Some((2, -3))), Err(Unfit::Scale));
        assert_eq!(digits("0.00012").fits_numeric(Some((2, 5))), Ok(()));
        assert_eq!(digits("0.01").fits_numeric(Some((2, 5))), Err(Unfit::Range));
    }

    #[test]
    fn seventy_eight_digits_stay_exact() {
        let text = "123456789012345678901234567890123456789012345678901234567890123456789012345678";
        assert_eq!(digits(text).numeric().to_plain_string(), text);
    }

    proptest! {
        #[test]
        fn numbers_agree_with_the_decimal_library(
            unscaled in any::<i128>(), scale in -30_i64..30, negative_zero in any::<bool>()
        ) {
            let number = BigDecimal::new(BigInt::from(unscaled), scale);
            let text = format!("{}{}", if negative_zero && unscaled == 0 { "-" } else { "" }, number.to_plain_string());
            let read = Digits::parse(&text).expect("a number");
            prop_assert_eq!(read.numeric(), number.clone());
            prop_assert_eq!(read.fits_numeric(Some((30, 10))).is_ok(), sum_fits_numeric(&number.normalized(), Some((30, 10))));
            let again = Digits::of_decimal(&number).expect("few digits");
            prop_assert_eq!(again.numeric(), number);
        }

        #[test]
        fn doubles_come_back_from_their_shortest_decimal(number in any::<f64>()) {
            match Digits::of_double(number) {
                Some(digits) => prop_assert_eq!(digits.nearest_double(), Ok(number)),
                None => prop_assert!(!number.is_finite()),
            }
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eE]{0,12}|.{0,8}") {
            if let Some(digits) = Digits::parse(&text) {
                let fits = digits.fits_numeric(None);
                let _ = (digits.integer(i64::MIN, i64::MAX), digits.nearest_double(), digits.nearest_single());
                if fits.is_ok() {
                    prop_assert!(sum_fits_numeric(&digits.numeric(), None));
                }
            }
        }
    }
}
