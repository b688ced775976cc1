//! `projector status`

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;

use super::exit::{Exit, Failure};
use super::output::{Shape, number, printable, seconds, table};
use super::registered::expect_registered;
use super::{Context, names};
use crate::status::report::now_millis;
use crate::status::{Catalogue, ProjectionReport, Reports};
use crate::store::SharedStore;

/// Arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "\
States of views: ready; catching_up (being built, or older than the limit); unavailable (nobody observes, or no broker answers); quarantined.
States of partitions: flowing; blocked (goes on by itself); quarantined (a command decides); unowned.
Lag counts offsets, so it is an upper bound of records. Age is that of the oldest event that is not applied.

Examples:
  projector status
  projector status product_catalogue -v        with partitions
  projector status --json | jq '.projections[].versions[].state'
  projector status --watch                     again every two seconds")]
pub(super) struct StatusArgs {
    /// This projection, or version, only
    #[arg(value_name = "NAME[@VERSION]", value_parser = names::selection)]
    name: Option<names::Selection>,
    /// Show it again every two seconds, until interrupted
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

const WATCH_EVERY: Duration = Duration::from_secs(2);

pub(super) async fn status(context: &Context, args: &StatusArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let catalogue = Context::catalogue(&settings);
    let store = context.store(&settings).await?;
    let is_there = match &args.name {
        Some(name) => expect_registered(&store, &settings, name).await,
        None => Ok(()),
    };
    let result = match is_there {
        Ok(()) => show(context, args, &store, &catalogue).await,
        Err(failure) => Err(failure),
    };
    store.close().await;
    result
}

async fn show(
    context: &Context,
    args: &StatusArgs,
    store: &SharedStore,
    catalogue: &Catalogue,
) -> Result<Exit, Failure> {
    loop {
        let reports = read(args, store, catalogue).await?;
        match context.output.shape {
            Shape::Json => context.output.json(&reports)?,
            Shape::Text => {
                if args.watch && std::io::stdout().is_terminal() {
                    context.output.text("\x1b[2J\x1b[H")?;
                }
                context.output.states(&text(&reports, context.verbose > 0))?;
            }
        }
        if !args.watch {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(WATCH_EVERY).await;
    }
}

async fn read(args: &StatusArgs, store: &SharedStore, catalogue: &Catalogue) -> Result<Reports, Failure> {
    let mut partitions = store.status(args.name.as_ref().map(|name| name.projection.as_str())).await?;
    if let Some(name) = &args.name {
        partitions.retain(|partition| name.has(&partition.version));
    }
    Ok(Reports::of(&partitions, catalogue, now_millis()))
}

fn text(reports: &Reports, with_partitions: bool) -> String {
    if reports.projections.is_empty() {
        return "no version is registered in this store; `projector run` registers what projector.yaml lists\n"
            .to_owned();
    }
    let mut text = table(
        &["projection", "version", "state", "lag", "age", "limit", "dead letters", "views"],
        &[3, 4, 5, 6],
        reports.projections.iter().flat_map(rows),
    );
    let reasons = reasons(reports);
    if !reasons.is_empty() {
        text.push('\n');
    }
    for (name, reason) in reasons {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}: {}", printable(&reason));
    }
    if with_partitions {
        text.push('\n');
        text.push_str(&partitions(reports));
    }
    text
}

fn rows(projection: &ProjectionReport) -> impl Iterator<Item = Vec<String>> {
    projection.versions.iter().map(|version| {
        vec![
            format!("{}@{}", projection.projection, version.version),
            version.version_state.to_owned(),
            version.state.to_string(),
            number(version.lag_records),
            seconds(version.age_seconds),
            seconds(version.staleness_limit_seconds),
            version.open_dead_letters.to_string(),
            version.views.join(", "),
        ]
    })
}

/// What is to be said about versions and, for quarantines, the command that decides.
fn reasons(reports: &Reports) -> Vec<(String, String)> {
    let mut reasons = Vec::new();
    for projection in &reports.projections {
        for version in &projection.versions {
            let name = format!("{}@{}", projection.projection, version.version);
            reasons.extend(version.reason.clone().map(|reason| (name, reason)));
            for partition in &version.partitions {
                if let Some(decide) = &partition.decide {
                    let detail = partition.detail.as_deref().unwrap_or_default();
                    let name = format!("  {}:{}", partition.topic, partition.partition);
                    reasons.push((name, format!("{detail}; decide with `{decide}`")));
                }
            }
        }
    }
    reasons
}

fn partitions(reports: &Reports) -> String {
    let mut rows = Vec::new();
    for projection in &reports.projections {
        for version in &projection.versions {
            for partition in &version.partitions {
                rows.push(vec![
                    format!("{}@{}", projection.projection, version.version),
                    format!("{}:{}", partition.topic, partition.partition),
                    partition.state.to_string(),
                    partition.position.to_string(),
                    number(partition.readable_end),
                    number(partition.lag_records),
                    seconds(partition.age_seconds),
                    if partition.owner_alive { "alive" } else { "none" }.to_owned(),
                    seconds(partition.observed_seconds_ago),
                    partition.open_dead_letters.to_string(),
                    partition.reason.clone().unwrap_or_default(),
                ]);
            }
        }
    }
    table(
        &[
            "projection",
            "partition",
            "state",
            "position",
            "end",
            "lag",
            "age",
            "owner",
            "observed",
            "dead letters",
            "reason",
        ],
        &[3, 4, 5, 6, 8, 9],
        rows,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Epoch, NextOffset};
    use crate::record::TopicPartition;
    use crate::store::{PartitionStatus, Quarantine, VersionKey, VersionState};

    const NOW: i64 = 1_800_000_000_000;

    fn partition(number: i32) -> PartitionStatus {
        PartitionStatus {
            version: VersionKey { projection: "catalogue".into(), version: 1 },
            version_state: VersionState::Live,
            partition: TopicPartition::new("shop.products", number),
            topic_id: None,
            position: NextOffset::new(90),
            boundary: NextOffset::new(80),
            epoch: Epoch::new(3),
            revision: 12,
            readable_end: Some(NextOffset::new(100)),
            oldest_pending_at: Some(NOW - 2500),
            observed_seconds_ago: Some(0.4),
            owner_alive: true,
            blocked: None,
            quarantine: None,
            is_resume_requested: false,
            open_dead_letters: 1,
            oldest_dead_letter_at: None,
        }
    }

    fn shown(partitions: &[PartitionStatus]) -> String {
        let catalogue = Catalogue::of([&super::super::check::tests::declaration()]);
        text(&Reports::of(partitions, &catalogue, NOW), true)
    }

    #[test]
    fn flowing_partitions() {
        insta::assert_snapshot!(shown(&[partition(0), partition(1)]), @"
        PROJECTION   VERSION  STATE  LAG   AGE   LIMIT  DEAD LETTERS  VIEWS
        catalogue@1  live     ready   20  2.5s  120.0s             2  products

        PROJECTION   PARTITION        STATE    POSITION  END  LAG   AGE  OWNER  OBSERVED  DEAD LETTERS  REASON
        catalogue@1  shop.products:0  flowing        90  100   10  2.5s  alive      0.4s             1
        catalogue@1  shop.products:1  flowing        90  100   10  2.5s  alive      0.4s             1
        ");
    }

    #[test]
    fn a_quarantine_shows_the_command_that_decides() {
        let why = Quarantine { reason: "value_too_long".into(), detail: "offset 90, products.name".into() };
        let stopped = PartitionStatus { quarantine: Some(why), ..partition(1) };
        insta::assert_snapshot!(shown(&[partition(0), stopped]), @"
        PROJECTION   VERSION  STATE        LAG   AGE   LIMIT  DEAD LETTERS  VIEWS
        catalogue@1  live     quarantined   20  2.5s  120.0s             2  products

        catalogue@1: partition shop.products:1 is quarantined: value_too_long
          shop.products:1: offset 90, products.name; decide with `projector resume catalogue --partition shop.products:1 [--dead-letter]`

        PROJECTION   PARTITION        STATE        POSITION  END  LAG   AGE  OWNER  OBSERVED  DEAD LETTERS  REASON
        catalogue@1  shop.products:0  flowing            90  100   10  2.5s  alive      0.4s             1
        catalogue@1  shop.products:1  quarantined        90  100   10  2.5s  alive      0.4s             1  value_too_long
        ");
    }

    #[test]
    fn a_fault_of_the_log_shows_its_way_out_once_and_no_resume() {
        let detail = "gone: 2 records";
        let why = Quarantine { reason: Quarantine::LOG_EXPIRED.into(), detail: detail.into() };
        let shown = shown(&[PartitionStatus { quarantine: Some(why), ..partition(1) }]);
        assert!(shown.matches("projector retire catalogue@1 --execute").count() == 1, "{shown}");
        assert!(!shown.contains("resume"), "{shown}");
    }

    #[test]
    fn an_empty_store_says_what_to_do() {
        assert!(shown(&[]).contains("`projector run` registers"));
    }
}
