//! Logs that are not what the store's positions say, and topics that grow.

use crate::shop::{QUICK_SESSIONS, Shop};
use crate::support::eventually;
use crate::support::kafka::{Kafka, Out};

/// Reason and detail of every quarantine, by partition.
async fn quarantines(shop: &Shop) -> Vec<Vec<String>> {
    let sql = "select partition::text, quarantine_reason, quarantine_detail from {s}.projector_positions \
               where quarantine_reason is not null order by partition";
    shop.database.rows(sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_last_applied_record_is_another_leaders_is_not_gone_on_with() {
    let shop = Shop::open(1).await;
    let expected = shop.pay(100, 10).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    // Offset and epoch as they are: it goes on.
    let more = shop.pay(50, 10).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let payments = |paid: &std::collections::BTreeMap<String, (i64, i64)>| -> i64 {
        paid.values().map(|(_, payments)| payments).sum()
    };
    let before = shop.customers().await;
    assert_eq!(payments(&before), payments(&expected) + payments(&more));
    // One broker cannot lose records: what was applied at offset 149 is said to have been of an epoch that this log never had.
    shop.database
        .run(&format!(
            "update {}.projector_positions set leader_epoch = leader_epoch + 1",
            shop.database.schema
        ))
        .await;
    shop.pay(50, 10).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    let rows = quarantines(&shop).await;
    assert_eq!(rows[0][1], "log_truncated");
    assert!(rows[0][2].contains("position 150") && rows[0][2].contains("leader epoch"), "{rows:?}");
    assert_eq!(shop.customers().await, before);
    let refused = shop.place.run(&["resume", "orders"]).expect_code(4);
    assert!(refused.stderr.contains("retire"), "{}", refused.stderr);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_partition_of_a_topic_that_was_made_anew_with_fewer_is_quarantined() {
    let shop = Shop::open(3).await;
    let expected = shop.pay(300, 30).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    shop.kafka.delete_topic(&shop.topic).await;
    shop.kafka.create_topic(&shop.topic, 1, &[]).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    let mut running = shop.place.start("run", &["run"]);
    let rows = eventually("all three are quarantined", || async {
        let rows = quarantines(&shop).await;
        (rows.len() == 3).then_some(rows)
    })
    .await;
    assert!(rows.iter().all(|row| row[1] == "topic_recreated"), "{rows:?}");
    assert!(rows[2][2].contains("which has 1 now"), "{rows:?}");
    assert_eq!(shop.customers().await, expected);
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_a_topic_gets_later_are_read_from_their_first_record() {
    let section = QUICK_SESSIONS.replace(" }", ", topic.metadata.refresh.interval.ms: 500 }");
    let shop = Shop::open_with(1, &section, "on_error: dead_letter").await;
    // Of partitions that appear later there is no latest: nothing of them has been left out by choice.
    let file = std::fs::read_to_string(shop.place.path().join("orders.v1.yaml")).expect("the file");
    shop.place.write(
        "orders.v1.yaml",
        &file.replace("    format: json\n", "    format: json\n    start: latest\n"),
    );
    shop.pay(20, 10).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("registered behind what is there", || async { (shop.progress().await == 20).then_some(()) })
        .await;
    let pay = async |partitions: std::ops::Range<i32>, times: usize| {
        // A producer that knows the topic as it is now.
        let kafka = Kafka::connect();
        for partition in partitions {
            for _ in 0..times {
                let value = br#"{"kind":"Paid","cents":3}"#;
                let key = format!("p{partition}");
                let out = Out { topic: &shop.topic, partition: Some(partition), ..Out::default() };
                kafka.send(Out { key: Some(key.as_bytes()), value: Some(value), ..out }).await;
            }
        }
    };
    pay(0..1, 7).await;
    // Written before anybody of the group knows of the partitions.
    shop.kafka.grow_topic(&shop.topic, 3).await;
    pay(1..3, 7).await;
    eventually("everything is applied", || async { (shop.progress().await == 20 + 3 * 7).then_some(()) })
        .await;
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    // And while nobody runs.
    shop.kafka.grow_topic(&shop.topic, 5).await;
    pay(0..5, 4).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let expected = [("p0", 33, 11), ("p1", 33, 11), ("p2", 33, 11), ("p3", 12, 4), ("p4", 12, 4)];
    let expected = expected.map(|(customer, cents, payments)| (customer.to_owned(), (cents, payments)));
    assert_eq!(shop.customers().await, expected.into());
    let starts = "select partition::text, start_position::text, boundary::text from {s}.projector_positions order by partition";
    let starts = shop.database.rows(starts).await;
    assert_eq!(starts[0], ["0", "20", "20"]);
    for (number, row) in starts.iter().enumerate().skip(1) {
        assert_eq!(*row, [number.to_string(), "0".to_owned(), "0".to_owned()]);
    }
    shop.database.drop().await;
}
