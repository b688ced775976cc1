//! A change of one row that has been checked against the table, and how two of them compose.
//!
//! A change is a pair: what to do where the row is present, and what to do where it is absent. Such pairs are closed
//! under composition, which is what makes folding possible without reading rows: of two changes in a row, the first tells
//! for both cases whether the second meets a row that is present or one that is absent.
//!
//! | first, of a row that is there | then | is |
//! |---|---|---|
//! | keep | *p* where present | *p* |
//! | delete | nothing where absent | delete |
//! | delete | insert *b* where absent | replace by *b* |
//! | merge *a* | keep; delete; merge *b*; replace by *b* | merge *a*; delete; merge *a* and then *b*; replace by *b* |
//! | replace by *a* | keep; delete; merge *b*; replace by *b* | replace by *a*; delete; replace by *a* and then *b*; replace by *b* |
//!
//! A row that is absent goes the same way, from nothing or insert *a*.

use super::assign::{self, Assignments, ColumnRules, merged};
use super::guard::{self, Guard};
use crate::projection::Datum;

/// The primary key's values, in the key's order.
pub type Key = Box<[Datum]>;

/// What one row change does in both cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What must hold of a row that is there for it to be touched; `None`: nothing.
    pub guard: Option<Box<Guard>>,
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
    /// It is made from the same assignments as [`Present`] has; adding counts from the default. Beside
    /// [`Present::Keep`] and [`Present::Delete`], which have none, it is made from none.
    InsertSame,
    /// It is made from these assignments, which differ from those of [`Present`].
    Insert(Assignments),
}

/// What became of two changes of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Composed {
    /// One change that does what both do.
    One(Change),
    /// The two as they were: only the database, writing one after the other, can say what happens. A sum of theirs is not a
    /// value of its column, or a guard's outcome depends on the stored row.
    Two(Change, Change),
}

impl Change {
    /// An unguarded change.
    #[must_use]
    pub const fn new(present: Present, absent: Absent) -> Self {
        Self { guard: None, present, absent }
    }

    /// Writes the row whether or not it is there.
    #[must_use]
    pub const fn upsert(assignments: Assignments) -> Self {
        Self::new(Present::Merge(assignments), Absent::InsertSame)
    }

    /// Makes the row, or makes it again.
    #[must_use]
    pub const fn replace(assignments: Assignments) -> Self {
        Self::new(Present::Replace(assignments), Absent::InsertSame)
    }

    /// Changes the row if it is there.
    #[must_use]
    pub const fn update(assignments: Assignments) -> Self {
        Self::new(Present::Merge(assignments), Absent::Nothing)
    }

    /// Removes the row.
    #[must_use]
    pub const fn delete() -> Self {
        Self::new(Present::Delete, Absent::Nothing)
    }

    /// The same, of a row that is there only where the guard holds.
    #[must_use]
    pub fn guarded(self, guard: Guard) -> Self {
        Self { guard: Some(Box::new(guard)), ..self }
    }

    /// Whether this change does nothing in both cases.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        matches!((&self.present, &self.absent), (Present::Keep, Absent::Nothing))
    }

    /// Composes this change with the `next` one of the same row; `columns` are those of its table.
    ///
    /// A composed change gives the same row as the two of them in order, whatever the row was before. Where the first of
    /// two is one that the database would have refused, the composed one may be accepted (promise P3 speaks only of
    /// records that are not refused).
    #[must_use]
    pub fn then(self, next: Self, columns: &ColumnRules) -> Composed {
        if self.guard.is_some() || next.guard.is_some() {
            return guard::compose(self, next, columns);
        }
        if !self.composes(&next, columns) {
            return Composed::Two(self, next);
        }
        match (self, next) {
            // The usual case by far, without a copy: both write the row whether or not it is there.
            (
                Self { present: Present::Merge(first), absent: Absent::InsertSame, .. },
                Self { present: Present::Merge(second), absent: Absent::InsertSame, .. },
            ) => Composed::One(Self::upsert(merged(first, second, columns))),
            (first, next) => Composed::One(first.then_in_both_cases(next, columns)),
        }
    }

    /// Whether what `next` does to columns composes with what this change has done to them.
    fn composes(&self, next: &Self, columns: &ColumnRules) -> bool {
        // Only a merge looks at what was there.
        let Present::Merge(second) = &next.present else { return true };
        let absent = match &self.absent {
            Absent::Insert(row) => Some(row),
            Absent::Nothing | Absent::InsertSame => None,
        };
        let firsts = self.present.assignments().into_iter().chain(absent);
        firsts.into_iter().all(|first| assign::compose(first, second, columns))
    }

    /// What a row that is not there is made from, if it is made.
    pub(super) fn into_made(self) -> Option<Assignments> {
        self.apart().1
    }

    fn then_in_both_cases(self, next: Self, columns: &ColumnRules) -> Self {
        let (first_present, first_absent) = self.apart();
        let (next_present, next_absent) = next.apart();
        let present = match first_present {
            Present::Keep => next_present.clone(),
            Present::Delete => match &next_absent {
                None => Present::Delete,
                Some(row) => Present::Replace(row.clone()),
            },
            Present::Merge(first) => match next_present.clone() {
                Present::Keep => Present::Merge(first),
                Present::Merge(second) => Present::Merge(merged(first, second, columns)),
                over @ (Present::Delete | Present::Replace(_)) => over,
            },
            Present::Replace(first) => match next_present.clone() {
                Present::Keep => Present::Replace(first),
                Present::Merge(second) => Present::Replace(merged(first, second, columns)),
                over @ (Present::Delete | Present::Replace(_)) => over,
            },
        };
        let absent = match first_absent {
            None => next_absent,
            Some(first) => match next_present {
                Present::Keep => Some(first),
                Present::Delete => None,
                Present::Merge(second) => Some(merged(first, second, columns)),
                Present::Replace(second) => Some(second),
            },
        };
        Self::joined(present, absent)
    }

    /// Both cases, the second as what a new row is made from.
    fn apart(self) -> (Present, Option<Assignments>) {
        let absent = match self.absent {
            Absent::Nothing => None,
            Absent::InsertSame => Some(self.present.assignments().cloned().unwrap_or_default()),
            Absent::Insert(row) => Some(row),
        };
        (self.present, absent)
    }

    fn joined(present: Present, absent: Option<Assignments>) -> Self {
        let absent = match absent {
            None => Absent::Nothing,
            Some(row) if present.assignments() == Some(&row) => Absent::InsertSame,
            Some(row) => Absent::Insert(row),
        };
        Self::new(present, absent)
    }

    /// Bytes that this change occupies, for the bounds of a batch.
    #[must_use]
    pub fn size(&self) -> usize {
        let absent = match &self.absent {
            Absent::Nothing | Absent::InsertSame => 0,
            Absent::Insert(assignments) => assign::size(assignments),
        };
        size_of::<Self>()
            + self.present.assignments().map_or(0, assign::size)
            + absent
            + self.guard.as_ref().map_or(0, |guard| guard.size())
    }
}

impl Present {
    /// What is assigned to the row, if it stays or is made again.
    #[must_use]
    pub const fn assignments(&self) -> Option<&Assignments> {
        match self {
            Self::Keep | Self::Delete => None,
            Self::Merge(assignments) | Self::Replace(assignments) => Some(assignments),
        }
    }
}

#[cfg(test)]
mod tests {
    use bigdecimal::BigDecimal;

    use super::*;
    use crate::fold::Assign;
    use crate::projection::{Column, ColumnId, ColumnType, Nullability, Ownership, Table};

    fn columns() -> ColumnRules {
        let column = |name: &str, kind, default| Column {
            name: name.into(),
            kind,
            nullability: Nullability::Nullable,
            default,
            generated: None,
        };
        ColumnRules::of(&Table {
            name: "t".into(),
            ownership: Ownership::OwnedByKey,
            primary_key: vec![ColumnId(0)],
            columns: vec![
                column("id", ColumnType::BigInt, None),
                column("small", ColumnType::SmallInt, None),
                column("counted", ColumnType::BigInt, Some(Datum::Int(7))),
                column("money", ColumnType::Numeric { precision_scale: Some((4, 2)) }, None),
            ],
            indexes: Vec::new(),
        })
    }

    fn set(column: usize, number: i64) -> (ColumnId, Assign) {
        (ColumnId(column), Assign::Set(Datum::Int(number)))
    }

    fn add(column: usize, number: i64) -> (ColumnId, Assign) {
        (ColumnId(column), Assign::Add(Datum::Int(number)))
    }

    fn money(text: &str) -> Datum {
        Datum::Numeric(text.parse::<BigDecimal>().expect("a number").normalized())
    }

    fn one(first: Change, next: Change) -> Change {
        match first.then(next, &columns()) {
            Composed::One(change) => change,
            Composed::Two(..) => panic!("not composed"),
        }
    }

    #[test]
    fn deltas_are_summed_and_a_set_wins_over_what_was_before() {
        assert_eq!(
            one(Change::upsert(vec![add(1, 2)]), Change::upsert(vec![add(1, 3)])),
            Change::upsert(vec![add(1, 5)])
        );
        assert_eq!(
            one(Change::upsert(vec![set(1, 2)]), Change::upsert(vec![add(1, 3)])),
            Change::upsert(vec![set(1, 5)])
        );
        assert_eq!(
            one(Change::upsert(vec![add(1, 2)]), Change::upsert(vec![set(1, 3)])),
            Change::upsert(vec![set(1, 3)])
        );
    }

    #[test]
    fn columns_of_both_are_kept_in_order() {
        assert_eq!(
            one(Change::upsert(vec![set(2, 1)]), Change::upsert(vec![set(1, 4), add(2, 1)])),
            Change::upsert(vec![set(1, 4), set(2, 2)])
        );
    }

    #[test]
    fn adding_to_a_null_that_was_just_set_counts_from_the_default_or_zero() {
        let null = |column| Change::upsert(vec![(ColumnId(column), Assign::Set(Datum::Null))]);
        assert_eq!(one(null(2), Change::upsert(vec![add(2, 1)])), Change::upsert(vec![set(2, 8)]));
        assert_eq!(one(null(1), Change::upsert(vec![add(1, 1)])), Change::upsert(vec![set(1, 1)]));
    }

    #[test]
    fn a_delete_and_an_upsert_replace_the_row() {
        assert_eq!(one(Change::delete(), Change::upsert(vec![add(2, 1)])), Change::replace(vec![add(2, 1)]));
        assert_eq!(one(Change::upsert(vec![set(1, 1)]), Change::delete()), Change::delete());
    }

    #[test]
    fn a_sum_that_its_column_cannot_hold_is_left_to_the_database() {
        for (first, next) in [
            (set(1, 32_000), add(1, 1_000)),
            (add(1, 32_000), add(1, 1_000)),
            (set(2, i64::MAX), add(2, 1)),
            (add(2, i64::MIN), add(2, -1)),
        ] {
            let (first, next) = (Change::upsert(vec![first]), Change::upsert(vec![next]));
            let composed = first.clone().then(next.clone(), &columns());
            assert_eq!(composed, Composed::Two(first, next));
        }
        let first = Change::upsert(vec![(ColumnId(3), Assign::Set(money("99.99")))]);
        let next = Change::upsert(vec![(ColumnId(3), Assign::Add(money("0.01")))]);
        assert!(matches!(first.clone().then(next, &columns()), Composed::Two(..)));
        let next = Change::upsert(vec![(ColumnId(3), Assign::Add(money("-0.99")))]);
        assert_eq!(one(first, next), Change::upsert(vec![(ColumnId(3), Assign::Set(money("99")))]));
    }

    #[test]
    fn keep_and_nothing_are_the_neutral_change() {
        let nothing = || Change::new(Present::Keep, Absent::Nothing);
        for change in [Change::delete(), Change::upsert(vec![set(1, 1)]), nothing()] {
            assert_eq!(one(nothing(), change.clone()), change);
            assert_eq!(one(change.clone(), nothing()), change);
        }
        assert!(nothing().is_nothing());
    }

    #[test]
    fn both_cases_can_come_to_differ() {
        let only_if_present = Change::update(vec![set(1, 1)]);
        assert_eq!(
            one(only_if_present, Change::upsert(vec![set(2, 2)])),
            Change::new(Present::Merge(vec![set(1, 1), set(2, 2)]), Absent::Insert(vec![set(2, 2)]))
        );
    }
}
