//! Random changes against a small model of a table: what no written case thinks of.

use std::collections::BTreeMap;

use super::{Harness, Scene, TEXT, column, defaulted, item, required, set, table, text};
use crate::fold::{Absent, Assign, Assignments, Change, Guard, Present, RowChange};
use crate::projection::{ColumnId, ColumnType, Datum, Nullability, Ownership, Table};
use crate::store::{Applied, StoreError};

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn number(&mut self) -> i64 {
        i64::try_from(self.roll(9)).unwrap() - 4
    }
}

const COUNT: usize = 1;
const TOTAL: usize = 2;
const LABEL: usize = 3;
const NAME: usize = 4;

fn sums(ownership: Ownership) -> Table {
    table(
        "sums",
        ownership,
        vec![
            required("id", ColumnType::BigInt),
            column("count", ColumnType::BigInt),
            defaulted("total", ColumnType::SmallInt, Datum::Int(100)),
            defaulted("label", TEXT, text("none")),
            required("name", TEXT),
        ],
    )
}

fn assignments(dice: &mut Dice) -> Assignments {
    let mut list = Vec::new();
    for column in [COUNT, TOTAL] {
        let number = Datum::Int(dice.number());
        match dice.roll(8) {
            0 | 1 => list.push(set(column, number)),
            2 | 3 => list.push((ColumnId(column), Assign::Add(number))),
            4 => list.push((ColumnId(column), Assign::Max(number))),
            5 => list.push((ColumnId(column), Assign::Min(number))),
            6 => list.push((ColumnId(column), Assign::SetOnce(number))),
            7 if dice.roll(2) == 0 => list.push(set(column, Datum::Null)),
            _ => {}
        }
    }
    let label = text(["Label", "label", "\u{e9}tiquette"][usize::try_from(dice.roll(3)).unwrap()]);
    match dice.roll(7) {
        0 => list.push(set(LABEL, label)),
        1 => list.push(set(LABEL, Datum::Null)),
        2 => list.push((ColumnId(LABEL), Assign::SetOnce(label))),
        3 => list.push((ColumnId(LABEL), Assign::Max(label))),
        4 => list.push((ColumnId(LABEL), Assign::Min(label))),
        _ => {}
    }
    if dice.roll(4) > 0 {
        list.push(set(NAME, text(["a", "b", "c"][usize::try_from(dice.roll(3)).unwrap()])));
    }
    list
}

fn change(dice: &mut Dice) -> Change {
    match dice.roll(14) {
        0..4 => guarded(dice),
        4..9 => Change::upsert(assignments(dice)),
        9 => Change::delete(),
        _ => Change::new(
            match dice.roll(4) {
                0 => Present::Keep,
                1 => Present::Delete,
                2 => Present::Merge(assignments(dice)),
                _ => Present::Replace(assignments(dice)),
            },
            match dice.roll(3) {
                0 => Absent::Nothing,
                1 => Absent::InsertSame,
                _ => Absent::Insert(assignments(dice)),
            },
        ),
    }
}

/// A change with conditions: what is compared as newer is set, but for a delete.
fn guarded(dice: &mut Dice) -> Change {
    let mut guard = Guard::default();
    if dice.roll(4) > 0 {
        guard.newer.push((ColumnId(COUNT), Datum::Int(dice.number())));
    }
    if dice.roll(3) == 0 {
        guard
            .newer
            .push((ColumnId(LABEL), text(["B", "a", "\u{e9}"][usize::try_from(dice.roll(3)).unwrap()])));
    }
    if guard.newer.is_empty() || dice.roll(4) == 0 {
        let wanted = if dice.roll(3) == 0 { Datum::Null } else { Datum::Int(100) };
        guard.only_if.push((ColumnId(TOTAL), wanted));
    }
    let mut list = assignments(dice);
    list.retain(|(id, _)| guard.newer.iter().all(|(compared, _)| compared != id));
    list.extend(guard.newer.iter().map(|(id, datum)| (*id, Assign::Set(datum.clone()))));
    list.sort_by_key(|(id, _)| *id);
    let change = match dice.roll(6) {
        0 => Change::delete(),
        1 => Change::replace(list),
        2 => Change::update(list),
        3 => Change::new(Present::Merge(list), Absent::Insert(assignments(dice))),
        _ => Change::upsert(list),
    };
    change.guarded(guard)
}

/// Whether a stored row is touched by a guarded change.
fn touches(guard: &Guard, values: &[Datum]) -> bool {
    let shown = |datum: &Datum| if datum.is_null() { None } else { Some(datum.clone()) };
    let event: Vec<_> = guard.newer.iter().map(|(_, datum)| shown(datum)).collect();
    let stored: Vec<_> = guard.newer.iter().map(|(id, _)| shown(&values[id.0])).collect();
    guard.only_if.iter().all(|(id, datum)| values[id.0] == *datum) && (event.is_empty() || event > stored)
}

/// The row's aggregate and its values; those of the key are left NULL.
type ModelRow = (Option<Datum>, Vec<Datum>);

#[derive(Clone)]
struct Model(BTreeMap<i64, ModelRow>);

/// Why the model refuses a change.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    NotNull,
    Foreign,
}

impl Model {
    fn apply(&mut self, table: &Table, id: i64, row: &RowChange) -> Result<(), Refusal> {
        let made = |list: &Assignments| {
            let mut values: Vec<Datum> =
                table.columns.iter().map(|column| column.default.clone().unwrap_or(Datum::Null)).collect();
            assign(table, &mut values, list)?;
            Ok((row.aggregate.clone(), values))
        };
        let RowChange { change: Change { guard, present, absent }, .. } = row;
        let Some(stored) = self.0.get_mut(&id) else {
            let list = match (absent, present) {
                (Absent::Nothing, _) => return Ok(()),
                (Absent::InsertSame, Present::Merge(list) | Present::Replace(list))
                | (Absent::Insert(list), _) => list,
                (Absent::InsertSame, Present::Keep | Present::Delete) => &Vec::new(),
            };
            self.0.insert(id, made(list)?);
            return Ok(());
        };
        if *present != Present::Keep && stored.0 != row.aggregate {
            return Err(Refusal::Foreign);
        }
        if guard.as_ref().is_some_and(|guard| !touches(guard, &stored.1)) {
            return Ok(());
        }
        match present {
            Present::Keep => {}
            Present::Delete => drop(self.0.remove(&id)),
            Present::Merge(list) => assign(table, &mut stored.1, list)?,
            Present::Replace(list) => *stored = made(list)?,
        }
        Ok(())
    }
}

fn assign(table: &Table, values: &mut [Datum], list: &Assignments) -> Result<(), Refusal> {
    for (ColumnId(index), assign) in list {
        values[*index] = match assign {
            Assign::Set(datum) => datum.clone(),
            Assign::Add(delta) => {
                let base =
                    if values[*index].is_null() { table.columns[*index].default.clone() } else { None };
                let from = base.unwrap_or_else(|| values[*index].clone());
                let number = |datum: &Datum| if let Datum::Int(number) = datum { *number } else { 0 };
                Datum::Int(number(&from) + number(delta))
            }
            Assign::Max(other) | Assign::Min(other) => {
                let base =
                    if values[*index].is_null() { table.columns[*index].default.clone() } else { None };
                let stored = base.unwrap_or_else(|| values[*index].clone());
                let is_larger = *other > stored;
                let takes = stored.is_null() || is_larger == matches!(assign, Assign::Max(_));
                if takes { other.clone() } else { stored }
            }
            Assign::SetOnce(other) if values[*index].is_null() => other.clone(),
            Assign::SetOnce(_) => values[*index].clone(),
        };
    }
    let is_missing = |(index, datum): (usize, &Datum)| {
        index > 0 && datum.is_null() && table.columns[index].nullability == Nullability::NotNull
    };
    if values.iter().enumerate().any(is_missing) { Err(Refusal::NotNull) } else { Ok(()) }
}

fn shown(model: &Model, ownership: Ownership) -> Vec<Vec<String>> {
    let shown = |datum: &Datum| match datum {
        Datum::Int(number) => number.to_string(),
        Datum::Text(text) => text.to_string(),
        _ => "NULL".to_owned(),
    };
    let rows = model.0.iter().map(|(id, (aggregate, values))| {
        let mut row = vec![id.to_string()];
        row.extend(values[1..].iter().map(shown));
        if ownership == Ownership::OwnedStored {
            row.extend(aggregate.iter().map(shown));
        }
        row
    });
    rows.collect()
}

async fn equals_the_model(harness: &dyn Harness, ownership: Ownership, seed: u64) {
    const TRANSACTIONS: usize = 150;
    let mut dice = Dice(seed);
    let mut scene = Scene::of_tables(harness, vec![sums(ownership)]).await;
    let table = scene.declaration.tables[0].clone();
    let mut model = Model(BTreeMap::new());
    let (mut committed, mut refused) = (0, 0);
    for step in 0..TRANSACTIONS {
        let mut rounds = Vec::new();
        let mut next = model.clone();
        let mut expected = Ok(());
        // Few rows now and then, so that transactions are not all refused for one of many.
        for _ in 0..=dice.roll(2) {
            let mut round = Vec::new();
            let most = if dice.roll(4) == 0 { 80 } else { 3 };
            let first = i64::try_from(dice.roll(6)).unwrap();
            for id in first..first + i64::try_from(dice.roll(most)).unwrap() {
                let mut row = item(id, change(&mut dice));
                if ownership == Ownership::OwnedStored {
                    row.aggregate = Some(text(if dice.roll(40) == 0 { "y" } else { "x" }));
                }
                let applied = next.apply(&table, id, &row);
                // Rows that are refused are rare in life; here most of them are left out.
                if applied.is_err() && dice.roll(12) > 0 {
                    next = model.clone();
                    for row in rounds.iter().flatten().chain(&round) {
                        assert_eq!(next.apply(&table, id_of(row), row), Ok(()));
                    }
                    continue;
                }
                round.push(row);
                if applied.is_err() {
                    expected = applied;
                    break;
                }
            }
            rounds.push(round);
            if expected.is_err() {
                break;
            }
        }
        match (scene.apply_rounds(&rounds).await, expected) {
            (Ok(Applied::Committed { missed_updates }), Ok(())) => {
                let mut before = model.clone();
                let missed = rounds.iter().flatten().filter(|row| {
                    let is_missed = !before.0.contains_key(&id_of(row)) && is_update(&row.change);
                    assert_eq!(before.apply(&table, id_of(row), row), Ok(()));
                    is_missed
                });
                assert_eq!(missed_updates, missed.count() as u64, "step {step}");
                model = next;
                committed += 1;
            }
            // A row may be refused for either reason; which is seen first is the store's affair.
            (Err(StoreError::Database { .. } | StoreError::ForeignRow { .. }), Err(_)) => refused += 1,
            (answer, expected) => {
                panic!("step {step}: {answer:?} where the model says {expected:?}: {rounds:?}")
            }
        }
        let rows = scene.rows("select * from sums__v1 order by id").await;
        assert_eq!(rows, shown(&model, ownership), "step {step}: {rounds:?}");
    }
    assert!(committed > TRANSACTIONS / 3 && refused > 0, "{committed} committed, {refused} refused");
}

fn is_update(change: &Change) -> bool {
    matches!((&change.present, &change.absent), (Present::Merge(_) | Present::Replace(_), Absent::Nothing))
}

fn id_of(row: &RowChange) -> i64 {
    if let Datum::Int(id) = row.key[0] { id } else { 0 }
}

pub(crate) async fn random_changes_equal_the_model(harness: &dyn Harness) {
    equals_the_model(harness, Ownership::OwnedByKey, 0x5eed_0001).await;
}

pub(crate) async fn random_changes_of_shared_rows_equal_the_model(harness: &dyn Harness) {
    equals_the_model(harness, Ownership::Shared, 0x5eed_0002).await;
}

pub(crate) async fn random_changes_of_aggregates_equal_the_model(harness: &dyn Harness) {
    equals_the_model(harness, Ownership::OwnedStored, 0x5eed_0003).await;
}
