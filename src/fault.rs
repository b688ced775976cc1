//! What can be wrong with one record.
//!
//! A [`RecordFault`] is the only thing a dead letter can be made of, and nothing but a stage that looked at one record,
//! or the classification of a refused write, makes one: a fault of infrastructure has no way to become a dead letter
//! (promise P4).

use std::fmt;

/// The stages of the flow, in order. The same words in modules, spans, metrics and dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Records are read from Kafka.
    Consume,
    /// Bytes become events.
    Decode,
    /// Events become changes.
    Map,
    /// Values are checked against their columns.
    Validate,
    /// The sequence of an aggregate is looked up.
    Judge,
    /// Many changes of one row become few.
    Fold,
    /// Changes, dead letters and positions are written in one transaction.
    Apply,
    /// Positions are committed to Kafka.
    Commit,
}

impl Stage {
    /// The stage's name in metrics, dead letters and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Decode => "decode",
            Self::Map => "map",
            Self::Validate => "validate",
            Self::Judge => "judge",
            Self::Fold => "fold",
            Self::Apply => "apply",
            Self::Commit => "commit",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Why a record cannot be used. The text form is stable: it stands in dead letters, metrics and the README.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every reason, in the order of the stages that give them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The stable name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What the reason means, for `--help`, the README and the operator page.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

reasons! {
    /// A key, value or header is larger than the configured limit.
    TooLarge = "too_large",
    /// The value, or the key, is not framed as the source declares (magic byte and schema id).
    BadFraming = "bad_framing",
    /// The registry does not know the schema id.
    SchemaNotFound = "schema_not_found",
    /// The schema cannot be used: it does not parse, or declares something impossible.
    InvalidSchema = "invalid_schema",
    /// Writer and reader schema cannot be resolved for this record.
    SchemaResolution = "schema_resolution",
    /// The bytes are not valid Avro of their schema.
    InvalidAvro = "invalid_avro",
    /// The bytes are not valid JSON.
    InvalidJson = "invalid_json",
    /// Bytes follow the end of the value.
    TrailingBytes = "trailing_bytes",
    /// A text is not valid UTF-8.
    InvalidUtf8 = "invalid_utf8",
    /// The value is nested deeper than the configured limit.
    TooDeep = "too_deep",
    /// A list or map has more items than the configured limit.
    TooManyItems = "too_many_items",
    /// The type of the event cannot be determined.
    UnknownType = "unknown_type",
    /// No handler is declared for the type, and `unknown_events` is `dead_letter`.
    UnknownEvent = "unknown_event",
    /// An expression needs a field that the event lacks.
    MissingField = "missing_field",
    /// An expression failed: wrong types, overflow, division by zero.
    ExpressionFailed = "expression_failed",
    /// A projection written in Rust refused the event.
    Rejected = "rejected",
    /// A key column would be NULL.
    NullKey = "null_key",
    /// A column that is NOT NULL would be NULL.
    NotNull = "not_null",
    /// The value's type has no exact form in the column's type.
    WrongType = "wrong_type",
    /// The value has the right type but not a form that the column's type accepts.
    InvalidValue = "invalid_value",
    /// A number is outside the range of its column.
    ValueOutOfRange = "value_out_of_range",
    /// A number with a fraction meets an integer column.
    NotAnInteger = "not_an_integer",
    /// A number has more digits after the point than its column keeps.
    DecimalScaleLoss = "decimal_scale_loss",
    /// A text is longer than its column allows.
    ValueTooLong = "value_too_long",
    /// A text contains the character NUL, which the store cannot keep.
    NulInText = "nul_in_text",
    /// The row belongs to another aggregate.
    ForeignRow = "foreign_row",
    /// A unique constraint refused the row.
    UniqueViolation = "unique_violation",
    /// A foreign key refused the row.
    ForeignKeyViolation = "foreign_key_violation",
    /// A CHECK or exclusion constraint refused the row.
    CheckViolation = "check_violation",
    /// A row is larger than the store's own limits.
    ProgramLimit = "program_limit",
    /// The database refused the row for another reason; the SQLSTATE says which.
    RefusedByDatabase = "refused_by_database",
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why one record cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at {stage}: {}", self.explained())]
pub struct RecordFault {
    /// Where in the flow it was found.
    pub stage: Stage,
    /// Why.
    pub reason: Reason,
    /// What a person needs to find the cause: names of fields, columns, types and limits, lengths and positions.
    /// Never a value of the record (promise P10).
    pub detail: String,
    /// The column that the value did not fit, as `table.column`.
    pub column: Option<String>,
    /// The constraint that refused, for faults found by the database.
    pub constraint: Option<String>,
    /// The database's own code, for faults found by the database.
    pub sqlstate: Option<String>,
}

impl RecordFault {
    /// The detail, behind the column that it is about.
    #[must_use]
    pub fn explained(&self) -> String {
        match &self.column {
            Some(column) => format!("{column}: {}", self.detail),
            None => self.detail.clone(),
        }
    }

    /// A fault of `stage` with a `detail` that quotes no value.
    pub fn new(stage: Stage, reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            stage,
            reason,
            detail: printable(detail.into()),
            column: None,
            constraint: None,
            sqlstate: None,
        }
    }

    /// Names the column, as `table.column`.
    #[must_use]
    pub fn in_column(mut self, table: &str, column: &str) -> Self {
        self.column = Some(format!("{table}.{column}"));
        self
    }
}

/// Text that every store takes and no log is flooded by: no NUL, at most [`MAX_DETAIL`] characters.
fn printable(detail: String) -> String {
    if detail.len() <= MAX_DETAIL && !detail.contains('\0') {
        return detail;
    }
    detail.chars().take(MAX_DETAIL).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}

/// The longest detail, in characters.
const MAX_DETAIL: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_is_short_and_has_no_nul() {
        let fault = RecordFault::new(Stage::Map, Reason::UnknownEvent, format!("a\0b{}", "x".repeat(5000)));
        assert!(fault.detail.starts_with("a\u{fffd}b") && fault.detail.chars().count() == MAX_DETAIL);
    }
}
