//! The read store: where rows, dead letters and positions are written in one transaction.
//!
//! [`ReadStore`] is the seam. Its contract is prose on each method, and `contract.rs` is one suite of tests that every
//! store passes. Nothing outside this module sees SQL, and nothing of a database's message leaves it but its code, the
//! constraint and the column (promise P10), and what it says about DDL that looks at no rows. Errors are not classified here:
//! see `pipeline::retry`.

mod admission;
#[cfg(test)]
pub(crate) mod contract;
pub mod error;
pub mod faulty;
pub mod model;
pub mod postgres;
mod quarantine;
mod sql;
pub mod sqlite;
mod view_text;

use std::sync::Arc;

use async_trait::async_trait;

pub use error::{DatabaseCode, StoreError};
pub use model::*;
pub use quarantine::Quarantine;

use crate::projection::Declaration;
use crate::record::TopicPartition;

/// A database that holds views, positions and dead letters.
///
/// Every method that writes does so in one transaction with its own lock, statement and idle timeouts, all below the
/// consumer's session timeout. A future of this trait must be driven to its end: callers spawn it and never drop it
/// half-way, so that no connection is left inside a transaction.
#[async_trait]
pub trait ReadStore: Send + Sync + 'static {
    /// Where somebody else makes tables (`store.ddl: verify`), names everything that is missing for the projector and these
    /// projections, in one error with the SQL that makes it. Where the program makes them, does nothing.
    ///
    /// # Errors
    /// [`StoreError::Layout`] for what is missing, or differs so that no SQL ends it.
    async fn verify(&self, declarations: &[Arc<Declaration>]) -> Result<(), StoreError>;

    /// Makes or verifies the `projector_…` tables under the store's lock. Idempotent, safe from several processes.
    ///
    /// # Errors
    /// [`StoreError::Layout`] where the store was laid out by a newer program, or a table differs from what is declared
    /// (the message names it and the fix); anything else as the database reports it.
    async fn lay_out(&self) -> Result<(), StoreError>;

    /// Registers a version: its text, digest, tables, start positions and boundary, all in one transaction under the
    /// lock. Where it is registered already, verifies digest, cluster, group and tables instead, adds indexes that are new in
    /// the declaration, and, where it is live, makes its views as they are declared now: new ones are made, changed ones
    /// replaced where their shape allows it, and those dropped that are no longer declared. Before it is live none of its
    /// views may be there (promise P8).
    ///
    /// # Errors
    /// [`StoreError::Refused`] for another digest under the same number, another version that is not retired, another
    /// cluster or group, and for a view of somebody else; [`StoreError::Layout`] for a table or view that differs from
    /// what is declared.
    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError>;

    /// The SQL that makes the `projector_…` tables with the rights on them, whatever of them is there already.
    fn layout_ddl(&self) -> Vec<String>;

    /// The SQL that makes the tables and indexes of a declaration, with the rights on them.
    fn ddl(&self, declaration: &Declaration) -> Vec<String>;

    /// The SQL that makes the views of a declaration, to be run when the version has caught up and never before.
    fn views_ddl(&self, declaration: &Declaration) -> Vec<String>;

    /// What the store is like before anything is done to it: whether it is laid out, and what would keep
    /// [`ReadStore::lay_out`] and [`ReadStore::register`] from working that can be told by reading alone.
    async fn condition(&self, declarations: &[&Declaration]) -> Result<Condition, StoreError>;

    /// Whether the projector's own tables are there; what other methods but [`ReadStore::condition`] read and write.
    async fn layout(&self) -> Result<LayoutState, StoreError>;

    /// Every version that the store knows, by projection and number.
    async fn versions(&self) -> Result<Vec<VersionRow>, StoreError>;

    /// Takes over a partition: `epoch = epoch + 1 where epoch = seen`, and reads its row. A partition without a row (it
    /// appeared after registration) gets one at position 0, boundary 0.
    ///
    /// The lock timeout is short: a partition whose row another transaction holds is an infrastructure error to retry.
    async fn claim(&self, claim: &ClaimRequest) -> Result<Claimed, StoreError>;

    /// Applies folded changes, dead letters and positions in one transaction; the compare-and-set of all positions is
    /// its last statement. Rows of a round are written by table in declared order for upserts, in reverse for deletes,
    /// and by ascending key.
    ///
    /// Returns [`Applied::Fenced`], having rolled back, where one of the positions is not as expected.
    ///
    /// # Errors
    /// [`StoreError::CommitUnknown`] where COMMIT was sent and no answer came: [`ReadStore::outcome`] then decides.
    /// [`StoreError::ForeignRow`] where a row belongs to another aggregate. Otherwise what the database said; the
    /// transaction has been rolled back or will be by the server.
    async fn apply(&self, transaction: &Transaction<'_>) -> Result<Applied, StoreError>;

    /// Decides an unknown COMMIT: locks the position rows (`select … for update`) and compares each with the fence that
    /// the transaction expected (promise P2).
    async fn outcome(&self, version: &VersionKey, expected: &[Advance]) -> Result<Vec<Outcome>, StoreError>;

    /// Marks dead letters as published, in a transaction of its own.
    async fn mark_published(&self, letters: &[DeadLetterKey]) -> Result<(), StoreError>;

    /// Dead letters of a version that are not published yet, oldest first, at most `limit`.
    async fn unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// How many dead letters of a partition are not published yet; counts no further than `most`.
    async fn count_unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        most: u32,
    ) -> Result<u32, StoreError>;

    /// Dead letters by filter, oldest first.
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<StoredDeadLetter>, StoreError>;

    /// Writes this instance's heartbeat and observations in one transaction, outside the revisions, and returns the
    /// requests of operators for the observed partitions, and those that have another owner by now. Rows of other
    /// instances are left alone.
    async fn observe(&self, report: &InstanceReport) -> Result<Observed, StoreError>;

    /// Removes this instance's heartbeat, at the end of a clean shutdown.
    async fn sign_off(&self, instance: &InstanceId) -> Result<(), StoreError>;

    /// Positions, observations and open dead letters of all versions, or those of one projection, in one snapshot.
    async fn status(&self, projection: Option<&str>) -> Result<Vec<PartitionStatus>, StoreError>;

    /// Creates the views of the first version and makes it live, if every position has reached its boundary and
    /// nothing else is live. Idempotent; returns whether the version is live now.
    ///
    /// # Errors
    /// [`StoreError::Layout`] where somebody else makes views and they are not as declared yet; [`StoreError::Refused`] where
    /// something of such a name is there. Both end when that has been mended, without a restart.
    async fn promote_first(&self, declaration: &Declaration) -> Result<Promotion, StoreError>;

    /// Leaves a request for the owner of quarantined partitions; with no live owner, for the next one.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where none of them ends by `resume`: see [`Quarantine::ends_by_resume`].
    async fn request_resume(&self, request: &ResumeRequest) -> Result<Vec<ResumeOutcome>, StoreError>;

    /// What [`ReadStore::retire`] would drop.
    async fn retire_plan(&self, version: &VersionKey) -> Result<RetirePlan, StoreError>;

    /// Drops the version's views, tables, positions, dead letters and sequences; fences its owners by removing their
    /// position rows; keeps a `projector_versions` row in no state at all, so that the number is free again.
    async fn retire(&self, version: &VersionKey) -> Result<RetirePlan, StoreError>;

    /// The first `limit` rows of a view, every value as the store's own text, ordered by the first columns.
    async fn read_view(&self, view: &str, limit: u32) -> Result<Rows, StoreError>;

    /// Ends all connections.
    async fn close(&self);
}

/// A store that is shared by every part of the process.
pub type SharedStore = Arc<dyn ReadStore>;
