//! Whether the process is ready and alive, as `/readyz` and `/livez` tell it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A runner that has been silent for so long is stuck: its loop beats once a second, whatever it waits for.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The health of this process. Cheap to clone; all clones are one.
///
/// Ready means: configured, the store laid out, and the group joined once. It never goes back: neither lag nor an outage
/// of the store, the broker or the registry makes a process unready, because no other process would be better off.
#[derive(Debug, Clone)]
pub struct Health(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    since: Instant,
    is_configured: AtomicBool,
    is_laid_out: AtomicBool,
    has_joined: AtomicBool,
    beats: Mutex<BTreeMap<u64, (String, Arc<AtomicU64>)>>,
    next: AtomicU64,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// The health of a process that has done nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            since: Instant::now(),
            is_configured: AtomicBool::new(false),
            is_laid_out: AtomicBool::new(false),
            has_joined: AtomicBool::new(false),
            beats: Mutex::new(BTreeMap::new()),
            next: AtomicU64::new(0),
        }))
    }

    /// Files have been read and are right.
    pub fn configured(&self) {
        self.0.is_configured.store(true, Ordering::Release);
    }

    /// The store's tables are as declared and the versions are registered.
    pub fn laid_out(&self) {
        self.0.is_laid_out.store(true, Ordering::Release);
    }

    /// A group has been joined: the first assignment has come, perhaps an empty one.
    pub fn joined(&self) {
        self.0.has_joined.store(true, Ordering::Release);
    }

    /// What is still missing before the process is ready; empty once it is.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        let steps = [
            (&self.0.is_configured, "the configuration has not been read"),
            (&self.0.is_laid_out, "the store is not laid out yet"),
            (&self.0.has_joined, "no consumer group has been joined yet"),
        ];
        steps.into_iter().filter(|(done, _)| !done.load(Ordering::Acquire)).map(|(_, what)| what).collect()
    }

    /// A heartbeat for one loop that must never stand still. It counts as beaten now, and is forgotten when dropped.
    #[must_use]
    pub fn heartbeat(&self, name: impl Into<String>) -> Heartbeat {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let last = Arc::new(AtomicU64::new(self.millis(Instant::now())));
        self.beats().insert(number, (name.into(), last.clone()));
        Heartbeat { health: self.clone(), number, last }
    }

    /// The loops that have been silent for longer than [`SILENCE_LIMIT`] at `now`; empty: the process is alive.
    #[must_use]
    pub fn silent(&self, now: Instant) -> Vec<String> {
        let limit = u64::try_from(SILENCE_LIMIT.as_millis()).unwrap_or(u64::MAX);
        let now = self.millis(now);
        self.beats()
            .values()
            .filter(|(_, last)| now.saturating_sub(last.load(Ordering::Acquire)) > limit)
            .map(|(name, _)| name.clone())
            .collect()
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.0.since).as_millis()).unwrap_or(u64::MAX)
    }

    fn beats(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, (String, Arc<AtomicU64>)>> {
        self.0.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held by a loop that must never stand still.
#[derive(Debug)]
pub struct Heartbeat {
    health: Health,
    number: u64,
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    /// The loop has come round.
    pub fn beat(&self) {
        self.last.store(self.health.millis(Instant::now()), Ordering::Release);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.health.beats().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_after_the_three_steps_and_stays_so() {
        let health = Health::new();
        assert_eq!(health.missing().len(), 3);
        health.configured();
        health.laid_out();
        assert_eq!(health.missing(), ["no consumer group has been joined yet"]);
        health.joined();
        assert!(health.missing().is_empty());
    }

    #[test]
    fn a_silent_loop_is_named_and_one_that_ended_is_not() {
        let health = Health::new();
        let now = Instant::now();
        let beat = health.heartbeat("orders@1");
        let other = health.heartbeat("stock@1");
        assert!(health.silent(now + SILENCE_LIMIT).is_empty());
        drop(other);
        assert_eq!(health.silent(now + SILENCE_LIMIT * 2), ["orders@1"]);
        beat.beat();
        assert!(health.silent(Instant::now()).is_empty());
    }
}
