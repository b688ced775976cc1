//! Settings of a consumer client: our defaults, what the user says, and what must hold; and what the library says of them.

use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, DefaultConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use secrecy::ExposeSecret;

use crate::config::settings::{KafkaSettings, LimitSettings};
use crate::config::{ClientLibrary, Refusal};
use crate::source::SourceError;

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

/// Makes a consumer as a version would, without a broker to connect to, and lets it go: what the library refuses only of all
/// properties together is found before anything is joined.
pub(super) fn try_consumer(kafka: &KafkaSettings, limits: &LimitSettings) -> Result<(), SourceError> {
    let mut config = consumer(kafka, limits, &kafka.group("try", 1));
    config.remove("bootstrap.servers");
    config.create::<BaseConsumer<DefaultConsumerContext>>().map(drop).map_err(setting_error)
}

/// The client library's own rules for its properties.
#[derive(Debug, Clone, Copy, Default)]
pub struct Librdkafka;

impl ClientLibrary for Librdkafka {
    fn refusal(&self, property: &str, value: &str) -> Option<Refusal> {
        let mut config = ClientConfig::new();
        config.set(property, value);
        match config.create_native_config() {
            Ok(_) => None,
            Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)) => Some(Refusal {
                message: format!("the kafka client has no property `{property}`"),
                fix: "correct its name by librdkafka's CONFIGURATION.md, or remove it".to_owned(),
            }),
            Err(KafkaError::ClientConfig(_, detail, ..)) => Some(Refusal {
                message: format!("`{property}`: {}", without_value(&detail)),
                fix: "correct the value, or remove the property".to_owned(),
            }),
            Err(_) => Some(Refusal {
                message: format!("`{property}`: name or value is no text that the kafka client takes"),
                fix: "remove the NUL character".to_owned(),
            }),
        }
    }
}

/// A client could not be made of its settings.
pub(crate) fn setting_error(error: KafkaError) -> SourceError {
    match error {
        KafkaError::ClientConfig(_, detail, property, _) => {
            SourceError::Setting { property, detail: without_value(&detail) }
        }
        other => SourceError::Setting { property: "(client)".to_owned(), detail: other.to_string() },
    }
}

/// The library's words without the value, which may be a secret (promise P10): it quotes values in two of its texts, and
/// numbers in a third.
fn without_value(detail: &str) -> String {
    if let Some((_, range)) = detail.split_once("is outside allowed range ") {
        return format!("the number must be within {}", range.trim());
    }
    if ["Invalid value \"", "Unsupported value \""].iter().any(|start| detail.starts_with(start)) {
        return "the kafka client does not take this value".to_owned();
    }
    detail.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(property: &str, value: &str) -> Option<String> {
        Librdkafka.refusal(property, value).map(|refusal| refusal.message)
    }

    #[test]
    fn the_library_knows_its_properties() {
        for (property, value) in [
            ("session.timeout.ms", "30000"),
            ("security.protocol", "SASL_SSL"),
            ("sasl.password", "any thing"),
            ("linger.ms", "0.5"),
            ("acks", "all"),
            ("enable.idempotence", "true"),
        ] {
            assert_eq!(message(property, value), None, "{property}");
        }
        assert_eq!(
            message("nosuch.prop", "abc").as_deref(),
            Some("the kafka client has no property `nosuch.prop`")
        );
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_without_being_quoted() {
        for (property, value) in [
            ("fetch.min.bytes", "-4196"),
            ("fetch.min.bytes", "SECRET"),
            ("fetch.min.bytes", ""),
            ("security.protocol", "SECRET"),
            ("compression.type", "SECRET"),
            ("debug", "broker,SECRET"),
            ("enable.idempotence", "SECRET"),
            ("linger.ms", "SECRET"),
            ("sasl.password", "SEC\0RET"),
        ] {
            let message = message(property, value).unwrap_or_else(|| panic!("{property}={value} is taken"));
            assert!(message.contains(&format!("`{property}`")), "{message}");
            assert!(!message.contains("SECRET") && !message.contains("4196"), "{message}");
        }
        assert_eq!(
            message("fetch.min.bytes", "0").as_deref(),
            Some("`fetch.min.bytes`: the number must be within 1..100000000")
        );
    }
}
