//! A sample of records of each source, taken through decode, map and validate: what would become of them, and why. No
//! payload is told, only types, reasons and coordinates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::services::ServiceFinding;
use crate::config::settings::Settings;
use crate::decode::registry::{RegistryError, Schemas};
use crate::decode::{Decoder, SchemaId, Undecoded};
use crate::fault::{Reason, RecordFault};
use crate::pipeline::batch::{Outcome, Read, Reader, Taken};
use crate::projection::spec::YamlProjection;
use crate::projection::{OnError, Projection};
use crate::record::{Record, RecordCoordinates};
use crate::source::SourceError;
use crate::source::kafka::KafkaCluster;
use crate::store::VersionKey;

/// Records of each topic.
const MOST: usize = 10;
/// Names of types that are listed at most, and characters of each: they come from producers.
const MOST_TYPES: usize = 10;
const MOST_CHARS: usize = 64;
/// For how long an unknown id is not asked for again.
const UNKNOWN_TTL: Duration = Duration::from_mins(1);

/// Checks a sample of each source of a projection.
pub(super) async fn check(
    settings: &Settings,
    projection: &Arc<YamlProjection>,
    cluster: &KafkaCluster,
    schemas: &Schemas,
) -> Vec<ServiceFinding> {
    let declaration = projection.declaration();
    let group = settings.kafka.group(&declaration.name, declaration.version);
    let decoders: Result<Arc<[Decoder]>, _> = declaration
        .sources
        .iter()
        .map(|source| Decoder::new(source, schemas.clone(), settings.limits.record))
        .collect();
    let decoders = match decoders {
        Ok(decoders) => decoders,
        Err(error) => {
            return vec![ServiceFinding::of(
                format!("decoding for {}", declaration.label()),
                Err(error.to_string()),
            )];
        }
    };
    let version = VersionKey { projection: declaration.name.as_str().into(), version: declaration.version };
    let mut reader = Reader::new(projection.clone(), version, decoders.clone(), Arc::default());
    let mut findings = Vec::new();
    for (index, source) in declaration.sources.iter().enumerate() {
        let what = format!("sample of {} for {}", source.topic, declaration.label());
        let records = match cluster.newest_records(&group, &source.topic, MOST).await {
            Ok(records) => records,
            // The topic's own finding says so.
            Err(SourceError::MissingTopic { .. }) => continue,
            Err(error) => {
                findings.push(ServiceFinding::of(what, Err(error.to_string())));
                continue;
            }
        };
        let mut sample = Sample::default();
        let mut failure = None;
        for record in records {
            if let Err(error) = sample.take(record, &decoders[index], &mut reader, schemas).await {
                failure = Some(error);
                break;
            }
        }
        findings.push(match failure {
            Some(error) => ServiceFinding::of(what, Err(format!("cannot be decoded now: {error}"))),
            None => sample.finding(what, projection, index, declaration.on_error),
        });
    }
    findings
}

/// What became of the records of one source.
#[derive(Default)]
struct Sample {
    records: usize,
    tombstones: usize,
    types: BTreeMap<String, usize>,
    faults: BTreeMap<Reason, (usize, RecordCoordinates, RecordFault)>,
}

impl Sample {
    /// Takes one record through the stages; a schema that it needs is asked for once.
    async fn take(
        &mut self,
        record: Record,
        decoder: &Decoder,
        reader: &mut Reader,
        schemas: &Schemas,
    ) -> Result<(), RegistryError> {
        self.records += 1;
        let mut event = decoder.decode(&record);
        if let Err(Undecoded::AwaitsSchema(id)) = event {
            fetch(schemas, id).await?;
            event = decoder.decode(&record);
        }
        match event {
            Ok(found) => match found.event_type {
                Some(event_type) => *self.types.entry(event_type.to_string()).or_default() += 1,
                None => self.tombstones += 1,
            },
            Err(Undecoded::Fault(fault)) => {
                self.fault(&record, fault);
                return Ok(());
            }
            Err(Undecoded::AwaitsSchema(id)) => return Err(RegistryError::Unknown { id }),
        }
        match reader.read(record) {
            Read::Taken(Taken { record, outcome: Outcome::Fault(fault, _) }) => self.fault(&record, *fault),
            Read::Taken(_) => {}
            Read::AwaitsSchema(id, _) => return Err(RegistryError::Unknown { id }),
        }
        Ok(())
    }

    fn fault(&mut self, record: &Record, fault: RecordFault) {
        let at = &record.coordinates;
        self.faults.entry(fault.reason).or_insert_with(|| (0, at.clone(), fault)).0 += 1;
    }

    /// Some records that cannot be used are ordinary; where none can be used, the declaration is wrong.
    fn finding(
        &self,
        what: String,
        projection: &YamlProjection,
        source: usize,
        on_error: OnError,
    ) -> ServiceFinding {
        let lost: usize = self.faults.values().map(|(count, ..)| count).sum();
        let detail = self.detail(projection, source, on_error, lost);
        let is_useless = lost > 0 && lost == self.records;
        ServiceFinding::of(what, if is_useless { Err(detail) } else { Ok(detail) })
    }

    fn detail(&self, projection: &YamlProjection, source: usize, on_error: OnError, lost: usize) -> String {
        if self.records == 0 {
            return "no records".to_owned();
        }
        let handled: Vec<&str> = projection.handled_types(source).collect();
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.types.iter().partition(|(name, _)| handled.contains(&name.as_str()));
        let counts =
            |types: &[(&String, &usize)]| listed(types.iter().map(|(name, n)| format!("{n} {name}")));
        let mut unseen: Vec<&str> =
            handled.iter().copied().filter(|name| !self.types.contains_key(*name)).collect();
        unseen.sort_unstable();
        let mut text = format!("the newest {}", self.records);
        // Writing to a String cannot fail.
        if !known.is_empty() {
            let _ = write!(text, "; handled: {}", counts(&known));
        }
        if self.tombstones > 0 {
            let _ = write!(text, "; tombstones: {}", self.tombstones);
        }
        if !unknown.is_empty() {
            let _ = write!(text, "; without a handler: {}", counts(&unknown));
        }
        if !unseen.is_empty() {
            let _ = write!(
                text,
                "; handlers without a record: {}",
                listed(unseen.iter().map(ToString::to_string))
            );
        }
        if lost > 0 {
            let fate = match (on_error, lost) {
                (OnError::DeadLetter, 1) => "would become a dead letter",
                (OnError::DeadLetter, _) => "would become dead letters",
                (OnError::Quarantine, 1) => "would stop its partition",
                (OnError::Quarantine, _) => "would stop their partitions",
            };
            let _ = write!(text, "; {lost} {fate}");
            for (count, at, fault) in self.faults.values() {
                let _ = write!(text, "; {count} {fault} (such as {at})");
            }
        }
        text
    }
}

/// An id that the registry does not know makes dead letters; anything else is for the registry to mend.
async fn fetch(schemas: &Schemas, id: SchemaId) -> Result<(), RegistryError> {
    match schemas.fetch(id).await {
        Err(RegistryError::Unknown { .. }) => {
            schemas.declare_unknown(id, UNKNOWN_TTL);
            Ok(())
        }
        other => other,
    }
}

fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(MOST_TYPES);
    let mut list: Vec<String> = names
        .take(MOST_TYPES)
        .map(|name| name.chars().filter(|c| !c.is_control()).take(MOST_CHARS).collect())
        .collect();
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    list.join(", ")
}
