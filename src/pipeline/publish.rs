//! Dead letters on their way to their topic: after their transaction, at least once, never in anybody's way.
//!
//! The table is the queue. When there may be something to publish (a transaction wrote dead letters, a partition was
//! claimed, a version went live, or five seconds have passed after a failure), the unpublished dead letters of the
//! partitions are read in pages of 100, sent, and marked. A crash between sending and marking sends them again, with the
//! same id in their headers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::VersionParts;
use crate::dead_letter::DeadLetter;
use crate::dead_letter::publisher::PublishError;
use crate::store::{DeadLetterKey, SharedStore, StoreError};

const PAGE: u32 = 100;
const RETRY: Duration = Duration::from_secs(5);

/// Where dead letters are sent.
#[async_trait]
pub trait DeadLetterTopic: Send + Sync + 'static {
    /// Sends one dead letter and waits for the acknowledgement of all replicas.
    async fn publish(&self, letter: &DeadLetter) -> Result<(), PublishError>;
}

/// Publishes the dead letters of one version until `stop` is cancelled.
pub async fn run(
    store: SharedStore,
    parts: Arc<VersionParts>,
    topic: Arc<dyn DeadLetterTopic>,
    stop: CancellationToken,
) {
    let mut is_retry = false;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = parts.publish_wanted() => {}
            () = tokio::time::sleep(RETRY), if is_retry => {}
        }
        is_retry = match pages(&store, &parts, topic.as_ref(), &stop).await {
            Ok(()) => false,
            Err(error) => {
                tracing::warn!(version = %parts.version, %error, "dead letters wait to be published; trying again");
                true
            }
        };
    }
}

#[derive(Debug, thiserror::Error)]
enum PagesError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Publishes page after page until none is left.
async fn pages(
    store: &SharedStore,
    parts: &VersionParts,
    topic: &dyn DeadLetterTopic,
    stop: &CancellationToken,
) -> Result<(), PagesError> {
    let rows = store.status(Some(&parts.version.projection)).await?;
    for row in rows.into_iter().filter(|row| row.version == parts.version && row.open_dead_letters > 0) {
        loop {
            let page = store.unpublished(&parts.version, &row.partition, PAGE).await?;
            let mut sent: Vec<DeadLetterKey> = Vec::with_capacity(page.len());
            let mut failure = None;
            for stored in &page {
                if stop.is_cancelled() {
                    break;
                }
                match topic.publish(&stored.letter).await {
                    Ok(()) => sent.push(stored.letter.key()),
                    Err(error) => {
                        failure = Some(error);
                        break;
                    }
                }
            }
            if !sent.is_empty() {
                store.mark_published(&sent).await?;
            }
            if let Some(error) = failure {
                return Err(error.into());
            }
            if page.len() < PAGE as usize || stop.is_cancelled() {
                break;
            }
        }
    }
    Ok(())
}
