//! Lanes, jobs, and what became of them.

use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::{INFRASTRUCTURE_CEILING, Lane, OPERATOR_CEILING, Runner, TICK, Wake};
use crate::pipeline::batch::Batch;
use crate::pipeline::partition::{Flow, Retry, State, Stopped};
use crate::pipeline::retry::{Backoff, Relief};
use crate::pipeline::writer::{Job, Part, PartEnd, PartResult, Turn, Wait};
use crate::pipeline::{retry, writer};
use crate::projection::Declaration;
use crate::record::TopicPartition;
use crate::source::StreamId;
use crate::store::{QuarantineChange, StoreError};
use crate::telemetry::{self, Retried, RetryClass};

impl Runner {
    /// Lanes with something ready ask for a writer.
    pub(super) fn start_lanes(&mut self) {
        let now = Instant::now();
        for lane in 0..self.lanes.len() {
            if self.lanes[lane] != Lane::Idle {
                continue;
            }
            let is_ready = self.partitions.values().any(|partition| {
                partition.lane == lane
                    && matches!(&partition.state, State::Flowing(flow) if flow.is_ready(now))
            });
            if is_ready {
                self.lanes[lane] = Lane::Asking;
                let writers = self.shared.writers.clone();
                self.tasks.spawn(async move {
                    match writers.acquire_owned().await {
                        Ok(permit) => Wake::Permit(lane, permit),
                        Err(closed) => Wake::Panicked(closed.to_string()),
                    }
                });
            }
        }
    }

    /// A writer is free: everything that is ready in the lane at this moment goes into one job.
    pub(super) fn on_permit(&mut self, lane: usize, permit: OwnedSemaphorePermit) {
        let now = Instant::now();
        let mut parts = Vec::new();
        for (name, partition) in &mut self.partitions {
            if partition.lane != lane {
                continue;
            }
            let State::Flowing(flow) = &mut partition.state else { continue };
            if flow.is_ready(now) {
                let topic_id = self.parts.topic_id(&name.topic);
                let part = part_of(flow, name, &self.declaration, topic_id);
                flow.in_flight_since = Some(now);
                flow.bytes_in_flight = part.batch.bytes();
                flow.oldest_in_flight = part.batch.oldest();
                parts.push(part);
            }
        }
        if parts.is_empty() {
            self.lanes[lane] = Lane::Idle;
            return;
        }
        parts.sort_unstable_by(|a, b| a.partition.cmp(&b.partition));
        self.lanes[lane] = Lane::Writing;
        telemetry::batch_records(&self.version, parts.iter().map(|part| part.batch.len()).sum());
        let job = Job { version: self.version.clone(), declaration: self.declaration.clone(), parts };
        let store = self.shared.store.clone();
        let turn = Turn::new(self.shared.writers.clone(), permit);
        self.tasks.spawn(async move { Wake::Written(lane, writer::write(&store, job, turn).await) });
    }

    pub(super) fn on_written(&mut self, lane: usize, results: Vec<PartResult>) {
        self.lanes[lane] = Lane::Idle;
        for result in results {
            self.count(&result);
            self.left(&result);
            self.written(result);
        }
    }

    pub(super) fn count(&self, result: &PartResult) {
        let durable = &result.durable;
        if durable.records > 0 {
            self.parts.tally.applied(&self.version, &result.partition, durable.records as u64);
        }
        for (stage, reason) in &durable.dead_letters {
            self.parts.tally.dead_letter(&self.version, &result.partition, *stage, *reason);
        }
        if let Some(age) = durable.oldest.and_then(|oldest| u64::try_from(now_millis() - oldest).ok()) {
            telemetry::event_to_visible(&self.version, Duration::from_millis(age));
        }
        if !durable.dead_letters.is_empty() {
            self.parts.publish_soon();
        }
    }

    /// A revoked partition's transaction has ended.
    pub(super) fn left(&mut self, result: &PartResult) {
        let mut ready = Vec::new();
        for (index, leaving) in self.leaving.iter_mut().enumerate() {
            if leaving.waits_for.get(&result.partition) == Some(&result.fence.epoch) {
                leaving.waits_for.remove(&result.partition);
                if !matches!(result.end, PartEnd::Fenced) {
                    leaving.durable.push((result.partition.clone(), result.fence.position));
                }
                if leaving.waits_for.is_empty() {
                    ready.push(index);
                }
            }
        }
        for index in ready.into_iter().rev() {
            let leaving = self.leaving.swap_remove(index);
            self.let_go(leaving);
        }
    }

    pub(super) fn written(&mut self, result: PartResult) {
        let name = result.partition;
        let most = self.shared.batch_records;
        let Some(flow) = self.flow(&name) else { return };
        if !flow.is_in_flight() || flow.fence.epoch != result.fence.epoch {
            // The partition was taken away and has come back since: this is news of the former assignment.
            return;
        }
        flow.in_flight_since = None;
        flow.bytes_in_flight = 0;
        flow.oldest_in_flight = None;
        let former = std::mem::replace(&mut flow.fence, result.fence);
        flow.last_applied = result.durable.oldest.or(flow.last_applied);
        flow.applied_epoch = result.durable.leader_epoch.or(flow.applied_epoch);
        match result.end {
            PartEnd::Applied => {
                flow.backoff = None;
                flow.most = flow.most.saturating_mul(2).min(most);
                flow.may_pass = flow.may_pass.filter(|position| *position >= result.fence.position);
                if former.position < flow.boundary && flow.fence.position >= flow.boundary {
                    self.ask_promotion();
                }
            }
            PartEnd::Quarantined(why) => {
                let stopped = Stopped {
                    fence: flow.fence,
                    boundary: flow.boundary,
                    topic_id: flow.topic_id.clone(),
                    oldest: flow.oldest_pending(),
                    probe: StreamId::NONE,
                    applied_epoch: flow.applied_epoch,
                    why: why.clone(),
                };
                tracing::error!(version = %self.version, partition = %name, reason = why.reason, detail = why.detail, next = why.decided_by(&self.version, &name), "quarantined");
                self.control.pause(&name);
                self.set_state(&name, State::Quarantined(Box::new(stopped)));
            }
            // The runner is ending.
            PartEnd::Interrupted => {}
            PartEnd::Fenced => self.fenced(name),
            PartEnd::Failed { error, wait, left } => self.failed(&name, &error, wait, left),
        }
    }

    /// The partition's row is another member's, or gone: nothing of it is applied until it is claimed again.
    pub(super) fn fenced(&mut self, name: TopicPartition) {
        tracing::warn!(version = %self.version, partition = %name, "fenced: another member owns the partition, or the version is gone");
        telemetry::fence_lost(&self.version, &name);
        self.control.pause(&name);
        self.parts.owned(&name, false);
        self.set_state(&name, State::Claiming(Backoff::up_to(INFRASTRUCTURE_CEILING)));
        self.confirm(name, Duration::ZERO);
    }

    pub(super) fn failed(
        &mut self,
        name: &TopicPartition,
        error: &StoreError,
        wait: Wait,
        mut left: Box<Part>,
    ) {
        let (ceiling, class) = match wait {
            Wait::Infrastructure(_) => (INFRASTRUCTURE_CEILING, RetryClass::Infrastructure),
            Wait::Operator => (OPERATOR_CEILING, RetryClass::Operator),
        };
        telemetry::retry(&self.version, class, Retried::Apply);
        let version = self.version.clone();
        let Some(flow) = self.flow(name) else { return };
        let backoff = flow.backoff.get_or_insert_with(|| Backoff::up_to(ceiling));
        if backoff.attempts() == 0 {
            let class = class.as_str();
            tracing::warn!(%version, partition = %name, %error, class, "applying failed; trying again until it works");
        }
        if wait == Wait::Infrastructure(Relief::SmallerBatch) && backoff.attempts() > 0 {
            flow.most = (left.batch.len().min(flow.most) / 2).max(1);
        }
        left.most = flow.most;
        let at = Instant::now() + backoff.next(retry::jitter());
        flow.retry = Some(Retry { at, part: left, why: error.to_string() });
    }

    pub(super) fn next_retry(&self) -> Instant {
        let far = Instant::now() + TICK;
        self.partitions
            .values()
            // A lane that is busy wakes the runner when it has ended.
            .filter(|partition| self.lanes[partition.lane] == Lane::Idle)
            .filter_map(|partition| match &partition.state {
                State::Flowing(flow) if !flow.is_in_flight() => flow.retry.as_ref().map(|retry| retry.at),
                _ => None,
            })
            .min()
            .map_or(far, |at| at.min(far))
    }
}

/// Takes what is ready off a flow: what a failed transaction has left, else the open batch.
fn part_of(
    flow: &mut Flow,
    name: &TopicPartition,
    declaration: &Declaration,
    topic_id: Option<String>,
) -> Part {
    if let Some(retry) = flow.retry.take() {
        return *retry.part;
    }
    let next = Batch::new(&declaration.tables, flow.open.end());
    let batch = std::mem::replace(&mut flow.open, next);
    Part {
        partition: name.clone(),
        fence: flow.fence,
        batch,
        quarantine: std::mem::replace(&mut flow.quarantine, QuarantineChange::Keep),
        topic_id,
        most: flow.most,
        may_pass: flow.may_pass,
        stop: flow.stop.clone(),
    }
}

fn now_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
