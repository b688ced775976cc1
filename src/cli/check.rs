//! `projector check`

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::Context;
use super::exit::{Exit, Failure, MistakeObject};
use super::output::printable;
use crate::app::{self, CheckedProjection, ServiceFinding};
use crate::config::yaml::Mistake;
use crate::count::counted;
use crate::projection::{Declaration, KeyFormat, Ownership, SchemaOrigin, Start, ValueFormat};

/// Arguments of `check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prints every mistake as FILE:LINE:COLUMN with what to write instead, and ends with 2 if there is one: in each file, and between
projections, configuration and kind of store. Warnings change nothing.

--connect looks at the store (reachable, laid out or can be, rights, what is registered), the brokers (topics, dead-letter
topics, groups), the registry, and the newest ten records of each topic: which types have a handler, and which records would
become dead letters and why. It writes nothing, joins no group, prints no payload, and ends with 1 where something is not as
needed; a sample fails where none of its records can be used.

Examples:
  projector check                              projector.yaml and all its projections
  projector check product_catalogue.v1.yaml    these files only, each by itself; needs no projector.yaml
  projector check --connect                    also the store, the brokers and the registry")]
pub(super) struct CheckArgs {
    /// Projection files; those of the configuration where none is named
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Also look at the services that the configuration names; changes nothing
    #[arg(long)]
    connect: bool,
}

/// The result of `check --json`.
#[derive(Debug, Serialize)]
struct CheckObject {
    /// Whether there is neither a mistake nor a service that is not as needed.
    ok: bool,
    mistakes: Vec<MistakeObject>,
    warnings: Vec<MistakeObject>,
    projections: Vec<ProjectionObject>,
    /// What `--connect` has looked at.
    services: Vec<ServiceFinding>,
}

/// A projection without mistakes.
#[derive(Debug, Serialize)]
struct ProjectionObject {
    projection: String,
    version: u32,
    digest: String,
    staleness_seconds: f64,
    sources: Vec<SourceObject>,
    tables: Vec<TableObject>,
    views: Vec<String>,
}

#[derive(Debug, Serialize)]
struct SourceObject {
    topic: String,
    format: &'static str,
    key: &'static str,
    start: &'static str,
}

#[derive(Debug, Serialize)]
struct TableObject {
    table: String,
    stored_as: String,
    /// `owned` or `shared`.
    rows: &'static str,
    primary_key: Vec<String>,
    columns: usize,
    indexes: usize,
}

pub(super) async fn check(context: &Context, args: &CheckArgs) -> Result<Exit, Failure> {
    let mut mistakes: Vec<Mistake> = Vec::new();
    let needs_settings = args.files.is_empty() || args.connect || context.config.is_some();
    let settings = if needs_settings {
        app::load_settings(context.config.as_deref()).map_err(|found| mistakes.extend(found)).ok()
    } else {
        None
    };
    let loaded = match &settings {
        Some(settings) if args.files.is_empty() => app::configured_projections(settings).await?,
        settings => app::load_projections(&args.files, settings.as_ref()).await?,
    };
    mistakes.extend(loaded.mistakes);
    let projections = loaded.projections;
    let services = match settings {
        Some(settings) if args.connect && mistakes.is_empty() => {
            app::check_services(&settings, &projections).await
        }
        _ => Vec::new(),
    };
    let checked: Vec<CheckedProjection> =
        projections.iter().map(|projection| CheckedProjection::of(projection)).collect();
    tell(context, &mistakes, &checked, services)
}

fn tell(
    context: &Context,
    mistakes: &[Mistake],
    checked: &[CheckedProjection],
    services: Vec<ServiceFinding>,
) -> Result<Exit, Failure> {
    let are_services_right = services.iter().all(|finding| finding.ok);
    let exit = match (mistakes.is_empty(), are_services_right) {
        (false, _) => Exit::Usage,
        (true, false) => Exit::Failed,
        (true, true) => Exit::Done,
    };
    if context.is_json() {
        let warnings = checked.iter().flat_map(|projection| &projection.warnings);
        context.output.json(&CheckObject {
            ok: exit == Exit::Done,
            mistakes: mistakes.iter().map(MistakeObject::of).collect(),
            warnings: warnings.map(MistakeObject::of).collect(),
            projections: checked.iter().map(|projection| object(&projection.declaration)).collect(),
            services,
        })?;
        return Ok(exit);
    }
    context.output.text(&text(mistakes, checked, &services))?;
    Ok(exit)
}

fn text(mistakes: &[Mistake], checked: &[CheckedProjection], services: &[ServiceFinding]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for projection in checked {
        text.push_str(&summary(&object(&projection.declaration)));
        for warning in &projection.warnings {
            let _ = writeln!(text, "  warning: {warning}");
        }
    }
    for finding in services {
        let word = if finding.ok { "ok" } else { "FAILS" };
        let _ = writeln!(text, "{}: {word}: {}", printable(&finding.what), printable(&finding.detail));
    }
    for mistake in mistakes {
        let _ = writeln!(text, "{mistake}");
    }
    let warnings: usize = checked.iter().map(|projection| projection.warnings.len()).sum();
    let failing = services.iter().filter(|finding| !finding.ok).count();
    let _ = match (mistakes.len(), failing) {
        (0, 0) => writeln!(text, "no mistakes{}", and_counted(warnings, "warning")),
        (0, failing) => {
            let verb = if failing == 1 { "is" } else { "are" };
            writeln!(text, "{failing} of {} {verb} not as needed", counted(services.len(), "finding"))
        }
        (count, _) => {
            writeln!(text, "{}{}", counted(count, "mistake"), and_counted(warnings, "warning"))
        }
    };
    text
}

fn and_counted(count: usize, noun: &str) -> String {
    if count == 0 { String::new() } else { format!(", {}", counted(count, noun)) }
}

fn summary(projection: &ProjectionObject) -> String {
    let mut text = format!("{}@{}\n", projection.projection, projection.version);
    for source in &projection.sources {
        let _ = writeln!(
            text,
            "  reads   {} ({}, key {}, from {})",
            source.topic, source.format, source.key, source.start
        );
    }
    for table in &projection.tables {
        let _ = writeln!(
            text,
            "  writes  {} ({}, {}, key {}{})",
            table.stored_as,
            table.rows,
            counted(table.columns, "column"),
            table.primary_key.join(", "),
            and_counted(table.indexes, "index")
        );
    }
    let views = if projection.views.is_empty() { "nothing".to_owned() } else { projection.views.join(", ") };
    let _ = writeln!(text, "  shows   {views}; stale after {} s", projection.staleness_seconds);
    text
}

fn object(declaration: &Declaration) -> ProjectionObject {
    ProjectionObject {
        projection: declaration.name.clone(),
        version: declaration.version,
        digest: declaration.digest.clone(),
        staleness_seconds: declaration.staleness.as_secs_f64(),
        sources: declaration
            .sources
            .iter()
            .map(|source| SourceObject {
                topic: source.topic.clone(),
                format: match &source.value {
                    ValueFormat::Json => "json",
                    ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry } => {
                        "avro, schemas from the registry"
                    }
                    ValueFormat::AvroPlain { .. } => "avro without a frame, schemas from files",
                },
                key: match source.key {
                    KeyFormat::String => "string",
                    KeyFormat::Json => "json",
                    KeyFormat::Bytes => "bytes",
                },
                start: match source.start {
                    Start::Earliest => "earliest",
                    Start::Latest => "latest",
                },
            })
            .collect(),
        tables: declaration
            .tables
            .iter()
            .map(|table| TableObject {
                table: table.name.clone(),
                stored_as: table.physical_name(declaration.version),
                rows: match table.ownership {
                    Ownership::OwnedByKey | Ownership::OwnedStored => "owned",
                    Ownership::Shared => "shared",
                },
                primary_key: table
                    .primary_key
                    .iter()
                    .filter_map(|id| table.columns.get(id.0))
                    .map(|column| column.name.clone())
                    .collect(),
                columns: table.columns.len(),
                indexes: table.indexes.len(),
            })
            .collect(),
        views: declaration.views.iter().map(|view| view.name.clone()).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::config::yaml::Place;
    use crate::projection::{
        Column, ColumnId, ColumnType, Nullability, OnError, SourceDeclaration, Table, TableId, TypeRule,
        UnknownEvents, View, ViewBody, Wanted,
    };

    pub(crate) fn declaration() -> Declaration {
        let column = |name: &str, kind| Column {
            name: name.into(),
            kind,
            nullability: Nullability::Nullable,
            default: None,
            generated: None,
        };
        Declaration {
            name: "catalogue".into(),
            version: 1,
            sources: vec![SourceDeclaration {
                topic: "shop.products".into(),
                value: ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry },
                key: KeyFormat::String,
                event_type: TypeRule::RecordNameOrTopic,
                wanted: Wanted::All,
                reads_key: true,
                start: Start::Earliest,
            }],
            tables: vec![Table {
                name: "products".into(),
                ownership: Ownership::OwnedByKey,
                primary_key: vec![ColumnId(0)],
                columns: vec![
                    column("product_id", ColumnType::Text { max_chars: None }),
                    column("price_cents", ColumnType::BigInt),
                ],
                indexes: vec![],
            }],
            views: vec![View { name: "products".into(), body: ViewBody::Table(TableId(0)) }],
            unknown_events: UnknownEvents::Ignore,
            on_error: OnError::DeadLetter,
            staleness: Duration::from_mins(2),
            text: String::new(),
            digest: "d".into(),
        }
    }

    #[test]
    fn a_projection_is_summed_up_with_its_warnings() {
        let place = Place { file: Arc::from(Path::new("catalogue.v1.yaml")), line: 9, column: 3 };
        let checked = CheckedProjection {
            declaration: Arc::new(declaration()),
            warnings: vec![Mistake::new(&place, "a unique index depends on state")],
        };
        insta::assert_snapshot!(text(&[], &[checked], &[]), @"
        catalogue@1
          reads   shop.products (avro, schemas from the registry, key string, from earliest)
          writes  products__v1 (owned, 2 columns, key product_id)
          shows   products; stale after 120 s
          warning: catalogue.v1.yaml:9:3: a unique index depends on state
        no mistakes, 1 warning
        ");
    }

    #[test]
    fn mistakes_come_last_and_are_counted() {
        let place = Place { file: Arc::from(Path::new("p.yaml")), line: 1, column: 1 };
        let mistakes = [Mistake::new(&place, "no tables").fix("declare one under `tables`")];
        insta::assert_snapshot!(text(&mistakes, &[], &[]), @"
        p.yaml:1:1: no tables
            fix: declare one under `tables`
        1 mistake
        ");
    }
}
