//! A read store or a broker that cannot be reached: it is waited for, nothing is lost, nothing is twice, and nothing is a dead letter.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::shop::Shop;
use crate::support::eventually;
use crate::support::proxy::{Mode, Proxy};

/// A shop whose program reaches the database through a proxy only.
async fn behind_proxy(partitions: i32) -> (Shop, Proxy) {
    let shop = Shop::open(partitions).await;
    let url = reqwest::Url::parse(&shop.database.url).expect("a URL");
    let target = format!("{}:{}", url.host_str().expect("a host"), url.port().unwrap_or(5432));
    let proxy = Proxy::before(target).await;
    let mut through = url.clone();
    through.set_port(Some(proxy.port)).expect("a port");
    shop.change_config(&shop.database.url, through.as_str());
    (shop, proxy)
}

fn add(to: &mut BTreeMap<String, (i64, i64)>, more: BTreeMap<String, (i64, i64)>) {
    for (customer, (cents, payments)) in more {
        let entry = to.entry(customer).or_insert((0, 0));
        *entry = (entry.0 + cents, entry.1 + payments);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_again_and_again_change_no_count() {
    let (shop, proxy) = behind_proxy(3).await;
    let mut expected = shop.pay(20_000, 200).await;
    let mut running = shop.place.start("run", &["run"]);
    let mut total = 20_000;
    for mode in [Mode::Refuse, Mode::Silent, Mode::Refuse, Mode::Silent] {
        let before = shop.progress().await;
        eventually("some progress", || async { (shop.progress().await > before).then_some(()) }).await;
        proxy.set(mode);
        add(&mut expected, shop.pay(3000, 200).await);
        total += 3000;
        let trouble = running.log().matches("WARN").count();
        eventually("the outage is noticed", || async {
            (running.log().matches("WARN").count() > trouble).then_some(())
        })
        .await;
        proxy.set(Mode::Pass);
    }
    eventually("everything is applied", || async { (shop.progress().await == total).then_some(()) }).await;
    eventually("the view is there", || async {
        shop.database.try_rows("select 1::text from {s}.customers").await.ok()
    })
    .await;
    assert_eq!(shop.customers().await, expected);
    assert_eq!(shop.database.one("select count(*)::text from {s}.projector_dead_letters").await, "0");
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_at_start_is_waited_for() {
    let (shop, proxy) = behind_proxy(1).await;
    proxy.set(Mode::Refuse);
    let expected = shop.pay(100, 10).await;
    let mut running = shop.place.start("run", &["run", "--until-caught-up"]);
    eventually("it says what it waits for", || async {
        running.log().contains("waiting for the read store").then_some(())
    })
    .await;
    assert!(running.is_running());
    proxy.set(Mode::Pass);
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_falls_silent_does_not_hold_a_shutdown_beyond_its_grace() {
    let (shop, proxy) = behind_proxy(2).await;
    shop.change_config("http:", "shutdown_grace: 4s\nhttp:");
    shop.pay(100, 10).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("caught up", || async { (shop.progress().await == 100).then_some(()) }).await;
    proxy.set(Mode::Silent);
    shop.pay(100, 10).await;
    running.signal("TERM");
    // The grace, and what a busy machine needs to notice its end.
    let status = running.ended_within(Duration::from_secs(8)).await;
    assert_eq!(status.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_database_ends_with_a_signal() {
    let (shop, proxy) = behind_proxy(1).await;
    for mode in [Mode::Refuse, Mode::Silent] {
        proxy.set(mode);
        let mut running = shop.place.start("run", &["run"]);
        eventually("it says what it waits for", || async {
            running.log().contains("waiting for the read store").then_some(())
        })
        .await;
        running.signal("TERM");
        assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    }
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_named_by_status_and_waited_for() {
    let shop = Shop::open(2).await;
    let proxy = Proxy::before_broker(shop.kafka.bootstrap.clone()).await;
    shop.change_config(&shop.kafka.bootstrap, &format!("127.0.0.1:{}", proxy.port));
    let mut expected = shop.pay(1000, 50).await;
    let mut running = shop.place.start("run", &["run"]);
    let is_ready = async || {
        let rows =
            shop.database.try_rows("select state, reason from {s}.projector_view_status").await.ok()?;
        (rows.first()?[0] == "ready").then_some(())
    };
    eventually("the view is ready", is_ready).await;
    proxy.set(Mode::Refuse);
    add(&mut expected, shop.pay(1000, 50).await);
    let away = "select state, reason from {s}.projector_view_status where reason like '% is not known: no broker can be reached'";
    let rows = eventually("the reason is told", || async {
        let rows = shop.database.rows(away).await;
        (!rows.is_empty()).then_some(rows)
    })
    .await;
    assert_eq!(rows[0][0], "unavailable");
    // The client gives its partitions up when the session has run out; their last owner goes on to say why.
    eventually("the partitions are lost", || async {
        (running.log().matches("ownership=Lost").count() == 2).then_some(())
    })
    .await;
    shop.database.run(&format!("delete from {}.projector_observations", shop.database.schema)).await;
    eventually("the reason is told again", || async {
        (!shop.database.rows(away).await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(running.log().matches("no broker can be reached").count(), 1, "told once: {}", running.log());
    let status = shop.place.run(&["status"]).expect_code(0);
    assert!(
        status.stdout.contains("unavailable") && status.stdout.contains("no broker"),
        "{}",
        status.stdout
    );
    proxy.set(Mode::Pass);
    eventually("everything is applied", || async { (shop.progress().await == 2000).then_some(()) }).await;
    eventually("the view is ready", is_ready).await;
    assert_eq!(shop.customers().await, expected);
    assert_eq!(shop.database.one("select count(*)::text from {s}.projector_dead_letters").await, "0");
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}
