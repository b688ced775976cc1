//! What dead-letter topics must be before the service joins: there, and no source of the projection that fills them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::publish::DeadLetterTopic;
use super::service::PrepareError;
use super::waiting::waiting;
use crate::projection::{Declaration, Projection};
use crate::source::{Cluster, SourceError};

/// A projection reads the topic that its dead letters go to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{version} reads the topic {topic}, and its dead letters go there")]
pub struct DeadLetterLoop {
    /// The version.
    pub version: String,
    /// The topic.
    pub topic: String,
    /// The index of the source that reads it.
    pub reader: usize,
}

impl DeadLetterLoop {
    /// What to do about it.
    #[must_use]
    pub const fn fix(&self) -> &'static str {
        "set `dead_letter.topic` to another one"
    }
}

/// A projection that reads its own dead letters would make new ones of them without end.
#[must_use]
pub fn dead_letter_loop(declaration: &Declaration, topic: &str) -> Option<DeadLetterLoop> {
    let reader = declaration.source_of(topic)?;
    Some(DeadLetterLoop { version: declaration.label(), topic: topic.to_owned(), reader })
}

/// Refuses every such loop.
pub(super) fn refuse_loops(
    projections: &[Arc<dyn Projection>],
    topics: &BTreeMap<String, Arc<dyn DeadLetterTopic>>,
) -> Result<(), PrepareError> {
    for declaration in projections.iter().map(|projection| projection.declaration()) {
        let topic = topics.get(&declaration.name).map(|topic| topic.name());
        if let Some(found) = topic.and_then(|topic| dead_letter_loop(declaration, topic)) {
            return Err(PrepareError::DeadLetterLoop(found));
        }
    }
    Ok(())
}

/// A dead-letter topic that does not exist is a mistake to be found now, not with the first dead letter.
pub(super) async fn look(
    cluster: &Arc<dyn Cluster>,
    topics: &BTreeMap<String, Arc<dyn DeadLetterTopic>>,
    stop: &CancellationToken,
) -> Result<(), PrepareError> {
    let names: BTreeSet<String> = topics.values().map(|topic| topic.name().to_owned()).collect();
    for name in names {
        match waiting(stop, "kafka", || cluster.describe(std::slice::from_ref(&name))).await {
            Err(PrepareError::Kafka(SourceError::MissingTopic { topic })) => {
                return Err(PrepareError::MissingDeadLetterTopic { topic });
            }
            other => drop(other?),
        }
    }
    Ok(())
}
