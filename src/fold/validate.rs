//! VALIDATE: every value is checked against its column before folding.

use super::{Change, Key};
use crate::projection::{Datum, TableId};

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
