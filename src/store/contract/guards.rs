//! Conditions on the stored row, and updates.

use super::{Harness, Scene, TEXT, advance, column, item, required, set, table, text};
use crate::fold::{Assign, Change, Guard, RowChange};
use crate::projection::{ColumnId, ColumnType, Datum, Ownership, Table};
use crate::store::{Applied, StoreError};

const AT: usize = 1;
const PLACE: usize = 2;
const HIGHEST: usize = 3;

/// The latest place of something, and the highest number that was seen.
fn places(ownership: Ownership) -> Table {
    table(
        "places",
        ownership,
        vec![
            required("id", ColumnType::BigInt),
            column("at", ColumnType::BigInt),
            column("place", TEXT),
            column("highest", ColumnType::BigInt),
        ],
    )
}

/// Sets `place` where `at` is newer; of two with the same `at`, the greater place stays, as in every shared table.
fn seen(at: i64, place: &str) -> Change {
    let newer = vec![(ColumnId(AT), Datum::Int(at)), (ColumnId(PLACE), text(place))];
    let assignments = vec![set(AT, Datum::Int(at)), set(PLACE, text(place))];
    Change::upsert(assignments).guarded(Guard { newer, only_if: Vec::new() })
}

fn highest(number: i64) -> Change {
    Change::upsert(vec![(ColumnId(HIGHEST), Assign::Max(Datum::Int(number)))])
}

async fn stored(scene: &Scene<'_>) -> Vec<Vec<String>> {
    scene.rows("select * from places__v1 order by id").await
}

pub(crate) async fn the_newest_of_two_partitions_stays(harness: &dyn Harness) {
    const STEPS: i64 = 40;
    const ROWS: i64 = 5;
    let scene = Scene::of_tables(harness, vec![places(Ownership::Shared)]).await;
    let writes = async |number: i32| {
        let mut fence = scene.owned(number).await.fence;
        for step in 0..STEPS {
            // Both write all rows, the second in the other order of time.
            let time = if number == 0 { step } else { STEPS - 1 - step };
            let changes: Vec<RowChange> = (0..ROWS)
                .flat_map(|id| {
                    let at = i64::midpoint(time, id);
                    let place = format!("{at}-{number}");
                    [item(id, seen(at, &place)), item(10 + id, highest(time * 2 + i64::from(number)))]
                })
                .collect();
            let advances = [advance(number, fence, step + 1)];
            loop {
                match scene.transact(std::slice::from_ref(&changes), &[], &advances).await {
                    Ok(Applied::Committed { .. }) => break fence = fence.advanced_to(advances[0].to),
                    // A database that is locked, or two that wait for each other, end in an error that is retried.
                    Err(StoreError::Database { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    tokio::join!(writes(0), writes(1));
    let mut expected: Vec<Vec<String>> = Vec::new();
    for id in 0..ROWS {
        let at = i64::midpoint(STEPS - 1, id);
        expected.push(vec![id.to_string(), at.to_string(), format!("{at}-1"), "NULL".into()]);
    }
    for id in 10..10 + ROWS {
        expected.push(vec![id.to_string(), "NULL".into(), "NULL".into(), (STEPS * 2 - 1).to_string()]);
    }
    assert_eq!(stored(&scene).await, expected);
}

pub(crate) async fn equal_and_older_events_leave_the_row(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![places(Ownership::OwnedByKey)]).await;
    let only = |at: i64| Guard { newer: vec![(ColumnId(AT), Datum::Int(at))], only_if: Vec::new() };
    let seen = |at: i64, place: &str| {
        Change::upsert(vec![set(AT, Datum::Int(at)), set(PLACE, text(place))]).guarded(only(at))
    };
    for (at, place, expected) in
        [(5, "released", "released"), (3, "assigned", "released"), (5, "again", "released"), (6, "Ä", "Ä")]
    {
        scene.accept(vec![item(1, seen(at, place))]).await;
        assert_eq!(stored(&scene).await[0][2], expected, "{at}");
    }
    // A delete that is older leaves the row; one that is newer removes it, and then anything makes it again.
    scene.accept(vec![item(1, Change::delete().guarded(only(6)))]).await;
    assert_eq!(stored(&scene).await.len(), 1);
    scene.accept(vec![item(1, Change::delete().guarded(only(7)))]).await;
    assert_eq!(stored(&scene).await.len(), 0);
    scene.accept(vec![item(1, seen(1, "back"))]).await;
    assert_eq!(stored(&scene).await, [["1", "1", "back", "NULL"]]);
    // NULL is older than anything.
    scene.accept(vec![item(1, Change::upsert(vec![set(AT, Datum::Null)]))]).await;
    scene.accept(vec![item(1, seen(i64::MIN, "first"))]).await;
    assert_eq!(stored(&scene).await[0][2], "first");
}

pub(crate) async fn an_update_that_finds_no_row_is_counted(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![places(Ownership::OwnedByKey)]).await;
    scene.accept(vec![item(1, Change::upsert(vec![set(PLACE, text("here"))]))]).await;
    let update = || Change::update(vec![set(PLACE, text("there"))]);
    let kept = Guard { newer: Vec::new(), only_if: vec![(ColumnId(PLACE), text("elsewhere"))] };
    let changes =
        vec![item(1, update().guarded(kept.clone())), item(2, update()), item(3, update().guarded(kept))];
    let applied = scene.apply(changes).await;
    assert_eq!(applied, Ok(Applied::Committed { missed_updates: 2 }), "a row that is kept is there");
    assert_eq!(stored(&scene).await, [["1", "NULL", "here", "NULL"]]);
}
