//! `events:`: handlers and the types that they take.

use super::notes::Notes;
use super::operation::{Operation, Values, operations};
use super::source::SourceDraft;
use super::table::TableDraft;
use crate::config::yaml::{Node, Place, suggestion};

/// A handler as read: the types that it takes, and its operations.
pub(super) struct HandlerDraft {
    pub(super) place: Place,
    pub(super) types: Vec<HandledType>,
    pub(super) operations: Vec<Operation>,
    /// Whether an operation was refused, so that checks which build on all of them stay silent.
    pub(super) broken: bool,
}

/// A type, of one source or of any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HandledType {
    pub(super) source: Option<usize>,
    pub(super) name: String,
}

/// Reads `events`.
pub(super) fn read(
    root: &Node,
    sources: &[SourceDraft<'_>],
    tables: &[TableDraft],
    notes: &mut Notes<'_>,
) -> Vec<HandlerDraft> {
    let Some(node) = root.get("events") else {
        if sources.iter().all(|source| source.tombstone.is_none()) {
            notes.mistake(
                &root.place,
                "`events` is missing",
                "write events: { Type: [{ upsert: table, key: {…}, set: {…} }] }",
            );
        }
        return Vec::new();
    };
    let Some(entries) = notes.keep(node.map("events")) else { return Vec::new() };
    if entries.is_empty() && sources.iter().all(|source| source.tombstone.is_none()) {
        notes.mistake(&node.place, "`events` is empty", "handle at least one type");
    }
    let mut handlers: Vec<HandlerDraft> = Vec::with_capacity(entries.len());
    for entry in entries {
        let types = handled_types(&entry.key, &entry.place, sources, notes);
        for handled in &types {
            let known = |handler: &&HandlerDraft| handler.types.contains(handled);
            if let Some(first) = handlers.iter().find(known) {
                let message = format!(
                    "the type `{}` is handled twice, first in line {}",
                    handled.name, first.place.line
                );
                notes.mistake(&entry.place, message, "put all operations of a type under one key");
            }
        }
        let before = notes.mistakes.len();
        let operations = operations(&entry.value, tables, Values::Present, notes);
        let broken = notes.mistakes.len() > before;
        handlers.push(HandlerDraft { place: entry.place.clone(), types, operations, broken });
    }
    handlers
}

fn handled_types(
    key: &str,
    place: &Place,
    sources: &[SourceDraft<'_>],
    notes: &mut Notes<'_>,
) -> Vec<HandledType> {
    let topics: Vec<&str> = sources.iter().map(|source| source.declaration.topic.as_str()).collect();
    let mut types: Vec<HandledType> = Vec::new();
    for part in key.split(" | ") {
        let part = part.trim();
        let handled = match part.split_once('/') {
            Some((topic, name)) if topics.contains(&topic) => {
                let source = topics.iter().position(|known| *known == topic);
                HandledType { source, name: name.to_owned() }
            }
            Some((topic, _)) if suggestion(topic, &topics).starts_with("did you mean") => {
                notes.mistake(
                    place,
                    format!("no source reads the topic `{topic}`"),
                    suggestion(topic, &topics),
                );
                continue;
            }
            Some((topic, _)) => {
                notes.warn(
                    place,
                    format!("no source reads a topic `{topic}`: `{part}` as a whole is taken for a type"),
                );
                HandledType { source: None, name: part.to_owned() }
            }
            None => HandledType { source: None, name: part.to_owned() },
        };
        if handled.name.is_empty() {
            notes.mistake(place, "a type without a name", "write Type, topic/Type, or \"A | B\"");
        } else if types.contains(&handled) {
            notes.mistake(place, format!("the type `{part}` stands twice"), "remove one of the two");
        } else {
            types.push(handled);
        }
    }
    types
}
