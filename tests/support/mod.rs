//! What tests need of real services: a broker, a database, a registry, and the program as a process.

pub(crate) mod kafka;
pub(crate) mod postgres;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod registry;

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything may take before a test says that it did not happen.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The address of a service, from the environment.
///
/// # Panics
/// The variable is not set: a missing service is a failure, never a skip.
pub(crate) fn service(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set; `tests/run` starts the services and sets it, or `. target/services/env` after `tests/services/up`")
    })
}

/// A name that no other test uses.
pub(crate) fn unique(prefix: &str) -> String {
    format!("{prefix}_{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

/// Looks again and again until `look` gives something.
///
/// # Panics
/// It gave nothing within [`PATIENCE`].
pub(crate) async fn eventually<T, F, Fut>(what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    loop {
        pause.tick().await;
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "did not happen within {PATIENCE:?}: {what}");
    }
}
