//! The real schema registry.

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
