//! The operator page: the status as one plain table, without scripts and without anything from elsewhere.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};

use super::Pages;
use super::api::reports;
use crate::status::report::PartitionReport;
use crate::status::{Reports, VersionReport};

const HEAD: &str = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"5\">\
<title>projector</title><style>\
body{font:15px/1.4 system-ui,sans-serif;margin:2rem;color:#222;background:#fff}table{border-collapse:collapse;margin:.5rem 0 1.5rem}\
th,td{text-align:left;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #ddd}td.n,th.n{text-align:right}\
.ready,.flowing{color:#176b2c}.catching_up,.blocked{color:#8a5a00}.unavailable,.unowned,.quarantined{color:#a11212;font-weight:600}\
code{background:#f2f2f2;padding:0 .2rem}</style></head><body><h1>projector</h1>\n";

pub(super) async fn page(State(pages): State<Pages>) -> Response {
    let (status, body) = match reports(&pages).await {
        Ok(reports) => (StatusCode::OK, render(&reports)),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "<p class=\"unavailable\">The store does not answer, so nothing can be said about the views. \
             Partitions wait and go on by themselves.</p>\n"
                .to_owned(),
        ),
    };
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";
    let headers = [(header::CONTENT_SECURITY_POLICY, policy), (header::CACHE_CONTROL, "no-store")];
    (status, headers, Html(format!("{HEAD}{body}</body></html>\n"))).into_response()
}

fn render(reports: &Reports) -> String {
    let mut page = String::new();
    if reports.projections.is_empty() {
        page.push_str("<p>No version is registered in this store yet.</p>\n");
    }
    for projection in &reports.projections {
        for version in &projection.versions {
            render_version(&mut page, &projection.projection, version);
        }
    }
    page
}

fn render_version(page: &mut String, projection: &str, version: &VersionReport) {
    let reason = version.reason.as_deref().map(|reason| format!(" — {}", escape(reason))).unwrap_or_default();
    let limit = version.staleness_limit_seconds.map_or("not known".to_owned(), |limit| format!("{limit} s"));
    let views =
        if version.views.is_empty() { "not known".to_owned() } else { escape(&version.views.join(", ")) };
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<h2>{name}@{number} ({version_state}): <span class=\"{state}\">{state}</span>{reason}</h2>\n\
         <p>Views: {views}. Lag {lag}, age {age}, limit {limit}, open dead letters {open}, as of {as_of}.</p>\n\
         <table><tr><th>partition</th><th>state</th><th class=\"n\">position</th><th class=\"n\">end</th><th class=\"n\">lag</th>\
         <th class=\"n\">age</th><th class=\"n\">dead letters</th><th>reason</th></tr>\n",
        name = escape(projection),
        number = version.version,
        version_state = version.version_state,
        state = version.state,
        lag = number(version.lag_records),
        age = seconds(version.age_seconds),
        open = version.open_dead_letters,
        as_of = escape(&version.as_of),
    );
    for partition in &version.partitions {
        render_partition(page, partition);
    }
    page.push_str("</table>\n");
}

fn render_partition(page: &mut String, partition: &PartitionReport) {
    let mut why = partition.reason.as_deref().map(escape).unwrap_or_default();
    if let Some(detail) = &partition.detail {
        let _ = write!(why, ": {}", escape(detail));
    }
    if let Some(command) = &partition.decide {
        let _ = write!(why, "<br><code>{}</code>", escape(command));
    }
    let _ = writeln!(
        page,
        "<tr><td>{topic}:{index}</td><td class=\"{state}\">{state}</td><td class=\"n\">{position}</td><td class=\"n\">{end}</td>\
         <td class=\"n\">{lag}</td><td class=\"n\">{age}</td><td class=\"n\">{open}</td><td>{why}</td></tr>",
        topic = escape(&partition.topic),
        index = partition.partition,
        state = partition.state,
        position = partition.position,
        end = number(partition.readable_end),
        lag = number(partition.lag_records),
        age = seconds(partition.age_seconds),
        open = partition.open_dead_letters,
    );
}

fn number<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| "–".to_owned(), |number| number.to_string())
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), |seconds| format!("{seconds:.1} s"))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
