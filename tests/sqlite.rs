//! `projector run` into an SQLite file: several projections in one process, JSON and Avro with local schemas.

use std::path::Path;

use apache_avro::Schema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Row};

use crate::shop::QUICK_SESSIONS;
use crate::support::kafka::{Kafka, Out};
use crate::support::process::Workplace;
use crate::support::{eventually, unique};

const SCHEMA: &str = r#"{ "type": "record", "name": "Measured", "fields": [
  { "name": "celsius", "type": { "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2 } },
  { "name": "note", "type": ["null", "string"], "default": null } ] }"#;

fn measured(hundredths: i32) -> Vec<u8> {
    let schema = Schema::parse_str(SCHEMA).expect("valid");
    let value = Value::Record(vec![
        ("celsius".to_owned(), Value::Decimal(hundredths.to_be_bytes().to_vec().into())),
        ("note".to_owned(), Value::Union(1, Box::new(Value::String("ok".to_owned())))),
    ]);
    GenericDatumWriter::builder(&schema).build().expect("resolves").write_value_to_vec(value).expect("fits")
}

async fn rows(file: &Path, sql: &'static str) -> Option<Vec<Vec<String>>> {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    let mut connection = SqliteConnection::connect_with(&options).await.ok()?;
    let rows = sqlx::query(sql).fetch_all(&mut connection).await.ok()?;
    let text = |row: &sqlx::sqlite::SqliteRow, column| {
        row.get::<Option<String>, _>(column).unwrap_or_else(|| "∅".to_owned())
    };
    Some(rows.iter().map(|row| (0..row.len()).map(|column| text(row, column)).collect()).collect())
}

/// Two projections: what sensors measured, and how often each room was visited.
async fn place(kafka: &Kafka) -> (Workplace, String, String) {
    let (measures, visits) = (unique("measures").replace('_', "."), unique("visits").replace('_', "."));
    kafka.create_topic(&measures, 2, &[]).await;
    kafka.create_topic(&visits, 2, &[]).await;
    let place = Workplace::new();
    let config = format!(
        "kafka:\n  bootstrap_servers: {}\n  group_prefix: {}\n{QUICK_SESSIONS}store: {{ url: 'sqlite:views.sqlite', statement_timeout: 3s }}\n\
         dead_letter: {{ topic: none }}\nhttp: {{ listen: none }}\nprojections: [sensors.yaml, rooms.yaml]\n",
        kafka.bootstrap,
        unique("p")
    );
    place.write("projector.yaml", &config);
    place.write("measured.avsc", SCHEMA);
    let sensors = format!(
        "projection: sensors\nversion: 1\nsources:\n  - {{ topic: {measures}, format: avro, framing: none, \
         schemas: [measured.avsc], key: string }}\ntables:\n  sensors:\n    primary_key: [sensor]\n    columns: {{ sensor: text, \
         celsius: 'numeric(9,2)', note: text }}\nevents:\n  Measured:\n    - upsert: sensors\n      key: {{ sensor: key }}\n      \
         set: {{ celsius: value.celsius, note: value.note }}\n"
    );
    place.write("sensors.yaml", &sensors);
    let rooms = format!(
        "projection: rooms\nversion: 1\nsources:\n  - {{ topic: {visits}, format: json, type: value.type }}\ntables:\n  rooms:\n    \
         shared: true\n    primary_key: [room]\n    columns: {{ room: text, visits: bigint not null default 0 }}\nevents:\n  \
         Visited:\n    - {{ upsert: rooms, key: {{ room: value.room }}, add: {{ visits: 1 }}, when: value.duration > 5 }}\n"
    );
    place.write("rooms.yaml", &rooms);
    (place, measures, visits)
}

#[tokio::test(flavor = "multi_thread")]
async fn several_projections_fill_one_file_and_survive_kills() {
    let kafka = Kafka::connect();
    let (place, measures, visits) = place(&kafka).await;
    for (sensor, hundredths) in [("s1", 2150), ("s2", -1), ("s1", 2199)] {
        let datum = measured(hundredths);
        let out =
            Out { topic: &measures, key: Some(sensor.as_bytes()), value: Some(&datum), ..Out::default() };
        kafka.send(out).await;
    }
    let cut = &measured(5)[..2];
    kafka.send(Out { topic: &measures, key: Some(b"s3"), value: Some(cut), ..Out::default() }).await;
    let visit = |number: usize| {
        let room = number % 7;
        (format!("v{number}"), format!(r#"{{"type":"Visited","room":"r{room}","duration":{}}}"#, number % 10))
    };
    let file = place.path().join("views.sqlite");
    let progress = || async {
        let sum = rows(&file, "select cast(sum(position) as text) from projector_positions").await?;
        sum[0][0].parse::<i64>().ok()
    };
    for round in 0..3 {
        kafka.send_all(&visits, (round * 3000..(round + 1) * 3000).map(visit)).await;
        let before = progress().await.unwrap_or(0);
        let mut running = place.start(&format!("round{round}"), &["run"]);
        eventually("some progress", || async { progress().await.filter(|now| *now > before) }).await;
        running.kill();
    }
    place.run(&["run", "--until-caught-up"]).expect_code(0);

    let counted =
        rows(&file, "select room, cast(visits as text) from rooms order by room").await.expect("rows");
    let of = |room: usize| (0..9000).filter(|number| number % 7 == room && number % 10 > 5).count();
    let expected: Vec<Vec<String>> =
        (0..7).map(|room| vec![format!("r{room}"), of(room).to_string()]).collect();
    assert_eq!(counted, expected);
    let sensors =
        rows(&file, "select sensor, cast(celsius as text), note from sensors order by sensor").await;
    assert_eq!(sensors.expect("rows"), [["s1", "21.99", "ok"], ["s2", "-0.01", "ok"]]);
    let letters = rows(&file, "select cast(key as text), reason from projector_dead_letters").await;
    assert_eq!(letters.expect("rows"), [["s3", "invalid_avro"]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_is_turned_away_from_a_file() {
    let kafka = Kafka::connect();
    let (place, ..) = place(&kafka).await;
    let file = place.path().join("views.sqlite");
    let mut running = place.start("first", &["run"]);
    eventually("the file is laid out", || rows(&file, "select projection from projector_versions")).await;
    let second = place.run(&["run", "--until-caught-up"]).expect_code(4);
    assert!(second.stderr.contains("another `projector run`"), "{}", second.stderr);
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
}
