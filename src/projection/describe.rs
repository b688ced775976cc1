//! A summary of what a projection declares, for people.

use std::fmt::Write as _;

use super::{Declaration, KeyFormat, Ownership, Start, TypeRule, ValueFormat, ViewBody, Wanted};
use crate::count::counted;

/// Describes sources, tables and views, one line each; the text ends with a line break.
#[must_use]
pub fn describe(declaration: &Declaration) -> String {
    let mut out = format!("projection {}\n", declaration.label());
    for source in &declaration.sources {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "  reads {}: {}", source.topic, source_line(source));
    }
    for table in &declaration.tables {
        let key: Vec<&str> = table.primary_key.iter().map(|id| table.columns[id.0].name.as_str()).collect();
        let owned = match table.ownership {
            Ownership::OwnedByKey => "owned by the aggregate in its key",
            Ownership::OwnedStored => "owned, the aggregate is stored with each row",
            Ownership::Shared => "shared",
        };
        let _ = writeln!(
            out,
            "  writes {} ({}, key {}): {owned}",
            table.physical_name(declaration.version),
            counted(table.columns.len(), "column"),
            key.join(", ")
        );
    }
    for view in &declaration.views {
        let body = match &view.body {
            ViewBody::Table(id) => format!("the rows of {}", declaration.tables[id.0].name),
            ViewBody::Sql(_) => "its own SQL".to_owned(),
        };
        let _ = writeln!(out, "  shows {}: {body}", view.name);
    }
    out
}

fn source_line(source: &super::SourceDeclaration) -> String {
    let value = match &source.value {
        ValueFormat::Json => "JSON".to_owned(),
        ValueFormat::AvroConfluent { .. } => "Avro, schemas from the registry".to_owned(),
        ValueFormat::AvroPlain { schemas } => {
            let last = schemas.last().map_or_else(String::new, |schema| schema.path.display().to_string());
            format!("unframed Avro of {last}")
        }
    };
    let rule = match &source.event_type {
        TypeRule::RecordNameOrTopic if source.value == ValueFormat::Json => "the topic".to_owned(),
        TypeRule::RecordNameOrTopic => "the record's name".to_owned(),
        TypeRule::Header(name) => format!("the header {name}"),
        TypeRule::ValuePath(path) => format!("value.{}", path.join(".")),
    };
    let key = match (source.reads_key, source.key) {
        (false, _) => "not read",
        (true, KeyFormat::String) => "text",
        (true, KeyFormat::Json) => "JSON",
        (true, KeyFormat::Bytes) => "bytes",
    };
    let fields = match &source.wanted {
        Wanted::All => "all fields".to_owned(),
        Wanted::Fields(fields) => format!("{} field(s) decoded", fields.0.len()),
    };
    let start = match source.start {
        Start::Earliest => "earliest",
        Start::Latest => "latest",
    };
    format!("{value}; type by {rule}; key {key}; {fields}; from {start}")
}
