//! Plain paths: `value.price.cents`, `key`, `headers["event-type"]`, read without an interpreter.

use std::borrow::Cow;
use std::fmt;

use bytestring::ByteString;

use super::{Failure, Problem, Reads, with_article};
use crate::config::yaml::suggestion;
use crate::fault::Reason;
use crate::projection::{Event, Value};

/// What an expression can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The decoded key.
    Key,
    /// The decoded value.
    Value,
    /// The headers, as text.
    Headers,
    /// The topic's name.
    Topic,
    /// The partition's number.
    Partition,
    /// The record's offset.
    Offset,
    /// The record's time.
    Timestamp,
}

/// The names of all variables, for messages.
pub(super) const VARIABLES: &[&str] =
    &["key", "value", "headers", "topic", "partition", "offset", "timestamp"];

impl Root {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "key" => Self::Key,
            "value" => Self::Value,
            "headers" => Self::Headers,
            "topic" => Self::Topic,
            "partition" => Self::Partition,
            "offset" => Self::Offset,
            "timestamp" => Self::Timestamp,
            _ => return None,
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Value => "value",
            Self::Headers => "headers",
            Self::Topic => "topic",
            Self::Partition => "partition",
            Self::Offset => "offset",
            Self::Timestamp => "timestamp",
        }
    }

    /// The variable's value; `None` where the record has none. Never called for headers.
    pub(super) fn get<'a>(self, event: &Event<'a>) -> Option<Cow<'a, Value>> {
        let coordinates = &event.record.coordinates;
        match self {
            Self::Key => event.key.map(Cow::Borrowed),
            Self::Value => event.value.map(Cow::Borrowed),
            Self::Headers => None,
            Self::Topic => Some(Cow::Owned(Value::from(&*coordinates.topic_partition.topic))),
            Self::Partition => Some(Cow::Owned(Value::Int(coordinates.topic_partition.partition.into()))),
            Self::Offset => Some(Cow::Owned(Value::Int(coordinates.offset.get()))),
            Self::Timestamp => {
                let millis = event.record.timestamp.millis()?;
                // A time that no calendar has stays a number, which no column of times takes.
                let value = millis.checked_mul(1000).map_or(Value::Int(millis), Value::TimestampTz);
                Some(Cow::Owned(value))
            }
        }
    }
}

/// A plain path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Where it begins.
    pub root: Root,
    /// The fields below, one after the other; exactly one for headers.
    pub fields: Vec<String>,
}

impl Path {
    /// Reads a plain path; `None` where the text is some other expression.
    ///
    /// # Errors
    /// The text has the form of a path but names something that is not there.
    pub fn parse(text: &str) -> Result<Option<Self>, Problem> {
        let Some((name, fields)) = split(text.trim()) else { return Ok(None) };
        let Some(root) = Root::named(name) else {
            if matches!(name, "true" | "false" | "null" | "optional") || text.trim().starts_with('.') {
                return Ok(None);
            }
            return Err(unknown_variable(name, fields.is_empty(), 0));
        };
        check_fields(root, fields.len(), fields.first().map(String::as_str))?;
        Ok(Some(Self { root, fields }))
    }

    /// The path of a field of what this one names.
    #[must_use]
    pub fn below(&self, field: &str) -> Self {
        let fields = self.fields.iter().map(String::as_str).chain([field]);
        Self { root: self.root, fields: fields.map(str::to_owned).collect() }
    }

    /// The value for one event; `None` is absent.
    ///
    /// # Errors
    /// A field of something that has no fields, or a header that is no text.
    pub fn get<'a>(&self, event: &Event<'a>) -> Result<Option<Cow<'a, Value>>, Failure> {
        if self.root == Root::Headers {
            return self.fields.first().map_or(Ok(None), |name| header(event, name));
        }
        let value = match self.root {
            Root::Key => event.key,
            Root::Value => event.value,
            root => return Ok(root.get(event)),
        };
        let Some(mut current) = value else { return Ok(None) };
        for (depth, field) in self.fields.iter().enumerate() {
            current = match current {
                Value::Record(_) => match current.field(field) {
                    Some(below) => below,
                    None => return Ok(None),
                },
                Value::Null => return Ok(Some(Cow::Borrowed(current))),
                other => {
                    let above = Self { root: self.root, fields: self.fields[..depth].to_vec() };
                    let detail = format!("`{above}` is {}, it has no field `{field}`", with_article(other));
                    return Err(Failure::expression(detail));
                }
            };
        }
        Ok(Some(Cow::Borrowed(current)))
    }

    pub(super) fn add_reads(&self, reads: &mut Reads) {
        match self.root {
            Root::Key => reads.key = true,
            Root::Value if self.fields.is_empty() => reads.whole_value = true,
            Root::Value => reads.fields.push(self.fields.clone()),
            _ => {}
        }
    }
}

/// Printed in one form, whichever way it was written.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.root.name())?;
        for field in &self.fields {
            if is_identifier(field) {
                write!(f, ".{field}")?;
            } else {
                write!(f, "[{field:?}]")?;
            }
        }
        Ok(())
    }
}

/// The header `name` as text: absent, null, or text.
pub(super) fn header<'a>(event: &Event<'a>, name: &str) -> Result<Option<Cow<'a, Value>>, Failure> {
    let Some(header) = event.record.headers.iter().rev().find(|header| header.name == name) else {
        return Ok(None);
    };
    let Some(bytes) = &header.value else { return Ok(Some(Cow::Owned(Value::Null))) };
    match ByteString::try_from(bytes.clone()) {
        Ok(text) => Ok(Some(Cow::Owned(Value::Text(text)))),
        Err(_) => Err(Failure::new(Reason::InvalidUtf8, format!("the header `{name}` is not valid UTF-8"))),
    }
}

/// Refuses `headers` without a name and fields of variables that have none.
pub(super) fn check_fields(root: Root, count: usize, first: Option<&str>) -> Result<(), Problem> {
    let name = root.name();
    match (root, count) {
        (Root::Key | Root::Value, _) | (Root::Headers, 1) => Ok(()),
        (Root::Headers, 0) => {
            Err(Problem::new(0, "`headers` as a whole is no value").fix("name one: headers[\"event-type\"]"))
        }
        (Root::Headers, _) => {
            Err(Problem::new(0, format!("the header `{}` is a text, it has no fields", first.unwrap_or(""))))
        }
        (_, 0) => Ok(()),
        _ => Err(Problem::new(0, format!("`{name}` has no fields")).fix(format!("write `{name}` alone"))),
    }
}

/// The mistake of a name that is no variable; a bare word is most often a text that lost its quotes.
pub(super) fn unknown_variable(name: &str, bare: bool, at: usize) -> Problem {
    let problem = Problem::new(at, format!("`{name}` is not a variable"));
    let near = suggestion(name, VARIABLES);
    let quoted = format!("for the text write \"'{name}'\" or {{text: {name}}}");
    match (near.starts_with("did you mean"), bare) {
        (true, true) => problem.fix(format!("{near} {quoted}")),
        (true, false) => problem.fix(near),
        (false, true) => problem.fix(format!("{quoted}; variables are {}", VARIABLES.join(", "))),
        (false, false) => problem
            .fix(format!("variables are {}; fields of the event begin with `value.`", VARIABLES.join(", "))),
    }
}

pub(super) fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Splits `name.field["other field"]`; `None` where the text has another form.
fn split(text: &str) -> Option<(&str, Vec<String>)> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    if !is_identifier(name) {
        return None;
    }
    let mut fields = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (field, next) = after.split_at(end);
            if !is_identifier(field) || matches!(field, "in" | "true" | "false" | "null") {
                return None;
            }
            fields.push(field.to_owned());
            rest = next;
        } else {
            let after = rest.strip_prefix('[')?;
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let (field, next) = after[1..].split_once(quote)?;
            if field.contains('\\') {
                return None;
            }
            fields.push(field.to_owned());
            rest = next.strip_prefix(']')?;
        }
    }
    Some((name, fields))
}
