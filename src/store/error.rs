//! What can go wrong in a store, stripped of everything that a database quotes from rows.

use std::fmt;

/// A failure of a store. Says what happened; what is to be done about it is decided in `pipeline::retry` alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database answered with an error.
    #[error("the database refused to {action}: {code}{}", .place)]
    Database {
        /// What was being done: "apply a batch", "claim a partition".
        action: &'static str,
        /// The database's code.
        code: DatabaseCode,
        /// Constraint, table and column, where the database named them.
        place: ErrorPlace,
    },
    /// No answer came: connect, TLS, I/O, protocol or pool timeout. The text names the kind of failure and no value.
    #[error("no answer from the database on trying to {action}: {detail}")]
    Connection {
        /// What was being done.
        action: &'static str,
        /// The kind of failure, without quoted values.
        detail: String,
    },
    /// COMMIT was sent and no answer came; whether it took effect is not known.
    #[error("the answer to COMMIT was lost")]
    CommitUnknown,
    /// A row of an owned table belongs to another aggregate.
    #[error("a row of table {table} belongs to another aggregate")]
    ForeignRow {
        /// The table, by its declared name.
        table: String,
    },
    /// A table differs from what is declared, or the store was laid out by a newer program.
    #[error("{problem}; {fix}")]
    Layout {
        /// What differs.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// The database does not take a view as it is declared. Its message is about the SQL of the declaration, and quotes no row.
    #[error("view {view} cannot be made: {problem}; {fix}")]
    View {
        /// The view.
        view: String,
        /// What is wrong, and where in its SQL.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// The store refuses the request because of what it holds.
    #[error("{problem}; {fix}")]
    Refused {
        /// Why.
        problem: String,
        /// What to do about it.
        fix: String,
    },
    /// A mistake in this program: a value of an impossible shape, a row count that cannot be.
    #[error("internal error on trying to {action}: {detail}")]
    Bug {
        /// What was being done.
        action: &'static str,
        /// What was seen.
        detail: String,
    },
}

/// What is to be done about [`StoreError::View`].
pub(super) const VIEW_FIX: &str =
    "correct its `sql`; `projector ddl NAME --views` prints what the database gets, to try by hand";

/// A database's own code for an error.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DatabaseCode {
    /// PostgreSQL's SQLSTATE, five characters.
    SqlState(String),
    /// SQLite's extended result code.
    Sqlite(i32),
}

impl fmt::Display for DatabaseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SqlState(code) => write!(f, "SQLSTATE {code}"),
            Self::Sqlite(code) => write!(f, "SQLite code {code}"),
        }
    }
}

/// Where the database saw the error, by name only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErrorPlace {
    /// The constraint.
    pub constraint: Option<String>,
    /// The table.
    pub table: Option<String>,
    /// The column.
    pub column: Option<String>,
}

impl fmt::Display for ErrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, name) in
            [("constraint", &self.constraint), ("table", &self.table), ("column", &self.column)]
        {
            if let Some(name) = name {
                write!(f, ", {what} {name}")?;
            }
        }
        Ok(())
    }
}
