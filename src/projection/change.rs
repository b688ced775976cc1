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
    /// What must hold of a row that is there. One that is not there is made, or not, whatever the conditions say.
    pub conditions: Conditions,
}

/// What to do with the row of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Write the row, whether or not it is there; columns that are not assigned stay.
    Upsert(Vec<Assignment>),
    /// Make the row, or make it again: columns that are not assigned take their default.
    Replace(Vec<Assignment>),
    /// Change the row if it is there.
    Update(Vec<Assignment>),
    /// Remove the row, if it is there.
    Delete,
}

/// What must hold of a stored row for a change to touch it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conditions {
    /// The change applies only where these values, compared in order, are greater than the stored ones; NULL is older than any
    /// value, equal does not apply. They are stored with the change. Never null.
    pub if_newer: Vec<(ColumnId, Value)>,
    /// The change applies only where the columns hold these values; null is NULL.
    pub only_if: Vec<(ColumnId, Value)>,
}

impl Conditions {
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.if_newer.is_empty() && self.only_if.is_empty()
    }
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
    /// Subtracts from it, likewise.
    Subtract,
    /// Keeps the larger of both. NULL and an absent row count as the column's default, else as nothing; a null value does nothing.
    Max,
    /// Keeps the smaller of both, likewise.
    Min,
    /// Replaces NULL only; a null value does nothing.
    SetOnce,
}

impl Effect {
    /// The word of a projection file.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Add => "add",
            Self::Subtract => "subtract",
            Self::Max => "max",
            Self::Min => "min",
            Self::SetOnce => "set_once",
        }
    }
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
    pub fn upsert<'a>(&'a mut self, table: &'a Table, id: TableId, key: Vec<Value>) -> RowWrite<'a> {
        self.write(table, id, key, Operation::Upsert(Vec::new()))
    }

    /// Begins to make a row of `table`, or to make it again, for projections written in Rust.
    pub fn replace<'a>(&'a mut self, table: &'a Table, id: TableId, key: Vec<Value>) -> RowWrite<'a> {
        self.write(table, id, key, Operation::Replace(Vec::new()))
    }

    /// Begins a change of a row of `table` that is there, for projections written in Rust.
    pub fn update<'a>(&'a mut self, table: &'a Table, id: TableId, key: Vec<Value>) -> RowWrite<'a> {
        self.write(table, id, key, Operation::Update(Vec::new()))
    }

    /// Begins the removal of a row of `table`, for projections written in Rust; it may have conditions.
    pub fn remove<'a>(&'a mut self, table: &'a Table, id: TableId, key: Vec<Value>) -> RowWrite<'a> {
        self.write(table, id, key, Operation::Delete)
    }

    /// Adds the removal of a row, for projections written in Rust.
    pub fn delete(&mut self, id: TableId, key: Vec<Value>) {
        self.list.push(EventChange::new(id, key, Operation::Delete));
    }

    fn write<'a>(
        &'a mut self,
        table: &'a Table,
        id: TableId,
        key: Vec<Value>,
        operation: Operation,
    ) -> RowWrite<'a> {
        self.list.push(EventChange::new(id, key, operation));
        RowWrite { table, changes: self }
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

impl EventChange {
    /// A change without conditions, of a table that does not store the aggregate.
    #[must_use]
    pub fn new(table: TableId, key: Vec<Value>, operation: Operation) -> Self {
        Self { table, key, aggregate: None, operation, conditions: Conditions::default() }
    }
}

/// A change of one row under construction: see [`Changes::upsert`].
#[derive(Debug)]
pub struct RowWrite<'a> {
    table: &'a Table,
    changes: &'a mut Changes,
}

/// All of these panic where the table has no such column: a mistake in the projection's code, found by its first test.
impl RowWrite<'_> {
    /// Sets a column.
    #[must_use]
    pub fn set(self, column: &str, value: impl Into<Value>) -> Self {
        self.assign(column, Effect::Set, value.into())
    }

    /// Adds to a column.
    #[must_use]
    pub fn add(self, column: &str, value: impl Into<Value>) -> Self {
        self.assign(column, Effect::Add, value.into())
    }

    /// Does something with a column.
    ///
    /// # Panics
    /// The table has no such column.
    #[must_use]
    pub fn assign(mut self, column: &str, effect: Effect, value: Value) -> Self {
        let id = self.column(column);
        if let Operation::Upsert(assignments)
        | Operation::Replace(assignments)
        | Operation::Update(assignments) = &mut self.change().operation
        {
            assignments.retain(|assignment| assignment.column != id);
            assignments.push(Assignment { column: id, effect, value });
        }
        self
    }

    /// Applies only where the value is greater than the stored one, and stores it; of several the first that differs decides.
    #[must_use]
    pub fn if_newer(mut self, column: &str, value: impl Into<Value>) -> Self {
        let id = self.column(column);
        self.change().conditions.if_newer.push((id, value.into()));
        self
    }

    /// Applies only where the column holds the value.
    #[must_use]
    pub fn only_if(mut self, column: &str, value: impl Into<Value>) -> Self {
        let id = self.column(column);
        self.change().conditions.only_if.push((id, value.into()));
        self
    }

    /// Ends the change; it stands in the list.
    pub fn done(self) {}

    fn column(&self, name: &str) -> ColumnId {
        let Some(id) = self.table.column(name) else {
            panic!("table {} has no column {name}", self.table.name);
        };
        id
    }

    fn change(&mut self) -> &mut EventChange {
        // One was added when this was made.
        let last = self.changes.list.len() - 1;
        &mut self.changes.list[last]
    }
}
