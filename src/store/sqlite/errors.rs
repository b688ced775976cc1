//! What SQLite answers, as errors of the store.
//!
//! Only the result code and names are taken from an error (promise P10). SQLite's messages about constraints consist of
//! names; those that may hold anything else, such as the text that a trigger raises, are not read.

use crate::store::error::ErrorPlace;
use crate::store::{DatabaseCode, StoreError};

/// SQLITE_ERROR: SQL that cannot be compiled, or a table that is not there.
pub(super) const ERROR: i32 = 1;
/// SQLITE_IOERR; the extended codes have it as their low byte.
const IOERR: i32 = 10;
/// SQLITE_CONSTRAINT, likewise.
pub(super) const CONSTRAINT: i32 = 19;
/// SQLITE_MISMATCH
pub(super) const MISMATCH: i32 = 20;

/// The store's error for `error`.
pub(super) fn read(action: &'static str, error: &sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().and_then(|code| code.parse().ok()).unwrap_or(ERROR);
            let message = database.message();
            if let Some(table) = message.strip_prefix("no such table: ").filter(|_| code == ERROR)
                && table.starts_with("projector_")
            {
                return StoreError::Refused {
                    problem: format!(
                        "the database has no table {table}: nothing has been projected into it yet"
                    ),
                    fix: "start `projector run` first, or correct `store.url`".to_owned(),
                };
            }
            StoreError::Database { action, code: DatabaseCode::Sqlite(code), place: place(message) }
        }
        sqlx::Error::Encode(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::RowNotFound => bug(action, "an answer of another shape than asked for"),
        sqlx::Error::Io(error) => no_answer(action, error.kind().to_string()),
        _ => no_answer(action, "the connection has ended"),
    }
}

/// What an error of COMMIT means. After a failed write to the disk it is for the row of the position to say what is durable.
pub(super) fn on_commit(error: &sqlx::Error) -> StoreError {
    match read("commit", error) {
        StoreError::Database { code: DatabaseCode::Sqlite(code), .. } if code & 0xff == IOERR => {
            StoreError::CommitUnknown
        }
        answer @ StoreError::Database { .. } => answer,
        _ => StoreError::CommitUnknown,
    }
}

/// No answer came, for the reason given.
pub(super) fn no_answer(action: &'static str, detail: impl Into<String>) -> StoreError {
    StoreError::Connection { action, detail: detail.into() }
}

/// A mistake in this program.
pub(super) fn bug(action: &'static str, detail: impl Into<String>) -> StoreError {
    StoreError::Bug { action, detail: detail.into() }
}

/// The names in a message about a constraint.
fn place(message: &str) -> ErrorPlace {
    let mut place = ErrorPlace::default();
    let failed = |what: &str| message.strip_prefix(what)?.strip_prefix(" constraint failed: ");
    if let Some(names) = failed("UNIQUE").or_else(|| failed("NOT NULL")) {
        if let Some(index) = names.strip_prefix("index '").and_then(|rest| rest.strip_suffix('\'')) {
            place.constraint = Some(index.to_owned());
        } else {
            (place.table, place.column) = columns(names);
        }
    } else if let Some(name) = failed("CHECK") {
        place.constraint = Some(name.to_owned());
    } else if let Some((_, name)) = message
        .strip_prefix("cannot store ")
        .and_then(|rest| rest.split_once(" value in "))
        .and_then(|(_, rest)| rest.split_once(" column "))
    {
        (place.table, place.column) = columns(name);
    }
    place
}

/// Table and columns of `table.a, table.b`.
fn columns(names: &str) -> (Option<String>, Option<String>) {
    let Some((table, _)) = names.split_once('.') else { return (None, None) };
    let prefix = format!("{table}.");
    let columns: Vec<&str> =
        names.split(", ").map(|name| name.strip_prefix(&prefix).unwrap_or(name)).collect();
    (Some(table.to_owned()), Some(columns.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(constraint: Option<&str>, table: Option<&str>, column: Option<&str>) -> ErrorPlace {
        let own = |name: Option<&str>| name.map(str::to_owned);
        ErrorPlace { constraint: own(constraint), table: own(table), column: own(column) }
    }

    #[test]
    fn names_are_taken_from_messages_about_constraints_only() {
        for (message, expected) in [
            ("UNIQUE constraint failed: a__v1.x", named(None, Some("a__v1"), Some("x"))),
            ("UNIQUE constraint failed: a__v1.x, a__v1.y", named(None, Some("a__v1"), Some("x, y"))),
            ("UNIQUE constraint failed: index 'a__v1_ix'", named(Some("a__v1_ix"), None, None)),
            ("NOT NULL constraint failed: a__v1.x", named(None, Some("a__v1"), Some("x"))),
            ("CHECK constraint failed: x_range", named(Some("x_range"), None, None)),
            ("cannot store REAL value in INTEGER column a__v1.x", named(None, Some("a__v1"), Some("x"))),
            ("FOREIGN KEY constraint failed", ErrorPlace::default()),
            ("what a trigger says: secret", ErrorPlace::default()),
        ] {
            assert_eq!(place(message), expected, "{message}");
        }
    }
}
