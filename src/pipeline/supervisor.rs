//! Keeps a runner going for each version: opens its source, runs it, and opens a new one where the old one broke.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::retry::{self, Backoff};
use super::runner::{Ended, Runner};
use super::{Shared, VersionParts};
use crate::source::{Cluster, Source, SourceError};

const CEILING: Duration = Duration::from_secs(30);

/// Runs one version until `stop` is cancelled or the version has been retired.
pub async fn keep_running(
    shared: Arc<Shared>,
    parts: Arc<VersionParts>,
    cluster: Arc<dyn Cluster>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::up_to(CEILING);
    while !stop.is_cancelled() {
        match open(&parts, cluster.as_ref()).await {
            Ok(source) => match Runner::new(shared.clone(), parts.clone(), source).run(stop.clone()).await {
                Ended::Stopped => return,
                Ended::Gone => {
                    tracing::info!(version = %parts.version, "retired: no longer served");
                    return;
                }
                Ended::Broken(why) => tracing::error!(version = %parts.version, why, "the consumer broke; opening a new one"),
            },
            Err(error) => tracing::warn!(version = %parts.version, %error, "cannot join the group; trying again"),
        }
        parts.beat();
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(backoff.next(retry::jitter())) => {}
        }
    }
}

/// Asks for the topics' ids and joins the group.
async fn open(parts: &VersionParts, cluster: &dyn Cluster) -> Result<Source, SourceError> {
    let topics: Vec<String> = parts.declaration.sources.iter().map(|source| source.topic.clone()).collect();
    let described = cluster.describe(&topics).await?;
    let ids: BTreeMap<String, String> =
        described.into_iter().filter_map(|(topic, about)| Some((topic, about.topic_id?))).collect();
    parts.set_topic_ids(ids);
    cluster.subscribe(&parts.group, &topics).await
}
