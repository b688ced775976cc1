//! What a projection wants done to rows, with the event's own values: not yet checked against columns.

use super::{ColumnId, Table, TableId, Value};

/// The changes of one record, in the order in which the mapping emitted them.
///
/// The list is reused from record to record; [`Changes::take`] empties it.
#[derive(Debug, Default)]
pub struct Changes {
    list: Vec<EventChange>,
}

/// One change of one row, as mapped.
#[derive(Debug, Clone, PartialEq)]
pub struct EventChange {
    /// The table.
    pub table: TableId,
    /// The values of the primary key's columns, in the key's order.
    pub key: Vec<Value>,
    /// The aggregate that the record belongs to, for tables that store it; `None` elsewhere.
    pub aggregate: Option<Value>,
    /// What to do.
    pub operation: Operation,
}

/// What to do with the row of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Write the row, whether or not it is there.
    Upsert(Vec<Assignment>),
    /// Remove the row, if it is there.
    Delete,
}

/// What to do with one column. A column occurs at most once in a change.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    /// The column; never one of the primary key, never a generated one.
    pub column: ColumnId,
    /// What to do.
    pub effect: Effect,
    /// The value.
    pub value: Value,
}

/// What an assignment does with the stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Replaces it.
    Set,
    /// Adds to it; NULL and an absent row count from the column's default, else from 0.
    Add,
}

impl Changes {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { list: Vec::new() }
    }

    /// Adds a change.
    pub fn push(&mut self, change: EventChange) {
        self.list.push(change);
    }

    /// Begins an upsert of a row of `table`, for projections written in Rust.
    pub fn upsert<'a>(&'a mut self, table: &'a Table, id: TableId, key: Vec<Value>) -> Upsert<'a> {
        let change =
            EventChange { table: id, key, aggregate: None, operation: Operation::Upsert(Vec::new()) };
        self.list.push(change);
        Upsert { table, changes: self }
    }

    /// Adds the removal of a row, for projections written in Rust.
    pub fn delete(&mut self, id: TableId, key: Vec<Value>) {
        self.list.push(EventChange { table: id, key, aggregate: None, operation: Operation::Delete });
    }

    /// The changes so far, in order.
    #[must_use]
    pub fn as_slice(&self) -> &[EventChange] {
        &self.list
    }

    /// Takes the changes out and leaves the list empty.
    pub fn take(&mut self) -> std::vec::Drain<'_, EventChange> {
        self.list.drain(..)
    }
}

/// An upsert under construction: see [`Changes::upsert`].
#[derive(Debug)]
pub struct Upsert<'a> {
    table: &'a Table,
    changes: &'a mut Changes,
}

impl Upsert<'_> {
    /// Sets a column.
    ///
    /// # Panics
    /// The table has no such column: a mistake in the projection's code, found by its first test.
    #[must_use]
    pub fn set(self, column: &str, value: impl Into<Value>) -> Self {
        self.assign(column, Effect::Set, value.into())
    }

    /// Adds to a column.
    ///
    /// # Panics
    /// The table has no such column.
    #[must_use]
    pub fn add(self, column: &str, value: impl Into<Value>) -> Self {
        self.assign(column, Effect::Add, value.into())
    }

    /// Ends the upsert; the change stands in the list.
    pub fn done(self) {}

    fn assign(self, column: &str, effect: Effect, value: Value) -> Self {
        let Some(id) = self.table.column(column) else {
            panic!("table {} has no column {column}", self.table.name);
        };
        if let Some(EventChange { operation: Operation::Upsert(assignments), .. }) =
            self.changes.list.last_mut()
        {
            assignments.retain(|assignment| assignment.column != id);
            assignments.push(Assignment { column: id, effect, value });
        }
        self
    }
}
