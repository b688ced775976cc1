//! The producer of the dead-letter topic.
//!
//! A published dead letter has the record's key, value and headers byte for byte, and headers of ours beside them. Ours
//! replace all that stand under their prefixes and are never appended, so that a record that comes round again carries one
//! set, and nothing of an earlier fault.

use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use secrecy::ExposeSecret;

use super::DeadLetter;
use crate::config::settings::{HeaderStyle, KafkaSettings};
use crate::source::SourceError;
use crate::source::kafka::setting_error;
use crate::source::quiet::Quiet;

/// How long one dead letter may wait for its acknowledgement.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a dead letter was not published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The topic does not exist.
    #[error("the dead-letter topic {topic} does not exist; create it")]
    MissingTopic {
        /// The topic.
        topic: String,
    },
    /// This user may not write to it.
    #[error("writing to the dead-letter topic {topic} is forbidden; grant WRITE to this user")]
    Forbidden {
        /// The topic.
        topic: String,
    },
    /// It passes, or is expected to.
    #[error("the dead-letter topic {topic} does not take records now: {detail}")]
    Unavailable {
        /// The topic.
        topic: String,
        /// The client's words.
        detail: String,
    },
}

/// A producer of dead letters; cheap to share.
pub struct Publisher {
    producer: FutureProducer<Quiet>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

impl Publisher {
    /// Makes the producer; it connects with the first dead letter.
    ///
    /// # Errors
    /// A property that the library does not take.
    pub fn connect(kafka: &KafkaSettings) -> Result<Self, SourceError> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &kafka.bootstrap_servers)
            .set("client.id", "projector-dead-letters")
            .set("queue.buffering.max.kbytes", "16384")
            .set("message.timeout.ms", SEND_TIMEOUT.as_millis().to_string())
            // The size limit of a topic is one of batches: a record goes alone, so that the limit is that of the record.
            .set("batch.num.messages", "1")
            .set("message.max.bytes", "10485760")
            .set("linger.ms", "0");
        for (name, value) in kafka.properties.iter().chain(&kafka.producer_properties) {
            config.set(name, value.expose_secret());
        }
        config.set("enable.idempotence", "true").set("acks", "all");
        let producer = config.create_with_context(Quiet).map_err(setting_error)?;
        Ok(Self { producer })
    }

    /// Sends one dead letter and waits for the acknowledgement of all replicas in sync. A record that the topic is too
    /// small for goes without its value, and if that does not help, without its key and its own headers, too; it says so.
    ///
    /// # Errors
    /// It was not acknowledged; it may have been written all the same.
    pub async fn publish(
        &self,
        topic: &str,
        letter: &DeadLetter,
        styles: &[HeaderStyle],
    ) -> Result<(), PublishError> {
        let mut sent = self.send(topic, letter, styles, Shape::Whole).await;
        for smaller in [Shape::WithoutValue, Shape::Bare] {
            match &sent {
                Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) => {
                    sent = self.send(topic, letter, styles, smaller).await;
                }
                _ => break,
            }
        }
        sent.map_err(|error| refusal(topic, &error))
    }

    async fn send(
        &self,
        topic: &str,
        letter: &DeadLetter,
        styles: &[HeaderStyle],
        shape: Shape,
    ) -> Result<(), KafkaError> {
        let headers = headers(letter, styles, shape);
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).headers(headers);
        if let (Some(key), Shape::Whole | Shape::WithoutValue) = (&letter.record.key, shape) {
            record = record.key(key);
        }
        if let (Some(payload), Shape::Whole) = (&letter.record.value, shape) {
            record = record.payload(payload);
        }
        self.producer.send(record, SEND_TIMEOUT).await.map(drop).map_err(|(error, _)| error)
    }
}

/// How much of the record is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Whole,
    WithoutValue,
    /// Neither value nor key nor headers of its own: our headers say where it stands.
    Bare,
}

/// The headers of a published dead letter: the record's own, then ours.
fn headers(letter: &DeadLetter, styles: &[HeaderStyle], shape: Shape) -> OwnedHeaders {
    let ours = our_headers(letter, styles, shape);
    let own = if shape == Shape::Bare { &[] } else { &letter.record.headers[..] };
    let mut headers = OwnedHeaders::new_with_capacity(own.len() + ours.len());
    for header in own {
        if !prefixes(styles).any(|prefix| header.name.starts_with(prefix)) {
            headers = headers.insert(Header { key: &header.name, value: header.value.as_deref() });
        }
    }
    for (name, text) in &ours {
        headers = headers.insert(Header { key: name, value: Some(text.as_bytes()) });
    }
    headers
}

/// The prefixes under which the headers of these styles stand.
fn prefixes(styles: &[HeaderStyle]) -> impl Iterator<Item = &'static str> {
    let connect = styles.contains(&HeaderStyle::Connect).then_some("__connect.errors.");
    std::iter::once("projector.").chain(connect)
}

fn our_headers(letter: &DeadLetter, styles: &[HeaderStyle], shape: Shape) -> Vec<(&'static str, String)> {
    let at = &letter.record.coordinates;
    let fault = &letter.fault;
    let mut ours = vec![
        ("projector.id", format!("{}/{at}", letter.version)),
        ("projector.projection", letter.version.projection.to_string()),
        ("projector.version", letter.version.version.to_string()),
        ("projector.topic", at.topic_partition.topic.to_string()),
        ("projector.partition", at.topic_partition.partition.to_string()),
        ("projector.offset", at.offset.to_string()),
        ("projector.stage", fault.stage.to_string()),
        ("projector.reason", fault.reason.to_string()),
        ("projector.detail", fault.detail.clone()),
    ];
    let optional = [
        ("projector.topic_id", letter.topic_id.clone()),
        ("projector.timestamp", letter.record.timestamp.millis().map(|millis| millis.to_string())),
        ("projector.column", fault.column.clone()),
        ("projector.constraint", fault.constraint.clone()),
        ("projector.sqlstate", fault.sqlstate.clone()),
        ("projector.schema_id", letter.schema_id.map(|id| id.to_string())),
        ("projector.value_omitted", (shape != Shape::Whole).then(|| "true".to_owned())),
        ("projector.key_omitted", (shape == Shape::Bare).then(|| "true".to_owned())),
    ];
    ours.extend(optional.into_iter().filter_map(|(name, text)| Some((name, text?))));
    if styles.contains(&HeaderStyle::Connect) {
        ours.extend([
            ("__connect.errors.topic", at.topic_partition.topic.to_string()),
            ("__connect.errors.partition", at.topic_partition.partition.to_string()),
            ("__connect.errors.offset", at.offset.to_string()),
            ("__connect.errors.connector.name", letter.version.to_string()),
            ("__connect.errors.stage", fault.stage.to_string()),
            ("__connect.errors.exception.message", format!("{}: {}", fault.reason, fault.detail)),
        ]);
    }
    ours
}

fn refusal(topic: &str, error: &KafkaError) -> PublishError {
    let topic = topic.to_owned();
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
            PublishError::MissingTopic { topic }
        }
        Some(RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed) => {
            PublishError::Forbidden { topic }
        }
        _ => PublishError::Unavailable { topic, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rdkafka::message::Headers;

    use super::*;
    use crate::fault::{Reason, RecordFault, Stage};
    use crate::position::RecordOffset;
    use crate::record::{Header as RecordHeader, Record, RecordCoordinates, RecordTimestamp, TopicPartition};
    use crate::store::VersionKey;

    fn letter(own: Vec<(&str, Option<&'static [u8]>)>) -> DeadLetter {
        let headers = own
            .into_iter()
            .map(|(name, value)| RecordHeader { name: name.into(), value: value.map(Bytes::from_static) })
            .collect();
        DeadLetter {
            version: VersionKey { projection: "orders".into(), version: 2 },
            topic_id: None,
            record: Record {
                coordinates: RecordCoordinates {
                    topic_partition: TopicPartition::new("shop.orders", 3),
                    offset: RecordOffset::new(41),
                },
                leader_epoch: None,
                timestamp: RecordTimestamp::Create(1000),
                key: Some(Bytes::from_static(b"k")),
                value: Some(Bytes::from_static(b"v")),
                headers,
            },
            fault: RecordFault::new(Stage::Decode, Reason::InvalidJson, "unexpected end at byte 3"),
            schema_id: Some(7),
        }
    }

    fn found(headers: &OwnedHeaders, name: &str) -> Vec<Option<String>> {
        headers
            .iter()
            .filter(|header| header.key == name)
            .map(|header| header.value.map(|value| String::from_utf8_lossy(value).into_owned()))
            .collect()
    }

    #[test]
    fn the_records_own_headers_stay_and_ours_are_replaced() {
        let own = vec![("trace", Some(&b"a"[..])), ("trace", None), ("projector.reason", Some(&b"old"[..]))];
        let headers = headers(&letter(own), &[HeaderStyle::Projector], Shape::Whole);
        assert_eq!(found(&headers, "trace"), [Some("a".to_owned()), None]);
        assert_eq!(found(&headers, "projector.reason"), [Some("invalid_json".to_owned())]);
        assert_eq!(found(&headers, "projector.id"), [Some("orders@2/shop.orders:3:41".to_owned())]);
        assert_eq!(found(&headers, "projector.schema_id"), [Some("7".to_owned())]);
        assert!(found(&headers, "__connect.errors.topic").is_empty());
        assert!(found(&headers, "projector.value_omitted").is_empty());
    }

    #[test]
    fn nothing_of_an_earlier_fault_is_left_on_a_record_that_comes_round_again() {
        let old = Some(&b"old"[..]);
        let own = || {
            let names = [
                "projector.column",
                "projector.value_omitted",
                "__connect.errors.class.name",
                "projector",
                "trace",
            ];
            letter(names.map(|name| (name, old)).into())
        };
        let left = |styles: &[HeaderStyle]| {
            let headers = headers(&own(), styles, Shape::Whole);
            let left = headers.iter().filter(|header| header.value == old);
            left.map(|header| header.key.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(left(&[HeaderStyle::Projector]), ["__connect.errors.class.name", "projector", "trace"]);
        assert_eq!(left(&[HeaderStyle::Projector, HeaderStyle::Connect]), ["projector", "trace"]);
    }

    #[test]
    fn the_connect_style_adds_its_headers() {
        let headers = headers(
            &letter(Vec::new()),
            &[HeaderStyle::Projector, HeaderStyle::Connect],
            Shape::WithoutValue,
        );
        assert_eq!(found(&headers, "__connect.errors.offset"), [Some("41".to_owned())]);
        assert_eq!(found(&headers, "projector.value_omitted"), [Some("true".to_owned())]);
    }

    #[test]
    fn a_bare_letter_has_our_headers_only() {
        let headers = headers(&letter(vec![("trace", None)]), &[HeaderStyle::Projector], Shape::Bare);
        assert!(found(&headers, "trace").is_empty());
        assert_eq!(found(&headers, "projector.key_omitted"), [Some("true".to_owned())]);
        assert_eq!(found(&headers, "projector.id"), [Some("orders@2/shop.orders:3:41".to_owned())]);
    }
}
