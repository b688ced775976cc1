//! What is read of a schema's records: the schema crossed with the fields that the mapping wants, once for each schema.

use std::sync::Arc;

use ahash::AHashMap;
use bytestring::ByteString;

use super::schema::{ParsedSchema, Type, TypeId};
use crate::projection::{Wanted, WantedFields};

/// How values of one schema are read.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) schema: Arc<ParsedSchema>,
    pub(super) root: Arc<Shape>,
}

/// What is read of a type.
#[derive(Debug)]
pub(super) enum Shape {
    /// All of it.
    Whole(TypeId),
    /// Some fields of a record.
    Record {
        /// One for each field, in the order of the bytes.
        steps: Box<[Step]>,
        /// How many of the fields that are read take no bytes.
        empty_fields: usize,
    },
    /// The same of every item.
    List { item: TypeId, shape: Arc<Shape> },
    /// Some entries of a map.
    Map { value: TypeId, entries: AHashMap<ByteString, Arc<Shape>> },
    /// Of whatever branch a value takes.
    Union(Box<[Arc<Shape>]>),
}

/// What is done with a field.
#[derive(Debug)]
pub(super) enum Step {
    /// It is stepped over.
    Skip(TypeId),
    /// It is read.
    Read(ByteString, Arc<Shape>),
}

impl Plan {
    pub(super) fn new(schema: Arc<ParsedSchema>, wanted: &Wanted) -> Self {
        let root = match wanted {
            Wanted::All => Arc::new(Shape::Whole(schema.root())),
            Wanted::Fields(fields) => {
                Compiler { schema: &schema, known: AHashMap::new() }.below(schema.root(), fields)
            }
        };
        Self { schema, root }
    }

    /// Names of the record type of a value that takes `branch` of a union at the root; `None` where it is no record.
    pub(super) fn record_name(&self, branch: Option<usize>) -> Option<&ByteString> {
        let root = match (self.schema.of(self.schema.root()), branch) {
            (Type::Union(branches), Some(branch)) => self.schema.of(*branches.get(branch)?),
            (other, _) => other,
        };
        match root {
            Type::Record(record) => Some(&record.name),
            _ => None,
        }
    }
}

struct Compiler<'a> {
    schema: &'a ParsedSchema,
    /// By type and address of the wanted fields: many branches may lead to the same pair.
    known: AHashMap<(TypeId, *const WantedFields), Arc<Shape>>,
}

impl Compiler<'_> {
    /// An empty tree wants everything.
    fn shape(&mut self, id: TypeId, wanted: &WantedFields) -> Arc<Shape> {
        if wanted.0.is_empty() { Arc::new(Shape::Whole(id)) } else { self.below(id, wanted) }
    }

    /// Exactly these fields, also where there are none.
    fn below(&mut self, id: TypeId, wanted: &WantedFields) -> Arc<Shape> {
        let pair = (id, std::ptr::from_ref(wanted));
        if let Some(shape) = self.known.get(&pair) {
            return shape.clone();
        }
        let schema = self.schema;
        let shape = match schema.of(id) {
            Type::Record(record) => {
                let mut empty_fields = 0;
                let steps = record.fields.iter().map(|field| match wanted.0.get(&*field.name) {
                    None => Step::Skip(field.of),
                    Some(below) => {
                        empty_fields += usize::from(schema.length(field.of) == Some(0));
                        Step::Read(field.name.clone(), self.shape(field.of, below))
                    }
                });
                let steps = steps.collect();
                Shape::Record { steps, empty_fields }
            }
            Type::List(item) => Shape::List { item: *item, shape: self.below(*item, wanted) },
            Type::Map(value) => {
                let entry = |(name, below): (&String, &WantedFields)| {
                    (ByteString::from(&**name), self.shape(*value, below))
                };
                Shape::Map { value: *value, entries: wanted.0.iter().map(entry).collect() }
            }
            Type::Union(branches) => {
                Shape::Union(branches.iter().map(|branch| self.below(*branch, wanted)).collect())
            }
            // Not a thing that has fields: the mapping will say what it makes of it.
            _ => Shape::Whole(id),
        };
        let shape = Arc::new(shape);
        self.known.insert(pair, shape.clone());
        shape
    }
}
