//! Schemas by their id: the cache that decoders look into, and where it is filled from.
//!
//! [`Schemas`] is shared by all decoders of the process. Decoding never waits: an id that is not cached makes the decoder
//! say so, somebody calls [`Schemas::fetch`], and the record is decoded again. A schema never changes, so it is kept for
//! good and serves while the registry is down; a failed request is never kept. Only an id of which the registry itself has
//! said for a bounded time that it does not exist is declared unknown, for a while, by [`Schemas::declare_unknown`].

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ahash::AHashMap;
use async_trait::async_trait;

pub use super::http_registry::HttpRegistry;
pub use super::schema::{ParsedSchema, SchemaText, UnusableSchema};

use super::SchemaId;

/// Where schemas come from.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// The schema with this id, with the schemas that it refers to. Bounded in time by the implementation.
    ///
    /// # Errors
    /// See [`RegistryError`]: each variant is handled differently, so an implementation must not confuse them.
    async fn schema(&self, id: SchemaId) -> Result<SchemaText, RegistryError>;
}

/// Why a schema has not been had.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry answers that it has no schema with this id. Producers may be ahead of it: ask again for a while.
    #[error("the schema registry knows no schema with the id {id}")]
    Unknown {
        /// The id.
        id: SchemaId,
    },
    /// The registry did not answer, or not now. Retried without end.
    #[error("the schema registry is not available: {why}")]
    Unavailable {
        /// What happened.
        why: String,
        /// The error below, if there is one.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The registry refuses, or something else than a registry answers: an operator has to act. Retried without end.
    #[error("the schema registry refuses: {why}")]
    Refused {
        /// What it answered, and what to look at.
        why: String,
    },
    /// The registry has the schema, but it is no Avro schema that records could be read with.
    #[error("the schema cannot be used: {why}")]
    Unusable {
        /// What is wrong with it.
        why: String,
    },
}

/// What the cache knows of an id.
#[derive(Debug, Clone)]
pub enum Known {
    /// Nothing: it has to be fetched.
    Nothing,
    /// The schema.
    Schema(Arc<ParsedSchema>),
    /// The registry's schema cannot be used, for this reason.
    Unusable(Arc<str>),
    /// The id has been declared unknown, and that still holds.
    Unknown,
}

/// All schemas that the process has come across. Cheap to clone; clones share the cache.
#[derive(Clone)]
pub struct Schemas {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Option<Arc<dyn Registry>>,
    cache: RwLock<AHashMap<SchemaId, Entry>>,
}

enum Entry {
    Schema(Arc<ParsedSchema>),
    Unusable(Arc<str>),
    Unknown { until: Instant },
}

/// The most bytes of a reason for an unusable schema that are kept.
const LONGEST_REASON: usize = 400;

impl Schemas {
    /// An empty cache that is filled from `registry`.
    #[must_use]
    pub fn new(registry: Arc<dyn Registry>) -> Self {
        Self::with(Some(registry))
    }

    /// No schemas at all, where no registry is configured: decoders of framed Avro refuse to be made with it.
    #[must_use]
    pub fn none() -> Self {
        Self::with(None)
    }

    fn with(registry: Option<Arc<dyn Registry>>) -> Self {
        Self { shared: Arc::new(Shared { registry, cache: RwLock::default() }) }
    }

    /// Whether there is a registry behind the cache.
    #[must_use]
    pub fn has_registry(&self) -> bool {
        self.shared.registry.is_some()
    }

    /// The schema with this id, if it is cached and can be used.
    #[must_use]
    pub fn get(&self, id: SchemaId) -> Option<Arc<ParsedSchema>> {
        match self.known(id) {
            Known::Schema(schema) => Some(schema),
            Known::Nothing | Known::Unusable(_) | Known::Unknown => None,
        }
    }

    /// What the cache knows of this id now.
    #[must_use]
    pub fn known(&self, id: SchemaId) -> Known {
        let cache = self.shared.cache.read().unwrap_or_else(PoisonError::into_inner);
        match cache.get(&id) {
            Some(Entry::Schema(schema)) => Known::Schema(schema.clone()),
            Some(Entry::Unusable(why)) => Known::Unusable(why.clone()),
            Some(Entry::Unknown { until }) if *until > Instant::now() => Known::Unknown,
            Some(Entry::Unknown { .. }) | None => Known::Nothing,
        }
    }

    /// Asks the registry once for this id, unless the cache has an answer already.
    ///
    /// `Ok` means that decoding goes on: with the schema or, where the schema cannot be used, with the fault
    /// `invalid_schema` for each of its records.
    ///
    /// # Errors
    /// The registry does not know the id, is not available, or refuses; nothing is kept of that. Never
    /// [`RegistryError::Unusable`].
    pub async fn fetch(&self, id: SchemaId) -> Result<(), RegistryError> {
        if !matches!(self.known(id), Known::Nothing) {
            return Ok(());
        }
        let Some(registry) = &self.shared.registry else {
            return Err(RegistryError::Refused {
                why: "none is configured; set `schema_registry`".to_owned(),
            });
        };
        let parsed = match registry.schema(id).await {
            Ok(text) => ParsedSchema::parse(&text).map_err(|error| error.to_string()),
            Err(RegistryError::Unusable { why }) => Err(why),
            Err(error) => return Err(error),
        };
        let entry = match parsed {
            Ok(schema) => Entry::Schema(Arc::new(schema)),
            Err(why) => Entry::Unusable(shortened(&why).into()),
        };
        self.write(id, entry);
        Ok(())
    }

    /// Lets records with this id be dead letters (`schema_not_found`) for as long as `ttl`, instead of waiting for it.
    /// For an id that the registry has said for long enough that it does not know; a schema that is cached stays.
    pub fn declare_unknown(&self, id: SchemaId, ttl: Duration) {
        let now = Instant::now();
        // A time that cannot be reckoned with is as good as none.
        let until = now.checked_add(ttl).unwrap_or(now);
        self.write(id, Entry::Unknown { until });
    }

    fn write(&self, id: SchemaId, entry: Entry) {
        let mut cache = self.shared.cache.write().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Ids of damaged records are without number: what has lapsed is not kept.
        cache.retain(|_, entry| !matches!(entry, Entry::Unknown { until } if *until <= now));
        match (cache.get(&id), &entry) {
            (Some(Entry::Schema(_) | Entry::Unusable(_)), Entry::Unknown { .. }) => {}
            _ => drop(cache.insert(id, entry)),
        }
    }
}

impl fmt::Debug for Schemas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cached = self.shared.cache.read().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("Schemas").field("cached", &cached).finish_non_exhaustive()
    }
}

fn shortened(why: &str) -> String {
    match why.char_indices().nth(LONGEST_REASON) {
        Some((end, _)) => format!("{}…", &why[..end]),
        None => why.to_owned(),
    }
}

/// A registry in memory, for the demo and for tests.
#[derive(Debug, Default)]
pub struct MemoryRegistry {
    schemas: RwLock<BTreeMap<SchemaId, SchemaText>>,
}

impl MemoryRegistry {
    /// A registry without schemas.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a schema under an id; an id that is taken gets the new one.
    pub fn register(&self, id: SchemaId, schema: impl Into<SchemaText>) {
        self.schemas.write().unwrap_or_else(PoisonError::into_inner).insert(id, schema.into());
    }
}

#[async_trait]
impl Registry for MemoryRegistry {
    async fn schema(&self, id: SchemaId) -> Result<SchemaText, RegistryError> {
        let schemas = self.schemas.read().unwrap_or_else(PoisonError::into_inner);
        schemas.get(&id).cloned().ok_or(RegistryError::Unknown { id })
    }
}
