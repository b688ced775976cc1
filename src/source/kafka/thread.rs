//! The thread that polls one consumer client: it owns its rebalancing and reads its data queue.
//!
//! It never waits for the pipeline: while the channel of records is full it only polls, so that the member stays in the
//! group. Commands are taken between two reads, that is, within about 20 ms.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::{mpsc, oneshot};

use super::assignment::{Added, Before, Fetched};
use super::client::REQUEST_TIMEOUT;
use super::context::{Context, is_cooperative};
use super::idle::IdleEnds;
use super::native::{DataQueue, EventQueue, Item};
use crate::position::NextOffset;
use crate::record::TopicPartition;
use crate::source::{Consumed, LogFault, SourceEvent, StreamId};

/// How long a read waits for the first record.
const READ_WAIT: Duration = Duration::from_millis(20);
/// The most records of one read.
const READ_MOST: usize = 1000;

/// The library's name for a log that was cut below what had been read.
const TRUNCATION: &str = "Partition log truncation detected";

/// What the pipeline asks of the thread.
#[derive(Debug)]
pub(super) enum Command {
    Begin { partition: TopicPartition, from: NextOffset, last_epoch: Option<i32>, stream: StreamId },
    Pause { partition: TopicPartition },
    Close { done: oneshot::Sender<()> },
}

pub(super) struct Poller {
    pub(super) consumer: Arc<BaseConsumer<Context>>,
    pub(super) queue: DataQueue,
    pub(super) events: EventQueue,
    pub(super) commands: Receiver<Command>,
    pub(super) records: mpsc::Sender<Vec<Consumed>>,
    pub(super) idle: IdleEnds,
    pub(super) forwards: Forwards,
}

/// When the queues of partitions are forwarded again. Where a fetch stops, the library takes the forwarding away, and it
/// does so on a thread of its own, some time after the call: whatever is begun soon after a pause would be read into a
/// queue that nobody looks at. What stands in such a queue comes along when it is forwarded again, in order.
#[derive(Debug)]
pub(super) struct Forwards {
    done: Instant,
    settled: Instant,
}

impl Forwards {
    /// How often, while something has been begun or paused lately.
    const SOON: Duration = Duration::from_millis(20);
    /// How often otherwise.
    const LATER: Duration = Duration::from_secs(1);
    /// How long a change counts as late.
    const UNSETTLED: Duration = Duration::from_secs(5);

    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { done: now, settled: now }
    }

    fn changed(&mut self) {
        self.settled = Instant::now() + Self::UNSETTLED;
    }

    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.done + if now < self.settled { Self::SOON } else { Self::LATER };
        if is_due {
            self.done = now;
        }
        is_due
    }
}

impl Poller {
    /// Runs until it is told to close, or nobody listens any more.
    pub(super) fn run(mut self) {
        let done = loop {
            match self.commands.try_recv() {
                Ok(Command::Begin { partition, from, last_epoch, stream }) => {
                    self.begin(&partition, from, last_epoch, stream);
                }
                Ok(Command::Pause { partition }) => self.pause(&partition),
                Ok(Command::Close { done }) => break Some(done),
                Err(TryRecvError::Disconnected) => break None,
                Err(TryRecvError::Empty) => self.turn(),
            }
        };
        // The queues go before the client that they belong to.
        drop((self.queue, self.events));
        leave(self.consumer);
        if let Some(done) = done {
            // The one who asked may have run out of patience.
            let _ = done.send(());
        }
    }

    /// Polls events once and reads once.
    fn turn(&mut self) {
        self.idle.ask(&self.consumer);
        if self.forwards.is_due() {
            for name in self.consumer.context().state().added.keys() {
                self.queue.forward(self.consumer.client(), name);
            }
        }
        self.serve_events();
        match self.records.clone().try_reserve() {
            Ok(permit) => {
                let mut chunk = self.ends();
                let wait = if chunk.is_empty() { READ_WAIT } else { Duration::ZERO };
                let items = self.queue.read(wait, READ_MOST);
                // What the library has said before it fetched these, such as that they are of another topic.
                self.serve_events();
                chunk.extend(self.hand_over(items));
                if !chunk.is_empty() {
                    permit.send(chunk);
                }
            }
            Err(_) => self.poll(Duration::from_millis(10)),
        }
    }

    /// Serves every event that is there: the library's own call serves one.
    fn serve_events(&self) {
        for _ in 0..=self.events.length() {
            self.poll(Duration::ZERO);
        }
    }

    /// Serves rebalances and other events. The consumer's own queue never has records: every partition is forwarded.
    fn poll(&self, wait: Duration) {
        if let Some(Err(error)) = self.consumer.poll(wait) {
            self.on_error(&error);
        }
    }

    fn on_error(&self, error: &KafkaError) {
        let context = self.consumer.context();
        match error {
            KafkaError::MessageConsumptionFatal(code) => {
                context.tell(SourceEvent::Fatal(format!("the kafka client has failed: {code}")));
            }
            KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded) => {
                tracing::warn!("the poll interval was exceeded; the client joins again by itself");
            }
            // The callback for errors has told these.
            KafkaError::MessageConsumption(
                RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Authentication
                | RDKafkaErrorCode::SaslAuthenticationFailed,
            ) => {}
            KafkaError::MessageConsumption(code) => {
                context.trouble(Some(super::trouble(*code, format!("kafka: {code}"))));
            }
            other => tracing::debug!(error = %other, "the kafka client reports"),
        }
    }

    /// Ends that the statistics of this very turn or an earlier one have shown: everything before them was read before.
    fn ends(&self) -> Vec<Consumed> {
        let context = self.consumer.context();
        let reached = context.take_reached();
        let mut state = context.state();
        let mut ends = Vec::new();
        for (partition, end) in reached {
            if let Some(added) = state.added.get_mut(&partition)
                && !added.is_faulty
                && end > added.next
            {
                let stream = added.stream;
                match added.end_at(end) {
                    Ok(()) => ends.push(Consumed::End { stream, partition, end }),
                    Err(fault) => context.tell(SourceEvent::LogFault { partition, stream, fault }),
                }
            }
        }
        ends
    }

    /// Tags what was read with its stream; what belongs to nobody any more is dropped.
    fn hand_over(&self, items: Vec<Item>) -> Vec<Consumed> {
        let context = self.consumer.context();
        let mut chunk = Vec::with_capacity(items.len());
        let mut faults = Vec::new();
        {
            let mut state = context.state();
            for item in items {
                match item {
                    Item::Record(record) => {
                        let name = &record.coordinates.topic_partition;
                        let Some(added) = state.added.get_mut(name).filter(|added| !added.is_faulty) else {
                            continue;
                        };
                        let stream = added.stream;
                        match added.take(&record) {
                            Ok(Fetched::New) => chunk.push(Consumed::Record { stream, record }),
                            Ok(Fetched::Before) => {}
                            Err(fault) => {
                                let partition = name.clone();
                                context.tell(SourceEvent::LogFault { partition, stream, fault });
                            }
                        }
                    }
                    Item::Error { partition, code, text } => faults.push((partition, code, text)),
                }
            }
        }
        if !chunk.is_empty() {
            context.broker_answered(Duration::ZERO);
        }
        for (partition, code, text) in faults {
            self.partition_error(partition, code, &text);
        }
        chunk
    }

    fn partition_error(&self, partition: TopicPartition, code: RDKafkaErrorCode, text: &str) {
        let context = self.consumer.context();
        match code {
            RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange => {
                let added = context.state().added.get(&partition).cloned();
                let Some(added) = added.filter(|added| !added.is_faulty) else { return };
                let (stream, position) = (added.stream, added.next);
                if added.fetch_from() == position {
                    tracing::warn!(%partition, %position, %code, text, "the broker refuses a position");
                } else {
                    tracing::debug!(%partition, %position, %code, text, "the record before a position is not there");
                }
                let consumer = self.consumer.clone();
                let question = Question { partition, stream, position, suspicion: truncation(text) };
                // Not on this thread: the question may take as long as a request.
                std::thread::spawn(move || question.ask(&consumer));
            }
            code => context.trouble(Some(super::trouble(code, format!("{partition}: {code}: {text}")))),
        }
    }

    fn begin(&mut self, name: &TopicPartition, from: NextOffset, last_epoch: Option<i32>, stream: StreamId) {
        self.forwards.changed();
        let context = self.consumer.context();
        let (added, was_added) = {
            let mut state = context.state();
            if !state.assigned.contains(name) {
                // Its revocation stands among the events already.
                return;
            }
            let suspicion = state.suspected.remove(name).filter(|_| from > NextOffset::ZERO);
            let unfounded = suspicion.clone().filter(|_| last_epoch.is_none());
            let before = last_epoch.map(|epoch| Before { epoch, suspicion });
            let is_faulty = unfounded.is_some();
            let added = Added { stream, next: from, before, begun: Instant::now(), is_faulty };
            if let Some(evidence) = unfounded {
                // There is nothing to compare.
                let fault = LogFault::Rewritten { position: from, evidence };
                context.tell(SourceEvent::LogFault { partition: name.clone(), stream, fault });
            }
            (added.clone(), state.added.insert(name.clone(), added).is_some())
        };
        self.queue.forward(self.consumer.client(), name);
        let result = if is_cooperative(&self.consumer) {
            self.begin_one(name, added.fetch_from(), was_added)
        } else {
            context.state().list().and_then(|all| self.consumer.assign(&all))
        };
        if let Err(error) = result {
            context.tell(SourceEvent::Fatal(format!("beginning to read {name} failed: {error}")));
        }
    }

    fn begin_one(&self, name: &TopicPartition, from: NextOffset, was_added: bool) -> Result<(), KafkaError> {
        if was_added {
            self.consumer.incremental_unassign(&one(name))?;
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&name.topic, name.partition, Offset::Offset(from.get()))?;
        self.consumer.incremental_assign(&list)
    }

    /// Stops reading a partition, which drops what was prefetched of it; the group's assignment stays.
    fn pause(&mut self, name: &TopicPartition) {
        self.forwards.changed();
        let context = self.consumer.context();
        if context.state().added.remove(name).is_none() {
            return;
        }
        let result = if is_cooperative(&self.consumer) {
            self.consumer.incremental_unassign(&one(name))
        } else {
            context.state().list().and_then(|all| self.consumer.assign(&all))
        };
        if let Err(error) = result {
            tracing::warn!(%error, partition = %name, "pausing failed; its records are dropped");
        }
    }
}

/// Leaves the group, serving the revocation that this brings: dropping the last handle does both, on this thread. Whoever
/// commits may still hold a handle for a moment; the control holds only a weak one.
fn leave(mut consumer: Arc<BaseConsumer<Context>>) {
    let begun = Instant::now();
    while begun.elapsed() < REQUEST_TIMEOUT {
        match Arc::try_unwrap(consumer) {
            Ok(last) => return drop(last),
            Err(shared) => consumer = shared,
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

fn one(name: &TopicPartition) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(&name.topic, name.partition);
    list
}

/// A position that the broker refuses, or that the client takes for one of another log.
struct Question {
    partition: TopicPartition,
    stream: StreamId,
    position: NextOffset,
    /// The client's words where it has found that the log was cut below what it had read.
    suspicion: Option<String>,
}

impl Question {
    /// Finds out what is wrong, and says so. Asks until it knows.
    fn ask(self, consumer: &BaseConsumer<Context>) {
        let Self { partition, stream, position, suspicion } = self;
        let context = consumer.context();
        let is_current = || context.state().added.get(&partition).is_some_and(|added| added.stream == stream);
        while is_current() {
            match consumer.fetch_watermarks(&partition.topic, partition.partition, REQUEST_TIMEOUT) {
                Ok((start, end)) => {
                    let (log_start, log_end) = (NextOffset::new(start), NextOffset::new(end));
                    if let Some(fault) = log_fault(position, log_start, log_end) {
                        context.tell(SourceEvent::LogFault { partition, stream, fault });
                        return;
                    }
                    if let Some(suspicion) = suspicion {
                        context.state().suspected.insert(partition.clone(), suspicion);
                    }
                    context.tell(SourceEvent::Interrupted { partition, stream, log_start });
                    return;
                }
                Err(error) => {
                    tracing::warn!(%partition, %error, "the log's bounds are not known yet; asking again");
                    std::thread::park_timeout(Duration::from_secs(1));
                }
            }
        }
    }
}

/// What is wrong with a position in a log with these bounds, if anything is.
fn log_fault(position: NextOffset, log_start: NextOffset, log_end: NextOffset) -> Option<LogFault> {
    if position < log_start {
        Some(LogFault::Expired { position, log_start, log_end })
    } else if position > log_end {
        Some(LogFault::Truncated { position, log_start, log_end })
    } else {
        None
    }
}

/// The library's words where it has asked the new leader of a partition for the end of the epoch that it had read, and that end
/// lies before what it had read. It reports this like any other position that cannot be read, and tells them apart in
/// its text only.
fn truncation(text: &str) -> Option<String> {
    text.contains(TRUNCATION).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_librarys_words_for_a_truncation_are_known() {
        let words = |code: RDKafkaErrorCode| format!("no epoch found (broker 1): {code}");
        let cut = words(RDKafkaErrorCode::LogTruncation);
        assert_eq!(truncation(&cut).as_deref(), Some(cut.as_str()));
        assert_eq!(truncation(&words(RDKafkaErrorCode::OffsetOutOfRange)), None);
    }
}
