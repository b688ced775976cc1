//! `projector dlq`

use std::fmt::Write as _;

use bytes::Bytes;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{printable, table};
use super::registered::expect_registered;
use super::{Context, names};
use crate::config::settings::Settings;
use crate::count::counted;
use crate::fault::Reason;
use crate::record::{RecordCoordinates, RecordTimestamp, TopicPartition};
use crate::status::report::time_of_millis;
use crate::store::{DeadLetterFilter, SharedStore, StoredDeadLetter};

/// Arguments of `dlq`.
#[derive(Debug, Args)]
pub(super) struct DlqArgs {
    #[command(subcommand)]
    verb: DlqVerb,
}

#[derive(Debug, Subcommand)]
enum DlqVerb {
    /// List dead letters, oldest first; never their content
    List(ListArgs),
    /// Show dead letters of one record; their content only with --payload
    Show(ShowArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  projector dlq list
  projector dlq list product_catalogue --reason value_too_long
  projector dlq list --partition shop.products:3 --state all --limit 1000 --json")]
struct ListArgs {
    /// Of this projection, or version, only
    #[arg(value_name = "NAME[@VERSION]", value_parser = names::selection)]
    name: Option<names::Selection>,
    /// Of this partition only
    #[arg(long, value_name = "TOPIC:PARTITION", value_parser = names::partition)]
    partition: Option<TopicPartition>,
    /// With this reason only
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    /// In this state only: open, resolved, discarded, edited, parked, or all
    #[arg(long, default_value = "open", value_parser = ["open", "resolved", "discarded", "edited", "parked", "all"])]
    state: String,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Keys, values and headers may hold personal data and secrets: --payload prints them.

Examples:
  projector dlq show shop.products:3:1207
  projector dlq show shop.products:3:1207 --payload")]
struct ShowArgs {
    /// The record
    #[arg(value_name = "TOPIC:PARTITION:OFFSET", value_parser = names::coordinates)]
    record: RecordCoordinates,
    /// Of this projection, or version, only
    #[arg(long, value_name = "NAME[@VERSION]", value_parser = names::selection)]
    projection: Option<names::Selection>,
    /// Print key, value and headers: as text where they are UTF-8, else in hexadecimal
    #[arg(long)]
    payload: bool,
}

fn reason(text: &str) -> Result<String, String> {
    let known: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    if known.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(crate::config::yaml::suggestion(text, &known))
    }
}

/// The result of `dlq list --json` and `dlq show --json`.
#[derive(Debug, Serialize)]
struct DeadLettersObject {
    dead_letters: Vec<DeadLetterObject>,
    /// Whether there may be more than `--limit` let through.
    truncated: bool,
}

/// A dead letter in JSON.
#[derive(Debug, Serialize)]
struct DeadLetterObject {
    /// When it was written, RFC 3339.
    created_at: String,
    projection: String,
    version: u32,
    topic: String,
    topic_id: Option<String>,
    partition: i32,
    offset: i64,
    /// The record's own time, RFC 3339.
    timestamp: Option<String>,
    stage: &'static str,
    reason: &'static str,
    detail: String,
    /// `table.column`.
    column: Option<String>,
    constraint: Option<String>,
    sqlstate: Option<String>,
    schema_id: Option<u32>,
    /// `open`, or how it was resolved.
    state: String,
    /// When the dead-letter topic had it, RFC 3339.
    published_at: Option<String>,
    /// Null: Kafka's null.
    key_bytes: Option<usize>,
    /// Null: Kafka's null, a tombstone.
    value_bytes: Option<usize>,
    headers: usize,
    /// Only of `dlq show --payload`.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<PayloadObject>,
}

#[derive(Debug, Serialize)]
struct PayloadObject {
    key: Option<BytesObject>,
    value: Option<BytesObject>,
    headers: Vec<HeaderObject>,
}

#[derive(Debug, Serialize)]
struct HeaderObject {
    name: String,
    value: Option<BytesObject>,
}

/// Bytes as text: `{"encoding": "utf8" | "hex", "data": …}`.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct BytesObject {
    encoding: &'static str,
    data: String,
}

pub(super) async fn dlq(context: &Context, args: DlqArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let store = context.store(&settings).await?;
    let result = perform(context, args.verb, &settings, &store).await;
    store.close().await;
    result
}

async fn perform(
    context: &Context,
    verb: DlqVerb,
    settings: &Settings,
    store: &SharedStore,
) -> Result<Exit, Failure> {
    let (DlqVerb::List(ListArgs { name, .. }) | DlqVerb::Show(ShowArgs { projection: name, .. })) = &verb;
    if let Some(name) = name {
        expect_registered(store, settings, name).await?;
    }
    match verb {
        DlqVerb::List(args) => list(context, args, store).await,
        DlqVerb::Show(args) => show(context, args, store).await,
    }
}

async fn list(context: &Context, args: ListArgs, store: &SharedStore) -> Result<Exit, Failure> {
    let filter = DeadLetterFilter {
        version: args.name.as_ref().and_then(|name| name.version),
        projection: args.name.map(|name| name.projection),
        partition: args.partition,
        reason: args.reason,
        state: Some(args.state).filter(|state| state != "all"),
        limit: args.limit,
        ..DeadLetterFilter::default()
    };
    let letters = store.dead_letters(&filter).await?;
    let is_truncated = letters.len() >= usize::try_from(args.limit).unwrap_or(usize::MAX);
    if context.is_json() {
        let dead_letters = letters.iter().map(|letter| object(letter, Payload::Hidden)).collect();
        context.output.json(&DeadLettersObject { dead_letters, truncated: is_truncated })?;
        return Ok(Exit::Done);
    }
    if letters.is_empty() {
        context.output.text("no dead letters\n")?;
        return Ok(Exit::Done);
    }
    let mut text = listed(&letters);
    if is_truncated {
        let _ = writeln!(text, "the first {}; see more with --limit", args.limit);
    }
    context.output.text(&text)?;
    Ok(Exit::Done)
}

async fn show(context: &Context, args: ShowArgs, store: &SharedStore) -> Result<Exit, Failure> {
    let filter = DeadLetterFilter {
        version: args.projection.as_ref().and_then(|name| name.version),
        projection: args.projection.map(|name| name.projection),
        partition: Some(args.record.topic_partition.clone()),
        offset: Some(args.record.offset.get()),
        limit: 100,
        ..DeadLetterFilter::default()
    };
    let letters = store.dead_letters(&filter).await?;
    if letters.is_empty() {
        return Err(Failure::refused(
            format!("record {} is no dead letter", args.record),
            "`projector dlq list --state all` lists those that are",
        ));
    }
    let payload = if args.payload { Payload::Shown } else { Payload::Hidden };
    let objects: Vec<DeadLetterObject> = letters.iter().map(|letter| object(letter, payload)).collect();
    if context.is_json() {
        context.output.json(&DeadLettersObject { dead_letters: objects, truncated: false })?;
    } else {
        let text: Vec<String> = objects.iter().map(shown).collect();
        context.output.text(&text.join("\n"))?;
    }
    Ok(Exit::Done)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Payload {
    Hidden,
    Shown,
}

fn time_of_micros(micros: i64) -> String {
    time_of_millis(micros.div_euclid(1000))
}

fn object(stored: &StoredDeadLetter, payload: Payload) -> DeadLetterObject {
    let letter = &stored.letter;
    let (record, fault) = (&letter.record, &letter.fault);
    let millis = match record.timestamp {
        RecordTimestamp::Create(millis) | RecordTimestamp::LogAppend(millis) => Some(millis),
        RecordTimestamp::Absent => None,
    };
    DeadLetterObject {
        created_at: time_of_micros(stored.created_at),
        projection: letter.version.projection.to_string(),
        version: letter.version.version,
        topic: record.coordinates.topic_partition.topic.to_string(),
        topic_id: letter.topic_id.clone(),
        partition: record.coordinates.topic_partition.partition,
        offset: record.coordinates.offset.get(),
        timestamp: millis.map(time_of_millis),
        stage: fault.stage.as_str(),
        reason: fault.reason.as_str(),
        detail: fault.detail.clone(),
        column: fault.column.clone(),
        constraint: fault.constraint.clone(),
        sqlstate: fault.sqlstate.clone(),
        schema_id: letter.schema_id,
        state: stored.state.clone(),
        published_at: stored.published_at.map(time_of_micros),
        key_bytes: record.key.as_ref().map(Bytes::len),
        value_bytes: record.value.as_ref().map(Bytes::len),
        headers: record.headers.len(),
        payload: (payload == Payload::Shown).then(|| PayloadObject {
            key: record.key.as_deref().map(readable),
            value: record.value.as_deref().map(readable),
            headers: record
                .headers
                .iter()
                .map(|header| HeaderObject {
                    name: header.name.to_string(),
                    value: header.value.as_deref().map(readable),
                })
                .collect(),
        }),
    }
}

fn readable(bytes: &[u8]) -> BytesObject {
    match std::str::from_utf8(bytes) {
        Ok(text) => BytesObject { encoding: "utf8", data: text.to_owned() },
        Err(_) => BytesObject {
            encoding: "hex",
            data: bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
                // Writing to a String cannot fail.
                let _ = write!(hex, "{byte:02x}");
                hex
            }),
        },
    }
}

fn listed(letters: &[StoredDeadLetter]) -> String {
    let rows = letters.iter().map(|stored| {
        let (letter, fault) = (&stored.letter, &stored.letter.fault);
        vec![
            time_of_micros(stored.created_at),
            letter.version.to_string(),
            letter.record.coordinates.to_string(),
            fault.stage.to_string(),
            fault.reason.to_string(),
            fault.explained(),
        ]
    });
    table(&["written", "projection", "record", "stage", "reason", "detail"], &[], rows)
}

/// One dead letter, a line a fact.
fn shown(letter: &DeadLetterObject) -> String {
    let mut text = format!("{}:{}:{}\n", printable(&letter.topic), letter.partition, letter.offset);
    let mut fact = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  {name:<13} {}", printable(&value));
        }
    };
    let bytes = |count: Option<usize>| count.map_or("null".to_owned(), |count| counted(count, "byte"));
    fact("projection", Some(format!("{}@{}", letter.projection, letter.version)));
    fact("state", Some(letter.state.clone()));
    fact("stage", Some(letter.stage.to_owned()));
    fact("reason", Some(letter.reason.to_owned()));
    fact("detail", Some(letter.detail.clone()));
    fact("column", letter.column.clone());
    fact("constraint", letter.constraint.clone());
    fact("sqlstate", letter.sqlstate.clone());
    fact("schema id", letter.schema_id.map(|id| id.to_string()));
    fact("record time", letter.timestamp.clone());
    fact("written", Some(letter.created_at.clone()));
    fact("published", letter.published_at.clone());
    fact("topic id", letter.topic_id.clone());
    match &letter.payload {
        None => {
            fact("key", Some(bytes(letter.key_bytes)));
            fact("value", Some(bytes(letter.value_bytes)));
            fact("headers", Some(letter.headers.to_string()));
        }
        Some(payload) => {
            let content = |bytes: &Option<BytesObject>| match bytes {
                None => "null".to_owned(),
                Some(bytes) => format!("{} {}", bytes.encoding, bytes.data),
            };
            fact("key", Some(content(&payload.key)));
            fact("value", Some(content(&payload.value)));
            for header in &payload.headers {
                fact("header", Some(format!("{}: {}", header.name, content(&header.value))));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::DeadLetter;
    use crate::fault::{RecordFault, Stage};
    use crate::position::RecordOffset;
    use crate::record::{Header, Record};
    use crate::store::VersionKey;

    fn stored() -> StoredDeadLetter {
        StoredDeadLetter {
            letter: DeadLetter {
                version: VersionKey { projection: "catalogue".into(), version: 1 },
                topic_id: None,
                record: Record {
                    coordinates: RecordCoordinates {
                        topic_partition: TopicPartition::new("shop.products", 3),
                        offset: RecordOffset::new(1207),
                    },
                    leader_epoch: None,
                    timestamp: RecordTimestamp::Create(1_800_000_000_000),
                    key: Some(Bytes::from_static(b"secret-key")),
                    value: Some(Bytes::from_static(b"\xff\x00secret")),
                    headers: vec![Header {
                        name: "trace".into(),
                        value: Some(Bytes::from_static(b"secret-trace")),
                    }],
                },
                fault: RecordFault::new(Stage::Validate, Reason::ValueTooLong, "84 characters, 75 fit")
                    .in_column("products", "name"),
                schema_id: Some(12),
            },
            state: "open".into(),
            created_at: 1_800_000_001_000_000,
            published_at: None,
        }
    }

    #[test]
    fn a_list_names_place_and_cause_and_no_content() {
        let text = listed(&[stored()]);
        assert!(!text.contains("secret"), "{text}");
        insta::assert_snapshot!(text, @"
        WRITTEN               PROJECTION   RECORD                STAGE     REASON          DETAIL
        2027-01-15T08:00:01Z  catalogue@1  shop.products:3:1207  validate  value_too_long  products.name: 84 characters, 75 fit
        ");
    }

    #[test]
    fn content_is_hidden_unless_asked_for() {
        let hidden = object(&stored(), Payload::Hidden);
        let json = serde_json::to_string(&hidden).expect("plain");
        assert!(!json.contains("secret") && !json.contains("trace"), "{json}");
        insta::assert_snapshot!(shown(&hidden), @"
        shop.products:3:1207
          projection    catalogue@1
          state         open
          stage         validate
          reason        value_too_long
          detail        84 characters, 75 fit
          column        products.name
          schema id     12
          record time   2027-01-15T08:00:00Z
          written       2027-01-15T08:00:01Z
          key           10 bytes
          value         8 bytes
          headers       1
        ");
    }

    #[test]
    fn content_is_text_where_it_is_text_and_hexadecimal_where_not() {
        let text = shown(&object(&stored(), Payload::Shown));
        for line in [
            "key           utf8 secret-key",
            "value         hex ff00736563726574",
            "trace: utf8 secret-trace",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn an_unknown_reason_is_answered_with_the_nearest() {
        assert_eq!(reason("value_to_long"), Err("did you mean `value_too_long`?".into()));
        assert_eq!(reason("bad_framing"), Ok("bad_framing".into()));
    }
}
