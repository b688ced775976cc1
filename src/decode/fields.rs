//! The fields of a record or map as they are read, no name twice.

use ahash::AHashMap;
use bytestring::ByteString;

use crate::projection::Value;

/// From this many fields on, names are looked up in an index instead of one by one.
const INDEXED_FROM: usize = 24;

/// Collects fields in the order of the source. A name that comes again replaces the value at its first place.
#[derive(Debug, Default)]
pub(super) struct Fields {
    fields: Vec<(ByteString, Value)>,
    index: Option<AHashMap<ByteString, usize>>,
}

impl Fields {
    pub(super) fn set(&mut self, name: ByteString, value: Value) {
        if let Some(place) = self.place(&name) {
            self.fields[place].1 = value;
            return;
        }
        if let Some(index) = &mut self.index {
            index.insert(name.clone(), self.fields.len());
        }
        self.fields.push((name, value));
    }

    fn place(&mut self, name: &ByteString) -> Option<usize> {
        if self.fields.len() < INDEXED_FROM {
            return self.fields.iter().position(|(field, _)| field == name);
        }
        let fields = &self.fields;
        let index = self.index.get_or_insert_with(|| {
            fields.iter().enumerate().map(|(place, (field, _))| (field.clone(), place)).collect()
        });
        index.get(name).copied()
    }

    pub(super) fn into_value(self) -> Value {
        Value::Record(self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_comes_again_replaces_the_value_at_its_first_place_however_many_fields_there_are() {
        for count in [2_usize, INDEXED_FROM, 10 * INDEXED_FROM] {
            let mut fields = Fields::default();
            for round in 0..2_i64 {
                for number in 0..count {
                    fields.set(ByteString::from(format!("f{number}")), Value::Int(round));
                }
            }
            let Value::Record(fields) = fields.into_value() else { panic!("a record") };
            assert_eq!(fields.len(), count);
            for (number, (name, value)) in fields.iter().enumerate() {
                assert_eq!((&**name, value), (format!("f{number}").as_str(), &Value::Int(1)));
            }
        }
    }
}
