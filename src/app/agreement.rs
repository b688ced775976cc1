//! What projections must agree with: the settings that they run with, and each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::AppError;
use crate::config::settings::Settings;
use crate::config::yaml::{Mistake, Place};
use crate::decode::{Decoder, DecoderError, Limits, Schemas};
use crate::pipeline::dead_letter_topics::dead_letter_loop;
use crate::projection::spec::{Use, YamlProjection};
use crate::projection::{Projection, ValueFormat};
use crate::store::sqlite::{self, Part};

/// What is wrong with a projection beside its own file: its schemas, as the decoder reads them, and what the settings lack or
/// do not go with it, where there are settings.
///
/// # Errors
/// The look itself failed.
pub(super) async fn with_settings(
    projection: &YamlProjection,
    settings: Option<&Settings>,
) -> Result<Vec<Mistake>, AppError> {
    let mut mistakes = sources(projection, settings);
    if let Some(settings) = settings {
        mistakes.extend(no_loop(projection, settings));
        if settings.store.sqlite_path().is_some() {
            mistakes.extend(goes_with_sqlite(projection).await?);
        }
    }
    Ok(mistakes)
}

/// Makes a decoder for each source, as `run` does.
fn sources(projection: &YamlProjection, settings: Option<&Settings>) -> Vec<Mistake> {
    let limits = settings.map_or_else(Limits::default, |settings| settings.limits.record);
    let sources = projection.declaration().sources.iter().zip(&projection.places().sources);
    sources
        .filter_map(|(source, places)| match Decoder::new(source, Schemas::none(), limits).err()? {
            DecoderError::NoRegistry { topic } => {
                let settings = settings.filter(|settings| settings.schema_registry.is_none())?;
                let message = format!(
                    "source {topic} reads Avro with a schema id, and {} names no registry",
                    settings.file.display()
                );
                let fix = "set schema_registry: { url: … } there";
                Some(Mistake::new(&places.source, message).fix(fix))
            }
            DecoderError::Schema { file, why } => {
                let index = match &source.value {
                    ValueFormat::AvroPlain { schemas } => {
                        schemas.iter().position(|schema| schema.path == file)
                    }
                    _ => None,
                };
                let place = index.and_then(|index| places.schemas.get(index)).unwrap_or(&places.source);
                let message = format!("the schema {} cannot be used: {why}", file.display());
                let fix = "correct the file: Avro's JSON (.avsc); files with named types that it refers to come first";
                Some(Mistake::new(place, message).fix(fix))
            }
            error @ (DecoderError::NoSchemaFile { .. } | DecoderError::DepthTooHigh { .. }) => {
                Some(Mistake::new(&places.source, error.to_string()))
            }
        })
        .collect()
}

fn no_loop(projection: &YamlProjection, settings: &Settings) -> Option<Mistake> {
    let declaration = projection.declaration();
    let topic = settings.dead_letter.topic_of(&settings.kafka.group_prefix, &declaration.name)?;
    let found = dead_letter_loop(declaration, &topic)?;
    let place = &projection.places().sources.get(found.reader)?.topic;
    Some(Mistake::new(place, found.to_string()).fix(found.fix()))
}

/// What SQLite lacks or does not take.
async fn goes_with_sqlite(projection: &YamlProjection) -> Result<Vec<Mistake>, AppError> {
    let (declaration, places) = (projection.declaration(), projection.places());
    let failed = |source| AppError::Store { action: "look what SQLite makes of a projection", source };
    let mut mistakes = Vec::new();
    for refusal in sqlite::rehearse(declaration).await.map_err(failed)? {
        let place = match refusal.part {
            Part::Table(table) => places.tables.get(table.0).map(|table| &table.name),
            Part::Column(table, column) => {
                places.tables.get(table.0).and_then(|table| table.columns.get(column.0))
            }
            Part::Index(table, index) => {
                places.tables.get(table.0).and_then(|table| table.indexes.get(index))
            }
            Part::View(view) => places.views.get(view),
        };
        mistakes.push(Mistake::new(place.unwrap_or(&places.name), refusal.problem).fix(refusal.fix));
    }
    for used in &places.used {
        let table = &declaration.tables[used.table.0];
        let refuse = match used.how {
            Use::Added => sqlite::refuse_sum,
            Use::Compared => sqlite::refuse_comparison,
        };
        if let Some((problem, fix)) = refuse(table, &table.columns[used.column.0]) {
            mistakes.push(Mistake::new(&used.place, problem).fix(fix));
        }
    }
    Ok(mistakes)
}

/// What is wrong with the projections of one configuration together: all of them fill one schema, or one file.
pub(super) fn with_each_other(projections: &[Arc<YamlProjection>], settings: &Settings) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut names: BTreeMap<&str, &Place> = BTreeMap::new();
    // What has a name in the store: of which projection, and what it is.
    let mut taken: BTreeMap<String, (String, &str)> = BTreeMap::new();
    for projection in projections {
        let (declaration, places) = (projection.declaration(), projection.places());
        if let Some(first) = names.get(declaration.name.as_str()) {
            let message =
                format!("the projection `{}` is in {} already", declaration.name, first.file.display());
            let fix =
                "keep one of the two under `projections`; versions beside each other are not in this release";
            mistakes.push(Mistake::new(&places.name, message).fix(fix));
            continue;
        }
        names.insert(&declaration.name, &places.name);
        let tables = declaration
            .tables
            .iter()
            .zip(&places.tables)
            .map(|(table, places)| (table.physical_name(declaration.version), &places.name, "a table"));
        let views = declaration
            .views
            .iter()
            .zip(&places.views)
            .map(|(view, place)| (view.name.clone(), place, "a view"));
        let mut own = Vec::new();
        let mut refused: Option<&Place> = None;
        for (name, place, what) in tables.chain(views) {
            // SQLite's names do not tell case apart.
            let key =
                if settings.store.sqlite_path().is_some() { name.to_ascii_lowercase() } else { name.clone() };
            if let Some((owner, theirs)) = taken.get(&key) {
                // A default view stands where its table does.
                if refused != Some(place) {
                    let message = format!("`{name}` is the name of {theirs} of {owner} already");
                    let fix = "choose another name: the tables and views of all projections stand beside each other";
                    mistakes.push(Mistake::new(place, message).fix(fix));
                }
                refused = Some(place);
            } else {
                own.push((key, (declaration.label(), what)));
            }
        }
        taken.extend(own);
    }
    mistakes
}
