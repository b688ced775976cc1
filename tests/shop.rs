//! A projection that many tests share: orders counted and summed, JSON events of any topic.

use std::fmt::Write;

use crate::support::kafka::{Kafka, Out};
use crate::support::postgres::Database;
use crate::support::process::Workplace;
use crate::support::unique;

/// A killed member is missed soon.
pub(crate) const QUICK_SESSIONS: &str =
    "  consumer_properties: { session.timeout.ms: 6000, heartbeat.interval.ms: 500 }\n";

/// A topic, a database schema and a folder with `projector.yaml` and `orders.v1.yaml`.
pub(crate) struct Shop {
    pub(crate) kafka: Kafka,
    pub(crate) database: Database,
    pub(crate) place: Workplace,
    pub(crate) topic: String,
    pub(crate) prefix: String,
}

impl Shop {
    pub(crate) async fn open(partitions: i32) -> Self {
        Self::open_with(partitions, QUICK_SESSIONS, "on_error: dead_letter").await
    }

    /// `kafka` is added to the kafka section, `tail` to the end of the projection.
    pub(crate) async fn open_with(partitions: i32, kafka_section: &str, tail: &str) -> Self {
        let kafka = Kafka::connect();
        let database = Database::create().await;
        let topic = unique("orders").replace('_', ".");
        let prefix = unique("p");
        kafka.create_topic(&topic, partitions, &[]).await;
        kafka.create_topic(&format!("{prefix}.orders.dlq"), 1, &[]).await;
        let place = Workplace::new();
        let mut config = String::new();
        write!(
            config,
            "kafka:\n  bootstrap_servers: {}\n  group_prefix: {prefix}\n{kafka_section}\
             store:\n  url: {}\n  schema: {}\n  statement_timeout: 3s\n\
             projections: [orders.v1.yaml]\n\
             http: {{ listen: none }}\n",
            kafka.bootstrap, database.url, database.schema
        )
        .expect("a string");
        place.write("projector.yaml", &config);
        place.write("orders.v1.yaml", &projection(&topic, tail));
        Self { kafka, database, place, topic, prefix }
    }

    /// Replaces text of `projector.yaml`.
    pub(crate) fn change_config(&self, from: &str, to: &str) {
        let path = self.place.path().join("projector.yaml");
        let text = std::fs::read_to_string(&path).expect("the file");
        assert!(text.contains(from), "{from} stands in {text}");
        self.place.write("projector.yaml", &text.replace(from, to));
    }

    pub(crate) fn group(&self) -> String {
        format!("{}.orders.v1", self.prefix)
    }

    pub(crate) fn dead_letter_topic(&self) -> String {
        format!("{}.orders.dlq", self.prefix)
    }

    /// Produces one event.
    pub(crate) async fn send(&self, key: &str, value: &str) -> (i32, i64) {
        self.kafka
            .send(Out {
                topic: &self.topic,
                key: Some(key.as_bytes()),
                value: Some(value.as_bytes()),
                ..Out::default()
            })
            .await
    }

    /// Produces `count` payments of 1 to 7 cents over `customers` customers; returns what each has paid, and how often.
    pub(crate) async fn pay(
        &self,
        count: usize,
        customers: usize,
    ) -> std::collections::BTreeMap<String, (i64, i64)> {
        let mut paid = std::collections::BTreeMap::new();
        let mut records = Vec::with_capacity(count);
        for number in 0..count {
            let customer = format!("c{:05}", number * 7919 % customers);
            let cents = i64::try_from(number % 7 + 1).expect("small");
            let entry = paid.entry(customer.clone()).or_insert((0, 0));
            *entry = (entry.0 + cents, entry.1 + 1);
            records.push((customer, format!(r#"{{"kind":"Paid","cents":{cents},"note":"n{number}"}}"#)));
        }
        self.kafka.send_all(&self.topic, records).await;
        paid
    }

    /// What each customer has paid, and how often, by the view.
    pub(crate) async fn customers(&self) -> std::collections::BTreeMap<String, (i64, i64)> {
        let rows =
            self.database.rows("select customer, cents::text, payments::text from {s}.customers").await;
        rows.into_iter()
            .map(|row| {
                (row[0].clone(), (row[1].parse().expect("a number"), row[2].parse().expect("a number")))
            })
            .collect()
    }

    /// The sum of all positions; 0 before the version is registered.
    pub(crate) async fn progress(&self) -> i64 {
        let sql = "select coalesce(sum(position), 0)::text from {s}.projector_positions";
        match self.database.try_rows(sql).await {
            Ok(rows) => rows[0][0].parse().expect("a number"),
            Err(_) => 0,
        }
    }
}

fn projection(topic: &str, tail: &str) -> String {
    format!(
        r"projection: orders
version: 1
sources:
  - topic: {topic}
    format: json
    key: string
    type: value.kind
    tombstone: [{{ delete: customers, key: {{ customer: key }} }}]
tables:
  customers:
    primary_key: [customer]
    columns:
      customer: text
      cents: bigint not null default 0
      payments: bigint not null default 0
      note: varchar(20)
      limit_cents: integer
events:
  Paid:
    - upsert: customers
      key: {{ customer: key }}
      set: {{ note: value.note }}
      add: {{ cents: value.cents, payments: 1 }}
  LimitSet:
    - upsert: customers
      key: {{ customer: key }}
      set: {{ limit_cents: value.limit }}
  Left:
    - {{ delete: customers, key: {{ customer: key }} }}
{tail}
"
    )
}
