//! A projection written in Rust: the open total of each customer's orders.
//!
//! It implements the trait that YAML projections implement too, and gives the same kind of changes. Without arguments it
//! maps three events and prints what it would write. With a configuration it runs, as `projector run` would; of that file
//! everything counts but `projections`. It reads JSON such as
//! `{"type": "OrderPlaced", "customer": "c1", "total_cents": 4200}` from the topic shop.orders, which must exist.
//!
//! ```sh
//! cargo run --example rust_projection
//! cargo run --example rust_projection -- -c projector.yaml
//! ```
//!
//! `projector status`, `dlq`, `resume` and `retire` work on it by its name, since they work through the store. `check` and
//! `ddl` read projection files only.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use projector::app::{self, CatchUp, RunOutcome, RunWatcher, Totals, Until};
use projector::cli::exit::Failure;
use projector::cli::signals;
use projector::fault::{Reason, RecordFault, Stage};
use projector::position::RecordOffset;
use projector::projection::{
    Changes, Column, ColumnId, ColumnType, Datum, Declaration, Event, KeyFormat, Mapped, Nullability,
    OnError, Ownership, Projection, SourceDeclaration, Start, Table, TableId, TypeRule, UnknownEvents, Value,
    ValueFormat, View, ViewBody, Wanted, WantedFields, digest_of,
};
use projector::record::{Record, RecordCoordinates, RecordTimestamp, TopicPartition};
use projector::store::VersionKey;
use projector::telemetry::logs::{self, LogFormat, LogLevel};

const CUSTOMERS: TableId = TableId(0);

/// Stands for the mapping below: change it whenever that changes. The store then refuses to go on under the same version,
/// until `projector retire order_totals@1 --execute` has dropped what the old mapping made.
const TEXT: &str = "order_totals, mapping 1";

/// Counts orders and sums what is open, for each customer. Orders of a customer may lie in several partitions, so the
/// table is shared, and everything that is written to it is added.
struct OrderTotals {
    declaration: Declaration,
}

impl OrderTotals {
    fn new() -> Self {
        let number = |name: &str| Column {
            name: name.to_owned(),
            kind: ColumnType::BigInt,
            nullability: Nullability::NotNull,
            default: Some(Datum::Int(0)),
            generated: None,
        };
        let customer = Column {
            name: "customer".to_owned(),
            kind: ColumnType::Text { max_chars: None },
            nullability: Nullability::NotNull,
            default: None,
            generated: None,
        };
        let table = Table {
            name: "customers".to_owned(),
            ownership: Ownership::Shared,
            primary_key: vec![ColumnId(0)],
            columns: vec![customer, number("orders"), number("open_cents")],
            indexes: Vec::new(),
        };
        let mut wanted = WantedFields::default();
        for field in ["type", "customer", "total_cents"] {
            wanted.add(&[field.to_owned()]);
        }
        let source = SourceDeclaration {
            topic: "shop.orders".to_owned(),
            value: ValueFormat::Json,
            key: KeyFormat::String,
            event_type: TypeRule::ValuePath(vec!["type".to_owned()]),
            wanted: Wanted::Fields(wanted),
            reads_key: false,
            start: Start::Earliest,
        };
        let view = View { name: "customers".to_owned(), body: ViewBody::Table(CUSTOMERS) };
        let declaration = Declaration {
            name: "order_totals".to_owned(),
            version: 1,
            sources: vec![source],
            tables: vec![table],
            views: vec![view],
            unknown_events: UnknownEvents::Ignore,
            on_error: OnError::DeadLetter,
            staleness: Duration::from_mins(2),
            text: TEXT.to_owned(),
            digest: digest_of(TEXT),
        };
        Self { declaration }
    }
}

impl Projection for OrderTotals {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    fn map(&self, event: &Event<'_>, changes: &mut Changes) -> Result<Mapped, RecordFault> {
        let table = &self.declaration.tables[CUSTOMERS.0];
        let key = || field(event, "customer").map(|customer| vec![customer.clone()]);
        match event.event_type {
            Some("OrderPlaced") => {
                let Value::Int(total) = field(event, "total_cents")? else {
                    return Err(RecordFault::new(
                        Stage::Map,
                        Reason::Rejected,
                        "total_cents is no whole number",
                    ));
                };
                changes.upsert(table, CUSTOMERS, key()?).add("orders", 1).add("open_cents", *total).done();
            }
            Some("OrderPaid") => {
                let Value::Int(total) = field(event, "total_cents")? else {
                    return Err(RecordFault::new(
                        Stage::Map,
                        Reason::Rejected,
                        "total_cents is no whole number",
                    ));
                };
                changes.upsert(table, CUSTOMERS, key()?).add("open_cents", -*total).done();
            }
            _ => return Ok(Mapped::Ignored),
        }
        Ok(Mapped::Handled)
    }
}

/// A field that an event must have. The message names the field, never its value.
fn field<'a>(event: &Event<'a>, name: &str) -> Result<&'a Value, RecordFault> {
    event
        .value
        .and_then(|value| value.field(name))
        .ok_or_else(|| RecordFault::new(Stage::Map, Reason::MissingField, format!("`{name}` is absent")))
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {
            print_what_it_maps();
            ExitCode::SUCCESS
        }
        ["-c", config] => match serve(Path::new(config)).await {
            Ok(outcome) => {
                println!("{outcome:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                eprintln!("{}", failure.text());
                failure.exit().into()
            }
        },
        _ => {
            eprintln!("usage: rust_projection [-c FILE]");
            ExitCode::from(2)
        }
    }
}

/// Applies events to the store of a configuration until SIGTERM or SIGINT.
async fn serve(config: &Path) -> Result<RunOutcome, Failure> {
    let settings = app::load_settings(Some(config))?;
    if let Err(error) = logs::set_up(LogFormat::Text, LogLevel::Normal) {
        eprintln!("no log: {error}");
    }
    let stop = signals::stop_on_signals()?;
    let projections: Vec<Arc<dyn Projection>> = vec![Arc::new(OrderTotals::new())];
    Ok(app::run_projections(&settings, projections, Until::Stopped, Arc::new(Printer), stop).await?)
}

/// Says what a run does, in a line each.
struct Printer;

impl RunWatcher for Printer {
    fn started(&self, versions: &[VersionKey], listen: Option<SocketAddr>) {
        for version in versions {
            println!("serving {version}");
        }
        if let Some(address) = listen {
            println!("status at http://{address}/");
        }
    }

    fn progress(&self, _: CatchUp) {}

    fn ended(&self, totals: Totals) {
        println!("{} records, {} of them dead letters", totals.records, totals.dead_letters);
    }
}

fn print_what_it_maps() {
    let projection = OrderTotals::new();
    let order = |offset: i64, event_type: &str| {
        let record = Record {
            coordinates: RecordCoordinates {
                topic_partition: TopicPartition::new("shop.orders", 0),
                offset: RecordOffset::new(offset),
            },
            leader_epoch: None,
            timestamp: RecordTimestamp::Absent,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        let value = Value::Record(vec![
            ("customer".into(), Value::from("c1")),
            ("total_cents".into(), Value::Int(4_200)),
        ]);
        (record, event_type.to_owned(), value)
    };
    for (record, event_type, value) in
        [order(0, "OrderPlaced"), order(1, "OrderPaid"), order(2, "OrderViewed")]
    {
        let event = Event {
            source: 0,
            record: &record,
            event_type: Some(&event_type),
            key: None,
            value: Some(&value),
        };
        let mut changes = Changes::new();
        match projection.map(&event, &mut changes) {
            Ok(mapped) => {
                println!("{} {event_type}: {mapped:?}", record.coordinates);
                for change in changes.take() {
                    println!("    {change:?}");
                }
            }
            Err(fault) => println!("{} {event_type}: {fault}", record.coordinates),
        }
    }
}
