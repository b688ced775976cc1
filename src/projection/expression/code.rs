//! The compiled form of a CEL expression.

use bytestring::ByteString;
use regex::Regex;

use super::function::Function;
use super::{Reads, Root};
use crate::projection::Value;

/// A part of an expression.
#[derive(Debug)]
pub(super) struct Node {
    /// What it does.
    pub(super) code: Code,
    /// Its text or operator, for messages.
    pub(super) label: Box<str>,
}

#[derive(Debug)]
pub(super) enum Code {
    Literal(Value),
    Variable(Root),
    /// A header, by name.
    Header(String, Access),
    /// A variable of a macro, counted from the outermost.
    Local(usize),
    Field(Box<Node>, ByteString, Access),
    Index(Box<Node>, Box<Node>, Access),
    Not(Box<Node>),
    Negate(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Conditional(Box<[Node; 3]>),
    Binary(Binary, Box<Node>, Box<Node>),
    List(Vec<Node>),
    Record(Vec<(ByteString, Node)>),
    Each(Each, Box<Node>, Box<Node>),
    Coalesce(Vec<Node>),
    /// `optional.none()`
    Absent,
    /// `optional.of(x)`
    Present(Box<Node>),
    /// The first argument, else the second: `orValue` and `or` of an optional.
    OrElse(Box<Node>, Box<Node>),
    Matches(Box<Node>, Regex),
    Call(Function, Vec<Node>),
}

/// How something is looked up that may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Absent is a failure.
    Needed,
    /// Absent is an optional without value.
    Optional,
    /// Only whether it is there.
    Presence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
}

/// What a macro does with each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Each {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
}

impl Node {
    /// Adds what this part and everything below it reads.
    pub(super) fn add_reads(&self, reads: &mut Reads) {
        if let Some(path) = self.value_path() {
            if path.is_empty() {
                reads.whole_value = true;
            } else {
                reads.fields.push(path);
            }
            return;
        }
        match &self.code {
            Code::Variable(Root::Key) => reads.key = true,
            Code::Variable(_) | Code::Literal(_) | Code::Header(..) | Code::Local(_) | Code::Absent => {}
            Code::Field(below, ..)
            | Code::Not(below)
            | Code::Negate(below)
            | Code::Matches(below, _)
            | Code::Present(below) => {
                below.add_reads(reads);
            }
            Code::Index(a, b, _)
            | Code::And(a, b)
            | Code::Or(a, b)
            | Code::Binary(_, a, b)
            | Code::Each(_, a, b)
            | Code::OrElse(a, b) => {
                a.add_reads(reads);
                b.add_reads(reads);
            }
            Code::Conditional(parts) => add_all(parts.as_slice(), reads),
            Code::List(parts) | Code::Coalesce(parts) | Code::Call(_, parts) => add_all(parts, reads),
            Code::Record(entries) => {
                for (_, part) in entries {
                    part.add_reads(reads);
                }
            }
        }
    }

    /// The path below `value`, where this is a chain of fields that begins there.
    fn value_path(&self) -> Option<Vec<String>> {
        match &self.code {
            Code::Variable(Root::Value) => Some(Vec::new()),
            Code::Field(below, name, _) => {
                let mut path = below.value_path()?;
                path.push(name.to_string());
                Some(path)
            }
            _ => None,
        }
    }
}

impl Node {
    /// Whether this gives an optional, as its form shows: `or` then keeps an optional, `orValue` takes its value.
    pub(super) fn gives_optional(&self) -> bool {
        match &self.code {
            Code::Field(below, _, access) => {
                *access == Access::Optional || (*access == Access::Needed && below.gives_optional())
            }
            Code::Index(below, _, access) => *access == Access::Optional || below.gives_optional(),
            Code::Header(_, access) => *access == Access::Optional,
            Code::OrElse(_, otherwise) => otherwise.gives_optional(),
            Code::Absent | Code::Present(_) => true,
            _ => false,
        }
    }
}

fn add_all(parts: &[Node], reads: &mut Reads) {
    for part in parts {
        part.add_reads(reads);
    }
}
