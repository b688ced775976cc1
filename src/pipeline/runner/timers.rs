//! What is done once a second: offsets, requests of operators, the first promotion.

use std::time::{Duration, Instant};

use super::{COMMIT_TIMEOUT, PromotionState, Runner, Wake};
use crate::pipeline::missing;
use crate::pipeline::partition::{Partition, State, Stopped};
use crate::position::NextOffset;
use crate::record::TopicPartition;
use crate::source::SourceError;
use crate::store::{OperatorAction, OperatorRequest, PositionRow, Promotion, QuarantineChange, StoreError};
use crate::telemetry::{self, Retried};

/// How often the first promotion is asked for while nothing says that it may succeed now.
const PROMOTION_INTERVAL: Duration = Duration::from_secs(5);
/// How often partitions are looked for that their topic no longer has.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);

impl Runner {
    pub(super) fn on_tick(&mut self) {
        self.heartbeat.beat();
        if let Some(trouble) = &self.trouble {
            telemetry::retry(&self.version, trouble.class, Retried::Broker);
        }
        self.look_at_backlog();
        self.look_for_missing();
        self.commit();
        self.observe();
        if let PromotionState::Wanted(at) = self.promotion
            && at <= Instant::now()
        {
            self.ask_promotion();
        }
    }

    /// Partitions that their topic no longer has are assigned to nobody: somebody has to say so.
    fn look_for_missing(&mut self) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_INTERVAL) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let (store, cluster, parts) = (self.shared.store.clone(), self.cluster.clone(), self.parts.clone());
        let instance = self.shared.instance.clone();
        self.tasks.spawn(async move {
            if let Err(error) = missing::quarantine(&store, cluster.as_ref(), &parts, &instance).await {
                tracing::debug!(version = %parts.version, %error, "looking for missing partitions failed; looking again");
            }
            Wake::Nothing
        });
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

    /// Ends a quarantine: the next transaction of the partition says so in the store.
    pub(super) fn resume(&mut self, request: &OperatorRequest) {
        let name = &request.partition;
        let Some(Partition { state: State::Quarantined(stopped), .. }) = self.partitions.get(name) else {
            return;
        };
        let Stopped { fence, boundary, topic_id, applied_epoch, why, .. } = &**stopped;
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
            leader_epoch: *applied_epoch,
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

    /// Asks whether the version can go live, where none of the own partitions says that it cannot.
    pub(super) fn ask_promotion(&mut self) {
        let is_behind = |partition: &Partition| match &partition.state {
            State::Flowing(flow) => flow.fence.position < flow.boundary,
            State::Quarantined(stopped) => stopped.fence.position < stopped.boundary,
            State::Claiming(_) => false,
        };
        match self.promotion {
            PromotionState::Wanted(_) if self.partitions.values().any(is_behind) => {}
            PromotionState::Wanted(_) => {
                self.promotion = PromotionState::Asking;
                let (store, declaration) = (self.shared.store.clone(), self.declaration.clone());
                self.tasks.spawn(async move { Wake::Promoted(store.promote_first(&declaration).await) });
            }
            PromotionState::Asking => self.promotion = PromotionState::AskingAgain,
            PromotionState::AskingAgain | PromotionState::Done => {}
        }
    }

    pub(super) fn promoted(&mut self, answer: Result<Promotion, StoreError>) {
        self.told_why_not_live(&answer);
        let is_asked_again = self.promotion == PromotionState::AskingAgain;
        self.promotion = PromotionState::Wanted(Instant::now() + PROMOTION_INTERVAL);
        match answer {
            Ok(Promotion::Live) => {
                tracing::info!(version = %self.version, "live: its views are there");
                self.parts.publish_soon();
                self.promotion = PromotionState::Done;
            }
            Ok(Promotion::NotYet) if is_asked_again => self.ask_promotion(),
            Ok(Promotion::NotYet) => {}
            Err(error) => {
                tracing::debug!(version = %self.version, %error, "promoting failed; trying again");
            }
        }
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
