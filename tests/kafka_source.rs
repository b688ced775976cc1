//! The Kafka source on a real broker: rebalances, ends, faults of the log, commits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use projector::config::settings::{KafkaSettings, LimitSettings};
use projector::decode::Limits;
use projector::position::NextOffset;
use projector::record::{Record, TopicPartition};
use projector::source::kafka::KafkaCluster;
use projector::source::{Cluster, Consumed, LogFault, Ownership, Source, SourceError, SourceEvent, StreamId};
use rdkafka::config::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};

use crate::support::kafka::{Kafka, Out};
use crate::support::{PATIENCE, unique};

const QUEUE: usize = 8 * 1024 * 1024;

/// A topic of its own, and sources that read it.
struct Place {
    kafka: Kafka,
    topic: String,
    group: String,
    cluster: KafkaCluster,
}

impl Place {
    async fn new(partitions: i32) -> Self {
        Self::with(partitions, &[], &[]).await
    }

    async fn with(partitions: i32, topic_settings: &[(&str, &str)], consumer: &[(&str, &str)]) -> Self {
        let kafka = Kafka::connect();
        let topic = unique("source");
        kafka.create_topic(&topic, partitions, topic_settings).await;
        let cluster = cluster(&kafka.bootstrap, consumer);
        Self { group: unique("g"), kafka, topic, cluster }
    }

    async fn join(&self) -> Member {
        let source = self.cluster.subscribe(&self.group, std::slice::from_ref(&self.topic)).await;
        Member::new(source.expect("subscribes"))
    }

    async fn send(&self, partition: i32, values: std::ops::Range<u32>) {
        for value in values {
            let value = value.to_string();
            let partition = Some(partition);
            let out = Out { topic: &self.topic, partition, value: Some(value.as_bytes()), ..Out::default() };
            self.kafka.send(out).await;
        }
    }

    fn partition(&self, number: i32) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), number)
    }
}

fn cluster(bootstrap: &str, consumer: &[(&str, &str)]) -> KafkaCluster {
    let consumer_properties =
        consumer.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned().into())).collect();
    let settings = KafkaSettings {
        bootstrap_servers: bootstrap.to_owned(),
        group_prefix: "test".to_owned(),
        properties: BTreeMap::new(),
        consumer_properties,
        producer_properties: BTreeMap::new(),
    };
    let limits =
        LimitSettings { record: Limits::default(), batch_records: 1000, memory: 64 << 20, queue: QUEUE };
    KafkaCluster::new(&settings, &limits).expect("the library takes the settings")
}

/// A source, what it owns, and everything that it has read.
struct Member {
    source: Source,
    streams: BTreeMap<TopicPartition, StreamId>,
    read: Vec<Record>,
    /// The next position of each partition.
    positions: BTreeMap<TopicPartition, NextOffset>,
    /// The leader epoch that the record before the next begin must have.
    last_epoch: Option<i32>,
}

impl Member {
    fn new(source: Source) -> Self {
        let (streams, positions) = Default::default();
        Self { source, streams, read: Vec::new(), positions, last_epoch: None }
    }

    async fn event(&mut self) -> SourceEvent {
        let event = tokio::time::timeout(PATIENCE, self.source.events.recv()).await;
        event.expect("an event within the time").expect("the source is open")
    }

    /// Waits for an assignment that is not empty.
    async fn assigned(&mut self) -> BTreeSet<TopicPartition> {
        loop {
            match self.event().await {
                SourceEvent::Assigned { partitions } if partitions.is_empty() => {}
                SourceEvent::Assigned { partitions } => return partitions.into_iter().collect(),
                other => panic!("not an assignment: {other:?}"),
            }
        }
    }

    fn begin(&mut self, partition: &TopicPartition, from: NextOffset) {
        let stream = self.source.control.begin(partition, from, self.last_epoch);
        self.streams.insert(partition.clone(), stream);
        self.positions.insert(partition.clone(), from);
    }

    /// Takes one batch: of the current streams, in order and without a gap that the test does not allow.
    async fn take(&mut self) {
        let batch = tokio::time::timeout(PATIENCE, self.source.records.recv()).await;
        self.sort(batch.expect("records within the time").expect("the source is open"));
    }

    fn sort(&mut self, batch: Vec<Consumed>) {
        for consumed in batch {
            match consumed {
                Consumed::Record { stream, record } => {
                    let partition = &record.coordinates.topic_partition;
                    if self.streams.get(partition) != Some(&stream) {
                        continue;
                    }
                    let position = self.positions.get_mut(partition).expect("begun");
                    let offset = record.coordinates.offset;
                    assert!(!position.is_past(offset), "{} came again", record.coordinates);
                    *position = offset.next();
                    self.read.push(record);
                }
                Consumed::End { stream, partition, end } => {
                    if self.streams.get(&partition) == Some(&stream) {
                        let position = self.positions.get_mut(&partition).expect("begun");
                        *position = end.max(*position);
                    }
                }
            }
        }
    }

    /// Reads until the end of `partition` is told to be `end`.
    async fn read_to(&mut self, partition: &TopicPartition, end: i64) {
        while self.positions[partition] < NextOffset::new(end) {
            self.take().await;
        }
    }

    /// The offsets that were read of a partition, in order.
    fn offsets(&self, number: i32) -> Vec<i64> {
        let coordinates = self.read.iter().map(|record| &record.coordinates);
        let of = coordinates.filter(|at| at.topic_partition.partition == number);
        of.map(|at| at.offset.get()).collect()
    }

    async fn close(&self) {
        self.source.control.close(PATIENCE).await;
    }
}

/// Two members share a topic while it is written: every record is read once, in order, by whoever owns it.
async fn shared_by_two(consumer: &[(&str, &str)]) {
    let place = Place::with(4, &[], consumer).await;
    for partition in 0..4 {
        place.send(partition, 0..50).await;
    }
    let mut first = place.join().await;
    let mut owned = first.assigned().await;
    while owned.len() < 4 {
        owned.extend(first.assigned().await);
    }
    for partition in &owned {
        first.begin(partition, NextOffset::ZERO);
    }
    for partition in &owned {
        first.read_to(partition, 50).await;
    }
    let mut second = place.join().await;
    let mut writing = 50..150_u32;
    let deadline = Instant::now() + PATIENCE;
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    let mut positions: BTreeMap<TopicPartition, NextOffset> = BTreeMap::new();
    loop {
        assert!(Instant::now() < deadline, "the members have not shared in time");
        if let Some(value) = writing.next() {
            for partition in 0..4 {
                place.send(partition, value..value + 1).await;
            }
        }
        for member in [&mut first, &mut second] {
            while let Ok(batch) = member.source.records.try_recv() {
                member.sort(batch);
            }
            while let Ok(event) = member.source.events.try_recv() {
                match event {
                    SourceEvent::Assigned { partitions } => {
                        for partition in partitions {
                            let from = positions[&partition];
                            member.begin(&partition, from);
                        }
                    }
                    SourceEvent::Revoked { partitions, ownership, done } => {
                        assert_eq!(ownership, Ownership::UntilDone);
                        for partition in partitions {
                            if let Some(position) = member.positions.remove(&partition) {
                                positions.insert(partition.clone(), position);
                            }
                            member.streams.remove(&partition);
                        }
                        drop(done);
                    }
                    other => panic!("not a rebalance: {other:?}"),
                }
            }
        }
        let ends: Vec<NextOffset> =
            first.positions.values().chain(second.positions.values()).copied().collect();
        let is_shared = !first.streams.is_empty() && !second.streams.is_empty();
        if is_shared && ends.len() == 4 && ends.iter().all(|end| *end == NextOffset::new(150)) {
            break;
        }
        pause.tick().await;
    }
    for partition in 0..4 {
        let all: Vec<i64> = [first.offsets(partition), second.offsets(partition)].concat();
        assert_eq!(all, (0..150).collect::<Vec<_>>(), "partition {partition}");
    }
    second.close().await;
    first.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_of_the_cooperative_protocol_read_every_record_once() {
    shared_by_two(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_of_an_eager_protocol_read_every_record_once() {
    shared_by_two(&[("partition.assignment.strategy", "range")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_of_the_consumer_protocol_read_every_record_once() {
    shared_by_two(&[("group.protocol", "consumer")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assign_after_the_end_was_told_skips_no_record() {
    let place = Place::new(8).await;
    let mut member = place.join().await;
    let mut owned = member.assigned().await;
    while owned.len() < 8 {
        owned.extend(member.assigned().await);
    }
    let zero = place.partition(0);
    member.begin(&zero, NextOffset::ZERO);
    member.read_to(&zero, 0).await;
    for number in 1..8 {
        // Each begin makes the library fetch everything anew, from what it takes for consumed.
        let other = place.partition(number);
        member.begin(&other, NextOffset::ZERO);
        member.read_to(&other, 0).await;
        let value = u32::try_from(number).expect("small");
        place.send(0, value..value + 1).await;
        member.read_to(&zero, i64::from(number)).await;
    }
    assert_eq!(member.offsets(0), (0..7).collect::<Vec<_>>());
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quick_pause_and_begin_delivers_again_and_disturbs_no_other_partition() {
    let place = Place::new(2).await;
    place.send(0, 0..20).await;
    place.send(1, 0..20).await;
    let mut member = place.join().await;
    assert_eq!(member.assigned().await.len(), 2);
    let (zero, one) = (place.partition(0), place.partition(1));
    member.begin(&zero, NextOffset::ZERO);
    member.begin(&one, NextOffset::ZERO);
    member.read_to(&zero, 20).await;
    member.read_to(&one, 20).await;
    for round in 0..5_u32 {
        member.source.control.pause(&zero);
        member.begin(&zero, NextOffset::new(10));
        place.send(1, round..round + 1).await;
        member.read_to(&zero, 20).await;
        member.read_to(&one, i64::from(21 + round)).await;
        // Begun again without a pause before.
        member.begin(&zero, NextOffset::new(15));
        member.read_to(&zero, 20).await;
    }
    assert_eq!(member.offsets(1), (0..25).collect::<Vec<_>>());
    let rounds: Vec<i64> = std::iter::repeat_n((10..20).chain(15..20), 5).flatten().collect();
    assert_eq!(member.offsets(0)[20..], rounds);
    member.close().await;
}

fn transactional(kafka: &Kafka) -> FutureProducer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &kafka.bootstrap).set("transactional.id", unique("tx"));
    let producer: FutureProducer = config.create().expect("a producer");
    producer.init_transactions(PATIENCE).expect("the broker answers");
    producer
}

async fn put(producer: &FutureProducer, topic: &str, value: &str) {
    let record = FutureRecord::<(), str>::to(topic).partition(0).payload(value);
    producer.send(record, PATIENCE).await.expect("delivered");
}

#[tokio::test(flavor = "multi_thread")]
async fn markers_and_aborted_records_are_stepped_over_and_the_end_is_what_can_be_reached() {
    let place = Place::new(1).await;
    let zero = place.partition(0);
    let producer = transactional(&place.kafka);
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::ZERO);

    producer.begin_transaction().expect("begun");
    put(&producer, &place.topic, "kept").await;
    producer.commit_transaction(PATIENCE).expect("committed");
    member.read_to(&zero, 2).await;
    assert_eq!(member.offsets(0), [0]);

    producer.begin_transaction().expect("begun");
    put(&producer, &place.topic, "dropped").await;
    producer.abort_transaction(PATIENCE).expect("aborted");
    member.read_to(&zero, 4).await;
    assert_eq!(member.offsets(0), [0]);

    // An open transaction holds the readable end back, also for what others write behind it.
    producer.begin_transaction().expect("begun");
    put(&producer, &place.topic, "open").await;
    place.send(0, 0..1).await;
    let described = place.cluster.describe(std::slice::from_ref(&place.topic)).await.expect("answers");
    assert_eq!(described[&place.topic].partitions[&0], (NextOffset::ZERO, NextOffset::new(4)));
    assert_eq!(member.source.control.ends().readable[&zero], NextOffset::new(4));
    producer.commit_transaction(PATIENCE).expect("committed");
    member.read_to(&zero, 7).await;
    assert_eq!(member.offsets(0), [0, 4, 5]);
    assert_eq!(member.source.control.ends().readable[&zero], NextOffset::new(7));

    // The position that the end gives is one to begin at.
    member.begin(&zero, NextOffset::new(7));
    member.read_to(&zero, 7).await;
    place.send(0, 0..1).await;
    member.read_to(&zero, 8).await;
    assert_eq!(member.offsets(0), [0, 4, 5, 7]);
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_has_expired_is_a_fault_with_the_numbers() {
    let place = Place::new(1).await;
    let zero = place.partition(0);
    place.send(0, 0..10).await;
    place.kafka.delete_records(&place.topic, 0, 6).await;
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::new(3));
    let SourceEvent::LogFault { partition, stream, fault } = member.event().await else { panic!("a fault") };
    assert_eq!((&partition, stream), (&zero, member.streams[&zero]));
    let (log_start, log_end) = (NextOffset::new(6), NextOffset::new(10));
    assert_eq!(fault, LogFault::Expired { position: NextOffset::new(3), log_start, log_end });
    // After a decision, at the log's start.
    member.begin(&zero, NextOffset::new(6));
    member.read_to(&zero, 10).await;
    assert_eq!(member.offsets(0), [6, 7, 8, 9]);
    // And records that expire while the partition is paused are not skipped either.
    member.source.control.pause(&zero);
    place.send(0, 10..20).await;
    place.kafka.delete_records(&place.topic, 0, 15).await;
    member.begin(&zero, NextOffset::new(10));
    let SourceEvent::LogFault { fault, .. } = member.event().await else { panic!("a fault") };
    assert!(matches!(fault, LogFault::Expired { .. }), "{fault:?}");
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_beyond_the_end_is_a_fault_with_the_numbers() {
    let place = Place::new(1).await;
    let zero = place.partition(0);
    place.send(0, 0..5).await;
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::new(10));
    let SourceEvent::LogFault { fault, .. } = member.event().await else { panic!("a fault") };
    let (log_start, log_end) = (NextOffset::ZERO, NextOffset::new(5));
    assert_eq!(fault, LogFault::Truncated { position: NextOffset::new(10), log_start, log_end });
    place.send(0, 5..12).await;
    member.begin(&zero, NextOffset::new(5));
    member.read_to(&zero, 12).await;
    assert_eq!(member.offsets(0), (5..12).collect::<Vec<_>>());
    member.close().await;
}

/// What the source says of a log whose record before position 10 was written by epoch 0, for each epoch that was applied there.
async fn compared_before_the_position(consumer: &[(&str, &str)]) {
    let place = Place::with(2, &[], consumer).await;
    let (zero, one) = (place.partition(0), place.partition(1));
    place.send(0, 0..20).await;
    place.send(1, 0..20).await;
    let mut member = place.join().await;
    let mut owned = member.assigned().await;
    while owned.len() < 2 {
        owned.extend(member.assigned().await);
    }
    member.last_epoch = Some(0);
    member.begin(&one, NextOffset::new(10));
    member.last_epoch = Some(3);
    member.begin(&zero, NextOffset::new(10));
    let SourceEvent::LogFault { partition, stream, fault } = member.event().await else { panic!("a fault") };
    assert_eq!((&partition, stream), (&zero, member.streams[&zero]));
    let LogFault::Rewritten { position, evidence } = fault else { panic!("another fault: {fault:?}") };
    assert_eq!(position, NextOffset::new(10));
    assert!(evidence.contains("leader epoch 0") && evidence.contains("by 3"), "{evidence}");
    // The other partition goes on, without the record that was compared.
    member.read_to(&one, 20).await;
    assert_eq!(member.offsets(1), (10..20).collect::<Vec<_>>());
    assert!(member.offsets(0).is_empty());
    // After a decision it can be begun again.
    member.source.control.pause(&zero);
    member.last_epoch = None;
    member.begin(&zero, NextOffset::new(10));
    member.read_to(&zero, 20).await;
    assert_eq!(member.offsets(0), (10..20).collect::<Vec<_>>());
    // At the very end there is nothing to deliver, and what comes later is not lost.
    member.last_epoch = Some(0);
    member.begin(&zero, NextOffset::new(20));
    member.begin(&one, NextOffset::ZERO);
    place.send(0, 0..1).await;
    member.read_to(&zero, 21).await;
    assert_eq!(member.offsets(0).last(), Some(&20));
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_before_the_position_that_another_leader_has_written_is_a_fault() {
    compared_before_the_position(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_before_the_position_is_compared_by_an_eager_protocol_too() {
    compared_before_the_position(&[("partition.assignment.strategy", "range")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_leader_that_has_lost_nothing_is_gone_on_with() {
    let brokers = MockCluster::new(2).expect("an embedded cluster");
    brokers.create_topic("led", 1, 1).expect("made");
    brokers.partition_leader("led", 0, Some(1)).expect("led");
    let cluster = cluster(&brokers.bootstrap_servers(), &[]);
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", brokers.bootstrap_servers()).create().expect("made");
    let zero = TopicPartition::new("led", 0);
    let topics = ["led".to_owned()];
    let mut member = Member::new(cluster.subscribe("g", &topics).await.expect("subscribes"));
    member.assigned().await;
    member.begin(&zero, NextOffset::ZERO);
    for value in 0..10 {
        put(&producer, "led", &value.to_string()).await;
    }
    member.read_to(&zero, 10).await;
    brokers.partition_leader("led", 0, Some(2)).expect("led");
    for value in 10..20 {
        put(&producer, "led", &value.to_string()).await;
    }
    member.read_to(&zero, 20).await;
    assert_eq!(member.offsets(0), (0..20).collect::<Vec<_>>());
    let epochs: Vec<i32> = member.read.iter().filter_map(|record| record.leader_epoch).collect();
    let (before, after) = (epochs[9], epochs[10]);
    assert!(before < after, "{epochs:?}");
    for (from, epoch) in [(10, before), (15, after), (20, after)] {
        member.last_epoch = Some(epoch);
        member.begin(&zero, NextOffset::new(from));
        member.read_to(&zero, 20).await;
    }
    // What was applied at 14 was the former leader's.
    member.last_epoch = Some(before);
    member.begin(&zero, NextOffset::new(15));
    loop {
        match member.event().await {
            SourceEvent::LogFault { fault: LogFault::Rewritten { .. }, .. } => break,
            SourceEvent::Trouble(_) => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_before_the_position_that_is_gone_or_a_marker_is_not_compared() {
    let place = Place::new(1).await;
    let zero = place.partition(0);
    let producer = transactional(&place.kafka);
    producer.begin_transaction().expect("begun");
    put(&producer, &place.topic, "0, before the marker").await;
    producer.commit_transaction(PATIENCE).expect("committed");
    let mut member = place.join().await;
    member.assigned().await;
    member.last_epoch = Some(3);
    // Behind the marker, at the end, and where more transactions without a record for us follow.
    member.begin(&zero, NextOffset::new(2));
    producer.begin_transaction().expect("begun");
    put(&producer, &place.topic, "2, dropped").await;
    producer.abort_transaction(PATIENCE).expect("aborted");
    member.read_to(&zero, 4).await;
    place.send(0, 4..8).await;
    member.read_to(&zero, 8).await;
    assert_eq!(member.offsets(0), [4, 5, 6, 7]);
    place.kafka.delete_records(&place.topic, 0, 6).await;
    member.source.control.pause(&zero);
    member.begin(&zero, NextOffset::new(6));
    let SourceEvent::Interrupted { log_start, .. } = member.event().await else { panic!("an interruption") };
    assert_eq!(log_start, NextOffset::new(6));
    member.last_epoch = None;
    member.begin(&zero, NextOffset::new(6));
    member.read_to(&zero, 8).await;
    assert_eq!(member.offsets(0), [4, 5, 6, 7, 6, 7]);
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_have_ids_and_a_topic_made_anew_has_another() {
    let place = Place::new(2).await;
    let topics = std::slice::from_ref(&place.topic);
    let id = async || {
        let described = place.cluster.describe(topics).await.expect("answers");
        described[&place.topic].topic_id.clone().expect("this broker gives ids")
    };
    let first = id().await;
    assert_eq!(first.len(), 22, "as Kafka's tools print it: {first}");
    assert_eq!(id().await, first);
    place.kafka.delete_topic(&place.topic).await;
    let missing = crate::support::eventually("the topic is gone", || async {
        match place.cluster.describe(topics).await {
            Err(SourceError::MissingTopic { topic }) => Some(topic),
            _ => None,
        }
    })
    .await;
    assert_eq!(missing, place.topic);
    place.kafka.create_topic(&place.topic, 2, &[]).await;
    assert_ne!(id().await, first);
    assert_eq!(place.cluster.cluster_id().await.expect("answers").len(), 22);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_keep_every_byte() {
    let place = Place::new(1).await;
    let zero = place.partition(0);
    let headers: [(&str, Option<&[u8]>); 4] =
        [("a", Some(&[0, 255])), ("", Some(b"")), ("a", None), ("é", Some(b"x"))];
    let out = Out { topic: &place.topic, partition: Some(0), headers: &headers, ..Out::default() };
    place.kafka.send(Out { key: Some(b"\0k"), value: Some(b"v"), ..out }).await;
    place.kafka.send(Out { key: Some(b""), value: Some(b""), ..out }).await;
    place.kafka.send(Out { key: None, value: None, ..out }).await;
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::ZERO);
    member.read_to(&zero, 3).await;
    let bytes = |record: &Record| (record.key.clone(), record.value.clone());
    assert_eq!(bytes(&member.read[0]), (Some("\0k".into()), Some("v".into())));
    assert_eq!(bytes(&member.read[1]), (Some("".into()), Some("".into())));
    assert_eq!(bytes(&member.read[2]), (None, None));
    for record in &member.read {
        let found: Vec<(&str, Option<&[u8]>)> =
            record.headers.iter().map(|header| (&*header.name, header.value.as_deref())).collect();
        assert_eq!(found, headers);
        assert_eq!(record.leader_epoch, Some(0));
        assert!(record.timestamp.millis().is_some_and(|millis| millis > 1_600_000_000_000));
    }
    member.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_larger_than_a_fetch_and_than_the_queue_arrives() {
    let place = Place::with(1, &[("max.message.bytes", "33554432")], &[]).await;
    let zero = place.partition(0);
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", &place.kafka.bootstrap)
        .set("message.max.bytes", "33554432")
        .create()
        .expect("a producer");
    let large = vec![b'x'; QUEUE + 4 * 1024 * 1024];
    place.send(0, 0..3).await;
    let record = FutureRecord::<(), [u8]>::to(&place.topic).partition(0).payload(&large);
    producer.send(record, PATIENCE).await.expect("delivered");
    place.send(0, 0..3).await;
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::ZERO);
    member.read_to(&zero, 7).await;
    assert_eq!(member.offsets(0), (0..7).collect::<Vec<_>>());
    assert_eq!(member.read[3].value.as_ref().map(bytes_len), Some(large.len()));
    member.close().await;
}

fn bytes_len(bytes: impl AsRef<[u8]>) -> usize {
    bytes.as_ref().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_kept_by_the_group_and_refused_to_one_that_is_no_member() {
    let place = Place::with(1, &[], &[("group.instance.id", "the same")]).await;
    let zero = place.partition(0);
    let mut first = place.join().await;
    first.assigned().await;
    let position = [(zero.clone(), NextOffset::new(3))];
    first.source.control.commit(&position, PATIENCE).await.expect("a member");
    assert_eq!(place.kafka.committed(&place.group, &place.topic, 1), BTreeMap::from([(0, 3)]));
    // Another process takes the member's place.
    let mut second = place.join().await;
    second.assigned().await;
    let refused = first.source.control.commit(&[(zero, NextOffset::new(1))], PATIENCE).await;
    assert!(matches!(refused, Err(SourceError::NotAMember { .. })), "{refused:?}");
    assert_eq!(place.kafka.committed(&place.group, &place.topic, 1), BTreeMap::from([(0, 3)]));
    loop {
        match first.event().await {
            SourceEvent::Fatal(_) => break,
            SourceEvent::Revoked { .. } => {}
            other => panic!("neither fatal nor a revocation: {other:?}"),
        }
    }
    first.close().await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_closes_or_is_dropped_leaves_its_place_at_once() {
    // Far beyond the patience of a test: who waits for a session to expire fails.
    let session = [("session.timeout.ms", "120000")];
    let place = Place::with(1, &[], &session).await;
    let mut first = place.join().await;
    first.assigned().await;
    first.close().await;
    let mut second = place.join().await;
    second.assigned().await;
    drop(second);
    let mut third = place.join().await;
    third.assigned().await;
    third.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_that_nobody_drains_ends_in_time() {
    let place = Place::new(2).await;
    let cluster = cluster(&place.kafka.bootstrap, &[]);
    let topics = std::slice::from_ref(&place.topic);
    let mut first = Member::new(cluster.subscribe(&place.group, topics).await.expect("subscribes"));
    assert_eq!(first.assigned().await.len(), 2);
    let mut second = place.join().await;
    let SourceEvent::Revoked { done, .. } = first.event().await else { panic!("a revocation") };
    assert_eq!(second.assigned().await.len(), 1);
    assert!(done.is_over());
    second.close().await;
    first.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_made_anew_under_a_running_source_is_given_anew_or_is_a_fault() {
    let place = Place::with(1, &[], &[("topic.metadata.refresh.interval.ms", "500")]).await;
    let zero = place.partition(0);
    place.send(0, 0..10).await;
    let mut member = place.join().await;
    member.assigned().await;
    member.begin(&zero, NextOffset::ZERO);
    member.read_to(&zero, 10).await;
    place.kafka.delete_topic(&place.topic).await;
    let mut is_told = false;
    let mut has_been_made = false;
    while !is_told {
        match member.event().await {
            SourceEvent::Revoked { .. } | SourceEvent::Trouble(_) => {}
            // The pipeline compares the topic's id before it begins.
            SourceEvent::Assigned { partitions } => is_told = partitions.contains(&zero),
            SourceEvent::LogFault { .. } => is_told = true,
            other => panic!("unexpected: {other:?}"),
        }
        if !std::mem::replace(&mut has_been_made, true) {
            place.kafka.create_topic(&place.topic, 1, &[]).await;
            place.send(0, 0..20).await;
        }
    }
    assert_eq!(member.offsets(0), (0..10).collect::<Vec<_>>(), "nothing of the new log by the old position");
    member.close().await;
}
