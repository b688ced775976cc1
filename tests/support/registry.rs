//! The real schema registry, and one that asks for a password.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::service;

/// Registers a schema under a subject and returns its id.
pub(crate) async fn register(subject: &str, schema: &str) -> u32 {
    let url = format!("{}/subjects/{subject}/versions", service("PROJECTOR_TEST_REGISTRY"));
    let body = serde_json::json!({ "schema": schema });
    let answer = reqwest::Client::new().post(url).json(&body).send().await.expect("the registry answers");
    assert!(answer.status().is_success(), "registering {subject}: {}", answer.status());
    let answer: serde_json::Value = answer.json().await.expect("JSON");
    u32::try_from(answer["id"].as_u64().expect("an id")).expect("a small id")
}

/// The Confluent frame around a datum.
pub(crate) fn framed(id: u32, datum: &[u8]) -> Vec<u8> {
    [&[0], &id.to_be_bytes()[..], datum].concat()
}

/// A proxy in front of the real registry that lets nobody pass without the right `Authorization`.
pub(crate) struct GuardedRegistry {
    pub(crate) url: String,
    guard: Arc<Guard>,
}

struct Guard {
    authorization: Mutex<String>,
    refused: Mutex<usize>,
}

impl GuardedRegistry {
    /// A registry that demands this header.
    pub(crate) async fn open(authorization: &str) -> Self {
        let guard = Arc::new(Guard {
            authorization: Mutex::new(authorization.to_owned()),
            refused: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let pages = Router::new().fallback(forward).with_state(guard.clone());
        tokio::spawn(async move { axum::serve(listener, pages).await });
        Self { url, guard }
    }

    /// From now on another header is demanded.
    pub(crate) fn demand(&self, authorization: &str) {
        authorization.clone_into(&mut self.guard.authorization.lock().expect("not poisoned"));
    }

    /// How many requests have been refused.
    pub(crate) fn refused(&self) -> usize {
        *self.guard.refused.lock().expect("not poisoned")
    }
}

async fn forward(State(guard): State<Arc<Guard>>, request: Request) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if given != Some(guard.authorization.lock().expect("not poisoned").as_str()) {
        *guard.refused.lock().expect("not poisoned") += 1;
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let url = format!("{}{}", service("PROJECTOR_TEST_REGISTRY"), request.uri().path());
    let answer = reqwest::get(url).await.expect("the registry answers");
    let status = answer.status().as_u16();
    let body = answer.bytes().await.expect("a body");
    (StatusCode::from_u16(status).expect("a status"), body).into_response()
}
