//! Projections written in YAML.
//!
//! [`load`] reads a file, checks everything that can be known without services, and gives a [`YamlProjection`] or every
//! mistake with its place and what to write instead. Checking has four steps, a file each: sources, tables with their
//! columns and views, handlers, and at last what follows from all of them together: which handler takes which type of
//! which topic, who owns the rows of a table, what has to be decoded, and the digest.

mod bind;
mod column;
mod column_type;
mod default;
mod digest;
mod event;
mod head;
mod notes;
mod operation;
mod places;
mod source;
mod table;
mod type_names;

use std::io;
use std::path::Path;

use ahash::AHashMap as HashMap;

pub use notes::Warning;
pub use places::{Addition, Places, SourcePlaces, TablePlaces};

use self::bind::{Binder, Bound};
use self::event::HandlerDraft;
use self::notes::Notes;
use self::operation::{Mapped as MappedExpression, Operation, Values};
use self::source::SourceDraft;
use self::table::TableDraft;
use super::change::{Assignment, Effect};
use super::expression::{Expression, Failure, SourceText, explain, text_of};
use super::{Changes, Declaration, Event, EventChange, Mapped, Projection, UnknownEvents, Value};
use crate::config::yaml::{self, Mistake, Node, Place};
use crate::fault::{Reason, RecordFault, Stage};

/// A projection read from YAML.
#[derive(Debug)]
pub struct YamlProjection {
    declaration: Declaration,
    warnings: Vec<Warning>,
    places: Places,
    handlers: Vec<Vec<Operation>>,
    sources: Vec<SourcePlan>,
}

impl YamlProjection {
    /// The types for which a source, by its index, has a handler; in no order.
    pub fn handled_types(&self, source: usize) -> impl Iterator<Item = &str> {
        self.sources.get(source).into_iter().flat_map(|plan| plan.types.keys().map(String::as_str))
    }
}

/// How the events of one source are mapped.
#[derive(Debug)]
struct SourcePlan {
    aggregate: Expression,
    /// Type to index of the handler.
    types: HashMap<String, usize>,
    /// What a tombstone does; `None`: it is passed by.
    tombstone: Option<Vec<Operation>>,
}

/// Reads a projection file; files that it names are relative to it.
///
/// # Errors
/// Every mistake that was found, by place.
pub fn load(path: &Path) -> Result<YamlProjection, Vec<Mistake>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let place = Place { file: path.into(), line: 1, column: 1 };
        vec![Mistake::new(&place, format!("the file cannot be read: {error}"))]
    })?;
    parse(path, &text, |path| std::fs::read_to_string(path))
}

/// Reads a projection from text; `read_file` reads the schema files that it names.
///
/// # Errors
/// Every mistake that was found, by place.
pub fn parse(
    file: &Path,
    text: &str,
    read_file: impl Fn(&Path) -> io::Result<String>,
) -> Result<YamlProjection, Vec<Mistake>> {
    let root = yaml::parse(file, text).map_err(|mistake| vec![explain(mistake, SourceText(text))])?;
    root.map("a projection file").map_err(|mistake| {
        vec![mistake.fix("begin with projection: NAME, version: 1, sources, tables and events")]
    })?;
    let mut notes = Notes::new(text);
    let projection = build(&root, text, &read_file, &mut notes);
    let Notes { mut mistakes, mut warnings, .. } = notes;
    mistakes.sort_by(|a, b| a.place.cmp(&b.place));
    warnings.sort_by(|a, b| a.place.cmp(&b.place));
    if mistakes.is_empty() { Ok(YamlProjection { warnings, ..projection }) } else { Err(mistakes) }
}

const KEYS: &[&str] = &[
    "projection",
    "version",
    "sources",
    "tables",
    "views",
    "events",
    "unknown_events",
    "ignore",
    "on_error",
    "staleness",
];

/// Builds what can be built; where there are mistakes in `notes`, the result is not used.
fn build(root: &Node, text: &str, read_file: source::ReadFile<'_>, notes: &mut Notes<'_>) -> YamlProjection {
    notes.only_keys(root, "a projection file", KEYS, &[]);
    let name = head::projection_name(root, notes);
    let version = head::version(root, notes);
    let mut sources = source::read(root, read_file, notes);
    let mut tables = table::read(root, version, notes);
    let (views, view_places) = table::views(root, version, &tables, notes).into_iter().unzip();
    let handlers = event::read(root, &sources, &tables, notes);
    let tombstones: Vec<Vec<Operation>> = sources
        .iter()
        .map(|source| {
            source
                .tombstone
                .map_or_else(Vec::new, |node| operation::operations(node, &tables, Values::Absent, notes))
        })
        .collect();
    let binder = Binder {
        sources: &mut sources,
        tables: &mut tables,
        handlers: &handlers,
        tombstones: &tombstones,
        notes,
    };
    let bound = binder.bind();
    let unknown_events = head::unknown_events(root, notes);
    let on_error = head::on_error(root, notes);
    let staleness = head::staleness(root, notes);
    let content = digest::Content {
        name: &name,
        sources: &sources,
        tables: &tables,
        handlers: &handlers,
        bound: &bound,
        tombstones: &tombstones,
        unknown_events: &unknown_events,
    };
    let digest = content.digest();
    let places = Places {
        name: root.get("projection").map_or(&root.place, |node| &node.place).clone(),
        sources: sources.iter().map(SourcePlaces::of).collect(),
        tables: tables.iter().map(TablePlaces::of).collect(),
        views: view_places,
        additions: handlers.iter().flat_map(|handler| &handler.operations).flat_map(additions).collect(),
    };
    let declaration = Declaration {
        name,
        version,
        sources: sources.iter().map(|source| source.declaration.clone()).collect(),
        tables: tables.into_iter().map(|draft: TableDraft| draft.table).collect(),
        views,
        unknown_events,
        on_error,
        staleness,
        text: text.to_owned(),
        digest,
    };
    let sources = plans(sources, bound, tombstones);
    let handlers = handlers.into_iter().map(|handler: HandlerDraft| handler.operations).collect();
    YamlProjection { declaration, warnings: Vec::new(), places, handlers, sources }
}

fn additions(operation: &Operation) -> impl Iterator<Item = Addition> {
    let added = operation.upsert.iter().flatten().filter(|assigned| assigned.effect == Effect::Add);
    added.map(|assigned| Addition {
        table: operation.table,
        column: assigned.column,
        place: assigned.value.place.clone(),
    })
}

fn plans(sources: Vec<SourceDraft<'_>>, bound: Bound, tombstones: Vec<Vec<Operation>>) -> Vec<SourcePlan> {
    let parts = sources.into_iter().zip(bound).zip(tombstones);
    parts
        .map(|((source, types), tombstone)| SourcePlan {
            aggregate: source.aggregate,
            types: types.into_iter().collect(),
            tombstone: source.tombstone.map(|_| tombstone),
        })
        .collect()
}

impl YamlProjection {
    /// What works, but perhaps not as its author thinks; by place.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Where its parts stand in its file.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    fn apply(
        &self,
        operations: &[Operation],
        aggregate: &Expression,
        event: &Event<'_>,
        changes: &mut Changes,
    ) -> Result<(), RecordFault> {
        for operation in operations {
            if let Some(when) = &operation.when
                && !when.expression.is_true(event).map_err(|failure| fault(failure, when))?
            {
                continue;
            }
            changes.push(self.change(operation, aggregate, event)?);
        }
        Ok(())
    }

    fn change(
        &self,
        operation: &Operation,
        aggregate: &Expression,
        event: &Event<'_>,
    ) -> Result<EventChange, RecordFault> {
        let table = &self.declaration.tables[operation.table.0];
        let name = |column: usize| table.columns[column].name.as_str();
        let mut key = Vec::with_capacity(operation.key.len());
        for (mapped, column) in operation.key.iter().zip(&table.primary_key) {
            let value = needed(mapped, event)
                .map_err(|failure| fault(failure, mapped).in_column(&table.name, name(column.0)))?;
            key.push(value);
        }
        let aggregate = table.stores_aggregate().then(|| aggregate_text(aggregate, event)).transpose()?;
        let change = match &operation.upsert {
            None => super::Operation::Delete,
            Some(assigned) => {
                let mut assignments = Vec::with_capacity(assigned.len());
                for one in assigned {
                    let value = one.value.expression.evaluate(event).map_err(|failure| {
                        fault(failure, &one.value).in_column(&table.name, name(one.column.0))
                    })?;
                    // An absent field keeps its column.
                    if let Some(value) = value {
                        assignments.push(Assignment {
                            column: one.column,
                            effect: one.effect,
                            value: value.into_owned(),
                        });
                    }
                }
                super::Operation::Upsert(assignments)
            }
        };
        Ok(EventChange { table: operation.table, key, aggregate, operation: change })
    }

    fn unknown(&self, event_type: &str) -> Result<Mapped, RecordFault> {
        match &self.declaration.unknown_events {
            UnknownEvents::Ignore => Ok(Mapped::Ignored),
            UnknownEvents::DeadLetter { except } if except.iter().any(|known| known == event_type) => {
                Ok(Mapped::Ignored)
            }
            UnknownEvents::DeadLetter { .. } => {
                // A type is a name; but what stands in its place may be anything, so it is cut.
                let shown: String = event_type.chars().take(64).filter(|c| !c.is_control()).collect();
                let detail = format!("no handler for events of the type `{shown}`");
                Err(RecordFault::new(Stage::Map, Reason::UnknownEvent, detail))
            }
        }
    }
}

impl Projection for YamlProjection {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.places.name.file)
    }

    fn map(&self, event: &Event<'_>, changes: &mut Changes) -> Result<Mapped, RecordFault> {
        let Some(plan) = self.sources.get(event.source) else {
            return Err(RecordFault::new(
                Stage::Map,
                Reason::UnknownType,
                "the event comes from no declared source",
            ));
        };
        let operations = match event.event_type {
            None => match &plan.tombstone {
                Some(operations) => operations,
                None => return Ok(Mapped::Ignored),
            },
            Some(event_type) => match plan.types.get(event_type) {
                Some(handler) => &self.handlers[*handler],
                None => return self.unknown(event_type),
            },
        };
        self.apply(operations, &plan.aggregate, event, changes).inspect_err(|_| drop(changes.take()))?;
        Ok(Mapped::Handled)
    }
}

fn fault(failure: Failure, mapped: &MappedExpression) -> RecordFault {
    let place = format!(" (line {}, column {} of the projection)", mapped.place.line, mapped.place.column);
    RecordFault::new(Stage::Map, failure.reason, failure.detail + &place)
}

fn needed(mapped: &MappedExpression, event: &Event<'_>) -> Result<Value, Failure> {
    match mapped.expression.evaluate(event)? {
        Some(value) => Ok(value.into_owned()),
        None => Err(absent(&mapped.expression, "a column of the key")),
    }
}

fn absent(expression: &Expression, what: &str) -> Failure {
    Failure::new(Reason::MissingField, format!("{what} is absent: `{}`", expression.text()))
}

fn aggregate_text(aggregate: &Expression, event: &Event<'_>) -> Result<Value, RecordFault> {
    let value = aggregate.evaluate(event)?.ok_or_else(|| absent(aggregate, "the aggregate"))?;
    Ok(match &*value {
        Value::Null => Value::Null,
        value => Value::Text(text_of(value)),
    })
}

#[cfg(test)]
mod tests;
