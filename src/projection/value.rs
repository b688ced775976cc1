//! The values of a decoded event, before they meet a column.

use bigdecimal::BigDecimal;
use bytes::Bytes;
use bytestring::ByteString;

/// A decoded value. Exact: no number passes through a floating-point type unless its schema says so.
///
/// Only fields that the projection names are present in records (see [`Wanted`](super::Wanted)).
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An explicit null. An absent field is no value at all.
    Null,
    /// A boolean.
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    /// A JSON number that is not a plain 64-bit integer, as its source text (`1e3`, `1.50`, `18446744073709551615`).
    Number(ByteString),
    /// An Avro decimal, exact.
    Decimal(BigDecimal),
    /// An Avro float or double.
    Double(f64),
    /// Text, or the symbol of an enum.
    Text(ByteString),
    /// Bytes, or an Avro fixed without a logical type.
    Bytes(Bytes),
    /// A UUID.
    Uuid([u8; 16]),
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since midnight.
    Time(i64),
    /// A point in time: microseconds since 1970-01-01 UTC.
    TimestampTz(i64),
    /// A local time without zone: microseconds since 1970-01-01.
    Timestamp(i64),
    /// A list.
    List(Vec<Value>),
    /// A record, map or JSON object: fields in the order of the source, no name twice.
    Record(Vec<(ByteString, Value)>),
}

impl Value {
    /// The field `name` of a record; `None` where it is absent or this is no record.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Self::Record(fields) => fields.iter().find(|(field, _)| field == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// What kind of value this is, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Int(_) => "integer",
            Self::Number(_) | Self::Decimal(_) => "number",
            Self::Double(_) => "double",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
            Self::Uuid(_) => "uuid",
            Self::Date(_) => "date",
            Self::Time(_) => "time",
            Self::TimestampTz(_) => "timestamp with time zone",
            Self::Timestamp(_) => "timestamp",
            Self::List(_) => "list",
            Self::Record(_) => "record",
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(ByteString::from(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(ByteString::from(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
