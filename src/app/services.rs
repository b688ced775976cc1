//! What `check --connect` looks at: the services that the settings name, what would keep `run` from working with them, and
//! a sample of records. Nothing is written, and no group is joined.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;

use super::sample;
use super::{Purpose, chain, open_registry, open_store};
use crate::cli::exit::{advice_on_kafka, advice_on_store};
use crate::config::settings::{DdlMode, Settings};
use crate::count::counted;
use crate::decode::SchemaId;
use crate::decode::registry::{RegistryError, Schemas};
use crate::projection::spec::YamlProjection;
use crate::projection::{Declaration, Projection};
use crate::source::kafka::KafkaCluster;
use crate::source::{Cluster, SourceError};
use crate::store::{LayoutState, Obstacle, SharedStore, StoreError, VersionRow, VersionState};

/// Something that `check --connect` has looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceFinding {
    /// What: `store`, `kafka`, `schema_registry`, `topic shop.products`.
    pub what: String,
    /// Whether it is as needed.
    pub ok: bool,
    /// What was seen, or what is wrong and what to do.
    pub detail: String,
}

impl ServiceFinding {
    pub(super) fn of(what: impl Into<String>, result: Result<String, String>) -> Self {
        Self { what: what.into(), ok: result.is_ok(), detail: result.unwrap_or_else(|wrong| wrong) }
    }
}

/// Looks at the services that the settings name, without changing anything.
pub async fn check_services(settings: &Settings, projections: &[Arc<YamlProjection>]) -> Vec<ServiceFinding> {
    let declarations: Vec<&Declaration> =
        projections.iter().map(|projection| projection.declaration()).collect();
    let cluster = KafkaCluster::new(&settings.kafka, &settings.limits);
    let cluster_id = match &cluster {
        Ok(cluster) => cluster.cluster_id().await,
        Err(error) => Err(error.clone()),
    };
    let mut findings = check_store(settings, &declarations, cluster_id.as_ref().ok()).await;
    let is_reachable = cluster_id.is_ok();
    let answer = cluster_id.map(|id| format!("cluster {id}")).map_err(|error| kafka_error(&error));
    findings.push(ServiceFinding::of("kafka", answer));
    let (schemas, registry) = check_registry(settings).await;
    findings.extend(registry);
    if let (Ok(cluster), true) = (&cluster, is_reachable) {
        findings.extend(check_topics(settings, &declarations, cluster).await);
        for projection in projections {
            findings.extend(sample::check(settings, projection, cluster, &schemas).await);
        }
    }
    findings
}

fn store_error(error: &StoreError) -> String {
    with_advice(error.to_string(), advice_on_store(error))
}

fn kafka_error(error: &SourceError) -> String {
    with_advice(error.to_string(), advice_on_kafka(error))
}

fn with_advice(problem: String, advice: Option<String>) -> String {
    match advice {
        Some(advice) => format!("{problem}; {advice}"),
        None => problem,
    }
}

async fn check_store(
    settings: &Settings,
    declarations: &[&Declaration],
    cluster_id: Option<&String>,
) -> Vec<ServiceFinding> {
    let store = match open_store(settings, Purpose::Inspect).await {
        Ok(store) => store,
        Err(error) => return vec![ServiceFinding::of("store", Err(chain(&error)))],
    };
    let findings = look_at_store(settings, &store, declarations, cluster_id).await;
    store.close().await;
    findings.unwrap_or_else(|error| vec![ServiceFinding::of("store", Err(store_error(&error)))])
}

async fn look_at_store(
    settings: &Settings,
    store: &SharedStore,
    declarations: &[&Declaration],
    cluster_id: Option<&String>,
) -> Result<Vec<ServiceFinding>, StoreError> {
    let condition = store.condition(declarations).await?;
    let mut findings: Vec<ServiceFinding> = condition
        .obstacles
        .iter()
        .map(|Obstacle { problem, fix }| ServiceFinding::of("store", Err(format!("{problem}; {fix}"))))
        .collect();
    let is_clear = findings.is_empty();
    let versions = match condition.layout {
        LayoutState::Absent => Vec::new(),
        LayoutState::Present => match store.versions().await {
            // What is in the way has been named already.
            Err(_) if !is_clear => return Ok(findings),
            versions => versions?,
        },
    };
    if is_clear {
        let detail = match (condition.layout, settings.store.ddl) {
            (LayoutState::Absent, DdlMode::Apply) => "not laid out yet; `run` makes the tables".to_owned(),
            (LayoutState::Absent, DdlMode::Verify) => "not laid out yet".to_owned(),
            (LayoutState::Present, _) => {
                let served = versions.iter().filter(|row| row.state != VersionState::Retired).count();
                format!("laid out; versions that are registered: {served}")
            }
        };
        findings.push(ServiceFinding::of("store", Ok(detail)));
    }
    for declaration in declarations {
        let group = settings.kafka.group(&declaration.name, declaration.version);
        let registered = registered(declaration, &versions, &group, cluster_id);
        findings.push(ServiceFinding::of(format!("version {}", declaration.label()), registered));
    }
    Ok(findings)
}

/// What `run` would say to a declaration, given what is registered.
fn registered(
    declaration: &Declaration,
    versions: &[VersionRow],
    group: &str,
    cluster_id: Option<&String>,
) -> Result<String, String> {
    let label = declaration.label();
    let mut served = versions
        .iter()
        .filter(|row| *row.key.projection == *declaration.name && row.state != VersionState::Retired);
    let Some(row) = served.next() else {
        return Ok("not registered yet; `run` registers it".to_owned());
    };
    let start_over = format!("`projector retire {} --execute` drops everything of it", row.key);
    if row.key.version != declaration.version {
        return Err(format!(
            "`run` would refuse it while the store has {}; retire that first: {start_over}",
            row.key
        ));
    }
    if row.digest != declaration.digest {
        return Err(format!(
            "`run` would refuse it: {label} is registered with another mapping, since its sources, tables or events have \
             changed; put the mapping back, or start over: {start_over}"
        ));
    }
    let log = [
        ("cluster", &*row.log.cluster_id, cluster_id.map(String::as_str)),
        ("consumer group", &*row.log.consumer_group, Some(group)),
    ];
    for (what, is, should) in log {
        if should.is_some_and(|should| should != is) {
            let should = should.unwrap_or_default();
            return Err(format!(
                "`run` would refuse it: its positions belong to the {what} {is}, and the settings say {should}; use that \
                 {what}, or start over: {start_over}"
            ));
        }
    }
    Ok(format!("registered with the same mapping; {}", row.state.as_str()))
}

async fn check_topics(
    settings: &Settings,
    declarations: &[&Declaration],
    cluster: &KafkaCluster,
) -> Vec<ServiceFinding> {
    let mut findings = Vec::new();
    let read: BTreeSet<&str> = declarations
        .iter()
        .flat_map(|declaration| declaration.sources.iter().map(|source| source.topic.as_str()))
        .collect();
    for topic in read {
        let result = partitions(cluster, topic).await.map_err(|error| kafka_error(&error));
        findings.push(ServiceFinding::of(format!("topic {topic}"), result));
    }
    let prefix = &settings.kafka.group_prefix;
    let letters: BTreeSet<String> = declarations
        .iter()
        .filter_map(|declaration| settings.dead_letter.topic_of(prefix, &declaration.name))
        .collect();
    for topic in letters {
        let result = partitions(cluster, &topic).await.map_err(|error| match error {
            SourceError::MissingTopic { .. } => {
                "it does not exist; create it, or set `dead_letter: { topic: none }` to keep dead letters in their table only"
                    .to_owned()
            }
            error => kafka_error(&error),
        });
        findings.push(ServiceFinding::of(format!("dead-letter topic {topic}"), result));
    }
    for declaration in declarations {
        let group = settings.kafka.group(&declaration.name, declaration.version);
        let topics: Vec<String> = declaration.sources.iter().map(|source| source.topic.clone()).collect();
        let result = match cluster.committed_partitions(&group, &topics).await {
            Ok(0) => Ok("may be described; it has committed nothing yet".to_owned()),
            Ok(count) => {
                Ok(format!("may be described; it has committed offsets of {}", counted(count, "partition")))
            }
            // The topic's own finding says so.
            Err(SourceError::MissingTopic { .. }) => continue,
            Err(error) => Err(kafka_error(&error)),
        };
        findings.push(ServiceFinding::of(format!("group {group}"), result));
    }
    findings
}

async fn partitions(cluster: &KafkaCluster, topic: &str) -> Result<String, SourceError> {
    let described = cluster.describe(&[topic.to_owned()]).await?;
    let count: usize = described.values().map(|about| about.partitions.len()).sum();
    Ok(counted(count, "partition"))
}

/// Asks for an id that no registry gives: any answer to that shows that it can be asked, with these credentials.
async fn check_registry(settings: &Settings) -> (Schemas, Option<ServiceFinding>) {
    if settings.schema_registry.is_none() {
        return (Schemas::none(), None);
    }
    let (schemas, answer) = match open_registry(settings) {
        Ok(schemas) => {
            let answer = match schemas.fetch(SchemaId(0x7fff_ffff)).await {
                Ok(()) | Err(RegistryError::Unknown { .. }) => Ok("answers".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            (schemas, answer)
        }
        Err(error) => (Schemas::none(), Err(chain(&error))),
    };
    (schemas, Some(ServiceFinding::of("schema_registry", answer)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::projection::spec;
    use crate::store::{LogIdentity, VersionKey};

    const TEXT: &str = "projection: orders\nversion: 2\nsources: [{ topic: t, format: json, type: value.kind }]\n\
                        tables: { orders: { primary_key: [id], columns: { id: text } } }\n\
                        events: { Placed: [{ upsert: orders, key: { id: key } }] }\n";

    fn row(version: u32, digest: &str) -> VersionRow {
        VersionRow {
            key: VersionKey { projection: "orders".into(), version },
            state: VersionState::Live,
            text: String::new(),
            digest: digest.to_owned(),
            log: LogIdentity { cluster_id: "c".into(), consumer_group: "g".into() },
        }
    }

    #[test]
    fn a_version_is_judged_as_run_would() {
        let projection = spec::parse(Path::new("orders.yaml"), TEXT, |_| Ok(String::new())).expect("valid");
        let declaration = projection.declaration();
        let digest = declaration.digest.as_str();
        let (here, elsewhere) = ("c".to_owned(), "d".to_owned());
        let judge = |rows: &[VersionRow], group: &str, cluster: Option<&String>| {
            registered(declaration, rows, group, cluster)
        };
        assert!(judge(&[], "g", Some(&here)).is_ok_and(|detail| detail.contains("not registered yet")));
        let retired = VersionRow { state: VersionState::Retired, ..row(1, "x") };
        assert!(judge(&[retired], "g", Some(&here)).is_ok());
        assert!(judge(&[row(2, digest)], "g", Some(&here)).is_ok_and(|detail| detail.contains("live")));
        assert!(judge(&[row(2, digest)], "g", None).is_ok());
        for (rows, group, cluster, part) in [
            ([row(1, digest)], "g", &here, "while the store has orders@1"),
            ([row(2, "other")], "g", &here, "another mapping"),
            ([row(2, digest)], "h", &here, "the consumer group g"),
            ([row(2, digest)], "g", &elsewhere, "the cluster c"),
        ] {
            let refused = judge(&rows, group, Some(cluster)).expect_err(part);
            assert!(refused.contains(part) && refused.contains("projector retire orders@"), "{refused}");
        }
    }
}
