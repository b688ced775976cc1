//! Rows, dead letters and positions in one transaction.

use super::*;
use crate::fold::{Absent, Assignments, FoldedTable, Key, Present};
use crate::projection::ColumnId;

#[tokio::test]
async fn rows_and_position_change_together_or_not_at_all() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![(1, text("Lamp")), (2, Datum::Int(900))]))]).await;
    let mut late = Writer::claim(place.store.clone(), &declaration, 0).await;
    // The first owner is fenced, and what it brings leaves no trace.
    let answer = writer.apply(vec![row(text("p2"), set(vec![(1, text("Chair"))]))]).await;
    assert_eq!(answer, Ok(Applied::Fenced(vec![0])));
    assert_eq!(place.view("products").await, ["p1|Lamp|900"]);
    late.commit(vec![row(text("p1"), set(vec![(1, text("Lamp 2"))])), row(text("p3"), set(vec![]))]).await;
    assert_eq!(place.view("products").await, ["p1|Lamp 2|900", "p3|∅|∅"]);
    late.commit(vec![row(text("p1"), Change::delete()), row(text("nothing"), Change::delete())]).await;
    assert_eq!(place.view("products").await, ["p3|∅|∅"]);
    let positions = place.texts("select position::text, epoch::text, revision::text from {s}.projector_positions where partition = 0").await;
    assert_eq!(positions, ["3|2|3"]);
    place.end().await;
}

/// A generator with a fixed seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn number(&mut self) -> i64 {
        i64::try_from(self.roll(200)).unwrap() - 100
    }
}

type ModelRow = Vec<Datum>;

/// Everything that a change can be, on a table with every kind of column that matters for it.
fn varied(ownership: Ownership) -> Declaration {
    let numeric = ColumnType::Numeric { precision_scale: Some((12, 2)) };
    declaration(vec![table(
        "items",
        ownership,
        vec![
            not_null(column("id", ColumnType::BigInt)),
            column("note", TEXT),
            not_null(column("required", ColumnType::Integer)),
            with_default(not_null(column("counted", ColumnType::BigInt)), Datum::Int(5)),
            column("optional", ColumnType::SmallInt),
            with_default(column("amount", numeric), Datum::Numeric("0.5".parse().unwrap())),
        ],
    )])
}

fn assignments(dice: &mut Dice, with_required: bool) -> Assignments {
    let mut list = Vec::new();
    for index in 1..6 {
        if index == 2 && with_required || dice.roll(3) == 0 {
            let number = dice.number();
            let datum = match index {
                1 => text(&format!("note {number}")),
                5 => Datum::Numeric(format!("{number}.25").parse().unwrap()),
                _ => Datum::Int(number),
            };
            let is_sum = index != 1 && dice.roll(2) == 0;
            let nullable = [1, 4, 5].contains(&index);
            let assign = if is_sum {
                Assign::Add(datum)
            } else if nullable && dice.roll(4) == 0 {
                Assign::Set(Datum::Null)
            } else {
                Assign::Set(datum)
            };
            list.push((ColumnId(index), assign));
        }
    }
    list
}

/// A change that this row takes: where it makes one, the required column is given.
fn change(dice: &mut Dice, is_there: bool) -> Change {
    let present = match dice.roll(6) {
        0 if is_there => return Change::new(Present::Keep, Absent::InsertSame),
        0 => Present::Keep,
        1 => Present::Delete,
        2 => Present::Replace(assignments(dice, true)),
        _ => Present::Merge(assignments(dice, !is_there)),
    };
    let absent = match dice.roll(4) {
        0 => Absent::Nothing,
        1 => Absent::Insert(assignments(dice, true)),
        // What is made from no assignments lacks the required column.
        _ if matches!(present, Present::Keep | Present::Delete) => Absent::Nothing,
        _ => Absent::InsertSame,
    };
    Change::new(present, absent)
}

fn assign(row: &mut ModelRow, table: &Table, assignments: &Assignments) {
    for (ColumnId(index), assign) in assignments {
        row[*index] = match assign {
            Assign::Set(datum) => datum.clone(),
            Assign::Add(delta) => {
                let default = table.columns[*index].default.clone().filter(|default| !default.is_null());
                let zero = match delta {
                    Datum::Int(_) => Datum::Int(0),
                    _ => Datum::Numeric(0.into()),
                };
                let from = if row[*index].is_null() { default.unwrap_or(zero) } else { row[*index].clone() };
                match (from, delta) {
                    (Datum::Int(a), Datum::Int(b)) => Datum::Int(a + b),
                    (Datum::Numeric(a), Datum::Numeric(b)) => Datum::Numeric((a + b).normalized()),
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?} is drawn by the contract's tests"),
        };
    }
}

fn model(table: &Table, id: &Datum, before: Option<ModelRow>, change: &Change) -> Option<ModelRow> {
    let fresh = || {
        let default = |column: &Column| column.default.clone().unwrap_or(Datum::Null);
        let mut row: ModelRow = table.columns.iter().map(default).collect();
        row[0] = id.clone();
        row
    };
    let made = |assignments: Option<&Assignments>| {
        let mut row = fresh();
        assign(&mut row, table, assignments.unwrap_or(&Vec::new()));
        row
    };
    match before {
        Some(mut row) => match &change.present {
            Present::Keep => Some(row),
            Present::Delete => None,
            Present::Merge(assignments) => {
                assign(&mut row, table, assignments);
                Some(row)
            }
            Present::Replace(assignments) => Some(made(Some(assignments))),
        },
        None => match &change.absent {
            Absent::Nothing => None,
            Absent::InsertSame => Some(made(change.present.assignments())),
            Absent::Insert(assignments) => Some(made(Some(assignments))),
        },
    }
}

fn shown(row: &ModelRow) -> String {
    let value = |datum: &Datum| match datum {
        Datum::Null => "∅".to_owned(),
        Datum::Int(number) => number.to_string(),
        Datum::Numeric(number) => format!("{:.2}", number.with_scale(2)),
        Datum::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    row.iter().map(value).collect::<Vec<_>>().join("|")
}

async fn agrees_with_the_model(ownership: Ownership, seed: u64) {
    let place = Place::new().await;
    let declaration = varied(ownership);
    let mut writer = place.begin(&declaration).await;
    let table = &declaration.tables[0];
    let version = key(&declaration);
    let aggregate = (ownership == Ownership::OwnedStored).then(|| text("a1"));
    let mut rows: std::collections::BTreeMap<i64, ModelRow> = std::collections::BTreeMap::new();
    let mut dice = Dice(seed);
    for _ in 0..40 {
        let mut changes: Vec<(Key, Change)> = Vec::new();
        for id in 0..30 {
            if dice.roll(2) == 0 {
                let change = change(&mut dice, rows.contains_key(&id));
                changes.push((Box::new([Datum::Int(id)]), change));
            }
        }
        let folded = FoldedTable {
            table: TableId(0),
            rows: changes.iter().map(|(key, change)| (key, aggregate.as_ref(), change)).collect(),
        };
        let advance = writer.advance(1);
        let transaction = Transaction {
            version: &version,
            tables: &declaration.tables,
            rounds: vec![vec![folded]],
            dead_letters: Vec::new(),
            advances: std::slice::from_ref(&advance),
        };
        let applied = place.store.apply(&transaction).await;
        assert!(matches!(applied, Ok(Applied::Committed { .. })), "{applied:?}");
        writer.fence = writer.fence.advanced_to(advance.to);
        for (key, change) in &changes {
            let Datum::Int(id) = key[0] else { panic!("an integer") };
            match model(table, &key[0], rows.remove(&id), change) {
                Some(row) => rows.insert(id, row),
                None => None,
            };
        }
        assert_eq!(place.view("items").await, rows.values().map(shown).collect::<Vec<_>>());
    }
    place.end().await;
}

#[tokio::test]
async fn every_kind_of_change_does_what_it_says() {
    agrees_with_the_model(Ownership::OwnedByKey, 1).await;
}

#[tokio::test]
async fn every_kind_of_change_does_what_it_says_where_rows_carry_their_aggregate() {
    agrees_with_the_model(Ownership::OwnedStored, 2).await;
}

#[tokio::test]
async fn every_kind_of_change_does_what_it_says_in_a_shared_table() {
    agrees_with_the_model(Ownership::Shared, 3).await;
}

#[tokio::test]
async fn a_row_of_another_aggregate_is_refused_and_left_alone() {
    let place = Place::new().await;
    let declaration = declaration(vec![table(
        "lines",
        Ownership::OwnedStored,
        vec![
            not_null(column("id", ColumnType::BigInt)),
            column("sku", TEXT),
            not_null(column("required", ColumnType::Integer)),
        ],
    )]);
    let mut writer = place.begin(&declaration).await;
    let whole = |sku: &str| set(vec![(1, text(sku)), (2, Datum::Int(1))]);
    writer.commit(vec![of("order-1", row(Datum::Int(1), whole("a")))]).await;
    let foreign = Err(StoreError::ForeignRow { table: "lines".into() });
    for change in [whole("b"), set(vec![(1, text("b"))]), set(vec![]), Change::delete()] {
        let changes =
            vec![of("order-2", row(Datum::Int(1), change)), of("order-2", row(Datum::Int(2), whole("c")))];
        assert_eq!(writer.apply(changes).await, foreign);
    }
    assert_eq!(place.view("lines").await, ["1|a|1"]);
    // What is not there belongs to nobody.
    writer.commit(vec![of("order-2", row(Datum::Int(9), Change::delete()))]).await;
    writer.commit(vec![of("order-1", row(Datum::Int(1), set(vec![(1, text("d"))])))]).await;
    assert_eq!(place.view("lines").await, ["1|d|1"]);
    let columns = place.store.read_view("lines", 1).await.unwrap().columns;
    assert_eq!(columns, ["id", "sku", "required"]);
    place.end().await;
}

#[tokio::test]
async fn many_shapes_of_changes_need_few_statements() {
    let place = Place::new().await;
    let mut columns = vec![not_null(column("id", ColumnType::BigInt))];
    columns.extend((1..9).map(|index| column(&format!("c{index}"), ColumnType::BigInt)));
    let declaration = declaration(vec![table("wide", Ownership::OwnedByKey, columns)]);
    let mut writer = place.begin(&declaration).await;
    let mut dice = Dice(7);
    let mut expected: Vec<Vec<String>> = Vec::new();
    let mut changes = Vec::new();
    for id in 0..200_i64 {
        let columns: Vec<(usize, Datum)> =
            (1..9).filter(|_| dice.roll(2) == 0).map(|index| (index, Datum::Int(id))).collect();
        let value =
            |index| if columns.iter().any(|(id, _)| *id == index) { id.to_string() } else { "∅".into() };
        expected.push(std::iter::once(id.to_string()).chain((1..9).map(value)).collect());
        changes.push(row(Datum::Int(id), set(columns)));
    }
    writer.commit(changes).await;
    let expected: Vec<String> = expected.into_iter().map(|row| row.join("|")).collect();
    assert_eq!(place.view("wide").await, expected);
    let target = super::super::statements::Target::new(&place.schema, &declaration.tables[0], 1);
    assert!(place.store.statements.count(&target) <= 13, "{}", place.store.statements.count(&target));
    place.end().await;
}

#[tokio::test]
async fn more_rows_than_one_statement_takes_are_all_written() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    let change = |number: i64| row(text(&format!("p{number:06}")), set(vec![(2, Datum::Int(number))]));
    writer.commit((0..45_000).map(change).collect()).await;
    assert_eq!(place.count("select count(*) from {s}.products").await, 45_000);
    assert_eq!(place.count("select sum(price)::int8 from {s}.products").await, 45_000 * 44_999 / 2);
    writer
        .commit((0..45_000).map(|number| row(text(&format!("p{number:06}")), Change::delete())).collect())
        .await;
    assert_eq!(place.count("select count(*) from {s}.products").await, 0);
    place.end().await;
}
