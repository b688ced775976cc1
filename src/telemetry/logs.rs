//! Logs: `tracing` on standard error, as text or as one JSON object a line.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// How much is logged where `PROJECTOR_LOG` doesn't say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Warnings and errors: for verbs that print a result.
    Quiet,
    /// What happens to versions and partitions: for `run`.
    Normal,
    /// Also each transaction and commit (`-v`).
    Debug,
    /// Everything of ours, and what libraries say (`-vv`).
    Trace,
}

impl LogLevel {
    /// The filter's text. Libraries stay at warnings: some of them quote statements, and what they quote is not ours.
    const fn filter(self) -> &'static str {
        match self {
            Self::Quiet => "warn",
            Self::Normal => "warn,projector=info",
            Self::Debug => "warn,projector=debug",
            Self::Trace => "info,projector=trace",
        }
    }
}

/// Logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter in `PROJECTOR_LOG` cannot be read.
    #[error("PROJECTOR_LOG is not a filter; write for example PROJECTOR_LOG=projector=debug")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// Somebody has set up logs in this process already.
    #[error("logs are set up already; this is a mistake in the program")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sends logs of this process to standard error. `PROJECTOR_LOG` (a filter such as `warn,projector=debug`) goes before
/// `level`.
///
/// # Errors
/// The filter cannot be read, or logs are set up already.
pub fn set_up(format: LogFormat, level: LogLevel) -> Result<(), LogError> {
    let filter = match std::env::var("PROJECTOR_LOG") {
        Ok(text) if !text.trim().is_empty() => EnvFilter::try_new(text).map_err(LogError::Filter)?,
        _ => EnvFilter::new(level.filter()),
    };
    let builder: SubscriberBuilder<_, _, EnvFilter, _> = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(true);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(LogError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_a_filter() {
        for level in [LogLevel::Quiet, LogLevel::Normal, LogLevel::Debug, LogLevel::Trace] {
            assert!(EnvFilter::try_new(level.filter()).is_ok(), "{level:?}");
        }
    }
}
