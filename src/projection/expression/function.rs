//! The functions of expressions.

use std::borrow::Cow;

use bytestring::ByteString;

use super::budget::Budget;
use super::machine::Term;
use super::number::{Exact, Number};
use super::{Failure, instant, text_form};
use crate::projection::Value;

macro_rules! functions {
    ($($name:ident = $text:literal $style:ident $least:literal..=$most:literal,)+) => {
        /// A function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($name,)+ }

        /// Name, how it is called, fewest and most arguments beside the receiver, and the function.
        pub(super) const FUNCTIONS: &[(&str, Style, usize, usize, Function)] =
            &[$(($text, Style::$style, $least, $most, Function::$name),)+];
    };
}

/// How a function is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `size(x)`
    Global,
    /// `x.trim()`
    Member,
}

functions! {
    Size = "size" Global 1..=1,
    Int = "int" Global 1..=1,
    Double = "double" Global 1..=1,
    Decimal = "decimal" Global 1..=1,
    String = "string" Global 1..=1,
    Timestamp = "timestamp" Global 1..=1,
    Duration = "duration" Global 1..=1,
    FromSeconds = "timestampFromSeconds" Global 1..=1,
    FromMillis = "timestampFromMillis" Global 1..=1,
    FromMicros = "timestampFromMicros" Global 1..=1,
    SizeOf = "size" Member 0..=0,
    Contains = "contains" Member 1..=1,
    StartsWith = "startsWith" Member 1..=1,
    EndsWith = "endsWith" Member 1..=1,
    IndexOf = "indexOf" Member 1..=1,
    LastIndexOf = "lastIndexOf" Member 1..=1,
    LowerAscii = "lowerAscii" Member 0..=0,
    UpperAscii = "upperAscii" Member 0..=0,
    Trim = "trim" Member 0..=0,
    Split = "split" Member 1..=2,
    Join = "join" Member 0..=1,
    Replace = "replace" Member 2..=3,
    Substring = "substring" Member 1..=2,
    Sum = "sum" Member 0..=0,
    HasValue = "hasValue" Member 0..=0,
    TakeValue = "value" Member 0..=0,
    Year = "getFullYear" Member 0..=0,
    Month = "getMonth" Member 0..=0,
    DayOfMonth = "getDate" Member 0..=0,
    DayOfYear = "getDayOfYear" Member 0..=0,
    DayOfWeek = "getDayOfWeek" Member 0..=0,
    Hours = "getHours" Member 0..=0,
    Minutes = "getMinutes" Member 0..=0,
    Seconds = "getSeconds" Member 0..=0,
    Milliseconds = "getMilliseconds" Member 0..=0,
}

/// Macros and special forms, which are known besides [`FUNCTIONS`].
pub(super) const FORMS: &[&str] = &[
    "has",
    "coalesce",
    "matches",
    "orValue",
    "or",
    "all",
    "exists",
    "exists_one",
    "existsOne",
    "map",
    "filter",
];

/// Calls a function; the receiver of a member is the first argument.
pub(super) fn call<'a>(
    function: Function,
    arguments: &[Term<'a>],
    budget: &mut Budget,
) -> Result<Term<'a>, Failure> {
    let Some((first, rest)) = arguments.split_first() else {
        return Err(Failure::expression("a function without arguments"));
    };
    match function {
        Function::HasValue => return Ok(Term::bool(!matches!(first, Term::Optional(None)))),
        Function::TakeValue => return taken(first),
        Function::Duration => return duration(first),
        _ => {}
    }
    if let Term::Duration(micros) = first {
        return instant::part_of_duration(function, *micros).map(|part| Term::owned(Value::Int(part)));
    }
    let value = first.value()?;
    match function {
        Function::Size | Function::SizeOf => size(value, budget).map(Term::owned),
        Function::Int => int(value).map(Term::owned),
        Function::Double => double(value).map(Term::owned),
        Function::Decimal => decimal(value).map(Term::owned),
        Function::String => {
            let text = text_form::scalar(value)
                .ok_or_else(|| Failure::expression(needs("string", "a single value", value)))?;
            budget.bytes(text.len())?;
            Ok(Term::owned(Value::Text(text)))
        }
        Function::Timestamp => instant::timestamp(value).map(Term::owned),
        Function::FromSeconds => instant::from_units(value, 1_000_000).map(Term::owned),
        Function::FromMillis => instant::from_units(value, 1_000).map(Term::owned),
        Function::FromMicros => instant::from_units(value, 1).map(Term::owned),
        Function::Join => join(value, rest, budget),
        Function::Sum => sum(value, budget).map(Term::owned),
        Function::Year
        | Function::Month
        | Function::DayOfMonth
        | Function::DayOfYear
        | Function::DayOfWeek
        | Function::Hours
        | Function::Minutes
        | Function::Seconds
        | Function::Milliseconds => {
            instant::part_of_time(function, value).map(|part| Term::owned(Value::Int(part)))
        }
        _ => of_text(function, value, rest, budget),
    }
}

/// Functions whose receiver is a text.
fn of_text<'a>(
    function: Function,
    receiver: &Value,
    rest: &[Term<'a>],
    budget: &mut Budget,
) -> Result<Term<'a>, Failure> {
    let name = FUNCTIONS.iter().find(|known| known.4 == function).map_or("", |known| known.0);
    let subject = text(receiver, name)?;
    budget.text(subject.len())?;
    let argument = |index: usize| -> Result<&ByteString, Failure> {
        let term =
            rest.get(index).ok_or_else(|| Failure::expression(format!("`{name}` needs an argument")))?;
        text(term.value()?, name)
    };
    Ok(match function {
        Function::Contains => Term::bool(subject.contains(&**argument(0)?)),
        Function::StartsWith => Term::bool(subject.starts_with(&**argument(0)?)),
        Function::EndsWith => Term::bool(subject.ends_with(&**argument(0)?)),
        Function::IndexOf => position(subject, subject.find(&**argument(0)?)),
        Function::LastIndexOf => position(subject, subject.rfind(&**argument(0)?)),
        Function::LowerAscii | Function::UpperAscii => {
            budget.bytes(subject.len())?;
            let lower = function == Function::LowerAscii;
            Term::text(if lower { subject.to_ascii_lowercase() } else { subject.to_ascii_uppercase() })
        }
        Function::Trim => Term::owned(Value::Text(subject.slice_ref(subject.trim()))),
        Function::Split => {
            let separator = argument(0)?;
            let most = rest.get(1).map(|term| whole(term.value()?, name)).transpose()?;
            split(subject, separator, most, budget)?
        }
        Function::Replace => {
            let most = rest.get(2).map(|term| whole(term.value()?, name)).transpose()?;
            replace(subject, argument(0)?, argument(1)?, most, budget)?
        }
        Function::Substring => {
            let from = rest.first().map(|term| whole(term.value()?, name)).transpose()?.unwrap_or(0);
            let to = rest.get(1).map(|term| whole(term.value()?, name)).transpose()?;
            substring(subject, from, to)?
        }
        other => return Err(Failure::expression(format!("`{other:?}` is not a function of a text"))),
    })
}

fn needs(name: &str, what: &str, value: &Value) -> String {
    format!("`{name}` needs {what}, not {}", super::with_article(value))
}

fn text<'t>(value: &'t Value, name: &str) -> Result<&'t ByteString, Failure> {
    match value {
        Value::Text(text) => Ok(text),
        other => Err(Failure::expression(needs(name, "text", other))),
    }
}

fn whole(value: &Value, name: &str) -> Result<i64, Failure> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(Failure::expression(needs(name, "an integer", other))),
    }
}

fn taken<'a>(term: &Term<'a>) -> Result<Term<'a>, Failure> {
    match term {
        Term::Optional(Some(value)) => Ok(Term::Value(value.clone())),
        Term::Optional(None) => Err(Failure::missing("`value()` of an optional that is absent")),
        _ => Err(Failure::expression("`value()` needs an optional such as `value.?field`")),
    }
}

fn duration<'a>(term: &Term<'a>) -> Result<Term<'a>, Failure> {
    match term {
        Term::Duration(micros) => Ok(Term::Duration(*micros)),
        other => instant::duration(text(other.value()?, "duration")?).map(Term::Duration),
    }
}

fn size(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    let size = match value {
        Value::Text(text) => {
            budget.text(text.len())?;
            text.chars().count()
        }
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.len(),
        Value::Record(fields) => fields.len(),
        other => return Err(Failure::expression(needs("size", "text, bytes, a list or a record", other))),
    };
    Ok(Value::Int(i64::try_from(size).unwrap_or(i64::MAX)))
}

fn int(value: &Value) -> Result<Value, Failure> {
    let out_of_range = || Failure::expression("`int` of a number beyond 64 bits");
    let number = match value {
        Value::Text(text) => {
            text.parse().map_err(|_| Failure::expression("`int` of a text that is no whole number"))?
        }
        Value::TimestampTz(micros) => micros.div_euclid(1_000_000),
        other => match Number::read(other)? {
            Some(number) => number.truncated().ok_or_else(out_of_range)?,
            None => return Err(Failure::expression(needs("int", "a number, a text or a timestamp", other))),
        },
    };
    Ok(Value::Int(number))
}

fn double(value: &Value) -> Result<Value, Failure> {
    let refused = || Failure::expression("`double` of a text that is no number");
    match value {
        Value::Double(_) => Ok(value.clone()),
        Value::Text(text) => text.parse().map(Value::Double).map_err(|_| refused()),
        other => match Number::read(other)? {
            Some(number) => Ok(Value::Double(number.nearest_double())),
            None => Err(Failure::expression(needs("double", "a number or a text", other))),
        },
    }
}

fn decimal(value: &Value) -> Result<Value, Failure> {
    match value {
        Value::Text(text) => Exact::parse(text)
            .map(Exact::into_value)
            .ok_or_else(|| Failure::expression("`decimal` of a text that is no decimal number")),
        Value::Double(_) => {
            Err(Failure::expression("`decimal` of a double: it is not exact; send a decimal or a text"))
        }
        other => match Number::read(other)? {
            Some(number) => number
                .exact()
                .map(Exact::into_value)
                .ok_or_else(|| Failure::expression("`decimal` of a number that is not finite")),
            None => Err(Failure::expression(needs("decimal", "a number or a text", other))),
        },
    }
}

fn sum(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    let Value::List(items) = value else {
        return Err(Failure::expression(needs("sum", "a list of numbers", value)));
    };
    let mut total = Number::Whole(0);
    for item in items {
        budget.steps(1)?;
        let number = Number::read(item)?
            .ok_or_else(|| Failure::expression(needs("sum", "a list of numbers", item)))?;
        total = if let (Number::Whole(0), true) = (&total, matches!(number, Number::Float(_))) {
            number
        } else {
            total.add(number)?
        };
    }
    Ok(total.into_value())
}

/// An index in characters, or -1.
fn position<'a>(subject: &str, found: Option<usize>) -> Term<'a> {
    let index = found.map_or(-1, |bytes| i64::try_from(subject[..bytes].chars().count()).unwrap_or(i64::MAX));
    Term::owned(Value::Int(index))
}

fn split<'a>(
    subject: &ByteString,
    separator: &str,
    most: Option<i64>,
    budget: &mut Budget,
) -> Result<Term<'a>, Failure> {
    let limit = match most {
        None => usize::MAX,
        Some(negative) if negative < 0 => usize::MAX,
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let mut items = Vec::new();
    let parts: Box<dyn Iterator<Item = &str>> = if limit == 0 {
        Box::new(std::iter::empty())
    } else if separator.is_empty() {
        Box::new(subject.char_indices().map(|(at, c)| &subject[at..at + c.len_utf8()]).take(limit))
    } else {
        Box::new(subject.splitn(limit, separator))
    };
    for part in parts {
        budget.bytes(size_of::<Value>())?;
        items.push(Value::Text(subject.slice_ref(part)));
    }
    Ok(Term::owned(Value::List(items)))
}

fn join<'a>(value: &Value, rest: &[Term<'a>], budget: &mut Budget) -> Result<Term<'a>, Failure> {
    let Value::List(items) = value else {
        return Err(Failure::expression(needs("join", "a list of texts", value)));
    };
    let separator = match rest.first() {
        Some(term) => text(term.value()?, "join")?,
        None => &ByteString::new(),
    };
    let mut joined = String::new();
    for (index, item) in items.iter().enumerate() {
        let part = text(item, "join")?;
        budget.bytes(part.len() + separator.len())?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(part);
    }
    Ok(Term::text(joined))
}

fn replace<'a>(
    subject: &str,
    from: &str,
    to: &str,
    most: Option<i64>,
    budget: &mut Budget,
) -> Result<Term<'a>, Failure> {
    let limit = most.filter(|most| *most >= 0).map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(0));
    budget.bytes(subject.len())?;
    let mut replaced = String::with_capacity(subject.len());
    let mut end = 0;
    for (at, found) in subject.match_indices(from).take(limit) {
        budget.bytes(to.len())?;
        replaced.push_str(&subject[end..at]);
        replaced.push_str(to);
        end = at + found.len();
    }
    replaced.push_str(&subject[end..]);
    Ok(Term::text(replaced))
}

/// Characters `from..to`, counted from 0.
fn substring<'a>(subject: &ByteString, from: i64, to: Option<i64>) -> Result<Term<'a>, Failure> {
    let outside = || Failure::expression("`substring` outside of the text");
    let at = |index: i64| -> Option<usize> {
        let index = usize::try_from(index).ok()?;
        subject.char_indices().map(|(at, _)| at).chain([subject.len()]).nth(index)
    };
    let start = at(from).ok_or_else(outside)?;
    let end = to.map_or(Some(subject.len()), at).ok_or_else(outside)?;
    let part = subject.get(start..end).ok_or_else(outside)?;
    Ok(Term::Value(Cow::Owned(Value::Text(subject.slice_ref(part)))))
}
