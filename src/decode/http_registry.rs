//! A schema registry with Confluent's HTTP interface.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, StatusCode, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::SchemaId;
use super::registry::{Registry, RegistryError};
use super::schema::SchemaText;
use crate::config::settings::RegistrySettings;

const ACCEPT: &str = "application/vnd.schemaregistry.v1+json, application/json";

/// The registry's own code for "no schema with this id"; any other 404 comes from a wrong address.
const SCHEMA_NOT_FOUND: i64 = 40403;

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 8 * 1024 * 1024;

/// The most schemas that one schema may refer to, directly and through others.
const MAX_REFERENCES: usize = 64;

/// A schema registry reached over HTTP.
///
/// `Debug` shows the address only.
pub struct HttpRegistry {
    client: Client,
    url: Url,
    basic_auth: Option<(String, SecretString)>,
    timeout: Duration,
}

/// A schema as the registry answers.
#[derive(Deserialize)]
struct Answer {
    schema: String,
    #[serde(rename = "schemaType")]
    schema_type: Option<String>,
    #[serde(default)]
    references: Option<Vec<Reference>>,
}

/// A schema that another one refers to.
#[derive(Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    subject: String,
    version: i64,
}

/// An answer that is an error.
#[derive(Deserialize)]
struct Refusal {
    error_code: Option<i64>,
}

impl HttpRegistry {
    /// A registry at the configured address; nothing is asked yet.
    ///
    /// # Errors
    /// [`RegistryError::Refused`]: the address is no HTTP URL, or TLS cannot be set up.
    pub fn new(settings: &RegistrySettings) -> Result<Self, RegistryError> {
        let refused = |why: String| RegistryError::Refused { why };
        let url = Url::parse(&settings.url)
            .map_err(|error| refused(format!("`schema_registry.url` is no URL: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
            return Err(refused("`schema_registry.url` must begin with http:// or https://".to_owned()));
        }
        let client = Client::builder()
            .timeout(settings.timeout)
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| refused(format!("its client cannot be made: {error}")))?;
        Ok(Self { client, url, basic_auth: settings.basic_auth.clone(), timeout: settings.timeout })
    }

    async fn get(&self, path: &[&str]) -> Result<Response, RegistryError> {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let mut request = self.client.get(url).header(reqwest::header::ACCEPT, ACCEPT);
        if let Some((user, password)) = &self.basic_auth {
            request = request.basic_auth(user, Some(password.expose_secret()));
        }
        let mut response = request.send().await.map_err(|error| self.unavailable(error))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unavailable(error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                let why =
                    format!("it answers with more than {MAX_ANSWER} bytes; check `schema_registry.url`");
                return Err(RegistryError::Refused { why });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Response { status, body })
    }

    fn unavailable(&self, error: reqwest::Error) -> RegistryError {
        let why = if error.is_timeout() {
            format!("no answer within {} ms", self.timeout.as_millis())
        } else if error.is_connect() {
            "no connection".to_owned()
        } else {
            "the request broke off".to_owned()
        };
        RegistryError::Unavailable { why, source: Some(Box::new(error.without_url())) }
    }

    async fn referred(&self, reference: &Reference) -> Result<Answer, RegistryError> {
        let path = ["subjects", &reference.subject, "versions", &reference.version.to_string()];
        self.get(&path).await?.answer().map_err(|error| match error {
            Failure::NoSuchSchema => RegistryError::Refused {
                why: format!(
                    "subject {} version {}, which a schema refers to, is not there",
                    reference.subject, reference.version
                ),
            },
            Failure::Other(error) => error,
        })
    }
}

impl fmt::Debug for HttpRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format_args!(
            "{}://{}{}",
            self.url.scheme(),
            self.url.host_str().unwrap_or_default(),
            self.url.path()
        )
        .to_string();
        f.debug_struct("HttpRegistry").field("address", &address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Registry for HttpRegistry {
    async fn schema(&self, id: SchemaId) -> Result<SchemaText, RegistryError> {
        let answer = self.get(&["schemas", "ids", &id.to_string()]).await?.answer();
        let answer = answer.map_err(|failure| match failure {
            Failure::NoSuchSchema => RegistryError::Unknown { id },
            Failure::Other(error) => error,
        })?;
        let mut schema = SchemaText { text: avro(&answer)?.to_owned(), references: Vec::new() };
        let mut waiting: VecDeque<Reference> = answer.references.unwrap_or_default().into();
        let mut seen = BTreeSet::new();
        while let Some(reference) = waiting.pop_front() {
            if !seen.insert(reference.clone()) {
                continue;
            }
            if seen.len() > MAX_REFERENCES {
                let why = format!("it refers to more than {MAX_REFERENCES} other schemas");
                return Err(RegistryError::Unusable { why });
            }
            let answer = self.referred(&reference).await?;
            schema.references.push(avro(&answer)?.to_owned());
            waiting.extend(answer.references.unwrap_or_default());
        }
        Ok(schema)
    }
}

/// The text of an Avro schema; registries leave the type out where it is Avro.
fn avro(answer: &Answer) -> Result<&str, RegistryError> {
    match answer.schema_type.as_deref() {
        None | Some("AVRO") => Ok(&answer.schema),
        Some("PROTOBUF") => {
            Err(RegistryError::Unusable { why: "it is a Protobuf schema, not an Avro one".to_owned() })
        }
        Some("JSON") => {
            Err(RegistryError::Unusable { why: "it is a JSON schema, not an Avro one".to_owned() })
        }
        Some(_) => Err(RegistryError::Unusable { why: "it is of another type than Avro".to_owned() }),
    }
}

struct Response {
    status: StatusCode,
    body: Vec<u8>,
}

/// What is wrong with an answer, before it is known what was asked for.
enum Failure {
    NoSuchSchema,
    Other(RegistryError),
}

impl Response {
    /// Sorts an answer: by its status and, for 404, by the registry's own error code.
    fn answer(self) -> Result<Answer, Failure> {
        let status = self.status.as_u16();
        let refused = |why: String| Err(Failure::Other(RegistryError::Refused { why }));
        match status {
            200 => serde_json::from_slice(&self.body).or_else(|_| {
                refused(
                    "it answers 200 with something else than a schema; check `schema_registry.url`"
                        .to_owned(),
                )
            }),
            404 => match serde_json::from_slice::<Refusal>(&self.body)
                .ok()
                .and_then(|refusal| refusal.error_code)
            {
                Some(SCHEMA_NOT_FOUND) => Err(Failure::NoSuchSchema),
                _ => refused(
                    "it answers 404, but not as a registry does for an unknown id (error code 40403); \
                     check the path of `schema_registry.url`"
                        .to_owned(),
                ),
            },
            401 | 403 => refused(format!(
                "it answers {status}; check `schema_registry.username`, `password` and their rights"
            )),
            408 | 425 | 429 | 500.. => Err(Failure::Other(RegistryError::Unavailable {
                why: format!("it answers {status}"),
                source: None,
            })),
            _ => refused(format!("it answers {status}; check `schema_registry.url`")),
        }
    }
}
