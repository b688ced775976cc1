//! Avro behind the Confluent frame, with schemas from the real registry.

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;

use crate::support::kafka::{Kafka, Out};
use crate::support::postgres::Database;
use crate::support::process::Workplace;
use crate::support::registry::{GuardedRegistry, framed, register};
use crate::support::{eventually, service, unique};

const SCHEMA: &str = r#"{
  "type": "record", "name": "AccountOpened", "fields": [
    { "name": "owner", "type": "string" },
    { "name": "balance", "type": { "type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4 } },
    { "name": "opened_at", "type": { "type": "long", "logicalType": "timestamp-millis" } },
    { "name": "nickname", "type": ["null", "string"], "default": null }
  ]
}"#;

fn datum(owner: &str, unscaled: i64, nickname: Option<&str>) -> Vec<u8> {
    let schema = Schema::parse_str(SCHEMA).expect("valid");
    let nickname = match nickname {
        Some(text) => Value::Union(1, Box::new(Value::String(text.to_owned()))),
        None => Value::Union(0, Box::new(Value::Null)),
    };
    let value = Value::Record(vec![
        ("owner".to_owned(), Value::String(owner.to_owned())),
        ("balance".to_owned(), Value::Decimal(unscaled.to_be_bytes().to_vec().into())),
        ("opened_at".to_owned(), Value::TimestampMillis(1_700_000_000_123)),
        ("nickname".to_owned(), nickname),
    ]);
    let writer = GenericDatumWriter::builder(&schema).build().expect("resolves");
    writer.write_value_to_vec(value).expect("fits")
}

/// A topic of framed Avro, a schema for it, and a folder with a projection of it.
struct Accounts {
    kafka: Kafka,
    database: Database,
    place: Workplace,
    topic: String,
    schema_id: u32,
}

impl Accounts {
    /// `registry` is the section `schema_registry`, `http` that of `http`.
    async fn open(registry: &str, http: &str) -> Self {
        let kafka = Kafka::connect();
        let database = Database::create().await;
        let topic = unique("accounts").replace('_', ".");
        kafka.create_topic(&topic, 2, &[]).await;
        let schema_id = register(&format!("{topic}-value"), SCHEMA).await;
        let place = Workplace::new();
        place.write(
            "projector.yaml",
            &format!(
                "kafka:\n  bootstrap_servers: {}\n  group_prefix: {}\nschema_registry: {registry}\n\
                 store:\n  url: {}\n  schema: {}\ndead_letter: {{ topic: none }}\nprojections: [accounts.yaml]\n\
                 http: {http}\n",
                kafka.bootstrap,
                unique("p"),
                database.url,
                database.schema
            ),
        );
        place.write(
            "accounts.yaml",
            &format!(
                "projection: accounts\nversion: 1\nsources:\n  - {{ topic: {topic}, format: avro, framing: confluent, key: string }}\n\
                 tables:\n  accounts:\n    primary_key: [account]\n    columns:\n      account: text\n      owner: text\n      \
                 balance: numeric(20,4)\n      opened_at: timestamptz\n      nickname: text\nevents:\n  AccountOpened:\n    \
                 - upsert: accounts\n      key: {{ account: key }}\n      set: {{ owner: value.owner, balance: value.balance, \
                 opened_at: value.opened_at, nickname: value.nickname }}\n"
            ),
        );
        Self { kafka, database, place, topic, schema_id }
    }

    async fn send(&self, key: &str, value: &[u8]) {
        let out = Out { topic: &self.topic, key: Some(key.as_bytes()), value: Some(value), ..Out::default() };
        self.kafka.send(out).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn framed_avro_is_decoded_with_schemas_of_the_registry() {
    let registry = format!("{{ url: '{}', unknown_id_wait: 1s }}", service("PROJECTOR_TEST_REGISTRY"));
    let accounts = Accounts::open(&registry, "{ listen: none }").await;
    let id = accounts.schema_id;
    accounts.send("a1", &framed(id, &datum("Ana", 123_456, Some("main")))).await;
    accounts.send("a2", &framed(id, &datum("Bo", -1, None))).await;
    accounts.send("a3", &framed(id + 100_000, &datum("Cy", 1, None))).await;
    accounts.send("a4", b"{\"owner\": \"Di\"}").await;
    accounts.send("a5", &[framed(id, &datum("Ed", 5, None)), b"more".to_vec()].concat()).await;
    let Accounts { place, database, .. } = accounts;

    place.run(&["run", "--until-caught-up"]).expect_code(0);

    let rows = database
        .rows("select account, owner, balance::text, extract(epoch from opened_at)::text, nickname from {s}.accounts order by 1")
        .await;
    assert_eq!(
        rows,
        [
            ["a1", "Ana", "12.3456", "1700000000.123000", "main"],
            ["a2", "Bo", "-0.0001", "1700000000.123000", "∅"],
        ]
    );
    let letters = database
        .rows("select convert_from(key, 'UTF8'), reason, schema_id::text from {s}.projector_dead_letters order by 1")
        .await;
    let unknown = (id + 100_000).to_string();
    assert_eq!(
        letters,
        [
            ["a3", "schema_not_found", unknown.as_str()],
            ["a4", "bad_framing", "∅"],
            ["a5", "trailing_bytes", id.to_string().as_str()],
        ]
    );
    database.drop().await;
}

/// `Basic` and Base64 of `reader:pass wörd`, and of `reader:before`.
const RIGHT: &str = "Basic cmVhZGVyOnBhc3Mgd8O2cmQ=";
const BEFORE: &str = "Basic cmVhZGVyOmJlZm9yZQ==";

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_refuses_the_password_blocks_and_makes_no_dead_letter() {
    let registry = GuardedRegistry::open(BEFORE).await;
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound").port();
    let section = format!("{{ url: '{}', username: reader, password: 'pass wörd' }}", registry.url);
    let accounts = Accounts::open(&section, &format!("{{ listen: '127.0.0.1:{port}' }}")).await;
    accounts.send("a1", &framed(accounts.schema_id, &datum("Ana", 10_000, None))).await;
    let mut running = accounts.place.start("run", &["run"]);
    let database = &accounts.database;
    let blocked = "select blocked from {s}.projector_observations where blocked is not null";
    let why = eventually("the partition is blocked", || async {
        Some(database.try_rows(blocked).await.ok()?.first()?[0].clone())
    })
    .await;
    assert!(why.contains("401") && why.contains("schema_registry.username"), "{why}");
    // It is asked again and again, as for an operator's fault.
    eventually("asked again", || async { (registry.refused() > 2).then_some(()) }).await;
    let metrics = reqwest::get(format!("http://127.0.0.1:{port}/metrics")).await.expect("served");
    let metrics = metrics.text().await.expect("text");
    let retries = r#"projector_retries_total{projection="accounts",projection_version="1",class="operator",what="registry"}"#;
    assert!(metrics.contains(retries), "{metrics}");
    let untouched = "select (select count(*) from {s}.projector_dead_letters)::text, \
                     (select sum(position) from {s}.projector_positions)::text";
    assert_eq!(database.rows(untouched).await, [["0", "0"]]);
    let status = accounts.place.run(&["status", "-v"]).expect_code(0);
    // The password becomes right: nobody has to start anything anew.
    registry.demand(RIGHT);
    eventually("it is applied", || async {
        let rows = database.try_rows("select account, owner, balance::text from {s}.accounts").await.ok()?;
        (rows == [["a1", "Ana", "1.0000"]]).then_some(())
    })
    .await;
    assert_eq!(database.one("select count(*)::text from {s}.projector_dead_letters").await, "0");
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    let checked = accounts.place.run(&["check", "--connect"]).expect_code(0);
    let told =
        [running.log(), why, metrics, status.stdout, status.stderr, checked.stdout, checked.stderr].concat();
    for secret in ["pass w", RIGHT.trim_start_matches("Basic "), BEFORE.trim_start_matches("Basic ")] {
        assert!(!told.contains(secret), "{told}");
    }
    accounts.database.drop().await;
}
