use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use async_trait::async_trait;

use super::*;
use crate::position::{Epoch, NextOffset};
use crate::record::TopicPartition;
use crate::status::report::now_millis;
use crate::status::{Snapshot, StatusError};
use crate::store::{PartitionStatus, Quarantine, StoreError, VersionKey, VersionState};
use crate::telemetry::{self, PartitionGauges, PartitionState};

/// Answers that a test has put there.
#[derive(Default)]
struct Scripted {
    answer: Mutex<Option<Result<Vec<PartitionStatus>, StatusError>>>,
    asked: AtomicUsize,
}

#[async_trait]
impl StatusSource for Scripted {
    async fn snapshot(&self) -> Result<Arc<Snapshot>, StatusError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let answer = self.answer.lock().expect("not poisoned").clone();
        match answer {
            Some(answer) => {
                answer.map(|partitions| Arc::new(Snapshot { partitions, taken_at: now_millis() }))
            }
            None => std::future::pending().await,
        }
    }
}

struct Served {
    url: String,
    health: Health,
    status: Arc<Scripted>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), HttpError>>,
}

/// One recorder for all tests of this process.
fn metrics() -> Metrics {
    static METRICS: OnceLock<Metrics> = OnceLock::new();
    METRICS.get_or_init(|| Metrics::install().expect("the first")).clone()
}

async fn served(partitions: Vec<PartitionStatus>) -> Served {
    let listener = bind("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let (health, status, stop) = (Health::new(), Arc::new(Scripted::default()), CancellationToken::new());
    *status.answer.lock().expect("not poisoned") = Some(Ok(partitions));
    let mut catalogue = Catalogue::default();
    catalogue.add(version("catalogue"), vec!["products".into(), "search".into()], Duration::from_mins(2));
    let pages = Pages {
        health: health.clone(),
        metrics: metrics(),
        status: status.clone(),
        catalogue: Arc::new(catalogue),
    };
    let task = tokio::spawn(serve(listener, pages, stop.clone()));
    Served { url, health, status, stop, task }
}

impl Served {
    async fn get(&self, path: &str) -> (u16, String, String) {
        let response = reqwest::get(format!("{}{path}", self.url)).await.expect("an answer");
        let kind = response.headers()["content-type"].to_str().expect("text").to_owned();
        (response.status().as_u16(), kind, response.text().await.expect("a body"))
    }
}

fn version(name: &str) -> VersionKey {
    VersionKey { projection: name.into(), version: 1 }
}

fn partition(number: i32) -> PartitionStatus {
    PartitionStatus {
        version: version("catalogue"),
        version_state: VersionState::Live,
        partition: TopicPartition::new("shop.products", number),
        topic_id: None,
        position: NextOffset::new(90),
        boundary: NextOffset::new(80),
        epoch: Epoch::new(3),
        revision: 12,
        readable_end: Some(NextOffset::new(100)),
        oldest_pending_at: Some(now_millis() - 2000),
        observed_seconds_ago: Some(0.4),
        owner_alive: true,
        blocked: None,
        quarantine: None,
        is_resume_requested: false,
        open_dead_letters: 2,
        oldest_dead_letter_at: Some((now_millis() - 60_000) * 1000),
    }
}

#[tokio::test]
async fn ready_follows_the_three_steps_only() {
    let served = served(vec![]).await;
    let (status, _, text) = served.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(text.contains("the store is not laid out yet"), "{text}");
    served.health.configured();
    served.health.laid_out();
    served.health.joined();
    *served.status.answer.lock().expect("not poisoned") = Some(Err(StatusError::Slow));
    assert_eq!(served.get("/readyz").await.0, 200);
    assert_eq!(served.get("/livez").await.0, 200);
    assert_eq!(served.status.asked.load(Ordering::Relaxed), 0, "health asks nobody");
}

#[tokio::test]
async fn a_view_and_its_projection_are_told_as_json() {
    let served = served(vec![partition(0), partition(1)]).await;
    let (status, kind, text) = served.get("/api/v1/views/search").await;
    assert_eq!((status, kind.as_str()), (200, "application/json"));
    let view: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(view["state"], "ready");
    assert_eq!((view["lag_records"].as_u64(), view["open_dead_letters"].as_i64()), (Some(20), Some(4)));
    assert!(view["age_seconds"].as_f64().expect("known") >= 2.0);
    assert_eq!(view["staleness_limit_seconds"], 120.0);
    let (status, _, text) = served.get("/api/v1/projections/catalogue").await;
    assert_eq!(status, 200);
    let projection: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(projection["versions"][0]["partitions"][1]["partition"], 1);
}

#[tokio::test]
async fn what_is_not_there_is_a_problem_that_names_what_is() {
    let served = served(vec![partition(0)]).await;
    for (path, known) in [
        ("/api/v1/views/nothing", "products, search"),
        ("/api/v1/projections/nothing", "catalogue"),
        ("/nothing", "/metrics"),
    ] {
        let (status, kind, text) = served.get(path).await;
        assert_eq!((status, kind.as_str()), (404, "application/problem+json"), "{path}");
        assert!(text.contains(known) && !text.contains("nothing"), "{text}");
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_problem_that_says_to_come_again() {
    let served = served(vec![]).await;
    let error = StoreError::Connection { action: "read status", detail: "timed out".into() };
    *served.status.answer.lock().expect("not poisoned") = Some(Err(StatusError::Store(error)));
    let response = reqwest::get(format!("{}/api/v1/views/products", served.url)).await.expect("an answer");
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["retry-after"], "2");
    assert_eq!(served.get("/").await.0, 503);
}

#[tokio::test]
async fn metrics_show_owned_partitions_and_the_state_of_their_views() {
    let key = version("catalogue");
    let owned = TopicPartition::new("shop.products", 0);
    let gauges = PartitionGauges {
        lag_records: Some(10),
        oldest_pending_millis: Some(now_millis() - 2000),
        state: PartitionState::Flowing,
        staleness: Duration::from_mins(2),
    };
    telemetry::partition(&key, &owned, &gauges);
    let served = served(vec![partition(0), partition(1)]).await;
    let (status, kind, text) = served.get("/metrics").await;
    assert_eq!((status, kind.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
    let labels = r#"projection="catalogue",projection_version="1""#;
    for line in [
        format!("projector_partition_lag_records{{{labels},topic=\"shop.products\",partition=\"0\"}} 10"),
        format!("projector_dead_letters_open{{{labels},topic=\"shop.products\",partition=\"0\"}} 2"),
        format!("projector_view_state{{{labels},state=\"ready\"}} 1"),
        format!("projector_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("partition=\"1\""), "not owned here:\n{text}");

    *served.status.answer.lock().expect("not poisoned") = Some(Err(StatusError::Slow));
    let (status, _, text) = served.get("/metrics").await;
    assert_eq!(status, 200, "an outage of the store must not hide the metrics");
    assert!(text.contains(&format!("projector_view_state{{{labels},state=\"unavailable\"}} 1")), "{text}");
    assert!(!text.contains("projector_dead_letters_open{"), "unknown, so absent:\n{text}");

    telemetry::partition_gone(&key, &owned);
    assert!(!served.get("/metrics").await.2.contains("projector_partition_lag_records{"));
}

#[tokio::test]
async fn the_page_escapes_what_it_shows() {
    let stopped = PartitionStatus {
        quarantine: Some(Quarantine { reason: "<script>".into(), detail: "a & b".into() }),
        ..partition(0)
    };
    let served = served(vec![stopped]).await;
    let (status, kind, text) = served.get("/").await;
    assert_eq!((status, kind.as_str()), (200, "text/html; charset=utf-8"));
    assert!(text.contains("&lt;script&gt;: a &amp; b") && !text.contains("<script>"), "{text}");
    assert!(text.contains("projector resume catalogue --partition shop.products:0"), "{text}");
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_says_what_to_do() {
    let first = bind("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
    let error = bind(first.local_addr().expect("bound")).await.expect_err("taken");
    assert!(error.to_string().contains("choose another `http.listen`"), "{error}");
}

#[tokio::test]
async fn serving_ends_when_told_though_a_request_hangs() {
    let served = served(vec![]).await;
    *served.status.answer.lock().expect("not poisoned") = None;
    let url = format!("{}/api/v1/views/products", served.url);
    let hanging = tokio::spawn(async move { reqwest::get(url).await });
    while served.status.asked.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    served.stop.cancel();
    served.task.await.expect("no panic").expect("ended well");
    hanging.abort();
}
