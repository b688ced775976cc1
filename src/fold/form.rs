//! The text and the JSON of values, exactly: numbers digit by digit, times in ISO 8601.

use std::fmt::Write as _;

use bigdecimal::BigDecimal;
use bytestring::ByteString;

use super::calendar;
use super::digits::{Digits, MAX_SCALE, MAX_WHOLE_DIGITS, Unfit};
use crate::projection::{Datum, Value};

/// Why a value has no text, or no JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Formless {
    /// The value is of this kind, which has none.
    Kind(&'static str),
    /// A double is NaN or infinite.
    NotFinite,
    /// A number has more digits than any column keeps.
    TooManyDigits,
    /// A text contains the character NUL.
    Nul,
}

/// The text of a value: of numbers the digits of the source, of a double its shortest decimal, of booleans `true` and
/// `false`, of a UUID and times the canonical form, of lists and records their JSON. Bytes and null have none.
pub(super) fn text(value: Value) -> Result<ByteString, Formless> {
    let text = match value {
        Value::Text(text) | Value::Number(text) => text,
        Value::Int(number) => number.to_string().into(),
        Value::Bool(flag) => ByteString::from_static(if flag { "true" } else { "false" }),
        Value::Decimal(number) => decimal(&number)?.into(),
        Value::Double(number) => double(number)?.into(),
        Value::Uuid(bytes) => uuid(bytes).into(),
        Value::Date(days) => calendar::date_text(days).into(),
        Value::Time(micros) => calendar::time_text(micros).into(),
        Value::Timestamp(micros) => calendar::timestamp_text(micros).into(),
        Value::TimestampTz(micros) => calendar::timestamptz_text(micros).into(),
        Value::List(_) | Value::Record(_) => return json(&value),
        Value::Bytes(_) | Value::Null => return Err(Formless::Kind(value.kind())),
    };
    if has_nul(&text) { Err(Formless::Nul) } else { Ok(text) }
}

/// The canonical text of a value that fits its column, for stores that keep such values as text: numbers plain and without
/// trailing zeros, UUIDs and times in ISO 8601. `None` for NULL, booleans, integers, floating numbers and bytes.
#[must_use]
pub fn canonical(datum: &Datum) -> Option<String> {
    match datum {
        Datum::Numeric(number) => Some(number.to_plain_string()),
        Datum::Uuid(bytes) => Some(uuid(*bytes)),
        Datum::Date(days) => Some(calendar::date_text(*days)),
        Datum::Time(micros) => Some(calendar::time_text(*micros)),
        Datum::Timestamp(micros) => Some(calendar::timestamp_text(*micros)),
        Datum::TimestampTz(micros) => Some(calendar::timestamptz_text(*micros)),
        Datum::Text(text) | Datum::Json(text) | Datum::Catalogue(text) => Some(text.to_string()),
        Datum::Null | Datum::Bool(_) | Datum::Int(_) | Datum::Double(_) | Datum::Bytes(_) => None,
    }
}

/// The value as JSON: texts, UUIDs and times as strings, fields in the order of the source.
pub(super) fn json(value: &Value) -> Result<ByteString, Formless> {
    let mut out = String::new();
    write_json(&mut out, value)?;
    Ok(out.into())
}

// Writing to a String cannot fail. The depth of a value is bounded by the decoder's limits.
fn write_json(out: &mut String, value: &Value) -> Result<(), Formless> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Int(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Number(number) => {
            // The database keeps numbers inside JSON as `numeric`.
            let digits = Digits::parse(number).ok_or(Formless::Kind("number"))?;
            digits.fits_numeric(None).map_err(|_: Unfit| Formless::TooManyDigits)?;
            out.push_str(number);
        }
        Value::Decimal(number) => out.push_str(&decimal(number)?),
        Value::Double(number) => out.push_str(&double(*number)?),
        Value::Text(text) => write_json_text(out, text)?,
        Value::Uuid(bytes) => write_json_text(out, &uuid(*bytes))?,
        Value::Date(days) => write_json_text(out, &calendar::date_text(*days))?,
        Value::Time(micros) => write_json_text(out, &calendar::time_text(*micros))?,
        Value::Timestamp(micros) => write_json_text(out, &calendar::timestamp_text(*micros))?,
        Value::TimestampTz(micros) => write_json_text(out, &calendar::timestamptz_text(*micros))?,
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_json(out, item)?;
            }
            out.push(']');
        }
        Value::Record(fields) => {
            out.push('{');
            for (index, (name, field)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_json_text(out, name)?;
                out.push(':');
                write_json(out, field)?;
            }
            out.push('}');
        }
        Value::Bytes(_) => return Err(Formless::Kind(value.kind())),
    }
    Ok(())
}

fn write_json_text(out: &mut String, text: &str) -> Result<(), Formless> {
    if has_nul(text) {
        return Err(Formless::Nul);
    }
    out.push('"');
    let mut plain = 0;
    for (index, byte) in text.bytes().enumerate() {
        if byte >= 0x20 && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.push_str(&text[plain..index]);
        plain = index + 1;
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            control => {
                let _ = write!(out, "\\u{control:04x}");
            }
        }
    }
    out.push_str(&text[plain..]);
    out.push('"');
    Ok(())
}

/// Whether a text contains NUL, which PostgreSQL keeps in no text and no JSON.
pub(super) fn has_nul(text: &str) -> bool {
    text.as_bytes().contains(&0)
}

/// A decimal with the digits after the point that it came with, never with an exponent.
fn decimal(number: &BigDecimal) -> Result<String, Formless> {
    let scale = number.fractional_digit_count();
    if Digits::of_decimal(number).is_none() || !(-MAX_WHOLE_DIGITS..=MAX_SCALE).contains(&scale) {
        return Err(Formless::TooManyDigits);
    }
    Ok(number.to_plain_string())
}

fn double(number: f64) -> Result<String, Formless> {
    if number.is_finite() { Ok(format!("{number:?}")) } else { Err(Formless::NotFinite) }
}

fn uuid(bytes: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use bigdecimal::num_bigint::BigInt;
    use proptest::prelude::*;

    use super::*;

    fn number(text: &'static str) -> Value {
        Value::Number(ByteString::from_static(text))
    }

    #[test]
    fn numbers_keep_their_digits_as_text_and_in_json() {
        for (value, expected) in [
            (Value::Int(i64::MIN), "-9223372036854775808"),
            (number("327267367867168100000"), "327267367867168100000"),
            (number("1.50"), "1.50"),
            (number("1e3"), "1e3"),
            (Value::Decimal(BigDecimal::new(BigInt::from(150), 2)), "1.50"),
            (Value::Decimal(BigDecimal::new(BigInt::from(-1), 10)), "-0.0000000001"),
            (Value::Double(0.1), "0.1"),
            (Value::Double(1e300), "1e300"),
            (Value::Bool(true), "true"),
        ] {
            assert_eq!(json(&value).as_deref(), Ok(expected));
            assert_eq!(text(value).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_tree_becomes_json_in_the_order_of_its_fields() {
        let tree = Value::Record(vec![
            ("z\"".into(), Value::List(vec![Value::Null, "a\\\n\u{1}ü".into(), Value::List(vec![])])),
            ("a".into(), Value::Record(vec![("at".into(), Value::TimestampTz(1_500_000))])),
            ("u".into(), Value::Uuid([0x11; 16])),
        ]);
        let expected = concat!(
            r#"{"z\"":[null,"a\\\n\u0001ü",[]],"a":{"at":"1970-01-01T00:00:01.5Z"},"#,
            r#""u":"11111111-1111-1111-1111-111111111111"}"#
        );
        assert_eq!(text(tree).as_deref(), Ok(expected));
    }

    #[test]
    fn what_has_no_form_is_refused_with_the_reason() {
        let within = |value| Value::List(vec![value]);
        assert_eq!(json(&within(Value::Bytes(bytes::Bytes::new()))), Err(Formless::Kind("bytes")));
        assert_eq!(json(&within(Value::Double(f64::NAN))), Err(Formless::NotFinite));
        assert_eq!(json(&within("a\0b".into())), Err(Formless::Nul));
        assert_eq!(json(&Value::Record(vec![("\0".into(), Value::Null)])), Err(Formless::Nul));
        assert_eq!(json(&within(number("1e999999999"))), Err(Formless::TooManyDigits));
        let decimal = || Value::Decimal(BigDecimal::new(BigInt::from(1), -999_999_999));
        assert_eq!(json(&decimal()), Err(Formless::TooManyDigits));
        assert_eq!(text(decimal()), Err(Formless::TooManyDigits));
        assert_eq!(text("a\0b".into()), Err(Formless::Nul));
        assert_eq!(text(Value::Null), Err(Formless::Kind("null")));
    }

    proptest! {
        #[test]
        fn a_json_library_reads_the_same_text(text in any::<String>()) {
            match json(&Value::from(text.clone())) {
                Ok(json) => prop_assert_eq!(serde_json::from_str::<String>(&json).expect("valid JSON"), text),
                Err(reason) => prop_assert!(reason == Formless::Nul && text.contains('\0')),
            }
        }
    }
}
