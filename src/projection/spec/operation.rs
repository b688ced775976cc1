//! The operations of a handler or a tombstone.

use super::assignments::{self, Assigned, Compared};
use super::notes::{Later, Notes};
use super::table::{TableDraft, column_id};
use crate::config::yaml::{Kind, Node, Place, suggestion};
use crate::projection::expression::Expression;
use crate::projection::{ColumnId, TableId, Value};

/// What one operation of a handler does.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) place: Place,
    pub(super) table: TableId,
    /// By the key's order.
    pub(super) key: Vec<Mapped>,
    pub(super) when: Option<Mapped>,
    pub(super) write: Write,
    /// Empty where the row is deleted.
    pub(super) assigned: Vec<Assigned>,
    /// In the order of comparison.
    pub(super) if_newer: Vec<(ColumnId, Mapped)>,
    pub(super) only_if: Vec<Compared>,
}

/// What becomes of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// `upsert`
    Upsert,
    /// `upsert` with `mode: replace`
    Replace,
    /// `update`
    Update,
    /// `delete`
    Delete,
}

/// An expression and where it stands.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) expression: Expression,
    pub(super) place: Place,
}

impl Operation {
    /// Every expression of the operation.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Mapped> {
        let assigned = self.assigned.iter().map(|assigned| &assigned.value);
        let newer = self.if_newer.iter().map(|(_, mapped)| mapped);
        self.key.iter().chain(&self.when).chain(assigned).chain(newer)
    }

    /// Whether the row is made where it is not there.
    pub(super) const fn makes_rows(&self) -> bool {
        matches!(self.write, Write::Upsert | Write::Replace)
    }

    /// Whether the operation gives the column a value: by an assignment or by `if_newer`.
    pub(super) fn writes(&self, column: ColumnId) -> bool {
        self.assigned.iter().any(|assigned| assigned.column == column)
            || self.if_newer.iter().any(|(known, _)| *known == column)
    }
}

const KEYS: &[&str] = &[
    "upsert", "update", "delete", "key", "set", "mode", "except", "add", "subtract", "max", "min",
    "set_once", "if_newer", "only_if", "when",
];
const CHILDREN: &str = "write the children as a table of their own, with events of their own";
const LATER: &[Later] = &[
    ("children", CHILDREN),
    ("parent", CHILDREN),
    ("each", CHILDREN),
    ("late", "leave it out: it belongs to `sequence`, which is not in this release either"),
];
const VERBS: &[(&str, Write)] =
    &[("upsert", Write::Upsert), ("update", Write::Update), ("delete", Write::Delete)];

/// Whether the events of a handler have a value: those of a tombstone have none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Present,
    Absent,
}

/// Reads a list of operations.
pub(super) fn operations(
    node: &Node,
    tables: &[TableDraft],
    values: Values,
    notes: &mut Notes<'_>,
) -> Vec<Operation> {
    let Kind::List(items) = &node.kind else {
        notes.mistake(
            &node.place,
            "the operations of a type are a list",
            "write - upsert: table, or [] to do nothing",
        );
        return Vec::new();
    };
    items.iter().filter_map(|item| operation(item, tables, values, notes)).collect()
}

fn operation(node: &Node, tables: &[TableDraft], values: Values, notes: &mut Notes<'_>) -> Option<Operation> {
    notes.keep(node.map("an operation"))?;
    notes.only_keys(node, "an operation", KEYS, LATER);
    let (name, verb) = verb(node, notes)?;
    let id = table(name, tables, notes)?;
    let draft = &tables[id.0];
    let key = key(node, draft, notes);
    let when = node.get("when").and_then(|when| condition(when, notes));
    let write = mode(node, verb, notes);
    if write == Write::Delete {
        refuse_for_delete(node, draft, notes);
    }
    let written = assignments::read(node, write, draft, notes);
    let operation = Operation {
        place: node.place.clone(),
        table: id,
        key: key?,
        when,
        write,
        assigned: written.assigned,
        if_newer: written.if_newer,
        only_if: written.only_if,
    };
    if values == Values::Absent {
        for mapped in operation.expressions().filter(|mapped| mapped.expression.reads().value()) {
            notes.mistake(&mapped.place, "a tombstone has no value", "map from key, headers or timestamp");
        }
        if operation.makes_rows() {
            let fix = "write delete: table, or update: table to mark the row";
            notes.mistake(&operation.place, "a tombstone makes no rows", fix);
        }
    }
    Some(operation)
}

/// What the operation does, and the node of its table's name.
fn verb<'n>(node: &'n Node, notes: &mut Notes<'_>) -> Option<(&'n Node, Write)> {
    let mut verbs = VERBS.iter().filter_map(|(word, write)| Some((*word, node.get(word)?, *write)));
    let Some((first, name, write)) = verbs.next() else {
        if LATER.iter().all(|(key, _)| node.get(key).is_none()) {
            notes.mistake(
                &node.place,
                "an operation without `upsert`, `update` or `delete`",
                "write upsert: table, update: table or delete: table",
            );
        }
        return None;
    };
    if let Some((second, ..)) = verbs.next() {
        let message = format!("an operation does one thing, not `{first}` and `{second}`");
        notes.mistake(&node.place, message, "write two operations");
        return None;
    }
    Some((name, write))
}

fn table(node: &Node, tables: &[TableDraft], notes: &mut Notes<'_>) -> Option<TableId> {
    let name = notes.keep(node.text("a table"))?;
    // That there are no tables has been said.
    if tables.is_empty() {
        return None;
    }
    let id = tables.iter().position(|draft| draft.table.name == name);
    if id.is_none() {
        let known: Vec<&str> = tables.iter().map(|draft| draft.table.name.as_str()).collect();
        notes.mistake(&node.place, format!("there is no table `{name}`"), suggestion(name, &known));
    }
    id.map(TableId)
}

/// `mode`, which an upsert may have.
fn mode(node: &Node, verb: Write, notes: &mut Notes<'_>) -> Write {
    let Some(mode) = node.get("mode") else { return verb };
    let choices = [("patch", false), ("replace", true)];
    match (notes.choice(mode, "mode", &choices, &[]), verb) {
        (None, _) | (Some(false), Write::Upsert | Write::Update | Write::Replace) => verb,
        (Some(true), Write::Upsert | Write::Replace) => Write::Replace,
        (Some(true), Write::Update) => {
            let fix = "write upsert, or remove `mode` and set each column, null to clear it";
            notes.mistake(&mode.place, "`mode: replace` makes the row, which `update` never does", fix);
            verb
        }
        (Some(_), Write::Delete) => {
            notes.mistake(&mode.place, "`mode` beside `delete`", "remove it, or write upsert");
            verb
        }
    }
}

fn refuse_for_delete(node: &Node, draft: &TableDraft, notes: &mut Notes<'_>) {
    for name in ["set", "except", "add", "subtract", "max", "min", "set_once"] {
        if let Some(node) = node.get(name) {
            let fix = "remove it, or write upsert or update";
            notes.mistake(&node.place, format!("`{name}` beside `delete`"), fix);
        }
    }
    if draft.is_shared() {
        let name = &draft.table.name;
        notes.mistake(
            &node.place,
            format!("table `{name}` is shared: rows cannot be deleted, since a delete does not commute"),
            "subtract what was added, or leave such rows out in a view",
        );
    }
}

fn key(node: &Node, draft: &TableDraft, notes: &mut Notes<'_>) -> Option<Vec<Mapped>> {
    let table = &draft.table;
    let wanted = || {
        let columns: Vec<String> =
            table.primary_key.iter().map(|id| format!("{}: …", table.columns[id.0].name)).collect();
        format!("write key: {{ {} }}", columns.join(", "))
    };
    let Some(key_node) = node.get("key") else {
        notes.mistake(&node.place, "an operation without `key`", wanted());
        return None;
    };
    let entries = notes.keep(key_node.map("key"))?;
    let mut mapped: Vec<Option<Mapped>> = table.primary_key.iter().map(|_| None).collect();
    for entry in entries {
        let Some(id) = column_id(draft, &entry.key, &entry.place, notes) else { continue };
        let Some(position) = table.primary_key.iter().position(|key| *key == id) else {
            // A key that was refused itself says nothing of who belongs to it.
            if draft.broken {
                continue;
            }
            let message = format!("`{}` is not in the primary key of table `{}`", entry.key, table.name);
            notes.mistake(&entry.place, message, "move it to set");
            continue;
        };
        let Some(expression) = notes.expression(&entry.value) else { continue };
        if matches!(expression.as_literal(), Some(Value::Null)) {
            notes.mistake(
                &entry.value.place,
                "a column of the key cannot be null",
                "map it from a field that is always there",
            );
        }
        mapped[position] = Some(Mapped { expression, place: entry.value.place.clone() });
    }
    let named = |id: &ColumnId| entries.iter().any(|entry| entry.key == table.columns[id.0].name);
    if let Some(missing) = table.primary_key.iter().find(|id| !named(id)) {
        let message = format!("the key lacks the column `{}`", table.columns[missing.0].name);
        notes.mistake(&key_node.place, message, wanted());
    }
    mapped.into_iter().collect()
}

fn condition(node: &Node, notes: &mut Notes<'_>) -> Option<Mapped> {
    let expression = notes.expression(node)?;
    if let Some(literal) = expression.as_literal()
        && !matches!(literal, Value::Bool(_))
    {
        notes.mistake(
            &node.place,
            format!("a condition is true or false, not {}", literal.kind()),
            "write a comparison: value.amount > 0",
        );
        return None;
    }
    Some(Mapped { expression, place: node.place.clone() })
}
