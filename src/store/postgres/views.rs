//! Views: made, tried, compared with their declaration, replaced and dropped.
//!
//! Whether a view is as declared is not asked of its text, which the database keeps in its own words: the declared view is made
//! under a name of its own, behind a savepoint, and what the database keeps of the two is compared. Where somebody else makes
//! views, that one is a temporary view, for which a role needs no right in the schema.

use std::fmt::Write as _;

use super::PostgresStore;
use super::catalogue::{self, ViewFacts};
use super::errors::{Complaint, bug, sqlstate};
use super::gaps::Gaps;
use super::layout::in_schema;
use super::names;
use super::positions::get;
use super::schema::{is_about_sql, refused};
use super::view_sql::{FixedView, create_view, grant, place_in_sql, qualified, query};
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::projection::{Declaration, View};
use crate::store::StoreError;
use crate::store::error::VIEW_FIX;
use crate::store::sql::quote;

/// The name under which a view is made for comparison.
const TRIAL: &str = "projector_trial";

/// Lets those readers query a view that may not yet.
pub(super) async fn grant_readers(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    view: &str,
) -> Result<(), StoreError> {
    let sql = "select r from unnest($1::text[]) as r, pg_class c join pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $2 and c.relname = $3 and not has_table_privilege(r, c.oid, 'select')";
    let parameters = Parameters::new().and(&*store.readers).and(&*store.schema).and(view);
    for row in work.rows(sql, parameters).await? {
        let role: String = get(&row, 0)?;
        let what = format!("role {role} may not select from {view}");
        gaps.make(store, work, &what, &grant(&store.schema, view, &role)).await?;
    }
    Ok(())
}

/// Makes a view with its grants.
async fn make_view(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
    view: &View,
) -> Result<(), StoreError> {
    names::check("view", &view.name)?;
    let mut script = vec![create_view(&store.schema, declaration, view)];
    script.extend(store.readers.iter().map(|reader| grant(&store.schema, &view.name, reader)));
    let script = script.join(";\n");
    let made = work.declared(&script).await?;
    made.map_err(|complaint| Declared::of(store, declaration, view).refused(&script, &complaint))
}

/// Makes the views of a version that is not live yet and takes them back, to see whether the database takes them. Nobody else
/// ever sees them, and none may be there (promise P8).
pub(super) async fn try_views(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declaration: &Declaration,
) -> Result<(), StoreError> {
    for view in &declaration.views {
        if let Some(relation) = catalogue::relation(work, &store.schema, &view.name).await? {
            return Err(taken(store, declaration, &view.name, &relation.kind));
        }
        if store.ddl == DdlMode::Verify {
            trial(store, work, &Declared::of(store, declaration, view)).await?;
            continue;
        }
        work.script("savepoint trial").await?;
        make_view(store, work, declaration, view).await?;
        work.script("rollback to savepoint trial; release savepoint trial").await?;
    }
    Ok(())
}

fn taken(store: &PostgresStore, declaration: &Declaration, name: &str, kind: &str) -> StoreError {
    let what = match kind {
        "v" | "m" => "a view",
        "i" => "an index",
        "S" => "a sequence",
        _ => "a table",
    };
    let (schema, label) = (&store.schema, declaration.label());
    let problem = format!(
        "{what} named {name} is there already in schema {schema} and is not ours: {label} has not made it"
    );
    let fix = match store.ddl {
        DdlMode::Verify if kind == "v" => format!(
            "`drop view {}`, since readers would see it half-built; run what `projector ddl {} --views` prints when the version has caught up",
            qualified(schema, name),
            declaration.name
        ),
        _ => "drop or rename it, or give the view another name".to_owned(),
    };
    StoreError::Refused { problem, fix }
}

/// Makes the views of a live version as they are declared now: those that are missing and those that differ; and drops those of
/// `before`, its views up to now, that are no longer declared. A view of somebody else is left alone, and refused.
pub(super) async fn make_views(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    declaration: &Declaration,
    before: &[String],
) -> Result<(), StoreError> {
    for view in &declaration.views {
        match catalogue::relation(work, &store.schema, &view.name).await? {
            None if store.ddl == DdlMode::Apply => make_view(store, work, declaration, view).await?,
            None => {
                let mut script = vec![create_view(&store.schema, declaration, view)];
                script.extend(store.readers.iter().map(|reader| grant(&store.schema, &view.name, reader)));
                gaps.add(format!("view {} is missing", view.name), script.join(";\n"));
            }
            Some(relation) if relation.kind == "v" => {
                let what = Declared::of(store, declaration, view);
                let difference = compare(store, work, &what).await?;
                if difference.is_some() && store.ddl == DdlMode::Apply && !before.contains(&view.name) {
                    return Err(taken(store, declaration, &view.name, "v"));
                }
                if let Some(shape) = difference {
                    replace(store, work, gaps, &what, shape).await?;
                }
                grant_readers(store, work, gaps, &view.name).await?;
            }
            Some(relation) => return Err(taken(store, declaration, &view.name, &relation.kind)),
        }
    }
    let is_declared = |name: &String| declaration.views.iter().any(|view| view.name == *name);
    let mut undeclared = Vec::new();
    for name in before.iter().filter(|name| !is_declared(name)) {
        if catalogue::relation(work, &store.schema, name).await?.is_some_and(|relation| relation.kind == "v")
        {
            undeclared.push(name.clone());
        }
    }
    drop_views(store, work, gaps, &undeclared).await
}

/// A view as it should be.
struct Declared<'a> {
    name: &'a str,
    query: String,
    /// Where its query comes from; none of a view with fixed SQL.
    view: Option<(&'a str, &'a Declaration, &'a View)>,
}

impl<'a> Declared<'a> {
    fn of(store: &'a PostgresStore, declaration: &'a Declaration, view: &'a View) -> Self {
        Self {
            name: &view.name,
            query: query(&store.schema, declaration, view),
            view: Some((&store.schema, declaration, view)),
        }
    }

    /// The database does not take the view, which `statement` was to make.
    fn refused(&self, statement: &str, complaint: &Complaint) -> StoreError {
        if !sqlstate(&complaint.error).is_some_and(is_about_sql) {
            return refused(&format!("view {}", self.name), complaint);
        }
        let mut problem = complaint.text();
        let before_query = statement.find(&self.query).map_or(0, |at| statement[..at].chars().count());
        let character = complaint.said.as_ref().and_then(|said| said.character);
        if let Some(character) = character.and_then(|character| character.checked_sub(before_query))
            && let Some((schema, declaration, view)) = self.view
            && let Some((line, column)) = place_in_sql(schema, declaration, view, character)
        {
            // Writing to a String cannot fail.
            let _ = write!(problem, ", in line {line}, column {column} of its SQL");
        }
        StoreError::View { view: self.name.to_owned(), problem, fix: VIEW_FIX.to_owned() }
    }
}

/// Compares a fixed view that is there with what it should be.
pub(super) async fn verify_fixed(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    view: &FixedView,
) -> Result<(), StoreError> {
    let create = in_schema(&store.schema, view.create);
    let (_, query) =
        create.split_once(" as\n").ok_or_else(|| bug("verify a view", "its statement has no query"))?;
    let declared = Declared { name: view.name, query: query.to_owned(), view: None };
    match compare(store, work, &declared).await? {
        Some(shape) => replace(store, work, gaps, &declared, shape).await,
        None => Ok(()),
    }
}

/// How a view that differs can become as declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// It has the columns that it is to have, or the first of them: it can be replaced under its readers.
    Extended,
    /// It has others.
    Other,
}

/// Compares a view with what it should be; `None` where it is.
async fn compare(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declared: &Declared<'_>,
) -> Result<Option<Shape>, StoreError> {
    let Some(should) = trial(store, work, declared).await? else {
        tracing::warn!(
            view = declared.name,
            "not compared with its declaration: the role of `store.url` may make no temporary views"
        );
        return Ok(None);
    };
    let is = catalogue::view(work, &qualified(&store.schema, declared.name)).await?;
    let is = is.ok_or_else(|| bug("verify a view", "it was there"))?;
    if is == should {
        return Ok(None);
    }
    Ok(Some(if should.columns.starts_with(&is.columns) { Shape::Extended } else { Shape::Other }))
}

/// What the database keeps of a view with this query: made and taken back. `None` where this role may not make it.
async fn trial(
    store: &PostgresStore,
    work: &mut Work<'_>,
    declared: &Declared<'_>,
) -> Result<Option<ViewFacts>, StoreError> {
    let schema = match store.ddl {
        DdlMode::Apply => quote(&store.schema),
        DdlMode::Verify => "pg_temp".to_owned(),
    };
    names::check("view", declared.name)?;
    let trial = format!("{schema}.{TRIAL}");
    work.script("savepoint trial").await?;
    let create = format!("create view {trial} as\n{}", declared.query);
    let facts = match work.declared(&create).await? {
        Ok(()) => catalogue::view(work, &trial).await?,
        Err(complaint) if store.ddl == DdlMode::Verify && sqlstate(&complaint.error) == Some("42501") => None,
        Err(complaint) => return Err(declared.refused(&create, &complaint)),
    };
    work.script("rollback to savepoint trial; release savepoint trial").await?;
    Ok(facts)
}

async fn replace(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    declared: &Declared<'_>,
    shape: Shape,
) -> Result<(), StoreError> {
    let Declared { name, query, .. } = declared;
    let view = qualified(&store.schema, name);
    match (store.ddl, shape) {
        (DdlMode::Apply, Shape::Extended) => {
            let replace = format!("create or replace view {view} as\n{query}");
            let made = work.declared(&replace).await?;
            made.map_err(|complaint| declared.refused(&replace, &complaint))
        }
        (DdlMode::Apply, Shape::Other) => Err(StoreError::Layout {
            problem: format!(
                "view {name} has other columns than its declaration gives it now, so that it cannot be replaced under its readers"
            ),
            fix: format!("`drop view {view}`, and it is made anew; or give the changed view another name"),
        }),
        (DdlMode::Verify, shape) => {
            let mut script = match shape {
                Shape::Extended => vec![format!("create or replace view {view} as\n{query}")],
                Shape::Other => {
                    vec![format!("drop view {view}"), format!("create view {view} as\n{query}")]
                }
            };
            script.extend(store.readers.iter().map(|reader| grant(&store.schema, name, reader)));
            gaps.add(format!("view {name} differs from its declaration"), script.join(";\n"));
            Ok(())
        }
    }
}

/// Drops views of a version that are no longer declared, all at once, so that they may read each other.
async fn drop_views(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    names: &[String],
) -> Result<(), StoreError> {
    if names.is_empty() {
        return Ok(());
    }
    let list = names.join(", ");
    let views: Vec<String> = names.iter().map(|name| qualified(&store.schema, name)).collect();
    let sql = format!("drop view {}", views.join(", "));
    if store.ddl == DdlMode::Verify {
        gaps.add(format!("no longer declared, and to be dropped: {list}"), sql);
        return Ok(());
    }
    refuse_dependents(work, &store.schema, names, &format!("{list}, no longer declared,")).await?;
    let dropped = work.attempt(&sql).await?;
    dropped.map_err(|error| refused(&format!("{list}, no longer declared: the drop of it"), &error.into()))
}

/// Names what would keep these relations from being dropped.
pub(super) async fn refuse_dependents(
    work: &mut Work<'_>,
    schema: &str,
    names: &[String],
    what: &str,
) -> Result<(), StoreError> {
    let dependents = catalogue::dependents(work, schema, names).await?;
    if dependents.is_empty() {
        return Ok(());
    }
    Err(StoreError::Refused {
        problem: format!("{what} cannot be dropped: {} depends on it", dependents.join(", ")),
        fix: "drop or change that first".to_owned(),
    })
}
