//! FOLD: many changes of one row become an ordered list of few, normally one.
//!
//! [`Folded`] takes validated changes in the order of the log and keeps, for each row, the list of changes that gives the
//! same row as applying all of them one by one (promise P3). Apply works in rounds: round *k* writes the *k*-th change of
//! every row that has one, in one set of statements.

use ahash::AHashMap as HashMap;

use super::{Change, Key};
use crate::projection::{Datum, TableId};

/// The folded changes of a batch, or of several batches of one version.
#[derive(Debug, Default)]
pub struct Folded {
    /// For each table, in declared order, its rows.
    pub tables: Vec<HashMap<Key, FoldedRow>>,
}

/// The folded changes of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedRow {
    /// The aggregate that the row belongs to, in tables that store it.
    pub aggregate: Option<Datum>,
    /// The changes, to be applied in this order; never empty.
    pub changes: Vec<Change>,
}

/// The rows of one table that one round writes, sorted by key.
#[derive(Debug)]
pub struct FoldedTable<'a> {
    /// The table.
    pub table: TableId,
    /// Key, owning aggregate and change of each row, by ascending key; no key twice.
    pub rows: Vec<(&'a Key, Option<&'a Datum>, &'a Change)>,
}
