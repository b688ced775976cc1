//! The cache of schemas, over a registry that follows a script.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use crate::decode::registry::{Known, Registry, RegistryError, SchemaText};
use crate::decode::{SchemaId, Schemas};

/// Answers what the script says, one line a request; then as if it were down.
#[derive(Default)]
struct Scripted {
    lines: Mutex<VecDeque<Result<SchemaText, RegistryError>>>,
    asked: Mutex<usize>,
}

impl Scripted {
    fn of(lines: impl IntoIterator<Item = Result<SchemaText, RegistryError>>) -> (Arc<Self>, Schemas) {
        let registry = Arc::new(Self { lines: Mutex::new(lines.into_iter().collect()), ..Self::default() });
        (registry.clone(), Schemas::new(registry))
    }

    fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }
}

#[async_trait]
impl Registry for Scripted {
    async fn schema(&self, _: SchemaId) -> Result<SchemaText, RegistryError> {
        *self.asked.lock().unwrap() += 1;
        self.lines.lock().unwrap().pop_front().unwrap_or_else(|| Err(down()))
    }
}

fn down() -> RegistryError {
    RegistryError::Unavailable { why: "down".to_owned(), source: None }
}

const ID: SchemaId = SchemaId(12);

#[tokio::test]
async fn a_failure_is_never_kept_and_a_schema_always() {
    let refused = RegistryError::Refused { why: "401".to_owned() };
    let lines =
        [Err(down()), Err(refused), Err(RegistryError::Unknown { id: ID }), Ok(SchemaText::from("\"long\""))];
    let (registry, schemas) = Scripted::of(lines);
    assert!(matches!(schemas.fetch(ID).await, Err(RegistryError::Unavailable { .. })));
    assert!(matches!(schemas.known(ID), Known::Nothing));
    assert!(matches!(schemas.fetch(ID).await, Err(RegistryError::Refused { .. })));
    assert!(matches!(schemas.fetch(ID).await, Err(RegistryError::Unknown { id: ID })));
    assert!(matches!(schemas.known(ID), Known::Nothing));
    schemas.fetch(ID).await.unwrap();
    assert_eq!(registry.asked(), 4);
    // From here on the registry is down.
    schemas.fetch(ID).await.unwrap();
    assert!(schemas.clone().get(ID).is_some());
    assert_eq!(registry.asked(), 4);
}

#[tokio::test]
async fn a_schema_that_cannot_be_used_is_kept_with_its_reason() {
    for line in [
        Ok(SchemaText::from(r#"{"type":"record"}"#)),
        Err(RegistryError::Unusable { why: "it is a Protobuf schema".to_owned() }),
    ] {
        let (registry, schemas) = Scripted::of([line]);
        schemas.fetch(ID).await.unwrap();
        schemas.fetch(ID).await.unwrap();
        assert_eq!(registry.asked(), 1);
        assert!(matches!(schemas.known(ID), Known::Unusable(_)));
        assert!(schemas.get(ID).is_none());
    }
}

#[tokio::test]
async fn an_unknown_id_costs_one_request_in_its_time_and_what_has_lapsed_is_forgotten() {
    let (registry, schemas) = Scripted::of([]);
    schemas.declare_unknown(ID, Duration::from_hours(1));
    for _ in 0..10_000 {
        assert!(matches!(schemas.known(ID), Known::Unknown));
        schemas.fetch(ID).await.unwrap();
    }
    assert_eq!(registry.asked(), 0);
    for id in 1000..2000 {
        schemas.declare_unknown(SchemaId(id), Duration::ZERO);
    }
    schemas.declare_unknown(ID, Duration::from_hours(1));
    assert_eq!(format!("{schemas:?}"), "Schemas { cached: 1, .. }");
}

#[tokio::test]
async fn a_schema_is_not_forgotten_by_declaring_its_id_unknown() {
    let (_, schemas) = Scripted::of([Ok(SchemaText::from("\"long\""))]);
    schemas.fetch(ID).await.unwrap();
    schemas.declare_unknown(ID, Duration::from_hours(1));
    assert!(schemas.get(ID).is_some());
}

#[tokio::test]
async fn without_a_registry_nothing_is_found_and_the_error_says_what_to_set() {
    let error = Schemas::none().fetch(ID).await.unwrap_err();
    assert!(error.to_string().contains("set `schema_registry`"), "{error}");
}
