//! SIGTERM in the middle of work: what is durable is committed, the group is left, and the exit code is 0.

use std::time::Duration;

use sqlx::Connection;

use crate::shop::Shop;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_in_the_middle_leaves_offsets_and_rows_in_step() {
    let shop = Shop::open(3).await;
    let expected = shop.pay(40_000, 300).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("some progress", || async { (shop.progress().await > 0).then_some(()) }).await;
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    let positions = shop
        .database
        .rows("select partition::text, position::text from {s}.projector_positions order by partition")
        .await;
    let committed = shop.kafka.committed(&shop.group(), &shop.topic, 3);
    for row in &positions {
        let (partition, position): (i32, i64) =
            (row[0].parse().expect("a number"), row[1].parse().expect("a number"));
        assert_eq!(committed.get(&partition).copied().unwrap_or(0), position, "partition {partition}");
    }
    assert_eq!(shop.database.one("select count(*)::text from {s}.projector_instances").await, "0");

    // The group was left: whoever comes next need not wait for the session to run out.
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_does_not_end_is_given_up_within_the_grace_time() {
    let shop = Shop::open(1).await;
    let mut expected = shop.pay(100, 10).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("caught up", || async { (shop.progress().await == 100).then_some(()) }).await;
    let mut locker = sqlx::PgConnection::connect(&shop.database.url).await.expect("connects");
    let table = format!("lock table {}.customers__v1 in access exclusive mode", shop.database.schema);
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("begin; {table}"))).execute(&mut locker).await.expect("locked");
    for (customer, (cents, payments)) in shop.pay(100, 10).await {
        let entry = expected.entry(customer).or_insert((0, 0));
        *entry = (entry.0 + cents, entry.1 + payments);
    }
    eventually("a transaction waits for the lock", || async {
        let waiting = "select count(*)::text from pg_locks where not granted \
                       and relation = '{s}.customers__v1'::regclass";
        (shop.database.one(waiting).await != "0").then_some(())
    })
    .await;
    running.signal("TERM");
    // Its grace is 10 s.
    assert_eq!(running.ended_within(Duration::from_secs(20)).await.code(), Some(0), "{}", running.log());
    drop(locker);
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let shop = Shop::open(1).await;
    shop.pay(100, 10).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("caught up", || async { (shop.progress().await == 100).then_some(()) }).await;
    let mut locker = sqlx::PgConnection::connect(&shop.database.url).await.expect("connects");
    let table = format!("lock table {}.customers__v1 in access exclusive mode", shop.database.schema);
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("begin; {table}"))).execute(&mut locker).await.expect("locked");
    shop.pay(100, 10).await;
    eventually("a transaction waits for the lock", || async {
        let waiting = "select count(*)::text from pg_locks where not granted \
                       and relation = '{s}.customers__v1'::regclass";
        (shop.database.one(waiting).await != "0").then_some(())
    })
    .await;
    running.signal("TERM");
    eventually("the first is heard", || async { running.log().contains("a second signal").then_some(()) })
        .await;
    running.signal("TERM");
    let status = running.ended_within(Duration::from_secs(2)).await;
    assert!(!status.success(), "{status}: {}", running.log());
    drop(locker);
    shop.database.drop().await;
}
