//! Views: what readers query.
//!
//! SQLite keeps a view's text as it was given, so that a view is as declared where its text is.

use super::catalogue;
use super::connections::{Parameters, Work};
use super::positions::get;
use crate::projection::{Declaration, Table, View, ViewBody};
use crate::store::StoreError;
use crate::store::error::VIEW_FIX;
use crate::store::sql::{quote, quote_list};
use crate::store::view_text::ViewText;

/// The statement that makes a view.
pub(super) fn create_view(declaration: &Declaration, view: &View) -> String {
    let select = |table: &Table| {
        let columns = quote_list(table.columns.iter().map(|column| column.name.as_str()));
        format!("select {columns} from {}", quote(&table.physical_name(declaration.version)))
    };
    let body = match &view.body {
        ViewBody::Table(id) => declaration.tables.get(id.0).map(select).unwrap_or_default(),
        ViewBody::Sql(text) => {
            ViewText::new(declaration, text, |table, _| format!("({})", select(table))).text
        }
    };
    format!("create view {} as\n{body}", quote(&view.name))
}

/// Makes the views of a live version as they are declared now: those that are missing and those that differ; and drops those of
/// `before`, its views up to now, that are no longer declared. A view of somebody else is left alone, and refused.
pub(super) async fn make_views(
    work: &mut Work<'_>,
    declaration: &Declaration,
    before: &[String],
) -> Result<(), StoreError> {
    for name in before.iter().filter(|name| !declaration.views.iter().any(|view| view.name == **name)) {
        if catalogue::kind(work, name).await?.as_deref() == Some("view") {
            work.script(&format!("drop view {}", quote(name))).await?;
        }
    }
    for view in &declaration.views {
        match catalogue::kind(work, &view.name).await? {
            None => make_view(work, declaration, view).await?,
            Some(kind) if kind == "view" && before.contains(&view.name) => {
                if text(work, &view.name).await?.as_deref() != Some(&*kept(declaration, view)) {
                    work.script(&format!("drop view {}", quote(&view.name))).await?;
                    make_view(work, declaration, view).await?;
                }
            }
            Some(kind) => return Err(taken(&view.name, &kind)),
        }
    }
    Ok(())
}

/// Makes all views and takes them back, to see whether SQLite takes them. Nobody else ever sees them, and none may be there
/// (promise P8).
pub(super) async fn try_views(work: &mut Work<'_>, declaration: &Declaration) -> Result<(), StoreError> {
    work.script("savepoint trial").await?;
    for view in &declaration.views {
        if let Some(kind) = catalogue::kind(work, &view.name).await? {
            return Err(taken(&view.name, &kind));
        }
        make_view(work, declaration, view).await?;
    }
    work.script("rollback to savepoint trial; release savepoint trial").await
}

/// Makes a view. SQLite looks into it only when it is read, so it is.
async fn make_view(work: &mut Work<'_>, declaration: &Declaration, view: &View) -> Result<(), StoreError> {
    for sql in [create_view(declaration, view), format!("select * from {} limit 0", quote(&view.name))] {
        if let Err(problem) = work.declared(&sql).await? {
            return Err(StoreError::View { view: view.name.clone(), problem, fix: VIEW_FIX.to_owned() });
        }
    }
    Ok(())
}

/// The text that SQLite keeps of the view: but for its first words, the one that it was given.
fn kept(declaration: &Declaration, view: &View) -> String {
    create_view(declaration, view).replacen("create view", "CREATE VIEW", 1)
}

/// The text that SQLite has kept of a view.
async fn text(work: &mut Work<'_>, name: &str) -> Result<Option<String>, StoreError> {
    let sql = "select sql from sqlite_schema where type = 'view' and name = ?1 collate nocase";
    let rows = work.rows(sql, Parameters::new().and(name)).await?;
    rows.first().map(|row| get(row, 0)).transpose()
}

fn taken(name: &str, kind: &str) -> StoreError {
    let article = if kind == "index" { "an" } else { "a" };
    StoreError::Refused {
        problem: format!(
            "{article} {kind} named {name} is there already and is not ours, so that the view cannot be made"
        ),
        fix: "drop or rename it, or give the view another name".to_owned(),
    }
}
