//! Reading views, for people and for comparisons.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, TypeInfo as _, ValueRef as _};

use super::catalogue;
use super::connections::{Connections, Purpose, Work};
use super::positions::get;
use super::types::hex;
use crate::store::sql::quote;
use crate::store::{Rows, StoreError};

/// Columns that rows are ordered by, at most.
const ORDERED_BY: usize = 4;

pub(super) async fn read_view(connections: &Connections, view: &str, limit: u32) -> Result<Rows, StoreError> {
    let mut work = Work::begin(connections, Purpose::Read, "read a view").await?;
    let rows = read_in(&mut work, view, limit).await;
    work.end(rows).await
}

async fn read_in(work: &mut Work<'_>, view: &str, limit: u32) -> Result<Rows, StoreError> {
    if catalogue::kind(work, view).await?.as_deref() != Some("view") {
        return Err(StoreError::Refused {
            problem: format!("there is no view {view}"),
            fix: "`projector status` says whether its version is live yet".to_owned(),
        });
    }
    let columns: Vec<String> =
        catalogue::facts(work, view).await?.into_iter().map(|fact| fact.name).collect();
    let order: Vec<String> = (1..=columns.len().min(ORDERED_BY)).map(|index| index.to_string()).collect();
    let sql = format!("select * from {} order by {} limit {limit}", quote(view), order.join(", "));
    let rows = work.rows_once(&sql).await?;
    let rows = rows.iter().map(|row| texts(row, columns.len())).collect::<Result<_, _>>()?;
    Ok(Rows { columns, rows })
}

/// The values of a row as text; NULL is `None`, bytes are hexadecimal after `\x`.
pub(super) fn texts(row: &SqliteRow, columns: usize) -> Result<Vec<Option<String>>, StoreError> {
    (0..columns)
        .map(|index| {
            let kind = row.try_get_raw(index).map(|value| value.type_info().name().to_owned());
            Ok(match kind.as_deref() {
                Ok("INTEGER") => get::<Option<i64>>(row, index)?.map(|number| number.to_string()),
                Ok("REAL") => get::<Option<f64>>(row, index)?.map(|number| number.to_string()),
                Ok("BLOB") => get::<Option<Vec<u8>>>(row, index)?.map(|bytes| format!("\\x{}", hex(&bytes))),
                _ => get::<Option<String>>(row, index)?,
            })
        })
        .collect()
}
