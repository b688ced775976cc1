//! A store with scripted faults, for tests of what stands above it.
//!
//! [`FaultyStore`] hands everything on to another store, except where its script says otherwise. A script is a queue for
//! each method that can be scripted; every call takes one entry, and an empty queue is no fault.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{
    Advance, Applied, ClaimRequest, Claimed, Condition, DeadLetterFilter, DeadLetterKey, InstanceId,
    InstanceReport, LayoutState, Observed, Outcome, PartitionStatus, Promotion, ReadStore, Registered,
    Registration, ResumeOutcome, ResumeRequest, RetirePlan, Rows, SharedStore, StoreError, StoredDeadLetter,
    Transaction, VersionKey, VersionRow,
};
use crate::projection::Declaration;
use crate::record::TopicPartition;

/// What happens to one call of [`ReadStore::apply`].
#[derive(Debug)]
pub enum ApplyFault {
    /// Nothing: the call goes through.
    None,
    /// Nothing is written, and this is the answer.
    Fails(StoreError),
    /// The transaction commits, and the answer is [`StoreError::CommitUnknown`]: written, but the reply was lost.
    ReplyLost,
    /// Nothing is written, and the answer is [`StoreError::CommitUnknown`]: the commit was lost.
    CommitLost,
    /// The call waits for the gate, and then goes through.
    Held(Gate),
}

/// What a held call waits for. See [`FaultyStore::hold_next_apply`].
#[derive(Debug)]
pub struct Gate {
    reached: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
}

/// A call that is held, or will be.
#[derive(Debug)]
pub struct Held {
    reached: oneshot::Receiver<()>,
    open: oneshot::Sender<()>,
}

impl Held {
    /// Waits until the call has come to the gate. Returns at once where its future has been dropped.
    pub async fn reached(&mut self) {
        let _ = (&mut self.reached).await;
    }

    /// Lets the call go on. Dropping this does the same.
    pub fn release(self) {
        let _ = self.open.send(());
    }
}

/// A store with scripted faults. See the module's documentation.
pub struct FaultyStore {
    inner: SharedStore,
    applies: Mutex<VecDeque<ApplyFault>>,
    claims: Mutex<VecDeque<StoreError>>,
    outcomes: Mutex<VecDeque<StoreError>>,
    observations: Mutex<VecDeque<StoreError>>,
    promotions: Mutex<VecDeque<StoreError>>,
    apply_calls: AtomicUsize,
    claim_calls: AtomicUsize,
    outcome_calls: AtomicUsize,
    promotion_calls: AtomicUsize,
}

impl std::fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultyStore").field("applies", &self.applies).finish_non_exhaustive()
    }
}

impl FaultyStore {
    /// A store that does what `inner` does, until it is told otherwise.
    #[must_use]
    pub fn new(inner: SharedStore) -> Self {
        Self {
            inner,
            applies: Mutex::default(),
            claims: Mutex::default(),
            outcomes: Mutex::default(),
            observations: Mutex::default(),
            promotions: Mutex::default(),
            apply_calls: AtomicUsize::new(0),
            claim_calls: AtomicUsize::new(0),
            outcome_calls: AtomicUsize::new(0),
            promotion_calls: AtomicUsize::new(0),
        }
    }

    /// The next call of `apply` that has no fault yet gets this one.
    pub fn script_apply(&self, fault: ApplyFault) {
        push(&self.applies, [fault]);
    }

    /// The next call of `apply` that has no fault yet waits until it is let go.
    #[must_use]
    pub fn hold_next_apply(&self) -> Held {
        let (reached_sender, reached) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        self.script_apply(ApplyFault::Held(Gate { reached: reached_sender, opened }));
        Held { reached, open }
    }

    /// The next `times` claims fail.
    pub fn fail_claims(&self, times: usize, error: &StoreError) {
        push(&self.claims, std::iter::repeat_n(error.clone(), times));
    }

    /// The next `times` questions about an unknown COMMIT fail.
    pub fn fail_outcomes(&self, times: usize, error: &StoreError) {
        push(&self.outcomes, std::iter::repeat_n(error.clone(), times));
    }

    /// The next `times` observations fail.
    pub fn fail_observations(&self, times: usize, error: &StoreError) {
        push(&self.observations, std::iter::repeat_n(error.clone(), times));
    }

    /// The next `times` promotions fail.
    pub fn fail_promotions(&self, times: usize, error: &StoreError) {
        push(&self.promotions, std::iter::repeat_n(error.clone(), times));
    }

    /// Calls of `apply` so far, with a fault or without.
    #[must_use]
    pub fn apply_calls(&self) -> usize {
        self.apply_calls.load(Ordering::Relaxed)
    }

    /// Calls of `claim` so far, with a fault or without.
    #[must_use]
    pub fn claim_calls(&self) -> usize {
        self.claim_calls.load(Ordering::Relaxed)
    }

    /// Calls of `outcome` so far, with a fault or without.
    #[must_use]
    pub fn outcome_calls(&self) -> usize {
        self.outcome_calls.load(Ordering::Relaxed)
    }

    /// Calls of `promote_first` so far, with a fault or without.
    #[must_use]
    pub fn promotion_calls(&self) -> usize {
        self.promotion_calls.load(Ordering::Relaxed)
    }
}

fn push<T>(queue: &Mutex<VecDeque<T>>, entries: impl IntoIterator<Item = T>) {
    queue.lock().unwrap_or_else(PoisonError::into_inner).extend(entries);
}

fn next<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// Takes the next error of a script, if there is one.
fn trip(queue: &Mutex<VecDeque<StoreError>>) -> Result<(), StoreError> {
    next(queue).map_or(Ok(()), Err)
}

#[async_trait]
impl ReadStore for FaultyStore {
    async fn lay_out(&self) -> Result<(), StoreError> {
        self.inner.lay_out().await
    }

    async fn register(&self, registration: &Registration) -> Result<Registered, StoreError> {
        self.inner.register(registration).await
    }

    async fn verify(&self, declarations: &[Arc<Declaration>]) -> Result<(), StoreError> {
        self.inner.verify(declarations).await
    }

    fn layout_ddl(&self) -> Vec<String> {
        self.inner.layout_ddl()
    }

    fn ddl(&self, declaration: &Declaration) -> Vec<String> {
        self.inner.ddl(declaration)
    }

    fn views_ddl(&self, declaration: &Declaration) -> Vec<String> {
        self.inner.views_ddl(declaration)
    }

    async fn condition(&self, declarations: &[&Declaration]) -> Result<Condition, StoreError> {
        self.inner.condition(declarations).await
    }

    async fn layout(&self) -> Result<LayoutState, StoreError> {
        self.inner.layout().await
    }

    async fn versions(&self) -> Result<Vec<VersionRow>, StoreError> {
        self.inner.versions().await
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.claim_calls.fetch_add(1, Ordering::Relaxed);
        trip(&self.claims)?;
        self.inner.claim(claim).await
    }

    async fn apply(&self, transaction: &Transaction<'_>) -> Result<Applied, StoreError> {
        self.apply_calls.fetch_add(1, Ordering::Relaxed);
        match next(&self.applies) {
            None | Some(ApplyFault::None) => self.inner.apply(transaction).await,
            Some(ApplyFault::Fails(error)) => Err(error),
            Some(ApplyFault::CommitLost) => Err(StoreError::CommitUnknown),
            Some(ApplyFault::ReplyLost) => match self.inner.apply(transaction).await? {
                Applied::Committed { .. } => Err(StoreError::CommitUnknown),
                fenced @ Applied::Fenced(_) => Ok(fenced),
            },
            Some(ApplyFault::Held(gate)) => {
                let _ = gate.reached.send(());
                let _ = gate.opened.await;
                self.inner.apply(transaction).await
            }
        }
    }

    async fn outcome(&self, version: &VersionKey, expected: &[Advance]) -> Result<Vec<Outcome>, StoreError> {
        self.outcome_calls.fetch_add(1, Ordering::Relaxed);
        trip(&self.outcomes)?;
        self.inner.outcome(version, expected).await
    }

    async fn mark_published(&self, letters: &[DeadLetterKey]) -> Result<(), StoreError> {
        self.inner.mark_published(letters).await
    }

    async fn unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        self.inner.unpublished(version, partition, limit).await
    }

    async fn count_unpublished(
        &self,
        version: &VersionKey,
        partition: &TopicPartition,
        most: u32,
    ) -> Result<u32, StoreError> {
        self.inner.count_unpublished(version, partition, most).await
    }

    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<StoredDeadLetter>, StoreError> {
        self.inner.dead_letters(filter).await
    }

    async fn observe(&self, report: &InstanceReport) -> Result<Observed, StoreError> {
        trip(&self.observations)?;
        self.inner.observe(report).await
    }

    async fn sign_off(&self, instance: &InstanceId) -> Result<(), StoreError> {
        self.inner.sign_off(instance).await
    }

    async fn status(&self, projection: Option<&str>) -> Result<Vec<PartitionStatus>, StoreError> {
        self.inner.status(projection).await
    }

    async fn promote_first(&self, declaration: &Declaration) -> Result<Promotion, StoreError> {
        self.promotion_calls.fetch_add(1, Ordering::Relaxed);
        trip(&self.promotions)?;
        self.inner.promote_first(declaration).await
    }

    async fn request_resume(&self, request: &ResumeRequest) -> Result<Vec<ResumeOutcome>, StoreError> {
        self.inner.request_resume(request).await
    }

    async fn retire_plan(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        self.inner.retire_plan(version).await
    }

    async fn retire(&self, version: &VersionKey) -> Result<RetirePlan, StoreError> {
        self.inner.retire(version).await
    }

    async fn read_view(&self, view: &str, limit: u32) -> Result<Rows, StoreError> {
        self.inner.read_view(view, limit).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::contract::{self, advance, partition};
    use crate::store::sqlite::{OpenMode, SqliteStore};

    struct Stage {
        _folder: tempfile::TempDir,
        store: Arc<FaultyStore>,
        version: VersionKey,
    }

    async fn stage() -> Stage {
        let folder = tempfile::tempdir().expect("a folder");
        let inner = SqliteStore::open(&folder.path().join("f.sqlite"), OpenMode::Run).await.expect("opened");
        let store = Arc::new(FaultyStore::new(Arc::new(inner)));
        store.lay_out().await.expect("laid out");
        let registration = contract::registration(contract::declaration(vec![contract::items()]));
        store.register(&registration).await.expect("registered");
        Stage { _folder: folder, store, version: VersionKey { projection: "shop".into(), version: 1 } }
    }

    impl Stage {
        async fn claim(&self) -> Result<Claimed, StoreError> {
            let request = ClaimRequest {
                version: self.version.clone(),
                partition: partition(0),
                topic_id: None,
                digest: contract::declaration(vec![contract::items()]).digest,
                instance: contract::instance("one"),
            };
            self.store.claim(&request).await
        }

        async fn step(&self, advances: &[Advance]) -> Result<Applied, StoreError> {
            let transaction = Transaction {
                version: &self.version,
                tables: &[],
                rounds: Vec::new(),
                dead_letters: Vec::new(),
                advances,
            };
            self.store.apply(&transaction).await
        }
    }

    #[tokio::test]
    async fn faults_come_in_order_and_end() {
        let stage = stage().await;
        let lost = StoreError::Connection { action: "claim a partition", detail: "scripted".into() };
        stage.store.fail_claims(2, &lost);
        assert_eq!(stage.claim().await, Err(lost.clone()));
        assert_eq!(stage.claim().await, Err(lost.clone()));
        let Ok(Claimed::Owned(row)) = stage.claim().await else { panic!("not owned") };
        assert_eq!(stage.store.claim_calls(), 3);

        stage.store.script_apply(ApplyFault::Fails(lost.clone()));
        stage.store.script_apply(ApplyFault::CommitLost);
        stage.store.script_apply(ApplyFault::ReplyLost);
        stage.store.fail_outcomes(1, &lost);
        let steps = [advance(0, row.fence, 5)];
        let outcome = async || stage.store.outcome(&stage.version, &steps).await;
        assert_eq!(stage.step(&steps).await, Err(lost.clone()));
        assert_eq!(stage.step(&steps).await, Err(StoreError::CommitUnknown));
        assert_eq!(outcome().await, Err(lost));
        assert_eq!(outcome().await, Ok(vec![Outcome::NotApplied]));
        assert_eq!(stage.step(&steps).await, Err(StoreError::CommitUnknown));
        assert_eq!(outcome().await, Ok(vec![Outcome::Applied]));
        assert_eq!(stage.step(&steps).await, Ok(Applied::Fenced(vec![0])));
        assert_eq!((stage.store.apply_calls(), stage.store.outcome_calls()), (4, 3));
    }

    #[tokio::test]
    async fn a_held_call_waits_until_it_is_let_go() {
        let stage = Arc::new(stage().await);
        let Ok(Claimed::Owned(row)) = stage.claim().await else { panic!("not owned") };
        let mut held = stage.store.hold_next_apply();
        let call = tokio::spawn({
            let stage = stage.clone();
            async move { stage.step(&[advance(0, row.fence, 5)]).await }
        });
        held.reached().await;
        assert!(!call.is_finished());
        let positions = async || stage.store.status(None).await.expect("status")[0].position.get();
        assert_eq!(positions().await, 0);
        held.release();
        assert_eq!(call.await.expect("no panic"), Ok(Applied::Committed { missed_updates: 0 }));
        assert_eq!(positions().await, 5);
    }
}
