//! Avro behind the Confluent frame, with schemas from the real registry.

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;

use crate::support::kafka::{Kafka, Out};
use crate::support::postgres::Database;
use crate::support::process::Workplace;
use crate::support::registry::{framed, register};
use crate::support::{service, unique};

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

#[tokio::test(flavor = "multi_thread")]
async fn framed_avro_is_decoded_with_schemas_of_the_registry() {
    let kafka = Kafka::connect();
    let database = Database::create().await;
    let topic = unique("accounts").replace('_', ".");
    kafka.create_topic(&topic, 2, &[]).await;
    let id = register(&format!("{topic}-value"), SCHEMA).await;
    let place = Workplace::new();
    place.write(
        "projector.yaml",
        &format!(
            "kafka:\n  bootstrap_servers: {}\n  group_prefix: {}\nschema_registry: {{ url: '{}', unknown_id_wait: 1s }}\n\
             store:\n  url: {}\n  schema: {}\ndead_letter: {{ topic: none }}\nprojections: [accounts.yaml]\n\
             http: {{ listen: none }}\n",
            kafka.bootstrap,
            unique("p"),
            service("PROJECTOR_TEST_REGISTRY"),
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
    let send = async |key: &str, value: &[u8]| {
        let out = Out { topic: &topic, key: Some(key.as_bytes()), value: Some(value), ..Out::default() };
        kafka.send(out).await;
    };
    send("a1", &framed(id, &datum("Ana", 123_456, Some("main")))).await;
    send("a2", &framed(id, &datum("Bo", -1, None))).await;
    send("a3", &framed(id + 100_000, &datum("Cy", 1, None))).await;
    send("a4", b"{\"owner\": \"Di\"}").await;
    send("a5", &[framed(id, &datum("Ed", 5, None)), b"more".to_vec()].concat()).await;

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
