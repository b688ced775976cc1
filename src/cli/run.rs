//! `projector run`

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::{Output, Progress, Shape, complain};
use super::{Context, signals};
use crate::app::{self, CatchUp, RunOptions, RunOutcome, RunWatcher, Totals, Until};
use crate::count::counted;
use crate::store::VersionKey;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
SIGTERM or SIGINT: transactions in flight end, offsets are committed, the group is left, exit 0, within `shutdown_grace`.
A second signal ends the process at once (130 or 143).

With --json, one object a line: {\"event\":\"started\",…}, {\"event\":\"progress\",…}, {\"event\":\"ended\",…}.

Examples:
  projector run                                serve all projections of projector.yaml
  projector run product_catalogue              serve one of them
  projector run --until-caught-up              end when everything that is in the log now is applied
  projector run --log-format json 2> log       logs for a collector")]
pub(super) struct RunArgs {
    /// Projections to serve; all where none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// End with 0 when everything up to the ends seen at start is applied; with 1 if a partition is quarantined; with 4 if
    /// somebody has yet to make the views (`store.ddl: verify`)
    #[arg(long)]
    until_caught_up: bool,
}

/// A line of `run --json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    /// The groups are being joined.
    Started { versions: Vec<String>, listen: Option<String> },
    /// How far it is, with `--until-caught-up`.
    Progress(CatchUp),
    /// The last line. `outcome`: `stopped`, `caught_up`, `quarantined` or `not_live`.
    Ended {
        outcome: &'static str,
        totals: Totals,
        quarantined: Vec<QuarantinedObject>,
        not_live: Vec<NotLiveObject>,
    },
}

#[derive(Debug, Serialize)]
struct NotLiveObject {
    projection: String,
    version: u32,
    reason: String,
}

#[derive(Debug, Serialize)]
struct QuarantinedObject {
    projection: String,
    version: u32,
    topic: String,
    partition: i32,
    reason: String,
    detail: String,
}

pub(super) async fn run(context: &Context, args: RunArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let stop = signals::stop_on_signals()?;
    let until = if args.until_caught_up { Until::CaughtUp } else { Until::Stopped };
    let watcher = Arc::new(Watcher {
        output: context.output,
        progress: args.until_caught_up.then(|| Progress::new("records", context.output.shape)),
        totals: Mutex::default(),
    });
    let outcome = app::run(settings, RunOptions { names: args.names, until }, watcher.clone(), stop).await;
    if let Some(progress) = &watcher.progress {
        progress.end();
    }
    let totals = *watcher.totals.lock().unwrap_or_else(PoisonError::into_inner);
    told(context, &outcome?, totals)
}

/// What was done, for people.
fn summary(totals: Totals) -> String {
    let Totals { records, dead_letters, ignored } = totals;
    let mut text = counted(records, "record");
    if dead_letters > 0 {
        let _ = write!(text, ", {} among them (`projector dlq list`)", counted(dead_letters, "dead letter"));
    }
    if ignored > 0 {
        let _ = write!(text, ", {ignored} without a handler");
    }
    text
}

/// Prints how the run ended.
fn told(context: &Context, outcome: &RunOutcome, totals: Totals) -> Result<Exit, Failure> {
    let (exit, name, quarantined) = match outcome {
        RunOutcome::Stopped => (Exit::Done, "stopped", [].as_slice()),
        RunOutcome::CaughtUp => (Exit::Done, "caught_up", [].as_slice()),
        RunOutcome::Quarantined(partitions) => (Exit::Failed, "quarantined", partitions.as_slice()),
        RunOutcome::NotLive(_) => (Exit::Refused, "not_live", [].as_slice()),
    };
    if context.is_json() {
        let quarantined = quarantined
            .iter()
            .map(|(version, partition, why)| QuarantinedObject {
                projection: version.projection.to_string(),
                version: version.version,
                topic: partition.topic.to_string(),
                partition: partition.partition,
                reason: why.reason.clone(),
                detail: why.detail.clone(),
            })
            .collect();
        let not_live = match outcome {
            RunOutcome::NotLive(versions) => versions.iter().map(not_live_object).collect(),
            _ => Vec::new(),
        };
        context.output.json_line(&Line::Ended { outcome: name, totals, quarantined, not_live })?;
        return Ok(exit);
    }
    match outcome {
        RunOutcome::Stopped => complain(&format!("stopped: {}", summary(totals))),
        RunOutcome::CaughtUp => context.output.text(&format!("caught up: {}\n", summary(totals)))?,
        RunOutcome::Quarantined(partitions) => {
            for (version, partition, why) in partitions {
                complain(&format!(
                    "error: {version} {partition} is quarantined: {}: {}",
                    why.reason, why.detail
                ));
                complain(&format!("  next: {}", why.decided_by(version, partition)));
            }
        }
        RunOutcome::NotLive(versions) => {
            for (version, why) in versions {
                complain(&format!("error: {version} has caught up and is not live: {why}"));
            }
        }
    }
    Ok(exit)
}

fn not_live_object((version, reason): &(VersionKey, String)) -> NotLiveObject {
    NotLiveObject {
        projection: version.projection.to_string(),
        version: version.version,
        reason: reason.clone(),
    }
}

struct Watcher {
    output: Output,
    progress: Option<Progress>,
    totals: Mutex<Totals>,
}

impl Watcher {
    fn line(&self, line: &Line) {
        if let Err(failure) = self.output.json_line(line) {
            tracing::warn!(why = failure.text(), "progress cannot be told");
        }
    }
}

impl RunWatcher for Watcher {
    fn started(&self, versions: &[VersionKey], listen: Option<SocketAddr>) {
        let names: Vec<String> = versions.iter().map(ToString::to_string).collect();
        let listen = listen.map(|address| format!("http://{address}/"));
        if self.output.shape == Shape::Json {
            self.line(&Line::Started { versions: names, listen });
            return;
        }
        let status = listen.map(|url| format!("; status at {url}")).unwrap_or_default();
        complain(&format!("serving {}{status}", names.join(", ")));
    }

    fn progress(&self, progress: CatchUp) {
        if self.output.shape == Shape::Json {
            self.line(&Line::Progress(progress));
        } else if let Some(bar) = &self.progress {
            let done = progress.total_records.saturating_sub(progress.remaining_records);
            bar.set(done, progress.total_records);
        }
    }

    fn ended(&self, totals: Totals) {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }
}
