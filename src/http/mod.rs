//! HTTP: metrics, health, status as JSON, and a page for operators. It reads and never changes anything.
//!
//! | Path | Answer |
//! |---|---|
//! | `/metrics` | Prometheus' text format |
//! | `/livez` | 200 while every loop of the process turns, else 503 |
//! | `/readyz` | 200 once configured, laid out and joined, else 503; neither lag nor an outage changes it |
//! | `/api/v1/projections/{name}` | [`ProjectionReport`](crate::status::ProjectionReport), or a problem with 404 or 503 |
//! | `/api/v1/views/{name}` | [`ViewReport`](crate::status::ViewReport), or a problem with 404 or 503 |
//! | `/` | the status as a page |
//!
//! Problems are JSON after RFC 9457 (`application/problem+json`). Requests and connections are bounded in number and time.

mod api;
mod connections;
mod page;
mod problem;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::status::{Catalogue, StatusSource};
use crate::telemetry::{Health, Metrics};
use connections::Bounded;
use problem::Problem;

/// How long one request may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How long requests that are under way may take once the process shuts down.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);
/// Samples of histograms are moved into their buckets this often.
const UPKEEP: Duration = Duration::from_secs(5);

/// What the pages are made of.
#[derive(Clone)]
pub struct Pages {
    /// Whether the process is ready and alive.
    pub health: Health,
    /// Metrics of this process.
    pub metrics: Metrics,
    /// Status of everything.
    pub status: Arc<dyn StatusSource>,
    /// Views and limits of the served versions.
    pub catalogue: Arc<Catalogue>,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("health", &self.health).finish_non_exhaustive()
    }
}

/// HTTP cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The address cannot be had. A matter of configuration: the process ends with exit code 2.
    #[error("cannot listen on {address}; choose another `http.listen`, or `none` to serve nothing")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The listener broke while serving.
    #[error("serving HTTP failed")]
    Serve(#[source] io::Error),
}

/// Takes the address. Called before a group is joined, so that a port that is taken ends the process early.
///
/// # Errors
/// The address cannot be had.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, HttpError> {
    TcpListener::bind(address).await.map_err(|source| HttpError::Bind { address, source })
}

/// Serves until `stop` is cancelled, then lets requests that are under way end, for at most two seconds.
///
/// # Errors
/// The listener broke.
pub async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) -> Result<(), HttpError> {
    let metrics = pages.metrics.clone();
    let stopped = stop.clone();
    let served = axum::serve(Bounded::new(listener), router(pages))
        .with_graceful_shutdown(async move { stopped.cancelled().await });
    let drained = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN_LIMIT).await;
    };
    let upkeep = async {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            metrics.upkeep();
        }
    };
    tokio::select! {
        result = async { served.await } => result.map_err(HttpError::Serve),
        () = drained => Ok(()),
        () = upkeep => Ok(()),
    }
}

/// All routes.
pub fn router(pages: Pages) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/metrics", get(api::metrics))
        .route("/livez", get(api::livez))
        .route("/readyz", get(api::readyz))
        .route("/api/v1/projections/{name}", get(api::projection))
        .route("/api/v1/views/{name}", get(api::view))
        .fallback(api::nothing_here)
        .layer(middleware::from_fn_with_state(Arc::new(tokio::sync::Semaphore::new(MAX_REQUESTS)), bounded))
        .with_state(pages)
}

/// More requests at a time are turned away.
const MAX_REQUESTS: usize = 64;

async fn bounded(
    State(permits): State<Arc<tokio::sync::Semaphore>>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(_permit) = permits.try_acquire() else {
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time").into_response();
    };
    match tokio::time::timeout(REQUEST_LIMIT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long").into_response(),
    }
}

#[cfg(test)]
mod tests;
