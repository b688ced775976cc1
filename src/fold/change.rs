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

use bigdecimal::{BigDecimal, Zero};

use super::digits::sum_fits_numeric;
use crate::projection::{Column, ColumnId, ColumnType, Datum, Table};

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
    /// It is made from the same assignments as [`Present`] has; adding counts from the default. Beside
    /// [`Present::Keep`] and [`Present::Delete`], which have none, it is made from none.
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

/// What became of two changes of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Composed {
    /// One change that does what both do.
    One(Change),
    /// The two as they were: a sum of theirs is not a value of its column, so that only the database, writing one after
    /// the other, can say what happens.
    Two(Change, Change),
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
    pub fn then(self, next: Self, columns: &SummedColumns) -> Composed {
        if !sums_fit(&self, &next, columns) {
            return Composed::Two(self, next);
        }
        match (self, next) {
            // The usual case by far, without a copy: both write the row whether or not it is there.
            (
                Self { present: Present::Merge(first), absent: Absent::InsertSame },
                Self { present: Present::Merge(second), absent: Absent::InsertSame },
            ) => Composed::One(Self::upsert(merged(first, second, columns))),
            (first, next) => Composed::One(first.then_in_both_cases(next, columns)),
        }
    }

    fn then_in_both_cases(self, next: Self, columns: &SummedColumns) -> Self {
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
        Self { present, absent }
    }

    /// Bytes that this change occupies, for the bounds of a batch.
    #[must_use]
    pub fn size(&self) -> usize {
        let of = |assignments: &Assignments| -> usize {
            assignments.iter().map(|(_, Assign::Set(datum) | Assign::Add(datum))| 16 + datum.size()).sum()
        };
        let absent = match &self.absent {
            Absent::Nothing | Absent::InsertSame => 0,
            Absent::Insert(assignments) => of(assignments),
        };
        size_of::<Self>() + self.present.assignments().map_or(0, of) + absent
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

/// What adding needs to know of a table's columns: limits and defaults. Small, so that a batch can own it.
#[derive(Debug, Clone, Default)]
pub struct SummedColumns(Vec<Option<Summed>>);

#[derive(Debug, Clone)]
struct Summed {
    limit: Limit,
    /// What NULL and an absent row count as.
    base: Datum,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Integer { min: i64, max: i64 },
    Numeric(Option<(u32, i32)>),
}

impl SummedColumns {
    /// The columns of `table` that can be added to.
    #[must_use]
    pub fn of(table: &Table) -> Self {
        Self(table.columns.iter().map(Summed::of).collect())
    }

    /// `value`, or what NULL counts as, plus `delta`; `None` where the sum is no value of the column.
    fn plus(&self, column: ColumnId, value: &Datum, delta: &Datum) -> Option<Datum> {
        let summed = self.0.get(column.0)?.as_ref()?;
        let value = if value.is_null() { &summed.base } else { value };
        summed.limit.sum(value, delta)
    }
}

impl Summed {
    fn of(column: &Column) -> Option<Self> {
        let limit = if let ColumnType::Numeric { precision_scale } = column.kind {
            Limit::Numeric(precision_scale)
        } else {
            let (min, max) = integer_range(&column.kind)?;
            Limit::Integer { min, max }
        };
        let base = match &column.default {
            Some(default) if !default.is_null() => default.clone(),
            _ => limit.zero(),
        };
        Some(Self { limit, base })
    }
}

impl Limit {
    fn zero(self) -> Datum {
        match self {
            Self::Integer { .. } => Datum::Int(0),
            Self::Numeric(_) => Datum::Numeric(BigDecimal::zero()),
        }
    }

    fn sum(self, value: &Datum, delta: &Datum) -> Option<Datum> {
        match self {
            Self::Integer { min, max } => match (value, delta) {
                (Datum::Int(value), Datum::Int(delta)) => {
                    value.checked_add(*delta).filter(|sum| (min..=max).contains(sum)).map(Datum::Int)
                }
                _ => None,
            },
            Self::Numeric(precision_scale) => {
                let sum = (numeric(value)? + numeric(delta)?).normalized();
                sum_fits_numeric(&sum, precision_scale).then_some(Datum::Numeric(sum))
            }
        }
    }
}

fn numeric(datum: &Datum) -> Option<BigDecimal> {
    match datum {
        Datum::Numeric(number) => Some(number.clone()),
        Datum::Int(number) => Some(BigDecimal::from(*number)),
        _ => None,
    }
}

/// The smallest and the largest value of an integer column; `None` for other types.
pub(super) const fn integer_range(kind: &ColumnType) -> Option<(i64, i64)> {
    match kind {
        ColumnType::SmallInt => Some((i16::MIN as i64, i16::MAX as i64)),
        ColumnType::Integer => Some((i32::MIN as i64, i32::MAX as i64)),
        ColumnType::BigInt => Some((i64::MIN, i64::MAX)),
        _ => None,
    }
}

/// Whether every sum that composing would make is a value of its column.
fn sums_fit(first: &Change, next: &Change, columns: &SummedColumns) -> bool {
    // Only a merge looks at what was there; without a sum in it nothing can fail.
    let Present::Merge(second) = &next.present else { return true };
    if !second.iter().any(|(_, assign)| matches!(assign, Assign::Add(_))) {
        return true;
    }
    let absent = match &first.absent {
        Absent::Insert(row) => Some(row),
        Absent::Nothing | Absent::InsertSame => None,
    };
    first.present.assignments().into_iter().chain(absent).all(|first| {
        second.iter().all(|(column, assign)| {
            let Assign::Add(delta) = assign else { return true };
            match first.binary_search_by_key(column, |(column, _)| *column) {
                Ok(index) => {
                    let (Assign::Set(value) | Assign::Add(value)) = &first[index].1;
                    columns.plus(*column, value, delta).is_some()
                }
                Err(_) => true,
            }
        })
    })
}

/// The assignments that do what `first` and then `second` do, to a row that is there as to one that is being made. The
/// sums are known to fit.
fn merged(mut first: Assignments, second: Assignments, columns: &SummedColumns) -> Assignments {
    let same_columns =
        first.len() == second.len() && first.iter().zip(&second).all(|((a, _), (b, _))| a == b);
    if same_columns {
        for ((column, earlier), (_, later)) in first.iter_mut().zip(second) {
            combine(*column, earlier, later, columns);
        }
        return first;
    }
    for (column, later) in second {
        match first.binary_search_by_key(&column, |(column, _)| *column) {
            Ok(index) => combine(column, &mut first[index].1, later, columns),
            Err(index) => first.insert(index, (column, later)),
        }
    }
    first
}

fn combine(column: ColumnId, earlier: &mut Assign, later: Assign, columns: &SummedColumns) {
    let Assign::Add(delta) = later else {
        *earlier = later;
        return;
    };
    let (Assign::Set(value) | Assign::Add(value)) = earlier;
    if let Some(sum) = columns.plus(column, value, &delta) {
        *value = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::{Nullability, Ownership};

    fn columns() -> SummedColumns {
        let column = |name: &str, kind, default| Column {
            name: name.into(),
            kind,
            nullability: Nullability::Nullable,
            default,
            generated: None,
        };
        SummedColumns::of(&Table {
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
        assert_eq!(
            one(Change::delete(), Change::upsert(vec![add(2, 1)])),
            Change { present: Present::Replace(vec![add(2, 1)]), absent: Absent::InsertSame }
        );
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
        let nothing = || Change { present: Present::Keep, absent: Absent::Nothing };
        for change in [Change::delete(), Change::upsert(vec![set(1, 1)]), nothing()] {
            assert_eq!(one(nothing(), change.clone()), change);
            assert_eq!(one(change.clone(), nothing()), change);
        }
        assert!(nothing().is_nothing());
    }

    #[test]
    fn both_cases_can_come_to_differ() {
        let only_if_present = Change { present: Present::Merge(vec![set(1, 1)]), absent: Absent::Nothing };
        assert_eq!(
            one(only_if_present, Change::upsert(vec![set(2, 2)])),
            Change {
                present: Present::Merge(vec![set(1, 1), set(2, 2)]),
                absent: Absent::Insert(vec![set(2, 2)])
            }
        );
    }
}
