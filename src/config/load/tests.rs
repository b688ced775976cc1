use std::collections::BTreeMap;

use secrecy::ExposeSecret;

use super::super::properties::Refusal;
use super::super::settings::DdlMode;
use super::super::substitute::tests::Given;
use super::*;

const SMALLEST: &str =
    "kafka: {bootstrap_servers: k:9092, group_prefix: shop}\nstore: {url: postgres://h/db}\n";

/// A client library that takes every property but those whose name ends in `typo`.
struct Library;

impl ClientLibrary for Library {
    fn refusal(&self, property: &str, _value: &str) -> Option<Refusal> {
        property.ends_with("typo").then(|| Refusal {
            message: format!("there is no property `{property}`"),
            fix: "correct its name".to_owned(),
        })
    }
}

fn given() -> Given {
    Given(BTreeMap::from([
        ("PASSWORD", "SECRET@:/"),
        ("TIMEOUT", "SECRET"),
        ("/etc/p/secrets/sasl", "SECRET\n"),
    ]))
}

fn read_text(text: &str) -> Result<Settings, Vec<Mistake>> {
    read(Path::new("/etc/p/projector.yaml"), text, &given(), &Library)
}

fn mistakes(text: &str) -> Vec<String> {
    let mistakes = read_text(text).expect_err("mistakes");
    for mistake in &mistakes {
        assert!(!mistake.to_string().contains("SECRET"), "{mistake}");
    }
    let name = "/etc/p/projector.yaml:";
    mistakes
        .iter()
        .map(|mistake| mistake.to_string().replace(name, "").replace("\n    fix: ", " | "))
        .collect()
}

/// Mistakes of one more line behind the smallest configuration.
fn mistakes_with(line: &str) -> Vec<String> {
    mistakes(&format!("{SMALLEST}{line}\n"))
}

#[test]
fn the_smallest_configuration_has_the_documented_defaults() {
    let settings = read_text(SMALLEST).expect("valid");
    assert_eq!(settings.kafka.group("catalogue", 2), "shop.catalogue.v2");
    assert!(settings.schema_registry.is_none() && settings.projections.is_empty());
    let store = &settings.store;
    assert_eq!((store.schema.as_str(), store.writers, store.ddl), ("public", 2, DdlMode::Apply));
    assert_eq!(store.statement_timeout, secs(20));
    assert_eq!(settings.dead_letter.topic_of("shop", "catalogue").as_deref(), Some("shop.catalogue.dlq"));
    assert_eq!(settings.dead_letter.headers, [HeaderStyle::Projector]);
    assert_eq!(settings.dead_letter.max_waiting, 10_000);
    assert_eq!(settings.limits.record, Limits::default());
    assert_eq!(
        (settings.limits.batch_records, settings.limits.memory, settings.limits.queue),
        (20_000, 64 * MIB, 8 * MIB)
    );
    assert_eq!(settings.http.listen.map(|listen| listen.to_string()).as_deref(), Some("127.0.0.1:4196"));
    assert_eq!(settings.shutdown_grace, secs(10));
}

#[test]
fn every_key_is_read() {
    let text = r#"
kafka:
  bootstrap_servers: [a:9092, "b:9092"]
  group_prefix: shop
  properties: { security.protocol: SASL_SSL, sasl.password: "${file:secrets/sasl}" }
  consumer_properties: { session.timeout.ms: 30000 }
  producer_properties: { linger.ms: "5" }
schema_registry: { url: "https://r:8081/base/", username: u, password: "${env:PASSWORD}", timeout: 2s, unknown_id_wait: 250ms }
store:
  url: postgres://u:${env:PASSWORD}@h/db
  admin_url: postgres://admin@h/db
  schema: sales
  writers: 4
  readers: [app-reader, bi]
  ddl: verify
  statement_timeout: 8s
dead_letter: { topic: "dead.{projection}", headers: [projector, connect], max_waiting: 5 }
limits: { max_record_bytes: 1MiB, max_depth: 8, max_items: 100, batch_records: 500, memory: 32MB, queue: 1MiB }
http: { listen: none }
shutdown_grace: 1m
"#;
    let settings = read_text(text).expect("valid");
    assert_eq!(settings.kafka.bootstrap_servers, "a:9092,b:9092");
    assert_eq!(settings.kafka.properties["sasl.password"].expose_secret(), "SECRET");
    assert_eq!(settings.kafka.consumer_properties["session.timeout.ms"].expose_secret(), "30000");
    assert_eq!(settings.kafka.producer_properties["linger.ms"].expose_secret(), "5");
    let registry = settings.schema_registry.as_ref().expect("registry");
    assert_eq!((registry.url.as_str(), registry.timeout), ("https://r:8081/base", secs(2)));
    assert_eq!(registry.unknown_id_wait, Duration::from_millis(250));
    assert_eq!(registry.basic_auth.as_ref().expect("auth").1.expose_secret(), "SECRET@:/");
    let store = &settings.store;
    assert_eq!(store.url.expose_secret(), "postgres://u:SECRET@:/@h/db");
    assert_eq!(store.readers, ["app-reader", "bi"]);
    assert_eq!((store.schema.as_str(), store.writers, store.ddl), ("sales", 4, DdlMode::Verify));
    assert_eq!(store.statement_timeout, secs(8));
    assert!(store.admin_url.is_some());
    assert_eq!(settings.dead_letter.topic.as_deref(), Some("dead.{projection}"));
    assert_eq!(settings.dead_letter.headers, [HeaderStyle::Projector, HeaderStyle::Connect]);
    assert_eq!(settings.limits.record, Limits { max_record_bytes: MIB, max_depth: 8, max_items: 100 });
    assert_eq!(settings.limits.memory, 32_000_000);
    assert_eq!((settings.http.listen, settings.shutdown_grace), (None, secs(60)));
    assert!(!format!("{settings:?}").contains("SECRET"));
}

#[test]
fn all_mistakes_come_at_once_in_the_order_of_the_file() {
    let text = "kafka:\n  group_prefix: a b\n  propertys: {}\nstore:\n  url: mysql://u:SECRET@h/db\n  writers: 0\nlimit: {}\n";
    assert_eq!(
        mistakes(text),
        [
            "2:3: `kafka.bootstrap_servers` is missing | write `bootstrap_servers: kafka-1:9092,kafka-2:9092`",
            "2:17: `kafka.group_prefix` may have letters, digits, `.`, `_` and `-` only, at most 100 | it begins the \
             names of groups and dead-letter topics",
            "3:3: unknown key `propertys` in `kafka` | did you mean `properties`?",
            "5:8: `store.url`: `mysql` is not a store that projector writes | write \
             `postgres://user:password@host:5432/database` or `sqlite:PATH`",
            "6:12: `store.writers` must be from 1 to 64",
            "7:1: unknown key `limit` in the configuration | did you mean `limits`?",
        ]
    );
}

#[test]
fn what_is_required_is_asked_for_with_an_example() {
    let missing = mistakes("http: {listen: none}\n");
    for key in ["kafka.bootstrap_servers", "kafka.group_prefix", "store.url"] {
        assert!(
            missing.iter().any(|mistake| mistake.contains(&format!("`{key}` is missing | write"))),
            "{missing:?}"
        );
    }
    let empty = mistakes("kafka: {bootstrap_servers: ',', group_prefix: ''}\nstore: {url: ''}\n");
    assert_eq!(empty.len(), 3, "{empty:?}");
    assert_eq!(mistakes("").len(), 1);
    assert_eq!(mistakes("- a\n").first().map(|first| first.contains("must be a mapping")), Some(true));
}

#[test]
fn values_of_the_wrong_form_are_mistakes_with_the_form() {
    for (line, part) in [
        ("shutdown_grace: 10", "`shutdown_grace`: `10` is not a duration | write a whole number and a unit"),
        ("shutdown_grace: 2h", "`shutdown_grace` must be from 1000 ms to 600000 ms"),
        ("shutdown_grace: ${env:TIMEOUT}", "`shutdown_grace`: `${env:TIMEOUT}` is not a duration"),
        ("shutdown_grace: ${env:NONE}", "the variable NONE is not set"),
        ("limits: {memory: lots}", "`limits.memory`: `lots` is not a size"),
        ("limits: {memory: 8MiB}", "must be at least twice"),
        ("limits: {max_record_bytes: 512MiB}", "must be at least twice"),
        ("limits: {max_depth: 1000}", "must be from 1 to 256"),
        ("limits: [1]", "`limits` must be a mapping, not a list"),
        (
            "http: {listen: 'localhost:80'}",
            "`http.listen`: `localhost:80` is not an address | write an IP address",
        ),
        ("dead_letter: {topic: 'a b'}", "is not a topic's name"),
        ("dead_letter: {topic: '{name}.dlq'}", "is not a topic's name"),
        ("dead_letter: {headers: [jms]}", "`jms` is not a style"),
        ("dead_letter: {headers: [spring]}", "the dead-letter headers `spring` are not in this release"),
        (
            "dead_letter: {breaker: {share: 5}}",
            "`breaker` in `dead_letter` is not in this release | leave it out",
        ),
        ("dead_letter: {retain: 30d}", "`retain` in `dead_letter` is not in this release | leave it out"),
        (
            "promotion: {orders: {live: 2}}",
            "`promotion` in the configuration is not in this release | leave it",
        ),
        ("dead_letter: {max_waiting: -1}", "is not a whole number"),
        ("dead_letter: {max_waiting: [1]}", "must be a text, not a list"),
        ("schema_registry: {url: 'r:8081'}", "must begin with http"),
        ("schema_registry: {url: 'http://u:SECRET@r'}", "holds credentials | put them under"),
        ("schema_registry: {url: 'http://r', username: u}", "`schema_registry.username` without `password`"),
        ("schema_registry: {}", "`schema_registry.url` is missing"),
        ("projections: [none.yaml]", "the projection file `none.yaml` is not there"),
    ] {
        let mistakes = mistakes_with(line);
        assert!(mistakes.iter().any(|mistake| mistake.contains(part)), "{line}: {mistakes:?}");
    }
}

#[test]
fn sqlite_has_one_writer_and_neither_schemas_nor_roles() {
    let with = |more: &str| {
        format!(
            "kafka: {{bootstrap_servers: k:9092, group_prefix: shop}}\nstore: {{url: 'sqlite:shop.db'{more}}}\n"
        )
    };
    let settings = read_text(&with("")).expect("valid");
    assert_eq!((settings.store.writers, settings.store.url.expose_secret()), (1, "sqlite:/etc/p/shop.db"));
    for more in [", writers: 2", ", schema: x", ", readers: [x]", ", admin_url: postgres://h/db"] {
        assert_eq!(mistakes(&with(more)).len(), 1, "{more}");
    }
}

#[test]
fn properties_are_refused_and_compared_with_the_store() {
    let with = |section: &str, property: &str| {
        format!(
            "kafka: {{bootstrap_servers: k:9092, group_prefix: shop, {section}: {{{property}}}}}\nstore: {{url: postgres://h/db}}\n"
        )
    };
    for section in ["properties", "consumer_properties", "producer_properties"] {
        let found = mistakes(&with(section, "group.id: SECRET"));
        assert!(found.len() == 1 && found[0].starts_with("1:"), "{found:?}");
    }
    for (property, part) in [
        ("session.timeout.ms: 15000", "`store.statement_timeout` (20000 ms) must be below"),
        ("session.timeout.ms: SECRET", "must be a whole number"),
        ("fetch.max.bytes: 200000000", "`receive.message.max.bytes`"),
        ("sasl.password: ~", "`kafka.properties.sasl.password` has no value"),
        ("sasl.password: [SECRET]", "must be a text"),
    ] {
        let found = mistakes(&with("properties", property));
        assert!(found.len() == 1 && found[0].contains(part), "{property}: {found:?}");
    }
    // The same of a producer concerns no consumer.
    assert!(read_text(&with("producer_properties", "session.timeout.ms: 15000")).is_ok());
}

#[test]
fn what_the_client_library_refuses_is_a_mistake_at_the_propertys_name() {
    let text = "kafka:\n  bootstrap_servers: k:9092\n  group_prefix: shop\n  properties: { a.typo: \"${env:TIMEOUT}\" }\n  \
                consumer_properties:\n    group.id.typo: x\n    group.id: x\n  producer_properties:\n    b.typo: 1\n\
                store: {url: postgres://h/db}\n";
    assert_eq!(
        mistakes(text),
        [
            "4:17: there is no property `a.typo` | correct its name",
            "6:5: there is no property `group.id.typo` | correct its name",
            "7:5: `group.id` is not yours to set: each version has its own group, \
             `<group_prefix>.<projection>.v<version>` | set `kafka.group_prefix`",
            "9:5: there is no property `b.typo` | correct its name",
        ]
    );
}

#[test]
fn the_file_is_found_in_the_documented_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, prefix: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, SMALLEST.replace("shop", prefix)).expect("written");
        file
    };
    let (named, given) = (write("a.yaml", "named"), write("b.yaml", "given"));
    let variable = named.to_str().expect("UTF-8").to_owned();
    let surroundings = Given(BTreeMap::from([(VARIABLE, &*Box::leak(variable.into_boxed_str()))]));
    let prefix = |path: Option<&Path>| {
        load_from(path, &surroundings, &Library).map(|settings| settings.kafka.group_prefix)
    };
    assert_eq!(prefix(Some(&given)).as_deref(), Ok("given"));
    assert_eq!(prefix(None).as_deref(), Ok("named"));
    let none = folder.path().join("none.yaml");
    let found = prefix(Some(&none)).expect_err("not there");
    assert!(
        found[0]
            .to_string()
            .starts_with(&format!("{}:1:1: the configuration cannot be read", none.display()))
    );
}

#[test]
fn the_nearer_file_wins_and_where_nothing_is_found_the_mistake_says_where_it_looked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, system) = (folder.path().join("here.yaml"), folder.path().join("system.yaml"));
    let found = || find(None, &Given::default(), [&here, &system]);
    let mistake = found().expect_err("no configuration").to_string();
    for place in [VARIABLE, "here.yaml", "system.yaml", "-c FILE"] {
        assert!(mistake.contains(place), "{mistake}");
    }
    std::fs::write(&system, SMALLEST).expect("written");
    assert_eq!(found(), Ok(system.clone()));
    std::fs::write(&here, SMALLEST).expect("written");
    assert_eq!(found(), Ok(here.clone()));
}

#[test]
fn projections_are_relative_to_the_file_and_stand_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.yaml"), "").expect("written");
    let file = folder.path().join("projector.yaml");
    let read_with =
        |list: &str| read(&file, &format!("{SMALLEST}projections: {list}\n"), &Given::default(), &Library);
    assert_eq!(read_with("[p.yaml]").expect("valid").projections, [folder.path().join("p.yaml")]);
    assert_eq!(read_with("p.yaml").expect("valid").projections.len(), 1);
    assert!(read_with("[p.yaml, p.yaml]").expect_err("twice")[0].message.contains("stands twice"));
}
