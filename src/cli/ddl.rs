//! `projector ddl`

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::Context;
use super::exit::{Exit, Failure};
use crate::app::{self, DdlPart, Loaded};
use crate::config::settings::Settings;
use crate::projection::{Declaration, Projection as _};

/// Arguments of `ddl`.
#[derive(Debug, Args)]
#[command(after_help = "\
For teams that migrate elsewhere, with `store.ddl: verify`, on the store in projector.yaml. First everything that must be
there before `projector run`: the schema, the projector's own tables, those of the projections, and the rights of the role of
`store.url`. When `projector status` says that a version waits for its views, what `--views` prints: it refuses to run
earlier, since readers would see a view half-built. The version goes live by itself then.

Examples:
  projector ddl > tables.sql                           for all projections of projector.yaml
  projector ddl product_catalogue --views > views.sql  its views, when it has caught up
  psql --single-transaction -v ON_ERROR_STOP=1 -f views.sql")]
pub(super) struct DdlArgs {
    /// A projection of the configuration, or a projection file; all of the configuration where none is named
    #[arg(value_name = "NAME|FILE")]
    what: Option<String>,
    /// The views that readers query, instead of the tables
    #[arg(long)]
    views: bool,
}

/// The result of `ddl --json`.
#[derive(Debug, Serialize)]
struct DdlObject {
    /// What the statements are for: `NAME@VERSION`.
    versions: Vec<String>,
    /// `tables` or `views`.
    part: &'static str,
    /// Statements in order, without the closing semicolon.
    statements: Vec<String>,
}

pub(super) async fn ddl(context: &Context, args: &DdlArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let declarations = find(&settings, args.what.as_deref()).await?;
    let (part, name) = if args.views { (DdlPart::Views, "views") } else { (DdlPart::Tables, "tables") };
    let versions: Vec<String> = declarations.iter().map(|declaration| declaration.label()).collect();
    let statements: Vec<String> = app::ddl(&settings, &declarations, part)
        .await?
        .into_iter()
        .map(|statement| statement.trim().trim_end_matches(';').to_owned())
        .collect();
    if context.is_json() {
        context.output.json(&DdlObject { versions, part: name, statements })?;
    } else {
        context.output.text(&script(part, &versions, &statements))?;
    }
    Ok(Exit::Done)
}

/// The statements with a comment that says when to run them.
fn script(part: DdlPart, versions: &[String], statements: &[String]) -> String {
    let versions = versions.join(", ");
    let comment = match part {
        DdlPart::Tables => format!(
            "-- Tables of the projector and of {versions}: run this before `projector run`.\n\
             -- The views that readers query come later: `projector ddl --views` prints them."
        ),
        DdlPart::Views => format!(
            "-- Views of {versions}: run this when the version has caught up and waits for them\n\
             -- (`projector status` says so), and not before: readers would see a view half-built.\n\
             -- Run it as one transaction: psql --single-transaction -v ON_ERROR_STOP=1"
        ),
    };
    let mut script = format!("{comment}\n\n");
    for statement in statements {
        script.push_str(statement);
        script.push_str(";\n\n");
    }
    script.truncate(script.trim_end().len());
    script.push('\n');
    script
}

fn declarations(loaded: Loaded) -> Result<Vec<Arc<Declaration>>, Failure> {
    let projections = loaded.without_mistakes()?;
    Ok(projections.iter().map(|projection| Arc::new(projection.declaration().clone())).collect())
}

/// A file where it looks like one, else a projection of the settings; all of those where nothing is named.
async fn find(settings: &Settings, what: Option<&str>) -> Result<Vec<Arc<Declaration>>, Failure> {
    let path = what.map(Path::new).filter(|path| {
        path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
            || path.components().count() > 1
    });
    if let Some(path) = path {
        return declarations(app::load_projections(&[path.to_owned()], Some(settings)).await?);
    }
    let mut declarations = declarations(app::configured_projections(settings).await?)?;
    let Some(what) = what else { return Ok(declarations) };
    let names: Vec<String> = declarations.iter().map(|declaration| declaration.name.clone()).collect();
    declarations.retain(|declaration| declaration.name == what);
    if declarations.is_empty() {
        return Err(Failure::usage(
            format!("no projection {what}; known: {}", names.join(", ")),
            "name one of those, or a file",
        ));
    }
    Ok(declarations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_says_when_it_is_to_be_run() {
        let statements = ["create table t (a int)".to_owned(), "grant select on t to r".to_owned()];
        insta::assert_snapshot!(script(DdlPart::Views, &["catalogue@1".to_owned()], &statements), @"
        -- Views of catalogue@1: run this when the version has caught up and waits for them
        -- (`projector status` says so), and not before: readers would see a view half-built.
        -- Run it as one transaction: psql --single-transaction -v ON_ERROR_STOP=1

        create table t (a int);

        grant select on t to r;
        ");
    }
}
