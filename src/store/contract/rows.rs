//! What changes do to rows; order, refusals, size.

use super::{
    Harness, NAME, NOTE, PRICE, STOCK, Scene, TEXT, add, advance, at, column, defaulted, item, items,
    replace, required, set, table, text,
};
use crate::fold::{Absent, Assign, Assignments, Change, Present, RowChange};
use crate::projection::{ColumnId, ColumnType, Datum, Index, Ownership, TableId};
use crate::store::{Applied, StoreError};

fn update(assignments: Assignments) -> Change {
    Change::new(Present::Merge(assignments), Absent::Nothing)
}

fn database(result: Result<Applied, StoreError>) -> StoreError {
    match result {
        Err(error @ StoreError::Database { .. }) => error,
        other => panic!("expected an error of the database: {other:?}"),
    }
}

pub(crate) async fn a_patch_keeps_what_it_does_not_name(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let lamp = vec![set(NAME, text("lamp")), set(PRICE, Datum::Int(900))];
    scene.accept(vec![item(1, Change::upsert(lamp))]).await;
    assert_eq!(scene.items().await, [["1", "lamp", "900", "5", "-"]]);
    let patch = vec![set(NAME, text("Lamp")), set(NOTE, text("new"))];
    scene.accept(vec![item(1, Change::upsert(patch))]).await;
    assert_eq!(scene.items().await, [["1", "Lamp", "900", "5", "new"]]);
    let clear = vec![
        set(NAME, text("Lamp")),
        set(PRICE, Datum::Null),
        set(STOCK, Datum::Null),
        set(NOTE, Datum::Null),
    ];
    scene.accept(vec![item(1, Change::upsert(clear.clone())), item(2, Change::upsert(clear))]).await;
    let cleared = [["1", "Lamp", "NULL", "NULL", "NULL"], ["2", "Lamp", "NULL", "NULL", "NULL"]];
    assert_eq!(scene.items().await, cleared);
}

pub(crate) async fn adding_counts_from_the_stored_value_the_default_or_zero(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let sum = |delta| vec![set(NAME, text("lamp")), add(PRICE, delta), add(STOCK, delta)];
    scene.accept(vec![item(1, Change::upsert(sum(2)))]).await;
    assert_eq!(scene.items().await, [["1", "lamp", "2", "7", "-"]], "from zero and from the default");
    scene.accept(vec![item(1, Change::upsert(sum(-3)))]).await;
    assert_eq!(scene.items().await, [["1", "lamp", "-1", "4", "-"]], "from the stored values");
    let clear = vec![set(NAME, text("lamp")), set(PRICE, Datum::Null), set(STOCK, Datum::Null)];
    scene.accept(vec![item(1, Change::upsert(clear))]).await;
    scene.accept(vec![item(1, Change::upsert(sum(1)))]).await;
    assert_eq!(
        scene.items().await,
        [["1", "lamp", "1", "6", "-"]],
        "NULL counts from zero and from the default"
    );
    // A sum that only the absent row would overflow is no matter for a present one.
    let stock = |delta: i64| vec![set(NAME, text("lamp")), set(PRICE, Datum::Int(0)), add(STOCK, delta)];
    scene.accept(vec![item(1, Change::upsert(stock(-16)))]).await;
    scene.accept(vec![item(1, Change::upsert(stock(i64::MAX)))]).await;
    let left = (i64::MAX - 10).to_string();
    assert_eq!(scene.items().await, [["1", "lamp", "0", &left, "-"]]);
    // Adding alone, to a row that is there.
    scene.accept(vec![item(1, update(vec![add(PRICE, 4)]))]).await;
    assert_eq!(scene.rows("select price from items__v1").await, [["4"]]);
}

pub(crate) async fn replacing_resets_what_is_not_assigned(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let all = vec![
        set(NAME, text("a")),
        set(PRICE, Datum::Int(1)),
        set(STOCK, Datum::Int(2)),
        set(NOTE, text("n")),
    ];
    scene.accept(vec![item(1, Change::upsert(all.clone())), item(2, Change::upsert(all))]).await;
    let new = vec![set(NAME, text("b")), add(STOCK, 1)];
    scene.accept(vec![item(1, replace(new.clone())), item(3, replace(new))]).await;
    let expected = [["1", "b", "NULL", "6", "-"], ["2", "a", "1", "2", "n"], ["3", "b", "NULL", "6", "-"]];
    assert_eq!(scene.items().await, expected);
    database(scene.apply(vec![item(1, replace(vec![set(PRICE, Datum::Int(1))]))]).await);
    assert_eq!(scene.items().await, expected);
}

pub(crate) async fn deleting_removes_the_row_or_does_nothing(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let lamp = || Change::upsert(vec![set(NAME, text("lamp"))]);
    scene.accept((1..=4).map(|id| item(id, lamp())).collect()).await;
    scene.accept(vec![item(2, Change::delete()), item(4, lamp()), item(9, Change::delete())]).await;
    assert_eq!(scene.rows("select id from items__v1 order by id").await, [["1"], ["3"], ["4"]]);
    let away = Change::new(Present::Delete, Absent::Insert(vec![set(NAME, text("new"))]));
    scene.accept(vec![item(1, away.clone()), item(7, away)]).await;
    let left = [["3", "lamp"], ["4", "lamp"], ["7", "new"]];
    assert_eq!(scene.rows("select id, name from items__v1 order by id").await, left);
}

pub(crate) async fn present_and_absent_rows_are_told_apart(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let named = |name: &str| vec![set(NAME, text(name)), add(STOCK, 1)];
    let all = |change: &Change| [1, 2].map(|id| item(id, change.clone())).to_vec();
    scene.accept(vec![item(1, Change::upsert(named("old")))]).await;

    scene.accept(all(&update(named("updated")))).await;
    assert_eq!(scene.items().await, [["1", "updated", "NULL", "7", "-"]], "nothing is made");
    let only_new = Change::new(Present::Keep, Absent::Insert(named("made")));
    scene.accept(all(&only_new)).await;
    let rows = [["1", "updated", "NULL", "7", "-"], ["2", "made", "NULL", "6", "-"]];
    assert_eq!(scene.items().await, rows, "what is there stays");
    let nothing = Change::new(Present::Keep, Absent::Nothing);
    scene.accept(all(&nothing)).await;
    assert_eq!(scene.items().await, rows);

    let both = Change::new(
        Present::Merge(vec![set(PRICE, Datum::Int(1))]),
        Absent::Insert(vec![set(NAME, text("third")), set(NOTE, Datum::Null)]),
    );
    scene.accept(vec![item(2, both.clone()), item(3, both)]).await;
    let again = Change::new(Present::Replace(named("again")), Absent::Nothing);
    scene.accept(vec![item(1, again.clone()), item(8, again)]).await;
    let rows =
        [["1", "again", "NULL", "6", "-"], ["2", "made", "1", "6", "-"], ["3", "third", "NULL", "5", "NULL"]];
    assert_eq!(scene.items().await, rows);
    scene.accept(vec![item(2, Change::upsert(vec![]))]).await;
    assert_eq!(scene.items().await, rows, "no assignment touches nothing");
}

pub(crate) async fn a_patch_without_a_required_column_needs_the_row(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.accept(vec![item(1, Change::upsert(vec![set(NAME, text("lamp"))]))]).await;
    let priced = Change::upsert(vec![set(PRICE, Datum::Int(7))]);
    scene.accept(vec![item(1, priced.clone())]).await;
    assert_eq!(scene.items().await, [["1", "lamp", "7", "5", "-"]]);
    let refused =
        scene.apply(vec![item(1, Change::upsert(vec![set(PRICE, Datum::Int(8))])), item(2, priced)]).await;
    let StoreError::Database { place, .. } = database(refused) else { unreachable!("a database error") };
    assert_eq!(place.column.as_deref(), Some("name"));
    assert_eq!(scene.items().await, [["1", "lamp", "7", "5", "-"]], "rolled back as a whole");
    // And the store goes on.
    scene.accept(vec![item(1, Change::upsert(vec![set(NOTE, text("n"))]))]).await;
}

pub(crate) async fn many_shapes_in_one_transaction(harness: &dyn Harness) {
    const COLUMNS: usize = 8;
    let mut columns = vec![required("id", ColumnType::BigInt)];
    columns.extend(
        (1..=COLUMNS).map(|index| defaulted(&format!("c{index}"), ColumnType::BigInt, Datum::Int(100))),
    );
    let mut scene = Scene::of_tables(harness, vec![table("wide", Ownership::OwnedByKey, columns)]).await;
    // Every subset of columns, set where the bit of the column is even, added to where it is odd.
    let shaped = |mask: usize, value: i64| {
        let bits = (0..COLUMNS).filter(|bit| mask >> bit & 1 == 1);
        bits.map(|bit| if bit % 2 == 0 { set(bit + 1, Datum::Int(value)) } else { add(bit + 1, value) })
            .collect()
    };
    let ids = || (0..1_i64 << COLUMNS).map(|id| (id, usize::try_from(id).unwrap()));
    for value in [1, 2] {
        scene.accept(ids().map(|(id, mask)| item(id, Change::upsert(shaped(mask, value)))).collect()).await;
    }
    let rows = scene.rows("select * from wide__v1 order by id").await;
    for ((id, mask), row) in ids().zip(rows) {
        let expected = (0..COLUMNS).map(|bit| match (mask >> bit & 1, bit % 2) {
            (0, _) => "100",
            (_, 0) => "2",
            _ => "103",
        });
        assert_eq!(row[0], id.to_string());
        assert!(row[1..].iter().eq(expected), "{mask:#b}: {row:?}");
    }
}

pub(crate) async fn rounds_are_applied_in_order(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let named = |name: &str| Change::upsert(vec![set(NAME, text(name)), add(STOCK, 1)]);
    let rounds = [
        vec![item(1, named("a")), item(2, named("a"))],
        vec![item(1, Change::delete()), item(2, named("b"))],
        vec![item(1, named("c")), item(2, named("c"))],
        vec![item(2, Change::delete())],
    ];
    assert_eq!(scene.apply_rounds(&rounds).await, Ok(Applied::Committed { missed_updates: 0 }));
    assert_eq!(scene.items().await, [["1", "c", "NULL", "6", "-"]]);
}

pub(crate) async fn parents_are_written_first_and_deleted_last(harness: &dyn Harness) {
    let orders = table("orders", Ownership::OwnedByKey, vec![required("id", ColumnType::BigInt)]);
    let lines = table(
        "lines",
        Ownership::OwnedByKey,
        vec![required("id", ColumnType::BigInt), required("order_id", ColumnType::BigInt)],
    );
    let mut scene = Scene::of_tables(harness, vec![orders, lines]).await;
    harness.add_foreign_key("lines__v1", "order_id", "orders__v1").await;
    let line = |order: i64| Change::upsert(vec![set(1, Datum::Int(order))]);
    scene
        .accept(vec![at(1, 10, line(1)), at(0, 1, Change::upsert(vec![])), at(0, 2, Change::upsert(vec![]))])
        .await;
    scene.accept(vec![at(0, 1, Change::delete()), at(1, 10, Change::delete()), at(1, 11, line(2))]).await;
    assert_eq!(scene.rows("select id, order_id from lines__v1").await, [["11", "2"]]);
    let lost = database(scene.apply(vec![at(1, 12, line(77))]).await);
    assert!(!lost.to_string().contains("77"), "{lost}");
    database(scene.apply(vec![at(0, 2, Change::delete())]).await);
    assert_eq!(scene.rows("select id from orders__v1").await, [["2"]]);
}

fn of(aggregate: &str, mut change: RowChange) -> RowChange {
    change.aggregate = Some(text(aggregate));
    change
}

pub(crate) async fn a_row_of_another_aggregate_is_refused(harness: &dyn Harness) {
    let mut owned = items();
    owned.ownership = Ownership::OwnedStored;
    let mut scene = Scene::of_tables(harness, vec![owned]).await;
    let named = |name: &str| Change::upsert(vec![set(NAME, text(name))]);
    scene.accept(vec![of("a", item(1, named("lamp"))), of("b", item(2, named("desk")))]).await;
    let away = Change::new(Present::Delete, Absent::Insert(vec![set(NAME, text("x"))]));
    let required_is_missing = Change::upsert(vec![set(PRICE, Datum::Int(1))]);
    for change in [
        named("x"),
        Change::upsert(vec![]),
        required_is_missing,
        replace(vec![set(NAME, text("x"))]),
        update(vec![set(NAME, text("x"))]),
        Change::delete(),
        away,
    ] {
        // A good row in the same transaction is rolled back with it.
        let changes = vec![of("a", item(1, named("good"))), of("a", item(2, change.clone()))];
        let expected = Err(StoreError::ForeignRow { table: "items".into() });
        assert_eq!(scene.apply(changes).await, expected, "{change:?}");
        let rows = scene.rows("select id, name, projector_aggregate from items__v1 order by id").await;
        assert_eq!(rows, [["1", "lamp", "a"], ["2", "desk", "b"]], "{change:?}");
    }
    // Its own aggregate may do everything; so may any where there is no row.
    scene.accept(vec![of("b", item(2, named("Desk")))]).await;
    scene.accept(vec![of("b", item(2, Change::delete())), of("z", item(9, Change::delete()))]).await;
    scene.accept(vec![of("a", item(2, named("taken over")))]).await;
    let rows = scene.rows("select id, name, projector_aggregate from items__v1 order by id").await;
    assert_eq!(rows, [["1", "lamp", "a"], ["2", "taken over", "a"]]);
}

fn unique_items() -> crate::projection::Table {
    let mut unique = items();
    unique.indexes = vec![Index {
        columns: vec!["name".into()],
        expression: None,
        unique: true,
        method: None,
        condition: None,
    }];
    unique
}

pub(crate) async fn a_unique_violation_is_told_by_names_only(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![unique_items()]).await;
    let named = |id, name: &str| item(id, Change::upsert(vec![set(NAME, text(name))]));
    scene.accept(vec![named(1, "lamp")]).await;
    let error = database(scene.apply(vec![named(2, "desk"), named(3, "lamp")]).await);
    let StoreError::Database { place, .. } = &error else { unreachable!("a database error") };
    assert!(place.constraint.is_some() || place.column.as_deref() == Some("name"), "{error:?}");
    assert!(place.table.as_deref() == Some("items__v1"), "{error:?}");
    assert_eq!(scene.rows("select id from items__v1").await, [["1"]]);
}

pub(crate) async fn no_error_quotes_a_value(harness: &dyn Harness) {
    const SECRET: &str = "S3CRET-4711";
    let mut checked = unique_items();
    checked.ownership = Ownership::OwnedStored;
    checked.columns.push(column("code", ColumnType::SmallInt));
    let code = checked.columns.len() - 1;
    let mut scene = Scene::of_tables(harness, vec![checked]).await;
    let secret =
        |id| of(SECRET, item(id, Change::upsert(vec![set(NAME, text(SECRET)), set(NOTE, text(SECRET))])));
    let mut wide = vec![set(NAME, text("w"))];
    wide.push((ColumnId(code), Assign::Add(Datum::Int(i64::from(i16::MAX)))));
    scene.accept(vec![secret(4711), of(SECRET, item(1, Change::upsert(wide.clone())))]).await;
    let missing = vec![set(NOTE, text(SECRET))];
    for change in [
        secret(2),
        of("other", item(4711, Change::upsert(vec![set(NAME, text(SECRET))]))),
        of(SECRET, item(3, Change::upsert(missing))),
        of(SECRET, item(1, Change::upsert(wide))),
    ] {
        let error = scene.apply(vec![change]).await.expect_err("refused");
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            shown = format!("{shown} {inner}");
            source = inner.source();
        }
        assert!(!shown.contains(SECRET) && !shown.contains("4711"), "{shown}");
    }
}

pub(crate) async fn a_sum_out_of_range_is_refused(harness: &dyn Harness) {
    let sums = table(
        "sums",
        Ownership::Shared,
        vec![
            required("id", ColumnType::BigInt),
            column("small", ColumnType::SmallInt),
            column("medium", ColumnType::Integer),
            column("big", ColumnType::BigInt),
        ],
    );
    let mut scene = Scene::of_tables(harness, vec![sums]).await;
    let ends = [
        (i64::from(i16::MIN), i64::from(i16::MAX)),
        (i64::from(i32::MIN), i64::from(i32::MAX)),
        (i64::MIN, i64::MAX),
    ];
    let sum = |id, column, delta| item(id, Change::upsert(vec![add(column, delta)]));
    for (column, (lowest, highest)) in (1..).zip(ends) {
        scene.accept(vec![sum(1, column, highest), sum(2, column, lowest)]).await;
        database(scene.apply(vec![sum(1, column, 1)]).await);
        database(scene.apply(vec![sum(2, column, -1)]).await);
        scene.accept(vec![sum(1, column, -1), sum(2, column, 1)]).await;
    }
    let text = |numbers: [i64; 3]| numbers.map(|number| number.to_string());
    let rows = scene.rows("select small, medium, big from sums__v1 order by id").await;
    assert_eq!(rows, [text(ends.map(|(_, highest)| highest - 1)), text(ends.map(|(lowest, _)| lowest + 1))]);
}

pub(crate) async fn two_partitions_add_to_the_same_row(harness: &dyn Harness) {
    const STEPS: i64 = 20;
    let columns =
        vec![required("id", ColumnType::BigInt), defaulted("n", ColumnType::BigInt, Datum::Int(1000))];
    let scene = Scene::of_tables(harness, vec![table("counts", Ownership::Shared, columns)]).await;
    let adds = async |number: i32| {
        let mut fence = scene.owned(number).await.fence;
        for step in 1..=STEPS {
            // In different order, over rows that are made meanwhile.
            let ids = if number == 0 { [1, step + 1] } else { [step + 1, 1] };
            let changes = ids.map(|id| item(id, Change::upsert(vec![add(1, 1)]))).to_vec();
            loop {
                let advances = [advance(number, fence, step)];
                match scene.transact(std::slice::from_ref(&changes), &[], &advances).await {
                    Ok(Applied::Committed { .. }) => break fence = fence.advanced_to(advances[0].to),
                    // Waiting for each other ends in an error that is retried.
                    Err(StoreError::Database { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    tokio::join!(adds(0), adds(1));
    let rows = scene.rows("select id, n from counts__v1 order by id").await;
    let expected = (1..=STEPS + 1).map(|id| {
        let sum = if id == 1 { 1000 + 2 * STEPS } else { 1002 };
        vec![id.to_string(), sum.to_string()]
    });
    assert!(rows.iter().cloned().eq(expected), "{rows:?}");
}

pub(crate) async fn a_big_batch_is_one_transaction(harness: &dyn Harness) {
    const ROWS: i64 = 50_000;
    let mut columns = vec![required("id", ColumnType::BigInt), required("name", TEXT)];
    columns.extend((2..11).map(|index| column(&format!("c{index}"), ColumnType::BigInt)));
    columns.push(column("blob", ColumnType::Bytes));
    let mut scene = Scene::of_tables(harness, vec![table("wide", Ownership::OwnedByKey, columns)]).await;
    let change = |id: i64, round: i64| {
        let mut assignments = vec![set(1, text(&format!("name {id}")))];
        assignments.extend((2..10).map(|column| set(column, Datum::Int(id * round))));
        assignments.push(add(10, 1));
        assignments.push(set(11, Datum::Bytes(bytes::Bytes::from_static(b"\x00\xff"))));
        item(id, Change::upsert(assignments))
    };
    for round in [1, 2] {
        scene.accept((0..ROWS).map(|id| change(id, round)).collect()).await;
    }
    let sums = scene.rows("select count(*), sum(c2), sum(c9), sum(c10), max(name) from wide__v1").await;
    let sum = (ROWS * (ROWS - 1)).to_string();
    assert_eq!(sums, [[&*ROWS.to_string(), &*sum, &*sum, &*(2 * ROWS).to_string(), "name 9999"]]);
    scene.accept((0..ROWS).filter(|id| id % 10 != 0).map(|id| item(id, Change::delete())).collect()).await;
    assert_eq!(scene.rows("select count(*) from wide__v1").await, [["5000"]]);
    assert_eq!(scene.fence.revision.get(), 3);
}

pub(crate) async fn an_empty_transaction_moves_the_position(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.accept(Vec::new()).await;
    assert_eq!(scene.apply_rounds(&[]).await, Ok(Applied::Committed { missed_updates: 0 }));
    let found = scene.owned(0).await.fence;
    assert_eq!(found.position.get(), 2);
    scene.fence = found;
    let bogus = RowChange { table: TableId(7), ..item(1, Change::delete()) };
    assert!(matches!(scene.apply(vec![bogus]).await, Err(StoreError::Bug { .. })), "no such table");
    scene.accept(Vec::new()).await;
}
