//! `projector resume`

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::table;
use super::registered::expect_registered;
use super::{Context, names};
use crate::config::settings::Settings;
use crate::record::TopicPartition;
use crate::store::{OperatorAction, ResumeOutcome, ResumeRequest, ResumeState, SharedStore};

/// Arguments of `resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
See the reason first: `projector status NAME -v`. The partition begins again at the record that stopped it.

Examples:
  projector resume product_catalogue                                          all its quarantined partitions
  projector resume product_catalogue --partition shop.products:3              this one
  projector resume product_catalogue --partition shop.products:3 --dead-letter
                                      the record becomes a dead letter, and the partition goes on behind it")]
pub(super) struct ResumeArgs {
    /// The projection, or one version of it
    #[arg(value_name = "NAME[@VERSION]", value_parser = names::selection)]
    name: names::Selection,
    /// This partition only
    #[arg(long, value_name = "TOPIC:PARTITION", value_parser = names::partition)]
    partition: Option<TopicPartition>,
    /// Set the record that caused it aside as a dead letter
    #[arg(long)]
    dead_letter: bool,
}

/// The result of `resume --json`.
#[derive(Debug, Serialize)]
struct ResumeObject {
    projection: String,
    partitions: Vec<ResumedObject>,
}

#[derive(Debug, Serialize)]
struct ResumedObject {
    topic: String,
    partition: i32,
    /// `left_for_owner`: within about a second; `left_for_next_owner`: when an instance owns it.
    state: &'static str,
}

pub(super) async fn resume(context: &Context, args: ResumeArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let store = context.store(&settings).await?;
    let outcomes = request(&store, &settings, &args).await;
    store.close().await;
    let outcomes = outcomes?;
    if outcomes.is_empty() {
        let what = match &args.partition {
            Some(partition) => format!("partition {partition} of {} is not quarantined", args.name),
            None => format!("no partition of {} is quarantined", args.name),
        };
        return Err(Failure::refused(
            what,
            format!("`projector status {} -v` shows its partitions", args.name),
        ));
    }
    if context.is_json() {
        let partitions = outcomes.iter().map(object).collect();
        context.output.json(&ResumeObject { projection: args.name.projection, partitions })?;
    } else {
        context.output.text(&text(&outcomes))?;
    }
    Ok(Exit::Done)
}

async fn request(
    store: &SharedStore,
    settings: &Settings,
    args: &ResumeArgs,
) -> Result<Vec<ResumeOutcome>, Failure> {
    expect_registered(store, settings, &args.name).await?;
    let action = if args.dead_letter { OperatorAction::ResumeWithDeadLetter } else { OperatorAction::Resume };
    let request = ResumeRequest {
        projection: args.name.projection.clone(),
        version: args.name.version,
        partition: args.partition.clone(),
        action,
    };
    Ok(store.request_resume(&request).await?)
}

fn object(outcome: &ResumeOutcome) -> ResumedObject {
    ResumedObject {
        topic: outcome.partition.topic.to_string(),
        partition: outcome.partition.partition,
        state: match outcome.state {
            ResumeState::LeftForOwner => "left_for_owner",
            ResumeState::LeftForNextOwner => "left_for_next_owner",
        },
    }
}

fn text(outcomes: &[ResumeOutcome]) -> String {
    let rows = outcomes.iter().map(|outcome| {
        let what = match outcome.state {
            ResumeState::LeftForOwner => "its owner begins again within about a second",
            ResumeState::LeftForNextOwner => "nobody owns it now: it begins again when an instance does",
        };
        vec![outcome.partition.to_string(), what.to_owned()]
    });
    table(&["partition", "what happens"], &[], rows)
}
