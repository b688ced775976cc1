//! Which statement writes which rows of a round, and the arrays that it takes.

use bigdecimal::BigDecimal;

use super::array::{ColumnArray, Mismatch};
use super::statements::{
    Effect, GuardShape, MaskWay, Mode, Rest, Shape, Target, ToAbsent, ToPresent, has_default,
};
use super::work::Parameters;
use crate::fold::{Absent, Assign, Assignments, Change, Guard, Key, Present};
use crate::projection::{Column, ColumnId, ColumnType, Datum, Ownership};

/// Rows of one statement, at most; a bound of the memory that their arrays take.
const MOST_ROWS: usize = 20_000;
/// The same in bytes of their values.
const MOST_BYTES: usize = 8 << 20;

/// The type of a stored aggregate.
const AGGREGATE_TYPE: ColumnType = ColumnType::Text { max_chars: None };

/// A row to write: its key, the aggregate that it must belong to, and its change.
pub(super) type Row<'a> = (&'a Key, Option<&'a Datum>, &'a Change);

/// The rows of one table and round by the way in which they are written. Each list keeps the order of keys.
#[derive(Default)]
pub(super) struct Sorted<'a> {
    pub(super) by_shape: Vec<(Shape, Vec<Row<'a>>)>,
    pub(super) by_mask: Vec<(MaskWay, Vec<Row<'a>>)>,
    pub(super) deletes: Vec<Row<'a>>,
    pub(super) guarded_deletes: Vec<(MaskWay, Vec<Row<'a>>)>,
}

impl<'a> Sorted<'a> {
    pub(super) fn of(target: &Target<'_>, rows: &[Row<'a>]) -> Self {
        let required: Vec<ColumnId> = target.required().collect();
        let mut sorted = Self::default();
        for row in rows {
            match way(target, row.2, &required) {
                Way::Nothing => {}
                Way::Delete => sorted.deletes.push(*row),
                Way::Shape(shape) => add(&mut sorted.by_shape, shape, *row),
                Way::Mask(way) => {
                    let deletes = (ToPresent::Delete, ToAbsent::Nothing) == (way.present, way.absent);
                    let groups = if deletes { &mut sorted.guarded_deletes } else { &mut sorted.by_mask };
                    add(groups, way, *row);
                }
            }
        }
        if target.table.ownership == Ownership::Shared {
            sorted.join_sums(rows);
        }
        sorted
    }

    /// Turns several shapes of a shared table into one, if all they do is add: two transactions that write the same rows
    /// in several statements could wait for each other.
    fn join_sums(&mut self, rows: &[Row<'a>]) {
        let is_sum = |shape: &Shape| {
            shape.newer.is_empty()
                && shape.rest == Rest::Stays
                && shape.columns.iter().all(|(_, effect)| *effect == Effect::Add)
        };
        if self.by_shape.len() < 2
            || !self.by_mask.is_empty()
            || !self.by_shape.iter().all(|(shape, _)| is_sum(shape))
        {
            return;
        }
        let mut columns: Vec<ColumnId> =
            self.by_shape.iter().flat_map(|(shape, _)| shape.columns.iter().map(|(id, _)| *id)).collect();
        columns.sort_unstable();
        columns.dedup();
        let columns = columns.into_iter().map(|id| (id, Effect::AddIfAny)).collect();
        let shape = Shape { rest: Rest::Stays, columns, newer: Vec::new() };
        let rows = rows.iter().filter(|row| matches!(row.2.present, Present::Merge(_))).copied().collect();
        self.by_shape = vec![(shape, rows)];
    }
}

fn add<K: PartialEq, V>(groups: &mut Vec<(K, Vec<V>)>, key: K, value: V) {
    match groups.iter_mut().find(|(known, _)| *known == key) {
        Some((_, values)) => values.push(value),
        None => groups.push((key, vec![value])),
    }
}

enum Way {
    Nothing,
    Delete,
    Shape(Shape),
    Mask(MaskWay),
}

fn way(target: &Target<'_>, change: &Change, required: &[ColumnId]) -> Way {
    let mask = |present, absent| {
        Way::Mask(MaskWay { present, absent, guard: GuardShape::of(change.guard.as_deref()) })
    };
    match (&change.present, &change.absent) {
        (Present::Keep, Absent::Nothing) => Way::Nothing,
        (Present::Delete, Absent::Nothing) if change.guard.is_none() => Way::Delete,
        (Present::Delete, Absent::Nothing) => mask(ToPresent::Delete, ToAbsent::Nothing),
        // Without assignments of its own, "the same" is a row of defaults.
        (Present::Keep, Absent::InsertSame | Absent::Insert(_)) => mask(ToPresent::Keep, ToAbsent::Insert),
        (Present::Delete, Absent::InsertSame | Absent::Insert(_)) => {
            mask(ToPresent::Delete, ToAbsent::Insert)
        }
        (Present::Merge(_) | Present::Replace(_), Absent::Nothing) => {
            mask(ToPresent::Update, ToAbsent::Nothing)
        }
        (Present::Merge(_) | Present::Replace(_), Absent::Insert(_)) => {
            mask(ToPresent::Update, ToAbsent::Insert)
        }
        (Present::Merge(assignments) | Present::Replace(assignments), Absent::InsertSame) => {
            match at_once(target, change, assignments, required) {
                Some(shape) => Way::Shape(shape),
                None => mask(ToPresent::Update, ToAbsent::InsertSame),
            }
        }
    }
}

/// The shape of a change that one insert with its conflict can write.
fn at_once(
    target: &Target<'_>,
    change: &Change,
    assignments: &Assignments,
    required: &[ColumnId],
) -> Option<Shape> {
    let newer = match &change.guard {
        None => Vec::new(),
        // What is compared is what is set: it stands in the row that was to be inserted.
        Some(guard) if guard.only_if.is_empty() => {
            let is_set =
                |(id, datum): &(ColumnId, Datum)| find(assignments, *id) == Some(&Assign::Set(datum.clone()));
            if !guard.newer.iter().all(is_set) {
                return None;
            }
            guard.newer.iter().map(|(id, _)| *id).collect()
        }
        Some(_) => return None,
    };
    if matches!(change.present, Present::Replace(_)) {
        return Some(shape(Rest::Resets, assignments, newer));
    }
    // An insert that lacks a required column, or a sum that does not fit, is refused before the row is found. That is
    // right for a row that is made again, and wrong for one that is merged into.
    let is_given = |id| assignments.binary_search_by_key(id, |(id, _)| *id).is_ok();
    let can_insert = |(id, assign): &(ColumnId, Assign)| match assign {
        Assign::Set(_) => true,
        Assign::Add(delta) => target.column(*id).is_some_and(|column| default_takes(column, delta)),
        Assign::Max(_) | Assign::Min(_) | Assign::SetOnce(_) => {
            target.column(*id).is_some_and(|column| !has_default(column))
        }
    };
    let can = required.iter().all(is_given) && assignments.iter().all(can_insert);
    can.then(|| shape(Rest::Stays, assignments, newer))
}

/// Whether a column's default and `delta` give a value of the column, so that a row can be inserted with it.
fn default_takes(column: &Column, delta: &Datum) -> bool {
    match (&column.default, delta) {
        (None | Some(Datum::Null), _) => true,
        (Some(Datum::Int(default)), Datum::Int(delta)) => {
            default.checked_add(*delta).is_some_and(|sum| match column.kind {
                ColumnType::SmallInt => i16::try_from(sum).is_ok(),
                ColumnType::Integer => i32::try_from(sum).is_ok(),
                _ => true,
            })
        }
        (Some(Datum::Numeric(default)), Datum::Numeric(delta)) => match column.kind {
            ColumnType::Numeric { precision_scale: Some((precision, scale)) } => {
                (default + delta).abs() < BigDecimal::new(1.into(), i64::from(scale) - i64::from(precision))
            }
            _ => true,
        },
        _ => false,
    }
}

fn shape(rest: Rest, assignments: &Assignments, newer: Vec<ColumnId>) -> Shape {
    let columns = assignments.iter().map(|(id, assign)| (*id, Effect::of(assign))).collect();
    Shape { rest, columns, newer }
}

/// Cuts rows into the parts that one statement takes.
pub(super) fn parts<'r, 'a>(rows: &'r [Row<'a>]) -> impl Iterator<Item = &'r [Row<'a>]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fitting = rest.iter().take(MOST_ROWS).take_while(|(key, _, change)| {
            let before = bytes;
            bytes += change.size() + key.iter().map(Datum::size).sum::<usize>();
            before < MOST_BYTES
        });
        let (part, others) = rest.split_at(fitting.count().max(1));
        rest = others;
        Some(part)
    })
}

/// The arrays of key and aggregate, which every statement begins with.
pub(super) fn keyed(target: &Target<'_>, rows: &[Row<'_>]) -> Result<Parameters, Mismatch> {
    let mut parameters = Parameters::new();
    for (index, id) in target.table.primary_key.iter().enumerate() {
        let column = target.column(*id).ok_or(Mismatch)?;
        let mut array = ColumnArray::new(&column.kind, rows.len());
        for (key, _, _) in rows {
            array.push(key.get(index).ok_or(Mismatch)?)?;
        }
        parameters.push(array);
    }
    if target.table.stores_aggregate() {
        let mut array = ColumnArray::new(&AGGREGATE_TYPE, rows.len());
        for (_, aggregate, _) in rows {
            array.push(aggregate.ok_or(Mismatch)?)?;
        }
        parameters.push(array);
    }
    Ok(parameters)
}

/// The arrays of a statement by shape.
pub(super) fn by_shape(target: &Target<'_>, shape: &Shape, rows: &[Row<'_>]) -> Result<Parameters, Mismatch> {
    let mut parameters = keyed(target, rows)?;
    for (position, (id, effect)) in shape.columns.iter().enumerate() {
        let column = target.column(*id).ok_or(Mismatch)?;
        let mut array = ColumnArray::new(&column.kind, rows.len());
        for (_, _, change) in rows {
            let (Present::Merge(assignments) | Present::Replace(assignments)) = &change.present else {
                return Err(Mismatch);
            };
            // Rows of one shape have the same columns in the same places; only a joined shape must search.
            let assign = if *effect == Effect::AddIfAny {
                find(assignments, *id)
            } else {
                assignments.get(position).filter(|(found, _)| found == id).map(|(_, assign)| assign)
            };
            match assign {
                Some(assign) => array.push(assign.datum())?,
                None if *effect == Effect::AddIfAny => array.push_null(),
                None => return Err(Mismatch),
            }
        }
        parameters.push(array);
    }
    Ok(parameters)
}

/// The arrays of a statement by mask, in the order of its text: see [`Target::writable`].
pub(super) fn by_mask(target: &Target<'_>, way: &MaskWay, rows: &[Row<'_>]) -> Result<Parameters, Mismatch> {
    let (present, absent) = (way.present, way.absent);
    let mut parameters = keyed(target, rows)?;
    for (id, column) in target.writable() {
        if present == ToPresent::Update || absent == ToAbsent::InsertSame {
            masked(&mut parameters, &column.kind, rows, |change| to_present(change, id))?;
        }
        if absent == ToAbsent::Insert {
            masked(&mut parameters, &column.kind, rows, |change| to_absent(change, id))?;
        }
    }
    guards(target, &mut parameters, &way.guard.newer, rows, |guard| &guard.newer)?;
    guards(target, &mut parameters, &way.guard.only_if, rows, |guard| &guard.only_if)?;
    Ok(parameters)
}

/// The arrays of what guards compare; rows of one way compare the same columns in the same places.
fn guards(
    target: &Target<'_>,
    parameters: &mut Parameters,
    ids: &[ColumnId],
    rows: &[Row<'_>],
    of: impl Fn(&Guard) -> &[(ColumnId, Datum)],
) -> Result<(), Mismatch> {
    for (index, id) in ids.iter().enumerate() {
        let mut array = ColumnArray::new(&target.column(*id).ok_or(Mismatch)?.kind, rows.len());
        for (_, _, change) in rows {
            let guard = change.guard.as_deref().ok_or(Mismatch)?;
            let (_, datum) = of(guard).get(index).filter(|(found, _)| found == id).ok_or(Mismatch)?;
            array.push(datum)?;
        }
        parameters.push(array);
    }
    Ok(())
}

fn masked<'a>(
    parameters: &mut Parameters,
    kind: &ColumnType,
    rows: &[Row<'a>],
    of: impl Fn(&'a Change) -> (Mode, Option<&'a Datum>),
) -> Result<(), Mismatch> {
    let mut modes: Vec<i16> = Vec::with_capacity(rows.len());
    let mut values = ColumnArray::new(kind, rows.len());
    for (_, _, change) in rows {
        let (mode, value) = of(change);
        modes.push(mode as i16);
        match value {
            Some(datum) => values.push(datum)?,
            None => values.push_null(),
        }
    }
    parameters.push(modes);
    parameters.push(values);
    Ok(())
}

fn to_present(change: &Change, id: ColumnId) -> (Mode, Option<&Datum>) {
    match &change.present {
        Present::Keep | Present::Delete => (Mode::Leave, None),
        Present::Merge(assignments) => assigned(assignments, id, Mode::merging, Mode::Leave),
        // The row is made again, from defaults.
        Present::Replace(assignments) => assigned(assignments, id, Mode::making, Mode::Reset),
    }
}

fn to_absent(change: &Change, id: ColumnId) -> (Mode, Option<&Datum>) {
    match &change.absent {
        Absent::Insert(assignments) => assigned(assignments, id, Mode::making, Mode::Leave),
        Absent::Nothing | Absent::InsertSame => (Mode::Leave, None),
    }
}

fn assigned(
    assignments: &Assignments,
    id: ColumnId,
    mode: fn(Effect) -> Mode,
    otherwise: Mode,
) -> (Mode, Option<&Datum>) {
    match find(assignments, id) {
        Some(assign) => (mode(Effect::of(assign)), Some(assign.datum())),
        None => (otherwise, None),
    }
}

fn find(assignments: &Assignments, id: ColumnId) -> Option<&Assign> {
    assignments.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| &assignments[index].1)
}
