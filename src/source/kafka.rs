//! A source that is one Kafka consumer client.
