//! The SQL of a projection's tables, indexes and views, and whether what is there is what is declared.

use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row};

use super::errors::failed;
use crate::fold::canonical;
use crate::projection::{Column, ColumnType, Datum, Declaration, Nullability, Table, ViewBody};
use crate::store::StoreError;

/// The column that says which aggregate a row belongs to.
pub(super) const AGGREGATE: &str = "projector_aggregate";

pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Every statement that makes the declaration's tables and indexes.
pub(super) fn tables(declaration: &Declaration) -> Result<Vec<String>, StoreError> {
    let mut statements = Vec::new();
    for table in &declaration.tables {
        statements.push(create_table(table, declaration.version)?);
        statements.extend(indexes(table, declaration.version)?);
    }
    Ok(statements)
}

/// Every statement that makes the declaration's views.
pub(super) fn views(declaration: &Declaration) -> Vec<String> {
    declaration.views.iter().map(|view| create_view(declaration, view)).collect()
}

fn create_view(declaration: &Declaration, view: &crate::projection::View) -> String {
    let body = match &view.body {
        ViewBody::Table(id) => declaration
            .tables
            .get(id.0)
            .map(|table| row_source(table, declaration.version))
            .unwrap_or_default(),
        ViewBody::Sql(sql) => declaration.tables.iter().fold(sql.clone(), |sql, table| {
            let source = format!("({})", row_source(table, declaration.version));
            sql.replace(&format!("{{{}}}", table.name), &source)
        }),
    };
    format!("create view {} as {}", quote(&view.name), body.trim().trim_end_matches(';'))
}

/// The declared columns of a table's rows.
fn row_source(table: &Table, version: u32) -> String {
    let columns: Vec<String> = table.columns.iter().map(|column| quote(&column.name)).collect();
    format!("select {} from {}", columns.join(", "), quote(&table.physical_name(version)))
}

fn create_table(table: &Table, version: u32) -> Result<String, StoreError> {
    let mut lines = Vec::new();
    for (index, column) in table.columns.iter().enumerate() {
        let is_key = table.primary_key.iter().any(|id| id.0 == index);
        lines.push(column_line(table, column, is_key)?);
    }
    if table.stores_aggregate() {
        lines.push(format!("{} TEXT not null", quote(AGGREGATE)));
    }
    let key: Vec<String> = table
        .primary_key
        .iter()
        .filter_map(|id| table.columns.get(id.0))
        .map(|column| quote(&column.name))
        .collect();
    lines.push(format!("primary key ({})", key.join(", ")));
    Ok(format!(
        "create table {} (\n  {}\n) strict",
        quote(&table.physical_name(version)),
        lines.join(",\n  ")
    ))
}

fn column_line(table: &Table, column: &Column, is_key: bool) -> Result<String, StoreError> {
    let name = quote(&column.name);
    let mut line = format!("{name} {}", sql_type(table, column)?);
    if let Some(expression) = &column.generated {
        line.push_str(&format!(" generated always as ({expression}) stored"));
        return Ok(line);
    }
    if is_key || column.nullability == Nullability::NotNull {
        line.push_str(" not null");
    }
    if let Some(default) = &column.default {
        line.push_str(&format!(" default {}", literal(default)));
    }
    // SQLite keeps any integer in any integer column.
    match column.kind {
        ColumnType::SmallInt => line.push_str(&format!(" check ({name} between -32768 and 32767)")),
        ColumnType::Integer => line.push_str(&format!(" check ({name} between -2147483648 and 2147483647)")),
        ColumnType::Boolean => line.push_str(&format!(" check ({name} in (0, 1))")),
        _ => {}
    }
    Ok(line)
}

fn sql_type(table: &Table, column: &Column) -> Result<&'static str, StoreError> {
    Ok(match &column.kind {
        ColumnType::Boolean
        | ColumnType::SmallInt
        | ColumnType::Integer
        | ColumnType::BigInt
        | ColumnType::TimestampTz => "INTEGER",
        ColumnType::Real | ColumnType::Double => "REAL",
        ColumnType::Bytes => "BLOB",
        ColumnType::Text { .. }
        | ColumnType::Numeric { .. }
        | ColumnType::Date
        | ColumnType::Time
        | ColumnType::Timestamp
        | ColumnType::Uuid
        | ColumnType::Json => "TEXT",
        ColumnType::Catalogue(name) => {
            return Err(StoreError::Layout {
                problem: format!(
                    "column {}.{} has the type {name}, which SQLite lacks",
                    table.name, column.name
                ),
                fix: "use a portable type, or PostgreSQL".to_owned(),
            });
        }
    })
}

/// A default as SQL.
pub(super) fn literal(datum: &Datum) -> String {
    match datum {
        Datum::Null => "null".to_owned(),
        Datum::Bool(flag) => i32::from(*flag).to_string(),
        Datum::Int(number) | Datum::TimestampTz(number) => number.to_string(),
        Datum::Double(number) => format!("{number:?}"),
        Datum::Bytes(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("x'{hex}'")
        }
        other => format!("'{}'", canonical(other).unwrap_or_default().replace('\'', "''")),
    }
}

fn indexes(table: &Table, version: u32) -> Result<Vec<String>, StoreError> {
    let mut statements = Vec::new();
    for (number, index) in table.indexes.iter().enumerate() {
        if let Some(method) = &index.method {
            return Err(StoreError::Layout {
                problem: format!("an index of table {} uses {method}, which SQLite lacks", table.name),
                fix: "leave `using` out, or use PostgreSQL".to_owned(),
            });
        }
        let physical = table.physical_name(version);
        let what = match &index.expression {
            Some(expression) => format!("({expression})"),
            None => index.columns.iter().map(|column| quote(column)).collect::<Vec<_>>().join(", "),
        };
        let unique = if index.unique { "unique " } else { "" };
        let condition = index.condition.as_ref().map(|sql| format!(" where {sql}")).unwrap_or_default();
        let name = quote(&format!("{physical}_{}", number + 1));
        statements.push(format!(
            "create {unique}index if not exists {name} on {} ({what}){condition}",
            quote(&physical)
        ));
    }
    Ok(statements)
}

/// A column as the file has it: name, type, not null, place in the key (0: none), generated.
type Found = (String, String, bool, i64, bool);

/// Compares a table with what is declared.
pub(super) async fn verify(
    connection: &mut SqliteConnection,
    table: &Table,
    version: u32,
) -> Result<(), StoreError> {
    let physical = table.physical_name(version);
    let found = columns(connection, &physical).await?;
    let differs = |problem: String| {
        StoreError::Layout {
        problem,
        fix: "somebody changed the table; put it back, or `projector retire` the version and let it be built anew".to_owned(),
    }
    };
    if found.is_empty() {
        return Err(differs(format!("table {physical} is missing")));
    }
    for (index, column) in table.columns.iter().enumerate() {
        let place = table.primary_key.iter().position(|id| id.0 == index).map_or(0, |place| place + 1);
        let Some((_, kind, is_not_null, found_place, is_generated)) =
            found.iter().find(|(name, ..)| *name == column.name)
        else {
            return Err(differs(format!("table {physical} has no column {}", column.name)));
        };
        let expected = sql_type(table, column)?;
        if kind != expected {
            return Err(differs(format!(
                "column {physical}.{} is {kind}, declared is {expected}",
                column.name
            )));
        }
        let must = column.generated.is_none() && (place > 0 || column.nullability == Nullability::NotNull);
        if *is_not_null != must {
            let words = if must {
                "allows NULL, declared is NOT NULL"
            } else {
                "is NOT NULL, declared is that it may be NULL"
            };
            return Err(differs(format!("column {physical}.{} {words}", column.name)));
        }
        if usize::try_from(*found_place).ok() != Some(place) {
            return Err(differs(format!(
                "the primary key of table {physical} is another at column {}",
                column.name
            )));
        }
        if *is_generated != column.generated.is_some() {
            return Err(differs(format!("column {physical}.{} is not generated as declared", column.name)));
        }
    }
    let known = |name: &str| {
        table.columns.iter().any(|column| column.name == name)
            || (table.stores_aggregate() && name == AGGREGATE)
    };
    if let Some((name, ..)) = found.iter().find(|(name, ..)| !known(name)) {
        return Err(differs(format!("table {physical} has a column {name} that is not declared")));
    }
    if table.stores_aggregate() && !found.iter().any(|(name, ..)| name == AGGREGATE) {
        return Err(differs(format!("table {physical} has no column {AGGREGATE}")));
    }
    Ok(())
}

/// The columns of a table; none where it is missing.
pub(super) async fn columns(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<Vec<Found>, StoreError> {
    let sql = format!(
        "select name, type, \"notnull\", pk, hidden from pragma_table_xinfo('{}')",
        table.replace('\'', "''")
    );
    let rows =
        sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await.map_err(failed("read the layout"))?;
    Ok(rows
        .iter()
        .map(|row| {
            let hidden: i64 = row.get(4);
            (
                row.get(0),
                row.get::<String, _>(1).to_uppercase(),
                row.get(2),
                row.get(3),
                hidden == 2 || hidden == 3,
            )
        })
        .collect())
}
