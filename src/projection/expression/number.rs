//! Exact arithmetic: whole numbers of 64 bits stay whole, everything else is a decimal; a double stays apart.

use std::cmp::Ordering;
use std::str::FromStr;

use bigdecimal::{BigDecimal, ToPrimitive};

use super::Failure;
use crate::projection::Value;

/// The most digits of a decimal, before and after the point, that an expression computes with.
const MAX_DIGITS: u64 = 2_000;

/// A number in an expression.
#[derive(Debug, Clone)]
pub(super) enum Number {
    /// An `int` of CEL.
    Whole(i64),
    /// A decimal.
    Exact(Exact),
    /// A double, which the event has as such.
    Float(f64),
}

/// A decimal within [`MAX_DIGITS`].
#[derive(Debug, Clone)]
pub(super) struct Exact(BigDecimal);

impl Exact {
    /// Reads decimal notation, with or without an exponent.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() as u64 > MAX_DIGITS + 32 {
            return None;
        }
        BigDecimal::from_str(text).ok().and_then(Self::bounded)
    }

    fn bounded(number: BigDecimal) -> Option<Self> {
        let scale = number.fractional_digit_count().unsigned_abs();
        (number.digits() <= MAX_DIGITS && scale <= MAX_DIGITS).then_some(Self(number))
    }

    pub(super) fn into_value(self) -> Value {
        Value::Decimal(self.0)
    }
}

fn too_long() -> Failure {
    Failure::expression(format!("a number with more than {MAX_DIGITS} digits"))
}

fn overflow(operator: &str) -> Failure {
    Failure::expression(format!("`{operator}` leaves the range of 64 bits"))
}

impl Number {
    /// The number of a value; `None` where it is no number.
    pub(super) fn read(value: &Value) -> Result<Option<Self>, Failure> {
        Ok(Some(match value {
            Value::Int(number) => Self::Whole(*number),
            Value::Number(text) => Self::Exact(Exact::parse(text).ok_or_else(too_long)?),
            Value::Decimal(number) => Self::Exact(Exact::bounded(number.clone()).ok_or_else(too_long)?),
            Value::Double(number) => Self::Float(*number),
            _ => return Ok(None),
        }))
    }

    /// The value of this number.
    pub(super) fn into_value(self) -> Value {
        match self {
            Self::Whole(number) => Value::Int(number),
            Self::Exact(number) => number.into_value(),
            Self::Float(number) => Value::Double(number),
        }
    }

    /// The number as a decimal; `None` where it is not finite or has too many digits.
    pub(super) fn exact(&self) -> Option<Exact> {
        match self {
            Self::Whole(number) => Some(Exact(BigDecimal::from(*number))),
            Self::Exact(number) => Some(number.clone()),
            Self::Float(number) => BigDecimal::try_from(*number).ok().and_then(Exact::bounded),
        }
    }

    /// Without its fraction, where it fits 64 bits.
    pub(super) fn truncated(&self) -> Option<i64> {
        match self {
            Self::Whole(number) => Some(*number),
            Self::Exact(number) => number.0.to_i64(),
            Self::Float(_) => self.exact()?.0.to_i64(),
        }
    }

    /// The nearest double, for the explicit conversion only.
    pub(super) fn nearest_double(&self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "the conversion was asked for")]
            Self::Whole(number) => *number as f64,
            Self::Exact(number) => number.0.to_string().parse().unwrap_or(f64::NAN),
            Self::Float(number) => *number,
        }
    }

    pub(super) fn add(self, other: Self) -> Result<Self, Failure> {
        self.with(other, "+", i64::checked_add, |a, b| a + b, |a, b| a + b)
    }

    pub(super) fn subtract(self, other: Self) -> Result<Self, Failure> {
        self.with(other, "-", i64::checked_sub, |a, b| a - b, |a, b| a - b)
    }

    pub(super) fn multiply(self, other: Self) -> Result<Self, Failure> {
        self.with(other, "*", i64::checked_mul, |a, b| a * b, |a, b| a * b)
    }

    /// Of whole numbers without the fraction, as in CEL; of doubles; never of decimals, which have no exact quotient.
    pub(super) fn divide(self, other: Self) -> Result<Self, Failure> {
        match (self, other) {
            (Self::Whole(_), Self::Whole(0)) => Err(Failure::expression("division by zero")),
            (Self::Whole(a), Self::Whole(b)) => {
                a.checked_div(b).map(Self::Whole).ok_or_else(|| overflow("/"))
            }
            (Self::Float(a), Self::Float(b)) => Ok(Self::Float(a / b)),
            (Self::Float(_), _) | (_, Self::Float(_)) => Err(mixed("/")),
            _ => Err(Failure::expression(
                "`/` of a decimal has no exact result; divide whole numbers, or divide in a view",
            )),
        }
    }

    pub(super) fn remainder(self, other: Self) -> Result<Self, Failure> {
        match (self, other) {
            (Self::Whole(_), Self::Whole(0)) => Err(Failure::expression("remainder of a division by zero")),
            (Self::Whole(a), Self::Whole(b)) => {
                a.checked_rem(b).map(Self::Whole).ok_or_else(|| overflow("%"))
            }
            _ => Err(Failure::expression("`%` needs two integers")),
        }
    }

    pub(super) fn negate(self) -> Result<Self, Failure> {
        match self {
            Self::Whole(number) => number.checked_neg().map(Self::Whole).ok_or_else(|| overflow("-")),
            Self::Exact(number) => Ok(Self::Exact(Exact(-number.0))),
            Self::Float(number) => Ok(Self::Float(-number)),
        }
    }

    /// The order of two numbers by their exact values; `None` beside a double that is no number.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(b),
            (Self::Float(a), _) if !a.is_finite() => a.partial_cmp(&0.0),
            (_, Self::Float(b)) if !b.is_finite() => 0.0.partial_cmp(b),
            _ => Some(self.exact()?.0.cmp(&other.exact()?.0)),
        }
    }

    fn with(
        self,
        other: Self,
        operator: &str,
        whole: impl Fn(i64, i64) -> Option<i64>,
        exact: impl Fn(BigDecimal, BigDecimal) -> BigDecimal,
        float: impl Fn(f64, f64) -> f64,
    ) -> Result<Self, Failure> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => {
                whole(a, b).map(Self::Whole).ok_or_else(|| overflow(operator))
            }
            (Self::Float(a), Self::Float(b)) => Ok(Self::Float(float(a, b))),
            (Self::Float(_), _) | (_, Self::Float(_)) => Err(mixed(operator)),
            (a, b) => {
                let (a, b) = (a.exact().ok_or_else(too_long)?, b.exact().ok_or_else(too_long)?);
                Exact::bounded(exact(a.0, b.0)).map(Self::Exact).ok_or_else(too_long)
            }
        }
    }
}

fn mixed(operator: &str) -> Failure {
    Failure::expression(format!(
        "`{operator}` of a double and an exact number; convert one of them: double(…) or int(…)"
    ))
}
