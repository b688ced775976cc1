//! Which librdkafka properties pass through, and which would break a promise.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::agreement::{Surrounding, disagreements};
use super::yaml::{Mistake, Place};

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

impl Properties {
    /// What a consumer gets, under one name each: its own properties win over those of every client.
    pub(super) fn consumer_view(&self) -> BTreeMap<&str, &Property> {
        let all = self.every.iter().chain(&self.consumer);
        all.map(|property| (property.name.as_str(), property)).collect()
    }
}

/// Properties as [`super::settings::KafkaSettings`] keeps them.
pub(super) fn secret(properties: Vec<Property>) -> BTreeMap<String, SecretString> {
    properties.into_iter().map(|property| (property.name, SecretString::from(property.value))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    pub(crate) fn place(line: usize) -> Place {
        Place { file: Arc::from(Path::new("p.yaml")), line, column: 1 }
    }

    pub(crate) fn properties(consumer: &[(&str, &str)]) -> Properties {
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
}
