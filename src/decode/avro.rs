//! Avro's binary encoding becomes values.
//!
//! Records are read along a [`Plan`]: wanted fields are built, the rest is stepped over without allocating. Nothing is
//! allocated before lengths and counts have been checked against the bytes that are left and the limits, and nesting is
//! counted, also of what is stepped over, so no bytes can exhaust memory or the stack.
//!
//! | Avro | value |
//! |---|---|
//! | int, long | `Int` |
//! | float, double | `Double`, NaN and infinities included |
//! | string, enum | `Text`; of an enum its symbol |
//! | bytes, fixed | `Bytes` |
//! | array | `List` |
//! | map, record | `Record`; of a key that comes twice, the last |
//! | union | the value of its branch |
//! | decimal, big-decimal | `Decimal` |
//! | uuid over string and fixed(16) | `Uuid` |
//! | date, time-millis, time-micros | `Date`, `Time` |
//! | timestamp-… | `TimestampTz`; nanoseconds that do not make a whole microsecond are refused |
//! | local-timestamp-… | `Timestamp`; the same |
//! | duration | `Text` in ISO 8601: `P1M2DT3.004S` |

use bytes::Bytes;
use bytestring::ByteString;

use super::Limits;
use super::cursor::Cursor;
use super::fields::Fields;
use super::flaw::{Flaw, too_deep, too_many_items};
use super::logical;
use super::plan::{Plan, Shape, Step};
use super::schema::{ParsedSchema, RecordType, Type, TypeId};
use crate::fault::Reason;
use crate::projection::Value;

/// Decodes one value, and names the type of record that it is.
pub(super) fn decode(
    bytes: &Bytes,
    plan: &Plan,
    limits: Limits,
) -> Result<(Option<ByteString>, Value), Flaw> {
    let schema = &*plan.schema;
    let mut reader = Reader { schema, cursor: Cursor::new(bytes), limits, items_left: limits.max_items };
    let value = reader.value(&plan.root, 0)?;
    if reader.cursor.remaining() > 0 {
        let detail = format!(
            "{} bytes follow the end of the value at byte {}",
            reader.cursor.remaining(),
            reader.cursor.position()
        );
        return Err(Flaw::new(Reason::TrailingBytes, detail));
    }
    let branch = match schema.of(schema.root()) {
        Type::Union(_) => usize::try_from(Cursor::new(bytes).long()?).ok(),
        _ => None,
    };
    Ok((plan.record_name(branch).cloned(), value))
}

struct Reader<'a> {
    schema: &'a ParsedSchema,
    cursor: Cursor<'a>,
    limits: Limits,
    items_left: usize,
}

impl Reader<'_> {
    /// Reads what a shape says of the next value.
    fn value(&mut self, shape: &Shape, depth: usize) -> Result<Value, Flaw> {
        match shape {
            Shape::Whole(id) => self.whole(*id, depth),
            Shape::Union(branches) => {
                let branch = self.branch(branches.len())?;
                self.value(&branches[branch], depth)
            }
            Shape::Record { steps, empty_fields } => {
                let depth = self.deeper(depth)?;
                self.count_items(*empty_fields)?;
                self.some_fields(steps, depth)
            }
            Shape::List { item, shape } => {
                let depth = self.deeper(depth)?;
                let mut items = Vec::new();
                self.each_item(*item, |reader| {
                    items.push(reader.value(shape, depth)?);
                    Ok(())
                })?;
                Ok(Value::List(items))
            }
            Shape::Map { value, entries } => {
                let depth = self.deeper(depth)?;
                let mut fields = Fields::default();
                self.each_entry(|reader| {
                    let name = reader.cursor.text()?;
                    match entries.get(&name) {
                        None => reader.skip(*value, depth),
                        Some(shape) => {
                            let value = reader.value(shape, depth).map_err(|flaw| flaw.within(&name))?;
                            fields.set(name, value);
                            Ok(())
                        }
                    }
                })?;
                Ok(fields.into_value())
            }
        }
    }

    fn some_fields(&mut self, steps: &[Step], depth: usize) -> Result<Value, Flaw> {
        let mut fields = Vec::new();
        for step in steps {
            match step {
                Step::Skip(id) => self.skip(*id, depth)?,
                Step::Read(name, shape) => {
                    let value = self.value(shape, depth).map_err(|flaw| flaw.within(name))?;
                    fields.push((name.clone(), value));
                }
            }
        }
        Ok(Value::Record(fields))
    }

    /// Reads all of the next value.
    fn whole(&mut self, id: TypeId, depth: usize) -> Result<Value, Flaw> {
        let schema = self.schema;
        match schema.of(id) {
            Type::List(item) => {
                let depth = self.deeper(depth)?;
                let mut items = Vec::new();
                self.each_item(*item, |reader| {
                    items.push(reader.whole(*item, depth)?);
                    Ok(())
                })?;
                Ok(Value::List(items))
            }
            Type::Map(value) => {
                let depth = self.deeper(depth)?;
                let mut fields = Fields::default();
                self.each_entry(|reader| {
                    let name = reader.cursor.text()?;
                    fields.set(name, reader.whole(*value, depth)?);
                    Ok(())
                })?;
                Ok(fields.into_value())
            }
            Type::Union(branches) => {
                let branch = self.branch(branches.len())?;
                self.whole(branches[branch], depth)
            }
            Type::Record(record) => {
                let depth = self.deeper(depth)?;
                self.record(record, depth)
            }
            scalar => self.scalar(scalar),
        }
    }

    fn record(&mut self, record: &RecordType, depth: usize) -> Result<Value, Flaw> {
        self.count_items(record.empty_fields)?;
        let mut fields =
            Vec::with_capacity(record.fields.len().min(self.cursor.remaining() + record.empty_fields));
        for field in &record.fields {
            let value = self.whole(field.of, depth).map_err(|flaw| flaw.within(&field.name))?;
            fields.push((field.name.clone(), value));
        }
        Ok(Value::Record(fields))
    }

    fn scalar(&mut self, kind: &Type) -> Result<Value, Flaw> {
        Ok(match kind {
            Type::Null => Value::Null,
            Type::Boolean => Value::Bool(self.cursor.boolean()?),
            Type::Int => Value::Int(self.cursor.int()?.into()),
            Type::Long => Value::Int(self.cursor.long()?),
            Type::Float => Value::Double(self.cursor.float()?.into()),
            Type::Double => Value::Double(self.cursor.double()?),
            Type::Bytes => Value::Bytes(self.cursor.bytes()?),
            Type::Text => Value::Text(self.cursor.text()?),
            Type::Fixed(size) => Value::Bytes(self.cursor.take(*size)?),
            Type::Enum(symbols) => Value::Text(self.symbol(symbols)?),
            Type::Decimal { scale, size: None } => logical::decimal(&self.cursor.bytes()?, *scale)?,
            Type::Decimal { scale, size: Some(size) } => logical::decimal(&self.cursor.take(*size)?, *scale)?,
            Type::BigDecimal => logical::big_decimal(&self.cursor.bytes()?)?,
            Type::UuidText => logical::uuid(&self.cursor.text()?)?,
            Type::UuidFixed => Value::Uuid(self.cursor.uuid()?),
            Type::Date => Value::Date(self.cursor.int()?),
            Type::TimeMillis => logical::time(i64::from(self.cursor.int()?) * 1000)?,
            Type::TimeMicros => logical::time(self.cursor.long()?)?,
            Type::Timestamp(unit, zone) => logical::timestamp(self.cursor.long()?, *unit, *zone)?,
            Type::Duration => logical::duration(self.cursor.duration()?),
            Type::List(_) | Type::Map(_) | Type::Union(_) | Type::Record(_) | Type::Reference(_) => {
                return Err(Flaw::new(Reason::InvalidSchema, "the schema has a type that is not resolved"));
            }
        })
    }

    /// Steps over the next value. Texts are not looked at.
    fn skip(&mut self, id: TypeId, depth: usize) -> Result<(), Flaw> {
        let schema = self.schema;
        if let Some(length) = schema.length(id) {
            return self.cursor.skip(length).map(drop);
        }
        match schema.of(id) {
            Type::Int
            | Type::Long
            | Type::Date
            | Type::TimeMillis
            | Type::TimeMicros
            | Type::Timestamp(..) => self.cursor.long().map(drop),
            Type::Bytes
            | Type::Text
            | Type::UuidText
            | Type::BigDecimal
            | Type::Decimal { size: None, .. } => self.skip_bytes(),
            Type::Enum(symbols) => self.symbol(symbols).map(drop),
            Type::List(item) => {
                let depth = self.deeper(depth)?;
                self.each_item(*item, |reader| reader.skip(*item, depth))
            }
            Type::Map(value) => {
                let depth = self.deeper(depth)?;
                self.each_entry(|reader| {
                    reader.skip_bytes()?;
                    reader.skip(*value, depth)
                })
            }
            Type::Union(branches) => {
                let branch = self.branch(branches.len())?;
                self.skip(branches[branch], depth)
            }
            Type::Record(record) => {
                let depth = self.deeper(depth)?;
                record.fields.iter().try_for_each(|field| self.skip(field.of, depth))
            }
            other => self.scalar(other).map(drop),
        }
    }

    fn skip_bytes(&mut self) -> Result<(), Flaw> {
        let length = self.cursor.length()?;
        self.cursor.skip(length).map(drop)
    }

    fn symbol(&mut self, symbols: &[ByteString]) -> Result<ByteString, Flaw> {
        let index = self.cursor.int()?;
        let symbol = usize::try_from(index).ok().and_then(|index| symbols.get(index));
        symbol.cloned().ok_or_else(|| self.cursor.invalid("the schema has no enum symbol with this number"))
    }

    fn branch(&mut self, branches: usize) -> Result<usize, Flaw> {
        match usize::try_from(self.cursor.long()?) {
            Ok(branch) if branch < branches => Ok(branch),
            _ => Err(self.cursor.invalid("the schema has no union branch with this number")),
        }
    }

    fn each_entry(&mut self, read: impl FnMut(&mut Self) -> Result<(), Flaw>) -> Result<(), Flaw> {
        // An entry has at least the length of its key.
        self.each_in_blocks(1, read)
    }

    fn each_item(
        &mut self,
        item: TypeId,
        read: impl FnMut(&mut Self) -> Result<(), Flaw>,
    ) -> Result<(), Flaw> {
        let least = self.schema.length(item).unwrap_or(1);
        self.each_in_blocks(least, read)
    }

    /// Calls `read` for every item of a list or map. `least` is the fewest bytes that an item takes.
    fn each_in_blocks(
        &mut self,
        least: usize,
        mut read: impl FnMut(&mut Self) -> Result<(), Flaw>,
    ) -> Result<(), Flaw> {
        loop {
            let count = self.cursor.long()?;
            if count == 0 {
                return Ok(());
            }
            // A negative count is followed by the block's size in bytes.
            let end = if count < 0 { Some(self.cursor.length()? + self.cursor.position()) } else { None };
            let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
            if count.checked_mul(least).is_none_or(|bytes| bytes > self.cursor.remaining()) {
                return Err(self.cursor.invalid("a list or map has more items than bytes are left"));
            }
            self.count_items(count)?;
            for _ in 0..count {
                read(self)?;
            }
            if end.is_some_and(|end| end != self.cursor.position()) {
                return Err(self.cursor.invalid("a block of a list or map has another size than it says"));
            }
        }
    }

    fn deeper(&self, depth: usize) -> Result<usize, Flaw> {
        if depth < self.limits.max_depth { Ok(depth + 1) } else { Err(too_deep(self.limits.max_depth)) }
    }

    fn count_items(&mut self, count: usize) -> Result<(), Flaw> {
        self.items_left =
            self.items_left.checked_sub(count).ok_or_else(|| too_many_items(self.limits.max_items))?;
        Ok(())
    }
}
