//! Which librdkafka properties pass through, and which would break a promise.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;

use super::yaml::{Mistake, Place};

/// The broker's default session timeout, which `group.protocol: consumer` always has, and librdkafka's for the other.
const SESSION_TIMEOUT_MS: i64 = 45_000;
/// librdkafka's default of `max.poll.interval.ms`.
const MAX_POLL_INTERVAL_MS: i64 = 300_000;
/// librdkafka's default of `heartbeat.interval.ms`.
const HEARTBEAT_INTERVAL_MS: i64 = 3_000;
/// librdkafka's default of `fetch.max.bytes`.
const FETCH_MAX_BYTES: i64 = 52_428_800;
/// librdkafka's default of `receive.message.max.bytes`.
const RECEIVE_MAX_BYTES: i64 = 100_000_000;
/// What a response needs beside the records, as librdkafka counts.
const RESPONSE_OVERHEAD: i64 = 512;

/// One property as the file has it.
pub(super) struct Property {
    /// Its name in librdkafka.
    pub(super) name: String,
    /// Where the name stands.
    pub(super) place: Place,
    /// Its value, with variables and files put in.
    pub(super) value: String,
}

/// The properties of all three sections.
#[derive(Default)]
pub(super) struct Properties {
    pub(super) every: Vec<Property>,
    pub(super) consumer: Vec<Property>,
    pub(super) producer: Vec<Property>,
}

/// Properties that nobody sets, whatever the value: name, why, and what to do instead.
const REFUSED: &[(&str, &str, &str)] = &[
    ("bootstrap.servers", "it has a key of its own", "set `kafka.bootstrap_servers`"),
    ("metadata.broker.list", "it has a key of its own", "set `kafka.bootstrap_servers`"),
    (
        "group.id",
        "each version has its own group, `<group_prefix>.<projection>.v<version>`",
        "set `kafka.group_prefix`",
    ),
    ("group.protocol.type", "a group of another type would never be assigned partitions", "remove it"),
    ("enable.auto.commit", "offsets are committed only once their transaction is durable", "remove it"),
    ("auto.commit.enable", "offsets are committed only once their transaction is durable", "remove it"),
    (
        "auto.commit.interval.ms",
        "offsets are committed once a second, after their transaction is durable",
        "remove it",
    ),
    ("enable.auto.offset.store", "offsets are committed only once their transaction is durable", "remove it"),
    ("offset.store.method", "the store's position is the truth", "remove it"),
    ("offset.store.path", "the store's position is the truth", "remove it"),
    ("offset.store.sync.interval.ms", "the store's position is the truth", "remove it"),
    (
        "auto.offset.reset",
        "a position that the log no longer has quarantines its partition instead of skipping records",
        "say where a new version begins with `start` in the projection",
    ),
    ("enable.partition.eof", "the end of a partition is read from the broker", "remove it"),
    (
        "statistics.interval.ms",
        "lag and age are measured without it, and nobody reads the statistics",
        "remove it",
    ),
    ("queued.max.messages.kbytes", "it is part of the process's bound of memory", "set `limits.queue`"),
    ("topic.blacklist", "records of a source would silently never arrive", "remove it"),
    ("transactional.id", "dead letters are published one by one", "remove it"),
    (
        "delivery.report.only.error",
        "a dead letter counts as published when the broker has confirmed it",
        "remove it",
    ),
    ("log.queue", "the client's log would reach nobody", "remove it"),
    ("default_topic_conf", "it cannot be written as text", "set the topic's properties themselves"),
    ("opaque", "it cannot be written as text", "remove it"),
    ("interceptors", "it cannot be written as text", "remove it"),
    // Names of other clients, which people bring along.
    ("schema.registry.url", "it is no property of the Kafka client", "set `schema_registry.url`"),
    ("key.deserializer", "it belongs to the Java client", "say how keys are encoded with `key` of a source"),
    (
        "value.deserializer",
        "it belongs to the Java client",
        "say how values are encoded with `format` of a source",
    ),
    ("max.poll.records", "it belongs to the Java client", "set `limits.batch_records`"),
    ("fetch.max.wait.ms", "it belongs to the Java client", "set `fetch.wait.max.ms`"),
    ("sasl.jaas.config", "it belongs to the Java client", "set `sasl.username` and `sasl.password`"),
    ("ssl.truststore.location", "it belongs to the Java client", "set `ssl.ca.location` to a PEM file"),
    ("ssl.truststore.password", "it belongs to the Java client", "set `ssl.ca.location` to a PEM file"),
    ("ssl.truststore.type", "it belongs to the Java client", "set `ssl.ca.location` to a PEM file"),
    ("ssl.keystore.type", "it belongs to the Java client", "`ssl.keystore.location` takes PKCS#12"),
];

/// Beginnings of names that nobody sets.
const REFUSED_PREFIXES: &[(&str, &str)] = &[
    ("go.", "it belongs to the Go client"),
    ("test.mock.", "it would put mock brokers in the place of yours"),
    ("spring.", "it belongs to Spring"),
];

/// What the value of a property must be: name, allowed values, why.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    ("isolation.level", &["read_committed"], "records of aborted transactions would be applied"),
    (
        "allow.auto.create.topics",
        &["false"],
        "a topic that is missing is a mistake to be found, not a topic to be made",
    ),
    ("group.protocol", &["classic", "consumer"], "these are the protocols there are"),
    ("enable.idempotence", &["true"], "a dead letter would be published twice by a retry of the client"),
    ("acks", &["all", "-1"], "a dead letter counts as published when all replicas have it"),
    ("request.required.acks", &["all", "-1"], "a dead letter counts as published when all replicas have it"),
    ("api.version.request", &["true"], "an old protocol carries no headers and no transactions"),
];

/// Assignment strategies that a group may have; the first does not mix with the others.
const STRATEGIES: [&str; 3] = ["cooperative-sticky", "range", "roundrobin"];

/// What `group.protocol: consumer` does not take: name and why.
const NOT_WITH_CONSUMER_PROTOCOL: &[(&str, &str)] = &[
    ("session.timeout.ms", "the broker sets it: `group.consumer.session.timeout.ms`"),
    ("heartbeat.interval.ms", "the broker sets it: `group.consumer.heartbeat.interval.ms`"),
    ("partition.assignment.strategy", "the broker assigns; `group.remote.assignor` names how"),
];

/// The Kafka client library, as far as the configuration needs it: what it says of a property, without a connection.
pub trait ClientLibrary {
    /// Why the library does not take this property with this value; `None` where it does.
    fn refusal(&self, property: &str, value: &str) -> Option<Refusal>;
}

/// Why the client library does not take a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong; names the property and never quotes the value, which may be a secret.
    pub message: String,
    /// What to do about it.
    pub fix: String,
}

/// Everything that is wrong with the properties: by our rules, with each other, and by the library's own word for those
/// that our rules find nothing wrong with.
pub(super) fn all_mistakes(
    properties: &Properties,
    surrounding: &Surrounding<'_>,
    library: &dyn ClientLibrary,
) -> Vec<Mistake> {
    let mut all = mistakes(properties);
    all.extend(disagreements(properties, surrounding));
    for property in properties.every.iter().chain(&properties.consumer).chain(&properties.producer) {
        if !all.iter().any(|mistake| mistake.place == property.place)
            && let Some(Refusal { message, fix }) = library.refusal(&property.name, &property.value)
        {
            all.push(Mistake::new(&property.place, message).fix(fix));
        }
    }
    all
}

/// Everything that is wrong with the properties themselves, whatever the rest of the configuration says.
pub(super) fn mistakes(properties: &Properties) -> Vec<Mistake> {
    let all = properties.every.iter().chain(&properties.consumer).chain(&properties.producer);
    let mut mistakes: Vec<Mistake> = all.filter_map(mistake).collect();
    let consumer = properties.consumer_view();
    if consumer.get("group.protocol").is_some_and(|protocol| protocol.value == "consumer") {
        for (name, why) in NOT_WITH_CONSUMER_PROTOCOL {
            if let Some(property) = consumer.get(name) {
                mistakes.push(
                    Mistake::new(
                        &property.place,
                        format!("`{name}` goes not with `group.protocol: consumer`: {why}"),
                    )
                    .fix("remove it"),
                );
            }
        }
    } else if let Some(property) = consumer.get("group.remote.assignor") {
        let message = "`group.remote.assignor` goes only with `group.protocol: consumer`";
        mistakes
            .push(Mistake::new(&property.place, message).fix("remove it, or set `group.protocol: consumer`"));
    }
    mistakes
}

fn mistake(property: &Property) -> Option<Mistake> {
    let name = property.name.as_str();
    let refused = |why: &str, fix: &str| {
        Some(Mistake::new(&property.place, format!("`{name}` is not yours to set: {why}")).fix(fix))
    };
    if let Some((_, why, fix)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
        return refused(why, fix);
    }
    if let Some((_, why)) = REFUSED_PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        return refused(why, "remove it");
    }
    if name.ends_with("_cb") {
        return refused("it is a function and cannot be written as text", "remove it");
    }
    if let Some((_, allowed, why)) = ALLOWED.iter().find(|(restricted, ..)| *restricted == name) {
        if allowed.contains(&property.value.as_str()) {
            return None;
        }
        let message = format!("`{name}` must be {}: {why}", allowed.join(" or "));
        return Some(Mistake::new(&property.place, message).fix("change it, or remove it"));
    }
    match name {
        "partition.assignment.strategy" => strategy_mistake(property),
        "topic.metadata.refresh.interval.ms" if property.value.starts_with('-') => {
            refused("without it new partitions are never seen", "remove it")
        }
        _ => None,
    }
}

fn strategy_mistake(property: &Property) -> Option<Mistake> {
    let names: Vec<&str> = property.value.split(',').map(str::trim).collect();
    let message = if names.iter().any(|name| !STRATEGIES.contains(name)) {
        "`partition.assignment.strategy` names a strategy that is not one of cooperative-sticky, range, roundrobin"
    } else if names.len() > 1 && names.contains(&STRATEGIES[0]) {
        "`partition.assignment.strategy` mixes cooperative-sticky with eager strategies, which cannot share a group"
    } else {
        return None;
    };
    Some(Mistake::new(&property.place, message).fix("remove it: cooperative-sticky is the default"))
}

/// What the rest of the configuration says that properties must agree with.
pub(super) struct Surrounding<'a> {
    /// `store.statement_timeout` and where it stands.
    pub(super) statement_timeout: (Duration, &'a Place),
    /// `limits.max_record_bytes` and where it stands.
    pub(super) max_record_bytes: (u64, &'a Place),
}

/// What is wrong with the properties together and against the rest of the configuration.
pub(super) fn disagreements(properties: &Properties, surrounding: &Surrounding<'_>) -> Vec<Mistake> {
    let mut view = Numbers { consumer: properties.consumer_view(), mistakes: Vec::new() };
    view.check_timeouts(surrounding);
    view.check_sizes(surrounding);
    view.mistakes
}

struct Numbers<'a> {
    consumer: BTreeMap<&'a str, &'a Property>,
    mistakes: Vec<Mistake>,
}

impl<'a> Numbers<'a> {
    /// The number that the property `name` has, and where it is set; its default where it is not.
    fn number(&mut self, name: &str, default: i64) -> (i64, Option<&'a Place>) {
        let Some(property) = self.consumer.get(name) else { return (default, None) };
        if let Ok(number) = property.value.trim().parse() {
            return (number, Some(&property.place));
        }
        self.mistakes.push(Mistake::new(&property.place, format!("`{name}` must be a whole number")));
        (default, None)
    }

    fn check_timeouts(&mut self, surrounding: &Surrounding<'_>) {
        let (session, session_place) = self.number("session.timeout.ms", SESSION_TIMEOUT_MS);
        let (poll, poll_place) = self.number("max.poll.interval.ms", MAX_POLL_INTERVAL_MS);
        let (heartbeat, heartbeat_place) = self.number("heartbeat.interval.ms", HEARTBEAT_INTERVAL_MS);
        if let Some(place) = poll_place.or(session_place)
            && poll < session
        {
            let message = "`max.poll.interval.ms` must not be below `session.timeout.ms`";
            self.mistakes.push(Mistake::new(place, message).fix(format!("set it to {session} or more")));
        }
        if let Some(place) = heartbeat_place.or(session_place)
            && heartbeat >= session
        {
            let message = "`heartbeat.interval.ms` must be below `session.timeout.ms`";
            self.mistakes.push(Mistake::new(place, message).fix("set it to a third of the session timeout"));
        }
        let (statement, statement_place) = surrounding.statement_timeout;
        let shortest = session.min(poll).max(0).unsigned_abs();
        if statement.as_millis() >= u128::from(shortest) {
            let message = format!(
                "`store.statement_timeout` ({} ms) must be below the session timeout ({shortest} ms): a transaction \
                 must end before the group gives its partitions to somebody else",
                statement.as_millis()
            );
            let mistake = Mistake::new(session_place.or(poll_place).unwrap_or(statement_place), message);
            self.mistakes.push(mistake.fix(format!("set it to {}ms or less", shortest / 2)));
        }
    }

    fn check_sizes(&mut self, surrounding: &Surrounding<'_>) {
        let (receive, receive_place) = self.number("receive.message.max.bytes", RECEIVE_MAX_BYTES);
        let (fetch, fetch_place) = self.number("fetch.max.bytes", FETCH_MAX_BYTES);
        let (message_max, message_place) = self.number("message.max.bytes", 0);
        // librdkafka raises `fetch.max.bytes` to `message.max.bytes`.
        let fetch = fetch.max(message_max);
        if let Some(place) = receive_place.or(fetch_place).or(message_place)
            && receive < fetch.saturating_add(RESPONSE_OVERHEAD)
        {
            let message = format!(
                "`receive.message.max.bytes` ({receive}) must be above `fetch.max.bytes` ({fetch}) by {RESPONSE_OVERHEAD}: \
                 a full response could never be received"
            );
            let fix = format!(
                "set `receive.message.max.bytes` to {} or more",
                fetch.saturating_add(RESPONSE_OVERHEAD)
            );
            self.mistakes.push(Mistake::new(place, message).fix(fix));
        }
        let (largest, largest_place) = surrounding.max_record_bytes;
        let largest = i64::try_from(largest).unwrap_or(i64::MAX);
        if receive < largest.saturating_add(RESPONSE_OVERHEAD) {
            let message = format!(
                "`limits.max_record_bytes` ({largest}) must be below `receive.message.max.bytes` ({receive}) by \
                 {RESPONSE_OVERHEAD}: the largest record could never be received"
            );
            let mistake = Mistake::new(receive_place.unwrap_or(largest_place), message);
            self.mistakes
                .push(mistake.fix("raise `receive.message.max.bytes`, or lower `limits.max_record_bytes`"));
        }
    }
}

impl Properties {
    /// What a consumer gets, under one name each: its own properties win over those of every client.
    fn consumer_view(&self) -> BTreeMap<&str, &Property> {
        let all = self.every.iter().chain(&self.consumer);
        all.map(|property| (property.name.as_str(), property)).collect()
    }
}

/// Properties as [`super::settings::KafkaSettings`] keeps them.
pub(super) fn secret(properties: Vec<Property>) -> BTreeMap<String, SecretString> {
    properties.into_iter().map(|property| (property.name, SecretString::from(property.value))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn place(line: usize) -> Place {
        Place { file: Arc::from(Path::new("p.yaml")), line, column: 1 }
    }

    fn properties(consumer: &[(&str, &str)]) -> Properties {
        let property = |(index, (name, value)): (usize, &(&str, &str))| Property {
            name: (*name).into(),
            place: place(index + 1),
            value: (*value).into(),
        };
        Properties { consumer: consumer.iter().enumerate().map(property).collect(), ..Properties::default() }
    }

    fn messages(consumer: &[(&str, &str)]) -> Vec<String> {
        mistakes(&properties(consumer)).into_iter().map(|mistake| mistake.message).collect()
    }

    fn disagreeing(consumer: &[(&str, &str)], statement_timeout: u64, max_record_bytes: u64) -> Vec<Mistake> {
        let statement_place = place(100);
        let surrounding = Surrounding {
            statement_timeout: (Duration::from_secs(statement_timeout), &statement_place),
            max_record_bytes: (max_record_bytes, &statement_place),
        };
        disagreements(&properties(consumer), &surrounding)
    }

    #[test]
    fn ordinary_properties_pass() {
        let ordinary = [
            ("security.protocol", "SASL_SSL"),
            ("sasl.password", "secret"),
            ("client.id", "x"),
            ("isolation.level", "read_committed"),
            ("partition.assignment.strategy", "range,roundrobin"),
            ("session.timeout.ms", "30000"),
            ("fetch.queue.backoff.ms", "5"),
            ("group.instance.id", "pod-1"),
            ("enable.idempotence", "true"),
        ];
        assert_eq!(messages(&ordinary), Vec::<String>::new());
        assert_eq!(disagreeing(&ordinary, 20, 8 << 20), []);
    }

    #[test]
    fn properties_that_would_break_a_promise_are_refused_with_the_reason() {
        for (name, value, part) in [
            ("group.id", "x", "each version has its own group"),
            ("enable.auto.commit", "false", "durable"),
            ("auto.offset.reset", "latest", "quarantines"),
            ("isolation.level", "read_uncommitted", "aborted transactions"),
            ("partition.assignment.strategy", "sticky", "not one of"),
            ("partition.assignment.strategy", "cooperative-sticky,range", "mixes"),
            ("acks", "1", "all replicas"),
            ("enable.idempotence", "false", "published twice"),
            ("go.batch.consumer", "true", "Go client"),
            ("rebalance_cb", "x", "function"),
            ("group.remote.assignor", "uniform", "only with"),
            ("topic.metadata.refresh.interval.ms", "-1", "never seen"),
        ] {
            let messages = messages(&[(name, value)]);
            assert!(messages.len() == 1 && messages[0].contains(part), "{name}: {messages:?}");
        }
    }

    #[test]
    fn the_consumer_protocol_refuses_what_the_broker_decides() {
        for (name, value) in [
            ("session.timeout.ms", "30000"),
            ("heartbeat.interval.ms", "1000"),
            ("partition.assignment.strategy", "range"),
            ("group.protocol.type", "consumer"),
        ] {
            assert_eq!(messages(&[("group.protocol", "consumer"), (name, value)]).len(), 1, "{name}");
        }
        assert_eq!(
            messages(&[("group.protocol", "consumer"), ("group.remote.assignor", "uniform")]).len(),
            0
        );
    }

    #[test]
    fn no_refusal_quotes_a_value() {
        for (name, ..) in REFUSED {
            assert!(!messages(&[(name, "SECRET")]).concat().contains("SECRET"), "{name}");
        }
        for (name, ..) in ALLOWED {
            assert!(!messages(&[(name, "SECRET")]).concat().contains("SECRET"), "{name}");
        }
        assert!(!messages(&[("partition.assignment.strategy", "SECRET")]).concat().contains("SECRET"));
    }

    #[test]
    fn a_statement_must_end_before_the_session_does() {
        assert_eq!(disagreeing(&[], 44, 0), []);
        assert_eq!(disagreeing(&[], 45, 0)[0].place.line, 100);
        let short = disagreeing(&[("session.timeout.ms", "10000")], 20, 0);
        assert_eq!((short.len(), short[0].place.line), (1, 1));
        assert_eq!(short[0].fix.as_deref(), Some("set it to 5000ms or less"));
        assert_eq!(disagreeing(&[("max.poll.interval.ms", "10000")], 5, 0).len(), 1);
        assert_eq!(disagreeing(&[("session.timeout.ms", "3000")], 1, 0).len(), 1);
        let text = disagreeing(&[("session.timeout.ms", "10 s")], 20, 0);
        assert_eq!(text[0].message, "`session.timeout.ms` must be a whole number");
    }

    #[test]
    fn a_response_must_be_receivable() {
        assert_eq!(disagreeing(&[("receive.message.max.bytes", "1000000")], 20, 1_000).len(), 1);
        let both = [("fetch.max.bytes", "1000000"), ("receive.message.max.bytes", "1000512")];
        assert_eq!(disagreeing(&both, 20, 1_000), []);
        assert_eq!(disagreeing(&both, 20, 1_000_001).len(), 1);
        assert_eq!(disagreeing(&[("message.max.bytes", "200000000")], 20, 1_000).len(), 1);
        assert_eq!(disagreeing(&[], 20, 200_000_000).len(), 1);
    }
}
