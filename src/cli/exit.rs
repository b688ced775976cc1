//! How a command ends: exit codes and errors, in one place.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::app::AppError;
use crate::config::yaml::Mistake;
use crate::count::counted;
use crate::http::HttpError;
use crate::pipeline::service::PrepareError;
use crate::status::StatusError;
use crate::store::{DatabaseCode, StoreError};
use crate::versions::RetireError;

/// The exit codes. Stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done.
    Done,
    /// 1: failed while running.
    Failed,
    /// 2: usage or configuration.
    Usage,
    /// 3: a difference was found.
    Difference,
    /// 4: refused, or not ready.
    Refused,
}

impl Exit {
    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Difference => 3,
            Self::Refused => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command did not do what was asked.
#[derive(Debug)]
pub enum Failure {
    /// Files are wrong.
    Mistakes(Vec<Mistake>),
    /// Anything else, with its chain of causes and what to do next.
    Error {
        /// The exit code.
        exit: Exit,
        /// What happened, and why.
        error: anyhow::Error,
        /// What to do next, where the error itself doesn't say.
        next: Option<String>,
    },
}

impl Failure {
    /// The command line asks for something that isn't there.
    pub(super) fn usage(problem: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Error { exit: Exit::Usage, error: anyhow::Error::msg(problem.into()), next: Some(next.into()) }
    }

    /// The request is refused because of what is there.
    pub(super) fn refused(problem: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Error {
            exit: Exit::Refused,
            error: anyhow::Error::msg(problem.into()),
            next: Some(next.into()),
        }
    }

    /// Something failed that has a chain of causes.
    pub(super) fn failed(error: impl Into<anyhow::Error>, next: impl Into<String>) -> Self {
        Self::Error { exit: Exit::Failed, error: error.into(), next: Some(next.into()) }
    }

    /// The exit code.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Mistakes(_) => Exit::Usage,
            Self::Error { exit, .. } => *exit,
        }
    }

    /// What a person reads on standard error.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        match self {
            Self::Mistakes(mistakes) => {
                for mistake in mistakes {
                    let _ = writeln!(text, "{mistake}");
                }
                let them = if mistakes.len() == 1 { "it" } else { "them" };
                let count = counted(mistakes.len(), "mistake");
                let _ = writeln!(text, "error: {count}; mend {them} and run `projector check`");
            }
            Self::Error { error, next, .. } => {
                let _ = writeln!(text, "error: {error}");
                for cause in error.chain().skip(1) {
                    let _ = writeln!(text, "  because: {cause}");
                }
                if let Some(next) = next {
                    let _ = writeln!(text, "  next: {next}");
                }
            }
        }
        text
    }

    /// What a program reads on standard output with `--json`.
    #[must_use]
    pub fn object(&self) -> FailureObject {
        match self {
            Self::Mistakes(mistakes) => FailureObject {
                error: counted(mistakes.len(), "mistake"),
                because: vec![],
                next: Some("mend them and run `projector check`".into()),
                mistakes: mistakes.iter().map(MistakeObject::of).collect(),
                exit_code: self.exit().code(),
            },
            Self::Error { error, next, exit } => FailureObject {
                error: error.to_string(),
                because: error.chain().skip(1).map(ToString::to_string).collect(),
                next: next.clone(),
                mistakes: vec![],
                exit_code: exit.code(),
            },
        }
    }
}

/// A failure in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailureObject {
    /// What happened.
    pub error: String,
    /// Why, from the nearest cause to the first.
    pub because: Vec<String>,
    /// What to do next.
    pub next: Option<String>,
    /// Mistakes in files.
    pub mistakes: Vec<MistakeObject>,
    /// The exit code.
    pub exit_code: u8,
}

/// A mistake, or a warning, in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MistakeObject {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub fix: Option<String>,
}

impl MistakeObject {
    /// The mistake as an object.
    #[must_use]
    pub fn of(mistake: &Mistake) -> Self {
        Self {
            file: mistake.place.file.display().to_string(),
            line: mistake.place.line,
            column: mistake.place.column,
            message: mistake.message.clone(),
            fix: mistake.fix.clone(),
        }
    }
}

impl From<Vec<Mistake>> for Failure {
    fn from(mistakes: Vec<Mistake>) -> Self {
        Self::Mistakes(mistakes)
    }
}

impl From<AppError> for Failure {
    fn from(error: AppError) -> Self {
        if let AppError::Mistakes(mistakes) = error {
            return Self::Mistakes(mistakes);
        }
        let (exit, next) = match &error {
            AppError::Refused { .. } => (Exit::Refused, None),
            AppError::Store { source, .. } => of_store(source),
            AppError::Kafka { source, .. } => of_kafka(source),
            AppError::Http(HttpError::Serve(_)) => {
                (Exit::Failed, Some("see why the system ended the listener, and start again".into()))
            }
            // What is wrong before joining ends the process as a matter of configuration.
            AppError::Prepare(PrepareError::Store(source) | PrepareError::Register { source, .. }) => {
                (Exit::Usage, of_store(source).1)
            }
            AppError::Prepare(PrepareError::Kafka(source)) => (Exit::Usage, of_kafka(source).1),
            AppError::Configuration { .. }
            | AppError::Http(HttpError::Bind { .. })
            | AppError::Prepare(_)
            | AppError::Mistakes(_) => (Exit::Usage, None),
            AppError::Demo(_) => (Exit::Failed, Some("run it again; `-v` tells more".into())),
        };
        Self::Error { exit, error: error.into(), next }
    }
}

impl From<RetireError> for Failure {
    fn from(error: RetireError) -> Self {
        let (exit, next) = match &error {
            RetireError::Unknown { .. } => {
                (Exit::Refused, Some("`projector status` lists what is there".into()))
            }
            RetireError::Store { source, .. } => of_store(source),
        };
        Self::Error { exit, error: error.into(), next }
    }
}

impl From<StatusError> for Failure {
    fn from(error: StatusError) -> Self {
        let (exit, next) = match &error {
            StatusError::Store(source) => of_store(source),
            StatusError::Slow => (Exit::Failed, Some(UNREACHABLE.into())),
        };
        Self::Error { exit, error: error.into(), next }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (exit, next) = of_store(&error);
        Self::Error { exit, error: error.into(), next }
    }
}

const UNREACHABLE: &str =
    "see that the database runs and that `store.url` reaches it from here; then try again";

/// What to do about an error of the store, where it does not say so itself.
pub(crate) fn advice_on_store(error: &StoreError) -> Option<String> {
    of_store(error).1
}

/// What to do about an error of Kafka, where it does not say so itself.
pub(crate) fn advice_on_kafka(error: &crate::source::SourceError) -> Option<String> {
    of_kafka(error).1
}

/// Exit code and advice for an error of the store that ends a command.
fn of_store(error: &StoreError) -> (Exit, Option<String>) {
    match error {
        StoreError::Layout { .. } | StoreError::View { .. } => (Exit::Usage, None),
        StoreError::Refused { .. } => (Exit::Refused, None),
        StoreError::Connection { .. } => (Exit::Failed, Some(UNREACHABLE.into())),
        StoreError::CommitUnknown => (
            Exit::Failed,
            Some("see with `projector status` whether it was done, and try again if not".into()),
        ),
        StoreError::Database { code, .. } => of_database(code),
        StoreError::ForeignRow { .. } | StoreError::Bug { .. } => {
            (Exit::Failed, Some("this is a mistake in the program: please report it with this text".into()))
        }
    }
}

fn of_database(code: &DatabaseCode) -> (Exit, Option<String>) {
    let DatabaseCode::SqlState(state) = code else {
        return (Exit::Failed, Some("see that the file of `store.url` can be read and written".into()));
    };
    let (exit, next) = match state.get(..2) {
        Some("28") => (Exit::Usage, "check user and password of `store.url`"),
        Some("3D") => (Exit::Usage, "create the database that `store.url` names"),
        Some("3F") => (Exit::Usage, "create the schema that `store.schema` names"),
        Some("42") if state == "42501" => (Exit::Usage, "grant the right to the user of `store.url`"),
        Some("42") => (
            Exit::Usage,
            "the projector's tables are missing or differ: `projector run` makes them; with `store.ddl: verify`, somebody runs what `projector ddl` prints",
        ),
        _ => (Exit::Failed, "the SQLSTATE says what the database lacks; try again when that is mended"),
    };
    (exit, Some(next.to_owned()))
}

/// Exit code and advice for an error of Kafka that ends a command.
fn of_kafka(error: &crate::source::SourceError) -> (Exit, Option<String>) {
    use crate::source::SourceError as E;
    match error {
        E::Unavailable { .. } => (
            Exit::Failed,
            Some("see that a broker runs and that `kafka.bootstrap_servers` reaches it from here".into()),
        ),
        E::MissingTopic { .. } | E::Forbidden { .. } => (Exit::Usage, None),
        E::Setting { .. } => (Exit::Usage, Some("correct the setting in the `kafka` section".into())),
        E::NotAMember { .. } => (Exit::Failed, Some("try again".into())),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::yaml::Place;

    #[test]
    fn the_codes_are_as_documented() {
        let all = [Exit::Done, Exit::Failed, Exit::Usage, Exit::Difference, Exit::Refused];
        assert_eq!(all.map(Exit::code), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn an_error_is_printed_with_its_causes_and_what_to_do_next() {
        let failure = Failure::from(AppError::Store {
            action: "open the store",
            source: StoreError::Connection { action: "connect", detail: "connection refused".into() },
        });
        assert_eq!(failure.exit(), Exit::Failed);
        insta::assert_snapshot!(failure.text(), @"
        error: cannot open the store
          because: no answer from the database on trying to connect: connection refused
          next: see that the database runs and that `store.url` reaches it from here; then try again
        ");
        insta::assert_snapshot!(serde_json::to_string_pretty(&failure.object()).expect("plain"), @r#"
        {
          "error": "cannot open the store",
          "because": [
            "no answer from the database on trying to connect: connection refused"
          ],
          "next": "see that the database runs and that `store.url` reaches it from here; then try again",
          "mistakes": [],
          "exit_code": 1
        }
        "#);
    }

    #[test]
    fn mistakes_are_printed_with_place_and_fix() {
        let place = Place { file: Arc::from(Path::new("p.yaml")), line: 3, column: 7 };
        let failure =
            Failure::from(vec![Mistake::new(&place, "unknown key `topik`").fix("did you mean `topic`?")]);
        assert_eq!(failure.exit(), Exit::Usage);
        insta::assert_snapshot!(failure.text(), @"
        p.yaml:3:7: unknown key `topik`
            fix: did you mean `topic`?
        error: 1 mistake; mend it and run `projector check`
        ");
    }

    #[test]
    fn a_wrong_password_is_a_matter_of_configuration_and_an_outage_is_not() {
        let with = |state: &str| {
            Failure::from(StoreError::Database {
                action: "connect",
                code: DatabaseCode::SqlState(state.into()),
                place: crate::store::error::ErrorPlace::default(),
            })
            .exit()
        };
        assert_eq!((with("28P01"), with("3D000"), with("42P01")), (Exit::Usage, Exit::Usage, Exit::Usage));
        assert_eq!((with("57P03"), with("53300")), (Exit::Failed, Exit::Failed));
    }
}
