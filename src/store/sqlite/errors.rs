//! What an error of SQLite says, stripped of everything that quotes a value.

use sqlx::error::DatabaseError;
use sqlx::sqlite::SqliteError;

use crate::store::error::ErrorPlace;
use crate::store::{DatabaseCode, StoreError};

/// An error of a statement that writes a projection's rows, or reads.
pub(super) fn failed(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |error| match error {
        sqlx::Error::Database(error) => of_database(action, error.as_ref()),
        sqlx::Error::Io(error) => StoreError::Connection { action, detail: format!("{:?}", error.kind()) },
        sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed | sqlx::Error::PoolClosed => {
            StoreError::Connection { action, detail: "the connection has ended".to_owned() }
        }
        sqlx::Error::ColumnDecode { index, .. } => {
            StoreError::Bug { action, detail: format!("column {index} has another type than expected") }
        }
        _ => StoreError::Bug { action, detail: "an answer that was not expected".to_owned() },
    }
}

/// An error of a statement on the projector's own tables: never to be blamed on a record.
pub(super) fn own(action: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |error| match failed(action)(error) {
        StoreError::Database { code: DatabaseCode::Sqlite(code), place, .. } if is_constraint(code) => {
            StoreError::Bug {
                action,
                detail: format!("the projector's own table refused a row: {code}{place}"),
            }
        }
        other => other,
    }
}

const fn is_constraint(code: i32) -> bool {
    matches!(code & 0xff, 18..=20)
}

fn of_database(action: &'static str, error: &dyn DatabaseError) -> StoreError {
    let code = error.try_downcast_ref::<SqliteError>().and_then(DatabaseError::code);
    let code = code.and_then(|code| code.parse().ok()).unwrap_or(1);
    let place = if is_constraint(code) { place_of(error.message()) } else { ErrorPlace::default() };
    // The database file is not one of ours, or a table is missing: SQLite says so in words only, with names and no values.
    if code == 1 && error.message().starts_with("no such") {
        return StoreError::Layout {
            problem: error.message().to_owned(),
            fix: "something outside projector changed the file; `projector run` makes what is missing"
                .to_owned(),
        };
    }
    StoreError::Database { action, code: DatabaseCode::Sqlite(code), place }
}

/// SQLite names columns, or a CHECK, after the last `failed: `.
fn place_of(message: &str) -> ErrorPlace {
    let Some((_, named)) = message.rsplit_once("failed: ") else { return ErrorPlace::default() };
    let first = named.split(", ").next().unwrap_or(named);
    match first.split_once('.') {
        Some((table, column)) if !named.contains(' ') || named.contains(", ") => {
            ErrorPlace { constraint: None, table: Some(table.to_owned()), column: Some(column.to_owned()) }
        }
        _ => ErrorPlace { constraint: Some(named.chars().take(120).collect()), table: None, column: None },
    }
}
