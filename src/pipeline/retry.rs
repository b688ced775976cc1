//! The only place where errors are classified (design: section 8), and the delays between attempts.
//!
//! [`classify`] says what a store's error means for the partitions it hit. A [`RecordFault`] can come out of it only for
//! the codes that blame the data of a statement; everything else waits, or is a bug (promise P4).

use std::time::Duration;

use crate::dead_letter::publisher::PublishError;
use crate::decode::registry::RegistryError;
use crate::fault::{Reason, RecordFault, Stage};
use crate::source::SourceError;
use crate::store::error::ErrorPlace;
use crate::store::{DatabaseCode, StoreError};
use crate::telemetry::RetryClass;

/// What a store's error means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// The data of one of the records is refused.
    Record(Box<RecordFault>),
    /// Something outside is not there right now; it is waited for.
    Infrastructure(Relief),
    /// Somebody has to mend something; it is waited for, more patiently.
    Operator,
    /// A mistake in this program, or an answer that nobody has thought of.
    Bug,
}

/// What may help when an infrastructure fault comes twice running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relief {
    /// Only time.
    Wait,
    /// A smaller batch: time-outs, deadlocks and memory.
    SmallerBatch,
}

/// Classifies an error of applying a batch.
#[must_use]
pub fn classify(error: &StoreError) -> Class {
    match error {
        StoreError::Database { code: DatabaseCode::SqlState(state), place, .. } => of_sqlstate(state, place),
        StoreError::Database { code: DatabaseCode::Sqlite(code), place, .. } => of_sqlite(*code, place),
        StoreError::Connection { .. } | StoreError::CommitUnknown => Class::Infrastructure(Relief::Wait),
        StoreError::ForeignRow { table } => Class::Record(Box::new(RecordFault::new(
            Stage::Apply,
            Reason::ForeignRow,
            format!(
                "the row of table {table} belongs to another aggregate; a row must get all of its events from one"
            ),
        ))),
        StoreError::Layout { .. } | StoreError::View { .. } | StoreError::Refused { .. } => Class::Operator,
        StoreError::Bug { .. } => Class::Bug,
    }
}

/// Of what is tried again whatever the error is: whether that passes by itself. What must not happen passes by nobody's
/// waiting.
#[must_use]
pub fn class_of_store(error: &StoreError) -> RetryClass {
    match classify(error) {
        Class::Infrastructure(_) => RetryClass::Infrastructure,
        Class::Operator | Class::Record(_) | Class::Bug => RetryClass::Operator,
    }
}

/// As [`class_of_store`], of a registry. An id that it does not know yet is waited for.
#[must_use]
pub const fn class_of_registry(error: &RegistryError) -> RetryClass {
    match error {
        RegistryError::Unknown { .. } | RegistryError::Unavailable { .. } => RetryClass::Infrastructure,
        RegistryError::Refused { .. } | RegistryError::Unusable { .. } => RetryClass::Operator,
    }
}

/// As [`class_of_store`], of Kafka.
#[must_use]
pub const fn class_of_source(error: &SourceError) -> RetryClass {
    match error {
        SourceError::Unavailable { .. } | SourceError::NotAMember { .. } => RetryClass::Infrastructure,
        SourceError::MissingTopic { .. } | SourceError::Forbidden { .. } | SourceError::Setting { .. } => {
            RetryClass::Operator
        }
    }
}

/// As [`class_of_store`], of the dead-letter topic.
#[must_use]
pub const fn class_of_publishing(error: &PublishError) -> RetryClass {
    match error {
        PublishError::Unavailable { .. } => RetryClass::Infrastructure,
        PublishError::MissingTopic { .. } | PublishError::Forbidden { .. } => RetryClass::Operator,
    }
}

fn of_sqlstate(state: &str, place: &ErrorPlace) -> Class {
    let fault = |reason| Class::Record(Box::new(refusal(reason, state, place)));
    match (state.get(..2).unwrap_or_default(), state) {
        (_, "23505") => fault(Reason::UniqueViolation),
        (_, "23503") => fault(Reason::ForeignKeyViolation),
        (_, "23502") => fault(Reason::NotNull),
        (_, "23514" | "23P01") => fault(Reason::CheckViolation),
        (_, "22001") => fault(Reason::ValueTooLong),
        (_, "22003") => fault(Reason::ValueOutOfRange),
        (_, "22021" | "22P05") => fault(Reason::NulInText),
        (_, "44000" | "P0001") | ("22" | "23", _) => fault(Reason::RefusedByDatabase),
        (_, "54001" | "54011" | "54023" | "21000" | "25P02") => Class::Bug,
        ("54", _) => fault(Reason::ProgramLimit),
        (_, "57014" | "55P03" | "40P01" | "53200") => Class::Infrastructure(Relief::SmallerBatch),
        (_, "25006" | "25P03" | "25P04" | "0A000") | ("08" | "40" | "53" | "57" | "58", _) => {
            Class::Infrastructure(Relief::Wait)
        }
        ("28" | "3D" | "3F" | "42", _) => Class::Operator,
        _ => Class::Bug,
    }
}

/// SQLite's primary result codes are the low byte of the extended ones.
fn of_sqlite(code: i32, place: &ErrorPlace) -> Class {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const NOMEM: i32 = 7;
    const READONLY: i32 = 8;
    const IOERR: i32 = 10;
    const FULL: i32 = 13;
    const CANTOPEN: i32 = 14;
    const TOOBIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    const PERM: i32 = 3;
    const AUTH: i32 = 23;
    const NOTADB: i32 = 26;
    const CONSTRAINT_CHECK: i32 = 275;
    const CONSTRAINT_FOREIGN_KEY: i32 = 787;
    const CONSTRAINT_NOT_NULL: i32 = 1299;
    const CONSTRAINT_PRIMARY_KEY: i32 = 1555;
    const CONSTRAINT_UNIQUE: i32 = 2067;

    let fault = |reason| Class::Record(Box::new(refusal(reason, &format!("sqlite {code}"), place)));
    match (code & 0xff, code) {
        (_, CONSTRAINT_UNIQUE | CONSTRAINT_PRIMARY_KEY) => fault(Reason::UniqueViolation),
        (_, CONSTRAINT_FOREIGN_KEY) => fault(Reason::ForeignKeyViolation),
        (_, CONSTRAINT_NOT_NULL) => fault(Reason::NotNull),
        (_, CONSTRAINT_CHECK) => fault(Reason::CheckViolation),
        (CONSTRAINT | MISMATCH, _) => fault(Reason::RefusedByDatabase),
        (TOOBIG, _) => fault(Reason::ProgramLimit),
        (BUSY | LOCKED | IOERR | FULL | NOMEM, _) => Class::Infrastructure(Relief::Wait),
        (READONLY | CANTOPEN | PERM | AUTH | NOTADB, _) => Class::Operator,
        _ => Class::Bug,
    }
}

fn refusal(reason: Reason, code: &str, place: &ErrorPlace) -> RecordFault {
    let mut fault =
        RecordFault::new(Stage::Apply, reason, format!("the database refused the row: {code}{place}"));
    fault.sqlstate = Some(code.to_owned());
    fault.constraint.clone_from(&place.constraint);
    fault.column = match (&place.table, &place.column) {
        (Some(table), Some(column)) => Some(format!("{table}.{column}")),
        (_, column) => column.clone(),
    };
    fault
}

/// Growing delays with jitter between attempts of the same thing.
#[derive(Debug, Clone)]
pub struct Backoff {
    attempts: u32,
    ceiling: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(100);

    /// Delays from 100 ms, doubled each time, up to `ceiling`.
    #[must_use]
    pub const fn up_to(ceiling: Duration) -> Self {
        Self { attempts: 0, ceiling }
    }

    /// Attempts that have failed so far.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The delay before the next attempt; `jitter` in 0..=1 takes away up to half of it.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let doubled = Self::FIRST.saturating_mul(1_u32 << self.attempts.min(16)).min(self.ceiling);
        self.attempts = self.attempts.saturating_add(1);
        doubled.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }
}

/// A number in 0..1 that differs from call to call; enough to keep instances from retrying in step.
#[must_use]
pub fn jitter() -> f64 {
    let (_, random) = uuid::Uuid::new_v4().as_u64_pair();
    f64::from(u32::try_from(random & 0xffff).unwrap_or(0)) / 65536.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlstate(code: &str) -> Class {
        classify(&StoreError::Database {
            action: "apply a batch",
            code: DatabaseCode::SqlState(code.to_owned()),
            place: ErrorPlace::default(),
        })
    }

    #[test]
    fn only_codes_that_blame_the_data_become_record_faults() {
        for code in ["22003", "22P02", "23505", "23503", "23514", "44000", "54000", "P0001"] {
            assert!(matches!(sqlstate(code), Class::Record(_)), "{code}");
        }
        for code in [
            "08006", "25006", "25P03", "40001", "40P01", "53100", "53300", "55P03", "57P01", "57P03",
            "58030", "0A000",
        ] {
            assert!(matches!(sqlstate(code), Class::Infrastructure(_)), "{code}");
        }
        for code in ["28P01", "3D000", "3F000", "42501", "42P01", "42703"] {
            assert_eq!(sqlstate(code), Class::Operator, "{code}");
        }
        for code in ["21000", "25P02", "54001", "54011", "54023", "XX000", "", "é"] {
            assert_eq!(sqlstate(code), Class::Bug, "{code}");
        }
    }

    #[test]
    fn what_is_tried_again_is_classed_by_its_cause_and_not_by_its_place() {
        let refused = RegistryError::Refused { why: "it answers 401".into() };
        let down = RegistryError::Unavailable { why: "no connection".into(), source: None };
        assert_eq!(class_of_registry(&refused), RetryClass::Operator);
        assert_eq!(class_of_registry(&down), RetryClass::Infrastructure);
        let forbidden = SourceError::Forbidden { action: "join", detail: String::new() };
        assert_eq!(class_of_source(&forbidden), RetryClass::Operator);
        let password = StoreError::Database {
            action: "claim a partition",
            code: DatabaseCode::SqlState("28P01".into()),
            place: ErrorPlace::default(),
        };
        assert_eq!(class_of_store(&password), RetryClass::Operator);
        assert_eq!(class_of_store(&StoreError::CommitUnknown), RetryClass::Infrastructure);
        let missing = PublishError::MissingTopic { topic: "p.orders.dlq".into() };
        assert_eq!(class_of_publishing(&missing), RetryClass::Operator);
    }

    #[test]
    fn a_refusal_names_code_and_constraint() {
        let place = ErrorPlace {
            constraint: Some("users_email_key".into()),
            table: Some("users__v1".into()),
            column: None,
        };
        let Class::Record(fault) = of_sqlstate("23505", &place) else { panic!("a record fault") };
        assert_eq!(fault.reason, Reason::UniqueViolation);
        assert_eq!(fault.constraint.as_deref(), Some("users_email_key"));
        assert_eq!(fault.sqlstate.as_deref(), Some("23505"));
    }

    #[test]
    fn delays_double_up_to_the_ceiling() {
        let mut backoff = Backoff::up_to(Duration::from_secs(1));
        let delays: Vec<u128> = (0..6).map(|_| backoff.next(0.0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.next(1.0).as_millis(), 500);
    }
}
