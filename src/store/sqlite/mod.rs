//! SQLite: one process that writes, rows in STRICT tables, every transaction `begin immediate` with full synchronisation.
//!
//! Numeric, uuid, date, time and json are canonical text, timestamptz integer microseconds, bytes blobs, booleans 0 and 1.

mod apply;
mod connection;
mod ddl;
mod dead_letters;
mod errors;
mod layout;
mod positions;
mod register;
mod status;

use std::path::Path;

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Row};

use super::{
    Advance, Applied, ClaimRequest, Claimed, DeadLetterFilter, DeadLetterKey, InstanceId, InstanceReport,
    OperatorRequest, Outcome, PartitionStatus, Promotion, ReadStore, Registered, Registration, ResumeOutcome,
    ResumeRequest, RetirePlan, Rows, StoreError, StoredDeadLetter, Transaction, VersionKey, VersionRow,
};
use crate::projection::Declaration;
use crate::record::TopicPartition;
pub use connection::OpenMode;
use connection::{Connections, Verdict, transaction};

/// A file with views, positions and dead letters.
pub struct SqliteStore {
    connections: Connections,
}

impl SqliteStore {
    /// Opens a file.
    ///
    /// # Errors
    /// Another process runs on it ([`OpenMode::Run`]), it is not there ([`OpenMode::Inspect`]), or it cannot be opened.
    pub async fn open(path: &Path, mode: OpenMode) -> Result<Self, StoreError> {
        let store = Self { connections: Connections::open(path, mode)? };
        // Opened now, so that a path that cannot be used is found at start.
        store.connections.writer().await?.keep();
        Ok(store)
    }
}

/// Reads on the second connection, with whatever is committed.
macro_rules! read {
    ($store:ident, $connection:ident => $work:expr) => {{
        let mut slot = $store.connections.reader().await?;
        let $connection = &mut slot.connection;
        let result = $work.await;
        // A read that failed leaves no transaction behind, but perhaps a statement: the connection goes.
        if result.is_ok() {
            slot.keep();
        }
        result
    }};
}

#[async_trait]
impl ReadStore for SqliteStore {
    async fn lay_out(&self) -> Result<(), StoreError> {
        transaction(&self.connections, "lay out the projector's tables", async |connection| {
            layout::lay_out(connection).await.map(Verdict::Commit)
        })
        .await
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        transaction(&self.connections, "register a version", async |connection| {
            register::register(connection, registration).await
        })
        .await
    }

    fn ddl(&self, declaration: &Declaration) -> Vec<String> {
        let mut statements = ddl::tables(declaration).unwrap_or_default();
        statements.extend(ddl::views(declaration));
        statements
    }

    async fn versions(&self) -> Result<Vec<VersionRow>, StoreError> {
        read!(self, connection => register::versions(connection))
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
        transaction(&self.connections, "claim a partition", async |connection| {
            positions::claim(connection, claim).await
        })
        .await
    }

    async fn apply(&self, batch: &Transaction<'_>) -> Result<Applied, StoreError> {
        transaction(&self.connections, "apply a batch", async |connection| {
            apply::apply(connection, batch).await
        })
        .await
    }

    async fn outcome(&self, version: &VersionKey, expected: &[Advance]) -> Result<Vec<Outcome>, StoreError> {
        transaction(&self.connections, "decide an unknown commit", async |connection| {
            positions::outcome(connection, version, expected).await.map(Verdict::RollBack)
        })
        .await
    }

    async fn mark_published(&self, letters: &[DeadLetterKey]) -> Result<(), StoreError> {
        transaction(&self.connections, "mark dead letters as published", async |connection| {
            dead_letters::mark(connection, letters).await.map(Verdict::Commit)
        })
        .await
    }

    async fn unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let filter = DeadLetterFilter {
            projection: Some(version.projection.to_string()),
            version: Some(version.version),
            partition: Some(partition.clone()),
            limit,
            ..DeadLetterFilter::default()
        };
        read!(self, connection => dead_letters::read(connection, &filter, true))
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<StoredDeadLetter>, StoreError> {
        read!(self, connection => dead_letters::read(connection, filter, false))
    }

    async fn observe(&self, report: &InstanceReport) -> Result<Vec<OperatorRequest>, StoreError> {
        transaction(&self.connections, "observe", async |connection| {
            status::observe(connection, report).await
        })
        .await
    }

    async fn sign_off(&self, instance: &InstanceId) -> Result<(), StoreError> {
        transaction(&self.connections, "sign off", async |connection| {
            status::sign_off(connection, instance).await.map(Verdict::Commit)
        })
        .await
    }

    async fn status(&self, projection: Option<&str>) -> Result<Vec<PartitionStatus>, StoreError> {
        read!(self, connection => status::status(connection, projection))
    }

    async fn promote_first(&self, declaration: &Declaration) -> Result<Promotion, StoreError> {
        transaction(&self.connections, "promote the first version", async |connection| {
            register::promote_first(connection, declaration).await
        })
        .await
    }

    async fn request_resume(&self, request: &ResumeRequest) -> Result<Vec<ResumeOutcome>, StoreError> {
        transaction(&self.connections, "ask to resume", async |connection| {
            status::request_resume(connection, request).await
        })
        .await
    }

    async fn retire_plan(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        read!(self, connection => register::retire_plan(connection, version))
    }

    async fn retire(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        transaction(&self.connections, "retire a version", async |connection| {
            register::retire(connection, version).await
        })
        .await
    }

    async fn read_view(&self, view: &str, limit: u32) -> Result<Rows, StoreError> {
        read!(self, connection => read_view(connection, view, limit))
    }

    async fn close(&self) {
        self.connections.close().await;
    }
}

async fn read_view(
    connection: &mut sqlx::sqlite::SqliteConnection,
    view: &str,
    limit: u32,
) -> Result<Rows, StoreError> {
    let action = "read a view";
    let name = ddl::quote(view);
    let columns: Vec<String> =
        ddl::columns(connection, view).await?.into_iter().map(|(name, ..)| name).collect();
    if columns.is_empty() {
        return Err(StoreError::Refused {
            problem: format!("there is no view {view}"),
            fix: "it appears when its version has caught up; see `projector status`".to_owned(),
        });
    }
    let texts: Vec<String> =
        columns.iter().map(|name| format!("cast({} as text)", ddl::quote(name))).collect();
    let sql = format!("select {} from {name} order by 1, 2 limit {limit}", texts.join(", "));
    let sql = if columns.len() == 1 { sql.replace("order by 1, 2", "order by 1") } else { sql };
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await.map_err(errors::failed(action))?;
    let rows =
        rows.iter().map(|row| (0..row.columns().len()).map(|index| row.get(index)).collect()).collect();
    Ok(Rows { columns, rows })
}
