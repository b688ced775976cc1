//! A source that is one Kafka consumer client, and questions about topics.
//!
//! `client` has the settings, `context` the callbacks, `assignment` what is read, `thread` the polling thread, `idle` the ends of
//! partitions that are not read, `look` what is asked without joining, and `native` what the library's wrapper lacks.

mod assignment;
mod client;
mod context;
mod idle;
mod look;
mod native;
mod thread;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::{mpsc, oneshot};

use super::quiet::Quiet;
use super::{Cluster, KnownEnds, Source, SourceControl, SourceError, StreamId, TopicDescription, Trouble};
use crate::config::settings::{KafkaSettings, LimitSettings};
use crate::position::NextOffset;
use crate::record::TopicPartition;
use crate::telemetry::RetryClass;
pub use client::Librdkafka;
use client::REQUEST_TIMEOUT;
pub(crate) use client::setting_error;
use context::Context;
use idle::IdleEnds;
use native::{DataQueue, EventQueue};
use thread::{Command, Forwards, Poller};

/// Chunks of records that stand between the polling thread and the pipeline.
const CHUNKS: usize = 2;
/// How long a revocation waits for the pipeline.
const DRAIN: Duration = Duration::from_secs(5);

/// A Kafka cluster.
pub struct KafkaCluster {
    kafka: KafkaSettings,
    limits: LimitSettings,
    client: Arc<BaseConsumer<Quiet>>,
    topic_ids: TopicIds,
}

/// Whether the cluster can be asked for the ids of topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicIds {
    Asked,
    /// It does not know the question, and does not even say so.
    Unknown,
}

impl KafkaCluster {
    /// A client for questions; connects in the background.
    ///
    /// # Errors
    /// Properties that the library does not take, be it of this client or of the consumers that will join.
    pub fn new(kafka: &KafkaSettings, limits: &LimitSettings) -> Result<Self, SourceError> {
        client::try_consumer(kafka, limits)?;
        let client = client::plain(kafka).create_with_context(Quiet).map_err(setting_error)?;
        let topic_ids = TopicIds::Asked;
        Ok(Self { kafka: kafka.clone(), limits: limits.clone(), client: Arc::new(client), topic_ids })
    }

    /// As [`KafkaCluster::new`], for a cluster whose topics have no ids, as the embedded broker's.
    ///
    /// # Errors
    /// A property that the library does not take.
    pub fn without_topic_ids(kafka: &KafkaSettings, limits: &LimitSettings) -> Result<Self, SourceError> {
        Ok(Self { topic_ids: TopicIds::Unknown, ..Self::new(kafka, limits)? })
    }

    /// Asks on a thread of its own: the library's calls block.
    async fn ask<T: Send + 'static>(
        &self,
        action: &'static str,
        question: impl FnOnce(&BaseConsumer<Quiet>) -> Result<T, SourceError> + Send + 'static,
    ) -> Result<T, SourceError> {
        let client = self.client.clone();
        let answer = tokio::task::spawn_blocking(move || question(&client)).await;
        answer.unwrap_or_else(|error| Err(SourceError::Unavailable { action, detail: error.to_string() }))
    }
}

#[async_trait]
impl Cluster for KafkaCluster {
    async fn cluster_id(&self) -> Result<String, SourceError> {
        let action = "tell the cluster's id";
        self.ask(action, move |client| {
            // The metadata request fails with a reason; the id alone would only be absent.
            client.fetch_metadata(None, REQUEST_TIMEOUT).map_err(|error| refusal(action, None, &error))?;
            client.client().fetch_cluster_id(REQUEST_TIMEOUT).ok_or_else(|| SourceError::Unavailable {
                action,
                detail: "no broker answered in time".to_owned(),
            })
        })
        .await
    }

    async fn describe(&self, topics: &[String]) -> Result<BTreeMap<String, TopicDescription>, SourceError> {
        let topics = topics.to_vec();
        let topic_ids = self.topic_ids;
        self.ask("describe topics", move |client| describe(client, &topics, topic_ids)).await
    }

    async fn subscribe(&self, group: &str, topics: &[String]) -> Result<Source, SourceError> {
        let (event_sender, events) = mpsc::unbounded_channel();
        let (record_sender, records) = mpsc::channel(CHUNKS);
        let (command_sender, commands) = std::sync::mpsc::channel();
        let context = Context::new(event_sender, DRAIN);
        let consumer: BaseConsumer<Context> = client::consumer(&self.kafka, &self.limits, group)
            .create_with_context(context)
            .map_err(setting_error)?;
        let consumer = Arc::new(consumer);
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        consumer.subscribe(&names).map_err(|error| refusal("subscribe", None, &error))?;
        let poller = Poller {
            queue: DataQueue::new(consumer.client()),
            events: EventQueue::of(consumer.client()),
            consumer: consumer.clone(),
            commands,
            records: record_sender,
            idle: IdleEnds::new(),
            forwards: Forwards::new(),
        };
        std::thread::Builder::new().name("consume".to_owned()).spawn(move || poller.run()).map_err(
            |error| SourceError::Unavailable { action: "start a thread", detail: error.to_string() },
        )?;
        let control = Control {
            consumer: Arc::downgrade(&consumer),
            commands: command_sender,
            streams: AtomicU64::new(0),
        };
        Ok(Source { control: Arc::new(control), events, records })
    }
}

fn describe(
    client: &BaseConsumer<Quiet>,
    topics: &[String],
    topic_ids: TopicIds,
) -> Result<BTreeMap<String, TopicDescription>, SourceError> {
    let action = "describe topics";
    let mut ids = match topic_ids {
        TopicIds::Asked => native::topic_ids(client.client(), topics, REQUEST_TIMEOUT)
            .map_err(|code| refusal(action, None, &KafkaError::AdminOp(code)))?,
        TopicIds::Unknown => BTreeMap::new(),
    };
    let mut described = BTreeMap::new();
    for topic in topics {
        let metadata = client
            .fetch_metadata(Some(topic), REQUEST_TIMEOUT)
            .map_err(|error| refusal(action, Some(topic), &error))?;
        let about = metadata.topics().iter().find(|about| about.name() == topic);
        let missing = || SourceError::MissingTopic { topic: topic.clone() };
        let about = about.ok_or_else(missing)?;
        if let Some(code) = about.error() {
            return Err(refusal(action, Some(topic), &KafkaError::MetadataFetch(code.into())));
        }
        let mut partitions = BTreeMap::new();
        for partition in about.partitions() {
            let (start, end) = client
                .fetch_watermarks(topic, partition.id(), REQUEST_TIMEOUT)
                .map_err(|error| refusal(action, Some(topic), &error))?;
            partitions.insert(partition.id(), (NextOffset::new(start), NextOffset::new(end)));
        }
        if partitions.is_empty() {
            return Err(missing());
        }
        described.insert(topic.clone(), TopicDescription { topic_id: ids.remove(topic), partitions });
    }
    Ok(described)
}

/// What a failed call means. Texts name codes and brokers, never a payload or a secret.
fn refusal(action: &'static str, topic: Option<&str>, error: &KafkaError) -> SourceError {
    match (error.rdkafka_error_code(), topic) {
        (Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic), Some(topic)) => {
            SourceError::MissingTopic { topic: topic.to_owned() }
        }
        (Some(code), topic) if is_forbidden(code) => {
            let on = topic.map(|topic| format!(" (topic {topic})")).unwrap_or_default();
            SourceError::Forbidden { action, detail: format!("{error}{on}") }
        }
        _ => SourceError::Unavailable { action, detail: error.to_string() },
    }
}

const fn is_forbidden(code: RDKafkaErrorCode) -> bool {
    matches!(
        code,
        RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::Authentication
    )
}

/// A fault that the client reports and goes on to try against.
fn trouble(code: RDKafkaErrorCode, what: String) -> Trouble {
    let is_missing =
        matches!(code, RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic);
    let class =
        if is_missing || is_forbidden(code) { RetryClass::Operator } else { RetryClass::Infrastructure };
    Trouble { what, class }
}

/// Calls into one consumer client.
struct Control {
    /// The polling thread holds the client, so that it ends on that thread.
    consumer: Weak<BaseConsumer<Context>>,
    commands: std::sync::mpsc::Sender<Command>,
    streams: AtomicU64,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// The thread has ended after a close; then there is nothing to ask of it.
    fn send(&self, command: Command) {
        drop(self.commands.send(command));
    }
}

#[async_trait]
impl SourceControl for Control {
    fn begin(&self, partition: &TopicPartition, from: NextOffset, last_epoch: Option<i32>) -> StreamId {
        let stream = StreamId(self.streams.fetch_add(1, Ordering::Relaxed) + 1);
        self.send(Command::Begin { partition: partition.clone(), from, last_epoch, stream });
        stream
    }

    fn pause(&self, partition: &TopicPartition) {
        self.send(Command::Pause { partition: partition.clone() });
    }

    async fn commit(
        &self,
        positions: &[(TopicPartition, NextOffset)],
        timeout: Duration,
    ) -> Result<(), SourceError> {
        let action = "commit offsets";
        let mut list = TopicPartitionList::new();
        for (name, position) in positions {
            list.add_partition_offset(&name.topic, name.partition, Offset::Offset(position.get()))
                .map_err(|error| refusal(action, None, &error))?;
        }
        let gone = || SourceError::Unavailable { action, detail: "the client has been closed".to_owned() };
        let consumer = self.consumer.upgrade().ok_or_else(gone)?;
        // The library's call waits on a queue of its own, so it works while the polling thread is in a callback.
        let call = tokio::task::spawn_blocking(move || consumer.commit(&list, CommitMode::Sync));
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(commit_refusal(action, &error)),
            Ok(Err(error)) => Err(SourceError::Unavailable { action, detail: error.to_string() }),
            Err(_) => {
                Err(SourceError::Unavailable { action, detail: format!("no answer within {timeout:?}") })
            }
        }
    }

    fn ends(&self) -> KnownEnds {
        self.consumer.upgrade().map(|consumer| consumer.context().ends().clone()).unwrap_or_default()
    }

    async fn close(&self, deadline: Duration) {
        let (done, closed) = oneshot::channel();
        self.send(Command::Close { done });
        if tokio::time::timeout(deadline, closed).await.is_err() {
            tracing::warn!("the kafka client has not closed within {deadline:?}; it is left behind");
        }
    }
}

fn commit_refusal(action: &'static str, error: &KafkaError) -> SourceError {
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::IllegalGeneration
            | RDKafkaErrorCode::UnknownMemberId
            | RDKafkaErrorCode::FencedInstanceId
            | RDKafkaErrorCode::AssignmentLost
            | RDKafkaErrorCode::StaleMemberEpoch
            | RDKafkaErrorCode::FencedMemberEpoch,
        ) => SourceError::NotAMember { detail: error.to_string() },
        _ => refusal(action, None, error),
    }
}
