//! VALIDATE, JUDGE, FOLD: pure functions from mapped changes to few row changes.
//!
//! - [`change`], [`assign`], [`guard`]: what a change is once its values fit their columns, and how two of them compose.
//! - [`validate`], [`row_change`]: values against columns; a record gives all of its changes or, as a fault, none.
//! - [`judge`]: the sequence of an aggregate; passes everything through while no source declares one.
//! - [`rows`]: many changes of one row become an ordered list of few; applied in rounds.

pub mod assign;
mod calendar;
pub mod change;
mod digits;
mod form;
pub mod guard;
pub mod judge;
#[cfg(test)]
mod one_by_one;
pub mod row_change;
pub mod rows;
pub mod validate;

pub use assign::{Assign, Assignments, ColumnRules};
pub use change::{Absent, Change, Composed, Key, Present};
pub use form::canonical;
pub use guard::Guard;
pub use row_change::{RowChange, validate};
pub use rows::{Folded, FoldedChange, FoldedRow, FoldedTable};
pub use validate::fit;
