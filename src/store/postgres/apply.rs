//! Applying: rows, dead letters, publication marks and positions in one transaction.

use sqlx::Row as _;

use super::PostgresStore;
use super::array::Mismatch;
use super::connections::Purpose;
use super::dead_letters;
use super::errors::{SERIALIZATION_FAILURE, bug};
use super::positions;
use super::rows::{self, Row, Sorted};
use super::statements::{Shape, Statement, Target, ToAbsent, ToPresent};
use super::work::Work;
use crate::fold::FoldedTable;
use crate::projection::Ownership;
use crate::store::error::ErrorPlace;
use crate::store::{Applied, DatabaseCode, StoreError, Transaction};

const APPLY: &str = "apply a batch";

/// How often a transaction that met a row in the making is done again at once.
const RACES: usize = 5;

/// Why a transaction goes no further.
enum Stop {
    /// An error.
    Failed(StoreError),
    /// Another transaction made a row, or removed it, between two looks at it.
    Raced,
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

impl From<Mismatch> for Stop {
    fn from(Mismatch: Mismatch) -> Self {
        Self::Failed(bug(APPLY, "a value is not of its column's type"))
    }
}

pub(super) async fn apply(
    store: &PostgresStore,
    transaction: &Transaction<'_>,
) -> Result<Applied, StoreError> {
    for _ in 0..RACES {
        let limits = store.write_limits();
        let mut work = Work::begin(&store.connections, Purpose::Write, APPLY, limits).await?;
        match write(store, &mut work, transaction).await {
            Ok(fenced) if fenced.is_empty() => {
                work.commit().await?;
                return Ok(Applied::Committed);
            }
            Ok(fenced) => {
                work.rollback().await;
                return Ok(Applied::Fenced(fenced));
            }
            Err(Stop::Failed(error)) => {
                work.rollback().await;
                return Err(error);
            }
            Err(Stop::Raced) => work.rollback().await,
        }
    }
    Err(StoreError::Database {
        action: APPLY,
        code: DatabaseCode::SqlState(SERIALIZATION_FAILURE.to_owned()),
        place: ErrorPlace::default(),
    })
}

/// Everything up to COMMIT. Returns the partitions that are not as expected.
async fn write(
    store: &PostgresStore,
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
) -> Result<Vec<usize>, Stop> {
    for round in &transaction.rounds {
        write_round(store, work, transaction, round).await?;
    }
    dead_letters::insert(store, work, &transaction.dead_letters).await?;
    Ok(positions::advance(store, work, transaction.version, transaction.advances).await?)
}

/// Upserts by table in declared order, then deletes in reverse.
async fn write_round(
    store: &PostgresStore,
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
    round: &[FoldedTable<'_>],
) -> Result<(), Stop> {
    let mut tables = Vec::with_capacity(round.len());
    for folded in round {
        let Some(table) = transaction.tables.get(folded.table.0) else {
            return Err(bug(APPLY, "rows of a table that is not declared").into());
        };
        let target = Target::new(&store.schema, table, transaction.version.version);
        let sorted = Sorted::of(&target, &folded.rows);
        tables.push((folded.table, target, sorted));
    }
    tables.sort_by_key(|(id, _, _)| *id);
    for (_, target, sorted) in &tables {
        let mut writer = Writer { store, work, target };
        for (shape, rows) in &sorted.by_shape {
            writer.by_shape(shape, rows).await?;
        }
        for (way, rows) in &sorted.by_mask {
            writer.by_mask(*way, rows).await?;
        }
    }
    for (_, target, sorted) in tables.iter().rev() {
        Writer { store, work, target }.delete(&sorted.deletes).await?;
    }
    Ok(())
}

/// Writes to one table.
struct Writer<'w, 'c> {
    store: &'w PostgresStore,
    work: &'w mut Work<'c>,
    target: &'w Target<'w>,
}

impl Writer<'_, '_> {
    async fn by_shape(&mut self, shape: &Shape, rows: &[Row<'_>]) -> Result<(), Stop> {
        let Some(sql) = self.store.statements.get(self.target, Statement::ByShape(shape.clone())) else {
            return self.by_mask((ToPresent::Update, ToAbsent::InsertSame), rows).await;
        };
        for part in rows::parts(rows) {
            let written = self.work.run(&sql, rows::by_shape(self.target, shape, part)?).await?;
            // Where rows carry their aggregate, a row that was found and not written is another's.
            if self.target.table.stores_aggregate() && written < part.len() as u64 {
                return Err(self.foreign().into());
            }
        }
        Ok(())
    }

    async fn by_mask(&mut self, way: (ToPresent, ToAbsent), rows: &[Row<'_>]) -> Result<(), Stop> {
        let sql = self.statement(Statement::ByMask(way.0, way.1))?;
        for part in rows::parts(rows) {
            if self.target.table.ownership == Ownership::Shared {
                let lock = self.statement(Statement::Lock)?;
                self.work.run(&lock, rows::keyed(self.target, part)?).await?;
            }
            let answer = self.work.rows(&sql, rows::by_mask(self.target, way, part)?).await?;
            let (found, made) = counts(&answer).ok_or_else(|| bug(APPLY, "two counts were asked for"))?;
            let complete = found + made == part.len() as u64;
            // A row that is there and to be kept is not written: whose it is does not matter.
            if !complete && way.0 != ToPresent::Keep {
                if self.any_foreign(part).await? {
                    return Err(self.foreign().into());
                }
                // A row is either there or made, unless one of the two is not asked for.
                if way.1 != ToAbsent::Nothing {
                    return Err(Stop::Raced);
                }
            }
        }
        Ok(())
    }

    async fn delete(&mut self, rows: &[Row<'_>]) -> Result<(), Stop> {
        for part in rows::parts(rows) {
            let sql = self.statement(Statement::Delete)?;
            let deleted = self.work.run(&sql, rows::keyed(self.target, part)?).await?;
            if deleted < part.len() as u64 && self.any_foreign(part).await? {
                return Err(self.foreign().into());
            }
        }
        Ok(())
    }

    async fn any_foreign(&mut self, rows: &[Row<'_>]) -> Result<bool, Stop> {
        if !self.target.table.stores_aggregate() {
            return Ok(false);
        }
        let sql = self.statement(Statement::AnyForeign)?;
        let answer = self.work.rows(&sql, rows::keyed(self.target, rows)?).await?;
        Ok(answer.first().is_some_and(|row| row.try_get(0).unwrap_or(false)))
    }

    fn foreign(&self) -> StoreError {
        StoreError::ForeignRow { table: self.target.table.name.clone() }
    }

    /// A statement that every table may have.
    fn statement(&self, statement: Statement) -> Result<std::sync::Arc<str>, StoreError> {
        let text = self.store.statements.get(self.target, statement);
        text.ok_or_else(|| bug(APPLY, "a statement is missing"))
    }
}

fn counts(answer: &[sqlx::postgres::PgRow]) -> Option<(u64, u64)> {
    let row = answer.first()?;
    let count = |index: usize| row.try_get::<i64, _>(index).ok().and_then(|count| u64::try_from(count).ok());
    Some((count(0)?, count(1)?))
}
