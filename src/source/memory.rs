//! A source made from lists, for tests of the pipeline without a broker.
//!
//! [`MemoryCluster`] holds topics; every source that subscribes reads them by the protocol of the module above. The test is
//! the group: it assigns and revokes partitions through the [`MemoryMember`]s that [`MemoryCluster::member`] gives, in the
//! order in which they subscribed. Records are delivered from the position that was begun, then the partition's end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    Cluster, Consumed, KnownEnds, LogFault, Ownership, Revocation, Source, SourceControl, SourceError,
    SourceEvent, StreamId, TopicDescription,
};
use crate::position::NextOffset;
use crate::record::{Record, TopicPartition};

/// Batches between a source and its reader, as in the real one.
const BATCHES: usize = 4;
/// Records of one batch.
const BATCH_RECORDS: usize = 100;

/// Topics in memory, and the members that read them. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct MemoryCluster(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Woken at every change.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    logs: BTreeMap<TopicPartition, Log>,
    topic_ids: BTreeMap<String, String>,
    /// Members that no test has asked for yet.
    waiting: VecDeque<MemoryMember>,
}

#[derive(Debug)]
struct Log {
    records: Vec<Record>,
    start: NextOffset,
    end: NextOffset,
}

impl Log {
    const EMPTY: Self = Self { records: Vec::new(), start: NextOffset::ZERO, end: NextOffset::ZERO };
}

impl State {
    /// The leader epoch of the record just before a position, if there is one.
    fn epoch_before(&self, partition: &TopicPartition, from: NextOffset) -> Option<i32> {
        let before = from.before()?;
        let records = &self.logs.get(partition)?.records;
        records.iter().find(|record| record.coordinates.offset == before)?.leader_epoch
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryCluster {
    /// Makes a topic, empty, with an id; in place of one that is there.
    pub fn create_topic(&self, topic: &str, partitions: i32, topic_id: Option<&str>) {
        let mut state = self.0.lock();
        state.logs.retain(|partition, _| *partition.topic != *topic);
        for partition in 0..partitions {
            state.logs.insert(TopicPartition::new(topic, partition), Log::EMPTY);
        }
        match topic_id {
            Some(id) => state.topic_ids.insert(topic.to_owned(), id.to_owned()),
            None => state.topic_ids.remove(topic),
        };
    }

    /// Appends a record to its partition, which becomes one record longer, or more where offsets are left out.
    ///
    /// # Panics
    /// The partition does not exist, or its end is past the record's offset already: the test is wrong.
    pub fn append(&self, record: Record) {
        let mut state = self.0.lock();
        let at = &record.coordinates;
        let log = state.logs.get_mut(&at.topic_partition).expect("the test makes the topic before");
        assert!(!log.end.is_past(at.offset), "the end is at {}: {at} comes too late", log.end);
        log.end = at.offset.next();
        log.records.push(record);
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// Moves the first offset or the end of a partition, as retention, truncation and transaction markers do.
    ///
    /// # Panics
    /// The partition does not exist: the test is wrong.
    pub fn bound(&self, partition: &TopicPartition, start: NextOffset, end: NextOffset) {
        let mut state = self.0.lock();
        let log = state.logs.get_mut(partition).expect("the test makes the topic before");
        (log.start, log.end) = (start, end);
        log.records.retain(|record| {
            let offset = record.coordinates.offset;
            !start.is_past(offset) && end.is_past(offset)
        });
        drop(state);
        self.0.changed.notify_waiters();
    }

    /// The next source that has subscribed; waits for it.
    pub async fn member(&self) -> MemoryMember {
        loop {
            let changed = self.0.changed.notified();
            if let Some(member) = self.0.lock().waiting.pop_front() {
                return member;
            }
            changed.await;
        }
    }
}

#[async_trait]
impl Cluster for MemoryCluster {
    async fn cluster_id(&self) -> Result<String, SourceError> {
        Ok("memory".to_owned())
    }

    async fn describe(&self, topics: &[String]) -> Result<BTreeMap<String, TopicDescription>, SourceError> {
        let state = self.0.lock();
        let mut described = BTreeMap::new();
        for topic in topics {
            let of_topic = state.logs.iter().filter(|(partition, _)| *partition.topic == **topic);
            let partitions: BTreeMap<_, _> =
                of_topic.map(|(partition, log)| (partition.partition, (log.start, log.end))).collect();
            if partitions.is_empty() {
                return Err(SourceError::MissingTopic { topic: topic.clone() });
            }
            let topic_id = state.topic_ids.get(topic).cloned();
            described.insert(topic.clone(), TopicDescription { topic_id, partitions });
        }
        Ok(described)
    }

    async fn subscribe(&self, group: &str, _: &[String]) -> Result<Source, SourceError> {
        let (to_events, events) = mpsc::unbounded_channel();
        let (to_records, records) = mpsc::channel(BATCHES);
        let member = MemoryMember {
            group: group.into(),
            cluster: self.0.clone(),
            state: Arc::default(),
            events: to_events,
        };
        tokio::spawn(deliver(member.clone(), to_records));
        self.0.lock().waiting.push_back(member.clone());
        self.0.changed.notify_waiters();
        Ok(Source { control: Arc::new(member), events, records })
    }
}

/// One source, from the side of the group. Clones are the same member.
#[derive(Debug, Clone)]
pub struct MemoryMember {
    group: Arc<str>,
    cluster: Arc<Shared>,
    state: Arc<Mutex<MemberState>>,
    events: mpsc::UnboundedSender<SourceEvent>,
}

#[derive(Debug, Default)]
struct MemberState {
    /// Assigned partitions; those that have been begun with their stream.
    partitions: BTreeMap<TopicPartition, Option<Stream>>,
    last_stream: u64,
    begins: Vec<(TopicPartition, NextOffset)>,
    commits: Vec<(TopicPartition, NextOffset)>,
    refusal: Option<SourceError>,
    /// Since when no broker answers: microseconds since 1970-01-01 UTC.
    silent_since: Option<i64>,
    is_closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: StreamId,
    next: NextOffset,
    /// The end that was told last.
    told: Option<NextOffset>,
    is_paused: bool,
}

impl MemoryMember {
    fn lock(&self) -> MutexGuard<'_, MemberState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: SourceEvent) {
        // A pipeline that has ended listens no more.
        drop(self.events.send(event));
    }

    /// The group that it has joined.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Gives partitions to the member.
    pub fn assign(&self, partitions: &[TopicPartition]) {
        let mut state = self.lock();
        for partition in partitions {
            state.partitions.insert(partition.clone(), None);
        }
        drop(state);
        self.tell(SourceEvent::Assigned { partitions: partitions.to_vec() });
    }

    /// Takes partitions away, and waits until the member has drained them.
    pub async fn revoke(&self, partitions: &[TopicPartition]) {
        let (done, drained) = oneshot::channel();
        let (partitions, ownership) = (partitions.to_vec(), Ownership::UntilDone);
        self.tell(SourceEvent::Revoked {
            partitions: partitions.clone(),
            ownership,
            done: Revocation(Some(done)),
        });
        // The sender is dropped, never used.
        drop(drained.await);
        self.remove(&partitions);
    }

    /// Takes partitions away that the member has lost already.
    pub fn lose(&self, partitions: &[TopicPartition]) {
        self.remove(partitions);
        let (partitions, ownership) = (partitions.to_vec(), Ownership::Lost);
        self.tell(SourceEvent::Revoked { partitions, ownership, done: Revocation(None) });
    }

    fn remove(&self, partitions: &[TopicPartition]) {
        let mut state = self.lock();
        for partition in partitions {
            state.partitions.remove(partition);
        }
    }

    /// Delivers nothing more of what is begun, until it is begun again.
    pub fn pause_all(&self) {
        for stream in self.lock().partitions.values_mut().flatten() {
            stream.is_paused = true;
        }
    }

    /// Tells an event of the client: troubles, faults of the log.
    pub fn report(&self, event: SourceEvent) {
        self.tell(event);
    }

    /// From now on commits end with this; `None`: they succeed again.
    pub fn refuse_commits(&self, with: Option<SourceError>) {
        self.lock().refusal = with;
    }

    /// From now on no broker answers, and none has for `ago`; `None`: they do again.
    pub fn silence(&self, ago: Option<Duration>) {
        let micros = |ago: Duration| now_micros() - i64::try_from(ago.as_micros()).unwrap_or(0);
        self.lock().silent_since = ago.map(micros);
    }

    /// Every begin so far, in order.
    #[must_use]
    pub fn begins(&self) -> Vec<(TopicPartition, NextOffset)> {
        self.lock().begins.clone()
    }

    /// Every position committed so far, in order.
    #[must_use]
    pub fn commits(&self) -> Vec<(TopicPartition, NextOffset)> {
        self.lock().commits.clone()
    }

    /// Whether the source has been closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// What is to be delivered next, of all begun partitions.
    fn batch(&self) -> Vec<Consumed> {
        let cluster = self.cluster.lock();
        let mut state = self.lock();
        let mut batch = Vec::new();
        for (partition, stream) in &mut state.partitions {
            let Some(stream) = stream.as_mut().filter(|stream| !stream.is_paused) else { continue };
            let Some(log) = cluster.logs.get(partition) else { continue };
            let ahead = log.records.iter().filter(|record| !stream.next.is_past(record.coordinates.offset));
            let before = batch.len();
            for record in ahead.take(BATCH_RECORDS) {
                batch.push(Consumed::Record { stream: stream.id, record: record.clone() });
            }
            if let Some(Consumed::Record { record, .. }) = batch[before..].last() {
                stream.next = record.coordinates.offset.next();
            }
            if batch.len() - before < BATCH_RECORDS && stream.told != Some(log.end) {
                stream.next = stream.next.max(log.end);
                stream.told = Some(log.end);
                let (stream, partition) = (stream.id, partition.clone());
                batch.push(Consumed::End { stream, partition, end: log.end });
            }
        }
        batch
    }
}

/// Delivers to the reader until it is gone or the source is closed.
async fn deliver(member: MemoryMember, records: mpsc::Sender<Vec<Consumed>>) {
    let cluster = member.cluster.clone();
    loop {
        // Made before looking, so that no change is missed.
        let changed = cluster.changed.notified();
        if member.is_closed() {
            return;
        }
        let batch = member.batch();
        if batch.is_empty() {
            tokio::select! {
                () = changed => {}
                () = records.closed() => return,
            }
        } else if records.send(batch).await.is_err() {
            return;
        }
    }
}

#[async_trait]
impl SourceControl for MemoryMember {
    fn begin(&self, partition: &TopicPartition, from: NextOffset, last_epoch: Option<i32>) -> StreamId {
        let before = self.cluster.lock().epoch_before(partition, from);
        let fault = LogFault::of_record_before(from, last_epoch, before);
        let mut state = self.lock();
        state.last_stream += 1;
        let id = StreamId(state.last_stream);
        if let Some(stream) = state.partitions.get_mut(partition) {
            *stream = Some(Stream { id, next: from, told: None, is_paused: fault.is_some() });
            state.begins.push((partition.clone(), from));
        }
        drop(state);
        if let Some(fault) = fault {
            self.tell(SourceEvent::LogFault { partition: partition.clone(), stream: id, fault });
        }
        self.cluster.changed.notify_waiters();
        id
    }

    fn pause(&self, partition: &TopicPartition) {
        if let Some(Some(stream)) = self.lock().partitions.get_mut(partition) {
            stream.is_paused = true;
        }
    }

    async fn commit(
        &self,
        positions: &[(TopicPartition, NextOffset)],
        _: Duration,
    ) -> Result<(), SourceError> {
        let mut state = self.lock();
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        state.commits.extend(positions.iter().cloned());
        Ok(())
    }

    fn ends(&self) -> KnownEnds {
        let cluster = self.cluster.lock();
        let state = self.lock();
        let begun = state.partitions.iter().filter(|(_, stream)| stream.is_some());
        let readable = begun
            .filter_map(|(partition, _)| Some((partition.clone(), cluster.logs.get(partition)?.end)))
            .collect();
        KnownEnds { readable, broker_answered_at: Some(state.silent_since.unwrap_or_else(now_micros)) }
    }

    async fn close(&self, _: Duration) {
        self.lock().is_closed = true;
        self.cluster.changed.notify_waiters();
    }
}

fn now_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::RecordOffset;
    use crate::record::{RecordCoordinates, RecordTimestamp};

    fn record(partition: &TopicPartition, offset: i64) -> Record {
        let offset = RecordOffset::new(offset);
        Record {
            coordinates: RecordCoordinates { topic_partition: partition.clone(), offset },
            leader_epoch: None,
            timestamp: RecordTimestamp::Absent,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// What has been delivered, as text.
    async fn next(source: &mut Source) -> Vec<String> {
        let batch = source.records.recv().await.expect("open");
        let told = |consumed: &Consumed| match consumed {
            Consumed::Record { stream, record } => format!("{} {}", stream.0, record.coordinates),
            Consumed::End { stream, partition, end } => format!("{} {partition} ends at {end}", stream.0),
        };
        batch.iter().map(told).collect()
    }

    #[tokio::test]
    async fn records_come_from_the_begun_position_then_the_end() {
        let cluster = MemoryCluster::default();
        cluster.create_topic("t", 1, None);
        let partition = TopicPartition::new("t", 0);
        for offset in [0, 1, 4] {
            cluster.append(record(&partition, offset));
        }
        let mut source = cluster.subscribe("g", &[]).await.expect("subscribes");
        let member = cluster.member().await;
        assert_eq!(member.group(), "g");
        member.assign(std::slice::from_ref(&partition));
        assert!(matches!(source.events.recv().await, Some(SourceEvent::Assigned { .. })));
        source.control.begin(&partition, NextOffset::new(1), None);
        assert_eq!(next(&mut source).await, ["1 t:0:1", "1 t:0:4", "1 t:0 ends at 5"]);
        cluster.append(record(&partition, 5));
        assert_eq!(next(&mut source).await, ["1 t:0:5", "1 t:0 ends at 6"]);
        source.control.pause(&partition);
        source.control.begin(&partition, NextOffset::new(5), None);
        assert_eq!(next(&mut source).await, ["2 t:0:5", "2 t:0 ends at 6"]);
    }

    #[tokio::test]
    async fn a_revocation_waits_until_it_is_dropped_and_ends_the_stream() {
        let cluster = MemoryCluster::default();
        cluster.create_topic("t", 1, Some("id"));
        let partition = TopicPartition::new("t", 0);
        let mut source = cluster.subscribe("g", &[]).await.expect("subscribes");
        let member = cluster.member().await;
        member.assign(std::slice::from_ref(&partition));
        assert!(matches!(source.events.recv().await, Some(SourceEvent::Assigned { .. })));
        source.control.begin(&partition, NextOffset::ZERO, None);
        assert_eq!(next(&mut source).await, ["1 t:0 ends at 0"]);
        let revoking = tokio::spawn({
            let (member, partition) = (member.clone(), partition.clone());
            async move { member.revoke(&[partition]).await }
        });
        let Some(SourceEvent::Revoked { done, ownership, .. }) = source.events.recv().await else {
            panic!("a revocation")
        };
        assert_eq!(ownership, Ownership::UntilDone);
        assert!(!revoking.is_finished());
        let position = [(partition.clone(), NextOffset::ZERO)];
        source.control.commit(&position, Duration::ZERO).await.expect("still a member");
        drop(done);
        revoking.await.expect("no panic");
        assert!(source.control.ends().readable.is_empty());
        assert_eq!(member.commits(), position);
        source.control.begin(&partition, NextOffset::ZERO, None);
        assert_eq!(member.begins(), position, "a begin of what is not assigned is ignored");
    }
}
