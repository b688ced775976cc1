//! What is done once a second: offsets, observations, requests of operators, the first promotion.

use super::{COMMIT_TIMEOUT, PromotionState, Runner, Wake};
use crate::pipeline::partition::{Partition, State, Stopped};
use crate::pipeline::retry;
use crate::position::{Epoch, NextOffset};
use crate::record::TopicPartition;
use crate::source::SourceError;
use crate::store::{
    InstanceReport, Observation, Observed, OperatorAction, OperatorRequest, PositionRow, Promotion,
    QuarantineChange, StoreError,
};
use crate::telemetry::{self, Retried};

impl Runner {
    pub(super) fn on_tick(&mut self) {
        self.heartbeat.beat();
        if let Some(trouble) = &self.trouble {
            telemetry::retry(&self.version, trouble.class, Retried::Broker);
        }
        self.look_at_backlog();
        self.commit();
        self.observe();
        if self.promotion == PromotionState::Wanted {
            self.ask_promotion();
        }
    }

    /// Partitions whose dead letters cannot be published stop until they can (promise P9: nothing grows without bound).
    fn look_at_backlog(&mut self) {
        let backlogged = self.parts.backlogged();
        for (name, partition) in &mut self.partitions {
            if let State::Flowing(flow) = &mut partition.state {
                let is_backlogged = backlogged.contains(name);
                if is_backlogged && !flow.is_backlogged {
                    tracing::warn!(version = %self.version, partition = %name, "blocked: too many dead letters wait for their topic");
                }
                flow.is_backlogged = is_backlogged;
            }
        }
    }

    pub(super) fn positions(&self) -> Vec<(TopicPartition, NextOffset)> {
        let position = |partition: &Partition| match &partition.state {
            State::Flowing(flow) => Some(flow.fence.position),
            State::Quarantined(stopped) => Some(stopped.fence.position),
            State::Claiming(_) => None,
        };
        self.partitions
            .iter()
            .filter_map(|(name, partition)| {
                position(partition).filter(|at| partition.committed != Some(*at)).map(|at| (name.clone(), at))
            })
            .collect()
    }

    pub(super) fn commit(&mut self) {
        let positions = self.positions();
        if self.committing || positions.is_empty() {
            return;
        }
        self.committing = true;
        let control = self.control.clone();
        self.tasks.spawn(async move {
            let result = control.commit(&positions, COMMIT_TIMEOUT).await;
            Wake::Committed(positions, result)
        });
    }

    pub(super) fn committed(
        &mut self,
        positions: Vec<(TopicPartition, NextOffset)>,
        result: &Result<(), SourceError>,
    ) {
        if let Err(error) = result {
            tracing::debug!(version = %self.version, %error, "committing offsets failed; the store has the truth");
            return;
        }
        for (name, position) in positions {
            if let Some(partition) = self.partitions.get_mut(&name) {
                partition.committed = Some(position);
            }
        }
    }

    pub(super) fn observe(&mut self) {
        let ends = self.control.ends();
        let broker = self.trouble.as_ref().map(|trouble| trouble.what.clone());
        let waits = broker.clone().or_else(|| self.parts.not_live());
        let mut observations = Vec::new();
        for (name, partition) in &self.partitions {
            let (fence, oldest, blocked) = match &partition.state {
                State::Flowing(flow) => {
                    (flow.fence, flow.oldest_pending(), flow.blocked().or_else(|| broker.clone()))
                }
                State::Quarantined(stopped) => (stopped.fence, stopped.oldest, None),
                State::Claiming(_) => continue,
            };
            let end = ends.readable.get(name).copied();
            let is_behind = end.is_some_and(|end| fence.position < end);
            telemetry::partition(
                &self.version,
                name,
                &telemetry::PartitionGauges {
                    lag_records: end.map(|end| fence.position.lag_to(end)),
                    oldest_pending_millis: oldest.filter(|_| is_behind),
                    state: match &partition.state {
                        State::Quarantined(_) => telemetry::PartitionState::Quarantined,
                        _ if blocked.is_some() => telemetry::PartitionState::Blocked,
                        _ => telemetry::PartitionState::Flowing,
                    },
                    staleness: self.declaration.staleness,
                },
            );
            observations.push(Observation {
                version: self.version.clone(),
                partition: name.clone(),
                epoch: fence.epoch,
                readable_end: end,
                oldest_pending_at: oldest.filter(|_| is_behind),
                blocked: blocked.or_else(|| waits.clone()),
            });
        }
        if self.observing {
            return;
        }
        self.observing = true;
        let report = InstanceReport {
            instance: self.shared.instance.clone(),
            host: self.shared.host.clone(),
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            broker_answered_at: ends.broker_answered_at,
            observations,
        };
        let store = self.shared.store.clone();
        self.tasks.spawn(async move { Wake::Observed(store.observe(&report).await) });
    }

    pub(super) fn observed(&mut self, answer: Result<Observed, StoreError>) {
        self.observing = false;
        match answer {
            Ok(observed) => {
                for request in observed.requests {
                    self.resume(&request);
                }
                for (_, name, epoch) in observed.lost {
                    self.lost(&name, epoch);
                }
            }
            Err(error) => {
                telemetry::retry(&self.version, retry::class_of_store(&error), Retried::Observe);
                tracing::debug!(version = %self.version, %error, "observing failed; trying again");
            }
        }
    }

    /// Somebody else has claimed a partition that stands still, or its version was retired. What is in flight finds out by
    /// itself.
    fn lost(&mut self, name: &TopicPartition, epoch: Epoch) {
        let is_lost = match self.partitions.get(name).map(|partition| &partition.state) {
            Some(State::Flowing(flow)) => flow.fence.epoch == epoch && !flow.is_in_flight(),
            Some(State::Quarantined(stopped)) => stopped.fence.epoch == epoch,
            Some(State::Claiming(_)) | None => false,
        };
        if is_lost {
            self.fenced(name.clone());
        }
    }

    /// Ends a quarantine: the next transaction of the partition says so in the store.
    pub(super) fn resume(&mut self, request: &OperatorRequest) {
        let name = &request.partition;
        let Some(Partition { state: State::Quarantined(stopped), .. }) = self.partitions.get(name) else {
            return;
        };
        let Stopped { fence, boundary, topic_id, why, .. } = &**stopped;
        if request.revision != fence.revision {
            return;
        }
        if !why.ends_by_resume() {
            tracing::warn!(version = %self.version, partition = %name, reason = why.reason, "a fault of the log is not ended by resume");
            return;
        }
        tracing::info!(version = %self.version, partition = %name, action = ?request.action, "resumed by request");
        let row = PositionRow {
            fence: *fence,
            boundary: *boundary,
            topic_id: topic_id.clone(),
            leader_epoch: None,
            quarantine: None,
        };
        let may_pass = (request.action == OperatorAction::ResumeWithDeadLetter).then_some(row.fence.position);
        if let Some(flow) = self.begin(&request.partition, &row)
            && flow.quarantine == QuarantineChange::Keep
        {
            flow.may_pass = may_pass;
            flow.quarantine = QuarantineChange::End;
            flow.waits_for_record = true;
        }
    }

    pub(super) fn ask_promotion(&mut self) {
        self.promotion = PromotionState::Asking;
        let (store, declaration) = (self.shared.store.clone(), self.declaration.clone());
        self.tasks.spawn(async move { Wake::Promoted(store.promote_first(&declaration).await) });
    }

    pub(super) fn promoted(&mut self, answer: Result<Promotion, StoreError>) {
        self.told_why_not_live(&answer);
        self.promotion = match answer {
            Ok(Promotion::Live) => {
                tracing::info!(version = %self.version, "live: its views are there");
                self.parts.publish_soon();
                PromotionState::Done
            }
            Ok(Promotion::NotYet) => PromotionState::Wanted,
            Err(error) => {
                tracing::debug!(version = %self.version, %error, "promoting failed; trying again");
                PromotionState::Wanted
            }
        };
    }

    /// What somebody has to mend before the version can go live is told once, and stands in the store until it is mended.
    fn told_why_not_live(&self, answer: &Result<Promotion, StoreError>) {
        let why = match answer {
            Err(
                error @ (StoreError::Layout { .. } | StoreError::View { .. } | StoreError::Refused { .. }),
            ) => Some(error.to_string()),
            // An outage says nothing new.
            Err(_) => return,
            Ok(_) => None,
        };
        if why != self.parts.not_live() {
            if let Some(why) = &why {
                tracing::warn!(version = %self.version, why, "caught up, and not live");
            }
            self.parts.set_not_live(why);
        }
    }
}
