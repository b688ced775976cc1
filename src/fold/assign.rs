//! What is done to one column, and how two such effects compose.
//!
//! | first | then | is |
//! |---|---|---|
//! | any | set *b* | set *b* |
//! | set *a*, add *a* | add *b* | set *a + b*, add *a + b*, where the sum is a value of the column |
//! | set *a*, max *a* | max *b* | set or max of the larger of both; min likewise |
//! | set *a* | set_once *b* | set *a*, or set *b* where *a* is NULL |
//! | set_once *a* | set_once *b* | set_once *a* |
//!
//! Anything else does not compose: only the database, writing one after the other, can say what happens. Files do not mix the
//! families of these effects on one column (design: section 4), so that it hardly occurs.

use bigdecimal::{BigDecimal, Zero};

use super::digits::sum_fits_numeric;
use crate::projection::{Column, ColumnId, ColumnType, Datum, Table};

/// Columns and what is done to them, by ascending column, no column twice.
pub type Assignments = Vec<(ColumnId, Assign)>;

/// What is done to one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Assign {
    /// Replaces the stored value.
    Set(Datum),
    /// Adds to the stored value, never NULL; NULL and an absent row count from the default, else from 0.
    Add(Datum),
    /// The larger of the stored value and this one, never NULL; NULL and an absent row count as the default, else as nothing.
    Max(Datum),
    /// The smaller of the two, likewise.
    Min(Datum),
    /// Replaces NULL, and only that; never NULL. An absent row counts as the default.
    SetOnce(Datum),
}

impl Assign {
    /// The value that is set, added or compared.
    #[must_use]
    pub const fn datum(&self) -> &Datum {
        match self {
            Self::Set(datum)
            | Self::Add(datum)
            | Self::Max(datum)
            | Self::Min(datum)
            | Self::SetOnce(datum) => datum,
        }
    }
}

/// What composing needs to know of a table's columns: limits and defaults. Small, so that a batch can own it.
#[derive(Debug, Clone, Default)]
pub struct ColumnRules(Vec<ColumnRule>);

#[derive(Debug, Clone)]
struct ColumnRule {
    /// What a new row holds; NULL where there is none.
    default: Datum,
    /// Of columns that can be added to.
    limit: Option<Limit>,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Integer { min: i64, max: i64 },
    Numeric(Option<(u32, i32)>),
}

impl ColumnRules {
    /// The rules of `table`.
    #[must_use]
    pub fn of(table: &Table) -> Self {
        Self(table.columns.iter().map(ColumnRule::of).collect())
    }

    /// What a new row holds where nothing is assigned.
    pub(super) fn default_of(&self, column: ColumnId) -> &Datum {
        self.0.get(column.0).map_or(&Datum::Null, |rule| &rule.default)
    }

    /// `value`, or what NULL counts as, plus `delta`; `None` where the sum is no value of the column.
    fn plus(&self, column: ColumnId, value: &Datum, delta: &Datum) -> Option<Datum> {
        let rule = self.0.get(column.0)?;
        let limit = rule.limit?;
        match (value, &rule.default) {
            (Datum::Null, Datum::Null) => limit.sum(&limit.zero(), delta),
            (Datum::Null, default) => limit.sum(default, delta),
            (value, _) => limit.sum(value, delta),
        }
    }

    /// The chosen one of `value`, or what NULL counts as, and `other`.
    fn choose(
        &self,
        column: ColumnId,
        value: Datum,
        other: Datum,
        choose: impl Fn(Datum, Datum) -> Datum,
    ) -> Datum {
        let value = if value.is_null() { self.default_of(column).clone() } else { value };
        if value.is_null() { other } else { choose(value, other) }
    }
}

impl ColumnRule {
    fn of(column: &Column) -> Self {
        let limit = if let ColumnType::Numeric { precision_scale } = column.kind {
            Some(Limit::Numeric(precision_scale))
        } else {
            integer_range(&column.kind).map(|(min, max)| Limit::Integer { min, max })
        };
        Self { default: column.default.clone().unwrap_or(Datum::Null), limit }
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

/// Whether [`merged`] can do what `first` and then `second` do.
pub(super) fn compose(first: &Assignments, second: &Assignments, columns: &ColumnRules) -> bool {
    second.iter().all(|(column, later)| {
        matches!(later, Assign::Set(_))
            || match find(first, *column) {
                Some(earlier) => combines(*column, earlier, later, columns),
                None => true,
            }
    })
}

fn combines(column: ColumnId, earlier: &Assign, later: &Assign, columns: &ColumnRules) -> bool {
    match (earlier, later) {
        (_, Assign::Set(_))
        | (Assign::Set(_) | Assign::Max(_), Assign::Max(_))
        | (Assign::Set(_) | Assign::Min(_), Assign::Min(_))
        | (Assign::Set(_) | Assign::SetOnce(_), Assign::SetOnce(_)) => true,
        (Assign::Set(value) | Assign::Add(value), Assign::Add(delta)) => {
            columns.plus(column, value, delta).is_some()
        }
        _ => false,
    }
}

/// The assignments that do what `first` and then `second` do, to a row that is there as to one that is being made. That they
/// [`compose`] has been seen.
pub(super) fn merged(mut first: Assignments, second: Assignments, columns: &ColumnRules) -> Assignments {
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

fn combine(column: ColumnId, earlier: &mut Assign, later: Assign, columns: &ColumnRules) {
    let value = |earlier: &mut Assign| {
        let (Assign::Set(value)
        | Assign::Add(value)
        | Assign::Max(value)
        | Assign::Min(value)
        | Assign::SetOnce(value)) = earlier;
        std::mem::replace(value, Datum::Null)
    };
    let is_set = matches!(earlier, Assign::Set(_));
    *earlier = match later {
        set @ Assign::Set(_) => set,
        Assign::Add(delta) => {
            let value = value(earlier);
            let sum = columns.plus(column, &value, &delta).unwrap_or(value);
            if is_set { Assign::Set(sum) } else { Assign::Add(sum) }
        }
        Assign::Max(other) => {
            let largest = columns.choose(column, value(earlier), other, Ord::max);
            if is_set { Assign::Set(largest) } else { Assign::Max(largest) }
        }
        Assign::Min(other) => {
            let smallest = columns.choose(column, value(earlier), other, Ord::min);
            if is_set { Assign::Set(smallest) } else { Assign::Min(smallest) }
        }
        Assign::SetOnce(other) => match value(earlier) {
            Datum::Null => Assign::Set(other),
            value if is_set => Assign::Set(value),
            value => Assign::SetOnce(value),
        },
    };
}

/// What is done to `column`, if anything.
pub(super) fn find(assignments: &Assignments, column: ColumnId) -> Option<&Assign> {
    assignments.binary_search_by_key(&column, |(column, _)| *column).ok().map(|index| &assignments[index].1)
}

/// Bytes that assignments occupy.
pub(super) fn size(assignments: &Assignments) -> usize {
    assignments.iter().map(|(_, assign)| 16 + assign.datum().size()).sum()
}
