//! The types of columns in SQLite: their names, values as parameters, and literals.

use super::connections::Parameters;
use crate::fold;
use crate::projection::{Column, ColumnType, Datum};

/// The type of a column in a STRICT table; `None` for a type that only PostgreSQL has.
pub(super) const fn sql_name(kind: &ColumnType) -> Option<&'static str> {
    match kind {
        ColumnType::Boolean
        | ColumnType::SmallInt
        | ColumnType::Integer
        | ColumnType::BigInt
        | ColumnType::TimestampTz => Some("INTEGER"),
        ColumnType::Real | ColumnType::Double => Some("REAL"),
        ColumnType::Bytes => Some("BLOB"),
        ColumnType::Text { .. }
        | ColumnType::Numeric { .. }
        | ColumnType::Date
        | ColumnType::Time
        | ColumnType::Timestamp
        | ColumnType::Uuid
        | ColumnType::Json => Some("TEXT"),
        ColumnType::Catalogue(_) => None,
    }
}

/// The range that SQLite's own INTEGER, of 64 bits, does not keep to: a sum may leave it.
pub(super) const fn range(kind: &ColumnType) -> Option<(i64, i64)> {
    match kind {
        ColumnType::SmallInt => Some((i16::MIN as i64, i16::MAX as i64)),
        ColumnType::Integer => Some((i32::MIN as i64, i32::MAX as i64)),
        _ => None,
    }
}

/// Whether SQLite adds to such a column exactly.
pub(super) const fn is_sum(kind: &ColumnType) -> bool {
    matches!(kind, ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt)
}

/// Why a value cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It is not of its column's type: a mistake in this program.
    Mismatch,
    /// It is NaN, which SQLite would keep as NULL.
    NotANumber,
}

/// Adds a value to the parameters of a statement.
pub(super) fn push(parameters: &mut Parameters, kind: &ColumnType, datum: &Datum) -> Result<(), Unfit> {
    match (kind, datum) {
        (_, Datum::Null) => parameters.push(None::<i64>),
        (ColumnType::Boolean, Datum::Bool(flag)) => parameters.push(i64::from(*flag)),
        (ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt, Datum::Int(number))
        | (ColumnType::TimestampTz, Datum::TimestampTz(number)) => parameters.push(*number),
        (ColumnType::Real | ColumnType::Double, Datum::Double(number)) => {
            if number.is_nan() {
                return Err(Unfit::NotANumber);
            }
            parameters.push(*number);
        }
        (ColumnType::Bytes, Datum::Bytes(bytes)) => parameters.push(bytes.to_vec()),
        (ColumnType::Text { .. }, Datum::Text(text)) | (ColumnType::Json, Datum::Json(text)) => {
            parameters.push(text.to_string());
        }
        _ => parameters.push(canonical(kind, datum).ok_or(Unfit::Mismatch)?),
    }
    Ok(())
}

/// Whether the order of stored values is that of `datum`'s type: dates are texts, whose order is that of time for years of
/// four digits only.
pub(super) fn is_ordered(datum: &Datum) -> bool {
    if !matches!(datum, Datum::Date(_) | Datum::Timestamp(_)) {
        return true;
    }
    fold::canonical(datum).is_some_and(|text| {
        let year = text.split('-').next().unwrap_or_default();
        year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit()) && !text.ends_with("BC")
    })
}

/// The text of a value whose type SQLite does not have. One value has one text, so that keys are equal where values are.
fn canonical(kind: &ColumnType, datum: &Datum) -> Option<String> {
    Some(match (kind, datum) {
        (ColumnType::Numeric { precision_scale: Some((_, scale)) }, Datum::Numeric(number)) => {
            number.with_scale(i64::from(*scale)).to_plain_string()
        }
        (ColumnType::Numeric { precision_scale: None }, Datum::Numeric(number)) => {
            number.normalized().to_plain_string()
        }
        (ColumnType::Date, Datum::Date(_))
        | (ColumnType::Time, Datum::Time(_))
        | (ColumnType::Timestamp, Datum::Timestamp(_))
        | (ColumnType::Uuid, Datum::Uuid(_)) => return fold::canonical(datum),
        _ => return None,
    })
}

/// A value as a literal of its column's type.
pub(super) fn literal(kind: &ColumnType, datum: &Datum) -> String {
    match datum {
        Datum::Null => "null".to_owned(),
        Datum::Bool(flag) => i64::from(*flag).to_string(),
        Datum::Int(number) | Datum::TimestampTz(number) => number.to_string(),
        Datum::Double(number) if number.is_infinite() => {
            format!("{}9e999", if *number < 0.0 { "-" } else { "" })
        }
        Datum::Double(number) => format!("{number:e}"),
        Datum::Text(text) | Datum::Json(text) | Datum::Catalogue(text) => quote_text(text),
        Datum::Bytes(bytes) => format!("x'{}'", hex(bytes)),
        _ => canonical(kind, datum).map_or_else(|| "null".to_owned(), |text| quote_text(&text)),
    }
}

/// A text literal.
pub(super) fn quote_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The default of a column as a literal, or `null`.
pub(super) fn default_of(column: &Column) -> String {
    column.default.as_ref().map_or_else(|| "null".to_owned(), |default| literal(&column.kind, default))
}

/// What `add` counts from where the stored value is NULL or there is no row, as a literal; `None` stands for 0.
pub(super) fn base(column: &Column) -> Option<String> {
    match &column.default {
        None | Some(Datum::Null | Datum::Int(0)) => None,
        Some(default) => Some(literal(&column.kind, default)),
    }
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use bigdecimal::BigDecimal;

    use super::*;

    #[test]
    fn equal_numbers_have_one_text() {
        let text = |kind: &ColumnType, number: &str| {
            canonical(kind, &Datum::Numeric(BigDecimal::from_str(number).unwrap())).unwrap()
        };
        let plain = ColumnType::Numeric { precision_scale: None };
        let money = ColumnType::Numeric { precision_scale: Some((10, 2)) };
        for number in ["1.5", "1.50", "15e-1"] {
            assert_eq!((text(&plain, number), text(&money, number)), ("1.5".into(), "1.50".into()));
        }
        assert_eq!((text(&plain, "1e3"), text(&money, "1e3")), ("1000".into(), "1000.00".into()));
        assert_eq!((text(&plain, "-0.0"), text(&money, "0")), ("0".into(), "0.00".into()));
    }

    #[test]
    fn literals_are_those_of_sql() {
        let int = ColumnType::BigInt;
        assert_eq!(literal(&int, &Datum::Int(i64::MIN)), "-9223372036854775808");
        assert_eq!(literal(&int, &Datum::Text("it's".into())), "'it''s'");
        assert_eq!(
            literal(&ColumnType::Bytes, &Datum::Bytes(bytes::Bytes::from_static(b"\x00\xff"))),
            "x'00ff'"
        );
        assert_eq!(literal(&ColumnType::Double, &Datum::Double(f64::NEG_INFINITY)), "-9e999");
        assert_eq!(literal(&ColumnType::Date, &Datum::Date(0)), "'1970-01-01'");
        assert_eq!(literal(&int, &Datum::Null), "null");
    }

    #[test]
    fn a_value_of_another_type_and_nan_are_refused() {
        let mut parameters = Parameters::new();
        let mut put = |kind: ColumnType, datum: Datum| push(&mut parameters, &kind, &datum);
        assert_eq!(put(ColumnType::BigInt, Datum::Text("1".into())), Err(Unfit::Mismatch));
        assert_eq!(
            put(ColumnType::Catalogue("inet".into()), Datum::Catalogue("::1".into())),
            Err(Unfit::Mismatch)
        );
        assert_eq!(put(ColumnType::Double, Datum::Double(f64::NAN)), Err(Unfit::NotANumber));
        assert_eq!(put(ColumnType::Catalogue("inet".into()), Datum::Null), Ok(()));
    }
}
