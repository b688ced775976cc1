//! `projector run` on a real Kafka and PostgreSQL: records in; rows, dead letters and offsets out.

use crate::shop::{QUICK_SESSIONS, Shop};
use crate::support::eventually;
use crate::support::kafka::{Out, header};

#[tokio::test(flavor = "multi_thread")]
async fn records_become_rows_dead_letters_and_offsets() {
    let shop = Shop::open(3).await;
    let paid = shop.pay(2000, 150).await;
    let (partition, offset) = shop.send("c00001", r#"{"kind":"LimitSet","limit":3000000000}"#).await;
    shop.send("c00002", r#"{"kind":"LimitSet","limit":500}"#).await;
    shop.send("c00003", "not JSON").await;
    shop.send("c00004", r#"{"kind":"SomethingElse"}"#).await;
    shop.kafka.send(Out { topic: &shop.topic, key: Some(b"c00005"), value: None, ..Out::default() }).await;

    let ended = shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let summary =
        "caught up: 2005 records, 2 dead letters among them (`projector dlq list`), 1 without a handler\n";
    assert_eq!(ended.stdout, summary);
    for told in ["reason=invalid_json", "reason=value_out_of_range", "event_type=\"SomethingElse\""] {
        assert_eq!(ended.stderr.matches(told).count(), 1, "{told}: {}", ended.stderr);
    }

    let mut expected = paid;
    expected.remove("c00005");
    assert_eq!(shop.customers().await, expected);
    let limit =
        shop.database.one("select limit_cents::text from {s}.customers where customer = 'c00002'").await;
    assert_eq!(limit, "500");
    let letters = shop
        .database
        .rows("select reason, column_name, state from {s}.projector_dead_letters order by reason")
        .await;
    assert_eq!(
        letters,
        [["invalid_json", "∅", "open"], ["value_out_of_range", "customers.limit_cents", "open"]]
    );
    let kept = shop
        .database
        .rows("select convert_from(key, 'UTF8'), convert_from(value, 'UTF8'), partition::text, record_offset::text \
               from {s}.projector_dead_letters where reason = 'value_out_of_range'")
        .await;
    assert_eq!(
        kept,
        [[
            "c00001".to_owned(),
            r#"{"kind":"LimitSet","limit":3000000000}"#.to_owned(),
            partition.to_string(),
            offset.to_string()
        ]]
    );

    let ends: i64 = shop.kafka.committed(&shop.group(), &shop.topic, 3).values().sum();
    assert_eq!(ends, 2005, "every offset is committed, and none beyond the end");
    assert_eq!(shop.progress().await, 2005);

    let published = shop.kafka.read_all(&shop.dead_letter_topic());
    let mut reasons: Vec<_> =
        published.iter().filter_map(|message| header(message, "projector.reason")).collect();
    reasons.sort();
    assert_eq!(reasons, ["invalid_json", "value_out_of_range"]);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_goes_on_where_the_store_says() {
    let shop = Shop::open(4).await;
    let mut expected = shop.pay(30_000, 400).await;
    for round in 0..4 {
        let before = shop.progress().await;
        let mut running = shop.place.start(&format!("round{round}"), &["run"]);
        eventually("some progress", || async { (shop.progress().await > before).then_some(()) }).await;
        running.kill();
        for (customer, (cents, payments)) in shop.pay(5_000, 400).await {
            let entry = expected.entry(customer).or_insert((0, 0));
            *entry = (entry.0 + cents, entry.1 + payments);
        }
    }
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_share_the_partitions_and_a_third_may_join() {
    let shop = Shop::open(6).await;
    let mut expected = shop.pay(20_000, 300).await;
    let mut first = shop.place.start("first", &["run"]);
    let mut second = shop.place.start("second", &["run"]);
    eventually("both own partitions", || owners(&shop, 2)).await;
    let mut third = shop.place.start("third", &["run"]);
    for (customer, (cents, payments)) in shop.pay(20_000, 300).await {
        let entry = expected.entry(customer).or_insert((0, 0));
        *entry = (entry.0 + cents, entry.1 + payments);
    }
    eventually("all three own partitions", || owners(&shop, 3)).await;
    eventually("everything is applied", || async { (shop.progress().await == 40_000).then_some(()) }).await;
    assert_eq!(shop.customers().await, expected);

    first.signal("TERM");
    assert_eq!(first.ended().await.code(), Some(0), "{}", first.log());
    eventually("the others take over", || async {
        let alive = shop.database.one("select count(*)::text from {s}.projector_instances").await;
        (alive == "2").then_some(())
    })
    .await;
    eventually("two own everything", || owners(&shop, 2)).await;
    for running in [&mut second, &mut third] {
        running.signal("TERM");
        assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    }
    let committed: i64 = shop.kafka.committed(&shop.group(), &shop.topic, 6).values().sum();
    assert_eq!(committed, 40_000);
    shop.database.drop().await;
}

/// Some once the partitions have exactly so many owners.
async fn owners(shop: &Shop, count: usize) -> Option<()> {
    let sql = "select count(distinct owner)::text from {s}.projector_positions";
    let rows = shop.database.try_rows(sql).await.ok()?;
    (rows[0][0] == count.to_string()).then_some(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_group_protocol_works() {
    let section = "  consumer_properties: { group.protocol: consumer }\n";
    let shop = Shop::open_with(3, section, "").await;
    let expected = shop.pay(3000, 100).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    let committed: i64 = shop.kafka.committed(&shop.group(), &shop.topic, 3).values().sum();
    assert_eq!(committed, 3000);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_partition_waits_for_resume_while_the_others_go_on() {
    let shop = Shop::open_with(2, QUICK_SESSIONS, "on_error: quarantine").await;
    let (bad_partition, bad_offset) = shop.send("c00001", r#"{"kind":"LimitSet","limit":3000000000}"#).await;
    let expected = shop.pay(400, 40).await;
    let stuck = shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    let said: Vec<&str> = stuck.stderr.lines().skip_while(|line| !line.starts_with("error: ")).collect();
    let status = shop.place.run(&["status", "-v"]).expect_code(0).stdout;
    for text in [said.join("\n"), status] {
        assert!(text.contains("customers.limit_cents"), "{text}");
        assert_eq!(text.matches("projector resume orders --partition").count(), 1, "{text}");
    }
    let positions = shop
        .database
        .rows(
            "select partition::text, position::text, quarantine_reason from {s}.projector_positions \
               where quarantine_reason is not null",
        )
        .await;
    assert_eq!(
        positions,
        [[bad_partition.to_string(), bad_offset.to_string(), "value_out_of_range".to_owned()]]
    );
    // Asked for while nobody runs, and tried by the next who does: the record is as bad as before.
    shop.place.run(&["resume", "orders"]).expect_code(0);
    shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    let requests = "select count(*)::text from {s}.projector_positions where request is not null";
    assert_eq!(shop.database.one(requests).await, "0");
    let mut running = shop.place.start("run", &["run"]);
    eventually("the partitions are owned", || owners(&shop, 1)).await;
    shop.place
        .run(&[
            "resume",
            "orders",
            "--partition",
            &format!("{}:{bad_partition}", shop.topic),
            "--dead-letter",
        ])
        .expect_code(0);
    eventually("everything is applied", || async { (shop.progress().await == 401).then_some(()) }).await;
    eventually("the version is live", || async {
        let state = shop.database.one("select state from {s}.projector_versions").await;
        (state == "live").then_some(())
    })
    .await;
    assert_eq!(shop.customers().await, expected);
    let letters =
        shop.database.rows("select reason, record_offset::text from {s}.projector_dead_letters").await;
    assert_eq!(letters, [["value_out_of_range".to_owned(), bad_offset.to_string()]]);
    let left = shop
        .database
        .one("select count(*)::text from {s}.projector_positions where quarantine_reason is not null");
    assert_eq!(left.await, "0");
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_retired_and_can_be_built_anew() {
    let shop = Shop::open(2).await;
    let expected = shop.pay(500, 50).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);

    let text = std::fs::read_to_string(shop.place.path().join("orders.v1.yaml")).expect("the file");
    shop.place.write("orders.v1.yaml", &text.replace("note: value.note", "note: value.kind"));
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    for part in ["cannot register orders@1 of ", "orders.v1.yaml", "projector retire orders@1 --execute"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }

    let plan = shop.place.run(&["retire", "orders@1"]).expect_code(0);
    assert!(plan.stdout.contains("customers__v1") && plan.stdout.contains("--execute"), "{}", plan.stdout);
    assert_eq!(shop.customers().await, expected, "a plan changes nothing");

    shop.place.run(&["retire", "orders@1", "--execute"]).expect_code(0);
    assert!(shop.database.try_rows("select customer from {s}.customers").await.is_err());
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    let notes = shop.database.one("select string_agg(distinct note, ',') from {s}.customers").await;
    assert_eq!(notes, "Paid");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_see_no_view_before_the_boundary() {
    let shop = Shop::open(1).await;
    shop.pay(20_000, 100).await;
    let mut running = shop.place.start("run", &["run"]);
    let first_seen = eventually("the view is there", || async {
        let live = shop.database.try_rows("select state from {s}.projector_versions").await.ok()?;
        let seen = shop.database.try_rows("select sum(payments)::text from {s}.customers").await.ok()?;
        (!live.is_empty()).then(|| seen[0][0].clone())
    })
    .await;
    assert_eq!(first_seen, "20000", "the first thing that a reader sees is the whole view");
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0));
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_end_leaves_no_dead_letter_unpublished() {
    let shop = Shop::open(2).await;
    let bad = (0..450).map(|number| (format!("c{number:05}"), "not JSON".to_owned()));
    shop.kafka.send_all(&shop.topic, bad).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let waiting = "select count(*)::text from {s}.projector_dead_letters where published_at is null";
    assert_eq!(shop.database.one(waiting).await, "0");
    let published = shop.kafka.read_all(&shop.dead_letter_topic());
    let ids: std::collections::BTreeSet<_> =
        published.iter().filter_map(|message| header(message, "projector.id")).collect();
    assert_eq!((ids.len(), published.len()), (450, 450));
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_too_large_for_its_topic_goes_without_what_is_large() {
    let shop = Shop::open(1).await;
    let topic = format!("{}.small", shop.prefix);
    shop.kafka.create_topic(&topic, 1, &[("max.message.bytes", "2000")]).await;
    shop.change_config("http:", &format!("dead_letter: {{ topic: {topic} }}\nhttp:"));
    let large = "x".repeat(3000);
    shop.send("c1", &large).await;
    shop.send(&large, "not JSON").await;
    shop.send("c3", "not JSON").await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let published = shop.kafka.read_all(&topic);
    let mut omitted: Vec<_> = published
        .iter()
        .map(|message| (header(message, "projector.value_omitted"), header(message, "projector.key_omitted")))
        .collect();
    omitted.sort();
    let yes = || Some("true".to_owned());
    assert_eq!(omitted, [(None, None), (yes(), None), (yes(), yes())]);
    let kept = shop
        .database
        .one("select sum(length(key) + length(value))::text from {s}.projector_dead_letters")
        .await;
    assert_eq!(kept, (2 + 3000 + 3000 + 8 + 2 + 8).to_string(), "the table has all of it");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_made_anew_ends_the_run_with_a_quarantine() {
    let shop = Shop::open(1).await;
    let expected = shop.pay(100, 10).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    shop.kafka.delete_topic(&shop.topic).await;
    shop.kafka.create_topic(&shop.topic, 1, &[]).await;
    shop.pay(100, 10).await;
    let ended = shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    assert!(ended.stderr.contains("topic_recreated"), "{}", ended.stderr);
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_the_former_mapping_owns_nothing_of_the_new_one() {
    let shop = Shop::open(2).await;
    let expected = shop.pay(200, 20).await;
    let mut former = shop.place.start("former", &["run"]);
    eventually("caught up", || async { (shop.progress().await == 200).then_some(()) }).await;
    shop.place.run(&["retire", "orders@1", "--execute"]).expect_code(0);
    // It stands still, and hears of it all the same.
    eventually("the former instance lets go", || async {
        former.log().contains("no longer served").then_some(())
    })
    .await;
    let path = shop.place.path().join("orders.v1.yaml");
    let text = std::fs::read_to_string(&path).expect("the file");
    shop.place.write("orders.v1.yaml", &text.replace("note: value.note", "note: value.kind"));
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    let notes = shop.database.one("select string_agg(distinct note, ',') from {s}.customers").await;
    assert_eq!(notes, "Paid");
    former.kill();
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_made_anew_while_it_is_read_is_never_gone_on_with() {
    let shop = Shop::open(2).await;
    let expected = shop.pay(500, 20).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("caught up", || async { (shop.progress().await == 500).then_some(()) }).await;
    eventually("the view is there", || async {
        shop.database.try_rows("select from {s}.customers").await.ok()
    })
    .await;
    shop.kafka.delete_topic(&shop.topic).await;
    shop.kafka.create_topic(&shop.topic, 2, &[]).await;
    // Longer than the former log: its positions lie within.
    shop.pay(3000, 20).await;
    let quarantined =
        "select quarantine_reason, position::text from {s}.projector_positions order by partition";
    let rows = eventually("both partitions are quarantined", || async {
        let rows = shop.database.rows(quarantined).await;
        rows.iter().all(|row| row[0] != "∅").then_some(rows)
    })
    .await;
    assert!(rows.iter().all(|row| row[0] == "topic_recreated" || row[0] == "log_truncated"), "{rows:?}");
    assert_eq!(shop.progress().await, 500);
    assert_eq!(shop.customers().await, expected);
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_would_come_back_are_refused_at_start() {
    let shop = Shop::open(1).await;
    shop.change_config("http:", &format!("dead_letter: {{ topic: {} }}\nhttp:", shop.topic));
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    assert!(refused.stderr.contains("dead_letter.topic"), "{}", refused.stderr);
    shop.database.drop().await;
}
