//! Dead letters on their way to their topic: after their transaction, at least once, never in anybody's way.
//!
//! The table is the queue. When there may be something to publish (a transaction wrote dead letters, a partition was
//! claimed, a version went live, or five seconds have passed after a failure), the unpublished dead letters of the
//! partitions are read in pages of 100, sent, and marked. A crash between sending and marking sends them again, with the
//! same id in their headers.
//!
//! While that fails or takes long, the dead letters that wait are counted once a second: a partition with more than
//! `dead_letter.max_waiting` of them is blocked until they are gone.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::VersionParts;
use crate::dead_letter::DeadLetter;
use crate::dead_letter::publisher::PublishError;
use crate::record::TopicPartition;
use crate::store::{DeadLetterKey, SharedStore, StoreError, VersionState};

const PAGE: u32 = 100;
/// How often what waits is counted while publishing does not come to an end.
const COUNT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(5);
/// A promotion by command wakes nobody.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Where dead letters are sent.
#[async_trait]
pub trait DeadLetterTopic: Send + Sync + 'static {
    /// The topic's name.
    fn name(&self) -> &str;

    /// Sends one dead letter and waits for the acknowledgement of all replicas.
    async fn publish(&self, letter: &DeadLetter) -> Result<(), PublishError>;
}

/// Publishes the dead letters of one version until `stop` is cancelled, and then once more, so that a clean end leaves none
/// behind. Whoever stops it bounds that in time.
pub async fn run(
    store: SharedStore,
    parts: Arc<VersionParts>,
    topic: Arc<dyn DeadLetterTopic>,
    max_waiting: u32,
    stop: CancellationToken,
) {
    let mut is_retry = false;
    loop {
        let is_last = tokio::select! {
            biased;
            () = stop.cancelled() => true,
            () = parts.publish_wanted() => false,
            () = tokio::time::sleep(if is_retry { RETRY } else { LOOK_AGAIN }) => false,
        };
        let mut publishing = pin!(pages(&store, &parts, topic.as_ref()));
        let outcome = loop {
            tokio::select! {
                outcome = &mut publishing => break outcome,
                () = tokio::time::sleep(COUNT) => count_waiting(&store, &parts, max_waiting).await,
            }
        };
        is_retry = match outcome {
            Ok(()) => {
                parts.set_backlogged(BTreeSet::new());
                false
            }
            Err(error) => {
                tracing::warn!(version = %parts.version, %error, "dead letters wait to be published; trying again");
                count_waiting(&store, &parts, max_waiting).await;
                true
            }
        };
        if is_last {
            return;
        }
    }
}

/// Finds the partitions with more than `max_waiting` dead letters that are not published.
async fn count_waiting(store: &SharedStore, parts: &VersionParts, max_waiting: u32) {
    let mut backlogged = parts.backlogged();
    for partition in parts.owned_partitions() {
        // Without an answer it stays as it was.
        let Ok(waiting) = store.count_unpublished(&parts.version, &partition, max_waiting + 1).await else {
            return;
        };
        if waiting > max_waiting {
            backlogged.insert(partition);
        } else {
            backlogged.remove(&partition);
        }
    }
    parts.set_backlogged(backlogged);
}

#[derive(Debug, thiserror::Error)]
enum PagesError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Publishes what waits, of the partitions that this member owns. Only the live version publishes, or the only one while
/// none is live: a version that is built beside it would send everything again. A dead letter that cannot be sent stops its
/// own partition's page, and no other's.
async fn pages(
    store: &SharedStore,
    parts: &VersionParts,
    topic: &dyn DeadLetterTopic,
) -> Result<(), PagesError> {
    let versions = store.versions().await?;
    let of_ours = versions.iter().filter(|row| row.key.projection == parts.version.projection);
    if of_ours.into_iter().any(|row| row.key != parts.version && row.state == VersionState::Live) {
        return Ok(());
    }
    let mut failure = Ok(());
    for partition in parts.owned_partitions() {
        loop {
            match page(store, parts, &partition, topic).await {
                Ok(sent) if sent < PAGE as usize => break,
                Ok(_) => {}
                Err(error) => {
                    failure = Err(error);
                    break;
                }
            }
        }
    }
    failure
}

/// Publishes and marks one page, and returns its size.
async fn page(
    store: &SharedStore,
    parts: &VersionParts,
    partition: &TopicPartition,
    topic: &dyn DeadLetterTopic,
) -> Result<usize, PagesError> {
    let page = store.unpublished(&parts.version, partition, PAGE).await?;
    // In order, all on their way at a time.
    let answers = join_all(page.iter().map(|stored| topic.publish(&stored.letter))).await;
    let mut sent: Vec<DeadLetterKey> = Vec::with_capacity(page.len());
    let mut failure = None;
    for (stored, answer) in page.iter().zip(answers) {
        match answer {
            Ok(()) => sent.push(stored.letter.key()),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if !sent.is_empty() {
        store.mark_published(&sent).await?;
    }
    failure.map_or(Ok(page.len()), |error| Err(error.into()))
}
