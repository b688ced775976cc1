//! Reading views, for people and for comparisons.

use super::PostgresStore;
use super::catalogue;
use super::connections::Purpose;
use super::positions::get;
use super::work::{Parameters, Work};
use crate::store::sql::quote;
use crate::store::{Rows, StoreError};

/// Columns that rows are ordered by, at most.
const ORDERED_BY: usize = 4;

pub(super) async fn read_view(store: &PostgresStore, view: &str, limit: u32) -> Result<Rows, StoreError> {
    let mut work =
        Work::begin(&store.connections, Purpose::Other, "read a view", store.write_limits()).await?;
    let rows = read_in(store, &mut work, view, limit).await;
    work.end(rows).await
}

async fn read_in(
    store: &PostgresStore,
    work: &mut Work<'_>,
    view: &str,
    limit: u32,
) -> Result<Rows, StoreError> {
    let Some(relation) = catalogue::relation(work, &store.schema, view).await? else {
        return Err(StoreError::Refused {
            problem: format!("schema {} has no view {view}", store.schema),
            fix: "`projector status` says whether its version is live yet".to_owned(),
        });
    };
    // The text of times must not depend on where the server stands.
    work.script("set local timezone = 'UTC'; set local datestyle = 'ISO'").await?;
    let columns: Vec<String> = relation.columns.iter().map(|column| column.name.clone()).collect();
    let texts: Vec<String> = columns.iter().map(|name| format!("v.{}::text", quote(name))).collect();
    let unordered = ["json", "xml", "point", "polygon", "path", "box", "line", "lseg", "circle"];
    let order: Vec<String> = relation
        .columns
        .iter()
        .filter(|column| !unordered.contains(&column.base_type.as_str()))
        .take(ORDERED_BY)
        .map(|column| format!("v.{}", quote(&column.name)))
        .collect();
    let order = if order.is_empty() { String::new() } else { format!(" order by {}", order.join(", ")) };
    let sql = format!(
        "select array[{}]::text[] from {}.{} as v{order} limit {limit}",
        texts.join(", "),
        quote(&store.schema),
        quote(view)
    );
    let rows = work.rows(&sql, Parameters::new()).await?;
    let rows = rows.iter().map(|row| get::<Vec<Option<String>>>(row, 0)).collect::<Result<_, _>>()?;
    Ok(Rows { columns, rows })
}
