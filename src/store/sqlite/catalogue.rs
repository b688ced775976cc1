//! What SQLite says about its tables and views.

use std::fmt;

use super::connections::{Parameters, Work};
use super::positions::get;
use crate::store::StoreError;
use crate::store::sql::quote;

/// A column as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) name: String,
    /// In upper case.
    pub(super) kind: String,
    pub(super) is_not_null: bool,
    /// The text of its default.
    pub(super) default: Option<String>,
    /// Its place in the primary key, from 1; 0: none.
    pub(super) key: i64,
    pub(super) is_generated: bool,
}

impl Fact {
    /// Whether an insert must name the column.
    pub(super) fn must_be_given(&self) -> bool {
        self.is_not_null && !self.is_generated && self.default.as_deref().is_none_or(|text| text == "null")
    }
}

/// As DDL says it.
impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if self.is_not_null {
            f.write_str(" not null")?;
        }
        if self.is_generated {
            f.write_str(" generated")?;
        }
        match &self.default {
            Some(default) => write!(f, " default {default}"),
            None => Ok(()),
        }
    }
}

/// The columns of a table or view; none where there is no such thing.
pub(super) async fn facts(work: &mut Work<'_>, table: &str) -> Result<Vec<Fact>, StoreError> {
    let sql = "select name, upper(type), \"notnull\", dflt_value, pk, hidden from pragma_table_xinfo(?1)";
    let rows = work.rows(sql, Parameters::new().and(table)).await?;
    rows.iter()
        .map(|row| {
            Ok(Fact {
                name: get(row, 0)?,
                kind: get(row, 1)?,
                is_not_null: get::<i64>(row, 2)? != 0,
                default: get(row, 3)?,
                key: get(row, 4)?,
                is_generated: get::<i64>(row, 5)? != 0,
            })
        })
        .collect()
}

/// `table`, `view` or `index`; `None` where nothing has this name. SQLite's names do not tell case apart.
pub(super) async fn kind(work: &mut Work<'_>, name: &str) -> Result<Option<String>, StoreError> {
    let sql = "select type from sqlite_schema where name = ?1 collate nocase and type <> 'trigger'";
    let rows = work.rows(sql, Parameters::new().and(name)).await?;
    rows.first().map(|row| get(row, 0)).transpose()
}

/// What SQLite keeps of an index, blanks apart.
pub(super) async fn index(work: &mut Work<'_>, name: &str) -> Result<Option<String>, StoreError> {
    let sql = "select sql from sqlite_schema where type = 'index' and name = ?1 collate nocase";
    let rows = work.rows(sql, Parameters::new().and(name)).await?;
    let text = rows.first().map(|row| get::<String>(row, 0)).transpose()?;
    Ok(text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Whether a table was made STRICT.
pub(super) async fn is_strict(work: &mut Work<'_>, table: &str) -> Result<bool, StoreError> {
    let sql = "select strict from pragma_table_list where schema = 'main' and name = ?1 collate nocase";
    let rows = work.rows(sql, Parameters::new().and(table)).await?;
    rows.first().map_or(Ok(false), |row| Ok(get::<i64>(row, 0)? != 0))
}

/// Makes a view, or makes it again where its text has changed.
pub(super) async fn make_view(work: &mut Work<'_>, name: &str, create: &str) -> Result<(), StoreError> {
    let sql = "select sql from sqlite_schema where type = 'view' and name = ?1 collate nocase";
    let rows = work.rows(sql, Parameters::new().and(name)).await?;
    if let Some(row) = rows.first() {
        // SQLite keeps the text as it was given, but for the words before the name.
        let body = |text: &str| text.split_once(" as\n").map(|(_, body)| body.to_owned());
        if body(&get::<String>(row, 0)?) == body(create) {
            return Ok(());
        }
        work.script(&format!("drop view {}", quote(name))).await?;
    }
    work.script(create).await
}
