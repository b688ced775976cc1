//! Avro's logical types, exact or refused.

use bigdecimal::BigDecimal;
use bigdecimal::num_bigint::BigInt;
use bytes::Bytes;
use bytestring::ByteString;
use uuid::Uuid;

use super::cursor::Cursor;
use super::flaw::Flaw;
use crate::fault::Reason;
use crate::projection::Value;

/// The most digits after the point: what PostgreSQL's numeric keeps, and no store keeps more.
pub(super) const MAX_SCALE: i64 = 16_383;

/// The longest unscaled number, in bytes: more digits than any store keeps, and few enough to print quickly.
const MAX_DECIMAL_BYTES: usize = 64 * 1024;

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// The unit of a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Millis,
    Micros,
    Nanos,
}

/// Whether a timestamp is a point in time or a local time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zone {
    Utc,
    Local,
}

/// `decimal`: two's complement, big-endian. The declared precision bounds nothing: the value is what it is.
pub(super) fn decimal(unscaled: &[u8], scale: i64) -> Result<Value, Flaw> {
    if unscaled.is_empty() {
        return Err(Flaw::new(Reason::InvalidValue, "a decimal has no bytes"));
    }
    if unscaled.len() > MAX_DECIMAL_BYTES {
        return Err(Flaw::new(
            Reason::ValueOutOfRange,
            format!("a decimal has {} bytes, more than any store keeps", unscaled.len()),
        ));
    }
    Ok(Value::Decimal(BigDecimal::new(BigInt::from_signed_bytes_be(unscaled), scale)))
}

/// `big-decimal`: the unscaled number as bytes, then the scale.
pub(super) fn big_decimal(bytes: &Bytes) -> Result<Value, Flaw> {
    let mut cursor = Cursor::new(bytes);
    let unscaled = cursor.bytes()?;
    let scale = cursor.long()?;
    if cursor.remaining() > 0 {
        return Err(cursor.invalid("bytes follow the scale of a big-decimal"));
    }
    if scale.unsigned_abs() > MAX_SCALE.unsigned_abs() {
        return Err(Flaw::new(
            Reason::ValueOutOfRange,
            "the scale of a big-decimal is beyond what any store keeps",
        ));
    }
    decimal(&unscaled, scale)
}

/// `uuid` on string.
pub(super) fn uuid(text: &str) -> Result<Value, Flaw> {
    let uuid = Uuid::try_parse(text)
        .map_err(|_| Flaw::new(Reason::InvalidValue, "a text of the logical type uuid is no UUID"))?;
    Ok(Value::Uuid(uuid.into_bytes()))
}

/// `time-millis` and `time-micros`, as microseconds since midnight.
pub(super) fn time(micros: i64) -> Result<Value, Flaw> {
    if (0..DAY).contains(&micros) {
        Ok(Value::Time(micros))
    } else {
        Err(Flaw::new(Reason::InvalidValue, "a time of day is before midnight or after the end of the day"))
    }
}

/// The timestamps. What lies between two microseconds is refused: no store keeps it, and nothing is rounded silently.
pub(super) fn timestamp(number: i64, unit: Unit, zone: Zone) -> Result<Value, Flaw> {
    let micros = match unit {
        Unit::Micros => number,
        Unit::Millis => number.checked_mul(1000).ok_or_else(|| {
            Flaw::new(Reason::ValueOutOfRange, "a timestamp in milliseconds is too large for microseconds")
        })?,
        Unit::Nanos if number % 1000 == 0 => number / 1000,
        Unit::Nanos => {
            let detail = "a timestamp in nanoseconds lies between two microseconds, which no store keeps";
            return Err(Flaw::new(Reason::InvalidValue, detail));
        }
    };
    Ok(match zone {
        Zone::Utc => Value::TimestampTz(micros),
        Zone::Local => Value::Timestamp(micros),
    })
}

/// `duration`, as ISO 8601 text: `P1M2DT3.004S`. Its three parts do not convert into each other, so each is written.
pub(super) fn duration(bytes: [u8; 12]) -> Value {
    let part = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (months, days, millis) = (part(0), part(4), part(8));
    Value::Text(ByteString::from(format!("P{months}M{days}DT{}.{:03}S", millis / 1000, millis % 1000)))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn reason(result: Result<Value, Flaw>) -> Reason {
        result.unwrap_err().reason()
    }

    #[test]
    fn decimals_keep_sign_scale_and_every_digit() {
        let exact = |text: &str| Value::Decimal(BigDecimal::from_str(text).unwrap());
        assert_eq!(decimal(&[0xff], 10).unwrap(), exact("-0.0000000001"));
        assert_eq!(decimal(&[0x30, 0x39], 2).unwrap(), exact("123.45"));
        assert_eq!(decimal(&[0, 0, 0, 0, 0, 0, 0, 0x30, 0x39], 2).unwrap(), exact("123.45"));
        let digits = "7".repeat(78);
        let unscaled = BigInt::from_str(&digits).unwrap().to_signed_bytes_be();
        assert_eq!(decimal(&unscaled, 0).unwrap(), exact(&digits));
        assert_eq!(reason(decimal(&[], 2)), Reason::InvalidValue);
        assert_eq!(reason(decimal(&vec![1; MAX_DECIMAL_BYTES + 1], 2)), Reason::ValueOutOfRange);
    }

    #[test]
    fn a_big_decimal_carries_its_scale_within_bounds() {
        let wire = |scale: &[u8]| Bytes::from([&[2, 0x7b][..], scale].concat());
        assert_eq!(big_decimal(&wire(&[4])).unwrap(), Value::Decimal(BigDecimal::from_str("1.23").unwrap()));
        assert_eq!(reason(big_decimal(&wire(&[0xfe, 0xff, 0xff, 0xff, 0x0f]))), Reason::ValueOutOfRange);
        assert_eq!(reason(big_decimal(&wire(&[4, 0]))), Reason::InvalidAvro);
        assert_eq!(reason(big_decimal(&wire(&[]))), Reason::InvalidAvro);
    }

    #[test]
    fn times_are_exact_or_refused() {
        assert_eq!(timestamp(-1, Unit::Millis, Zone::Utc).unwrap(), Value::TimestampTz(-1000));
        assert_eq!(timestamp(5, Unit::Micros, Zone::Local).unwrap(), Value::Timestamp(5));
        assert_eq!(timestamp(-7000, Unit::Nanos, Zone::Local).unwrap(), Value::Timestamp(-7));
        assert_eq!(reason(timestamp(7001, Unit::Nanos, Zone::Utc)), Reason::InvalidValue);
        assert_eq!(reason(timestamp(i64::MAX, Unit::Millis, Zone::Utc)), Reason::ValueOutOfRange);
        assert_eq!(time(DAY - 1).unwrap(), Value::Time(DAY - 1));
        assert_eq!(reason(time(DAY)), Reason::InvalidValue);
        assert_eq!(reason(time(-1)), Reason::InvalidValue);
        assert_eq!(duration([1, 0, 0, 0, 2, 0, 0, 0, 0xbc, 0x0b, 0, 0]), Value::from("P1M2DT3.004S"));
    }

    #[test]
    fn a_uuid_is_sixteen_bytes_or_refused() {
        let text = "0b6f7c7e-0000-4000-8000-00000000beef";
        let Value::Uuid(bytes) = uuid(text).unwrap() else { panic!("a uuid") };
        assert_eq!((bytes[0], bytes[15]), (0x0b, 0xef));
        assert_eq!(reason(uuid("not one")), Reason::InvalidValue);
    }
}
