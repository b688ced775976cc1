//! Positions of partitions that their topic no longer has.
//!
//! Kafka never takes a partition away: the topic was made anew with fewer. The group assigns such a partition to nobody, so nobody would
//! say a word of it. Whoever finds it claims it, as an owner would, and stores the quarantine.

use crate::record::TopicPartition;
use crate::source::{Cluster, SourceError, TopicDescription};
use crate::store::{
    Advance, Applied, ClaimRequest, Claimed, InstanceId, PartitionStatus, Quarantine, QuarantineChange,
    SharedStore, StoreError, Transaction,
};

use super::VersionParts;

/// An observation that is younger, in seconds, is that of an owner: its partition is not missing.
const OBSERVED_SECONDS: f64 = 10.0;

/// Why looking for missing partitions came to nothing; it is done again.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cluster did not answer.
    #[error(transparent)]
    Cluster(#[from] SourceError),
}

/// Quarantines the version's partitions that nobody observes and their topics do not have.
///
/// # Errors
/// Store or cluster did not answer.
pub async fn quarantine(
    store: &SharedStore,
    cluster: &dyn Cluster,
    parts: &VersionParts,
    instance: &InstanceId,
) -> Result<(), LookError> {
    let rows = store.status(Some(&parts.version.projection)).await?;
    let alone: Vec<_> =
        rows.iter().filter(|row| row.version == parts.version && is_left_alone(row)).collect();
    if alone.is_empty() {
        return Ok(());
    }
    let described = cluster.describe(&parts.topics()).await?;
    for row in alone {
        let Some(topic) = described.get(&*row.partition.topic) else { continue };
        if is_missing(row.partition.partition, row.topic_id.as_deref(), topic) {
            stop(store, parts, instance, &row.partition, topic).await?;
        }
    }
    Ok(())
}

fn is_left_alone(row: &PartitionStatus) -> bool {
    let is_recent = row.observed_seconds_ago.is_some_and(|seconds| seconds <= OBSERVED_SECONDS);
    row.quarantine.is_none() && !(row.owner_alive && is_recent)
}

/// A topic with the id that the position belongs to has the partition, whatever a broker that is late says.
fn is_missing(number: i32, topic_id: Option<&str>, topic: &TopicDescription) -> bool {
    let is_same = topic_id.is_some() && topic_id == topic.topic_id.as_deref();
    !is_same && !topic.partitions.contains_key(&number)
}

async fn stop(
    store: &SharedStore,
    parts: &VersionParts,
    instance: &InstanceId,
    partition: &TopicPartition,
    topic: &TopicDescription,
) -> Result<(), StoreError> {
    let claim = ClaimRequest {
        version: parts.version.clone(),
        partition: partition.clone(),
        topic_id: None,
        digest: parts.declaration.digest.clone(),
        instance: instance.clone(),
    };
    let Claimed::Owned(row) = store.claim(&claim).await? else { return Ok(()) };
    if row.quarantine.is_some() {
        return Ok(());
    }
    let why = Quarantine {
        reason: Quarantine::TOPIC_RECREATED.to_owned(),
        detail: format!(
            "position {} belongs to a partition that the topic, which has {} now, does not have: it was made anew with fewer",
            row.fence.position,
            topic.partitions.len()
        ),
    };
    let advance = Advance {
        partition: partition.clone(),
        expected: row.fence,
        to: row.fence.position,
        topic_id: None,
        leader_epoch: None,
        quarantine: QuarantineChange::Enter(why.clone()),
    };
    let tables = &parts.declaration.tables;
    let transaction = Transaction {
        version: &parts.version,
        tables,
        rounds: Vec::new(),
        dead_letters: Vec::new(),
        advances: std::slice::from_ref(&advance),
    };
    if let Applied::Committed { .. } = store.apply(&transaction).await? {
        tracing::error!(version = %parts.version, %partition, reason = why.reason, detail = why.detail, "quarantined");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::NextOffset;

    #[test]
    fn a_partition_is_missing_only_from_a_topic_that_may_be_another() {
        let topic = |topic_id: Option<&str>| TopicDescription {
            topic_id: topic_id.map(str::to_owned),
            partitions: [0, 1].map(|number| (number, (NextOffset::ZERO, NextOffset::ZERO))).into(),
        };
        for (stored, now) in [(Some("a"), Some("b")), (None, Some("b")), (Some("a"), None), (None, None)] {
            assert!(is_missing(2, stored, &topic(now)), "{stored:?} {now:?}");
            assert!(!is_missing(1, stored, &topic(now)), "{stored:?} {now:?}");
        }
        assert!(!is_missing(2, Some("a"), &topic(Some("a"))), "told by a broker that is late");
    }
}
