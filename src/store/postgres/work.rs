//! One transaction on one connection, from BEGIN to its certain end.
//!
//! The states of a connection and of its transaction are never guessed: a `Work` that is dropped before [`Work::commit`] or
//! [`Work::rollback`] has come back closes its connection, and so does an answer that did not come in time.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Encode, Postgres, Type};

use super::connections::{Connections, Loan, Origin, Purpose, Statements};
use super::errors::{self, Complaint, Health, bug, no_answer};
use crate::store::StoreError;

/// How much later than the server's own limit an answer may come before it is given up.
const SLACK: Duration = Duration::from_secs(5);
/// Connections that may turn out dead at the start of one transaction: as many as there can be, and one.
const STALE: usize = 64;

/// The time limits that the server holds a transaction to.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeLimits {
    /// Of waiting for a lock.
    pub(super) lock: Duration,
    /// Of one statement, and of a pause between two.
    pub(super) statement: Duration,
}

/// A transaction under way.
pub(super) struct Work<'a> {
    connections: &'a Connections,
    /// `None` once the connection is known to be unusable.
    loan: Option<Loan>,
    action: &'static str,
    deadline: Duration,
}

/// Parameters of one statement.
pub(super) struct Parameters {
    list: PgArguments,
    failed: bool,
}

impl Parameters {
    pub(super) fn new() -> Self {
        Self { list: PgArguments::default(), failed: false }
    }

    pub(super) fn and<'t, T: Encode<'t, Postgres> + Type<Postgres>>(mut self, value: T) -> Self {
        self.push(value);
        self
    }

    pub(super) fn push<'t, T: Encode<'t, Postgres> + Type<Postgres>>(&mut self, value: T) {
        self.failed |= self.list.add(value).is_err();
    }
}

impl<'a> Work<'a> {
    /// Begins a transaction, with its time limits set in the same round trip.
    pub(super) async fn begin(
        connections: &'a Connections,
        purpose: Purpose,
        action: &'static str,
        limits: TimeLimits,
    ) -> Result<Self, StoreError> {
        let statement = limits.statement.as_millis().max(1);
        // An explicit level: a role's default may be another one. Notices are of no use and may quote values.
        let begin = format!(
            "begin isolation level read committed; \
             set local client_min_messages = error; \
             set local lock_timeout = {lock}; \
             set local statement_timeout = {statement}; \
             set local idle_in_transaction_session_timeout = {statement}",
            lock = limits.lock.as_millis().max(1),
        );
        let deadline = limits.statement + SLACK;
        for _ in 0..STALE {
            let loan = connections.borrow(action, purpose).await?;
            let was_idle = loan.origin == Origin::Idle;
            let mut work = Self { connections, loan: Some(loan), action, deadline };
            match work.script(&begin).await {
                Ok(()) => return Ok(work),
                Err(error) if !(was_idle && work.loan.is_none()) => return Err(error),
                // The connection died while nobody used it: the next one.
                Err(_) => {}
            }
        }
        Err(no_answer(action, "connections end as soon as they are used"))
    }

    /// Runs a statement and returns its rows.
    pub(super) async fn rows(&mut self, sql: &str, parameters: Parameters) -> Result<Vec<PgRow>, StoreError> {
        let query = self.query(sql, parameters)?;
        self.answer(async |connection| query.fetch_all(connection).await).await
    }

    /// Runs a statement and returns the number of rows that it wrote.
    pub(super) async fn run(&mut self, sql: &str, parameters: Parameters) -> Result<u64, StoreError> {
        let query = self.query(sql, parameters)?;
        let done = self.answer(async |connection| query.execute(connection).await).await?;
        Ok(done.rows_affected())
    }

    /// Runs statements without parameters, in one round trip.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), StoreError> {
        let script = sqlx::raw_sql(AssertSqlSafe(sql));
        self.answer(async |connection| script.execute(connection).await).await.map(drop)
    }

    /// Runs a statement that may be refused without ending the transaction.
    pub(super) async fn attempt(&mut self, sql: &str) -> Result<Result<(), StoreError>, StoreError> {
        self.script("savepoint attempt").await?;
        match self.script(sql).await {
            Ok(()) => {
                self.script("release savepoint attempt").await?;
                Ok(Ok(()))
            }
            Err(error) if self.loan.is_some() => {
                self.script("rollback to savepoint attempt; release savepoint attempt").await?;
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Like [`Work::attempt`], for a declaration's DDL that looks at no rows: with PostgreSQL's own words.
    pub(super) async fn declared(&mut self, sql: &str) -> Result<Result<(), Complaint>, StoreError> {
        self.script("savepoint declared").await?;
        let mut said = None;
        let script = sqlx::raw_sql(AssertSqlSafe(sql));
        let done = self
            .answer(async |connection| {
                script.execute(connection).await.inspect_err(|error| said = errors::said(error))
            })
            .await;
        match done {
            Ok(_) => {
                self.script("release savepoint declared").await?;
                Ok(Ok(()))
            }
            Err(error) if self.loan.is_some() => {
                self.script("rollback to savepoint declared; release savepoint declared").await?;
                Ok(Err(Complaint { error, said }))
            }
            Err(error) => Err(error),
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

    /// Commits. [`StoreError::CommitUnknown`] where no answer came.
    pub(super) async fn commit(mut self) -> Result<(), StoreError> {
        let Some(loan) = self.loan.as_mut() else {
            return Err(no_answer(self.action, "the connection has ended"));
        };
        let commit = sqlx::raw_sql("commit").execute(&mut loan.connection);
        match tokio::time::timeout(self.deadline, commit).await {
            Ok(Ok(_)) => {
                self.give_back();
                Ok(())
            }
            Ok(Err(error)) => {
                let answer = errors::on_commit(&error);
                if answer == StoreError::CommitUnknown {
                    self.loan = None;
                } else {
                    self.rollback().await;
                }
                Err(answer)
            }
            Err(_) => {
                self.loan = None;
                Err(StoreError::CommitUnknown)
            }
        }
    }

    /// Rolls back. Where that cannot be done the connection is closed, and the server rolls back.
    pub(super) async fn rollback(mut self) {
        if self.loan.is_some() && self.script("rollback").await.is_ok() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(loan) = self.loan.take() {
            self.connections.give_back(loan);
        }
    }

    fn query(
        &self,
        sql: &str,
        parameters: Parameters,
    ) -> Result<sqlx::query::Query<'static, Postgres, PgArguments>, StoreError> {
        if parameters.failed {
            return Err(bug(self.action, "a parameter cannot be encoded"));
        }
        let query = sqlx::query_with(AssertSqlSafe(sql), parameters.list);
        Ok(query.persistent(self.connections.statements == Statements::Kept))
    }

    /// Waits for the answer to `ask`, at most as long as the server may take. Drops the connection where it is unusable now.
    async fn answer<T>(
        &mut self,
        ask: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        // Taken out for as long as an answer is open: a future that is dropped meanwhile takes the connection with it.
        let Some(mut loan) = self.loan.take() else {
            return Err(no_answer(self.action, "the connection has ended"));
        };
        match tokio::time::timeout(self.deadline, ask(&mut loan.connection)).await {
            Ok(Ok(value)) => {
                self.loan = Some(loan);
                Ok(value)
            }
            Ok(Err(error)) => {
                let (error, health) = errors::read(self.action, &error);
                if health == Health::Usable {
                    self.loan = Some(loan);
                }
                Err(error)
            }
            Err(_) => Err(no_answer(self.action, format!("none within {} s", self.deadline.as_secs()))),
        }
    }
}
