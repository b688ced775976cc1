//! A broker inside the process, for the demo and fast tests.
//!
//! It keeps at most about 5 MB or 100,000 messages a partition, gives topics no ids, and is gone with the process.

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};

use crate::source::SourceError;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A running broker; ends when dropped.
pub struct EmbeddedBroker {
    cluster: MockCluster<'static, DefaultProducerContext>,
    bootstrap_servers: String,
}

impl std::fmt::Debug for EmbeddedBroker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedBroker")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .finish_non_exhaustive()
    }
}

impl EmbeddedBroker {
    /// Starts a broker with topics of so many partitions.
    ///
    /// # Errors
    /// No port, or no memory.
    pub fn start(topics: &[(&str, i32)]) -> Result<Self, SourceError> {
        let cluster = MockCluster::new(1).map_err(|error| failed("start an embedded broker", &error))?;
        for (topic, partitions) in topics {
            cluster.create_topic(topic, *partitions, 1).map_err(|error| failed("make a topic", &error))?;
        }
        let bootstrap_servers = cluster.bootstrap_servers();
        Ok(Self { cluster, bootstrap_servers })
    }

    /// Where clients connect.
    #[must_use]
    pub fn bootstrap_servers(&self) -> &str {
        &self.bootstrap_servers
    }

    /// Makes another topic.
    ///
    /// # Errors
    /// It exists.
    pub fn create_topic(&self, topic: &str, partitions: i32) -> Result<(), SourceError> {
        self.cluster.create_topic(topic, partitions, 1).map_err(|error| failed("make a topic", &error))
    }

    /// Produces records (topic, key, value) in order, partitioned by key, and waits until all are written.
    ///
    /// # Errors
    /// The broker did not take them all.
    pub fn produce<'r>(
        &self,
        records: impl Iterator<Item = (&'r str, &'r [u8], Option<&'r [u8]>)>,
    ) -> Result<(), SourceError> {
        let action = "take the sample records";
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap_servers)
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "5")
            .set("enable.idempotence", "true")
            .create()
            .map_err(|error| failed(action, &error))?;
        for (topic, key, value) in records {
            let mut record: BaseRecord<'_, [u8], [u8]> = BaseRecord::to(topic).key(key);
            if let Some(value) = value {
                record = record.payload(value);
            }
            while let Err((error, back)) = producer.send(record) {
                if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                    return Err(failed(action, &error));
                }
                record = back;
                producer.poll(Duration::from_millis(20));
            }
        }
        producer.flush(TIMEOUT).map_err(|error| failed(action, &error))
    }
}

fn failed(action: &'static str, error: &KafkaError) -> SourceError {
    SourceError::Unavailable { action, detail: error.to_string() }
}
