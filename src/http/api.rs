//! Metrics, health and status for machines.

use std::time::Instant;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::Pages;
use super::problem::Problem;
use crate::status::report::now_millis;
use crate::status::{Reports, StatusError};
use crate::telemetry::gauges::{is_owned, owned_versions};
use crate::telemetry::{DeadLetterGauges, ViewGauges, ViewState};

pub(super) async fn metrics(State(pages): State<Pages>) -> Response {
    let now = now_millis();
    let versions = owned_versions();
    let mut letters = Vec::new();
    // Without an answer of the store nobody can tell how fresh a view is.
    let mut views: Vec<ViewGauges> = versions
        .iter()
        .map(|version| ViewGauges { version: version.clone(), state: ViewState::Unavailable })
        .collect();
    if !versions.is_empty()
        && let Ok(snapshot) = pages.status.snapshot().await
    {
        let reports = Reports::of(&snapshot.partitions, &pages.catalogue, now);
        for view in &mut views {
            let report = reports.projection(&view.version.projection).and_then(|projection| {
                projection.versions.iter().find(|version| version.version == view.version.version)
            });
            if let Some(report) = report {
                view.state = report.state;
            }
        }
        let owned = snapshot.partitions.iter().filter(|status| is_owned(&status.version, &status.partition));
        letters.extend(owned.map(|status| DeadLetterGauges {
            version: status.version.clone(),
            partition: status.partition.clone(),
            open: status.open_dead_letters,
            oldest_millis: status.oldest_dead_letter_at.map(|micros| micros / 1000),
        }));
    }
    let page = pages.metrics.render(&views, &letters, now);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

pub(super) async fn livez(State(pages): State<Pages>) -> Response {
    let silent = pages.health.silent(Instant::now());
    if silent.is_empty() {
        return "alive\n".into_response();
    }
    let text = format!("no sign of life for more than 30 s: {}\n", silent.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

pub(super) async fn readyz(State(pages): State<Pages>) -> Response {
    let missing = pages.health.missing();
    if missing.is_empty() {
        return "ready\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", missing.join(", "))).into_response()
}

pub(super) async fn projection(
    State(pages): State<Pages>,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let reports = reports(&pages).await?;
    let projection = reports.projection(&name).ok_or_else(|| {
        let known = reports.projections.iter().map(|projection| projection.projection.as_str());
        unknown("projection", known.collect())
    })?;
    Ok(Json(projection).into_response())
}

pub(super) async fn view(State(pages): State<Pages>, Path(name): Path<String>) -> Result<Response, Problem> {
    let reports = reports(&pages).await?;
    let view = reports.view(&name).ok_or_else(|| {
        let versions = reports.projections.iter().flat_map(|projection| &projection.versions);
        unknown("view", versions.flat_map(|version| &version.views).map(String::as_str).collect())
    })?;
    Ok(Json(view).into_response())
}

pub(super) async fn nothing_here() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "there is /, /metrics, /livez, /readyz, /api/v1/projections/{name} and /api/v1/views/{name}",
    )
}

pub(super) async fn reports(pages: &Pages) -> Result<Reports, Problem> {
    let snapshot = pages.status.snapshot().await.map_err(|error| unreadable(&error))?;
    Ok(Reports::of(&snapshot.partitions, &pages.catalogue, now_millis()))
}

/// Status that cannot be read; the cause is in the log of whoever asks the database, by its code only.
fn unreadable(error: &StatusError) -> Problem {
    let detail = match error {
        StatusError::Store(cause) => format!("{error}: {cause}"),
        StatusError::Slow => error.to_string(),
    };
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

/// The name that was asked for is not repeated: it is the reader's, and may be anything.
fn unknown(what: &str, mut known: Vec<&str>) -> Problem {
    known.sort_unstable();
    known.dedup();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Problem::new(StatusCode::NOT_FOUND, format!("no {what} of this name; there is: {known}"))
}
