//! What a projection says of itself as a whole: name, version, and what it does about events that it cannot use.

use std::time::Duration;

use super::notes::{self, Notes};
use crate::config::yaml::Node;
use crate::projection::expression;
use crate::projection::{OnError, UnknownEvents};

/// The staleness limit of a projection that declares none.
const DEFAULT_STALENESS: Duration = Duration::from_mins(5);

pub(super) fn projection_name(root: &Node, notes: &mut Notes<'_>) -> String {
    let Some(node) = root.get("projection") else {
        notes.mistake(&root.place, "`projection` is missing", "write projection: NAME");
        return String::new();
    };
    let Some(name) = notes.keep(node.text("projection")) else { return String::new() };
    let mut bytes = name.bytes();
    let legal = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && name.len() <= notes::MAX_IDENTIFIER;
    if !legal {
        notes.mistake(
            &node.place,
            format!("`{name}` is no name of a projection"),
            "begin with a lower-case letter and use lower-case letters, digits and `_`, at most 63",
        );
    }
    name.to_owned()
}

pub(super) fn version(root: &Node, notes: &mut Notes<'_>) -> u32 {
    let Some(node) = root.get("version") else {
        notes.mistake(&root.place, "`version` is missing", "write version: 1");
        return 1;
    };
    let text = notes.keep(node.text("version")).unwrap_or("1");
    // The number is stored as an integer of 32 bits, and printed as it is written.
    match text.parse::<i32>() {
        Ok(version) if version >= 1 && version.to_string() == text => version.unsigned_abs(),
        _ => {
            notes.mistake(&node.place, format!("`{text}` is no version"), "write a whole number from 1");
            1
        }
    }
}

pub(super) fn unknown_events(root: &Node, notes: &mut Notes<'_>) -> UnknownEvents {
    let ignore = root.get("ignore");
    let strict = root.get("unknown_events").and_then(|node| {
        notes.choice(node, "unknown_events", &[("ignore", false), ("dead_letter", true)], &[])
    });
    let except = ignore.map_or_else(Vec::new, |node| notes.names(node, "ignore"));
    if strict == Some(true) {
        return UnknownEvents::DeadLetter { except: except.into_iter().map(|(name, _)| name).collect() };
    }
    if let Some(node) = ignore {
        notes.mistake(
            &node.place,
            "`ignore` names the types that are passed by although unknown events are dead letters",
            "remove it, or write unknown_events: dead_letter",
        );
    }
    UnknownEvents::Ignore
}

pub(super) fn on_error(root: &Node, notes: &mut Notes<'_>) -> OnError {
    let choices = [("dead_letter", OnError::DeadLetter), ("quarantine", OnError::Quarantine)];
    let later = [("park", "write dead_letter, or quarantine to stop the partition")];
    root.get("on_error")
        .and_then(|node| notes.choice(node, "on_error", &choices, &later))
        .unwrap_or(OnError::DeadLetter)
}

pub(super) fn staleness(root: &Node, notes: &mut Notes<'_>) -> Duration {
    let Some(node) = root.get("staleness") else { return DEFAULT_STALENESS };
    let Some(text) = notes.keep(node.text("staleness")) else { return DEFAULT_STALENESS };
    match expression::duration_micros(text).and_then(|micros| u64::try_from(micros).ok()) {
        Some(micros) if micros > 0 => Duration::from_micros(micros),
        _ => {
            notes.mistake(
                &node.place,
                format!("`{text}` is no duration"),
                "write a number with its unit: 30s, 2m or 1h30m",
            );
            DEFAULT_STALENESS
        }
    }
}
