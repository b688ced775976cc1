//! Keeps a runner going for each version: opens its source, runs it, and opens a new one where the old one broke.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::recurring::Recurring;
use super::retry::{self, Backoff};
use super::runner::{Ended, Runner};
use super::{Shared, VersionParts};
use crate::source::{Cluster, Source, SourceError};
use crate::telemetry::{self, Retried};

const CEILING: Duration = Duration::from_secs(30);

/// Runs one version until `stop` is cancelled or the version has been retired.
pub async fn keep_running(
    shared: Arc<Shared>,
    parts: Arc<VersionParts>,
    cluster: Arc<dyn Cluster>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::up_to(CEILING);
    let (mut joining, mut breaking) = (Recurring::default(), Recurring::default());
    while !stop.is_cancelled() {
        let source = tokio::select! {
            () = stop.cancelled() => return,
            source = open(&parts, cluster.as_ref()) => source,
        };
        match source {
            Ok(source) => {
                if joining.works() {
                    tracing::info!(version = %parts.version, "the group can be joined again");
                }
                let begun = Instant::now();
                let runner = Runner::new(shared.clone(), parts.clone(), cluster.clone(), source);
                // In a task of its own, so that a panic ends the runner and not the version.
                let ended = tokio::spawn(runner.run(stop.clone())).await;
                match ended.unwrap_or_else(|error| Ended::Broken(format!("the runner panicked: {error}"))) {
                    Ended::Stopped => return,
                    Ended::Gone => {
                        tracing::info!(version = %parts.version, "retired: no longer served");
                        return;
                    }
                    Ended::Broken(why) => {
                        if begun.elapsed() > CEILING {
                            backoff = Backoff::up_to(CEILING);
                            breaking.works();
                        }
                        if breaking.failed(&why, Instant::now()) {
                            tracing::error!(version = %parts.version, why, "the consumer broke; opening a new one");
                        }
                    }
                }
            }
            Err(error) => {
                let class = retry::class_of_source(&error);
                telemetry::retry(&parts.version, class, Retried::Broker);
                if joining.failed(&error.to_string(), Instant::now()) {
                    let class = class.as_str();
                    tracing::warn!(version = %parts.version, %error, class, "cannot join the group; trying again");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(backoff.next(retry::jitter())) => {}
        }
    }
}

/// Asks for the topics' ids and joins the group.
async fn open(parts: &VersionParts, cluster: &dyn Cluster) -> Result<Source, SourceError> {
    parts.refresh_topic_ids(cluster).await?;
    cluster.subscribe(&parts.group, &parts.topics()).await
}
