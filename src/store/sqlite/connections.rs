//! The connections to the file, and one transaction on one of them, from BEGIN to its certain end.
//!
//! There is one connection that writes, so that transactions of this process wait for each other here and not in SQLite,
//! and one that reads, which in WAL mode waits for nobody. The state of a connection is never guessed: it is put back only
//! after COMMIT or ROLLBACK has been answered. A [`Work`] that is dropped before closes its connection, and SQLite rolls
//! back.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{Arguments, AssertSqlSafe, ConnectOptions as _, Connection as _, Encode, Sqlite, Type};
use tokio::sync::{Mutex, MutexGuard};

use super::OpenMode;
use super::errors::{self, bug, no_answer};
use crate::store::StoreError;

/// How long a transaction waits for one of another process.
const BUSY: Duration = Duration::from_secs(5);

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 256;

/// What a transaction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Takes the file's write lock at BEGIN.
    Write,
    /// Sees one snapshot.
    Read,
}

/// The connections of one store.
pub(super) struct Connections {
    /// `None`: in memory, for a look at what SQLite makes of DDL.
    path: Option<PathBuf>,
    mode: OpenMode,
    writer: Mutex<Option<SqliteConnection>>,
    reader: Mutex<Option<SqliteConnection>>,
    closed: AtomicBool,
}

impl Connections {
    pub(super) fn new(path: &Path, mode: OpenMode) -> Self {
        Self::of(Some(path.to_owned()), mode)
    }

    /// Connections to an empty database that nobody else sees and that ends with them. Only the writing one is of use: the
    /// other has a database of its own.
    pub(super) fn in_memory() -> Self {
        Self::of(None, OpenMode::Run)
    }

    fn of(path: Option<PathBuf>, mode: OpenMode) -> Self {
        Self {
            path,
            mode,
            writer: Mutex::new(None),
            reader: Mutex::new(None),
            closed: AtomicBool::new(false),
        }
    }

    async fn connect(&self, action: &'static str) -> Result<SqliteConnection, StoreError> {
        let mut options = SqliteConnectOptions::new();
        if let Some(path) = &self.path {
            if self.mode == OpenMode::Inspect && !path.exists() {
                return Err(StoreError::Refused {
                    problem: format!("there is no database at {}", path.display()),
                    fix: "start `projector run` first, or correct `store.url`".to_owned(),
                });
            }
            options = options.filename(path).create_if_missing(self.mode == OpenMode::Run);
            if self.mode == OpenMode::Run {
                options = options.journal_mode(SqliteJournalMode::Wal);
            }
        } else {
            options = options.in_memory(true);
        }
        let options = options
            .busy_timeout(BUSY)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full)
            .statement_cache_capacity(STATEMENTS)
            .disable_statement_logging();
        options.connect().await.map_err(|error| errors::read(action, &error))
    }

    /// The file; `None` in memory.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Ends the connections, after the transactions that are under way.
    pub(super) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for slot in [&self.reader, &self.writer] {
            if let Some(connection) = slot.lock().await.take() {
                // What was committed is durable; an error here tells nothing more.
                let _ = connection.close().await;
            }
        }
    }
}

/// A transaction under way.
pub(super) struct Work<'a> {
    slot: MutexGuard<'a, Option<SqliteConnection>>,
    connection: SqliteConnection,
    action: &'static str,
}

impl<'a> Work<'a> {
    /// Begins a transaction.
    pub(super) async fn begin(
        connections: &'a Connections,
        purpose: Purpose,
        action: &'static str,
    ) -> Result<Self, StoreError> {
        let (slot, begin) = match purpose {
            Purpose::Write => (&connections.writer, "begin immediate"),
            Purpose::Read => (&connections.reader, "begin"),
        };
        let mut slot = slot.lock().await;
        if connections.closed.load(Ordering::Acquire) {
            return Err(no_answer(action, "the store has been closed"));
        }
        let connection = match slot.take() {
            Some(connection) => connection,
            None => connections.connect(action).await?,
        };
        let mut work = Self { slot, connection, action };
        match work.script(begin).await {
            Ok(()) => Ok(work),
            // No transaction has begun, so that the connection is as it was.
            Err(error @ StoreError::Database { .. }) => {
                work.give_back();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn rows(
        &mut self,
        sql: &str,
        parameters: Parameters,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(sql), parameters.into_list(self.action)?);
        query.fetch_all(&mut self.connection).await.map_err(|error| errors::read(self.action, &error))
    }

    /// Runs a statement that is prepared for this once, since the tables that it names come and go.
    pub(super) async fn rows_once(&mut self, sql: &str) -> Result<Vec<SqliteRow>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        query.fetch_all(&mut self.connection).await.map_err(|error| errors::read(self.action, &error))
    }

    /// Runs a statement and returns the number of rows that it wrote.
    pub(super) async fn run(&mut self, sql: &str, parameters: Parameters) -> Result<u64, StoreError> {
        let query = sqlx::query_with(AssertSqlSafe(sql), parameters.into_list(self.action)?);
        let done = query.execute(&mut self.connection).await;
        done.map(|done| done.rows_affected()).map_err(|error| errors::read(self.action, &error))
    }

    /// Runs statements without parameters.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), StoreError> {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection).await;
        done.map(drop).map_err(|error| errors::read(self.action, &error))
    }

    /// Runs DDL that holds SQL of the projection's author. Where SQLite does not take it, the inner error says what it
    /// makes of it: names and pieces of that SQL, never a row.
    pub(super) async fn declared(&mut self, sql: &str) -> Result<Result<(), String>, StoreError> {
        match sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection).await {
            Ok(_) => Ok(Ok(())),
            Err(error) => {
                let answer = errors::read(self.action, &error);
                match (&answer, &error) {
                    (StoreError::Database { code, .. }, sqlx::Error::Database(database))
                        if *code == crate::store::DatabaseCode::Sqlite(errors::ERROR) =>
                    {
                        Ok(Err(database.message().to_owned()))
                    }
                    _ => Err(answer),
                }
            }
        }
    }

    /// Commits what `result` has come to, or rolls back and hands on its error.
    pub(super) async fn end<T>(self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match result {
            Ok(value) => {
                self.commit().await?;
                Ok(value)
            }
            Err(error) => {
                self.rollback().await;
                Err(error)
            }
        }
    }

    /// Commits. [`StoreError::CommitUnknown`] where it is not known what is durable.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        match sqlx::raw_sql("commit").execute(&mut self.connection).await {
            Ok(_) => {
                self.give_back();
                Ok(())
            }
            Err(error) => {
                let answer = errors::on_commit(&error);
                self.rollback().await;
                Err(answer)
            }
        }
    }

    /// Rolls back. Where that cannot be done the connection is closed, and SQLite rolls back.
    pub(super) async fn rollback(mut self) {
        if self.script("rollback").await.is_ok() {
            self.give_back();
        }
    }

    fn give_back(mut self) {
        *self.slot = Some(self.connection);
    }
}

/// Parameters of one statement, in order.
pub(super) struct Parameters {
    list: SqliteArguments,
    failed: bool,
}

impl Parameters {
    pub(super) fn new() -> Self {
        Self { list: SqliteArguments::default(), failed: false }
    }

    pub(super) fn with_capacity(count: usize) -> Self {
        let mut parameters = Self::new();
        parameters.list.reserve(count, 0);
        parameters
    }

    pub(super) fn and<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(mut self, value: T) -> Self {
        self.push(value);
        self
    }

    pub(super) fn push<'t, T: Encode<'t, Sqlite> + Type<Sqlite>>(&mut self, value: T) {
        self.failed |= self.list.add(value).is_err();
    }

    fn into_list(self, action: &'static str) -> Result<SqliteArguments, StoreError> {
        if self.failed { Err(bug(action, "a parameter cannot be encoded")) } else { Ok(self.list) }
    }
}
