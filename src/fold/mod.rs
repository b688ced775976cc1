//! VALIDATE, JUDGE, FOLD: pure functions from mapped changes to few row changes.
//!
//! - [`change`]: what a change is once its values fit their columns.
//! - [`validate`]: values against columns; a record gives all of its changes or, as a fault, none.
//! - [`judge`]: the sequence of an aggregate; passes everything through while no source declares one.
//! - [`rows`]: many changes of one row become an ordered list of few; applied in rounds.

mod calendar;
pub mod change;
mod digits;
mod form;
pub mod judge;
#[cfg(test)]
mod one_by_one;
pub mod rows;
pub mod validate;

pub use change::{Absent, Assign, Assignments, Change, Composed, Key, Present, SummedColumns};
pub use form::canonical;
pub use rows::{Folded, FoldedChange, FoldedRow, FoldedTable};
pub use validate::{RowChange, fit, validate};
