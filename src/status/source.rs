//! Where status comes from: the store, asked at most once a second however many readers there are.

use std::pin::Pin;
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
type Asked = Pin<Box<dyn Future<Output = Result<Vec<PartitionStatus>, StoreError>> + Send>>;
type Query = Box<dyn Fn() -> Asked + Send + Sync>;

/// Status from the store. At most one query runs at a time; readers that come meanwhile get its answer, and a reader that
/// goes away doesn't cancel it (a future of the store must be driven to its end).
pub struct CachedStatus {
    query: Query,
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
        Self::asking(Box::new(move || {
            let store = store.clone();
            Box::pin(async move { store.status(None).await })
        }))
    }

    fn asking(query: Query) -> Self {
        Self { query, answers: watch::Sender::new(None), asking: Arc::default() }
    }

    fn fresh(&self) -> Option<Answer> {
        let answers = self.answers.borrow();
        answers.as_ref().filter(|(at, _)| at.elapsed() < FRESH_FOR).map(|(_, answer)| answer.clone())
    }

    /// Starts a query unless one runs.
    fn ask(&self) {
        let Ok(guard) = self.asking.clone().try_lock_owned() else { return };
        let (asked, answers) = ((self.query)(), self.answers.clone());
        tokio::spawn(async move {
            let answer = asked
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
        match tokio::time::timeout(
            PATIENCE,
            news.wait_for(|answer| answer.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH_FOR)),
        )
        .await
        {
            Ok(Ok(answer)) => answer.as_ref().map_or(Err(StatusError::Slow), |(_, answer)| answer.clone()),
            Ok(Err(_)) | Err(_) => Err(StatusError::Slow),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// A store that counts questions, and answers each when a permit is given.
    fn scripted(
        answer: Result<Vec<PartitionStatus>, StoreError>,
    ) -> (Arc<CachedStatus>, Arc<AtomicUsize>, Arc<Semaphore>) {
        let (asked, permits) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counter, gate) = (asked.clone(), permits.clone());
        let status = CachedStatus::asking(Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            let (gate, answer) = (gate.clone(), answer.clone());
            Box::pin(async move {
                gate.acquire().await.expect("never closed").forget();
                answer
            })
        }));
        (Arc::new(status), asked, permits)
    }

    #[tokio::test]
    async fn many_readers_cost_one_query() {
        let (status, asked, permits) = scripted(Ok(vec![]));
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let status = status.clone();
            readers.spawn(async move { status.snapshot().await });
        }
        permits.add_permits(50);
        for answer in readers.join_all().await {
            assert!(answer.is_ok());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_reader_that_goes_away_does_not_cancel_the_query() {
        let (status, asked, permits) = scripted(Ok(vec![]));
        let first = tokio::spawn({
            let status = status.clone();
            async move { status.snapshot().await }
        });
        while asked.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        first.abort();
        permits.add_permits(1);
        assert!(status.snapshot().await.is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_failure_is_an_answer_too() {
        let error = StoreError::Connection { action: "read status", detail: "refused".into() };
        let (status, asked, permits) = scripted(Err(error.clone()));
        permits.add_permits(2);
        for _ in 0..2 {
            assert_eq!(status.snapshot().await, Err(StatusError::Store(error.clone())));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_store_that_never_answers_is_asked_once_and_waited_for_in_bounds() {
        let (status, asked, _permits) = scripted(Ok(vec![]));
        let (one, two) = tokio::join!(status.snapshot(), status.snapshot());
        assert_eq!((one, two), (Err(StatusError::Slow), Err(StatusError::Slow)));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }
}
