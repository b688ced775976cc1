//! Values as text: `string(x)`, the stored aggregate, the digest. One form for equal values.

use std::fmt::Write as _;

use bigdecimal::BigDecimal;
use bytestring::ByteString;

use super::instant;
use crate::projection::Value;

/// The text that stands for a value where it names an aggregate: equal values have equal texts, whether a number was
/// written `5`, `5.0` or `5e0`.
#[must_use]
pub fn text_of(value: &Value) -> ByteString {
    match value {
        Value::Text(text) => text.clone(),
        other => {
            let mut text = String::new();
            write_json(&mut text, other);
            text.into()
        }
    }
}

/// The text of a single value; `None` for null, lists and records, and bytes that are no text.
pub(super) fn scalar(value: &Value) -> Option<ByteString> {
    Some(match value {
        Value::Null | Value::List(_) | Value::Record(_) => return None,
        Value::Text(text) | Value::Number(text) => text.clone(),
        Value::Bool(flag) => flag.to_string().into(),
        Value::Int(number) => number.to_string().into(),
        Value::Decimal(number) => number.to_plain_string().into(),
        Value::Double(number) => number.to_string().into(),
        Value::Bytes(bytes) => ByteString::try_from(bytes.clone()).ok()?,
        Value::Uuid(uuid) => uuid::Uuid::from_bytes(*uuid).to_string().into(),
        Value::Date(days) => instant::date(*days)?.to_string().into(),
        Value::Time(micros) => time_of_day(*micros)?.into(),
        Value::Timestamp(_) => instant::civil(value)?.to_string().into(),
        Value::TimestampTz(_) => format!("{}Z", instant::civil(value)?).into(),
    })
}

/// A literal of a projection file, digit by digit, with its kind.
pub(super) fn literal_form(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{:?}", &**text),
        other => format!("{} {}", other.kind(), scalar(other).unwrap_or_else(|| text_of(other))),
    }
}

fn time_of_day(micros: i64) -> Option<String> {
    let seconds = micros.div_euclid(1_000_000);
    let nanos = i32::try_from(micros.rem_euclid(1_000_000) * 1_000).ok()?;
    let hour = i8::try_from(seconds / 3600).ok()?;
    let minute = i8::try_from(seconds / 60 % 60).ok()?;
    let second = i8::try_from(seconds % 60).ok()?;
    jiff::civil::Time::new(hour, minute, second, nanos).ok().map(|time| time.to_string())
}

fn write_json(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_json(out, item);
            }
            out.push(']');
        }
        Value::Record(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            out.push('{');
            for (index, (name, field)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_quoted(out, name);
                out.push(':');
                write_json(out, field);
            }
            out.push('}');
        }
        Value::Text(text) => write_quoted(out, text),
        Value::Number(text) => match text.get(..4_096).is_none().then(|| text.parse::<BigDecimal>()) {
            // An exponent out of all proportion must not become as many zeros.
            Some(Ok(number)) if number.fractional_digit_count().unsigned_abs() < 10_000 => {
                out.push_str(&number.normalized().to_plain_string());
            }
            _ => out.push_str(text),
        },
        Value::Decimal(number) => {
            out.push_str(&number.normalized().to_plain_string());
        }
        Value::Bytes(bytes) => {
            out.push_str("\\x");
            for byte in bytes {
                let _ = write!(out, "{byte:02x}");
            }
        }
        other => match scalar(other) {
            Some(text) => out.push_str(&text),
            // A time outside of the calendar: its number says as much.
            None => {
                let _ = write!(out, "{other:?}");
            }
        },
    }
}

fn write_quoted(out: &mut String, text: &str) {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    out.push_str(&quoted);
}
