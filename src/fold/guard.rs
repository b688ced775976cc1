//! Conditions on the stored row, and how guarded changes compose.
//!
//! A guard decides whether a row that is *there* is touched. One that is not there is made, or not, as the change says. Since
//! the stored row is not read before folding, two changes compose only where the outcome is certain:
//!
//! | first | next | is |
//! |---|---|---|
//! | any | unguarded, and the same whatever was before (delete; replace, or insert the same) | next |
//! | unguarded, leaves no row (delete) | guarded | a row made again by what next does to an absent row; else first |
//! | unguarded, gives every column of next's guard a known value | guarded | both, or first: the guard is compared now |
//! | guarded by `newer` alone | the same kind of change, guarded by `newer` alone over the same columns | first, where next is not newer; next, where it is and overwrites all that first sets |
//!
//! Everything else stays two changes, in two rounds.

use super::assign::{ColumnRules, find};
use super::change::{Absent, Change, Composed, Present};
use super::{Assign, Assignments};
use crate::projection::{ColumnId, Datum};

/// A condition on a stored row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guard {
    /// The values of the event, in the order of comparison: the row is touched only where they are greater than the stored
    /// ones, as a tuple, with NULL as the smallest of all. Empty: no such condition.
    pub newer: Vec<(ColumnId, Datum)>,
    /// Columns that must hold exactly these values; NULL is NULL.
    pub only_if: Vec<(ColumnId, Datum)>,
}

impl Guard {
    /// Whether a row with these values is touched; `None` where one of them is not known.
    #[must_use]
    pub fn holds(&self, stored: impl Fn(ColumnId) -> Option<Datum>) -> Option<bool> {
        for (column, wanted) in &self.only_if {
            if stored(*column)? != *wanted {
                return Some(false);
            }
        }
        for (column, value) in &self.newer {
            match value.cmp(&stored(*column)?) {
                std::cmp::Ordering::Greater => return Some(true),
                std::cmp::Ordering::Less => return Some(false),
                std::cmp::Ordering::Equal => {}
            }
        }
        Some(self.newer.is_empty())
    }

    /// Bytes that this guard occupies.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>()
            + self.newer.iter().chain(&self.only_if).map(|(_, datum)| 16 + datum.size()).sum::<usize>()
    }

    fn compares_the_same(&self, other: &Self) -> bool {
        self.only_if.is_empty()
            && other.only_if.is_empty()
            && self.newer.iter().map(|(column, _)| column).eq(other.newer.iter().map(|(column, _)| column))
    }
}

/// Composes two changes of which at least one is guarded.
pub(super) fn compose(first: Change, next: Change, columns: &ColumnRules) -> Composed {
    let is_absolute = matches!(
        (&next.present, &next.absent),
        (Present::Delete, Absent::Nothing) | (Present::Replace(_), Absent::InsertSame)
    );
    match (&first.guard, &next.guard) {
        (_, None) if is_absolute => Composed::One(next),
        (_, None) => Composed::Two(first, next),
        (None, Some(guard)) => {
            if let (Present::Delete, Absent::Nothing) = (&first.present, &first.absent) {
                return Composed::One(match next.into_made() {
                    None => first,
                    Some(row) => Change::new(Present::Replace(row), Absent::InsertSame),
                });
            }
            match outcome(&first, guard, columns) {
                None => Composed::Two(first, next),
                Some(false) => Composed::One(first),
                Some(true) => first.then(Change { guard: None, ..next }, columns),
            }
        }
        (Some(earlier), Some(later)) => {
            if !earlier.compares_the_same(later) || !is_same_kind(&first, &next) {
                return Composed::Two(first, next);
            }
            let newer =
                later.newer.iter().map(|(_, datum)| datum).gt(earlier.newer.iter().map(|(_, datum)| datum));
            if !newer {
                Composed::One(first)
            } else if overwrites(&next.present, &first.present) {
                Composed::One(next)
            } else {
                Composed::Two(first, next)
            }
        }
    }
}

/// Whether the guard holds of any row that `first` leaves, where that is the same for all of them.
fn outcome(first: &Change, guard: &Guard, columns: &ColumnRules) -> Option<bool> {
    let made = |row: &Assignments| {
        guard.holds(|column| match find(row, column) {
            Some(Assign::Set(datum)) => Some(datum.clone()),
            Some(_) => None,
            None => Some(columns.default_of(column).clone()),
        })
    };
    let present = match &first.present {
        Present::Merge(row) => guard.holds(|column| match find(row, column) {
            Some(Assign::Set(datum)) => Some(datum.clone()),
            _ => None,
        }),
        Present::Replace(row) => made(row),
        Present::Keep | Present::Delete => None,
    }?;
    let absent = match (&first.absent, &first.present) {
        (Absent::InsertSame, Present::Merge(row) | Present::Replace(row)) | (Absent::Insert(row), _) => {
            made(row)
        }
        _ => None,
    }?;
    (present == absent).then_some(present)
}

/// Whether two changes do the same kind of thing, and only set.
fn is_same_kind(first: &Change, next: &Change) -> bool {
    let only_sets = |row: &Assignments| row.iter().all(|(_, assign)| matches!(assign, Assign::Set(_)));
    first.absent == next.absent
        && match (&first.present, &next.present) {
            (Present::Delete, Present::Delete) => true,
            (Present::Merge(first), Present::Merge(next))
            | (Present::Replace(first), Present::Replace(next)) => only_sets(first) && only_sets(next),
            _ => false,
        }
        && !matches!(first.absent, Absent::Insert(_))
}

/// Whether nothing of `first` is left after `next`, two changes of the same kind.
fn overwrites(next: &Present, first: &Present) -> bool {
    match (next, first) {
        (Present::Merge(next), Present::Merge(first)) => {
            first.iter().all(|(column, _)| find(next, *column).is_some())
        }
        _ => true,
    }
}
