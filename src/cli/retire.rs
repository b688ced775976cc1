//! `projector retire`

use std::fmt::Write as _;

use clap::Args;
use serde::Serialize;

use super::exit::{Exit, Failure};
use super::output::table;
use super::registered::expect_registered;
use super::{Context, names};
use crate::config::settings::Settings;
use crate::store::{RetirePlan, SharedStore, VersionKey};
use crate::versions::{self, Retirement};

/// Arguments of `retire`.
#[derive(Debug, Args)]
#[command(after_help = "\
Drops the version's views, tables, positions and dead letters, for good. Its number is free again: `projector run` then
registers the version anew and reads from the start. Instances that consume it are fenced and stop serving it.
With `store.ddl: verify` views and tables are left; the SQL that drops them is printed.

Examples:
  projector retire product_catalogue@1               what would be dropped
  projector retire product_catalogue@1 --execute     drop it")]
pub(super) struct RetireArgs {
    /// The version
    #[arg(value_name = "NAME@VERSION", value_parser = names::version)]
    version: VersionKey,
    /// Do it
    #[arg(long)]
    execute: bool,
}

/// The result of `retire --json`.
#[derive(Debug, Serialize)]
struct RetireObject {
    projection: String,
    version: u32,
    version_state: &'static str,
    /// Whether it has been dropped, or would be.
    executed: bool,
    /// Whether an instance consumes the version now.
    in_use: bool,
    views: Vec<String>,
    tables: Vec<RetiredTable>,
    dead_letters: i64,
    open_dead_letters: i64,
    /// The SQL that drops views and tables where `retire` leaves them; else empty.
    left: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RetiredTable {
    table: String,
    rows: i64,
}

pub(super) async fn retire(context: &Context, args: &RetireArgs) -> Result<Exit, Failure> {
    let settings = context.settings()?;
    let store = context.store(&settings).await?;
    let how = if args.execute { Retirement::Execute } else { Retirement::Plan };
    let plan = plan(&store, &settings, &args.version, how).await;
    store.close().await;
    let plan = plan?;
    if context.is_json() {
        context.output.json(&object(&plan, how))?;
    } else {
        context.output.text(&text(&plan, how))?;
    }
    Ok(Exit::Done)
}

async fn plan(
    store: &SharedStore,
    settings: &Settings,
    version: &VersionKey,
    how: Retirement,
) -> Result<RetirePlan, Failure> {
    expect_registered(store, settings, &names::Selection::from(version)).await?;
    Ok(versions::retire(store, version, how).await?)
}

fn object(plan: &RetirePlan, how: Retirement) -> RetireObject {
    RetireObject {
        projection: plan.version.key.projection.to_string(),
        version: plan.version.key.version,
        version_state: plan.version.state.as_str(),
        executed: how == Retirement::Execute,
        in_use: plan.in_use,
        views: plan.views.clone(),
        tables: plan
            .tables
            .iter()
            .map(|(table, rows)| RetiredTable { table: table.clone(), rows: *rows })
            .collect(),
        dead_letters: plan.dead_letters,
        open_dead_letters: plan.open_dead_letters,
        left: plan.left.clone(),
    }
}

fn text(plan: &RetirePlan, how: Retirement) -> String {
    let (key, state) = (&plan.version.key, plan.version.state.as_str());
    let word = if how == Retirement::Execute { "dropped" } else { "would drop" };
    let mut rows: Vec<Vec<String>> = Vec::new();
    if plan.left.is_empty() {
        rows.extend(plan.views.iter().map(|view| vec!["view".into(), view.clone(), String::new()]));
        let table = |(table, count): &(String, i64)| vec!["table".into(), table.clone(), count.to_string()];
        rows.extend(plan.tables.iter().map(table));
    }
    let letters = format!("{} ({} open)", plan.dead_letters, plan.open_dead_letters);
    rows.push(vec!["dead letters".into(), letters, String::new()]);
    let mut text = format!("{key} ({state}): {word}\n{}", table(&["what", "name", "rows"], &[2], rows));
    // Writing to a String cannot fail.
    if !plan.left.is_empty() {
        let (word, when) = match how {
            Retirement::Execute => ("left", "this drops it"),
            Retirement::Plan => ("would be left", "this drops it afterwards"),
        };
        let _ = writeln!(text, "{word}, because of `store.ddl: verify`; {when}:");
        for statement in &plan.left {
            let _ = writeln!(text, "  {statement};");
        }
    }
    if how == Retirement::Plan {
        if plan.in_use {
            let _ = writeln!(text, "in use: an instance consumes it now, and would stop serving it");
        }
        let _ = writeln!(text, "nothing has been dropped; to do it: projector retire {key} --execute");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{LogIdentity, VersionRow, VersionState};

    fn plan() -> RetirePlan {
        RetirePlan {
            version: VersionRow {
                key: VersionKey { projection: "catalogue".into(), version: 1 },
                state: VersionState::Live,
                text: String::new(),
                digest: String::new(),
                log: LogIdentity { cluster_id: "c".into(), consumer_group: "g".into() },
            },
            views: vec!["products".into()],
            tables: vec![("products__v1".into(), 12_345)],
            dead_letters: 7,
            open_dead_letters: 3,
            in_use: true,
            left: Vec::new(),
        }
    }

    #[test]
    fn a_plan_says_that_nothing_has_been_dropped() {
        insta::assert_snapshot!(text(&plan(), Retirement::Plan), @"
        catalogue@1 (live): would drop
        WHAT          NAME           ROWS
        view          products
        table         products__v1  12345
        dead letters  7 (3 open)
        in use: an instance consumes it now, and would stop serving it
        nothing has been dropped; to do it: projector retire catalogue@1 --execute
        ");
    }

    #[test]
    fn what_was_dropped_does_not_read_like_a_plan() {
        let text = text(&plan(), Retirement::Execute);
        assert!(text.starts_with("catalogue@1 (live): dropped\n") && !text.contains("--execute"), "{text}");
        assert!(object(&plan(), Retirement::Execute).executed);
    }

    #[test]
    fn what_is_left_is_not_said_to_be_dropped() {
        let left = vec![r#"drop view "s"."products""#.into(), r#"drop table "s"."products__v1""#.into()];
        let plan = RetirePlan { left, in_use: false, ..plan() };
        insta::assert_snapshot!(text(&plan, Retirement::Execute), @r#"
        catalogue@1 (live): dropped
        WHAT          NAME        ROWS
        dead letters  7 (3 open)
        left, because of `store.ddl: verify`; this drops it:
          drop view "s"."products";
          drop table "s"."products__v1";
        "#);
        assert!(text(&plan, Retirement::Plan).contains("would be left"));
        assert_eq!(object(&plan, Retirement::Execute).left, plan.left);
    }
}
