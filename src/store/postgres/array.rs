//! A column's values as one binary array, encoded once and straight from the folded rows.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo};
use sqlx::{Encode, Postgres, Type};

use super::types::{Wire, array_text};
use crate::projection::{ColumnType, Datum};

/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL counts from.
const EPOCH_DAYS: i32 = 10_957;
/// Microseconds between the same two.
const EPOCH_MICROS: i64 = 10_957 * 86_400_000_000;
/// Bytes before the first element of an array of one dimension.
const HEADER: usize = 20;

/// An array under construction, ready to be sent at any time.
pub(super) struct ColumnArray<'a> {
    kind: &'a ColumnType,
    wire: Wire,
    count: i32,
    /// The header, filled in on sending, and the elements.
    bytes: Vec<u8>,
}

/// A value is not one of its column's type: a mistake in this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mismatch;

impl<'a> ColumnArray<'a> {
    /// An empty array for values of `kind`, with room for `capacity` of them.
    pub(super) fn new(kind: &'a ColumnType, capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + capacity * 12);
        bytes.resize(HEADER, 0);
        Self { kind, wire: Wire::of(kind), count: 0, bytes }
    }

    /// Appends NULL.
    pub(super) fn push_null(&mut self) {
        self.count += 1;
        self.bytes.extend((-1_i32).to_be_bytes());
    }

    /// Appends a value.
    pub(super) fn push(&mut self, datum: &Datum) -> Result<(), Mismatch> {
        match (datum, self.wire) {
            (Datum::Null, _) => self.push_null(),
            (Datum::Bool(flag), Wire::Bool) => self.element(&[u8::from(*flag)])?,
            (Datum::Int(number), Wire::Int8) => self.element(&number.to_be_bytes())?,
            (Datum::Int(number), Wire::Int4) => self.element(&narrow::<i32>(*number)?.to_be_bytes())?,
            (Datum::Int(number), Wire::Int2) => self.element(&narrow::<i16>(*number)?.to_be_bytes())?,
            (Datum::Int(number), Wire::Text) if self.is_numeric() => {
                self.element(number.to_string().as_bytes())?;
            }
            (Datum::Numeric(number), Wire::Text) => self.element(number.to_string().as_bytes())?,
            (Datum::Double(number), Wire::Float8) => self.element(&number.to_be_bytes())?,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "validation gives single floats to such columns"
            )]
            (Datum::Double(number), Wire::Float4) => self.element(&(*number as f32).to_be_bytes())?,
            (Datum::Text(text) | Datum::Json(text), Wire::Text) => self.element(text.as_bytes())?,
            (Datum::Catalogue(text), Wire::Text) => match array_text(self.kind, text) {
                Some(array) => self.element(array.as_bytes())?,
                None => self.element(text.as_bytes())?,
            },
            (Datum::Bytes(bytes), Wire::Bytes) => self.element(bytes)?,
            (Datum::Uuid(bytes), Wire::Uuid) => self.element(bytes)?,
            (Datum::Date(days), Wire::Date) => self.element(&date(*days).to_be_bytes())?,
            (Datum::Time(micros), Wire::Time) => self.element(&micros.to_be_bytes())?,
            (Datum::Timestamp(micros), Wire::Timestamp) | (Datum::TimestampTz(micros), Wire::TimestampTz) => {
                self.element(&instant(*micros).to_be_bytes())?;
            }
            _ => return Err(Mismatch),
        }
        Ok(())
    }

    const fn is_numeric(&self) -> bool {
        matches!(self.kind, ColumnType::Numeric { .. })
    }

    fn element(&mut self, bytes: &[u8]) -> Result<(), Mismatch> {
        let length = i32::try_from(bytes.len()).map_err(|_| Mismatch)?;
        self.count += 1;
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend(bytes);
        Ok(())
    }
}

fn narrow<T: TryFrom<i64>>(number: i64) -> Result<T, Mismatch> {
    T::try_from(number).map_err(|_| Mismatch)
}

/// The ends of the range are PostgreSQL's infinities, which no value of ours means: those next to them are out of range for
/// the server, as they should be.
fn date(days: i32) -> i32 {
    days.saturating_sub(EPOCH_DAYS).clamp(i32::MIN + 1, i32::MAX - 1)
}

fn instant(micros: i64) -> i64 {
    micros.saturating_sub(EPOCH_MICROS).clamp(i64::MIN + 1, i64::MAX - 1)
}

impl Type<Postgres> for ColumnArray<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Wire::Text.oids().1))
    }
}

impl Encode<'_, Postgres> for ColumnArray<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let (element, _) = self.wire.oids();
        let start = buffer.len();
        buffer.extend_from_slice(&self.bytes);
        // One dimension, NULLs possible, lower bound 1. An empty array has no dimension, but the server takes this form.
        let header = [1_i32, 1, element.cast_signed(), self.count, 1];
        for (index, word) in header.iter().enumerate() {
            buffer[start + index * 4..start + index * 4 + 4].copy_from_slice(&word.to_be_bytes());
        }
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.wire.oids().1)))
    }

    fn size_hint(&self) -> usize {
        self.bytes.len()
    }
}
