//! The settings of `projector.yaml`, once loaded, substituted and validated.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::yaml::Place;
use crate::decode::Limits;

/// Everything in `projector.yaml`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file that the settings come from.
    pub file: PathBuf,
    /// The `kafka` section.
    pub kafka: KafkaSettings,
    /// The `schema_registry` section, if there is one.
    pub schema_registry: Option<RegistrySettings>,
    /// The `store` section.
    pub store: StoreSettings,
    /// Projection files, as absolute paths or relative to the working directory.
    pub projections: Vec<PathBuf>,
    /// Where the file lists them; where it does not, its beginning.
    pub projections_place: Place,
    /// The `dead_letter` section.
    pub dead_letter: DeadLetterSettings,
    /// The `limits` section.
    pub limits: LimitSettings,
    /// The `http` section.
    pub http: HttpSettings,
    /// How long a shutdown may take. Default 10 s.
    pub shutdown_grace: Duration,
}

/// `kafka:`
#[derive(Debug, Clone)]
pub struct KafkaSettings {
    /// `bootstrap_servers`
    pub bootstrap_servers: String,
    /// `group_prefix`: groups are `<group_prefix>.<projection>.v<version>`.
    pub group_prefix: String,
    /// librdkafka properties for every client. May hold secrets.
    pub properties: BTreeMap<String, SecretString>,
    /// librdkafka properties for consumers only.
    pub consumer_properties: BTreeMap<String, SecretString>,
    /// librdkafka properties for the dead-letter producer only.
    pub producer_properties: BTreeMap<String, SecretString>,
}

impl KafkaSettings {
    /// The consumer group of a version.
    #[must_use]
    pub fn group(&self, projection: &str, version: u32) -> String {
        format!("{}.{projection}.v{version}", self.group_prefix)
    }
}

/// `schema_registry:`
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// `url`, with the base path, without credentials.
    pub url: String,
    /// `username` and `password` for basic auth.
    pub basic_auth: Option<(String, SecretString)>,
    /// How long one request may take. Default 5 s.
    pub timeout: Duration,
    /// For how long an id that the registry does not know is asked for again before its records are dead letters.
    /// Default 10 s.
    pub unknown_id_wait: Duration,
}

/// `store:`
#[derive(Debug, Clone)]
pub struct StoreSettings {
    /// `url`: `postgres://…` or `sqlite:PATH`. May hold a password.
    pub url: SecretString,
    /// `admin_url`: used for DDL where given.
    pub admin_url: Option<SecretString>,
    /// `schema`: PostgreSQL's schema. Default `public`.
    pub schema: String,
    /// `writers`: transactions at a time, for the process. Default 2 (SQLite: 1).
    pub writers: usize,
    /// `readers`: roles that may select from views.
    pub readers: Vec<String>,
    /// `ddl: apply | verify`
    pub ddl: DdlMode,
    /// `statement_timeout`: of every statement; below the session timeout. Default 20 s.
    pub statement_timeout: Duration,
}

impl StoreSettings {
    /// The database file; `None` for PostgreSQL.
    #[must_use]
    pub fn sqlite_path(&self) -> Option<&Path> {
        let path = self.url.expose_secret().strip_prefix("sqlite:")?;
        Some(Path::new(path.strip_prefix("//").unwrap_or(path)))
    }
}

/// Who makes tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DdlMode {
    /// projector makes what is missing.
    Apply,
    /// Somebody else does; projector verifies.
    Verify,
}

/// `dead_letter:`
#[derive(Debug, Clone)]
pub struct DeadLetterSettings {
    /// `topic`: with `{group_prefix}` and `{projection}`; `None` (`topic: none`): dead letters stay in their table.
    pub topic: Option<String>,
    /// `headers`: styles beside `projector`.
    pub headers: Vec<HeaderStyle>,
    /// `max_waiting`: unpublished dead letters of a partition before it is blocked. Default 10,000.
    pub max_waiting: u32,
}

impl DeadLetterSettings {
    /// The dead-letter topic of a projection.
    #[must_use]
    pub fn topic_of(&self, group_prefix: &str, projection: &str) -> Option<String> {
        let topic = self.topic.as_ref()?;
        Some(topic.replace("{group_prefix}", group_prefix).replace("{projection}", projection))
    }
}

/// Which headers a published dead letter carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `projector.*`; always there.
    Projector,
    /// Connect's `__connect.errors.*`, as text.
    Connect,
}

/// `limits:`
#[derive(Debug, Clone)]
pub struct LimitSettings {
    /// Size, depth and item count of a record.
    pub record: Limits,
    /// `batch_records`: the most records of one partition in one transaction. Default 20,000.
    pub batch_records: usize,
    /// `memory`: bytes of records and changes that the process holds at most. Default 64 MiB.
    pub memory: usize,
    /// `queue`: bytes that one consumer prefetches at most. Default 8 MiB.
    pub queue: usize,
}

/// `http:`
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// `listen`: default 127.0.0.1:4196; `None` (`listen: none`) serves nothing.
    pub listen: Option<SocketAddr>,
}
