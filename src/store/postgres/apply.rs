//! Applying: rows, dead letters, publication marks and positions in one transaction.

use sqlx::Row as _;

use super::PostgresStore;
use super::array::Mismatch;
use super::connections::Purpose;
use super::dead_letters;
use super::errors::{SERIALIZATION_FAILURE, bug};
use super::positions;
use super::rows::{self, Row, Sorted};
use super::statements::{GuardShape, MaskWay, Shape, Statement, Target, ToAbsent, ToPresent};
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
            Ok((fenced, missed_updates)) if fenced.is_empty() => {
                work.commit().await?;
                return Ok(Applied::Committed { missed_updates });
            }
            Ok((fenced, _)) => {
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

/// Everything up to COMMIT. Returns the partitions that are not as expected, and how many updates found no row.
async fn write(
    store: &PostgresStore,
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
) -> Result<(Vec<usize>, u64), Stop> {
    let mut missed = 0;
    for round in &transaction.rounds {
        missed += write_round(store, work, transaction, round).await?;
    }
    dead_letters::insert(store, work, &transaction.dead_letters).await?;
    let fenced = positions::advance(store, work, transaction.version, transaction.advances).await?;
    Ok((fenced, missed))
}

/// Upserts by table in declared order, then deletes in reverse. Returns how many updates found no row.
async fn write_round(
    store: &PostgresStore,
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
    round: &[FoldedTable<'_>],
) -> Result<u64, Stop> {
    let mut missed = 0;
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
    for (id, target, sorted) in &tables {
        let mut writer = Writer { store, work, target };
        // Two transactions that write the same rows in several statements would wait for each other.
        if target.table.ownership == Ownership::Shared && sorted.by_shape.len() + sorted.by_mask.len() > 1 {
            let rows = round.iter().filter(|folded| folded.table == *id).flat_map(|folded| &folded.rows);
            writer.lock(&rows.copied().collect::<Vec<_>>()).await?;
        }
        for (shape, rows) in &sorted.by_shape {
            writer.by_shape(shape, rows).await?;
        }
        for (way, rows) in &sorted.by_mask {
            missed += writer.by_mask(way, rows).await?;
        }
    }
    for (_, target, sorted) in tables.iter().rev() {
        let mut writer = Writer { store, work, target };
        writer.delete(&sorted.deletes).await?;
        for (way, rows) in &sorted.guarded_deletes {
            writer.by_mask(way, rows).await?;
        }
    }
    Ok(missed)
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
            let guard = GuardShape { newer: shape.newer.clone(), only_if: Vec::new() };
            let way = MaskWay { present: ToPresent::Update, absent: ToAbsent::InsertSame, guard };
            // Such rows are made where they are not there.
            return self.by_mask(&way, rows).await.map(|_| ());
        };
        for part in rows::parts(rows) {
            let written = self.work.run(&sql, rows::by_shape(self.target, shape, part)?).await?;
            // A row that was found and not written is another's, where rows carry their aggregate, or is newer.
            let is_foreign = self.target.table.stores_aggregate()
                && written < part.len() as u64
                && (shape.newer.is_empty() || self.any_foreign(part).await?);
            if is_foreign {
                return Err(self.foreign().into());
            }
        }
        Ok(())
    }

    /// Returns how many rows were to be updated and are not there.
    async fn by_mask(&mut self, way: &MaskWay, rows: &[Row<'_>]) -> Result<u64, Stop> {
        let mut missed = 0;
        let sql = self.statement(Statement::ByMask(way.clone()))?;
        for part in rows::parts(rows) {
            if self.target.table.ownership == Ownership::Shared {
                self.lock(part).await?;
            }
            let answer = self.work.rows(&sql, rows::by_mask(self.target, way, part)?).await?;
            let [changed, made, kept] =
                counts(&answer).ok_or_else(|| bug(APPLY, "three counts were asked for"))?;
            // A row that is there and to be kept is not written: whose it is does not matter.
            if changed + made == part.len() as u64 || way.present == ToPresent::Keep {
                continue;
            }
            if self.any_foreign(part).await? {
                return Err(self.foreign().into());
            }
            // A row is either there or made, unless one of the two is not asked for.
            let missing = (part.len() as u64).saturating_sub(changed + made + kept);
            if missing > 0 && way.absent != ToAbsent::Nothing {
                return Err(Stop::Raced);
            }
            if way.present == ToPresent::Update {
                missed += missing;
            }
        }
        Ok(missed)
    }

    async fn lock(&mut self, rows: &[Row<'_>]) -> Result<(), Stop> {
        let sql = self.statement(Statement::Lock)?;
        for part in rows::parts(rows) {
            self.work.run(&sql, rows::keyed(self.target, part)?).await?;
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

fn counts(answer: &[sqlx::postgres::PgRow]) -> Option<[u64; 3]> {
    let row = answer.first()?;
    let count = |index: usize| row.try_get::<i64, _>(index).ok().and_then(|count| u64::try_from(count).ok());
    Some([count(0)?, count(1)?, count(2)?])
}
