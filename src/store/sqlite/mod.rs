//! SQLite as a read store: one file, to which one process at a time applies.
//!
//! A lock file beside the database keeps a second `run` away ([`lock`]); other verbs may open the database meanwhile. Within
//! the process one connection writes, with WAL and `synchronous = full`, and every transaction takes the file's write lock at
//! BEGIN: so nothing changes between two statements of it, and a claim or a compare-and-set is never in a race.
//!
//! - [`connections`], [`errors`]: one transaction from BEGIN to its certain end; errors without values.
//! - [`layout`], [`schema`], [`views`], [`catalogue`]: tables and views, made or verified; [`rehearsal`] in memory first.
//! - [`register`], [`positions`], [`observe`], [`retire`], [`dead_letters`], [`read`]: what the `projector_…` tables hold.
//! - [`apply`], [`rows`], [`statements`], [`types`]: folded rows as parameters, and the SQL that writes them.
//!
//! Times of `timestamptz` are integers, microseconds since 1970-01-01 UTC; numeric, uuid, date, time, timestamp and json are
//! canonical text; booleans are 0 and 1. Types that only PostgreSQL has are refused. As text, numbers of `numeric` are equal
//! where they are equal, but do not sort as numbers: a reader casts them.

mod apply;
mod catalogue;
mod condition;
mod connections;
mod dead_letters;
mod errors;
mod layout;
mod lock;
mod observe;
mod positions;
mod read;
mod register;
mod rehearsal;
mod retire;
mod rows;
mod schema;
mod statements;
#[cfg(test)]
mod tests;
mod types;
mod views;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use self::connections::Connections;
use self::lock::RunLock;
pub use self::rehearsal::{Part, Refusal, refuse_comparison, refuse_sum, rehearse};
use super::{
    Advance, Applied, ClaimRequest, Claimed, Condition, DeadLetterFilter, DeadLetterKey, InstanceId,
    InstanceReport, LayoutState, Observed, Outcome, PartitionStatus, Promotion, ReadStore, Registered,
    Registration, ResumeOutcome, ResumeRequest, RetirePlan, Rows, StoreError, StoredDeadLetter, Transaction,
    VersionKey, VersionRow,
};
use crate::projection::Declaration;
use crate::record::TopicPartition;

/// What a database file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// To apply: one process at a time. Makes the file where there is none.
    Run,
    /// To look, or to leave a request; also while another process applies. Makes no file.
    Inspect,
}

/// A SQLite file as a read store.
pub struct SqliteStore {
    connections: Connections,
    /// Held until the store is closed, where it applies.
    lock: Mutex<Option<RunLock>>,
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the database file at `path`. With [`OpenMode::Inspect`] nothing is touched before the first method is called.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where another process applies to the file, or its folder cannot be written to.
    pub async fn open(path: &Path, mode: OpenMode) -> Result<Self, StoreError> {
        // The lock belongs to the file, whichever link leads to it.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let lock = match mode {
            OpenMode::Run => Some(RunLock::take(&path).await?),
            OpenMode::Inspect => None,
        };
        Ok(Self { connections: Connections::new(&path, mode), lock: Mutex::new(lock) })
    }
}

#[async_trait]
impl ReadStore for SqliteStore {
    async fn lay_out(&self) -> Result<(), StoreError> {
        layout::lay_out(&self.connections).await
    }

    /// Nobody else makes the tables of a file.
    async fn verify(&self, _declarations: &[Arc<Declaration>]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        register::register(&self.connections, registration).await
    }

    fn layout_ddl(&self) -> Vec<String> {
        layout::ddl()
    }

    fn ddl(&self, declaration: &Declaration) -> Vec<String> {
        let mut statements = Vec::new();
        for table in &declaration.tables {
            statements.push(schema::create_table(table, declaration.version));
            let indexes = schema::create_indexes(table, declaration.version);
            statements.extend(indexes.into_iter().map(|(_, sql)| sql));
        }
        statements
    }

    fn views_ddl(&self, declaration: &Declaration) -> Vec<String> {
        declaration.views.iter().map(|view| views::create_view(declaration, view)).collect()
    }

    async fn condition(&self, _declarations: &[&Declaration]) -> Result<Condition, StoreError> {
        condition::condition(&self.connections).await
    }

    async fn layout(&self) -> Result<LayoutState, StoreError> {
        condition::layout(&self.connections).await
    }

    async fn versions(&self) -> Result<Vec<VersionRow>, StoreError> {
        register::versions(&self.connections).await
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
        positions::claim(&self.connections, claim).await
    }

    async fn apply(&self, transaction: &Transaction<'_>) -> Result<Applied, StoreError> {
        apply::apply(&self.connections, transaction).await
    }

    async fn outcome(&self, version: &VersionKey, expected: &[Advance]) -> Result<Vec<Outcome>, StoreError> {
        positions::outcome(&self.connections, version, expected).await
    }

    async fn mark_published(&self, letters: &[DeadLetterKey]) -> Result<(), StoreError> {
        dead_letters::mark_published(&self.connections, letters).await
    }

    async fn unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::unpublished(&self.connections, version, partition, limit).await
    }

    async fn count_unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        most: u32,
    ) -> Result<u32, StoreError> {
        dead_letters::count_unpublished(&self.connections, version, partition, most).await
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list(&self.connections, filter).await
    }

    async fn observe(&self, report: &InstanceReport) -> Result<Observed, StoreError> {
        observe::observe(&self.connections, report).await
    }

    async fn sign_off(&self, instance: &InstanceId) -> Result<(), StoreError> {
        observe::sign_off(&self.connections, instance).await
    }

    async fn status(&self, projection: Option<&str>) -> Result<Vec<PartitionStatus>, StoreError> {
        observe::status(&self.connections, projection).await
    }

    async fn promote_first(&self, declaration: &Declaration) -> Result<Promotion, StoreError> {
        register::promote_first(&self.connections, declaration).await
    }

    async fn request_resume(&self, request: &ResumeRequest) -> Result<Vec<ResumeOutcome>, StoreError> {
        observe::request_resume(&self.connections, request).await
    }

    async fn retire_plan(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        retire::plan(&self.connections, version).await
    }

    async fn retire(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        retire::retire(&self.connections, version).await
    }

    async fn read_view(&self, view: &str, limit: u32) -> Result<Rows, StoreError> {
        read::read_view(&self.connections, view, limit).await
    }

    async fn close(&self) {
        self.connections.close().await;
        // Only now may another process apply.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
