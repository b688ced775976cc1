//! Several transactions at once.

use super::*;

/// Counters with two columns, so that their changes have several shapes.
fn counters() -> Declaration {
    declaration(vec![table(
        "counters",
        Ownership::Shared,
        vec![
            not_null(column("id", ColumnType::BigInt)),
            with_default(not_null(column("a", ColumnType::BigInt)), Datum::Int(0)),
            with_default(column("b", ColumnType::BigInt), Datum::Int(10)),
            column("c", ColumnType::BigInt),
        ],
    )])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_from_two_partitions_lose_nothing_and_never_deadlock() {
    const ROUNDS: i64 = 60;
    const ROWS: i64 = 20;
    let place = Place::new().await;
    let declaration = counters();
    place.register(&declaration).await;
    place.store.promote_first(&declaration).await.unwrap();
    let mut tasks = Vec::new();
    for number in 0..2_i64 {
        let mut writer =
            Writer::claim(place.store.clone(), &declaration, i32::try_from(number).unwrap()).await;
        tasks.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                // In either order of rows, of two shapes each, on rows that appear as they go.
                let mut ids: Vec<i64> = (0..ROWS).map(|id| id + round / 10).collect();
                if number == 1 {
                    ids.reverse();
                }
                let change = |id: i64| {
                    let columns = if (id + number + round) % 2 == 0 {
                        vec![(1, 1), (2, 2)]
                    } else {
                        vec![(1, 1), (3, 3)]
                    };
                    row(Datum::Int(id), add(columns))
                };
                writer.commit(ids.into_iter().map(change).collect()).await;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(place.count("select sum(a)::int8 from {s}.counters").await, 2 * ROUNDS * ROWS);
    // Of `b` and `c` each has got one half, and `b` began at 10.
    let halves = ROUNDS * ROWS;
    assert_eq!(place.count("select sum(b - 10)::int8 from {s}.counters").await, halves * 2);
    assert_eq!(place.count("select sum(c)::int8 from {s}.counters").await, halves * 3);
    place.end().await;
}

#[tokio::test]
async fn an_add_to_a_row_that_another_transaction_is_making_waits_for_it() {
    let place = Place::new().await;
    let declaration = counters();
    let mut writer = place.begin(&declaration).await;
    let mut other = session().await;
    let insert =
        place.store.sql("begin; insert into {s}.counters__v1 (id, a, b, c) values (1, 100, 200, 300)");
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut other).await.unwrap();
    let adding = tokio::spawn(async move {
        writer.commit(vec![row(Datum::Int(1), add(vec![(1, 1), (2, 2), (3, 3)]))]).await;
    });
    place.wait_for_blocked(1).await;
    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    adding.await.unwrap();
    assert_eq!(place.view("counters").await, ["1|101|202|303"]);
    place.end().await;
}

#[tokio::test]
async fn a_row_that_appears_while_it_is_merged_into_is_merged_into() {
    // `required` has no default and is not assigned: such rows are updated and, where absent, inserted.
    let place = Place::new().await;
    let declaration = declaration(vec![table(
        "items",
        Ownership::Shared,
        vec![
            not_null(column("id", ColumnType::BigInt)),
            not_null(column("required", ColumnType::BigInt)),
            column("sum", ColumnType::BigInt),
        ],
    )]);
    let mut writer = place.begin(&declaration).await;
    let mut other = session().await;
    let insert = place.store.sql("begin; insert into {s}.items__v1 values (1, 1, 40)");
    sqlx::raw_sql(AssertSqlSafe(insert)).execute(&mut other).await.unwrap();
    let change = Change::new(
        crate::fold::Present::Merge(vec![(crate::projection::ColumnId(2), Assign::Add(Datum::Int(2)))]),
        crate::fold::Absent::Insert(vec![
            (crate::projection::ColumnId(1), Assign::Set(Datum::Int(7))),
            (crate::projection::ColumnId(2), Assign::Add(Datum::Int(1000))),
        ]),
    );
    let merging = tokio::spawn(async move { writer.commit(vec![row(Datum::Int(1), change)]).await });
    place.wait_for_blocked(1).await;
    sqlx::raw_sql("commit").execute(&mut other).await.unwrap();
    merging.await.unwrap();
    assert_eq!(place.view("items").await, ["1|1|42"]);
    place.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn laying_out_and_registering_at_once_from_several_processes_works() {
    let place = Place::bare();
    let declaration = products();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let store = place.with(|_| {});
        let registration = registration(&declaration, 2);
        tasks.push(tokio::spawn(async move {
            store.lay_out().await.unwrap();
            let registered = store.register(&registration).await.unwrap();
            store.close().await;
            registered
        }));
    }
    let mut new = 0;
    for task in tasks {
        new += usize::from(task.await.unwrap() == crate::store::Registered::New);
    }
    assert_eq!(new, 1);
    place.end().await;
}

#[tokio::test]
async fn of_two_claims_with_the_same_knowledge_one_is_lost() {
    let place = Place::new().await;
    let declaration = products();
    place.register(&declaration).await;
    // Holds the row, so that both claims have read the same epoch before either can write.
    let mut holder = session().await;
    let lock = place.store.sql("begin; select from {s}.projector_positions for update");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut holder).await.unwrap();
    let claims: Vec<_> = (0..2)
        .map(|_| {
            let (store, request) = (place.store.clone(), claim(&declaration, 0));
            tokio::spawn(async move { store.claim(&request).await.unwrap() })
        })
        .collect();
    place.wait_for_blocked(2).await;
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    let mut answers = Vec::new();
    for claim in claims {
        answers.push(claim.await.unwrap());
    }
    let lost = answers.iter().filter(|answer| **answer == Claimed::Lost).count();
    assert_eq!(lost, 1, "{answers:?}");
    place.end().await;
}
