//! The pipeline against scripted faults: a source in memory, an SQLite file, and a store that fails where the test says.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::publish::DeadLetterTopic;
use super::service::{Outside, Service, Ways};
use crate::config::settings::LimitSettings;
use crate::dead_letter::DeadLetter;
use crate::dead_letter::publisher::PublishError;
use crate::decode::Limits;
use crate::decode::registry::Schemas;
use crate::position::{NextOffset, RecordOffset};
use crate::projection::{Projection, spec};
use crate::record::{Record, RecordCoordinates, RecordTimestamp, TopicPartition};
use crate::source::memory::{MemoryCluster, MemoryMember};
use crate::source::{Cluster, SourceError};
use crate::store::error::ErrorPlace;
use crate::store::faulty::{ApplyFault, FaultyStore};
use crate::store::sqlite::{OpenMode, SqliteStore};
use crate::store::{
    DatabaseCode, DeadLetterFilter, OperatorAction, PartitionStatus, Quarantine, ReadStore, ResumeRequest,
    SharedStore, StoreError,
};
use crate::telemetry::Health;

mod brokers;
mod interruption;
mod log;
mod promotion;

const TOPIC: &str = "shop.payments";
const DEAD_LETTER_TOPIC: &str = "t.payments.dlq";

/// When every record was made, milliseconds since 1970-01-01 UTC.
const TIME: i64 = 1_700_000_000_000;

/// A payment of one cent.
const PAID: &str = r#"{"kind":"Paid","cents":1}"#;

/// Longer than anything here takes; what takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn projection(on_error: &str) -> Arc<dyn Projection> {
    let text = format!(
        "projection: payments
version: 1
sources: [{{ topic: {TOPIC}, format: json, key: string, type: value.kind }}]
tables:
  customers:
    primary_key: [customer]
    columns: {{ customer: text, cents: bigint not null default 0, email: text, code: smallint }}
    indexes: [{{ columns: [email], unique: true }}]
events:
  Paid: [{{ upsert: customers, key: {{ customer: key }}, add: {{ cents: value.cents }} }}]
  Named: [{{ upsert: customers, key: {{ customer: key }}, set: {{ email: value.email }} }}]
  Coded: [{{ upsert: customers, key: {{ customer: key }}, set: {{ code: value.code }} }}]
on_error: {on_error}
"
    );
    let read_file = |_: &Path| Err(std::io::Error::other("no files"));
    Arc::new(spec::parse(Path::new("payments.yaml"), &text, read_file).expect("valid"))
}

/// A dead-letter topic that takes nothing while it is closed.
#[derive(Default)]
struct Shy {
    is_closed: AtomicBool,
    taken: Mutex<Vec<i64>>,
}

#[async_trait]
impl DeadLetterTopic for Shy {
    fn name(&self) -> &'static str {
        DEAD_LETTER_TOPIC
    }

    async fn publish(&self, letter: &DeadLetter) -> Result<(), PublishError> {
        if self.is_closed.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        self.taken.lock().expect("not poisoned").push(letter.record.coordinates.offset.get());
        Ok(())
    }
}

/// A pipeline at work, and everything around it.
struct Scene {
    cluster: MemoryCluster,
    dead_letter_topic: Arc<Shy>,
    store: Arc<FaultyStore>,
    member: MemoryMember,
    stop: CancellationToken,
    running: JoinHandle<()>,
    next: BTreeMap<i32, i64>,
    /// The leader epoch of the records that are sent.
    epoch: Option<i32>,
    folder: tempfile::TempDir,
}

impl Scene {
    async fn open(on_error: &str, partitions: i32) -> Self {
        Self::open_filled(on_error, partitions, 0).await
    }

    /// With so many payments of one cent in each partition when the version is registered.
    async fn open_filled(on_error: &str, partitions: i32, payments: i64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open_store(folder.path()).await;
        let cluster = MemoryCluster::default();
        cluster.create_topic(TOPIC, partitions, Some("id-1"));
        cluster.create_topic(DEAD_LETTER_TOPIC, 1, None);
        let dead_letter_topic = Arc::new(Shy::default());
        for (partition, offset) in
            (0..partitions).flat_map(|number| (0..payments).map(move |at| (number, at)))
        {
            cluster.append(record(partition, offset, None, "a", PAID));
        }
        let (member, stop, running) = start(&cluster, &store, &dead_letter_topic, on_error).await;
        let next = (0..partitions).map(|partition| (partition, payments)).collect();
        Self { cluster, dead_letter_topic, store, member, stop, running, next, epoch: None, folder }
    }

    fn name(partition: i32) -> TopicPartition {
        TopicPartition::new(TOPIC, partition)
    }

    fn send(&mut self, partition: i32, key: &str, value: &str) {
        let offset = self.next.entry(partition).or_default();
        self.cluster.append(record(partition, *offset, self.epoch, key, value));
        *offset += 1;
    }

    fn pay(&mut self, partition: i32, key: &str, cents: i64) {
        self.send(partition, key, &format!(r#"{{"kind":"Paid","cents":{cents}}}"#));
    }

    async fn row(&self, partition: i32) -> Option<PartitionStatus> {
        let rows = self.store.status(None).await.expect("status");
        rows.into_iter().find(|row| row.partition == Self::name(partition))
    }

    async fn quarantined(&self, partition: i32) -> Quarantine {
        eventually("a quarantine", || async { self.row(partition).await?.quarantine }).await
    }

    async fn reaches(&self, partition: i32, position: i64) {
        eventually(&format!("partition {partition} reaches {position}"), || async {
            let row = self.row(partition).await?;
            (row.position == NextOffset::new(position)).then_some(())
        })
        .await;
    }

    async fn cents(&self) -> BTreeMap<String, String> {
        eventually("the view is there", || async {
            let rows = self.store.read_view("customers", 1000).await.ok()?;
            let text = |cell: &Option<String>| cell.clone().unwrap_or_default();
            Some(rows.rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect())
        })
        .await
    }

    async fn reasons(&self) -> Vec<(i64, String)> {
        let filter = DeadLetterFilter { limit: 100, ..DeadLetterFilter::default() };
        let letters = self.store.dead_letters(&filter).await.expect("dead letters");
        let mut reasons: Vec<(i64, String)> = letters
            .into_iter()
            .map(|stored| {
                (
                    stored.letter.record.coordinates.offset.get(),
                    stored.letter.fault.reason.as_str().to_owned(),
                )
            })
            .collect();
        reasons.sort();
        reasons
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, &mut self.running).await;
        ended.expect("ends in time").expect("ends cleanly");
    }

    /// Starts another service, after the first was stopped, on the same file and topics.
    async fn start_again(&mut self, on_error: &str) {
        self.store = open_store(self.folder.path()).await;
        let started = tokio::time::timeout(
            PATIENCE,
            start(&self.cluster, &self.store, &self.dead_letter_topic, on_error),
        );
        let (member, stop, running) = started.await.expect("starts in time");
        (self.member, self.stop, self.running) = (member, stop, running);
    }

    async fn end(mut self) {
        self.stop().await;
    }
}

fn record(partition: i32, offset: i64, leader_epoch: Option<i32>, key: &str, value: &str) -> Record {
    Record {
        coordinates: RecordCoordinates {
            topic_partition: Scene::name(partition),
            offset: RecordOffset::new(offset),
        },
        leader_epoch,
        timestamp: RecordTimestamp::Create(TIME),
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        value: Some(Bytes::copy_from_slice(value.as_bytes())),
        headers: Vec::new(),
    }
}

async fn open_store(folder: &Path) -> Arc<FaultyStore> {
    let inner: SharedStore =
        Arc::new(SqliteStore::open(&folder.join("t.sqlite"), OpenMode::Run).await.expect("opens"));
    Arc::new(FaultyStore::new(inner))
}

async fn start(
    cluster: &MemoryCluster,
    store: &Arc<FaultyStore>,
    dead_letter_topic: &Arc<Shy>,
    on_error: &str,
) -> (MemoryMember, CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    let outside = Outside {
        store: store.clone(),
        cluster: Arc::new(cluster.clone()) as Arc<dyn Cluster>,
        schemas: Schemas::none(),
        dead_letter_topics: BTreeMap::from([(
            "payments".to_owned(),
            dead_letter_topic.clone() as Arc<dyn DeadLetterTopic>,
        )]),
        health: Health::new(),
    };
    let ways = Ways {
        group_prefix: "t".to_owned(),
        writers: 1,
        limits: LimitSettings {
            record: Limits::default(),
            batch_records: 1000,
            memory: 4 << 20,
            queue: 1 << 20,
        },
        unknown_schema_wait: Duration::from_millis(50),
        max_waiting: 3,
        grace: Duration::from_secs(5),
    };
    let service =
        Service::prepare(outside, &ways, vec![projection(on_error)], &stop).await.expect("prepared");
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { service.run(stop).await }
    });
    (cluster.member().await, stop, running)
}

async fn eventually<T, F, Fut>(what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    loop {
        pause.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "did not happen: {what}");
    }
}

fn database(code: &str) -> StoreError {
    StoreError::Database {
        action: "apply a batch",
        code: DatabaseCode::SqlState(code.to_owned()),
        place: ErrorPlace::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_to_commit_is_decided_by_the_position_row() {
    for fault in [ApplyFault::ReplyLost, ApplyFault::CommitLost] {
        let mut scene = Scene::open("dead_letter", 1).await;
        scene.store.script_apply(fault);
        scene.store.fail_outcomes(2, &StoreError::Connection { action: "ask", detail: "refused".to_owned() });
        for _ in 0..10 {
            scene.pay(0, "a", 3);
        }
        scene.member.assign(&[Scene::name(0)]);
        scene.reaches(0, 10).await;
        assert_eq!(scene.cents().await["a"], "30");
        eventually("the outcome is told", || async { (scene.store.outcome_calls() >= 3).then_some(()) })
            .await;
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_waited_for_and_makes_no_dead_letter() {
    let mut scene = Scene::open("dead_letter", 2).await;
    for code in ["08006", "53100", "25006", "42501", "28P01", "40P01"] {
        scene.store.script_apply(ApplyFault::Fails(database(code)));
    }
    for _ in 0..20 {
        scene.pay(0, "a", 1);
        scene.pay(1, "b", 2);
    }
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.reaches(0, 20).await;
    scene.reaches(1, 20).await;
    let cents = scene.cents().await;
    assert_eq!((cents["a"].as_str(), cents["b"].as_str()), ("20", "40"));
    assert_eq!(scene.reasons().await, []);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_records_that_the_database_refuses_are_found_among_many() {
    let mut scene = Scene::open("dead_letter", 1).await;
    for number in 0..200 {
        if number == 17 || number == 120 {
            scene.send(0, &format!("c{number}"), r#"{"kind":"Named","email":"taken@example.com"}"#);
        } else if number == 3 {
            scene.send(0, "first", r#"{"kind":"Named","email":"taken@example.com"}"#);
        } else {
            scene.pay(0, "a", 1);
        }
    }
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 200).await;
    assert_eq!(scene.cents().await["a"], "197");
    let violation = "unique_violation".to_owned();
    assert_eq!(scene.reasons().await, [(17, violation.clone()), (120, violation)]);
    assert!(scene.store.apply_calls() < 60, "{} transactions", scene.store.apply_calls());
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_partition_is_drained_and_committed_before_it_is_let_go() {
    let mut scene = Scene::open("dead_letter", 2).await;
    let mut held = scene.store.hold_next_apply();
    for _ in 0..5 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    held.reached().await;
    let revoking = tokio::spawn({
        let member = scene.member.clone();
        async move { member.revoke(&[Scene::name(0)]).await }
    });
    // The transaction that was in flight ends, and only then the partition goes.
    held.release();
    revoking.await.expect("revoked");
    let position = scene.row(0).await.expect("a row").position;
    assert!(scene.member.commits().contains(&(Scene::name(0), position)));
    // What comes back goes on where the store says.
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 5).await;
    assert_eq!(scene.cents().await["a"], "5");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_lost_in_a_transaction_comes_back_without_applying_twice() {
    let mut scene = Scene::open("dead_letter", 1).await;
    let mut held = scene.store.hold_next_apply();
    for _ in 0..5 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0)]);
    held.reached().await;
    scene.member.lose(&[Scene::name(0)]);
    scene.member.assign(&[Scene::name(0)]);
    held.release();
    scene.reaches(0, 5).await;
    for _ in 0..5 {
        scene.pay(0, "a", 1);
    }
    scene.reaches(0, 10).await;
    assert_eq!(scene.cents().await["a"], "10");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_owner_claims_again_only_once_the_broker_confirms_it() {
    let mut scene = Scene::open("dead_letter", 1).await;
    scene.pay(0, "a", 1);
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 1).await;
    scene.member.refuse_commits(Some(SourceError::NotAMember { detail: "illegal generation".to_owned() }));
    let claims = scene.store.claim_calls();
    // Somebody else claims: the next transaction of this owner loses.
    let rows = scene.store.versions().await.expect("versions");
    let claim = crate::store::ClaimRequest {
        version: rows[0].key.clone(),
        partition: Scene::name(0),
        topic_id: Some("id-1".to_owned()),
        digest: rows[0].digest.clone(),
        instance: crate::store::InstanceId("other".into()),
    };
    scene.store.claim(&claim).await.expect("claimed");
    scene.pay(0, "a", 1);
    eventually("the loss is noticed", || async { (scene.store.apply_calls() >= 2).then_some(()) }).await;
    assert_eq!(scene.store.claim_calls(), claims + 1, "only the other one has claimed");
    scene.member.refuse_commits(None);
    scene.reaches(0, 2).await;
    assert_eq!(scene.cents().await["a"], "2");
    assert_eq!(scene.store.claim_calls(), claims + 2);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_stops_its_partition_only_and_outlives_a_restart() {
    let mut scene = Scene::open("quarantine", 2).await;
    scene.pay(0, "a", 1);
    scene.send(0, "a", r#"{"kind":"Coded","code":70000}"#);
    scene.pay(0, "a", 1);
    scene.pay(1, "b", 1);
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.reaches(1, 1).await;
    let row =
        eventually("a quarantine", || async { scene.row(0).await.filter(|row| row.quarantine.is_some()) })
            .await;
    assert_eq!(row.position, NextOffset::new(1));
    assert_eq!(row.quarantine.map(|why| why.reason), Some("value_out_of_range".to_owned()));

    scene.stop().await;
    scene.start_again("quarantine").await;
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.pay(1, "b", 1);
    scene.reaches(1, 2).await;
    // Its lag and its age are known again, although nothing of it is applied.
    eventually("lag and age", || async {
        let row = scene.row(0).await?;
        (row.readable_end == Some(NextOffset::new(3)) && row.oldest_pending_at == Some(TIME)).then_some(())
    })
    .await;
    let request =
        |action| ResumeRequest { projection: "payments".to_owned(), version: None, partition: None, action };
    // Without anything mended, the same record stops it again, and the request is used up.
    scene.store.request_resume(&request(OperatorAction::Resume)).await.expect("asked");
    eventually("another quarantine", || async {
        scene.row(0).await.filter(|now| now.quarantine.is_some() && now.revision > row.revision)
    })
    .await;
    scene.store.request_resume(&request(OperatorAction::ResumeWithDeadLetter)).await.expect("asked");
    scene.reaches(0, 3).await;
    assert_eq!(scene.reasons().await, [(1, "value_out_of_range".to_owned())]);
    assert_eq!(scene.cents().await["a"], "2");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn letting_one_record_pass_lets_no_other_pass() {
    let mut scene = Scene::open("quarantine", 1).await;
    for code in [1, 70000, 70001, 2] {
        scene.send(0, "a", &format!(r#"{{"kind":"Coded","code":{code}}}"#));
    }
    scene.member.assign(&[Scene::name(0)]);
    let quarantined_at = |position: i64| {
        let scene = &scene;
        eventually("a quarantine", move || async move {
            let row = scene.row(0).await?;
            (row.quarantine.is_some() && row.position == NextOffset::new(position)).then_some(())
        })
    };
    quarantined_at(1).await;
    let request = ResumeRequest {
        projection: "payments".to_owned(),
        version: None,
        partition: None,
        action: OperatorAction::ResumeWithDeadLetter,
    };
    scene.store.request_resume(&request).await.expect("asked");
    quarantined_at(2).await;
    assert_eq!(scene.reasons().await, [(1, "value_out_of_range".to_owned())]);
    scene.store.request_resume(&request).await.expect("asked");
    scene.reaches(0, 4).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_made_anew_is_never_gone_on_with() {
    let mut scene = Scene::open("dead_letter", 1).await;
    for _ in 0..3 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 3).await;
    scene.stop().await;
    scene.cluster.create_topic(TOPIC, 1, Some("id-2"));
    scene.next.clear();
    for _ in 0..6 {
        scene.pay(0, "a", 100);
    }
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0)]);
    let row =
        eventually("a quarantine", || async { scene.row(0).await.filter(|row| row.quarantine.is_some()) })
            .await;
    assert_eq!(row.quarantine.map(|why| why.reason), Some("topic_recreated".to_owned()));
    assert_eq!(scene.cents().await["a"], "3");
    // No command but starting over goes on from there.
    let request = ResumeRequest {
        projection: "payments".to_owned(),
        version: None,
        partition: None,
        action: OperatorAction::Resume,
    };
    let answer = scene.store.request_resume(&request).await;
    assert!(matches!(answer, Err(StoreError::Refused { .. })), "{answer:?}");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_without_records_moves_the_position() {
    let mut scene = Scene::open("dead_letter", 1).await;
    scene.pay(0, "a", 1);
    // A transaction's marker: an offset that holds no record for us.
    scene.cluster.bound(&Scene::name(0), NextOffset::ZERO, NextOffset::new(2));
    scene.next.insert(0, 2);
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 2).await;
    scene.pay(0, "a", 1);
    scene.reaches(0, 3).await;
    assert_eq!(scene.cents().await["a"], "2");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_end_commits_what_is_durable() {
    let mut scene = Scene::open("dead_letter", 1).await;
    for _ in 0..7 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 7).await;
    let member = scene.member.clone();
    scene.end().await;
    assert_eq!(member.commits().last(), Some(&(Scene::name(0), NextOffset::new(7))));
    assert!(member.is_closed());
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_cannot_be_published_stop_their_partition_at_a_limit() {
    let mut scene = Scene::open("dead_letter", 2).await;
    scene.dead_letter_topic.is_closed.store(true, Ordering::SeqCst);
    // Three may wait.
    for _ in 0..3 {
        scene.send(0, "a", "not JSON");
    }
    for _ in 0..4 {
        scene.send(1, "b", "not JSON");
    }
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.reaches(1, 4).await;
    let blocked = eventually("partition 1 is blocked", || async { scene.row(1).await?.blocked }).await;
    assert!(blocked.contains("max_waiting"), "{blocked}");
    scene.pay(0, "a", 1);
    scene.pay(1, "b", 1);
    scene.reaches(0, 4).await;
    let row = scene.row(1).await.expect("a row");
    assert_eq!((row.position, row.blocked.is_some()), (NextOffset::new(4), true));

    scene.dead_letter_topic.is_closed.store(false, Ordering::SeqCst);
    // What hangs is given up within the grace, and goes again after the restart.
    scene.stop().await;
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.reaches(1, 5).await;
    eventually("everything is published", || async {
        let mut taken = scene.dead_letter_topic.taken.lock().expect("not poisoned").clone();
        taken.sort_unstable();
        (taken == [0, 0, 1, 1, 2, 2, 3]).then_some(())
    })
    .await;
    assert_eq!(scene.row(1).await.and_then(|row| row.blocked), None);
    scene.end().await;
}
