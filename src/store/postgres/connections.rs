//! Connections: a bounded number, kept open between transactions.
//!
//! A connection is given back only by [`Work`](super::work::Work) when its transaction has ended for certain; in every other
//! case it is closed. Nothing is sent over an idle connection to see whether it lives: the first statement of a transaction
//! finds out, and a fresh connection takes its place.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::{no_answer, on_connecting};
use crate::store::StoreError;

/// Connections for everything that is not an apply.
const OTHERS: usize = 4;
/// How long a connect may take, and how long one may wait for its turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a connection is wanted for. The two do not take each other's turns, so that many claims cannot hold up a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Applying batches.
    Write,
    /// Everything else.
    Other,
}

/// Whether statements may be prepared for a whole session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Statements {
    /// They are kept, by name, for the session.
    Kept,
    /// They are unnamed: behind PgBouncer the next transaction may run in another session.
    Unnamed,
}

/// A source of connections to one database as one role.
pub(super) struct Connections {
    options: PgConnectOptions,
    pub(super) statements: Statements,
    idle: Mutex<Vec<PgConnection>>,
    writers: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// A connection on loan, with the turn that it takes.
pub(super) struct Loan {
    pub(super) connection: PgConnection,
    pub(super) origin: Origin,
    _turn: OwnedSemaphorePermit,
}

/// Whether a connection was idle before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It has just been opened.
    Fresh,
    /// It may have died unnoticed.
    Idle,
}

impl Connections {
    /// Reads `url`; connects to nothing.
    pub(super) fn new(url: &SecretString, setting: &str, writers: usize) -> Result<Self, StoreError> {
        let (url, statements) = without_pgbouncer(url.expose_secret());
        let unreadable = |_| StoreError::Refused {
            problem: format!("`{setting}` is not a PostgreSQL URL"),
            fix: "write it as postgres://user:password@host:5432/database".to_owned(),
        };
        let mut options = url.parse::<PgConnectOptions>().map_err(unreadable)?.disable_statement_logging();
        if options.get_application_name().is_none() {
            options = options.application_name("projector");
        }
        if statements == Statements::Unnamed {
            // PgBouncer passes no unknown start-up parameters on.
            options = options.statement_cache_capacity(0).extra_float_digits(None);
        }
        Ok(Self {
            options,
            statements,
            idle: Mutex::default(),
            writers: Arc::new(Semaphore::new(writers.max(1))),
            others: Arc::new(Semaphore::new(OTHERS)),
        })
    }

    /// The role that connects.
    pub(super) fn role(&self) -> &str {
        self.options.get_username()
    }

    /// An idle connection, or a fresh one.
    pub(super) async fn borrow(&self, action: &'static str, purpose: Purpose) -> Result<Loan, StoreError> {
        let turns = match purpose {
            Purpose::Write => &self.writers,
            Purpose::Other => &self.others,
        };
        let turn = match tokio::time::timeout(PATIENCE, turns.clone().acquire_owned()).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) => return Err(no_answer(action, "the store has been closed")),
            Err(_) => return Err(no_answer(action, "all connections are busy")),
        };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(Loan { connection, origin: Origin::Idle, _turn: turn }),
            None => Ok(Loan { connection: self.open(action).await?, origin: Origin::Fresh, _turn: turn }),
        }
    }

    async fn open(&self, action: &'static str) -> Result<PgConnection, StoreError> {
        match tokio::time::timeout(PATIENCE, PgConnection::connect_with(&self.options)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(on_connecting(&error)),
            Err(_) => Err(no_answer(action, format!("connecting took longer than {} s", PATIENCE.as_secs()))),
        }
    }

    /// Takes back a connection that is outside any transaction.
    pub(super) fn give_back(&self, loan: Loan) {
        if self.writers.is_closed() {
            return;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(loan.connection);
    }

    /// Ends the idle connections; those on loan end when they come back.
    pub(super) async fn close(&self) {
        self.writers.close();
        self.others.close();
        let idle = std::mem::take(&mut *self.idle.lock().unwrap_or_else(PoisonError::into_inner));
        for connection in idle {
            // The server sees the end of the connection in any case.
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
        }
    }
}

/// Takes our own option `pgbouncer=true` out of a URL.
fn without_pgbouncer(url: &str) -> (String, Statements) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), Statements::Kept);
    };
    let (ours, others): (Vec<&str>, Vec<&str>) =
        query.split('&').partition(|option| option.starts_with("pgbouncer="));
    let statements = if ours.contains(&"pgbouncer=true") { Statements::Unnamed } else { Statements::Kept };
    let url = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
    (url, statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_pgbouncer_is_ours_and_the_others_stay() {
        assert_eq!(without_pgbouncer("postgres://h/d"), ("postgres://h/d".into(), Statements::Kept));
        assert_eq!(
            without_pgbouncer("postgres://h/d?pgbouncer=true"),
            ("postgres://h/d".into(), Statements::Unnamed)
        );
        assert_eq!(
            without_pgbouncer("postgres://h/d?sslmode=require&pgbouncer=true&user=u"),
            ("postgres://h/d?sslmode=require&user=u".into(), Statements::Unnamed)
        );
        assert_eq!(without_pgbouncer("postgres://h/d?pgbouncer=false").1, Statements::Kept);
    }

    #[test]
    fn a_url_that_cannot_be_read_is_refused_without_being_quoted() {
        let secret = SecretString::from("postgres://user:hunter2@host:port/database");
        let Err(error) = Connections::new(&secret, "store.url", 2) else { panic!("a port is a number") };
        let text = error.to_string();
        assert!(text.contains("store.url") && !text.contains("hunter2"), "{text}");
    }
}
