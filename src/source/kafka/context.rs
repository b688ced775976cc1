//! Callbacks of a consumer client: rebalances, statistics, errors.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdkafka::ClientContext;
use rdkafka::TopicPartitionList;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use rdkafka::types::RDKafkaRespErr;
use tokio::sync::{mpsc, oneshot};

use super::assignment::Assignment;
use crate::position::NextOffset;
use crate::record::TopicPartition;
use crate::source::{KnownEnds, LogFault, Ownership, Revocation, SourceEvent, Trouble};

/// What a consumer's callbacks, its thread and its control share.
#[derive(Debug)]
pub(super) struct Context {
    events: mpsc::UnboundedSender<SourceEvent>,
    drain: Duration,
    state: Mutex<Assignment>,
    ends: Mutex<KnownEnds>,
    /// Partitions whose readable end has been reached, since they were last handed over.
    reached: Mutex<Vec<(TopicPartition, NextOffset)>>,
    /// When the client was made: statistics say how old it was.
    made: Instant,
    in_trouble: Mutex<Option<Trouble>>,
}

impl Context {
    pub(super) fn new(events: mpsc::UnboundedSender<SourceEvent>, drain: Duration) -> Self {
        Self {
            events,
            drain,
            state: Mutex::default(),
            ends: Mutex::default(),
            reached: Mutex::default(),
            made: Instant::now(),
            in_trouble: Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, Assignment> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ends(&self) -> MutexGuard<'_, KnownEnds> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the partitions whose readable end has been reached.
    pub(super) fn take_reached(&self) -> Vec<(TopicPartition, NextOffset)> {
        std::mem::take(&mut *self.reached.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nobody listens any more once the pipeline has ended; then nobody needs to know.
    pub(super) fn tell(&self, event: SourceEvent) {
        drop(self.events.send(event));
    }

    pub(super) fn broker_answered(&self, ago: Duration) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(ago);
        let at = i64::try_from(at.as_micros()).ok();
        let mut ends = self.ends();
        ends.broker_answered_at = ends.broker_answered_at.max(at);
    }

    /// The end of a partition that is assigned and not read, as a broker has just told it.
    pub(super) fn idle_end(&self, name: TopicPartition, end: NextOffset) {
        self.broker_answered(Duration::ZERO);
        let state = self.state();
        if state.assigned.contains(&name) && !state.added.contains_key(&name) {
            self.ends().readable.insert(name, end);
        }
    }

    /// Reports trouble once, and its end once.
    pub(super) fn trouble(&self, trouble: Option<Trouble>) {
        let mut known = self.in_trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != trouble {
            known.clone_from(&trouble);
            self.tell(SourceEvent::Trouble(trouble));
        }
    }

    /// A topic has another id than before: what is fetched from now on is another log. Nothing more of it is handed over.
    fn topic_changed(&self, change: &TopicChange<'_>) {
        tracing::warn!(
            topic = change.topic,
            before = change.before,
            now = change.now,
            "a topic was made anew"
        );
        let mut streams = Vec::new();
        for (name, added) in &mut self.state().added {
            if *name.topic == *change.topic && !added.is_faulty {
                added.is_faulty = true;
                streams.push((name.clone(), added.stream));
            }
        }
        for (partition, stream) in streams {
            let (expected, found) = (change.before.to_owned(), change.now.to_owned());
            let fault = LogFault::Recreated { expected, found };
            self.tell(SourceEvent::LogFault { partition, stream, fault });
        }
    }

    fn assign(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let partitions = names(list);
        self.state().assigned.extend(partitions.iter().cloned());
        // Nothing is read before it is claimed; the call itself must be made all the same.
        let result = if is_cooperative(consumer) {
            consumer.incremental_assign(&TopicPartitionList::new())
        } else {
            consumer.assign(&TopicPartitionList::new())
        };
        if let Err(error) = result {
            self.tell(SourceEvent::Fatal(format!("accepting an assignment failed: {error}")));
        }
        if !partitions.is_empty() {
            self.tell(SourceEvent::Assigned { partitions });
        }
    }

    fn revoke(&self, consumer: &BaseConsumer<Self>, list: &TopicPartitionList) {
        let partitions = names(list);
        let ownership = if consumer.assignment_lost() { Ownership::Lost } else { Ownership::UntilDone };
        if !partitions.is_empty() {
            let (done, wait) = oneshot::channel();
            let revoked = SourceEvent::Revoked {
                partitions: partitions.clone(),
                ownership,
                done: Revocation(Some(done)),
            };
            self.tell(revoked);
            if ownership == Ownership::UntilDone {
                wait_for(wait, self.drain);
            }
        }
        let mut removed = TopicPartitionList::new();
        {
            let mut state = self.state();
            for name in &partitions {
                state.assigned.remove(name);
                state.suspected.remove(name);
                if state.added.remove(name).is_some() {
                    removed.add_partition(&name.topic, name.partition);
                }
            }
        }
        {
            let mut ends = self.ends();
            for name in &partitions {
                ends.readable.remove(name);
            }
        }
        let result = if is_cooperative(consumer) {
            consumer.incremental_unassign(&removed)
        } else {
            consumer.unassign()
        };
        if let Err(error) = result {
            // After the library itself has dropped the assignment there is nothing left to give up.
            tracing::warn!(%error, "giving up revoked partitions failed");
        }
    }
}

/// The library's words for a topic whose id has changed. It goes on with the positions that it had, and says so nowhere else
/// than in its log; there it does before it fetches by the new id.
#[derive(Debug, PartialEq, Eq)]
struct TopicChange<'a> {
    topic: &'a str,
    before: &'a str,
    now: &'a str,
}

impl<'a> TopicChange<'a> {
    fn told_by(text: &'a str) -> Option<Self> {
        let (head, ids) = text.split_once(" changed id from ")?;
        let (_, topic) = head.rsplit_once("Topic ")?;
        let (before, now) = ids.split_once(" to ")?;
        let is_known = |id: &str| !id.trim_matches(['A', '=']).is_empty();
        (is_known(before) && is_known(now)).then_some(Self { topic, before, now })
    }
}

/// Waits until the sender is dropped, at most `limit`.
fn wait_for(mut done: oneshot::Receiver<()>, limit: Duration) {
    let begun = Instant::now();
    // The polling thread has nothing else to do meanwhile, and no runtime of its own to wait with.
    while begun.elapsed() < limit {
        match done.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => std::thread::park_timeout(Duration::from_millis(2)),
            _ => return,
        }
    }
    tracing::warn!("revoked partitions were not drained within {limit:?}; the store's fence protects them");
}

fn names(list: &TopicPartitionList) -> Vec<TopicPartition> {
    list.elements().iter().map(|element| TopicPartition::new(element.topic(), element.partition())).collect()
}

pub(super) fn is_cooperative(consumer: &BaseConsumer<Context>) -> bool {
    matches!(consumer.rebalance_protocol(), RebalanceProtocol::Cooperative)
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, text: &str) {
        if let Some(change) = TopicChange::told_by(text) {
            self.topic_changed(&change);
        }
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => {
                tracing::warn!(target: "librdkafka", fac, "{text}");
            }
            RDKafkaLogLevel::Warning => tracing::info!(target: "librdkafka", fac, "{text}"),
            RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info | RDKafkaLogLevel::Debug => {
                tracing::debug!(target: "librdkafka", fac, "{text}");
            }
        }
    }

    fn stats(&self, statistics: Statistics) {
        let is_fresh = |idle: i64| (0..5_000_000).contains(&idle);
        let idle =
            statistics.brokers.values().filter(|broker| broker.state == "UP").map(|broker| broker.rxidle);
        if let Some(idle) = idle.filter(|idle| is_fresh(*idle)).min() {
            self.broker_answered(Duration::from_micros(idle.unsigned_abs()));
            self.trouble(None);
        }
        let added = self.state().added.clone();
        let taken = self.made + Duration::from_micros(statistics.age.unsigned_abs());
        let mut reached = Vec::new();
        let mut ends = self.ends();
        for (topic, about) in &statistics.topics {
            for partition in about.partitions.values() {
                let name = TopicPartition::new(topic.as_str(), partition.partition);
                // The last stable offset is where a reader of committed records must stop.
                let end = if partition.ls_offset >= 0 { partition.ls_offset } else { partition.hi_offset };
                let Some(added) = added.get(&name).filter(|_| end >= 0) else { continue };
                let end = NextOffset::new(end);
                // Everything before the end has been fetched and handed over: what lies between holds no record for us. The
                // library's own numbers are up to a second old; those of before the stream began say nothing of it.
                let is_of_this_stream = taken > added.begun + Duration::from_secs(2);
                if is_of_this_stream && partition.fetchq_cnt == 0 && partition.next_offset >= end.get() {
                    reached.push((name.clone(), end));
                }
                ends.readable.insert(name, end);
            }
        }
        drop(ends);
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = reached;
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the kafka client reports an error");
        let Some(code) = error.rdkafka_error_code() else { return };
        let what = match code {
            // Its words only count brokers, otherwise each time.
            RDKafkaErrorCode::AllBrokersDown => "no broker can be reached".to_owned(),
            RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed => {
                format!("the brokers refuse the credentials: {reason}")
            }
            _ => return,
        };
        self.trouble(Some(super::trouble(code, what)));
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        match code {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assign(consumer, list),
            _ => self.revoke(consumer, list),
        }
    }

    fn main_queue_min_poll_interval(&self) -> rdkafka::util::Timeout {
        rdkafka::util::Timeout::After(Duration::from_millis(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_was_made_anew_is_found_in_the_log() {
        let told = TopicChange::told_by;
        let (before, now) = ("8vvyhkLTT4ODXnTkDMkTaA", "Ib1bRKsVRaOHNhQ0VFBgLw");
        let text = format!("[thrd:main]: Topic shop.orders changed id from {before} to {now}");
        assert_eq!(told(&text), Some(TopicChange { topic: "shop.orders", before, now }));
        let first = format!("Topic shop.orders changed id from AAAAAAAAAAAAAAAAAAAAAA to {now}");
        assert_eq!(told(&first), None, "the first id is no change");
        assert_eq!(told("Topic shop.orders [1] migrated"), None);
    }
}
