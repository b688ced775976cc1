//! Expressions: literals, plain paths compiled to direct access, and CEL for the rest.
//!
//! The grammar is CEL's, parsed by the `cel` crate; the tree is compiled to [`code`](self) of our own and run by
//! [`machine`](self), for three reasons. Numbers stay exact: whole numbers of 64 bits, decimals of any length, and a
//! double only where the event has one. Work and memory are bounded ([`budget`](self)). And a failure says which part of
//! the expression failed without quoting a value (promise P10).
//!
//! What is absent: a plain path to an absent field is absent, and so is the optional `value.?a`. Inside an expression an
//! absent field is [`Reason::MissingField`]. A field of an explicit null is null in a plain path, missing in an expression.

mod budget;
mod code;
mod compile;
mod function;
mod instant;
mod machine;
mod number;
mod operator;
mod path;
mod scalar;
mod syntax;
mod text_form;

use std::borrow::Cow;

pub use path::{Path, Root};
pub use scalar::{SourceText, explain, expression, is_json_scalar};
pub use text_form::text_of;

use super::{Event, Value};
use crate::fault::{Reason, RecordFault, Stage};

/// An expression, checked and compiled.
#[derive(Debug)]
pub struct Expression {
    form: Form,
    text: String,
}

#[derive(Debug)]
enum Form {
    Literal(Value),
    Path(Path),
    Computed(code::Node),
}

/// A mistake in the text of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where in the text, in bytes from its start.
    pub at: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead, where that is known.
    pub fix: Option<String>,
}

impl Problem {
    fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), fix: None }
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Why an expression has no value for one event. Quotes no value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Why.
    pub reason: Reason,
    /// Which part of the expression, and what was wrong with it.
    pub detail: String,
}

impl Failure {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    fn expression(detail: impl Into<String>) -> Self {
        Self::new(Reason::ExpressionFailed, detail)
    }

    fn missing(detail: impl Into<String>) -> Self {
        Self::new(Reason::MissingField, detail)
    }
}

impl From<Failure> for RecordFault {
    fn from(failure: Failure) -> Self {
        Self::new(Stage::Map, failure.reason, failure.detail)
    }
}

/// What an expression reads of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// Whether it reads the key.
    pub key: bool,
    /// Whether it reads the value as a whole.
    pub whole_value: bool,
    /// The paths into the value that it reads.
    pub fields: Vec<Vec<String>>,
}

impl Reads {
    /// Whether the expression reads the value at all.
    #[must_use]
    pub fn value(&self) -> bool {
        self.whole_value || !self.fields.is_empty()
    }
}

impl Expression {
    /// A literal that was written as such, not as an expression.
    #[must_use]
    pub fn literal(value: Value, text: impl Into<String>) -> Self {
        Self { form: Form::Literal(value), text: text.into() }
    }

    /// The record's key as a whole: the default aggregate.
    #[must_use]
    pub fn key() -> Self {
        Self::path(Path { root: Root::Key, fields: Vec::new() })
    }

    /// A plain path.
    #[must_use]
    pub fn path(path: Path) -> Self {
        Self { text: path.to_string(), form: Form::Path(path) }
    }

    /// Compiles the text of an expression.
    ///
    /// # Errors
    /// Syntax, unknown names and functions, wrong numbers of arguments, and expressions that are too large.
    pub fn compile(text: &str) -> Result<Self, Problem> {
        let form = match Path::parse(text)? {
            Some(path) => Form::Path(path),
            None => match compile::compile(text)? {
                code::Node { code: code::Code::Literal(value), .. } => Form::Literal(value),
                node => Form::Computed(node),
            },
        };
        Ok(Self { form, text: text.trim().to_owned() })
    }

    /// The value for one event; `None` is absent.
    ///
    /// # Errors
    /// A missing field inside an expression, wrong types, overflow, division by zero, too much work.
    pub fn evaluate<'a>(&'a self, event: &'a Event<'a>) -> Result<Option<Cow<'a, Value>>, Failure> {
        match &self.form {
            Form::Literal(value) => Ok(Some(Cow::Borrowed(value))),
            Form::Path(path) => path.get(event),
            Form::Computed(node) => machine::run(node, event),
        }
    }

    /// The value as a condition.
    ///
    /// # Errors
    /// As [`evaluate`](Self::evaluate), and where the value is absent or no boolean.
    pub fn is_true(&self, event: &Event<'_>) -> Result<bool, Failure> {
        match self.evaluate(event)?.as_deref() {
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => {
                Err(Failure::expression(format!("`{}` is {}, not a boolean", self.text, with_article(other))))
            }
            None => Err(Failure::missing(format!("`{}` is absent", self.text))),
        }
    }

    /// What the expression reads of an event.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        match &self.form {
            Form::Literal(_) => {}
            Form::Path(path) => path.add_reads(&mut reads),
            Form::Computed(node) => node.add_reads(&mut reads),
        }
        reads
    }

    /// The literal value, if this is a literal.
    #[must_use]
    pub fn as_literal(&self) -> Option<&Value> {
        match &self.form {
            Form::Literal(value) => Some(value),
            _ => None,
        }
    }

    /// The plain path, if this is one.
    #[must_use]
    pub fn as_path(&self) -> Option<&Path> {
        match &self.form {
            Form::Path(path) => Some(path),
            _ => None,
        }
    }

    /// The text, as written but for spaces around it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A rendering that is the same for expressions that are written differently but surely mean the same, such as
    /// `headers.x` and `headers["x"]`. Part of the digest.
    #[must_use]
    pub fn canonical(&self) -> String {
        match &self.form {
            Form::Literal(value) => format!("literal {}", text_form::literal_form(value)),
            Form::Path(path) => format!("path {path}"),
            Form::Computed(_) => format!("cel {}", self.text),
        }
    }
}

/// A duration such as `2m` or `1h30m`, in microseconds; `None` where the text has another form.
pub(crate) fn duration_micros(text: &str) -> Option<i64> {
    instant::duration(text).ok()
}

/// "an integer", "text": what a value is, for messages.
pub(crate) fn with_article(value: &Value) -> String {
    match value.kind() {
        kind @ ("null" | "text" | "bytes") => kind.to_owned(),
        kind if kind.starts_with(['a', 'e', 'i', 'o']) => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

#[cfg(test)]
mod tests;
