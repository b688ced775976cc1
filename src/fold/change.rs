//! A change of one row that has been checked against the table, and how two of them compose.
//!
//! A change is a pair: what to do where the row is present, and what to do where it is absent. Such pairs are closed
//! under composition, which is what makes folding possible without reading rows.

use crate::projection::{ColumnId, Datum};

/// The primary key's values, in the key's order.
pub type Key = Box<[Datum]>;

/// What one row change does in both cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What happens where the row is there.
    pub present: Present,
    /// What happens where it is not.
    pub absent: Absent,
}

/// What happens to a row that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Present {
    /// Nothing.
    Keep,
    /// It is removed.
    Delete,
    /// The assigned columns change; the others stay.
    Merge(Assignments),
    /// It is removed and made again: columns that are not assigned take their default.
    Replace(Assignments),
}

/// What happens where the row is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// Nothing.
    Nothing,
    /// It is made from the same assignments as [`Present`] has; adding counts from the default.
    InsertSame,
    /// It is made from these assignments, which differ from those of [`Present`].
    Insert(Assignments),
}

/// Columns and what is done to them, by ascending column, no column twice.
pub type Assignments = Vec<(ColumnId, Assign)>;

/// What is done to one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assign {
    /// Replaces the stored value.
    Set(Datum),
    /// Adds to the stored value, never NULL; NULL and an absent row count from the default, else from 0.
    Add(Datum),
}

impl Change {
    /// Writes the row whether or not it is there.
    #[must_use]
    pub const fn upsert(assignments: Assignments) -> Self {
        Self { present: Present::Merge(assignments), absent: Absent::InsertSame }
    }

    /// Removes the row.
    #[must_use]
    pub const fn delete() -> Self {
        Self { present: Present::Delete, absent: Absent::Nothing }
    }

    /// Bytes that this change occupies, for the bounds of a batch.
    #[must_use]
    pub fn size(&self) -> usize {
        let of = |assignments: &Assignments| -> usize {
            assignments.iter().map(|(_, Assign::Set(datum) | Assign::Add(datum))| 16 + datum.size()).sum()
        };
        let present = match &self.present {
            Present::Keep | Present::Delete => 0,
            Present::Merge(assignments) | Present::Replace(assignments) => of(assignments),
        };
        let absent = match &self.absent {
            Absent::Nothing | Absent::InsertSame => 0,
            Absent::Insert(assignments) => of(assignments),
        };
        size_of::<Self>() + present + absent
    }
}
