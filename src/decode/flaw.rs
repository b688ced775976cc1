//! What is wrong with the bytes of one key or value, before it is known of which.

use std::fmt::Write as _;

use crate::fault::{Reason, RecordFault, Stage};

/// The most names of a path that are shown; recursive data has long ones.
const SHOWN: usize = 8;

/// Why bytes cannot be decoded, with the path of declared names that leads there. Never quotes a value (promise P10).
#[derive(Debug)]
pub(super) struct Flaw(Box<Inner>);

#[derive(Debug)]
struct Inner {
    reason: Reason,
    detail: String,
    /// From the innermost field outwards.
    path: Vec<String>,
}

impl Flaw {
    pub(super) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { reason, detail: detail.into(), path: Vec::new() }))
    }

    /// Says that the flaw lies in the field `name`, a name of a schema or of the mapping.
    pub(super) fn within(mut self, name: &str) -> Self {
        self.0.path.push(name.to_owned());
        self
    }

    #[cfg(test)]
    pub(super) fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The fault of the record whose `part` (key, value) these bytes are.
    pub(super) fn of(self, part: &str) -> RecordFault {
        let Inner { reason, detail, path } = *self.0;
        let mut text = part.to_owned();
        for name in path.iter().rev().take(SHOWN) {
            let _ = write!(text, ".{name}");
        }
        if path.len() > SHOWN {
            text.push('…');
        }
        let _ = write!(text, ": {detail}");
        RecordFault::new(Stage::Decode, reason, text)
    }
}

pub(super) fn too_deep(max_depth: usize) -> Flaw {
    Flaw::new(
        Reason::TooDeep,
        format!("records, lists and maps are nested deeper than the limit of {max_depth} levels"),
    )
}

pub(super) fn too_many_items(max_items: usize) -> Flaw {
    Flaw::new(Reason::TooManyItems, format!("lists and maps hold more items than the limit of {max_items}"))
}
