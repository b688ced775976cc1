//! What PostgreSQL and the way to it answer, as errors of the store.
//!
//! Only SQLSTATE, constraint, table and column are taken from a database's error: its message quotes values (promise P10). The
//! exception is DDL that looks at no rows: what is said of it is about the declaration, and is kept ([`Complaint`]).

use sqlx::postgres::{PgDatabaseError, PgErrorPosition, PgSeverity};

use crate::store::error::ErrorPlace;
use crate::store::{DatabaseCode, StoreError};

/// The SQLSTATE of a transaction that met another one's row and is to be done again.
pub(super) const SERIALIZATION_FAILURE: &str = "40001";

/// What an error says about the connection that it came over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Health {
    /// The session goes on; after a rollback the connection can be used again.
    Usable,
    /// The session has ended, its state is not known, or its prepared statements no longer fit.
    Broken,
}

/// The store's error for `error`, and what it says about the connection.
pub(super) fn read(action: &'static str, error: &sqlx::Error) -> (StoreError, Health) {
    match error {
        sqlx::Error::Database(database) => match database.try_downcast_ref::<PgDatabaseError>() {
            Some(error) => (refusal(action, error), health(error)),
            None => (bug(action, "an error of another database"), Health::Broken),
        },
        sqlx::Error::Encode(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::RowNotFound => {
            (bug(action, "an answer of another shape than asked for"), Health::Broken)
        }
        other => (no_answer(action, kind(other)), Health::Broken),
    }
}

/// What PostgreSQL has against SQL of a projection's author.
#[derive(Debug)]
pub(super) struct Complaint {
    pub(super) error: StoreError,
    /// Its own words, where they are about that SQL alone and quote no row.
    pub(super) said: Option<Said>,
}

/// PostgreSQL's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) message: String,
    /// The character of the statement that it is about, from 0.
    pub(super) character: Option<usize>,
}

impl Complaint {
    /// What is wrong, in PostgreSQL's words where they are known.
    pub(super) fn text(&self) -> String {
        match (&self.said, &self.error) {
            (Some(said), StoreError::Database { code, .. }) => format!("{} ({code})", said.message),
            _ => self.error.to_string(),
        }
    }
}

impl From<StoreError> for Complaint {
    fn from(error: StoreError) -> Self {
        Self { error, said: None }
    }
}

/// PostgreSQL's own words. Only for statements that look at no rows.
pub(super) fn said(error: &sqlx::Error) -> Option<Said> {
    let sqlx::Error::Database(database) = error else { return None };
    let error = database.try_downcast_ref::<PgDatabaseError>()?;
    let character = match error.position() {
        Some(PgErrorPosition::Original(position)) => position.checked_sub(1),
        _ => None,
    };
    Some(Said { message: error.message().to_owned(), character })
}

/// An error on connecting.
pub(super) fn on_connecting(error: &sqlx::Error) -> StoreError {
    read("connect", error).0
}

/// No answer came, for the reason given.
pub(super) fn no_answer(action: &'static str, detail: impl Into<String>) -> StoreError {
    StoreError::Connection { action, detail: detail.into() }
}

/// A mistake in this program.
pub(super) fn bug(action: &'static str, detail: impl Into<String>) -> StoreError {
    StoreError::Bug { action, detail: detail.into() }
}

/// What an error that was answered to COMMIT means. An error of the severity ERROR aborts the transaction. Where the session
/// ends instead, the server or a pooler before it may have been told to stop after the transaction had become durable.
pub(super) fn on_commit(error: &sqlx::Error) -> StoreError {
    const STATEMENT_COMPLETION_UNKNOWN: &str = "40003";
    if let sqlx::Error::Database(database) = error
        && let Some(error) = database.try_downcast_ref::<PgDatabaseError>()
        && matches!(error.severity(), PgSeverity::Error)
        && error.code() != STATEMENT_COMPLETION_UNKNOWN
        && !error.code().starts_with("08")
    {
        return refusal("commit", error);
    }
    StoreError::CommitUnknown
}

/// The SQLSTATE of an error, if the database gave one.
pub(super) fn sqlstate(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Database { code: DatabaseCode::SqlState(code), .. } => Some(code),
        _ => None,
    }
}

fn refusal(action: &'static str, error: &PgDatabaseError) -> StoreError {
    StoreError::Database {
        action,
        code: DatabaseCode::SqlState(error.code().to_owned()),
        place: ErrorPlace {
            constraint: error.constraint().map(str::to_owned),
            table: error.table().map(str::to_owned),
            column: error.column().map(str::to_owned),
        },
    }
}

/// A cached plan that no longer fits (0A000), a statement that another session prepared or that this one has lost (42P05,
/// 26000) and errors of the connection are left behind together with the connection.
fn health(error: &PgDatabaseError) -> Health {
    let code = error.code();
    if !matches!(error.severity(), PgSeverity::Error)
        || matches!(code, "0A000" | "42P05" | "26000")
        || ["08", "57P", "XX"].iter().any(|class| code.starts_with(class))
    {
        Health::Broken
    } else {
        Health::Usable
    }
}

fn kind(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Io(error) => error.kind().to_string(),
        sqlx::Error::Tls(error) => format!("TLS: {error}"),
        sqlx::Error::Protocol(_) => "the answer does not follow PostgreSQL's protocol".to_owned(),
        sqlx::Error::Configuration(_) => {
            "the connection cannot be set up as `store.url` says; check its certificates and options"
                .to_owned()
        }
        _ => "the connection has ended".to_owned(),
    }
}
