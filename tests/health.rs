//! What machines ask a running process: metrics, health, status; and what SQL says.

use serde_json::Value;

use crate::shop::Shop;
use crate::support::eventually;

/// A shop whose program serves HTTP, and the address.
async fn served(partitions: i32, tail: &str) -> (Shop, String) {
    let shop = Shop::open_with(partitions, crate::shop::QUICK_SESSIONS, tail).await;
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").port();
    let address = format!("127.0.0.1:{port}");
    shop.change_config("listen: none", &format!("listen: '{address}'"));
    (shop, format!("http://{address}"))
}

/// Status and text of a page; `None` while nobody listens.
async fn page(url: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(url).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

async fn json(url: &str) -> Value {
    let (status, text) = page(url).await.expect("an answer");
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// The sum of a metric over its series whose labels contain all of `labels`.
fn metric(page: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let series = page.lines().filter(|line| {
        line.split(['{', ' ']).next() == Some(name) && labels.iter().all(|label| line.contains(label))
    });
    let values =
        series.map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number"));
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_process_says_so_everywhere() {
    let (shop, url) = served(2, "unknown_events: ignore").await;
    shop.pay(500, 20).await;
    shop.send("c00001", "not JSON").await;
    shop.send("c00001", r#"{"kind":"Nothing"}"#).await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("ready", || async {
        page(&format!("{url}/readyz")).await.filter(|(status, _)| *status == 200)
    })
    .await;
    eventually("everything is applied", || async { (shop.progress().await == 502).then_some(()) }).await;
    let report = eventually("ready views", || async {
        let report = json(&format!("{url}/api/v1/views/customers")).await;
        (report["state"] == "ready").then_some(report)
    })
    .await;
    assert_eq!((&report["projection"], &report["version"]), (&Value::from("orders"), &Value::from(1)));
    assert_eq!((&report["lag_records"], &report["age_seconds"]), (&Value::from(0), &Value::from(0.0)));
    assert_eq!(report["open_dead_letters"], 1);
    let projection = json(&format!("{url}/api/v1/projections/orders")).await;
    assert_eq!(projection["versions"][0]["version_state"], "live");
    assert_eq!(projection["versions"][0]["partitions"].as_array().map(Vec::len), Some(2));
    assert_eq!(page(&format!("{url}/livez")).await, Some((200, "alive\n".to_owned())));
    assert_eq!(page(&format!("{url}/api/v1/views/nothing")).await.map(|(status, _)| status), Some(404));

    let text = page(&format!("{url}/metrics")).await.expect("metrics").1;
    let sum = |name: &str| metric(&text, name, &[r#"projection="orders""#]);
    assert_eq!(sum("projector_records_total"), Some(502.0));
    assert_eq!(sum("projector_events_ignored_total"), Some(1.0));
    assert_eq!(sum("projector_partition_lag_records"), Some(0.0));
    assert_eq!(sum("projector_partition_age_seconds"), Some(0.0));
    assert_eq!(sum("projector_dead_letters_open"), Some(1.0));
    let dead = ["stage=\"decode\"", "reason=\"invalid_json\""];
    assert_eq!(metric(&text, "projector_dead_letters_total", &dead), Some(1.0));
    assert_eq!(metric(&text, "projector_partition_state", &["state=\"flowing\""]), Some(2.0));
    assert_eq!(metric(&text, "projector_view_state", &["state=\"ready\""]), Some(1.0));
    assert!(sum("projector_apply_duration_seconds_count").is_some_and(|count| count >= 1.0), "{text}");

    let status = shop.place.run(&["status", "--json"]).expect_code(0);
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    assert_eq!(status["projections"][0]["versions"][0]["lag_records"], 0, "{status}");
    let by_sql = "select state, lag_records::text, open_dead_letters::text from {s}.projector_view_status";
    assert_eq!(shop.database.rows(by_sql).await, [["ready", "0", "1"]]);

    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    // Nobody observes any more: then nobody says that all is well.
    let state = shop.database.one("select state from {s}.projector_view_status").await;
    assert_eq!(state, "unavailable");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_partition_shows_a_growing_lag() {
    let (shop, url) = served(1, "on_error: quarantine").await;
    shop.send("c00001", "not JSON").await;
    let mut running = shop.place.start("run", &["run"]);
    let partition = || async {
        let (status, text) = page(&format!("{url}/api/v1/projections/orders")).await?;
        let report: Value = serde_json::from_str(&text).ok().filter(|_| status == 200)?;
        Some(report["versions"][0]["partitions"][0].clone())
    };
    let stopped = eventually("a quarantine", || async {
        partition()
            .await
            .filter(|partition| partition["state"] == "quarantined" && partition["lag_records"] == 1)
    })
    .await;
    assert_eq!(stopped["reason"], "invalid_json", "{stopped}");
    assert!(stopped["decide"].as_str().is_some_and(|command| command.starts_with("projector resume orders")));
    shop.pay(49, 5).await;
    eventually("the lag grows", || async {
        partition().await.filter(|partition| partition["lag_records"] == 50)
    })
    .await;

    // The same after a restart, when nothing of it has been read.
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.pay(50, 5).await;
    let mut running = shop.place.start("again", &["run"]);
    let again = eventually("the lag and the age are known", || async {
        partition()
            .await
            .filter(|partition| partition["lag_records"] == 100 && !partition["age_seconds"].is_null())
    })
    .await;
    assert_eq!(again["state"], "quarantined");
    assert!(again["age_seconds"].as_f64().is_some_and(|age| age > 0.0), "{again}");
    let text = page(&format!("{url}/metrics")).await.expect("metrics").1;
    assert_eq!(metric(&text, "projector_view_state", &["state=\"quarantined\""]), Some(1.0));
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}
