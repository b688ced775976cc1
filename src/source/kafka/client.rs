//! Settings of a consumer client: our defaults, what the user says, and what must hold.

use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use secrecy::ExposeSecret;

use crate::config::settings::{KafkaSettings, LimitSettings};

/// How long one request to a broker may take.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a client without a group: for questions about topics.
pub(super) fn plain(kafka: &KafkaSettings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &kafka.bootstrap_servers).set("client.id", "projector");
    config.set("topic.metadata.refresh.interval.ms", "30000");
    config.set("isolation.level", "read_committed");
    for (name, value) in &kafka.properties {
        config.set(name, value.expose_secret());
    }
    config
}

/// Settings of the consumer of a version.
pub(super) fn consumer(kafka: &KafkaSettings, limits: &LimitSettings, group: &str) -> ClientConfig {
    let mut config = plain(kafka);
    let is_new_protocol = ["group.protocol"].iter().any(|name| {
        let of = |properties: &std::collections::BTreeMap<String, secrecy::SecretString>| {
            properties.get(*name).is_some_and(|value| value.expose_secret() == "consumer")
        };
        of(&kafka.consumer_properties) || of(&kafka.properties)
    });
    if !is_new_protocol {
        // The new protocol leaves these to the broker, and the client refuses them.
        config.set("partition.assignment.strategy", "cooperative-sticky");
    }
    let queue_kbytes = (limits.queue / 1024).max(1024);
    // A fetch larger than the queue would stall; a record larger than a fetch still arrives, alone.
    let fetch_bytes = (limits.queue / 4).clamp(64 * 1024, 1024 * 1024);
    config
        .set("queued.max.messages.kbytes", queue_kbytes.to_string())
        .set("queued.min.messages", "20000")
        .set("fetch.message.max.bytes", fetch_bytes.to_string())
        // The default of a second makes a consumer that is slower than the broker starve in bursts.
        .set("fetch.queue.backoff.ms", "10")
        .set("fetch.wait.max.ms", "100")
        .set("topic.metadata.refresh.interval.ms", "30000")
        .set("statistics.interval.ms", "1000");
    for (name, value) in kafka.properties.iter().chain(&kafka.consumer_properties) {
        config.set(name, value.expose_secret());
    }
    // The library says that a topic was made anew in its log only: see `context`.
    let debug = match config.get("debug") {
        Some(contexts) if !contexts.is_empty() => format!("{contexts},topic"),
        _ => "topic".to_owned(),
    };
    config.set("debug", debug).set_log_level(RDKafkaLogLevel::Debug);
    // Last, so that nothing overrides what the promises rest on.
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_committed")
        // With these events the library takes the offset behind the end for consumed: it would go on one too far.
        .set("enable.partition.eof", "false");
    config
}
