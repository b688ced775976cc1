//! JSON text becomes values.
//!
//! A pull parser builds wanted fields only and walks over the rest. The whole text is checked all the same: valid
//! UTF-8, valid JSON, nesting and number of items within the limits. Numbers keep the digits of the source. Where an
//! object has a name twice, the last one wins.

use ahash::AHashMap;
use bytes::Bytes;
use bytestring::ByteString;
use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};

use super::Limits;
use super::fields::Fields;
use super::flaw::{Flaw, too_deep, too_many_items};
use crate::fault::Reason;
use crate::projection::{Value, Wanted, WantedFields};

/// The fields that are wanted of an object, with what is wanted of each: `None` is everything. Their names are made
/// once, not for each record.
#[derive(Debug)]
pub(super) struct WantedNames(AHashMap<ByteString, Option<WantedNames>>);

impl WantedNames {
    /// `None` where everything is wanted.
    pub(super) fn of(wanted: &Wanted) -> Option<Self> {
        match wanted {
            Wanted::All => None,
            Wanted::Fields(fields) => Some(Self::below(fields)),
        }
    }

    fn below(fields: &WantedFields) -> Self {
        let name = |(name, below): (&String, &WantedFields)| {
            (ByteString::from(&**name), (!below.0.is_empty()).then(|| Self::below(below)))
        };
        Self(fields.0.iter().map(name).collect())
    }
}

/// Decodes one JSON text; `wanted` is `None` where everything is.
pub(super) fn decode(text: &Bytes, wanted: Option<&WantedNames>, limits: Limits) -> Result<Value, Flaw> {
    // The parser does not look at the encoding of strings that it skips.
    let text = ByteString::try_from(text.clone()).map_err(|error| {
        let detail = format!("not valid UTF-8 from byte {} on", error.valid_up_to());
        Flaw::new(Reason::InvalidUtf8, detail)
    })?;
    let parser = Jiter::new(text.as_bytes());
    let mut reader = Reader { text: &text, parser, limits, items_left: limits.max_items };
    let first = reader.parser.peek().map_err(|error| flaw(&error))?;
    let value = reader.value(first, wanted, 0)?;
    reader.parser.finish().map_err(|error| flaw(&error))?;
    Ok(value)
}

struct Reader<'a> {
    text: &'a ByteString,
    parser: Jiter<'a>,
    limits: Limits,
    items_left: usize,
}

impl Reader<'_> {
    /// Reads the value that begins with `first`. `wanted` is `None` where everything is.
    fn value(&mut self, first: Peek, wanted: Option<&WantedNames>, depth: usize) -> Result<Value, Flaw> {
        match first {
            Peek::Null => self.parser.known_null().map(|()| Value::Null).map_err(|error| flaw(&error)),
            Peek::True | Peek::False => {
                self.parser.known_bool(first).map(Value::Bool).map_err(|error| flaw(&error))
            }
            Peek::String => self.string().map(Value::Text),
            Peek::Array => self.list(wanted, self.deeper(depth)?),
            Peek::Object => self.object(wanted, self.deeper(depth)?),
            _ => self.number(first),
        }
    }

    fn list(&mut self, wanted: Option<&WantedNames>, depth: usize) -> Result<Value, Flaw> {
        let mut items = Vec::new();
        let mut next = self.parser.known_array().map_err(|error| flaw(&error))?;
        while let Some(first) = next {
            self.count_item()?;
            items.push(self.value(first, wanted, depth)?);
            next = self.parser.array_step().map_err(|error| flaw(&error))?;
        }
        Ok(Value::List(items))
    }

    fn object(&mut self, wanted: Option<&WantedNames>, depth: usize) -> Result<Value, Flaw> {
        let mut fields = Fields::default();
        let mut place = Place::First;
        while let Some(name) = self.name(place, wanted)? {
            place = Place::Later;
            self.count_item()?;
            let first = self.parser.peek().map_err(|error| flaw(&error))?;
            match name {
                Name::Skipped => self.skip(first, depth)?,
                Name::Whole(name) => {
                    let value = self.value(first, None, depth)?;
                    fields.set(name, value);
                }
                Name::Wanted(name, below) => {
                    let value = self.value(first, below, depth).map_err(|flaw| flaw.within(name))?;
                    fields.set(name.clone(), value);
                }
            }
        }
        Ok(fields.into_value())
    }

    /// The next name of an object and what is wanted of its value; `None` at the object's end.
    fn name<'w>(&mut self, place: Place, wanted: Option<&'w WantedNames>) -> Result<Option<Name<'w>>, Flaw> {
        let name = match place {
            Place::First => self.parser.known_object(),
            Place::Later => self.parser.next_key(),
        };
        let Some(name) = name.map_err(|error| flaw(&error))? else { return Ok(None) };
        let Some(wanted) = wanted else { return Ok(Some(Name::Whole(shared(self.text, name)))) };
        Ok(Some(match wanted.0.get_key_value(name) {
            None => Name::Skipped,
            Some((name, below)) => Name::Wanted(name, below.as_ref()),
        }))
    }

    /// Walks over a value with the same checks as reading it, but builds nothing.
    fn skip(&mut self, first: Peek, depth: usize) -> Result<(), Flaw> {
        match first {
            Peek::Array => {
                let depth = self.deeper(depth)?;
                let mut next = self.parser.known_array().map_err(|error| flaw(&error))?;
                while let Some(first) = next {
                    self.count_item()?;
                    self.skip(first, depth)?;
                    next = self.parser.array_step().map_err(|error| flaw(&error))?;
                }
                Ok(())
            }
            Peek::Object => {
                let depth = self.deeper(depth)?;
                let mut name = self.parser.next_object_bytes().map_err(|error| flaw(&error))?.is_some();
                while name {
                    self.count_item()?;
                    let first = self.parser.peek().map_err(|error| flaw(&error))?;
                    self.skip(first, depth)?;
                    name = self.parser.next_key_bytes().map_err(|error| flaw(&error))?.is_some();
                }
                Ok(())
            }
            _ => self.parser.known_skip(first).map_err(|error| flaw(&error)),
        }
    }

    fn string(&mut self) -> Result<ByteString, Flaw> {
        let text = self.parser.known_str().map_err(|error| flaw(&error))?;
        Ok(shared(self.text, text))
    }

    /// A number: a plain integer of 64 bits, or the text of the source. `-0` is no integer: the sign would be lost.
    fn number(&mut self, first: Peek) -> Result<Value, Flaw> {
        let start = self.parser.current_index();
        self.parser.known_number_bytes(first).map_err(|error| flaw(&error))?;
        let text = &self.text[start..self.parser.current_index()];
        match text.parse::<i64>() {
            Ok(number) if text != "-0" => Ok(Value::Int(number)),
            _ => Ok(Value::Number(self.text.slice_ref(text))),
        }
    }

    fn deeper(&self, depth: usize) -> Result<usize, Flaw> {
        if depth < self.limits.max_depth { Ok(depth + 1) } else { Err(too_deep(self.limits.max_depth)) }
    }

    fn count_item(&mut self) -> Result<(), Flaw> {
        self.items_left =
            self.items_left.checked_sub(1).ok_or_else(|| too_many_items(self.limits.max_items))?;
        Ok(())
    }
}

/// Which name of an object is read.
#[derive(Clone, Copy)]
enum Place {
    First,
    Later,
}

/// A name in an object.
enum Name<'w> {
    /// Nobody wants its value.
    Skipped,
    /// Everything below is wanted because everything around is. The name is the producer's: it may be data.
    Whole(ByteString),
    /// The mapping names it; with what it wants of the value, `None` for everything.
    Wanted(&'w ByteString, Option<&'w WantedNames>),
}

/// The text as a part of the record's memory, if it is one: a string with escapes is not.
fn shared(record: &ByteString, text: &str) -> ByteString {
    let start = text.as_ptr().addr().wrapping_sub(record.as_ptr().addr());
    let part = start.checked_add(text.len()).and_then(|end| record.get(start..end));
    match part {
        Some(part) if part == text => record.slice_ref(part),
        _ => ByteString::from(text),
    }
}

fn flaw(error: &JiterError) -> Flaw {
    let at = error.index;
    match &error.error_type {
        JiterErrorType::JsonError(JsonErrorType::TrailingCharacters) => {
            Flaw::new(Reason::TrailingBytes, format!("something follows the JSON value from byte {at} on"))
        }
        JiterErrorType::JsonError(
            JsonErrorType::LoneLeadingSurrogateInHexEscape | JsonErrorType::UnexpectedEndOfHexEscape,
        ) => Flaw::new(
            Reason::InvalidUtf8,
            format!("a text has half of a surrogate pair as \\u escape at byte {at}, which is no character"),
        ),
        JiterErrorType::JsonError(JsonErrorType::InvalidUnicodeCodePoint) => {
            Flaw::new(Reason::InvalidUtf8, format!("not valid UTF-8 at byte {at}"))
        }
        // The parser's messages name what it expected; they quote nothing of the text.
        JiterErrorType::JsonError(kind) => {
            Flaw::new(Reason::InvalidJson, format!("not valid JSON at byte {at}: {kind}"))
        }
        JiterErrorType::WrongType { .. } => {
            Flaw::new(Reason::InvalidJson, format!("not valid JSON at byte {at}: expected value"))
        }
    }
}
