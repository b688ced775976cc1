//! What `check --connect` sees of a cluster: a group's offsets, and the newest records of a topic. Nobody joins anything
//! and nothing is committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer, DefaultConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers, Message, Timestamp};
use rdkafka::{Offset, TopicPartitionList};

use super::client::{self, REQUEST_TIMEOUT};
use super::{KafkaCluster, TopicIds, describe, refusal, setting_error};
use crate::config::settings::{KafkaSettings, LimitSettings};
use crate::position::{NextOffset, RecordOffset};
use crate::record::{Header, Record, RecordCoordinates, RecordTimestamp, TopicPartition};
use crate::source::SourceError;

/// How long the newest records of a topic are waited for.
const PATIENCE: Duration = Duration::from_secs(15);

impl KafkaCluster {
    /// Asks what `group` has committed for these topics, and returns of how many partitions. Whether the group may be joined
    /// cannot be seen without joining it; a group that may not even be described may not be joined either.
    ///
    /// # Errors
    /// The brokers did not answer, or forbid it.
    pub async fn committed_partitions(&self, group: &str, topics: &[String]) -> Result<usize, SourceError> {
        const ACTION: &str = "tell the group's offsets";
        let (kafka, limits, group) = (self.kafka.clone(), self.limits.clone(), group.to_owned());
        let topics = topics.to_vec();
        self.ask(ACTION, move |client| {
            let mut list = TopicPartitionList::new();
            for (topic, about) in describe(client, &topics, TopicIds::Unknown)? {
                for partition in about.partitions.keys() {
                    list.add_partition(&topic, *partition);
                }
            }
            let consumer = reader(&kafka, &limits, &group)?;
            let committed = consumer
                .committed_offsets(list, REQUEST_TIMEOUT)
                .map_err(|error| refusal(ACTION, None, &error))?;
            let elements = committed.elements();
            for element in &elements {
                element.error().map_err(|error| refusal(ACTION, Some(element.topic()), &error))?;
            }
            Ok(elements.iter().filter(|element| matches!(element.offset(), Offset::Offset(_))).count())
        })
        .await
    }

    /// The newest records of a topic, at most `most`, by time; of each partition an equal share. `group` names the client's
    /// group, which is not joined.
    ///
    /// # Errors
    /// The brokers did not give them in time, or forbid it.
    pub async fn newest_records(
        &self,
        group: &str,
        topic: &str,
        most: usize,
    ) -> Result<Vec<Record>, SourceError> {
        const ACTION: &str = "give the newest records";
        let (kafka, limits, group) = (self.kafka.clone(), self.limits.clone(), group.to_owned());
        let topic = topic.to_owned();
        self.ask(ACTION, move |client| {
            let described = describe(client, std::slice::from_ref(&topic), TopicIds::Unknown)?;
            let ends: BTreeMap<i32, (NextOffset, NextOffset)> = described
                .into_values()
                .flat_map(|about| about.partitions)
                .filter(|(_, (start, end))| start < end)
                .collect();
            if ends.is_empty() {
                return Ok(Vec::new());
            }
            let share = i64::try_from(most.div_ceil(ends.len())).unwrap_or(i64::MAX);
            let mut list = TopicPartitionList::new();
            for (partition, (start, end)) in &ends {
                let from = end.get().saturating_sub(share).max(start.get());
                list.add_partition_offset(&topic, *partition, Offset::Offset(from))
                    .map_err(|error| refusal(ACTION, Some(&topic), &error))?;
            }
            let consumer = reader(&kafka, &limits, &group)?;
            consumer.assign(&list).map_err(|error| refusal(ACTION, Some(&topic), &error))?;
            let ends = ends.into_iter().map(|(partition, (_, end))| (partition, end)).collect();
            let mut records =
                read(&consumer, &topic, ends).map_err(|error| refusal(ACTION, Some(&topic), &error))?;
            records.sort_by_key(|record| {
                let at = &record.coordinates;
                (record.timestamp.millis(), at.topic_partition.partition, at.offset)
            });
            records.drain(..records.len().saturating_sub(most));
            Ok(records)
        })
        .await
    }
}

fn reader(
    kafka: &KafkaSettings,
    limits: &LimitSettings,
    group: &str,
) -> Result<BaseConsumer<DefaultConsumerContext>, SourceError> {
    let mut config = client::consumer(kafka, limits, group);
    config.set("enable.partition.eof", "true");
    config.create().map_err(setting_error)
}

/// Reads each partition up to the end that it had.
fn read(
    consumer: &BaseConsumer<DefaultConsumerContext>,
    topic: &str,
    mut ends: BTreeMap<i32, NextOffset>,
) -> Result<Vec<Record>, KafkaError> {
    let name: Arc<str> = topic.into();
    let begun = Instant::now();
    let mut records = Vec::new();
    while !ends.is_empty() {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        match consumer.poll(left) {
            None => return Err(KafkaError::MessageConsumption(RDKafkaErrorCode::OperationTimedOut)),
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(ends.remove(&partition)),
            Some(Err(KafkaError::MessageConsumption(RDKafkaErrorCode::BrokerTransportFailure))) => {}
            Some(Err(error)) => return Err(error),
            Some(Ok(message)) => {
                let partition = message.partition();
                let Some(end) = ends.get(&partition).copied() else { continue };
                let next = RecordOffset::new(message.offset()).next();
                if next <= end {
                    records.push(record(&message, TopicPartition { topic: name.clone(), partition }));
                }
                if next >= end {
                    ends.remove(&partition);
                }
            }
        }
    }
    Ok(records)
}

fn record(message: &BorrowedMessage<'_>, topic_partition: TopicPartition) -> Record {
    let headers = message.headers().map(|headers| {
        let header = |header: rdkafka::message::Header<'_, &[u8]>| Header {
            name: header.key.into(),
            value: header.value.map(Bytes::copy_from_slice),
        };
        headers.iter().map(header).collect()
    });
    Record {
        coordinates: RecordCoordinates { topic_partition, offset: RecordOffset::new(message.offset()) },
        leader_epoch: None,
        timestamp: match message.timestamp() {
            Timestamp::CreateTime(millis) => RecordTimestamp::Create(millis),
            Timestamp::LogAppendTime(millis) => RecordTimestamp::LogAppend(millis),
            Timestamp::NotAvailable => RecordTimestamp::Absent,
        },
        key: message.key().map(Bytes::copy_from_slice),
        value: message.payload().map(Bytes::copy_from_slice),
        headers: headers.unwrap_or_default(),
    }
}
