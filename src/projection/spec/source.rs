//! `sources:`

use std::io;
use std::path::{Path, PathBuf};

use super::notes::{Later, Notes};
use crate::config::yaml::{Node, Place};
use crate::projection::expression::{Expression, Root};
use crate::projection::{
    KeyFormat, SchemaFile, SchemaOrigin, SourceDeclaration, Start, TypeRule, ValueFormat, Wanted,
    WantedFields,
};

/// Reads a file beside the projection.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// A source as read; `wanted` and `reads_key` of its declaration are filled once the handlers are bound.
pub(super) struct SourceDraft<'n> {
    pub(super) place: Place,
    pub(super) topic_place: Place,
    /// Where each schema file is named.
    pub(super) schema_places: Vec<Place>,
    pub(super) declaration: SourceDeclaration,
    pub(super) aggregate: Expression,
    pub(super) tombstone: Option<&'n Node>,
}

impl SourceDraft<'_> {
    /// The only type that events of this source can have, where the rule leaves no other.
    pub(super) fn only_type(&self) -> Option<&str> {
        match (&self.declaration.event_type, &self.declaration.value) {
            (TypeRule::RecordNameOrTopic, ValueFormat::Json) => Some(&self.declaration.topic),
            _ => None,
        }
    }
}

const KEYS: &[&str] =
    &["topic", "format", "framing", "schemas", "key", "type", "aggregate", "start", "tombstone"];
const LATER: &[Later] = &[
    ("sequence", "leave it out: redeliveries are refused by position, in the order of the partition"),
    ("reader_schema", "leave it out: fields are found by name in the writer's schema"),
    ("envelope", "name the fields of the envelope: value.after.name"),
];

/// Reads all sources.
pub(super) fn read<'n>(
    root: &'n Node,
    read_file: ReadFile<'_>,
    notes: &mut Notes<'_>,
) -> Vec<SourceDraft<'n>> {
    let Some(node) = root.get("sources") else {
        notes.mistake(&root.place, "`sources` is missing", "write sources: [{ topic: …, format: json }]");
        return Vec::new();
    };
    let Some(items) = notes.keep(node.list("sources")) else { return Vec::new() };
    if items.is_empty() {
        notes.mistake(&node.place, "`sources` is empty", "name at least one topic");
    }
    let mut sources: Vec<SourceDraft<'n>> = Vec::with_capacity(items.len());
    for item in items {
        let Some(source) = one(item, read_file, notes) else { continue };
        if sources.iter().any(|known| known.declaration.topic == source.declaration.topic) {
            let message = format!("the topic `{}` stands twice in sources", source.declaration.topic);
            notes.mistake(&source.place, message, "keep one entry for each topic");
        } else {
            sources.push(source);
        }
    }
    sources
}

fn one<'n>(node: &'n Node, read_file: ReadFile<'_>, notes: &mut Notes<'_>) -> Option<SourceDraft<'n>> {
    notes.keep(node.map("a source"))?;
    notes.only_keys(node, "a source", KEYS, LATER);
    let Some(topic_node) = node.get("topic") else {
        notes.mistake(&node.place, "a source without `topic`", "write topic: NAME");
        return None;
    };
    let topic = notes.keep(topic_node.text("topic"))?.to_owned();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if topic.is_empty() || topic.len() > 249 || !topic.chars().all(legal) || matches!(&*topic, "." | "..") {
        notes.mistake(
            &topic_node.place,
            format!("`{topic}` is no name of a topic"),
            "use at most 249 letters, digits, `.`, `_` and `-`; patterns are not used here",
        );
    }
    let value = value_format(node, read_file, notes).unwrap_or(ValueFormat::Json);
    let key = node.get("key").and_then(|key| key_format(key, notes)).unwrap_or(KeyFormat::String);
    let event_type =
        node.get("type").and_then(|rule| type_rule(rule, notes)).unwrap_or(TypeRule::RecordNameOrTopic);
    let aggregate = node
        .get("aggregate")
        .and_then(|aggregate| aggregate_of(aggregate, notes))
        .unwrap_or_else(Expression::key);
    let start = node.get("start").and_then(|start| start_of(start, notes)).unwrap_or(Start::Earliest);
    Some(SourceDraft {
        place: node.place.clone(),
        topic_place: topic_node.place.clone(),
        schema_places: schema_places(node),
        declaration: SourceDeclaration {
            topic,
            value,
            key,
            event_type,
            wanted: Wanted::Fields(WantedFields::default()),
            reads_key: false,
            start,
        },
        aggregate,
        tombstone: node.get("tombstone"),
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Avro,
    Json,
}

#[derive(Clone, Copy, PartialEq)]
enum Framing {
    Confluent,
    None,
}

fn value_format(node: &Node, read_file: ReadFile<'_>, notes: &mut Notes<'_>) -> Option<ValueFormat> {
    let Some(format_node) = node.get("format") else {
        notes.mistake(&node.place, "a source without `format`", "write format: avro or format: json");
        return None;
    };
    let choices = [("avro", Format::Avro), ("json", Format::Json)];
    let later = [("protobuf", "use avro or json"), ("json_schema", "use json, unframed")];
    let format = notes.choice(format_node, "format", &choices, &later)?;
    let default = if format == Format::Avro { Framing::Confluent } else { Framing::None };
    let framings = [("confluent", Framing::Confluent), ("none", Framing::None)];
    let framing = match node.get("framing") {
        Some(framing) => notes.choice(framing, "framing", &framings, &[])?,
        None => default,
    };
    let schemas = node.get("schemas");
    match (format, framing) {
        (Format::Json, Framing::Confluent) => {
            let place = &node.get("framing").unwrap_or(node).place;
            notes.mistake(
                place,
                "`framing: confluent` of JSON is not in this release",
                "use plain JSON, without framing",
            );
            None
        }
        (Format::Json, Framing::None) => {
            if let Some(schemas) = schemas {
                notes.mistake(
                    &schemas.place,
                    "`schemas` of a JSON source",
                    "remove it: JSON carries no schema",
                );
            }
            Some(ValueFormat::Json)
        }
        (Format::Avro, Framing::Confluent) => {
            match schemas {
                Some(schemas) if schemas.list("schemas").is_ok() => notes.mistake(
                    &schemas.place,
                    "schemas from files with `framing: confluent` are not in this release",
                    "write schemas: registry, or framing: none where records have no frame",
                ),
                Some(schemas) => {
                    notes.choice(schemas, "schemas", &[("registry", ())], &[]);
                }
                None => {}
            }
            Some(ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry })
        }
        (Format::Avro, Framing::None) => {
            let Some(schemas) =
                schemas.filter(|schemas| schemas.list("schemas").is_ok_and(|list| !list.is_empty()))
            else {
                let place = &schemas.unwrap_or(node).place;
                notes.mistake(
                    place,
                    "unframed Avro needs the writer's schema",
                    "write schemas: [file.avsc]; files with named types that it refers to come first",
                );
                return None;
            };
            Some(ValueFormat::AvroPlain { schemas: schema_files(schemas, read_file, notes) })
        }
    }
}

/// Where the items of `schemas` stand.
fn schema_places(node: &Node) -> Vec<Place> {
    let list = node.get("schemas").and_then(|schemas| schemas.list("schemas").ok()).unwrap_or(&[]);
    list.iter().map(|item| item.place.clone()).collect()
}

fn schema_files(node: &Node, read_file: ReadFile<'_>, notes: &mut Notes<'_>) -> Vec<SchemaFile> {
    let mut files = Vec::new();
    for (name, place) in notes.names(node, "schemas") {
        // Relative to the projection's file.
        let path = place.file.parent().map_or_else(|| PathBuf::from(&name), |folder| folder.join(&name));
        match read_file(&path) {
            Ok(text) => {
                files.push(SchemaFile { path, text });
            }
            Err(error) => {
                let message = format!("the schema `{name}` cannot be read: {error}");
                notes.mistake(&place, message, "paths are relative to the projection's file");
            }
        }
    }
    files
}

fn key_format(node: &Node, notes: &mut Notes<'_>) -> Option<KeyFormat> {
    let choices = [("string", KeyFormat::String), ("json", KeyFormat::Json), ("bytes", KeyFormat::Bytes)];
    notes.choice(node, "key", &choices, &[("avro", "use fields of the value, or key: bytes")])
}

fn type_rule(node: &Node, notes: &mut Notes<'_>) -> Option<TypeRule> {
    let rule = notes.expression(node)?;
    match rule.as_path() {
        Some(path) if path.root == Root::Headers => path.fields.first().cloned().map(TypeRule::Header),
        Some(path) if path.root == Root::Value && !path.fields.is_empty() => {
            Some(TypeRule::ValuePath(path.fields.clone()))
        }
        _ => {
            notes.mistake(
                &node.place,
                "the type is found in a header or in a field of the value",
                "write type: headers[\"event-type\"] or type: value.kind",
            );
            None
        }
    }
}

fn aggregate_of(node: &Node, notes: &mut Notes<'_>) -> Option<Expression> {
    let aggregate = notes.expression(node)?;
    let reads = aggregate.reads();
    let header = aggregate.as_path().is_some_and(|path| path.root == Root::Headers);
    if !(reads.key || reads.value() || header || aggregate.text().contains("headers")) {
        notes.mistake(
            &node.place,
            "the aggregate does not depend on the record",
            "name what partitions are chosen by: key, or a field such as value.order_id",
        );
        return None;
    }
    Some(aggregate)
}

fn start_of(node: &Node, notes: &mut Notes<'_>) -> Option<Start> {
    if node.map("start").is_ok() {
        notes.mistake(
            &node.place,
            "`start` by timestamp, group or offsets is not in this release",
            "write start: earliest or start: latest",
        );
        return None;
    }
    notes.choice(node, "start", &[("earliest", Start::Earliest), ("latest", Start::Latest)], &[])
}
