//! SIGTERM and SIGINT: the first asks for a shutdown, the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::exit::Failure;
use super::output::complain;

/// Exit code of a process that a second SIGINT ended: 128 plus the signal's number, as shells have it.
const SECOND_INTERRUPT: i32 = 130;
/// The same of SIGTERM.
const SECOND_TERMINATE: i32 = 143;

/// Listens to SIGTERM and SIGINT from now on. The token is cancelled at the first of them; at the second the process exits
/// at once, with 130 (SIGINT) or 143 (SIGTERM): what was in flight is rolled back by the database, and nothing is lost.
///
/// # Errors
/// The system does not allow to listen.
pub fn stop_on_signals() -> Result<CancellationToken, Failure> {
    let stop = CancellationToken::new();
    let failed = |error: std::io::Error| {
        Failure::failed(
            anyhow::Error::new(error).context("cannot listen to signals"),
            "see what the system forbids",
        )
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let first = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        complain("stopping; a second signal ends the process at once");
        first.cancel();
        let code = tokio::select! {
            _ = terminate.recv() => SECOND_TERMINATE,
            _ = interrupt.recv() => SECOND_INTERRUPT,
        };
        exit_now(code);
    });
    Ok(stop)
}

#[allow(clippy::disallowed_methods, reason = "the second signal means: without the shutdown")]
fn exit_now(code: i32) {
    std::process::exit(code);
}
