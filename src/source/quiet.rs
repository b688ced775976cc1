//! A client of which only the answers matter: its log and its troubles are for those who look closely.

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::KafkaError;

/// The context of clients that ask and that produce. Their calls fail with a reason, which whoever called tells once; the
/// library's own lines come many times a second while no broker answers.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, _: RDKafkaLogLevel, fac: &str, text: &str) {
        tracing::debug!(target: "librdkafka", fac, "{text}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, reason, "the kafka client reports an error");
    }
}

impl ConsumerContext for Quiet {}
