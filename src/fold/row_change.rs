//! VALIDATE: the changes of a record against the tables that they are for.

use bigdecimal::BigDecimal;

use super::guard::Guard;
use super::validate::{fault, fit, fit_text, rejected};
use super::{Assign, Assignments, Change, Key};
use crate::fault::{Reason, RecordFault};
use crate::projection::change::{Assignment, Conditions, Effect};
use crate::projection::{
    Column, ColumnId, ColumnType, Datum, EventChange, Operation, Ownership, Table, TableId, Value,
};

/// The column that stores a row's aggregate, in tables that do.
const AGGREGATE: &str = "projector_aggregate";

/// A change of one row whose values all fit their columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    /// The table.
    pub table: TableId,
    /// The row.
    pub key: Key,
    /// The aggregate that the record belongs to, in tables that store it.
    pub aggregate: Option<Datum>,
    /// What to do.
    pub change: Change,
}

/// Checks the changes of one record, in their order, against `tables`, those of the declaration.
///
/// # Errors
/// The first value that does not fit; then the record gives no change at all. The fault names column, type and limit,
/// never the value. A change that its table cannot have (an unknown column, a key of the wrong length) is a mistake in a
/// projection written in Rust and gives [`Reason::Rejected`].
pub fn validate(
    tables: &[Table],
    changes: impl IntoIterator<Item = EventChange>,
) -> Result<Vec<RowChange>, RecordFault> {
    let changes = changes.into_iter();
    let mut rows = Vec::with_capacity(changes.size_hint().0);
    for change in changes {
        rows.push(row_change(tables, change)?);
    }
    Ok(rows)
}

fn row_change(tables: &[Table], change: EventChange) -> Result<RowChange, RecordFault> {
    let EventChange { table: id, key, aggregate, operation, conditions } = change;
    let Some(table) = tables.get(id.0) else {
        return Err(rejected("a change names a table that is not declared"));
    };
    if table.ownership == Ownership::Shared {
        refuse_on_shared(table, &operation, &conditions)?;
    }
    let change = guarded(table, operation, conditions)?;
    Ok(RowChange {
        table: id,
        key: fit_key(table, key)?,
        aggregate: fit_aggregate(table, aggregate)?,
        change,
    })
}

fn fit_key(table: &Table, values: Vec<Value>) -> Result<Key, RecordFault> {
    if values.len() != table.primary_key.len() {
        let (wanted, got) = (table.primary_key.len(), values.len());
        return Err(rejected(format!(
            "a change of table {} gives {got} values for a key of {wanted} columns",
            table.name
        )));
    }
    table.primary_key.iter().zip(values).map(|(id, value)| fit_key_column(table, *id, value)).collect()
}

fn fit_key_column(table: &Table, id: ColumnId, value: Value) -> Result<Datum, RecordFault> {
    let column = column(table, id)?;
    if matches!(value, Value::Null) {
        let detail = "a column of the key is null; map it from a field that is always there";
        return Err(fault(Reason::NullKey, detail).in_column(&table.name, &column.name));
    }
    fit(&table.name, column, value)
}

fn fit_aggregate(table: &Table, value: Option<Value>) -> Result<Option<Datum>, RecordFault> {
    if !table.stores_aggregate() {
        return Ok(None);
    }
    let Some(value) = value else {
        let detail = format!("a change of table {} does not say to which aggregate it belongs", table.name);
        return Err(rejected(detail));
    };
    if matches!(value, Value::Null) {
        let detail = "the record's aggregate is null; the table stores it with each row";
        return Err(fault(Reason::NullKey, detail).in_column(&table.name, AGGREGATE));
    }
    let kind = ColumnType::Text { max_chars: None };
    match fit_text(value, None) {
        Ok(datum) => Ok(Some(datum)),
        Err(misfit) => Err(misfit.into_fault(&kind).in_column(&table.name, AGGREGATE)),
    }
}

/// A change with its guard, where it has conditions.
fn guarded(table: &Table, operation: Operation, conditions: Conditions) -> Result<Change, RecordFault> {
    let (of, list): (fn(Assignments) -> Change, _) = match operation {
        Operation::Upsert(list) => (Change::upsert, list),
        Operation::Replace(list) => (Change::replace, list),
        Operation::Update(list) => (Change::update, list),
        Operation::Delete if conditions.is_empty() => return Ok(Change::delete()),
        Operation::Delete => {
            // What it compares is not stored: the row goes, and the guard with it.
            let guard = guard(table, conditions, &mut Assignments::new())?;
            return Ok(Change::delete().guarded(guard));
        }
    };
    let mut assignments = assignments(table, list)?;
    if conditions.is_empty() {
        return Ok(of(assignments));
    }
    let guard = guard(table, conditions, &mut assignments)?;
    Ok(of(assignments).guarded(guard))
}

/// The guard of a change; what `if_newer` compares is assigned as well.
fn guard(table: &Table, conditions: Conditions, assignments: &mut Assignments) -> Result<Guard, RecordFault> {
    let mut guard = Guard::default();
    for (id, value) in conditions.if_newer {
        let column = compared(table, id, "if_newer")?;
        if matches!(value, Value::Null) {
            let detail = "if_newer compares a value that is null; map it from a field that is always there";
            return Err(fault(Reason::MissingField, detail).in_column(&table.name, &column.name));
        }
        let datum = fit(&table.name, column, value)?;
        put(table, assignments, id, Assign::Set(datum.clone()))?;
        guard.newer.push((id, datum));
    }
    // Of shared rows no order is known: of two changes with the same guard the values that they set decide.
    if table.ownership == Ownership::Shared {
        for (id, assign) in assignments.iter() {
            if !guard.newer.iter().any(|(known, _)| known == id) {
                compared(table, *id, "if_newer")?;
                guard.newer.push((*id, assign.datum().clone()));
            }
        }
    }
    for (id, value) in conditions.only_if {
        let column = compared(table, id, "only_if")?;
        let datum = match value {
            Value::Null => Datum::Null,
            value => fit(&table.name, column, value)?,
        };
        guard.only_if.push((id, datum));
    }
    Ok(guard)
}

/// A column that may be compared: equality and order of its type are the same here and in every store.
fn compared<'t>(table: &'t Table, id: ColumnId, what: &str) -> Result<&'t Column, RecordFault> {
    let column = column(table, id)?;
    if column.generated.is_some() || table.primary_key.contains(&id) {
        let detail =
            format!("{what} compares {}.{}, which is part of the key or generated", table.name, column.name);
        return Err(rejected(detail));
    }
    if column.kind.is_key() {
        return Ok(column);
    }
    let (table, name, kind) = (&table.name, &column.name, &column.kind);
    Err(rejected(format!("{what} compares {table}.{name}, and values of the type {kind} are not compared")))
}

fn refuse_on_shared(
    table: &Table,
    operation: &Operation,
    conditions: &Conditions,
) -> Result<(), RecordFault> {
    let commutes = match operation {
        Operation::Upsert(list) if conditions.only_if.is_empty() => {
            let sets = |assignment: &Assignment| assignment.effect == Effect::Set;
            let changes = |assignment: &Assignment| {
                matches!(assignment.effect, Effect::Add | Effect::Subtract | Effect::Max | Effect::Min)
            };
            if conditions.if_newer.is_empty() { list.iter().all(changes) } else { list.iter().all(sets) }
        }
        _ => false,
    };
    if commutes {
        return Ok(());
    }
    let name = &table.name;
    Err(rejected(format!(
        "table {name} is shared, and the change does not commute: only add, subtract, max, min, and set with if_newer do"
    )))
}

fn assignments(table: &Table, list: Vec<Assignment>) -> Result<Assignments, RecordFault> {
    let mut assignments = Assignments::with_capacity(list.len());
    for Assignment { column: id, effect, value } in list {
        let column = column(table, id)?;
        if column.generated.is_some() || table.primary_key.contains(&id) {
            let detail =
                format!("{}.{} is part of the key or generated: it is not assigned", table.name, column.name);
            return Err(rejected(detail));
        }
        let assign = match effect {
            Effect::Set => Assign::Set(fit(&table.name, column, value)?),
            Effect::Add => Assign::Add(fit_delta(&table.name, column, value)?),
            Effect::Subtract => Assign::Add(fit_delta(&table.name, column, negated(value))?),
            Effect::Max | Effect::Min | Effect::SetOnce if matches!(value, Value::Null) => continue,
            Effect::Max => Assign::Max(fit_compared(table, id, effect, value)?),
            Effect::Min => Assign::Min(fit_compared(table, id, effect, value)?),
            Effect::SetOnce => Assign::SetOnce(fit(&table.name, column, value)?),
        };
        put(table, &mut assignments, id, assign)?;
    }
    Ok(assignments)
}

fn put(
    table: &Table,
    assignments: &mut Assignments,
    id: ColumnId,
    assign: Assign,
) -> Result<(), RecordFault> {
    match assignments.binary_search_by_key(&id, |(id, _)| *id) {
        Ok(_) => {
            let name = &column(table, id)?.name;
            Err(rejected(format!("a change assigns {}.{name} twice", table.name)))
        }
        Err(index) => {
            assignments.insert(index, (id, assign));
            Ok(())
        }
    }
}

fn fit_compared(table: &Table, id: ColumnId, effect: Effect, value: Value) -> Result<Datum, RecordFault> {
    fit(&table.name, compared(table, id, effect.word())?, value)
}

/// The value with the other sign; what is no number stays, to be refused.
fn negated(value: Value) -> Value {
    match value {
        Value::Int(number) => {
            number.checked_neg().map_or_else(|| Value::Decimal(-BigDecimal::from(number)), Value::Int)
        }
        Value::Number(text) => Value::Number(match text.strip_prefix('-') {
            Some(digits) => digits.into(),
            None => format!("-{text}").into(),
        }),
        Value::Decimal(number) => Value::Decimal(-number),
        Value::Double(number) => Value::Double(-number),
        other => other,
    }
}

fn column(table: &Table, id: ColumnId) -> Result<&Column, RecordFault> {
    table
        .columns
        .get(id.0)
        .ok_or_else(|| rejected(format!("a change names a column that table {} does not have", table.name)))
}

/// What `add` adds: a number that its column could hold.
fn fit_delta(table: &str, column: &Column, value: Value) -> Result<Datum, RecordFault> {
    let problem = match (&value, &column.kind) {
        (Value::Null, _) => "nothing can be added: the value is null",
        (_, ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt | ColumnType::Numeric { .. }) => {
            return fit(table, column, value);
        }
        _ => "only integer and numeric columns can be added to",
    };
    Err(fault(Reason::WrongType, problem).in_column(table, &column.name))
}
