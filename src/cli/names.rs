//! The forms in which commands take names: `NAME`, `NAME@VERSION`, `TOPIC:PARTITION`, `TOPIC:PARTITION:OFFSET`.

use std::fmt;
use std::sync::Arc;

use crate::position::RecordOffset;
use crate::record::{RecordCoordinates, TopicPartition};
use crate::store::VersionKey;

/// A projection, or one version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The projection's name.
    pub projection: String,
    /// This version only.
    pub version: Option<u32>,
}

impl Selection {
    /// Whether a version is meant.
    #[must_use]
    pub fn has(&self, key: &VersionKey) -> bool {
        *key.projection == *self.projection && self.version.is_none_or(|version| version == key.version)
    }
}

/// Printed as it is written: `name` or `name@version`.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.projection)?;
        self.version.map_or(Ok(()), |version| write!(f, "@{version}"))
    }
}

impl From<&VersionKey> for Selection {
    fn from(key: &VersionKey) -> Self {
        Self { projection: key.projection.to_string(), version: Some(key.version) }
    }
}

/// Reads `NAME` or `NAME@VERSION`.
///
/// # Errors
/// What is wrong, for clap.
pub fn selection(text: &str) -> Result<Selection, String> {
    if text.contains('@') {
        version(text).map(|key| Selection::from(&key))
    } else {
        Ok(Selection { projection: text.to_owned(), version: None })
    }
}

/// Reads `NAME@VERSION`.
///
/// # Errors
/// What is wrong, for clap.
pub fn version(text: &str) -> Result<VersionKey, String> {
    let (name, version) =
        text.rsplit_once('@').ok_or("write NAME@VERSION, for example product_catalogue@1")?;
    let version: u32 = version.parse().map_err(|_| "the version is a number from 1: NAME@1".to_owned())?;
    if name.is_empty() || version == 0 {
        return Err("write NAME@VERSION, with a version from 1".to_owned());
    }
    Ok(VersionKey { projection: Arc::from(name), version })
}

/// Reads `TOPIC:PARTITION`.
///
/// # Errors
/// What is wrong, for clap.
pub fn partition(text: &str) -> Result<TopicPartition, String> {
    let (topic, number) =
        text.rsplit_once(':').ok_or("write TOPIC:PARTITION, for example shop.products:3")?;
    let number: i32 = number.parse().map_err(|_| "the partition is a number from 0: TOPIC:3".to_owned())?;
    if topic.is_empty() || number < 0 {
        return Err("write TOPIC:PARTITION, with a partition from 0".to_owned());
    }
    Ok(TopicPartition::new(topic, number))
}

/// Reads `TOPIC:PARTITION:OFFSET`.
///
/// # Errors
/// What is wrong, for clap.
pub fn coordinates(text: &str) -> Result<RecordCoordinates, String> {
    let form = "write TOPIC:PARTITION:OFFSET, for example shop.products:3:1207";
    let (rest, offset) = text.rsplit_once(':').ok_or(form)?;
    let offset: i64 = offset.parse().ok().filter(|offset| *offset >= 0).ok_or(form)?;
    let topic_partition = partition(rest).map_err(|_| form.to_owned())?;
    Ok(RecordCoordinates { topic_partition, offset: RecordOffset::new(offset) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        assert_eq!(version("orders@12").map(|key| key.to_string()), Ok("orders@12".into()));
        for text in ["orders", "orders@12"] {
            assert_eq!(selection(text).map(|wanted| wanted.to_string()), Ok(text.into()));
        }
        assert_eq!(partition("shop.orders:3").map(|name| name.to_string()), Ok("shop.orders:3".into()));
        assert_eq!(coordinates("shop.orders:3:0").map(|at| at.to_string()), Ok("shop.orders:3:0".into()));
    }

    #[test]
    fn other_forms_are_refused_with_an_example() {
        for text in ["orders", "orders@", "orders@0", "@1", "orders@-1", "orders@x"] {
            assert!(version(text).is_err(), "{text}");
        }
        for text in ["orders@", "orders@0", "@1"] {
            assert!(selection(text).is_err(), "{text}");
        }
        for text in ["t", "t:", ":1", "t:-1", "t:x", "t:99999999999"] {
            assert!(partition(text).is_err(), "{text}");
        }
        for text in ["t:1", "t:1:-1", "t:x:1", ":1:1", "1"] {
            assert!(coordinates(text).is_err_and(|why| why.contains("TOPIC:PARTITION:OFFSET")), "{text}");
        }
    }
}
