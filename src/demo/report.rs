//! What the demo is asked, who is told about it, and what it did.

use std::path::PathBuf;

use serde::Serialize;

/// What `demo` was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// The folder in which the SQLite file stays; a temporary one that is removed where absent.
    pub keep: Option<PathBuf>,
    /// How many events.
    pub events: u64,
}

/// What the demo did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DemoReport {
    /// Records produced.
    pub events: u64,
    /// Rows in all tables.
    pub rows: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Records that are not applied.
    pub lag: u64,
    /// Whether the rows equal those of the independent model.
    pub verified: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Some rows of the view, as text; the first line names the columns.
    pub sample: Vec<Vec<String>>,
    /// Dead letters by reason, with one of them as an example.
    pub reasons: Vec<DemoReason>,
    /// The first difference from the model, if there is one.
    pub difference: Option<String>,
    /// The SQLite file, if it was kept.
    pub file: Option<PathBuf>,
}

/// Dead letters of one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DemoReason {
    /// The reason.
    pub reason: String,
    /// How many.
    pub count: u64,
    /// Where the first of them stands: `topic:partition:offset`.
    pub example: String,
    /// What it says; no values.
    pub detail: String,
}

/// Who is told about the progress of the demo.
pub trait DemoWatcher: Send + Sync {
    /// `applied` of `total` records are applied.
    fn progress(&self, applied: u64, total: u64);
    /// Something that a person should know: "stopped half-way without any clean-up".
    fn step(&self, what: &str);
}
