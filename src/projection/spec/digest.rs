//! The digest of a projection: the same for files that give the same tables, whatever their comments, indexes and views.

use std::collections::BTreeMap;

use serde_json::{Value as Json, json};

use super::assignments::Assigned;
use super::event::HandlerDraft;
use super::operation::{Operation, Write};
use super::source::SourceDraft;
use super::table::TableDraft;
use crate::projection::{
    Datum, KeyFormat, Nullability, Start, TypeRule, UnknownEvents, ValueFormat, digest_of,
};

/// What the digest covers.
pub(super) struct Content<'a, 'n> {
    pub(super) name: &'a str,
    pub(super) sources: &'a [SourceDraft<'n>],
    pub(super) tables: &'a [TableDraft],
    pub(super) handlers: &'a [HandlerDraft],
    pub(super) bound: &'a [BTreeMap<String, usize>],
    pub(super) tombstones: &'a [Vec<Operation>],
    pub(super) unknown_events: &'a UnknownEvents,
}

impl Content<'_, '_> {
    /// SHA-256 in hexadecimal.
    pub(super) fn digest(&self) -> String {
        digest_of(&self.rendering().to_string())
    }

    /// Lists only, so that no library's order of keys can change it. The order of sources and tables in the file does not
    /// matter, that of operations in a handler does.
    fn rendering(&self) -> Json {
        let mut sources: Vec<Json> = (0..self.sources.len()).map(|source| self.source(source)).collect();
        sources.sort_by_key(ToString::to_string);
        let mut tables: Vec<Json> = self.tables.iter().map(table).collect();
        tables.sort_by_key(ToString::to_string);
        let unknown = match self.unknown_events {
            UnknownEvents::Ignore => json!(["ignore"]),
            UnknownEvents::DeadLetter { except } => {
                let mut except = except.clone();
                except.sort();
                json!(["dead_letter", except])
            }
        };
        json!(["projection 1", self.name, sources, tables, unknown])
    }

    fn source(&self, index: usize) -> Json {
        let draft = &self.sources[index];
        let declaration = &draft.declaration;
        let value = match &declaration.value {
            ValueFormat::Json => json!(["json"]),
            ValueFormat::AvroConfluent { .. } => json!(["avro", "confluent", "registry"]),
            ValueFormat::AvroPlain { schemas } => {
                let texts: Vec<&str> = schemas.iter().map(|schema| schema.text.as_str()).collect();
                json!(["avro", "none", texts])
            }
        };
        let key = match declaration.key {
            KeyFormat::String => "string",
            KeyFormat::Json => "json",
            KeyFormat::Bytes => "bytes",
        };
        let rule = match &declaration.event_type {
            TypeRule::RecordNameOrTopic => json!(["name"]),
            TypeRule::Header(name) => json!(["header", name]),
            TypeRule::ValuePath(path) => json!(["value", path]),
        };
        let start = match declaration.start {
            Start::Earliest => "earliest",
            Start::Latest => "latest",
        };
        let operations =
            |list: &[Operation]| -> Vec<Json> { list.iter().map(|one| self.operation(one)).collect() };
        let handlers: Vec<Json> = self.bound[index]
            .iter()
            .map(|(name, handler)| json!([name, operations(&self.handlers[*handler].operations)]))
            .collect();
        let tombstone = draft.tombstone.map(|_| operations(&self.tombstones[index]));
        json!([declaration.topic, value, key, rule, draft.aggregate.canonical(), start, handlers, tombstone])
    }

    fn operation(&self, operation: &Operation) -> Json {
        let table = &self.tables[operation.table.0].table;
        let named = |index: usize| table.columns[index].name.as_str();
        let mut key: Vec<Json> = table
            .primary_key
            .iter()
            .zip(&operation.key)
            .map(|(id, mapped)| json!([named(id.0), mapped.expression.canonical()]))
            .collect();
        key.sort_by_key(ToString::to_string);
        let when = operation.when.as_ref().map(|when| when.expression.canonical());
        let assigned = (operation.write != Write::Delete).then(|| {
            let of = |one: &Assigned| {
                json!([named(one.column.0), one.effect.word(), one.value.expression.canonical()])
            };
            let mut list: Vec<Json> = operation.assigned.iter().map(of).collect();
            list.sort_by_key(ToString::to_string);
            list
        });
        let mut rendering = vec![json!(table.name), json!(key), json!(when), json!(assigned)];
        match operation.write {
            Write::Upsert | Write::Delete => {}
            Write::Replace => rendering.push(json!("replace")),
            Write::Update => rendering.push(json!("update")),
        }
        if !operation.if_newer.is_empty() {
            let newer: Vec<Json> = operation
                .if_newer
                .iter()
                .map(|(id, mapped)| json!([named(id.0), mapped.expression.canonical()]))
                .collect();
            rendering.push(json!(["if_newer", newer]));
        }
        if !operation.only_if.is_empty() {
            let mut compared: Vec<Json> =
                operation.only_if.iter().map(|one| json!([named(one.column.0), one.text])).collect();
            compared.sort_by_key(ToString::to_string);
            rendering.push(json!(["only_if", compared]));
        }
        Json::Array(rendering)
    }
}

fn table(draft: &TableDraft) -> Json {
    let table = &draft.table;
    let key: Vec<&str> = table.primary_key.iter().map(|id| table.columns[id.0].name.as_str()).collect();
    let mut columns: Vec<Json> = table
        .columns
        .iter()
        .map(|column| {
            let not_null = column.nullability == Nullability::NotNull;
            let default = column.default.as_ref().map(datum);
            json!([column.name, column.kind.to_string(), not_null, default, column.generated])
        })
        .collect();
    columns.sort_by_key(ToString::to_string);
    json!([table.name, draft.is_shared(), key, columns])
}

fn datum(datum: &Datum) -> String {
    match datum {
        Datum::Null => "null".into(),
        Datum::Bool(flag) => flag.to_string(),
        Datum::Int(number) | Datum::Time(number) | Datum::Timestamp(number) | Datum::TimestampTz(number) => {
            number.to_string()
        }
        Datum::Numeric(number) => number.to_plain_string(),
        Datum::Double(number) => format!("{number:?}"),
        Datum::Text(text) | Datum::Json(text) | Datum::Catalogue(text) => format!("'{text}'"),
        Datum::Bytes(bytes) => format!("{bytes:?}"),
        Datum::Uuid(bytes) => uuid::Uuid::from_bytes(*bytes).to_string(),
        Datum::Date(days) => days.to_string(),
    }
}
