//! Folding against applying one by one (promise P3): a model of a store that knows nothing of composition.
//!
//! The model applies a change to a row as a database would: it refuses sums that a column cannot hold, rows without a NOT
//! NULL column, and writes to rows of another aggregate. What one by one is not refused must give the same rows however
//! the batches are cut.

use std::collections::BTreeMap;

use bigdecimal::BigDecimal;
use proptest::prelude::*;

use super::{Absent, Assign, Assignments, Change, Folded, FoldedTable, Guard, Key, Present, RowChange};
use crate::projection::{Column, ColumnId, ColumnType, Datum, Nullability, Ownership, Table, TableId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    OutOfRange,
    NotNull,
    ForeignRow,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelRow {
    aggregate: Option<Datum>,
    values: Vec<Datum>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Model(BTreeMap<(TableId, Key), ModelRow>);

impl Model {
    fn apply(
        &mut self,
        table: &Table,
        id: TableId,
        key: &Key,
        aggregate: Option<&Datum>,
        change: &Change,
    ) -> Result<(), Refused> {
        let at = (id, key.clone());
        let Some(row) = self.0.get_mut(&at) else {
            let row = match &change.absent {
                Absent::Nothing => return Ok(()),
                Absent::InsertSame => match &change.present {
                    Present::Merge(assignments) | Present::Replace(assignments) => assignments,
                    Present::Keep | Present::Delete => &Vec::new(),
                },
                Absent::Insert(assignments) => assignments,
            };
            let values = made_row(table, key, row)?;
            self.0.insert(at, ModelRow { aggregate: aggregate.cloned(), values });
            return Ok(());
        };
        if change.present != Present::Keep && row.aggregate.as_ref() != aggregate {
            return Err(Refused::ForeignRow);
        }
        if change.guard.as_ref().is_some_and(|guard| !touches(guard, &row.values)) {
            return Ok(());
        }
        match &change.present {
            Present::Keep => {}
            Present::Delete => {
                self.0.remove(&at);
            }
            Present::Merge(assignments) => assign(table, &mut row.values, assignments)?,
            Present::Replace(assignments) => row.values = made_row(table, key, assignments)?,
        }
        Ok(())
    }

    fn apply_rounds(&mut self, tables: &[Table], folded: &Folded) -> Result<(), Refused> {
        for round in folded.rounds() {
            for FoldedTable { table, rows } in round {
                for (key, aggregate, change) in rows {
                    self.apply(&tables[table.0], table, key, aggregate, change)?;
                }
            }
        }
        Ok(())
    }
}

fn made_row(table: &Table, key: &Key, assignments: &Assignments) -> Result<Vec<Datum>, Refused> {
    let mut values: Vec<Datum> =
        table.columns.iter().map(|column| column.default.clone().unwrap_or(Datum::Null)).collect();
    for (id, value) in table.primary_key.iter().zip(key) {
        values[id.0] = value.clone();
    }
    assign(table, &mut values, assignments)?;
    Ok(values)
}

/// Whether a stored row is touched: what must be equal is, and what is compared is greater, NULL being the smallest.
fn touches(guard: &Guard, values: &[Datum]) -> bool {
    let stored = |id: &ColumnId| values[id.0].clone();
    let event: Vec<Option<&Datum>> = guard.newer.iter().map(|(_, datum)| Some(datum)).collect();
    let before: Vec<Datum> = guard.newer.iter().map(|(id, _)| stored(id)).collect();
    let before: Vec<Option<&Datum>> =
        before.iter().map(|datum| Some(datum).filter(|datum| !datum.is_null())).collect();
    guard.only_if.iter().all(|(id, datum)| stored(id) == *datum) && (event.is_empty() || event > before)
}

fn assign(table: &Table, values: &mut [Datum], assignments: &Assignments) -> Result<(), Refused> {
    for (id, assign) in assignments {
        let column = &table.columns[id.0];
        values[id.0] = match assign {
            Assign::Set(value) => value.clone(),
            Assign::Add(delta) => {
                let stored = match (&values[id.0], &column.default) {
                    (Datum::Null, Some(default)) => default,
                    (stored, _) => stored,
                };
                sum(&column.kind, stored, delta)?
            }
            Assign::Max(other) | Assign::Min(other) => {
                let stored = match (&values[id.0], &column.default) {
                    (Datum::Null, Some(default)) => default,
                    (stored, _) => stored,
                };
                let is_kept = match assign {
                    Assign::Max(_) => stored >= other,
                    _ => stored <= other,
                };
                if is_kept && !stored.is_null() { stored.clone() } else { other.clone() }
            }
            Assign::SetOnce(other) => match &values[id.0] {
                Datum::Null => other.clone(),
                stored => stored.clone(),
            },
        };
    }
    let refused = table
        .columns
        .iter()
        .zip(values.iter())
        .any(|(column, value)| column.nullability == Nullability::NotNull && value.is_null());
    if refused { Err(Refused::NotNull) } else { Ok(()) }
}

/// Addition as a database does it, over wide integers and over hundredths.
fn sum(kind: &ColumnType, stored: &Datum, delta: &Datum) -> Result<Datum, Refused> {
    let wide = |datum: &Datum| match datum {
        Datum::Null => 0,
        Datum::Int(number) => i128::from(*number),
        Datum::Numeric(number) => {
            let hundredths = number.with_scale(2).as_bigint_and_exponent().0;
            i128::try_from(hundredths).expect("few digits")
        }
        other => panic!("{other:?} cannot be added"),
    };
    let sum = wide(stored) + wide(delta);
    let (min, max) = match kind {
        ColumnType::SmallInt => (-32_768, 32_767),
        ColumnType::BigInt => (i128::from(i64::MIN), i128::from(i64::MAX)),
        ColumnType::Numeric { .. } => (-9_999, 9_999),
        other => panic!("{other} cannot be added to"),
    };
    if !(min..=max).contains(&sum) {
        return Err(Refused::OutOfRange);
    }
    Ok(match kind {
        ColumnType::Numeric { .. } => hundredths(i64::try_from(sum).expect("in range")),
        _ => Datum::Int(i64::try_from(sum).expect("in range")),
    })
}

fn hundredths(number: i64) -> Datum {
    Datum::Numeric(BigDecimal::new(number.into(), 2).normalized())
}

const SMALL: usize = 1;
const BIG: usize = 2;
const MONEY: usize = 3;
const NAME: usize = 4;
const COLUMNS: usize = 5;

fn small() -> impl Strategy<Value = Datum> {
    prop_oneof![-3..3_i64, Just(30_000), Just(-30_000), Just(32_767), Just(-32_768)].prop_map(Datum::Int)
}

fn big() -> impl Strategy<Value = Datum> {
    prop_oneof![-3..3_i64, Just(i64::MAX), Just(i64::MIN), Just(i64::MAX / 2 + 1)].prop_map(Datum::Int)
}

fn money() -> impl Strategy<Value = Datum> {
    prop_oneof![-300..300_i64, Just(9_999), Just(-9_999), Just(6_000)].prop_map(hundredths)
}

fn value_of(column: usize) -> BoxedStrategy<Datum> {
    match column {
        SMALL => small().boxed(),
        BIG => big().boxed(),
        MONEY => money().boxed(),
        _ => "[a-c]{0,2}".prop_map(|text| Datum::Text(text.into())).boxed(),
    }
}

fn table(ownership: Ownership) -> impl Strategy<Value = Table> {
    let kinds = [
        ColumnType::BigInt,
        ColumnType::SmallInt,
        ColumnType::BigInt,
        ColumnType::Numeric { precision_scale: Some((4, 2)) },
        ColumnType::Text { max_chars: None },
    ];
    let default = |column: usize| prop::option::weighted(0.4, value_of(column));
    (default(SMALL), default(BIG), default(MONEY), default(NAME), any::<[bool; COLUMNS]>()).prop_map(
        move |(small, big, money, name, not_null)| {
            let defaults = [None, small, big, money, name];
            let columns = kinds.iter().cloned().zip(defaults).zip(not_null).enumerate();
            let columns = columns.map(|(index, ((kind, default), not_null))| Column {
                name: format!("c{index}"),
                kind,
                nullability: if not_null { Nullability::NotNull } else { Nullability::Nullable },
                default,
                generated: None,
            });
            Table {
                name: "t".into(),
                ownership,
                primary_key: vec![ColumnId(0)],
                columns: columns.collect(),
                indexes: Vec::new(),
            }
        },
    )
}

fn tables() -> impl Strategy<Value = Vec<Table>> {
    (table(Ownership::OwnedStored), table(Ownership::OwnedByKey)).prop_map(|(a, b)| vec![a, b])
}

fn assignments(table: &Table) -> impl Strategy<Value = Assignments> + use<> {
    let columns: Vec<_> = (SMALL..COLUMNS)
        .map(|column| {
            let nullable = table.columns[column].nullability == Nullability::Nullable;
            let null = if nullable { Just(Datum::Null).boxed() } else { value_of(column) };
            let set = prop_oneof![4 => value_of(column), 1 => null].prop_map(Assign::Set);
            let other = prop_oneof![
                value_of(column).prop_map(Assign::Max),
                value_of(column).prop_map(Assign::Min),
                value_of(column).prop_map(Assign::SetOnce),
            ];
            let assign = match column {
                NAME => prop_oneof![set, other].boxed(),
                _ => prop_oneof![2 => set, 2 => value_of(column).prop_map(Assign::Add), 1 => other].boxed(),
            };
            prop::option::of(assign)
        })
        .collect();
    columns.prop_map(|assigns| {
        let numbered = (SMALL..).zip(assigns);
        numbered.filter_map(|(column, assign)| assign.map(|assign| (ColumnId(column), assign))).collect()
    })
}

/// What projections emit, and now and then every other pair that composing gives.
fn change(table: &Table) -> impl Strategy<Value = Change> + use<> {
    let present = prop_oneof![
        Just(Present::Keep),
        Just(Present::Delete),
        assignments(table).prop_map(Present::Merge),
        assignments(table).prop_map(Present::Replace),
    ];
    let absent = prop_oneof![
        Just(Absent::Nothing),
        Just(Absent::InsertSame),
        assignments(table).prop_map(Absent::Insert),
    ];
    prop_oneof![
        6 => assignments(table).prop_map(Change::upsert),
        2 => Just(Change::delete()),
        3 => (present, absent).prop_map(|(present, absent)| Change::new(present, absent)),
        4 => guarded(table),
    ]
}

/// Changes with conditions: what is compared as newer is stored as well.
fn guarded(table: &Table) -> impl Strategy<Value = Change> + use<> {
    let compared: Vec<_> =
        (SMALL..COLUMNS).map(|column| prop::option::weighted(0.3, value_of(column))).collect();
    let equal: Vec<_> = (SMALL..COLUMNS)
        .map(|column| {
            let value = prop_oneof![3 => value_of(column), 1 => Just(Datum::Null)];
            prop::option::weighted(0.1, value)
        })
        .collect();
    let kinds = (0..4, assignments(table), any::<bool>(), assignments(table));
    (kinds, compared, equal, any::<bool>()).prop_map(
        |((kind, mut assigned, inserts, mut made), compared, equal, reversed)| {
            let given = |list: Vec<Option<Datum>>| -> Vec<(ColumnId, Datum)> {
                let numbered = (SMALL..).map(ColumnId).zip(list);
                numbered.filter_map(|(id, datum)| Some((id, datum?))).collect()
            };
            let mut guard = Guard { newer: given(compared), only_if: given(equal) };
            if reversed {
                guard.newer.reverse();
            }
            for list in [&mut assigned, &mut made] {
                list.retain(|(id, _)| guard.newer.iter().all(|(compared, _)| compared != id));
                list.extend(guard.newer.iter().map(|(id, datum)| (*id, Assign::Set(datum.clone()))));
                list.sort_by_key(|(id, _)| *id);
            }
            let change = match kind {
                0 => Change::upsert(assigned),
                1 => Change::replace(assigned),
                2 if inserts => Change::new(Present::Merge(assigned), Absent::Insert(made)),
                2 => Change::update(assigned),
                _ => Change::delete(),
            };
            if guard == Guard::default() { change } else { change.guarded(guard) }
        },
    )
}

fn aggregate(table: &Table) -> impl Strategy<Value = Option<Datum>> + use<> {
    let name = |name: &str| Some(Datum::Text(name.into()));
    match table.ownership {
        Ownership::OwnedStored => prop_oneof![20 => Just(name("a")), 1 => Just(name("b"))].boxed(),
        Ownership::OwnedByKey | Ownership::Shared => Just(None).boxed(),
    }
}

fn row_change(tables: &[Table]) -> impl Strategy<Value = RowChange> + use<> {
    let of_table = |index: usize| {
        let table = &tables[index];
        (0..3_i64, aggregate(table), change(table)).prop_map(move |(key, aggregate, change)| RowChange {
            table: TableId(index),
            key: Box::new([Datum::Int(key)]),
            aggregate,
            change,
        })
    };
    prop_oneof![of_table(0), of_table(1)]
}

/// Rows that are there before: some keys, values with NULLs where they may be.
fn initial(tables: &[Table]) -> impl Strategy<Value = Model> + use<> {
    let row = |index: usize| {
        let table = tables[index].clone();
        (0..3_i64, aggregate(&table), assignments(&table)).prop_map(move |(key, aggregate, assignments)| {
            let key: Key = Box::new([Datum::Int(key)]);
            let values = made_row(&table, &key, &assignments).ok()?;
            Some(((TableId(index), key), ModelRow { aggregate, values }))
        })
    };
    prop::collection::vec(prop_oneof![row(0), row(1)], 0..5)
        .prop_map(|rows| Model(rows.into_iter().flatten().collect()))
}

type Case = (Vec<Table>, Model, Vec<RowChange>);

fn case(changes: std::ops::Range<usize>) -> impl Strategy<Value = Case> {
    tables().prop_flat_map(move |tables| {
        let changes = prop::collection::vec(row_change(&tables), changes.clone());
        let initial = initial(&tables);
        (Just(tables), initial, changes)
    })
}

fn one_by_one(tables: &[Table], initial: &Model, changes: &[RowChange]) -> Result<Model, Refused> {
    let mut model = initial.clone();
    for change in changes {
        let RowChange { table, key, aggregate, change } = change;
        model.apply(&tables[table.0], *table, key, aggregate.as_ref(), change)?;
    }
    Ok(model)
}

/// The rows after applying in batches; `cut(i)` says whether a batch ends before change `i`.
fn in_batches(
    tables: &[Table],
    initial: &Model,
    changes: &[RowChange],
    cut: impl Fn(usize) -> bool,
) -> Result<Model, Refused> {
    let mut model = initial.clone();
    let mut folded = Folded::new(tables);
    for (index, change) in changes.iter().enumerate() {
        if index > 0 && cut(index) {
            model.apply_rounds(tables, &folded)?;
            folded = folded.empty_like();
        }
        folded.push(change.clone());
    }
    model.apply_rounds(tables, &folded)?;
    Ok(model)
}

/// The promise: what one by one is accepted is accepted in batches and gives the same rows, and a foreign row that one by
/// one is found is found in batches too.
fn agree(one_by_one: &Result<Model, Refused>, batched: &Result<Model, Refused>) -> Result<(), TestCaseError> {
    match one_by_one {
        Ok(expected) => prop_assert_eq!(batched.as_ref(), Ok(expected)),
        Err(Refused::ForeignRow) => prop_assert!(batched.is_err()),
        Err(Refused::OutOfRange | Refused::NotNull) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_way_of_cutting_a_few_changes_gives_the_rows_of_one_by_one((tables, initial, changes) in case(1..8)) {
        let expected = one_by_one(&tables, &initial, &changes);
        for cuts in 0..1_u32 << (changes.len() - 1) {
            let batched = in_batches(&tables, &initial, &changes, |index| cuts >> (index - 1) & 1 == 1);
            agree(&expected, &batched)?;
        }
    }

    #[test]
    fn random_cuts_of_many_changes_give_the_rows_of_one_by_one(
        (tables, initial, changes) in case(8..60), cuts in any::<u64>()
    ) {
        // The longest prefix that is not refused, so that long runs count.
        let mut changes = changes;
        while one_by_one(&tables, &initial, &changes).is_err_and(|refused| refused != Refused::ForeignRow) {
            changes.pop();
        }
        let expected = one_by_one(&tables, &initial, &changes);
        agree(&expected, &in_batches(&tables, &initial, &changes, |index| cuts >> (index % 64) & 1 == 1))?;
        agree(&expected, &in_batches(&tables, &initial, &changes, |_| false))?;
    }

    #[test]
    fn merging_two_folds_is_folding_both(
        (tables, initial, changes) in case(1..20), middle in any::<prop::sample::Index>()
    ) {
        let (first, second) = changes.split_at(middle.index(changes.len()));
        let fold = |changes: &[RowChange]| {
            let mut folded = Folded::new(&tables);
            changes.iter().cloned().for_each(|change| folded.push(change));
            folded
        };
        let mut merged = fold(first);
        merged.merge(fold(second));
        let mut model = initial.clone();
        let batched = model.apply_rounds(&tables, &merged).map(|()| model);
        agree(&one_by_one(&tables, &initial, &changes), &batched)?;
    }

    #[test]
    fn rounds_are_sorted_and_hold_every_change_once((tables, _, changes) in case(0..40)) {
        let mut folded = Folded::new(&tables);
        changes.iter().cloned().for_each(|change| folded.push(change));
        let rounds = folded.rounds();
        prop_assert_eq!(folded.is_empty(), rounds.is_empty());
        prop_assert_eq!(folded.is_empty(), folded.size() == 0);
        prop_assert_eq!(rounds.first().map_or(0, |tables| tables.iter().map(|table| table.rows.len()).sum()), folded.rows());
        for round in &rounds {
            prop_assert!(!round.is_empty());
            prop_assert!(round.is_sorted_by(|a, b| a.table < b.table));
            for table in round {
                prop_assert!(!table.rows.is_empty());
                prop_assert!(table.rows.is_sorted_by(|(a, ..), (b, ..)| a < b));
            }
        }
        // Folding what has been folded changes nothing, and the size is that of what is there.
        let mut again = folded.empty_like();
        for FoldedTable { table, rows } in rounds.iter().flatten() {
            for (key, aggregate, change) in rows {
                let (key, aggregate, change) = ((*key).clone(), aggregate.cloned(), (*change).clone());
                again.push(RowChange { table: *table, key, aggregate, change });
            }
        }
        prop_assert_eq!(again.rounds(), rounds);
        prop_assert_eq!(again.size(), folded.size());
    }

    #[test]
    fn partitions_that_share_a_row_commute(
        table in table(Ownership::Shared), first in prop::collection::vec((0..2_i64, 0..3, -9..9_i64), 1..8),
        second in prop::collection::vec((0..2_i64, 0..3, -9..9_i64), 1..8)
    ) {
        let mut table = table;
        // What is compared has no default: see the checks of a projection file.
        for column in [SMALL, NAME] {
            table.columns[column].default = None;
        }
        for column in &mut table.columns[SMALL..] {
            column.nullability = Nullability::Nullable;
        }
        // Whether a sum leaves its column's range on the way may depend on the order.
        table.columns[BIG].default = table.columns[BIG].default.take().map(|_| Datum::Int(7));
        let tables = [table];
        let fold = |deltas: &[(i64, i32, i64)]| {
            let mut folded = Folded::new(&tables);
            for (key, kind, number) in deltas {
                let (newer, name) = (Datum::Int(number / 3), Datum::Text(format!("{number}").into()));
                let change = match kind {
                    0 => Change::upsert(vec![(ColumnId(BIG), Assign::Add(Datum::Int(*number)))]),
                    1 => Change::upsert(vec![(ColumnId(MONEY), Assign::Max(hundredths(*number)))]),
                    _ => Change::upsert(vec![
                        (ColumnId(SMALL), Assign::Set(newer.clone())),
                        (ColumnId(NAME), Assign::Set(name.clone())),
                    ])
                    .guarded(Guard {
                        newer: vec![(ColumnId(SMALL), newer), (ColumnId(NAME), name)],
                        only_if: Vec::new(),
                    }),
                };
                folded.push(RowChange { table: TableId(0), key: Box::new([Datum::Int(*key)]), aggregate: None, change });
            }
            folded
        };
        let applied = |folded: &[Folded]| {
            let mut model = Model::default();
            folded.iter().try_for_each(|folded| model.apply_rounds(&tables, folded)).map(|()| model)
        };
        let merged = |a: &[(i64, i32, i64)], b: &[(i64, i32, i64)]| {
            let mut folded = fold(a);
            folded.merge(fold(b));
            folded
        };
        let apart = applied(&[fold(&second), fold(&first)]);
        if apart.is_ok() {
            prop_assert_eq!(&applied(&[merged(&first, &second)]), &apart);
            prop_assert_eq!(&applied(&[merged(&second, &first)]), &apart);
        }
    }
}

#[test]
fn a_delete_and_an_upsert_of_another_aggregate_stay_two_changes_of_the_row() {
    let name = |name: &str| Some(Datum::Text(name.into()));
    let change = |aggregate, change| RowChange {
        table: TableId(0),
        key: Box::new([Datum::Int(1)]),
        aggregate: name(aggregate),
        change,
    };
    let columns = vec![Column {
        name: "id".into(),
        kind: ColumnType::BigInt,
        nullability: Nullability::NotNull,
        default: None,
        generated: None,
    }];
    let table = Table {
        name: "t".into(),
        ownership: Ownership::OwnedStored,
        primary_key: vec![ColumnId(0)],
        columns,
        indexes: Vec::new(),
    };
    let mut folded = Folded::new(std::slice::from_ref(&table));
    folded.push(change("a", Change::delete()));
    folded.push(change("b", Change::upsert(vec![])));
    folded.push(change("b", Change::upsert(vec![])));
    let rounds = folded.rounds();
    let of_round = |round: usize| rounds[round][0].rows[0];
    assert_eq!(rounds.len(), 2);
    assert_eq!(of_round(0).1, name("a").as_ref());
    assert_eq!((of_round(1).1, of_round(1).2), (name("b").as_ref(), &Change::upsert(vec![])));
}
