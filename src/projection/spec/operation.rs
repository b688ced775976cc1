//! The operations of a handler or a tombstone.

use super::notes::{Later, Notes};
use super::table::{TableDraft, column_id};
use crate::config::yaml::{Kind, Node, Place, suggestion};
use crate::projection::change::Effect;
use crate::projection::expression::{Expression, with_article};
use crate::projection::{ColumnId, ColumnType, Nullability, TableId, Value};

/// What one operation of a handler does.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) place: Place,
    pub(super) table: TableId,
    /// By the key's order.
    pub(super) key: Vec<Mapped>,
    pub(super) when: Option<Mapped>,
    /// `None` deletes.
    pub(super) upsert: Option<Vec<Assigned>>,
}

/// An expression and where it stands.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) expression: Expression,
    pub(super) place: Place,
}

/// One column of an upsert.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) column: ColumnId,
    pub(super) effect: Effect,
    pub(super) value: Mapped,
}

impl Operation {
    /// Every expression of the operation.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &Mapped> {
        let assigned = self.upsert.iter().flatten().map(|assigned| &assigned.value);
        self.key.iter().chain(&self.when).chain(assigned)
    }
}

const KEYS: &[&str] = &["upsert", "delete", "key", "set", "add", "when"];
const COLUMNS_OF: &str = "map its columns with set and add; a column that is not named stays as it is";
const LATER: &[Later] = &[
    ("update", "write upsert, which also makes the row where it is not there"),
    ("children", "write the children as a table of their own, with events of their own"),
    ("parent", "write the children as a table of their own, with events of their own"),
    ("each", "write the children as a table of their own, with events of their own"),
    ("subtract", "write add with a negative value: add: { column: -value.amount }"),
    ("max", COLUMNS_OF),
    ("min", COLUMNS_OF),
    ("set_once", COLUMNS_OF),
    ("if_newer", "leave it out: events of one key are applied in the order of their partition"),
    ("only_if", "write when, which looks at the event; an expression cannot read rows"),
    ("mode", "leave it out: an absent field keeps its column, an explicit null clears it"),
    ("except", "name the columns in set"),
    ("late", "leave it out: it belongs to `sequence`, which is not in this release either"),
];

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
    let (name, is_delete) = match (node.get("upsert"), node.get("delete")) {
        (Some(table), None) => (table, false),
        (None, Some(table)) => (table, true),
        (Some(_), Some(_)) => {
            notes.mistake(
                &node.place,
                "an operation does one thing, not `upsert` and `delete`",
                "write two operations",
            );
            return None;
        }
        (None, None) => {
            let later = LATER.iter().any(|(key, _)| node.get(key).is_some());
            if !later {
                notes.mistake(
                    &node.place,
                    "an operation without `upsert` or `delete`",
                    "write upsert: table or delete: table",
                );
            }
            return None;
        }
    };
    let table_name = notes.keep(name.text("a table"))?;
    // That there are no tables has been said.
    if tables.is_empty() {
        return None;
    }
    let Some(id) = tables.iter().position(|draft| draft.table.name == table_name) else {
        let known: Vec<&str> = tables.iter().map(|draft| draft.table.name.as_str()).collect();
        notes.mistake(
            &name.place,
            format!("there is no table `{table_name}`"),
            suggestion(table_name, &known),
        );
        return None;
    };
    let draft = &tables[id];
    let key = key(node, draft, notes);
    let when = node.get("when").and_then(|when| condition(when, notes));
    let upsert = if is_delete {
        refuse_for_delete(node, draft, notes);
        None
    } else {
        let mut assigned = Vec::new();
        assignments(node, draft, Effect::Set, &mut assigned, notes);
        assignments(node, draft, Effect::Add, &mut assigned, notes);
        Some(assigned)
    };
    let operation = Operation { place: node.place.clone(), table: TableId(id), key: key?, when, upsert };
    if values == Values::Absent {
        for mapped in operation.expressions().filter(|mapped| mapped.expression.reads().value()) {
            notes.mistake(&mapped.place, "a tombstone has no value", "map from key or headers");
        }
        if operation.upsert.is_some() {
            notes.mistake(&operation.place, "a tombstone deletes", "write delete: table");
        }
    }
    Some(operation)
}

fn refuse_for_delete(node: &Node, draft: &TableDraft, notes: &mut Notes<'_>) {
    for name in ["set", "add"] {
        if let Some(node) = node.get(name) {
            notes.mistake(&node.place, format!("`{name}` beside `delete`"), "remove it, or write upsert");
        }
    }
    if draft.is_shared() {
        notes.mistake(
            &node.place,
            format!(
                "table `{}` is shared: rows cannot be deleted, since a delete does not commute",
                draft.table.name
            ),
            "add a negative value, or leave such rows out in a view",
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

fn assignments(
    node: &Node,
    draft: &TableDraft,
    effect: Effect,
    assigned: &mut Vec<Assigned>,
    notes: &mut Notes<'_>,
) {
    let word = if effect == Effect::Set { "set" } else { "add" };
    let Some(node) = node.get(word) else { return };
    let Some(entries) = notes.keep(node.map(word)) else { return };
    if effect == Effect::Set && draft.is_shared() {
        notes.mistake(
            &node.place,
            format!("table `{}` is shared: `set` does not commute", draft.table.name),
            "use add, or give the value a table of its own, written from one topic",
        );
        return;
    }
    let mut cut = false;
    for entry in entries {
        if entry.key == "*" {
            notes.mistake(
                &entry.place,
                "`\"*\"` is not in this release",
                "name the columns: set: { name: value.name }",
            );
            continue;
        }
        // What a comma has cut off is no column; the mistake stands where the expression begins.
        if cut && entry.value.is_null() {
            continue;
        }
        let before = notes.mistakes.len();
        let expression = notes.expression(&entry.value);
        cut = notes.mistakes[before..].iter().any(|mistake| mistake.message.contains("is cut at"));
        let Some(column) = column_id(draft, &entry.key, &entry.place, notes) else { continue };
        let Some(expression) = expression else { continue };
        check_assignment(draft, column, effect, &entry.place, &expression, notes);
        if assigned.iter().any(|other| other.column == column) {
            let message = format!("the column `{}` is both set and added to", entry.key);
            notes.mistake(&entry.place, message, "keep one of the two");
            continue;
        }
        let value = Mapped { expression, place: entry.value.place.clone() };
        assigned.push(Assigned { column, effect, value });
    }
}

fn check_assignment(
    draft: &TableDraft,
    id: ColumnId,
    effect: Effect,
    place: &Place,
    expression: &Expression,
    notes: &mut Notes<'_>,
) {
    let column = &draft.table.columns[id.0];
    let name = &column.name;
    if draft.table.primary_key.contains(&id) {
        notes.mistake(place, format!("the column `{name}` is part of the key"), "remove it: key sets it");
    }
    if column.generated.is_some() {
        notes.mistake(place, format!("the column `{name}` is generated by the database"), "remove it");
    }
    let numeric = matches!(
        column.kind,
        ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt | ColumnType::Numeric { .. }
    );
    match (effect, expression.as_literal()) {
        (Effect::Add, _) if !numeric => {
            let message = format!("`add` to the column `{name}` of type {}", column.kind);
            notes.mistake(
                place,
                message,
                "add needs smallint, integer, bigint or numeric, whose sums are exact",
            );
        }
        (Effect::Add, Some(literal))
            if !matches!(literal, Value::Int(_) | Value::Number(_) | Value::Decimal(_)) =>
        {
            notes.mistake(place, format!("{} cannot be added to `{name}`", literal.kind()), "add a number");
        }
        (Effect::Set, Some(literal)) if !may_fit(literal, &column.kind) => {
            let message =
                format!("{} never fits the column `{name}` of type {}", with_article(literal), column.kind);
            notes.mistake(place, message, "write a literal of the column's type, or another type");
        }
        (Effect::Set, Some(Value::Null)) if column.nullability == Nullability::NotNull => {
            notes.mistake(
                place,
                format!("the column `{name}` is not null"),
                "set a value, or drop `not null`",
            );
        }
        _ => {}
    }
}

/// Whether a literal has a kind that the column's type takes at all.
fn may_fit(literal: &Value, kind: &ColumnType) -> bool {
    let is_number = matches!(literal, Value::Int(_) | Value::Number(_) | Value::Decimal(_));
    match kind {
        _ if matches!(literal, Value::Null) => true,
        ColumnType::SmallInt
        | ColumnType::Integer
        | ColumnType::BigInt
        | ColumnType::Numeric { .. }
        | ColumnType::Real
        | ColumnType::Double => is_number,
        ColumnType::Boolean => matches!(literal, Value::Bool(_)),
        ColumnType::Bytes => matches!(literal, Value::Bytes(_)),
        ColumnType::Date
        | ColumnType::Time
        | ColumnType::Timestamp
        | ColumnType::TimestampTz
        | ColumnType::Uuid => matches!(literal, Value::Text(_)),
        ColumnType::Text { .. } => is_number || matches!(literal, Value::Text(_) | Value::Bool(_)),
        ColumnType::Json | ColumnType::Catalogue(_) => true,
    }
}
