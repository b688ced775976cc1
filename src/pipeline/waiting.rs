//! Waiting for an outside service before the service joins.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::retry::{self, Backoff, Class};
use super::service::PrepareError;
use crate::source::SourceError;
use crate::store::StoreError;

/// An error of an outside service: to be waited for, or not.
pub(super) trait Passing: std::fmt::Display {
    fn passes(&self) -> bool;
    fn into_error(self) -> PrepareError;
}

impl Passing for StoreError {
    fn passes(&self) -> bool {
        matches!(retry::classify(self), Class::Infrastructure(_))
    }

    fn into_error(self) -> PrepareError {
        PrepareError::Store(self)
    }
}

impl Passing for SourceError {
    fn passes(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NotAMember { .. })
    }

    fn into_error(self) -> PrepareError {
        PrepareError::Kafka(self)
    }
}

/// Tries again while the fault is an outage, until `stop` is cancelled.
pub(super) async fn waiting<T, E, F, Fut>(
    stop: &CancellationToken,
    what: &'static str,
    mut attempt: F,
) -> Result<T, PrepareError>
where
    E: Passing,
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::up_to(Duration::from_secs(10));
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) if error.passes() => {
                if backoff.attempts().is_multiple_of(10) {
                    tracing::warn!(%error, "waiting for {what}");
                }
                tokio::select! {
                    () = stop.cancelled() => return Err(PrepareError::Stopped(what)),
                    () = tokio::time::sleep(backoff.next(retry::jitter())) => {}
                }
            }
            Err(error) => return Err(error.into_error()),
        }
    }
}
