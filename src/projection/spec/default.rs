//! The default of a column: a literal that fits its type exactly.

use bigdecimal::BigDecimal;
use jiff::civil;

use super::column::{Refused, word};
use crate::projection::{ColumnType, Datum};

/// A literal of SQL.
pub(super) enum Literal {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
}

/// The literal that the text begins with, and what follows it.
pub(super) fn literal(text: &str) -> Result<(Literal, &str), Refused> {
    let refused = || {
        let fix = "write a number, 'text', true, false or null; what is computed is mapped from the event"
            .to_owned();
        ("a default is a literal".to_owned(), fix)
    };
    if let Some(rest) = text.strip_prefix('\'') {
        let mut content = String::new();
        let mut rest = rest;
        loop {
            let (part, after) = rest.split_once('\'').ok_or_else(refused)?;
            content.push_str(part);
            match after.strip_prefix('\'') {
                Some(after) => {
                    content.push('\'');
                    rest = after;
                }
                None => return Ok((Literal::Text(content), after.trim_start())),
            }
        }
    }
    let (word, after) = word(text);
    if after.starts_with('(') || word.is_empty() {
        return Err(refused());
    }
    let literal = match word.to_ascii_lowercase().as_str() {
        "null" => Literal::Null,
        "true" => Literal::Bool(true),
        "false" => Literal::Bool(false),
        _ if word.len() <= 1_100 && word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'.')) => {
            Literal::Number(word.to_owned())
        }
        _ => return Err(refused()),
    };
    Ok((literal, after))
}

/// The default as a value of the column, which it must fit as it stands.
pub(super) fn default_of(kind: &ColumnType, literal: Literal) -> Result<Option<Datum>, Refused> {
    let unfit = || {
        let fix = format!("write a literal that fits {kind} exactly");
        (format!("the default does not fit a column of type {kind}"), fix)
    };
    let datum = match (kind, literal) {
        (_, Literal::Null) => return Ok(None),
        (ColumnType::Boolean, Literal::Bool(flag)) => Datum::Bool(flag),
        (ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt, Literal::Number(number)) => {
            let number: i64 = number.parse().map_err(|_| unfit())?;
            let fits = match kind {
                ColumnType::SmallInt => i16::try_from(number).is_ok(),
                ColumnType::Integer => i32::try_from(number).is_ok(),
                _ => true,
            };
            fits.then_some(Datum::Int(number)).ok_or_else(unfit)?
        }
        (ColumnType::Numeric { precision_scale }, Literal::Number(number)) => {
            let number: BigDecimal = number.parse().map_err(|_| unfit())?;
            let number = number.normalized();
            if !fits_numeric(&number, *precision_scale) {
                return Err(unfit());
            }
            Datum::Numeric(number)
        }
        (ColumnType::Real | ColumnType::Double, Literal::Number(number)) => {
            Datum::Double(number.parse().map_err(|_| unfit())?)
        }
        (ColumnType::Text { max_chars }, Literal::Text(text)) => {
            let too_long = max_chars.is_some_and(|max| text.chars().count() > max as usize);
            if too_long || text.contains('\0') {
                return Err(unfit());
            }
            Datum::Text(text.into())
        }
        (ColumnType::Uuid, Literal::Text(text)) => {
            Datum::Uuid(uuid::Uuid::try_parse(&text).map_err(|_| unfit())?.into_bytes())
        }
        (ColumnType::Json, Literal::Text(text)) => {
            serde_json::from_str::<serde_json::Value>(&text).map_err(|_| unfit())?;
            Datum::Json(text.into())
        }
        (ColumnType::Catalogue(_), Literal::Text(text) | Literal::Number(text)) => {
            Datum::Catalogue(text.into())
        }
        (
            ColumnType::Date | ColumnType::Time | ColumnType::Timestamp | ColumnType::TimestampTz,
            Literal::Text(text),
        ) => time_default(kind, &text).ok_or_else(unfit)?,
        _ => return Err(unfit()),
    };
    Ok(Some(datum))
}

fn fits_numeric(number: &BigDecimal, precision_scale: Option<(u32, i32)>) -> bool {
    let Some((precision, scale)) = precision_scale else { return true };
    let (digits, fraction) = (i128::from(number.digits()), i128::from(number.fractional_digit_count()));
    fraction <= i128::from(scale) && digits - fraction <= i128::from(precision) - i128::from(scale)
}

fn time_default(kind: &ColumnType, text: &str) -> Option<Datum> {
    let whole_micros = |nanos: i32| nanos % 1_000 == 0;
    let epoch = civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    match kind {
        ColumnType::Date => {
            let date: civil::Date = text.parse().ok()?;
            let hours = date.at(0, 0, 0, 0).duration_since(epoch).as_hours();
            i32::try_from(hours / 24).ok().map(Datum::Date)
        }
        ColumnType::Time => {
            let time: civil::Time = text.parse().ok()?;
            let micros = time.duration_since(civil::Time::midnight()).as_micros();
            let micros = i64::try_from(micros).ok()?;
            whole_micros(time.subsec_nanosecond()).then_some(Datum::Time(micros))
        }
        ColumnType::Timestamp => {
            let time: civil::DateTime = text.parse().ok()?;
            let micros = i64::try_from(time.duration_since(epoch).as_micros()).ok()?;
            whole_micros(time.subsec_nanosecond()).then_some(Datum::Timestamp(micros))
        }
        ColumnType::TimestampTz => {
            let time: jiff::Timestamp = text.parse().ok()?;
            whole_micros(time.subsec_nanosecond()).then_some(Datum::TimestampTz(time.as_microsecond()))
        }
        _ => None,
    }
}
