//! `projector ddl`

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::{Context, load_projections};
use crate::app;
use crate::config::settings::Settings;
use crate::projection::Declaration;

/// Arguments of `ddl`.
#[derive(Debug, Args)]
#[command(after_help = "\
For teams that migrate elsewhere, with `store.ddl: verify`. The SQL is that of the store in projector.yaml.

Examples:
  projector ddl product_catalogue > migration.sql
  projector ddl product_catalogue.v2.yaml")]
pub(super) struct DdlArgs {
    /// A projection of the configuration, or a projection file
    #[arg(value_name = "NAME|FILE")]
    what: String,
}

/// The result of `ddl --json`.
#[derive(Debug, Serialize)]
struct DdlObject {
    projection: String,
    version: u32,
    /// Statements in order, without the closing semicolon.
    statements: Vec<String>,
}

pub(super) async fn ddl(context: &Context, args: &DdlArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let declaration = find(&settings, &args.what)?;
    let statements: Vec<String> = app::ddl(&settings, &declaration)
        .await?
        .into_iter()
        .map(|statement| statement.trim().trim_end_matches(';').to_owned())
        .collect();
    if context.is_json() {
        context.output.json(&DdlObject {
            projection: declaration.name.clone(),
            version: declaration.version,
            statements,
        })?;
    } else {
        context.output.text(&format!("{};\n", statements.join(";\n\n")))?;
    }
    Ok(Exit::Done)
}

/// A file where it looks like one, else a projection of the settings.
fn find(settings: &Settings, what: &str) -> Result<Arc<Declaration>, Failure> {
    let path = Path::new(what);
    let is_file = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
        || path.components().count() > 1;
    if is_file {
        return Ok(app::load_projection(path)?.declaration);
    }
    let loaded = load_projections(settings)?;
    let names: Vec<&str> = loaded.iter().map(|projection| projection.declaration.name.as_str()).collect();
    match loaded.iter().find(|projection| projection.declaration.name == what) {
        Some(projection) => Ok(projection.declaration.clone()),
        None => Err(Failure::usage(
            format!("no projection is named {what}"),
            crate::config::yaml::suggestion(what, &names),
        )),
    }
}
