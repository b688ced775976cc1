//! PostgreSQL as a read store.
//!
//! Nothing depends on the state of a session: time limits and locks are those of the transaction, statements may be unnamed
//! (`?pgbouncer=true` in the URL), and every name carries its schema. So PgBouncer may stand between.
//!
//! - [`connections`], [`work`], [`errors`]: a bounded number of connections; one transaction from BEGIN to its certain end;
//!   errors without values.
//! - [`layout`], [`own_tables`], [`schema`], [`views`], [`view_sql`], [`gaps`], [`catalogue`]: tables and views, made or verified under an
//!   advisory lock; [`condition`]: what is there and what may be done, for `check`.
//! - [`register`], [`positions`], [`observe`], [`retire`], [`dead_letters`], [`read`]: what the `projector_…` tables hold.
//! - [`apply`], [`rows`], [`statements`], [`array`], [`types`]: folded rows as arrays, and the SQL that writes them.

mod apply;
mod array;
mod catalogue;
mod condition;
mod connections;
mod dead_letters;
mod errors;
mod gaps;
mod layout;
mod names;
mod observe;
mod own_tables;
mod positions;
mod read;
mod register;
mod retire;
mod rights;
mod rows;
mod schema;
mod statements;
#[cfg(test)]
mod tests;
mod types;
mod view_sql;
mod views;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::connections::Connections;
use self::work::TimeLimits;
use super::{
    Advance, Applied, ClaimRequest, Claimed, Condition, DeadLetterFilter, DeadLetterKey, InstanceId,
    InstanceReport, LayoutState, Observed, Outcome, PartitionStatus, Promotion, ReadStore, Registered,
    Registration, ResumeOutcome, ResumeRequest, RetirePlan, Rows, StoreError, StoredDeadLetter, Transaction,
    VersionKey, VersionRow,
};
use crate::config::settings::{DdlMode, StoreSettings};
use crate::projection::Declaration;
use crate::record::TopicPartition;

/// How long a claim, and everything else that is short, waits for a lock.
const CLAIM_LOCK: Duration = Duration::from_secs(2);

/// How long making tables and indexes may take.
const DDL: Duration = Duration::from_mins(10);

/// A PostgreSQL database as a read store.
pub struct PostgresStore {
    connections: Connections,
    /// For DDL, where `store.admin_url` is given.
    admin: Option<Connections>,
    schema: String,
    readers: Vec<String>,
    ddl: DdlMode,
    statement_timeout: Duration,
    statements: statements::Statements,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// A store for these settings. Connects to nothing: the first method that is called does.
    ///
    /// # Errors
    /// [`StoreError::Refused`] where a URL cannot be read, or the schema's name cannot be one.
    pub fn connect(settings: &StoreSettings) -> Result<Self, StoreError> {
        names::check("schema", &settings.schema)?;
        let connections = Connections::new(&settings.url, "store.url", settings.writers)?;
        let admin =
            settings.admin_url.as_ref().map(|url| Connections::new(url, "store.admin_url", 1)).transpose()?;
        Ok(Self {
            connections,
            admin,
            schema: settings.schema.clone(),
            readers: settings.readers.clone(),
            ddl: settings.ddl,
            statement_timeout: settings.statement_timeout,
            statements: statements::Statements::default(),
        })
    }

    /// Puts the schema into a statement of this program.
    fn sql(&self, text: &str) -> String {
        layout::in_schema(&self.schema, text)
    }

    /// Where DDL runs.
    fn ddl_connections(&self) -> &Connections {
        self.admin.as_ref().filter(|_| self.ddl == DdlMode::Apply).unwrap_or(&self.connections)
    }

    /// The role that applies.
    fn role(&self) -> &str {
        self.connections.role()
    }

    /// The role that must be granted what another one makes.
    fn granted_role(&self) -> Option<&str> {
        let admin = self.admin.as_ref()?;
        (admin.role() != self.connections.role()).then(|| self.connections.role())
    }

    /// Of transactions that write rows. A lock is waited for half as long as a statement may take, so that it is the lock
    /// that is named.
    fn write_limits(&self) -> TimeLimits {
        TimeLimits { lock: self.statement_timeout / 2, statement: self.statement_timeout }
    }

    fn claim_limits(&self) -> TimeLimits {
        TimeLimits { lock: CLAIM_LOCK.min(self.statement_timeout / 2), statement: self.statement_timeout }
    }

    fn ddl_limits(&self) -> TimeLimits {
        TimeLimits { lock: self.statement_timeout, statement: DDL.max(self.statement_timeout) }
    }
}

#[async_trait]
impl ReadStore for PostgresStore {
    async fn lay_out(&self) -> Result<(), StoreError> {
        layout::lay_out(self).await
    }

    async fn verify(&self, declarations: &[Arc<Declaration>]) -> Result<(), StoreError> {
        layout::verify(self, declarations).await
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        register::register(self, registration).await
    }

    fn layout_ddl(&self) -> Vec<String> {
        layout::ddl(self)
    }

    fn ddl(&self, declaration: &Declaration) -> Vec<String> {
        let (schema, version) = (&self.schema, declaration.version);
        let mut statements = Vec::new();
        for table in &declaration.tables {
            statements.push(schema::create_table(schema, table, version));
            let indexes = schema::create_indexes(schema, table, version);
            statements.extend(indexes.into_iter().map(|(_, sql)| sql));
            statements.push(rights::grant_table(schema, &table.physical_name(version), self.role()));
        }
        statements
    }

    fn views_ddl(&self, declaration: &Declaration) -> Vec<String> {
        view_sql::ddl(self, declaration)
    }

    async fn condition(&self, declarations: &[&Declaration]) -> Result<Condition, StoreError> {
        condition::condition(self, declarations).await
    }

    async fn layout(&self) -> Result<LayoutState, StoreError> {
        condition::layout(self).await
    }

    async fn versions(&self) -> Result<Vec<VersionRow>, StoreError> {
        register::versions(self).await
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
        positions::claim(self, claim).await
    }

    async fn apply(&self, transaction: &Transaction<'_>) -> Result<Applied, StoreError> {
        apply::apply(self, transaction).await
    }

    async fn outcome(&self, version: &VersionKey, expected: &[Advance]) -> Result<Vec<Outcome>, StoreError> {
        positions::outcome(self, version, expected).await
    }

    async fn mark_published(&self, letters: &[DeadLetterKey]) -> Result<(), StoreError> {
        dead_letters::mark_published(self, letters).await
    }

    async fn unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::unpublished(self, version, partition, limit).await
    }

    async fn count_unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        most: u32,
    ) -> Result<u32, StoreError> {
        dead_letters::count_unpublished(self, version, partition, most).await
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list(self, filter).await
    }

    async fn observe(&self, report: &InstanceReport) -> Result<Observed, StoreError> {
        observe::observe(self, report).await
    }

    async fn sign_off(&self, instance: &InstanceId) -> Result<(), StoreError> {
        observe::sign_off(self, instance).await
    }

    async fn status(&self, projection: Option<&str>) -> Result<Vec<PartitionStatus>, StoreError> {
        observe::status(self, projection).await
    }

    async fn promote_first(&self, declaration: &Declaration) -> Result<Promotion, StoreError> {
        register::promote_first(self, declaration).await
    }

    async fn request_resume(&self, request: &ResumeRequest) -> Result<Vec<ResumeOutcome>, StoreError> {
        observe::request_resume(self, request).await
    }

    async fn retire_plan(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        retire::plan(self, version).await
    }

    async fn retire(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        retire::retire(self, version).await
    }

    async fn read_view(&self, view: &str, limit: u32) -> Result<Rows, StoreError> {
        read::read_view(self, view, limit).await
    }

    async fn close(&self) {
        self.connections.close().await;
        if let Some(admin) = &self.admin {
            admin.close().await;
        }
    }
}
