//! JUDGE: duplicates and late events by the `sequence` of their aggregate.
//!
//! No source of this release may declare a `sequence`, so the verdict on every record is [`Verdict::Apply`], without I/O.
//! The stage stands in the flow between validate and fold, where the sequences of a batch's aggregates will be looked up.

/// What is to be done with an event, by its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is new, or its source declares no sequence.
    Apply,
}

/// Judges one event.
#[must_use]
pub const fn judge() -> Verdict {
    Verdict::Apply
}
