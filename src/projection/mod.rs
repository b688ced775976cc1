//! MAP: a projection is a pure function from an event to row changes (promise P7).
//!
//! Two ways to write one, one trait: YAML, read by [`spec`], and a Rust type that implements [`Projection`]. Both give a
//! [`Declaration`], which says everything about sources, tables and views that other parts need, and [`Projection::map`],
//! which turns one [`Event`] into the changes of that record. The same event always gives the same changes: no clock, no
//! I/O, no reading of rows.

pub mod change;
pub mod describe;
pub mod expression;
pub mod spec;
pub mod table;
pub mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use change::{Changes, EventChange, Operation};
pub use describe::describe;
pub use table::{
    Column, ColumnId, ColumnType, Datum, Index, Nullability, Ownership, Table, TableId, View, ViewBody,
};
pub use value::Value;

use sha2::Digest as _;

use crate::fault::RecordFault;
use crate::record::Record;

/// A projection: what it declares, and how it maps one event.
pub trait Projection: Send + Sync + 'static {
    /// Everything but the mapping. Must not change while the program runs.
    fn declaration(&self) -> &Declaration;

    /// Maps one event. Called once for a record, and again where its batch is split; must give the same answer.
    ///
    /// All changes that are added belong to this record: they are applied together or, when one of them is refused,
    /// not at all.
    ///
    /// # Errors
    /// The event cannot be used; `on_error` of the declaration decides what happens. Details quote no value.
    fn map(&self, event: &Event<'_>, changes: &mut Changes) -> Result<Mapped, RecordFault>;

    /// The file that it was read from, for messages; `None` of a projection written in Rust.
    fn file(&self) -> Option<&Path> {
        None
    }
}

/// What mapping made of an event that is usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapped {
    /// The handler ran; it may have added no change (`when` was false).
    Handled,
    /// The projection has no handler for this type; counted by type, and passed by.
    Ignored,
}

/// A decoded record on its way into a projection.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// Index of the source in [`Declaration::sources`].
    pub source: usize,
    /// The record it was decoded from: coordinates, timestamp, headers, raw bytes.
    pub record: &'a Record,
    /// The type by the source's rule; `None` for a tombstone.
    pub event_type: Option<&'a str>,
    /// The decoded key; `None` where the record has no key, or no expression names it.
    pub key: Option<&'a Value>,
    /// The decoded value; `None` for a tombstone.
    pub value: Option<&'a Value>,
}

/// Everything that a projection declares. Names are unique within their list.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// The projection's name: `[a-z][a-z0-9_]*`.
    pub name: String,
    /// Its version, from 1.
    pub version: u32,
    /// The topics that it reads; no topic twice.
    pub sources: Vec<SourceDeclaration>,
    /// Its tables in the order in which upserts are applied; deletes go in reverse.
    pub tables: Vec<Table>,
    /// What readers query; already with the default, one view a table.
    pub views: Vec<View>,
    /// What happens to events without a handler.
    pub unknown_events: UnknownEvents,
    /// What happens to a record that cannot be used.
    pub on_error: OnError,
    /// How old the oldest unapplied event may be before views count as stale.
    pub staleness: Duration,
    /// The mapping's text, kept in the store (section 9); of a Rust projection, its own rendering of what matters.
    pub text: String,
    /// SHA-256, in hexadecimal, of everything that decides the content of the tables: sources, schemas, columns, keys,
    /// events, unknown_events; not comments, indexes, views, on_error, staleness.
    pub digest: String,
}

/// The digest of a text: SHA-256 in hexadecimal. For projections written in Rust.
#[must_use]
pub fn digest_of(text: &str) -> String {
    use std::fmt::Write as _;

    let mut hex = String::with_capacity(64);
    for byte in sha2::Sha256::digest(text) {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

impl Declaration {
    /// The index of the source that reads `topic`.
    #[must_use]
    pub fn source_of(&self, topic: &str) -> Option<usize> {
        self.sources.iter().position(|source| source.topic == topic)
    }

    /// `name@version`, the form that commands take.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }
}

/// One topic and how its records are read.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceDeclaration {
    /// The topic.
    pub topic: String,
    /// How values are encoded.
    pub value: ValueFormat,
    /// How keys are encoded.
    pub key: KeyFormat,
    /// Where the event type is found.
    pub event_type: TypeRule,
    /// The fields of the value that the mapping reads.
    pub wanted: Wanted,
    /// Whether the mapping reads the key at all; a key that nobody reads is never decoded and never a fault.
    pub reads_key: bool,
    /// Where a first version begins.
    pub start: Start,
}

/// How values are encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueFormat {
    /// JSON text.
    Json,
    /// Avro behind the Confluent frame (a zero byte and a schema id of four bytes, big-endian).
    AvroConfluent {
        /// Where the schema of an id comes from.
        schemas: SchemaOrigin,
    },
    /// Avro without a frame, always of one schema.
    AvroPlain {
        /// The writer's schema: file and text. Further files hold named types that it refers to, and come first.
        schemas: Vec<SchemaFile>,
    },
}

/// Where the schema of a Confluent frame comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaOrigin {
    /// The configured schema registry.
    Registry,
}

/// A schema read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFile {
    /// The file, for messages.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// How keys are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFormat {
    /// UTF-8 text.
    String,
    /// JSON text.
    Json,
    /// Raw bytes.
    Bytes,
}

/// Where the event type is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypeRule {
    /// The full name of the Avro record, else the topic.
    RecordNameOrTopic,
    /// A header's text.
    Header(String),
    /// A text field of the value, by path.
    ValuePath(Vec<String>),
}

/// The fields of a value that the mapping reads; everything else is skipped by the decoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The whole value.
    All,
    /// These fields only; the tree of [`WantedFields`] says how deep.
    Fields(WantedFields),
}

/// A tree of field names. A name that leads to an empty tree wants everything below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WantedFields(pub BTreeMap<String, WantedFields>);

impl WantedFields {
    /// Adds a path. A shorter path that is already there wins, since it wants everything below.
    pub fn add(&mut self, path: &[String]) {
        let Some((first, rest)) = path.split_first() else { return };
        let known = self.0.contains_key(first);
        let below = self.0.entry(first.clone()).or_default();
        if rest.is_empty() {
            below.0.clear();
        } else if !known || !below.0.is_empty() {
            below.add(rest);
        }
    }
}

/// Where the first version of a projection begins to read a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The first offset that the log still holds.
    Earliest,
    /// The readable end when the version is registered.
    Latest,
}

/// What happens to an event for which no handler is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnknownEvents {
    /// It is passed by, counted by type.
    Ignore,
    /// It is a dead letter, except for these types.
    DeadLetter {
        /// Types that are passed by all the same.
        except: Vec<String>,
    },
}

/// What happens to a record that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// It is kept as a dead letter, and its partition goes on.
    DeadLetter,
    /// Its partition stops before it until a command decides.
    Quarantine,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn wanting_a_field_wants_everything_below_it_in_either_order() {
        for order in [["a", "a.b"], ["a.b", "a"]] {
            let mut wanted = WantedFields::default();
            for item in order {
                wanted.add(&path(item));
            }
            assert!(wanted.0["a"].0.is_empty(), "{order:?}");
        }
    }

    #[test]
    fn siblings_are_kept_apart() {
        let mut wanted = WantedFields::default();
        wanted.add(&path("a.b"));
        wanted.add(&path("a.c.d"));
        assert_eq!(wanted.0["a"].0.keys().collect::<Vec<_>>(), ["b", "c"]);
    }
}
