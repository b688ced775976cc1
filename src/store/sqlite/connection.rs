//! Connections to the file: one that writes, one that reads, and the lock that lets one process run.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs4::FileExt;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use tokio::sync::{Mutex, MutexGuard};

use super::errors::failed;
use crate::store::StoreError;

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// To apply: one process for a file. The file is made where it is missing.
    Run,
    /// To look, or to leave a request. The file must be there.
    Inspect,
}

/// The file and its connections.
pub(super) struct Connections {
    options: SqliteConnectOptions,
    writer: Mutex<Option<SqliteConnection>>,
    reader: Mutex<Option<SqliteConnection>>,
    /// Held for as long as the store is open; the operating system gives it back with the process.
    _lock: Option<File>,
}

/// A connection out of its place: put back by [`Slot::keep`], closed otherwise, so that a connection whose state is not
/// known is never used again.
pub(super) struct Slot<'a> {
    place: MutexGuard<'a, Option<SqliteConnection>>,
    pub(super) connection: SqliteConnection,
}

impl Slot<'_> {
    /// Puts the connection back.
    pub(super) fn keep(mut self) {
        *self.place = Some(self.connection);
    }
}

impl Connections {
    pub(super) fn open(path: &Path, mode: OpenMode) -> Result<Self, StoreError> {
        if mode == OpenMode::Inspect && !path.exists() {
            return Err(StoreError::Refused {
                problem: format!("there is no file {}", path.display()),
                fix: "`projector run` makes it; or correct `store.url`".to_owned(),
            });
        }
        let lock = match mode {
            OpenMode::Run => Some(lock(path)?),
            OpenMode::Inspect => None,
        };
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(mode == OpenMode::Run)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5))
            .statement_cache_capacity(256);
        Ok(Self { options, writer: Mutex::default(), reader: Mutex::default(), _lock: lock })
    }

    pub(super) async fn writer(&self) -> Result<Slot<'_>, StoreError> {
        self.slot(&self.writer).await
    }

    pub(super) async fn reader(&self) -> Result<Slot<'_>, StoreError> {
        self.slot(&self.reader).await
    }

    async fn slot<'a>(&self, place: &'a Mutex<Option<SqliteConnection>>) -> Result<Slot<'a>, StoreError> {
        let mut place = place.lock().await;
        let connection = match place.take() {
            Some(connection) => connection,
            None => self.options.connect().await.map_err(failed("open the file"))?,
        };
        Ok(Slot { place, connection })
    }

    pub(super) async fn close(&self) {
        for place in [&self.writer, &self.reader] {
            if let Some(connection) = place.lock().await.take() {
                // Whatever was committed is durable; there is nothing to lose in a close that fails.
                drop(connection.close().await);
            }
        }
    }
}

/// Takes the lock file beside the database.
fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let problem = |error: &std::io::Error| StoreError::Refused {
        problem: format!("{} cannot be opened: {error}", name.display()),
        fix: "make its folder and let this user write there, or correct `store.url`".to_owned(),
    };
    let file =
        File::options().create(true).truncate(false).write(true).open(&name).map_err(|e| problem(&e))?;
    match FileExt::try_lock(&file) {
        Ok(()) => Ok(file),
        Err(_) => Err(StoreError::Refused {
            problem: format!("another projector process runs on {}", path.display()),
            fix: "stop it first; of a SQLite file there is one process, use PostgreSQL for several"
                .to_owned(),
        }),
    }
}

/// Runs `work` in a transaction that takes the write lock at once. Commits where it gives `Ok`, rolls back otherwise.
pub(super) async fn transaction<T>(
    connections: &Connections,
    action: &'static str,
    work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<Verdict<T>, StoreError>,
) -> Result<T, StoreError> {
    let mut slot = connections.writer().await?;
    execute(&mut slot.connection, action, "begin immediate").await?;
    match work(&mut slot.connection).await {
        Ok(Verdict::Commit(done)) => match execute(&mut slot.connection, action, "commit").await {
            Ok(()) => {
                slot.keep();
                Ok(done)
            }
            Err(error) => {
                // A commit that failed (busy, full, I/O) leaves the transaction open.
                if execute(&mut slot.connection, action, "rollback").await.is_ok() {
                    slot.keep();
                }
                Err(error)
            }
        },
        Ok(Verdict::RollBack(done)) => {
            execute(&mut slot.connection, action, "rollback").await?;
            slot.keep();
            Ok(done)
        }
        Err(error) => {
            // Some errors (full disk) have rolled back already; then there is nothing to roll back, and the connection goes.
            if execute(&mut slot.connection, action, "rollback").await.is_ok() {
                slot.keep();
            }
            Err(error)
        }
    }
}

/// How a transaction ends.
pub(super) enum Verdict<T> {
    Commit(T),
    RollBack(T),
}

pub(super) async fn execute(
    connection: &mut SqliteConnection,
    action: &'static str,
    sql: &str,
) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop).map_err(failed(action))
}
