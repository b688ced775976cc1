//! Where status comes from: the store, asked at most once a second however many readers there are.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::report::now_millis;
use crate::store::{PartitionStatus, SharedStore, StoreError};

/// For how long an answer, also a failure, serves further readers.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long a reader waits for the store.
const PATIENCE: Duration = Duration::from_secs(3);

/// All partitions of all versions at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The partitions.
    pub partitions: Vec<PartitionStatus>,
    /// When it was read: milliseconds since 1970-01-01 UTC, by this machine's clock.
    pub taken_at: i64,
}

/// Status could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The store said no.
    #[error("status cannot be read from the store")]
    Store(#[source] StoreError),
    /// The store has not answered in time.
    #[error("the store has not answered within {} s", PATIENCE.as_secs())]
    Slow,
}

/// Gives the status of everything.
#[async_trait]
pub trait StatusSource: Send + Sync + 'static {
    /// The status now, or as of at most a second ago.
    ///
    /// # Errors
    /// The store did not give it.
    async fn snapshot(&self) -> Result<Arc<Snapshot>, StatusError>;
}

type Answer = Result<Arc<Snapshot>, StatusError>;

/// Status from the store. At most one query runs at a time; readers that come meanwhile get its answer, and a reader that
/// goes away doesn't cancel it (a future of the store must be driven to its end).
pub struct CachedStatus {
    store: SharedStore,
    answers: watch::Sender<Option<(Instant, Answer)>>,
    asking: Arc<Mutex<()>>,
}

impl std::fmt::Debug for CachedStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedStatus").finish_non_exhaustive()
    }
}

impl CachedStatus {
    /// Reads from `store`.
    #[must_use]
    pub fn new(store: SharedStore) -> Self {
        Self { store, answers: watch::Sender::new(None), asking: Arc::default() }
    }

    fn fresh(&self) -> Option<Answer> {
        let answers = self.answers.borrow();
        answers.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR).map(|(_, answer)| answer.clone())
    }

    /// Starts a query unless one runs.
    fn ask(&self) {
        let Ok(guard) = self.asking.clone().try_lock_owned() else { return };
        let (store, answers) = (self.store.clone(), self.answers.clone());
        tokio::spawn(async move {
            let answer = store
                .status(None)
                .await
                .map(|partitions| Arc::new(Snapshot { partitions, taken_at: now_millis() }))
                .map_err(StatusError::Store);
            answers.send_replace(Some((Instant::now(), answer)));
            drop(guard);
        });
    }
}

#[async_trait]
impl StatusSource for CachedStatus {
    async fn snapshot(&self) -> Answer {
        let mut news = self.answers.subscribe();
        if let Some(answer) = self.fresh() {
            return answer;
        }
        self.ask();
        match tokio::time::timeout(PATIENCE, news.wait_for(|answer| {
            answer.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH_FOR)
        }))
        .await
        {
            Ok(Ok(answer)) => answer.as_ref().map_or(Err(StatusError::Slow), |(_, answer)| answer.clone()),
            Ok(Err(_)) | Err(_) => Err(StatusError::Slow),
        }
    }
}
