//! Operators of two values: equality, order and arithmetic.

use std::cmp::Ordering;

use super::budget::Budget;
use super::machine::Term;
use super::number::Number;
use super::{Failure, with_article};
use crate::projection::Value;

/// Equality as in CEL: values of different kinds are not equal, numbers are equal by value.
pub(super) fn equal_values(a: &Value, b: &Value, budget: &mut Budget) -> Result<bool, Failure> {
    budget.steps(1)?;
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            budget.text(if a.len() == b.len() { a.len() } else { 0 })?;
            Ok(a == b)
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.text(if a.len() == b.len() { a.len() } else { 0 })?;
            Ok(a == b)
        }
        (Value::Int(a), Value::Int(b)) => Ok(a == b),
        (Value::List(a), Value::List(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (a, b) in a.iter().zip(b) {
                if !equal_values(a, b, budget)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Record(fields), Value::Record(others)) => {
            if fields.len() != others.len() {
                return Ok(false);
            }
            for (name, field) in fields {
                budget.steps(others.len())?;
                match b.field(name) {
                    Some(other) if equal_values(field, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        // An Avro uuid beside its text, which no two spellings but case can differ in.
        (Value::Uuid(uuid), Value::Text(text)) | (Value::Text(text), Value::Uuid(uuid)) => {
            Ok(uuid::Uuid::try_parse(text).is_ok_and(|parsed| parsed.as_bytes() == uuid))
        }
        _ => match (Number::read(a)?, Number::read(b)?) {
            (Some(a), Some(b)) => Ok(a.compare(&b) == Some(Ordering::Equal)),
            _ => Ok(a == b),
        },
    }
}

pub(super) fn compare(operator: &str, a: &Term<'_>, b: &Term<'_>) -> Result<Ordering, Failure> {
    if let (Term::Duration(a), Term::Duration(b)) = (a, b) {
        return Ok(a.cmp(b));
    }
    let (a, b) = (a.value()?, b.value()?);
    match (a, b) {
        (Value::Text(a), Value::Text(b)) => Ok(a.as_bytes().cmp(b.as_bytes())),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::Date(a), Value::Date(b)) => Ok(a.cmp(b)),
        (Value::Time(a), Value::Time(b))
        | (Value::Timestamp(a), Value::Timestamp(b))
        | (Value::TimestampTz(a), Value::TimestampTz(b))
        | (Value::Int(a), Value::Int(b)) => Ok(a.cmp(b)),
        _ => match (Number::read(a)?, Number::read(b)?) {
            (Some(x), Some(y)) => x
                .compare(&y)
                .ok_or_else(|| Failure::expression(format!("`{operator}` of a double that is not a number"))),
            _ => Err(mismatch(operator, a, b)),
        },
    }
}

pub(super) fn arithmetic<'a>(
    operator: &str,
    a: &Term<'a>,
    b: &Term<'a>,
    apply: impl FnOnce(Number, Number) -> Result<Number, Failure>,
) -> Result<Term<'a>, Failure> {
    let (a, b) = (a.value()?, b.value()?);
    match (Number::read(a)?, Number::read(b)?) {
        (Some(x), Some(y)) => apply(x, y).map(|number| Term::owned(number.into_value())),
        _ => Err(mismatch(operator, a, b)),
    }
}

pub(super) fn subtract<'a>(a: &Term<'a>, b: &Term<'a>) -> Result<Term<'a>, Failure> {
    match (a, b) {
        (Term::Duration(a), Term::Duration(b)) => {
            a.checked_sub(*b).map(Term::Duration).ok_or_else(|| overflow("-"))
        }
        (Term::Value(time), Term::Duration(span)) => shifted("-", time, i64::checked_sub, *span),
        _ => match (a.value()?, b.value()?) {
            (Value::TimestampTz(a), Value::TimestampTz(b)) | (Value::Timestamp(a), Value::Timestamp(b)) => {
                a.checked_sub(*b).map(Term::Duration).ok_or_else(|| overflow("-"))
            }
            _ => arithmetic("-", a, b, Number::subtract),
        },
    }
}

pub(super) fn shifted<'a>(
    operator: &str,
    time: &Value,
    apply: impl FnOnce(i64, i64) -> Option<i64>,
    span: i64,
) -> Result<Term<'a>, Failure> {
    let shifted = match time {
        Value::TimestampTz(micros) => apply(*micros, span).map(Value::TimestampTz),
        Value::Timestamp(micros) => apply(*micros, span).map(Value::Timestamp),
        other => return Err(wrong(operator, "a timestamp beside the duration", other)),
    };
    shifted.map(Term::owned).ok_or_else(|| overflow(operator))
}

pub(super) fn overflow(operator: &str) -> Failure {
    Failure::expression(format!("`{operator}` leaves the range of 64 bits"))
}

pub(super) fn wrong(operator: &str, needed: &str, value: &Value) -> Failure {
    Failure::expression(format!("`{operator}` needs {needed}, not {}", with_article(value)))
}

fn mismatch(operator: &str, a: &Value, b: &Value) -> Failure {
    Failure::expression(format!("`{operator}` of {} and {}", with_article(a), with_article(b)))
}
