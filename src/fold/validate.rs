//! VALIDATE: every value is checked against its column before folding. Whole changes are checked in [`super::row_change`].
//!
//! A value fits its column exactly or its record is a dead letter. What goes into which type:
//!
//! | column | takes |
//! |---|---|
//! | smallint, integer, bigint | whole numbers within the range, in any spelling (`1e3`), also whole doubles |
//! | numeric | numbers digit by digit; a double counts as its shortest decimal |
//! | real, double | numbers that are exactly such a float, or that are its shortest decimal, or that have a fraction and at most 9 (17) digits; not NaN, not the infinities |
//! | text, varchar(n) | text; numbers by the digits of the source, booleans, UUIDs and times in their canonical form; no lists and records; length in characters |
//! | boolean | booleans |
//! | bytes | bytes |
//! | uuid | UUIDs; text in a standard form of one |
//! | date, time, timestamp, timestamptz | the logical types of Avro of the same meaning; ISO 8601 text, with a zone for timestamptz and without one for the others; microseconds |
//! | json | every value but bytes, as JSON; null becomes NULL, not JSON's null |
//! | any other | the text form, lists and records as JSON; the database casts it |
//!
//! Text is never read as a number or a boolean. NULL fits every column that is neither part of the key nor NOT NULL.
//! A NOT NULL column that an upsert does not mention is left to the database, which alone knows whether the row is there.

use bytestring::ByteString;

use super::assign::integer_range;
use super::calendar::{self, Misread};
use super::digits::{Digits, Unfit};
use super::form::{self, Formless};
use crate::fault::{Reason, RecordFault, Stage};
use crate::projection::{Column, ColumnType, Datum, Nullability, Value};

/// The value as `column` of `table` stores it, exactly.
///
/// Also for literals of a mapping, such as defaults.
///
/// # Errors
/// The value does not fit; see the table at the top of this module.
pub fn fit(table: &str, column: &Column, value: Value) -> Result<Datum, RecordFault> {
    if matches!(value, Value::Null) {
        return match column.nullability {
            Nullability::Nullable => Ok(Datum::Null),
            Nullability::NotNull => {
                let detail = "the value is null and the column is not null";
                Err(fault(Reason::NotNull, detail).in_column(table, &column.name))
            }
        };
    }
    fit_type(&column.kind, value)
        .map_err(|misfit| misfit.into_fault(&column.kind).in_column(table, &column.name))
}

fn fit_type(kind: &ColumnType, value: Value) -> Result<Datum, Misfit> {
    match kind {
        ColumnType::Text { max_chars } => fit_text(value, *max_chars),
        ColumnType::Boolean => match value {
            Value::Bool(flag) => Ok(Datum::Bool(flag)),
            other => Err(Misfit::kind(&other)),
        },
        ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt => fit_integer(kind, &value),
        ColumnType::Numeric { precision_scale } => fit_numeric(&value, *precision_scale),
        ColumnType::Real => fit_float(&value, Float::Single),
        ColumnType::Double => fit_float(&value, Float::Double),
        ColumnType::Date => fit_date(&value),
        ColumnType::Time => fit_time(&value),
        ColumnType::Timestamp => fit_timestamp(&value),
        ColumnType::TimestampTz => fit_timestamptz(&value),
        ColumnType::Uuid => fit_uuid(&value),
        ColumnType::Json => Ok(Datum::Json(form::json(&value)?)),
        ColumnType::Bytes => match value {
            Value::Bytes(bytes) => Ok(Datum::Bytes(bytes)),
            other => Err(Misfit::kind(&other)),
        },
        ColumnType::Catalogue(_) => Ok(Datum::Catalogue(form::text(value)?)),
    }
}

pub(super) fn fit_text(value: Value, max_chars: Option<u32>) -> Result<Datum, Misfit> {
    if matches!(value, Value::List(_) | Value::Record(_)) {
        return Err(Misfit::kind(&value));
    }
    let text: ByteString = form::text(value)?;
    if let Some(max) = max_chars {
        let max = max as usize;
        // A text of few bytes has few characters; most need no counting.
        if text.len() > max {
            let length = text.chars().count();
            if length > max {
                let detail = format!("the text has {length} characters, at most {max} fit");
                return Err(Misfit(Reason::ValueTooLong, detail));
            }
        }
    }
    Ok(Datum::Text(text))
}

fn fit_integer(kind: &ColumnType, value: &Value) -> Result<Datum, Misfit> {
    let (min, max) = integer_range(kind).unwrap_or((i64::MIN, i64::MAX));
    let fitted = match value {
        Value::Int(number) => Some(*number).filter(|number| (min..=max).contains(number)).ok_or(Unfit::Range),
        other => number(other)?.integer(min, max),
    };
    fitted.map(Datum::Int).map_err(|unfit| match unfit {
        Unfit::Range => {
            Misfit(Reason::ValueOutOfRange, format!("the number is outside {kind}, {min} to {max}"))
        }
        Unfit::Scale => {
            Misfit(Reason::NotAnInteger, format!("the number has a fraction and {kind} keeps none"))
        }
    })
}

fn fit_numeric(value: &Value, precision_scale: Option<(u32, i32)>) -> Result<Datum, Misfit> {
    let digits = number(value)?;
    match digits.fits_numeric(precision_scale) {
        Ok(()) => Ok(Datum::Numeric(digits.numeric())),
        Err(unfit) => {
            let kind = ColumnType::Numeric { precision_scale };
            Err(match unfit {
                Unfit::Range => Misfit(
                    Reason::ValueOutOfRange,
                    format!("the number has more digits before the point than {kind} keeps"),
                ),
                Unfit::Scale => Misfit(
                    Reason::DecimalScaleLoss,
                    format!("the number has more digits after the point than {kind} keeps"),
                ),
            })
        }
    }
}

/// The two floating-point types.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Float {
    Single,
    Double,
}

impl Float {
    /// Decimal digits that always tell two of its numbers apart: what programs print when they print all.
    const fn digits(self) -> usize {
        match self {
            Self::Single => 9,
            Self::Double => 17,
        }
    }
}

fn fit_float(value: &Value, float: Float) -> Result<Datum, Misfit> {
    if let Value::Double(number) = value
        && number.is_finite()
        && (float == Float::Double || is_single(*number))
    {
        return Ok(Datum::Double(*number));
    }
    let digits = number(value)?;
    let (nearest, shortest) = match float {
        Float::Double => {
            let nearest = digits.nearest_double();
            (nearest, nearest.ok().map(|nearest| format!("{nearest:e}")))
        }
        Float::Single => {
            let nearest = digits.nearest_single();
            (nearest.map(f64::from), nearest.ok().map(|nearest| format!("{nearest:e}")))
        }
    };
    let Ok(nearest) = nearest else {
        return Err(Misfit(
            Reason::ValueOutOfRange,
            "the number is too large or too small for the column".into(),
        ));
    };
    let printed = shortest.as_deref().and_then(Digits::parse) == Some(digits.clone());
    let rounded = !digits.is_whole() && digits.significant() <= float.digits();
    if printed || rounded || is_exactly(nearest, &digits) {
        Ok(Datum::Double(nearest))
    } else {
        let detail = format!("the number has more than the {} digits of the column's type", float.digits());
        Err(Misfit(Reason::InvalidValue, detail))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::float_cmp,
    reason = "to see whether anything is truncated"
)]
fn is_single(number: f64) -> bool {
    f64::from(number as f32) == number
}

/// Whether a whole number below 2^63 is exactly this double.
#[expect(clippy::cast_possible_truncation, reason = "compared in 128 bits afterwards")]
fn is_exactly(nearest: f64, digits: &Digits<'_>) -> bool {
    digits.integer(i64::MIN, i64::MAX).is_ok_and(|number| nearest as i128 == i128::from(number))
}

/// The number that a value is.
fn number(value: &Value) -> Result<Digits<'_>, Misfit> {
    match value {
        Value::Int(number) => Ok(Digits::of_integer(*number)),
        Value::Number(text) => Digits::parse(text).ok_or_else(|| {
            Misfit(Reason::InvalidValue, "the number is not written as JSON writes one".into())
        }),
        Value::Decimal(number) => Digits::of_decimal(number).ok_or(Formless::TooManyDigits.into()),
        Value::Double(number) => Digits::of_double(*number).ok_or(Formless::NotFinite.into()),
        other => Err(Misfit::kind(other)),
    }
}

fn fit_date(value: &Value) -> Result<Datum, Misfit> {
    match value {
        Value::Date(days) if calendar::DATES.contains(days) => Ok(Datum::Date(*days)),
        Value::Date(_) => Err(Misread::Range.into()),
        Value::Text(text) => Ok(Datum::Date(calendar::parse_date(text)?)),
        other => Err(Misfit::kind(other)),
    }
}

fn fit_time(value: &Value) -> Result<Datum, Misfit> {
    match value {
        Value::Time(micros) if (0..calendar::DAY).contains(micros) => Ok(Datum::Time(*micros)),
        Value::Time(_) => Err(Misread::Range.into()),
        Value::Text(text) => Ok(Datum::Time(calendar::parse_time(text)?)),
        other => Err(Misfit::kind(other)),
    }
}

fn fit_timestamp(value: &Value) -> Result<Datum, Misfit> {
    match value {
        Value::Timestamp(micros) if *micros >= calendar::FIRST_TIMESTAMP => Ok(Datum::Timestamp(*micros)),
        Value::Timestamp(_) => Err(Misread::Range.into()),
        Value::Text(text) => Ok(Datum::Timestamp(calendar::parse_timestamp(text)?)),
        other => Err(Misfit::kind(other)),
    }
}

fn fit_timestamptz(value: &Value) -> Result<Datum, Misfit> {
    match value {
        Value::TimestampTz(micros) if *micros >= calendar::FIRST_TIMESTAMP => Ok(Datum::TimestampTz(*micros)),
        Value::TimestampTz(_) => Err(Misread::Range.into()),
        Value::Text(text) => Ok(Datum::TimestampTz(calendar::parse_timestamptz(text)?)),
        other => Err(Misfit::kind(other)),
    }
}

fn fit_uuid(value: &Value) -> Result<Datum, Misfit> {
    match value {
        Value::Uuid(bytes) => Ok(Datum::Uuid(*bytes)),
        Value::Text(text) => uuid::Uuid::try_parse(text)
            .map(|uuid| Datum::Uuid(uuid.into_bytes()))
            .map_err(|_| Misfit(Reason::InvalidValue, "the text is not a UUID".into())),
        other => Err(Misfit::kind(other)),
    }
}

/// Why a value does not fit, before the column is named. An empty detail stands for the kinds of value and column.
pub(super) struct Misfit(Reason, String);

impl Misfit {
    fn kind(value: &Value) -> Self {
        Self(Reason::WrongType, format!("the value is of type {}", value.kind()))
    }

    pub(super) fn into_fault(self, kind: &ColumnType) -> RecordFault {
        let Self(reason, detail) = self;
        match reason {
            Reason::WrongType => fault(reason, format!("{detail}, which has no exact form in {kind}")),
            Reason::InvalidValue => fault(reason, format!("{detail} ({kind})")),
            _ => fault(reason, detail),
        }
    }
}

impl From<Misread> for Misfit {
    fn from(misread: Misread) -> Self {
        let (reason, detail) = match misread {
            Misread::Form => (Reason::InvalidValue, "the text is not of the form that ISO 8601 gives"),
            Misread::TooFine => (Reason::InvalidValue, "the text is finer than microseconds"),
            Misread::Zone => (Reason::InvalidValue, "the text names a zone, which the column does not keep"),
            Misread::NoZone => (Reason::InvalidValue, "the text names no zone; end it with Z or an offset"),
            Misread::Range => (Reason::ValueOutOfRange, "the date or time is outside the column's range"),
        };
        Self(reason, detail.into())
    }
}

impl From<Formless> for Misfit {
    fn from(formless: Formless) -> Self {
        match formless {
            Formless::Kind(kind) => Self(Reason::WrongType, format!("the value is or holds {kind}")),
            Formless::NotFinite => {
                Self(Reason::InvalidValue, "NaN and the infinities are not numbers".into())
            }
            Formless::TooManyDigits => {
                Self(Reason::ValueOutOfRange, "the number has more digits than any column keeps".into())
            }
            Formless::Nul => Self(Reason::NulInText, "a text contains the character NUL".into()),
        }
    }
}

pub(super) fn fault(reason: Reason, detail: impl Into<String>) -> RecordFault {
    RecordFault::new(Stage::Validate, reason, detail)
}

pub(super) fn rejected(detail: impl Into<String>) -> RecordFault {
    fault(Reason::Rejected, detail)
}

#[cfg(test)]
mod tests;
