//! A projection's tables, indexes and views: made where they are missing, verified where they are there.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::catalogue::{self, Fact};
use super::connections::Work;
use super::rehearsal::{Part, Refusal};
use super::types;
use crate::projection::{Column, ColumnId, Index, Nullability, Table, TableId};
use crate::store::StoreError;
use crate::store::sql::{self, AGGREGATE, quote, quote_list};

/// Whether a table was made or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Made,
    Found,
}

/// The statement that makes a table.
pub(super) fn create_table(table: &Table, version: u32) -> String {
    let physical = table.physical_name(version);
    let mut lines: Vec<String> =
        table.columns.iter().map(|column| column_line(table, &physical, column)).collect();
    if table.stores_aggregate() {
        lines.push(format!("{} TEXT not null", quote(AGGREGATE)));
    }
    let key = quote_list(sql::key_columns(table).map(|column| column.name.as_str()));
    lines.push(format!("primary key ({key})"));
    format!("create table {} (\n  {}\n) strict", quote(&physical), lines.join(",\n  "))
}

fn column_line(table: &Table, physical: &str, column: &Column) -> String {
    let name = quote(&column.name);
    // A type that SQLite does not have is refused before; `ddl` shows it as it was declared.
    let kind = types::sql_name(&column.kind).map_or_else(|| column.kind.to_string(), str::to_owned);
    let mut line = format!("{name} {kind}");
    // Writing to a String cannot fail.
    if let Some(expression) = &column.generated {
        let _ = write!(line, " generated always as ({expression}) stored");
    } else if types::default_of(column) != "null" {
        let _ = write!(line, " default {}", types::default_of(column));
    }
    if is_not_null(table, column) {
        line.push_str(" not null");
    }
    if let Some((lowest, highest)) = types::range(&column.kind) {
        let constraint = quote(&format!("{physical}_{}_range", column.name));
        let _ = write!(line, " constraint {constraint} check ({name} between {lowest} and {highest})");
    }
    line
}

/// A column of the key is NOT NULL whether or not it says so.
fn is_not_null(table: &Table, column: &Column) -> bool {
    column.nullability == Nullability::NotNull
        || sql::key_columns(table).any(|other| other.name == column.name)
}

/// Names and statements of a table's indexes.
pub(super) fn create_indexes(table: &Table, version: u32) -> Vec<(String, String)> {
    let physical = table.physical_name(version);
    let create = |index: &Index| {
        let what = match &index.expression {
            Some(expression) => format!("({expression})"),
            None => quote_list(index.columns.iter().map(String::as_str)),
        };
        let condition = index.condition.as_ref().map(|sql| format!(" where {sql}")).unwrap_or_default();
        let unique = if index.unique { "unique " } else { "" };
        let body = format!("on {} ({what}){condition}", quote(&physical));
        // The name stays the same while the index does, wherever it stands in the list.
        let digest = Sha256::digest(format!("{physical} {unique}{body}"));
        let name = format!("{physical}_ix_{}", types::hex(&digest[..4]));
        let statement = format!("create {unique}index {} {body}", quote(&name));
        (name, statement)
    };
    table.indexes.iter().map(create).collect()
}

/// What of a table only PostgreSQL has, and names that the projector keeps for itself.
pub(super) fn lacks(id: TableId, table: &Table) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut refuse =
        |part, problem: String, fix: &str| refusals.push(Refusal { part, problem, fix: fix.to_owned() });
    for (index, column) in table.columns.iter().enumerate() {
        let part = Part::Column(id, ColumnId(index));
        let name = format!("{}.{}", table.name, column.name);
        if types::sql_name(&column.kind).is_none() {
            refuse(
                part,
                format!("column {name} is {}, a type that SQLite does not have", column.kind),
                "use a portable type, such as text or json, or PostgreSQL",
            );
        }
        if column.name.to_ascii_lowercase().starts_with("projector_") {
            refuse(
                part,
                format!("column {name} has a name that the projector keeps for itself"),
                "call it something else",
            );
        }
    }
    for (number, index) in table.indexes.iter().enumerate() {
        let part = Part::Index(id, number);
        if let Some(method) = index.method.as_ref().filter(|method| *method != "btree") {
            refuse(
                part,
                format!("an index of table {} uses {method}, which SQLite does not have", table.name),
                "leave `using` out, or use PostgreSQL",
            );
        }
        // SQLite takes a quoted name that is no column for a text.
        if let Some(name) = index.columns.iter().find(|name| table.column(name).is_none()) {
            refuse(
                part,
                format!("an index of table {} names the column {name}, which is not declared", table.name),
                "name a column of the table, or say `expression`",
            );
        }
    }
    refusals
}

/// Makes a table with its indexes, or verifies it and makes indexes that are missing.
pub(super) async fn make_table(
    work: &mut Work<'_>,
    table: &Table,
    version: u32,
) -> Result<Presence, StoreError> {
    // Of projections in YAML it has been found before; here it is for those written in Rust.
    if let Some(Refusal { problem, fix, .. }) = lacks(TableId(0), table).into_iter().next() {
        return Err(StoreError::Layout { problem, fix });
    }
    let physical = table.physical_name(version);
    let presence = match catalogue::kind(work, &physical).await? {
        None => {
            declared(work, &format!("table {physical}"), &create_table(table, version)).await?;
            Presence::Made
        }
        Some(kind) if kind == "table" => {
            verify(work, table, &physical).await?;
            Presence::Found
        }
        Some(kind) => {
            return Err(differs(
                format!("{physical} is a {kind}, not a table"),
                "drop it or rename the table",
            ));
        }
    };
    for (name, create) in create_indexes(table, version) {
        if catalogue::kind(work, &name).await?.is_none() {
            declared(work, &format!("an index of table {physical}"), &create).await?;
        }
    }
    Ok(presence)
}

/// Runs DDL that holds SQL of the projection's author.
pub(super) async fn declared(work: &mut Work<'_>, what: &str, sql: &str) -> Result<(), StoreError> {
    let refused = |why: String| StoreError::Layout {
        problem: format!("{what} cannot be made: {why}"),
        fix: "correct its declaration; `projector ddl NAME` prints the SQL to try by hand".to_owned(),
    };
    match work.declared(sql).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(refused(why)),
        // Such as a unique index over rows that are equal already.
        Err(error @ StoreError::Database { .. }) => Err(refused(error.to_string())),
        Err(error) => Err(error),
    }
}

async fn verify(work: &mut Work<'_>, table: &Table, physical: &str) -> Result<(), StoreError> {
    const FIX: &str = "change it, or declare what is there in a new version";
    if !catalogue::is_strict(work, physical).await? {
        return Err(differs(
            format!("table {physical} is not strict"),
            "drop it so that it is made anew; `projector ddl` prints how",
        ));
    }
    let found = catalogue::facts(work, physical).await?;
    for fact in &expected(table) {
        let Some(other) = found.iter().find(|other| other.name == fact.name) else {
            return Err(differs(
                format!("table {physical} has no column {}", fact.name),
                &format!("add it: {fact}"),
            ));
        };
        // The key as a whole is compared below.
        if (Fact { key: other.key, ..fact.clone() }) != *other {
            return Err(differs(
                format!("column {physical}.{} is {other}; it should be {fact}", fact.name),
                FIX,
            ));
        }
    }
    let declared = |fact: &&Fact| {
        table.column(&fact.name).is_some() || (table.stores_aggregate() && fact.name == AGGREGATE)
    };
    if let Some(extra) = found.iter().find(|fact| !declared(fact)) {
        let problem = format!("table {physical} has the column {}, which is not declared", extra.name);
        return Err(differs(problem, "drop it, or declare it in a new version"));
    }
    let mut key: Vec<&Fact> = found.iter().filter(|fact| fact.key > 0).collect();
    key.sort_by_key(|fact| fact.key);
    if !key.iter().map(|fact| &fact.name).eq(sql::key_columns(table).map(|column| &column.name)) {
        let is = key.iter().map(|fact| fact.name.as_str()).collect::<Vec<_>>().join(", ");
        let should =
            sql::key_columns(table).map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ");
        let problem = format!("the primary key of table {physical} is ({is}); it should be ({should})");
        return Err(differs(problem, "drop the table so that it is made anew"));
    }
    Ok(())
}

/// The columns that a table should have.
fn expected(table: &Table) -> Vec<Fact> {
    let column = |column: &Column| {
        let key = sql::key_columns(table).position(|other| other.name == column.name);
        let default = types::default_of(column);
        Fact {
            name: column.name.clone(),
            kind: types::sql_name(&column.kind).unwrap_or_default().to_owned(),
            is_not_null: is_not_null(table, column),
            default: (default != "null" && column.generated.is_none()).then_some(default),
            key: key.and_then(|index| i64::try_from(index + 1).ok()).unwrap_or(0),
            is_generated: column.generated.is_some(),
        }
    };
    let mut columns: Vec<Fact> = table.columns.iter().map(column).collect();
    if table.stores_aggregate() {
        columns.push(Fact {
            name: AGGREGATE.to_owned(),
            kind: "TEXT".to_owned(),
            is_not_null: true,
            default: None,
            key: 0,
            is_generated: false,
        });
    }
    columns
}

fn differs(problem: String, fix: &str) -> StoreError {
    StoreError::Layout { problem, fix: fix.to_owned() }
}
