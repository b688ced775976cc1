//! The section `kafka` of the configuration.

use super::agreement::Surrounding;
use super::load::is_topic_part;
use super::properties::{self, ClientLibrary, Properties, Property};
use super::reader::{Reader, Section};
use super::settings::KafkaSettings;
use super::yaml::Mistake;

const KEYS: &[&str] =
    &["bootstrap_servers", "group_prefix", "properties", "consumer_properties", "producer_properties"];

/// Reads the section.
pub(super) fn kafka(
    reader: &mut Reader<'_>,
    root: Section<'_>,
    surrounding: &Surrounding<'_>,
    library: &dyn ClientLibrary,
) -> Option<KafkaSettings> {
    let section = reader.section(root, "kafka", KEYS);
    let servers = bootstrap_servers(reader, section);
    let prefix = reader.required(section, "group_prefix", "group_prefix: my_team").and_then(|prefix| {
        if is_topic_part(&prefix.text) {
            return Some(prefix.text);
        }
        let message = "`kafka.group_prefix` may have letters, digits, `.`, `_` and `-` only, at most 100";
        reader.add(
            Mistake::new(prefix.place, message).fix("it begins the names of groups and dead-letter topics"),
        );
        None
    });
    let mut properties = Properties::default();
    for (key, into) in [
        ("properties", &mut properties.every),
        ("consumer_properties", &mut properties.consumer),
        ("producer_properties", &mut properties.producer),
    ] {
        into.extend(reader.pairs(section, key).into_iter().map(|(entry, value)| Property {
            name: entry.key.clone(),
            place: entry.place.clone(),
            value: value.text,
        }));
    }
    for mistake in properties::all_mistakes(&properties, surrounding, library) {
        reader.add(mistake);
    }
    Some(KafkaSettings {
        bootstrap_servers: servers?,
        group_prefix: prefix?,
        properties: properties::secret(properties.every),
        consumer_properties: properties::secret(properties.consumer),
        producer_properties: properties::secret(properties.producer),
    })
}

/// One text with commas, or a list.
fn bootstrap_servers(reader: &mut Reader<'_>, section: Section<'_>) -> Option<String> {
    const KEY: &str = "bootstrap_servers";
    let before = section.get(KEY).is_some();
    let items = reader.list(section, KEY);
    let servers: Vec<&str> = items.iter().flat_map(|item| item.text.split(',')).map(str::trim).collect();
    if before && items.is_empty() && !matches!(section.get(KEY).map(|node| node.list("")), Some(Ok([]))) {
        return None; // The mistake has been reported.
    }
    if servers.is_empty() || servers.contains(&"") {
        let problem = if before { "names no server, or an empty one" } else { "is missing" };
        let mistake = Mistake::new(section.place_of(KEY), format!("`kafka.{KEY}` {problem}"));
        reader.add(mistake.fix("write `bootstrap_servers: kafka-1:9092,kafka-2:9092`"));
        return None;
    }
    Some(servers.join(","))
}
