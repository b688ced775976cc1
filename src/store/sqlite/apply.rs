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
        Ok(fenced) if fenced.is_empty() => {
            work.commit().await?;
            Ok(Applied::Committed)
        }
        Ok(fenced) => {
            work.rollback().await;
            Ok(Applied::Fenced(fenced))
        }
        Err(error) => {
            work.rollback().await;
            Err(error)
        }
    }
}

/// Everything up to COMMIT. Returns the partitions that are not as expected.
async fn write(work: &mut Work<'_>, transaction: &Transaction<'_>) -> Result<Vec<usize>, StoreError> {
    // The compare-and-set comes last, as in every store. Since nobody else writes in between, a look ahead says the same and
    // saves the work; and the tables of a version that has been retired are not there to be written to.
    let fenced = positions::fenced(work, transaction.version, transaction.advances).await?;
    if !fenced.is_empty() {
        return Ok(fenced);
    }
    for round in &transaction.rounds {
        rows::write_round(work, transaction, round).await?;
    }
    dead_letters::insert(work, &transaction.dead_letters).await?;
    positions::advance(work, transaction.version, transaction.advances).await
}
