//! `projector demo`

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::exit::{Exit, Failure};
use super::output::{Progress, table};
use super::{Context, signals};
use crate::app::{self, DemoOptions, DemoReport, DemoWatcher};
use crate::count::counted;

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs nothing but this program: the broker runs in the process, and the store is a SQLite file. Half-way the pipeline is
dropped without any clean-up and started again. Ends with 1 where the rows differ from an independent model.

Examples:
  projector demo
  projector demo --keep ./demo                 keep the SQLite file, to look into it
  projector demo --json | tail -n 1            one object: events, rows, dead_letters, lag, verified")]
pub(super) struct DemoArgs {
    /// Keep the SQLite file and the sample files in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// How many events
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    events: u64,
}

pub(super) async fn demo(context: &Context, args: DemoArgs) -> Result<Exit, Failure> {
    let stop = signals::stop_on_signals()?;
    let watcher = Arc::new(Watcher(Progress::new("demo", context.output.shape)));
    let options = DemoOptions { keep: args.keep, events: args.events };
    let report = app::demo(options, watcher.clone(), stop).await;
    watcher.0.end();
    let report = report?;
    if context.is_json() {
        context.output.json_line(&report)?;
    } else {
        context.output.text(&text(&report))?;
    }
    Ok(if report.verified && report.lag == 0 { Exit::Done } else { Exit::Failed })
}

fn text(report: &DemoReport) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if let Some((header, rows)) = report.sample.split_first() {
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        text.push_str(&table(&header, &[], rows.to_vec()));
        text.push('\n');
    }
    if !report.reasons.is_empty() {
        let rows = report.reasons.iter().map(|reason| {
            vec![
                reason.reason.clone(),
                reason.count.to_string(),
                reason.example.clone(),
                reason.detail.clone(),
            ]
        });
        text.push_str(&table(&["dead letters", "count", "for example", "detail"], &[1], rows));
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "{}, {}, {}, lag {}, {:.1} s",
        counted(report.events, "event"),
        counted(report.rows, "row"),
        counted(report.dead_letters, "dead letter"),
        report.lag,
        report.seconds
    );
    match &report.difference {
        None => text.push_str("the rows equal those of an independent model\n"),
        Some(difference) => {
            let _ = writeln!(text, "DIFFERENT from an independent model: {difference}");
        }
    }
    text.push_str("\nnext:\n");
    match &report.file {
        Some(file) => {
            let _ = writeln!(text, "  sqlite3 {} 'select * from projector_view_status'", file.display());
        }
        None => text.push_str("  projector demo --keep ./demo    keep the SQLite file, to look into it\n"),
    }
    text.push_str(
        "  README.md, \"Your own projection\": a projector.yaml, `projector check`, `projector run`\n",
    );
    text
}

struct Watcher(Progress);

impl DemoWatcher for Watcher {
    fn progress(&self, applied: u64, total: u64) {
        self.0.set(applied, total);
    }

    fn step(&self, what: &str) {
        self.0.note(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::DemoReason;

    fn report() -> DemoReport {
        DemoReport {
            events: 20_000,
            rows: 1_200,
            dead_letters: 3,
            lag: 0,
            verified: true,
            seconds: 4.25,
            sample: vec![vec!["product_id".into(), "stock".into()], vec!["p1".into(), "5".into()]],
            reasons: vec![DemoReason {
                reason: "bad_framing".into(),
                count: 3,
                example: "shop.products:1:55".into(),
                detail: "first byte 0x7b".into(),
            }],
            difference: None,
            file: None,
        }
    }

    #[test]
    fn it_ends_with_what_to_do_next() {
        insta::assert_snapshot!(text(&report()), @r#"
        PRODUCT_ID  STOCK
        p1          5

        DEAD LETTERS  COUNT  FOR EXAMPLE         DETAIL
        bad_framing       3  shop.products:1:55  first byte 0x7b

        20000 events, 1200 rows, 3 dead letters, lag 0, 4.2 s
        the rows equal those of an independent model

        next:
          projector demo --keep ./demo    keep the SQLite file, to look into it
          README.md, "Your own projection": a projector.yaml, `projector check`, `projector run`
        "#);
    }

    #[test]
    fn a_difference_cannot_be_overlooked() {
        let report = DemoReport { verified: false, difference: Some("products p1".into()), ..report() };
        assert!(text(&report).contains("DIFFERENT from an independent model: products p1"));
    }

    #[test]
    fn json_has_the_documented_members() {
        let object = serde_json::to_value(report()).expect("plain");
        for (name, value) in [("events", 20_000), ("rows", 1_200), ("dead_letters", 3), ("lag", 0)] {
            assert_eq!(object[name], value, "{name}");
        }
        assert_eq!(object["verified"], true);
    }
}
