//! The real broker: topics, records, committed offsets.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use super::service;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A client of the real broker.
pub(crate) struct Kafka {
    pub(crate) bootstrap: String,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
}

impl Kafka {
    pub(crate) fn connect() -> Self {
        let bootstrap = service("PROJECTOR_TEST_KAFKA");
        let config = Self::config(&bootstrap);
        let admin = config.create().expect("an admin client");
        let producer = config.clone().set("linger.ms", "2").set("acks", "all").create().expect("a producer");
        Self { bootstrap, admin, producer }
    }

    fn config(bootstrap: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap);
        config
    }

    /// Makes a topic and waits until it can be used.
    pub(crate) async fn create_topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let made =
            self.admin.create_topics([&topic], &AdminOptions::new()).await.expect("the broker answers");
        assert!(made.iter().all(Result::is_ok), "topic {name}: {made:?}");
        self.has_leaders(name, usize::try_from(partitions).expect("positive")).await;
    }

    /// Gives a topic more partitions, and waits until they can be used.
    pub(crate) async fn grow_topic(&self, name: &str, partitions: i32) {
        let count = usize::try_from(partitions).expect("positive");
        let grown =
            self.admin.create_partitions([&NewPartitions::new(name, count)], &AdminOptions::new()).await;
        let grown = grown.expect("the broker answers");
        assert!(grown.iter().all(Result::is_ok), "topic {name}: {grown:?}");
        self.has_leaders(name, count).await;
    }

    async fn has_leaders(&self, topic: &str, partitions: usize) {
        super::eventually("the topic has its leaders", || async {
            let metadata = self.producer.client().fetch_metadata(Some(topic), TIMEOUT).ok()?;
            let topic = metadata.topics().first()?;
            let led = topic.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            (led == partitions).then_some(())
        })
        .await;
    }

    /// Deletes a topic and waits until nobody knows it any more.
    pub(crate) async fn delete_topic(&self, name: &str) {
        let deleted =
            self.admin.delete_topics(&[name], &AdminOptions::new()).await.expect("the broker answers");
        assert!(deleted.iter().all(Result::is_ok), "topic {name}: {deleted:?}");
        super::eventually("the topic is gone", || async {
            let metadata = self.producer.client().fetch_metadata(None, TIMEOUT).ok()?;
            metadata.topics().iter().all(|topic| topic.name() != name).then_some(())
        })
        .await;
    }

    /// Deletes the records of a partition before `offset`, as retention does.
    pub(crate) async fn delete_records(&self, topic: &str, partition: i32, offset: i64) {
        let mut before = TopicPartitionList::new();
        before.add_partition_offset(topic, partition, Offset::Offset(offset)).expect("valid");
        self.admin.delete_records(&before, &AdminOptions::new()).await.expect("the broker answers");
    }

    /// Produces one record and returns its partition and offset.
    pub(crate) async fn send(&self, record: Out<'_>) -> (i32, i64) {
        let mut headers = OwnedHeaders::new();
        for (key, value) in record.headers {
            headers = headers.insert(rdkafka::message::Header { key, value: *value });
        }
        let mut out: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(record.topic).headers(headers);
        if let Some(key) = record.key {
            out = out.key(key);
        }
        if let Some(value) = record.value {
            out = out.payload(value);
        }
        if let Some(partition) = record.partition {
            out = out.partition(partition);
        }
        let delivered =
            self.producer.send(out, TIMEOUT).await.map_err(|(error, _)| error).expect("delivered");
        (delivered.partition, delivered.offset)
    }

    /// Produces many records, in order for each key, without waiting for each.
    pub(crate) async fn send_all(&self, topic: &str, records: impl IntoIterator<Item = (String, String)>) {
        let mut waiting = Vec::new();
        for (key, value) in records {
            let producer = self.producer.clone();
            let topic = topic.to_owned();
            let queued = loop {
                let record = FutureRecord::to(&topic).key(&key).payload(&value);
                match producer.send_result(record) {
                    Ok(queued) => break queued,
                    Err((_, _)) => {
                        if let Some(first) = (!waiting.is_empty()).then(|| waiting.remove(0)) {
                            let first: rdkafka::producer::DeliveryFuture = first;
                            first.await.expect("not dropped").map_err(|(error, _)| error).expect("delivered");
                        }
                    }
                }
            };
            waiting.push(queued);
        }
        for delivery in waiting {
            delivery.await.expect("not dropped").map_err(|(error, _)| error).expect("delivered");
        }
    }

    /// What `group` has committed for the partitions of `topic`.
    pub(crate) fn committed(&self, group: &str, topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
        let consumer: BaseConsumer =
            Self::config(&self.bootstrap).set("group.id", group).create().expect("a consumer");
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition(topic, partition);
        }
        let found = consumer.committed_offsets(list, TIMEOUT).expect("the broker answers");
        found
            .elements()
            .iter()
            .filter_map(|element| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            })
            .collect()
    }

    /// Everything that stands in a topic now.
    pub(crate) fn read_all(&self, topic: &str) -> Vec<OwnedMessage> {
        let consumer: BaseConsumer = Self::config(&self.bootstrap)
            .set("group.id", super::unique("reader"))
            .set("enable.auto.commit", "false")
            .create()
            .expect("a consumer");
        let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).expect("metadata");
        let mut list = TopicPartitionList::new();
        let mut expected = 0;
        for partition in metadata.topics()[0].partitions() {
            let (low, high) = consumer.fetch_watermarks(topic, partition.id(), TIMEOUT).expect("watermarks");
            expected += high - low;
            list.add_partition_offset(topic, partition.id(), Offset::Beginning).expect("valid");
        }
        consumer.assign(&list).expect("assigned");
        let mut messages = Vec::new();
        while i64::try_from(messages.len()).expect("small") < expected {
            let message = consumer.poll(TIMEOUT).expect("a record within the time").expect("a record");
            messages.push(BorrowedMessage::detach(&message));
        }
        messages
    }
}

/// A record to produce.
#[derive(Default, Clone, Copy)]
pub(crate) struct Out<'a> {
    pub(crate) topic: &'a str,
    pub(crate) partition: Option<i32>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) headers: &'a [(&'a str, Option<&'a [u8]>)],
}

/// The text of a header of a message.
pub(crate) fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let headers = message.headers()?;
    headers
        .iter()
        .find(|header| header.key == name)
        .and_then(|header| header.value.map(|value| String::from_utf8_lossy(value).into_owned()))
}
