//! Projections written in YAML.
//!
//! [`load`] reads a file, checks everything that can be known without services, and gives a [`YamlProjection`] or every
//! mistake with its place and what to write instead. Checking has four steps, a file each: sources, tables with their
//! columns and views, handlers, and at last what follows from all of them together: which handler takes which type of
//! which topic, who owns the rows of a table, what has to be decoded, and the digest.

mod assignments;
mod bind;
mod column;
mod column_type;
mod default;
mod digest;
mod event;
mod families;
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
pub use places::{Places, SourcePlaces, TablePlaces, Use, UsedColumn};

use self::bind::{Binder, Bound};
use self::event::HandlerDraft;
use self::notes::Notes;
use self::operation::{Mapped as MappedExpression, Operation, Values, Write};
use self::source::SourceDraft;
use self::table::TableDraft;
use super::change::{Assignment, Conditions, Effect};
use super::expression::{Expression, Failure, SourceText, explain, text_of};
use super::{
    Changes, Declaration, Event, EventChange, Mapped, Ownership, Projection, Table, UnknownEvents, Value,
};
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
    families::check(&tables, &handlers, &tombstones, notes);
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
        used: handlers
            .iter()
            .flat_map(|handler| &handler.operations)
            .chain(tombstones.iter().flatten())
            .flat_map(used)
            .collect(),
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

/// The columns that an operation has the store compute with.
fn used(operation: &Operation) -> impl Iterator<Item = UsedColumn> {
    let of =
        |column, how, place: &Place| UsedColumn { table: operation.table, column, how, place: place.clone() };
    let assigned = operation.assigned.iter().filter_map(move |one| {
        let how = match one.effect {
            Effect::Add | Effect::Subtract => Use::Added,
            Effect::Max | Effect::Min => Use::Compared,
            Effect::Set | Effect::SetOnce => return None,
        };
        Some(of(one.column, how, &one.value.place))
    });
    let newer = operation.if_newer.iter().map(move |(id, mapped)| of(*id, Use::Compared, &mapped.place));
    let only_if = operation.only_if.iter().map(move |one| of(one.column, Use::Compared, &one.place));
    assigned.chain(newer).chain(only_if)
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
            let value = needed(mapped, event, "a column of the key")
                .map_err(|failure| fault(failure, mapped).in_column(&table.name, name(column.0)))?;
            key.push(value);
        }
        let aggregate = table.stores_aggregate().then(|| aggregate_text(aggregate, event)).transpose()?;
        let assignments = assignments(operation, table, event)?;
        let change = match operation.write {
            Write::Upsert => super::Operation::Upsert(assignments),
            Write::Replace => super::Operation::Replace(assignments),
            Write::Update => super::Operation::Update(assignments),
            Write::Delete => super::Operation::Delete,
        };
        let conditions = conditions(operation, table, event)?;
        Ok(EventChange { table: operation.table, key, aggregate, operation: change, conditions })
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

fn assignments(
    operation: &Operation,
    table: &Table,
    event: &Event<'_>,
) -> Result<Vec<Assignment>, RecordFault> {
    // In a shared table the newest event wins as a whole: it sets all its columns.
    let whole = table.ownership == Ownership::Shared && !operation.if_newer.is_empty();
    let mut assignments = Vec::with_capacity(operation.assigned.len());
    for one in &operation.assigned {
        let in_column =
            |failure| fault(failure, &one.value).in_column(&table.name, &table.columns[one.column.0].name);
        match one.value.expression.evaluate(event).map_err(in_column)? {
            Some(value) => assignments.push(Assignment {
                column: one.column,
                effect: one.effect,
                value: value.into_owned(),
            }),
            None if whole => {
                return Err(in_column(absent(&one.value.expression, "what the newest event sets")));
            }
            // An absent field keeps its column.
            None => {}
        }
    }
    Ok(assignments)
}

fn conditions(operation: &Operation, table: &Table, event: &Event<'_>) -> Result<Conditions, RecordFault> {
    let mut conditions = Conditions::default();
    for (id, mapped) in &operation.if_newer {
        let value = needed(mapped, event, "what if_newer compares")
            .map_err(|failure| fault(failure, mapped).in_column(&table.name, &table.columns[id.0].name))?;
        conditions.if_newer.push((*id, value));
    }
    conditions.only_if.extend(operation.only_if.iter().map(|one| (one.column, one.value.clone())));
    Ok(conditions)
}

fn needed(mapped: &MappedExpression, event: &Event<'_>, what: &str) -> Result<Value, Failure> {
    match mapped.expression.evaluate(event)? {
        Some(value) => Ok(value.into_owned()),
        None => Err(absent(&mapped.expression, what)),
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
