//! Applying: rows, dead letters, publication marks and positions in one transaction.

use super::connections::{Connections, Purpose, Work};
use super::{dead_letters, positions, rows};
use crate::store::{Applied, StoreError, Transaction};

pub(super) async fn apply(
    connections: &Connections,
    transaction: &Transaction<'_>,
) -> Result<Applied, StoreError> {
    let mut work = Work::begin(connections, Purpose::Write, "apply a batch").await?;
    match write(&mut work, transaction).await {
        Ok((fenced, missed_updates)) if fenced.is_empty() => {
            work.commit().await?;
            Ok(Applied::Committed { missed_updates })
        }
        Ok((fenced, _)) => {
            work.rollback().await;
            Ok(Applied::Fenced(fenced))
        }
        Err(error) => {
            work.rollback().await;
            Err(error)
        }
    }
}

/// Everything up to COMMIT. Returns the partitions that are not as expected, and how many updates found no row.
async fn write(work: &mut Work<'_>, transaction: &Transaction<'_>) -> Result<(Vec<usize>, u64), StoreError> {
    // The compare-and-set comes last, as in every store. Since nobody else writes in between, a look ahead says the same and
    // saves the work; and the tables of a version that has been retired are not there to be written to.
    let fenced = positions::fenced(work, transaction.version, transaction.advances).await?;
    if !fenced.is_empty() {
        return Ok((fenced, 0));
    }
    let mut missed = 0;
    for round in &transaction.rounds {
        missed += rows::write_round(work, transaction, round).await?;
    }
    dead_letters::insert(work, &transaction.dead_letters).await?;
    let fenced = positions::advance(work, transaction.version, transaction.advances).await?;
    Ok((fenced, missed))
}
