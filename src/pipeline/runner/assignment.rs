//! What the group gives and takes, and the claims in the store.

use std::collections::HashMap;
use std::time::Duration;

use super::{COMMIT_TIMEOUT, Ended, INFRASTRUCTURE_CEILING, Leaving, REVOKE_COMMIT_TIMEOUT, Runner, Wake};
use crate::count::counted;
use crate::pipeline::batch::Batch;
use crate::pipeline::partition::{Flow, Partition, State, Stopped};
use crate::pipeline::retry;
use crate::pipeline::retry::Backoff;
use crate::position::NextOffset;
use crate::record::TopicPartition;
use crate::source::{LogFault, Ownership, Revocation, SourceEvent, StreamId, Trouble};
use crate::store::{ClaimRequest, Claimed, PositionRow, Quarantine, QuarantineChange, StoreError};
use crate::telemetry::{self, Retried};

impl Runner {
    pub(super) fn on_event(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Assigned { partitions } => {
                self.shared.health.joined();
                for partition in partitions {
                    self.assigned(partition);
                }
            }
            SourceEvent::Revoked { partitions, ownership, done } => self.revoked(partitions, ownership, done),
            SourceEvent::LogFault { partition, stream, fault } => self.log_fault(&partition, stream, &fault),
            SourceEvent::Interrupted { partition, stream, log_start } => {
                self.begin_again(&partition, stream, log_start);
            }
            SourceEvent::Trouble(trouble) => {
                if let Some(Trouble { what, .. }) = &trouble {
                    tracing::warn!(version = %self.version, what, "kafka is in trouble; the client goes on trying");
                }
                self.trouble = trouble;
            }
            SourceEvent::Fatal(why) => self.ended = Some(Ended::Broken(why)),
        }
    }

    pub(super) fn assigned(&mut self, partition: TopicPartition) {
        tracing::info!(version = %self.version, %partition, "assigned");
        let lane = self.emptiest_lane();
        let state = State::Claiming(Backoff::up_to(INFRASTRUCTURE_CEILING));
        self.partitions.insert(partition.clone(), Partition { lane, state, committed: None });
        self.claim(partition);
    }

    /// The lane with the fewest partitions.
    pub(super) fn emptiest_lane(&self) -> usize {
        let load = |lane: usize| self.partitions.values().filter(|partition| partition.lane == lane).count();
        (0..self.lanes.len()).min_by_key(|lane| load(*lane)).unwrap_or(0)
    }

    pub(super) fn revoked(
        &mut self,
        partitions: Vec<TopicPartition>,
        ownership: Ownership,
        done: Revocation,
    ) {
        let mut leaving = Leaving { waits_for: HashMap::new(), durable: Vec::new(), done };
        for name in partitions {
            tracing::info!(version = %self.version, partition = %name, ?ownership, "revoked");
            self.claims.remove(&name);
            telemetry::partition_gone(&self.version, &name);
            self.parts.owned(&name, false);
            let Some(partition) = self.partitions.remove(&name) else { continue };
            if let State::Flowing(flow) = &partition.state {
                flow.stop.cancel();
            }
            if ownership == Ownership::Lost {
                self.estrange(&name, &partition);
                continue;
            }
            match partition.state {
                State::Flowing(flow) if flow.is_in_flight() => {
                    leaving.waits_for.insert(name, flow.fence.epoch);
                }
                State::Flowing(flow) => leaving.durable.push((name, flow.fence.position)),
                State::Quarantined(stopped) => leaving.durable.push((name, stopped.fence.position)),
                State::Claiming(_) => {}
            }
        }
        if leaving.waits_for.is_empty() {
            self.let_go(leaving);
        } else {
            self.leaving.push(leaving);
        }
    }

    /// Commits what is durable of revoked partitions, then lets the source give them up.
    pub(super) fn let_go(&self, leaving: Leaving) {
        let control = self.control.clone();
        self.tasks.spawn(async move {
            // Once the source has given up waiting, a commit could set the offset back behind the next owner's.
            if !leaving.durable.is_empty()
                && !leaving.done.is_over()
                && let Err(error) = control.commit(&leaving.durable, REVOKE_COMMIT_TIMEOUT).await
            {
                tracing::debug!(%error, "committing at revoke failed; the store has the truth");
            }
            drop(leaving.done);
            Wake::Nothing
        });
    }

    /// Goes on behind what is held; records of the former stream that still come are dropped.
    /// `log_start` is the first offset of the log: what lies before it cannot be compared.
    fn begin_again(&mut self, name: &TopicPartition, stream: StreamId, log_start: NextOffset) {
        let control = self.control.clone();
        if let Some(flow) = self.flow(name)
            && flow.stream == stream
            && flow.accepts()
        {
            let from = flow.next_needed();
            let last_epoch = flow.taken_epoch.filter(|_| from > log_start);
            flow.restart(control.begin(name, from, last_epoch), from);
        }
    }

    pub(super) fn log_fault(&mut self, name: &TopicPartition, stream: StreamId, fault: &LogFault) {
        let why = log_quarantine(fault);
        let Some(flow) = self.flow(name) else { return };
        if flow.stream == stream {
            if let LogFault::Recreated { found, .. } = fault
                && flow.topic_id.as_ref() == Some(found)
            {
                // The client is late: the position belongs to the topic of now.
                return self.begin_again(name, stream, NextOffset::ZERO);
            }
            flow.quarantine = QuarantineChange::Enter(why);
            self.control.pause(name);
        }
    }

    pub(super) fn claim(&mut self, name: TopicPartition) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let (store, parts, cluster) = (self.shared.store.clone(), self.parts.clone(), self.cluster.clone());
        let (version, instance) = (self.version.clone(), self.shared.instance.clone());
        self.tasks.spawn(async move {
            // The topic may have been made anew since it was last asked about.
            if let Err(error) = parts.refresh_topic_ids(cluster.as_ref()).await {
                telemetry::retry(&version, retry::class_of_source(&error), Retried::Claim);
                tracing::warn!(%version, partition = %name, %error, "the topics' ids are not known; trying again");
                return Wake::Claimed(name, number, None);
            }
            let topic_id = parts.topic_id(&name.topic);
            let digest = parts.declaration.digest.clone();
            let request = ClaimRequest { version, partition: name.clone(), topic_id, digest, instance };
            let answer = store.claim(&request).await;
            Wake::Claimed(name, number, Some(answer))
        });
    }

    pub(super) fn is_current(&self, name: &TopicPartition, number: u64) -> bool {
        self.claims.get(name) == Some(&number)
    }

    pub(super) fn claimed(
        &mut self,
        name: TopicPartition,
        number: u64,
        answer: Option<Result<Claimed, StoreError>>,
    ) {
        if !self.is_current(&name, number) {
            return;
        }
        match answer {
            Some(Ok(Claimed::Owned(row))) => return self.own(&name, &row),
            Some(Ok(Claimed::Gone)) => self.ended = Some(Ended::Gone),
            Some(Ok(Claimed::Lost)) | None => {}
            Some(Err(error)) => {
                if let Some(Partition { state: State::Claiming(backoff), .. }) = self.partitions.get(&name)
                    && backoff.attempts() == 0
                {
                    tracing::warn!(version = %self.version, partition = %name, %error, "claiming failed; trying again until it works");
                }
                telemetry::retry(&self.version, retry::class_of_store(&error), Retried::Claim);
            }
        }
        self.confirm_later(name);
    }

    /// Asks the broker, after a pause, whether the partition is still this member's, and then claims it again.
    pub(super) fn confirm_later(&mut self, name: TopicPartition) {
        if let Some(Partition { state: State::Claiming(backoff), .. }) = self.partitions.get_mut(&name) {
            let delay = backoff.next(retry::jitter());
            self.confirm(name, delay);
        }
    }

    pub(super) fn own(&mut self, name: &TopicPartition, row: &PositionRow) {
        let position = row.fence.position;
        tracing::info!(version = %self.version, partition = %name, %position, epoch = %row.fence.epoch, "claimed");
        self.parts.owned(name, true);
        match &row.quarantine {
            Some(why) => {
                let is_readable = why.ends_by_resume();
                let probe =
                    if is_readable { self.control.begin(name, position, None) } else { StreamId::NONE };
                let stopped = Stopped {
                    fence: row.fence,
                    boundary: row.boundary,
                    topic_id: row.topic_id.clone(),
                    oldest: None,
                    probe,
                    applied_epoch: row.leader_epoch,
                    why: why.clone(),
                };
                self.set_state(name, State::Quarantined(Box::new(stopped)));
            }
            None => drop(self.begin(name, row)),
        }
        self.parts.publish_soon();
    }

    /// Begins to read a partition, unless its topic was made anew since the position was written.
    pub(super) fn begin(&mut self, name: &TopicPartition, row: &PositionRow) -> Option<&mut Flow> {
        let position = row.fence.position;
        let recreated = match (&row.topic_id, self.parts.topic_id(&name.topic)) {
            (Some(expected), Some(found)) if *expected != found => {
                Some(LogFault::Recreated { expected: expected.clone(), found })
            }
            _ => None,
        };
        let stream = match recreated {
            Some(_) => StreamId::NONE,
            None => self.control.begin(name, position, row.leader_epoch),
        };
        let mut flow = Flow::new(row, stream, self.new_batch(position), self.shared.batch_records);
        if let Some(fault) = recreated {
            flow.quarantine = QuarantineChange::Enter(log_quarantine(&fault));
        }
        self.set_state(name, State::Flowing(Box::new(flow)));
        self.flow(name)
    }

    pub(super) fn set_state(&mut self, name: &TopicPartition, state: State) {
        if let Some(partition) = self.partitions.get_mut(name) {
            partition.state = state;
        }
    }

    pub(super) fn new_batch(&self, position: NextOffset) -> Batch {
        Batch::new(&self.declaration.tables, position)
    }

    /// A partition that was lost in the store is claimed again only after the broker has confirmed this member: it must
    /// accept a commit of the position just read from the store. A member that was expelled hears of it by a revocation,
    /// which ends these attempts.
    pub(super) fn confirm(&mut self, name: TopicPartition, delay: Duration) {
        self.next_claim += 1;
        let number = self.next_claim;
        self.claims.insert(name.clone(), number);
        let (store, control, version) =
            (self.shared.store.clone(), self.control.clone(), self.version.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(delay).await;
            let Ok(rows) = store.status(Some(&version.projection)).await else {
                return Wake::Confirmed(name, number, false);
            };
            // No row: the partition is new, or the version has been retired. The claim tells which.
            let is_confirmed = match rows
                .into_iter()
                .find(|row| row.version == version && row.partition == name)
            {
                None => true,
                Some(row) => control.commit(&[(name.clone(), row.position)], COMMIT_TIMEOUT).await.is_ok(),
            };
            Wake::Confirmed(name, number, is_confirmed)
        });
    }

    pub(super) fn confirmed(&mut self, name: TopicPartition, number: u64, is_confirmed: bool) {
        if !self.is_current(&name, number) {
            return;
        }
        if is_confirmed {
            self.claim(name);
        } else {
            self.confirm_later(name);
        }
    }
}

/// The quarantine that a fault of the log causes.
fn log_quarantine(fault: &LogFault) -> Quarantine {
    let (reason, detail) = match fault {
        LogFault::Expired { position, log_start, log_end } => (
            Quarantine::LOG_EXPIRED,
            format!(
                "position {position} lies before the first offset {log_start} of the log (end {log_end}); gone: {}",
                counted(position.lag_to(*log_start), "record")
            ),
        ),
        LogFault::Truncated { position, log_start, log_end } => (
            Quarantine::LOG_TRUNCATED,
            format!(
                "position {position} lies beyond the end {log_end} of the log (start {log_start}): the topic was truncated \
                 or made anew"
            ),
        ),
        LogFault::Rewritten { position, evidence } => (
            Quarantine::LOG_TRUNCATED,
            format!(
                "the log was cut below position {position} and has grown past it again, as after an unclean election of a \
                 leader: {evidence}"
            ),
        ),
        LogFault::Recreated { expected, found } => (
            Quarantine::TOPIC_RECREATED,
            format!(
                "the position belongs to topic id {expected}, the topic now has {found}: it was made anew"
            ),
        ),
    };
    Quarantine { reason: reason.to_owned(), detail }
}
