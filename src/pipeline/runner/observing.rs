//! What the version's partitions look like to this owner: in the store for status, and as gauges.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Runner, Wake};
use crate::pipeline::partition::{Partition, State};
use crate::pipeline::retry;
use crate::position::{Epoch, NextOffset};
use crate::record::TopicPartition;
use crate::source::KnownEnds;
use crate::store::{InstanceReport, Observation, Observed, StoreError};
use crate::telemetry::{self, Retried};

/// Brokers that have not answered for so long are away: the ends that they told last say nothing of now.
const SILENCE: Duration = Duration::from_secs(10);

/// A partition that was lost while no broker answered. Nobody who does not reach them can have taken it over, and somebody has to say
/// why it stands still: its last owner does, until a broker answers or another owner has claimed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Estranged {
    epoch: Epoch,
    /// The time of the oldest event that was not applied, if there was one.
    oldest: Option<i64>,
    is_quarantined: bool,
    /// Microseconds since 1970-01-01 UTC.
    lost_at: i64,
}

/// What an owner says of one partition.
struct Seen {
    epoch: Epoch,
    end: Option<NextOffset>,
    lag_records: Option<u64>,
    oldest: Option<i64>,
    is_quarantined: bool,
    blocked: Option<String>,
}

impl Runner {
    /// Says how its partitions are; and of those that it has lost together with the brokers, why they stand still.
    pub(super) fn observe(&mut self) {
        let ends = self.control.ends();
        let broker = self.broker_trouble(&ends);
        let mut observations = Vec::new();
        for (name, partition) in &self.partitions {
            if let Some(seen) = seen(name, partition, &ends, broker.as_deref()) {
                observations.push(self.show(name, seen));
            }
        }
        let answered_at = ends.broker_answered_at.unwrap_or(0);
        let (version, partitions) = (&self.version, &self.partitions);
        self.estranged.retain(|name, estranged| {
            let is_away = answered_at < estranged.lost_at && !partitions.contains_key(name);
            if !is_away && !partitions.contains_key(name) {
                telemetry::partition_gone(version, name);
            }
            is_away
        });
        for (name, estranged) in &self.estranged {
            let lost = || "no broker has answered since the partition was lost".to_owned();
            let seen = Seen {
                epoch: estranged.epoch,
                end: None,
                lag_records: None,
                oldest: estranged.oldest,
                is_quarantined: estranged.is_quarantined,
                blocked: Some(broker.clone().unwrap_or_else(lost)),
            };
            observations.push(self.show(name, seen));
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

    /// What is wrong with the brokers, as far as can be told from here.
    fn broker_trouble(&self, ends: &KnownEnds) -> Option<String> {
        let silent = || {
            is_silent(ends).then(|| format!("no broker has answered for more than {} s", SILENCE.as_secs()))
        };
        self.trouble.as_ref().map(|trouble| trouble.what.clone()).or_else(silent)
    }

    /// Sets the gauges of a partition, and gives what is to be stored of it.
    fn show(&self, name: &TopicPartition, seen: Seen) -> Observation {
        let gauges = telemetry::PartitionGauges {
            lag_records: seen.lag_records,
            oldest_pending_millis: seen.oldest,
            state: match &seen.blocked {
                _ if seen.is_quarantined => telemetry::PartitionState::Quarantined,
                Some(_) => telemetry::PartitionState::Blocked,
                None => telemetry::PartitionState::Flowing,
            },
            staleness: self.declaration.staleness,
        };
        telemetry::partition(&self.version, name, &gauges);
        Observation {
            version: self.version.clone(),
            partition: name.clone(),
            epoch: seen.epoch,
            readable_end: seen.end,
            oldest_pending_at: seen.oldest,
            blocked: seen.blocked.or_else(|| self.parts.not_live()),
        }
    }

    /// A partition is no longer this member's, and nobody was asked to drain it: perhaps because no broker answers.
    pub(super) fn estrange(&mut self, name: &TopicPartition, partition: &Partition) {
        let (fence, oldest, is_quarantined) = match &partition.state {
            State::Flowing(flow) => (flow.fence, flow.oldest_held(), false),
            State::Quarantined(stopped) => (stopped.fence, stopped.oldest, true),
            State::Claiming(_) => return,
        };
        let estranged = Estranged { epoch: fence.epoch, oldest, is_quarantined, lost_at: now_micros() };
        self.estranged.insert(name.clone(), estranged);
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
        if self.estranged.get(name).is_some_and(|estranged| estranged.epoch == epoch) {
            self.estranged.remove(name);
            telemetry::partition_gone(&self.version, name);
        }
        let is_lost = match self.partitions.get(name).map(|partition| &partition.state) {
            Some(State::Flowing(flow)) => flow.fence.epoch == epoch && !flow.is_in_flight(),
            Some(State::Quarantined(stopped)) => stopped.fence.epoch == epoch,
            Some(State::Claiming(_)) | None => false,
        };
        if is_lost {
            self.fenced(name.clone());
        }
    }
}

/// What an owner sees of a partition; nothing while it is being claimed.
fn seen(
    name: &TopicPartition,
    partition: &Partition,
    ends: &KnownEnds,
    broker: Option<&str>,
) -> Option<Seen> {
    let (fence, oldest, own_trouble) = match &partition.state {
        State::Flowing(flow) => (flow.fence, flow.oldest_pending(), flow.blocked()),
        State::Quarantined(stopped) => (stopped.fence, stopped.oldest, None),
        State::Claiming(_) => return None,
    };
    let told = ends.readable.get(name).copied();
    let end = told.filter(|_| !is_silent(ends));
    Some(Seen {
        epoch: fence.epoch,
        end,
        lag_records: end.map(|end| fence.position.lag_to(end)),
        oldest: oldest.filter(|_| told.is_some_and(|end| fence.position < end)),
        is_quarantined: matches!(partition.state, State::Quarantined(_)),
        blocked: own_trouble.or_else(|| broker.map(str::to_owned)),
    })
}

fn is_silent(ends: &KnownEnds) -> bool {
    let limit = i64::try_from(SILENCE.as_micros()).unwrap_or(i64::MAX);
    ends.broker_answered_at.is_some_and(|at| now_micros().saturating_sub(at) > limit)
}

fn now_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
