//! JSON text becomes values.
//!
//! A pull parser builds wanted fields only and walks over the rest. The whole text is checked all the same: valid
//! UTF-8, valid JSON, nesting and number of items within the limits. Numbers keep the digits of the source. Where an
//! object has a name twice, the last one wins.

use bytes::Bytes;
use bytestring::ByteString;
use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};

use super::Limits;
use super::fields::Fields;
use super::flaw::{Flaw, too_deep, too_many_items};
use crate::fault::Reason;
use crate::projection::{Value, Wanted, WantedFields};

/// Decodes one JSON text.
pub(super) fn decode(text: &Bytes, wanted: &Wanted, limits: Limits) -> Result<Value, Flaw> {
    // The parser does not look at the encoding of strings that it skips.
    if let Err(error) = std::str::from_utf8(text) {
        let detail = format!("not valid UTF-8 from byte {} on", error.valid_up_to());
        return Err(Flaw::new(Reason::InvalidUtf8, detail));
    }
    let mut reader = Reader { text, parser: Jiter::new(text), limits, items_left: limits.max_items };
    let wanted = match wanted {
        Wanted::All => None,
        Wanted::Fields(fields) => Some(fields),
    };
    let first = reader.parser.peek().map_err(|error| flaw(&error))?;
    let value = reader.value(first, wanted, 0)?;
    reader.parser.finish().map_err(|error| flaw(&error))?;
    Ok(value)
}

struct Reader<'a> {
    text: &'a Bytes,
    parser: Jiter<'a>,
    limits: Limits,
    items_left: usize,
}

impl Reader<'_> {
    /// Reads the value that begins with `first`. `wanted` is `None` where everything is.
    fn value(&mut self, first: Peek, wanted: Option<&WantedFields>, depth: usize) -> Result<Value, Flaw> {
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

    fn list(&mut self, wanted: Option<&WantedFields>, depth: usize) -> Result<Value, Flaw> {
        let mut items = Vec::new();
        let mut next = self.parser.known_array().map_err(|error| flaw(&error))?;
        while let Some(first) = next {
            self.count_item()?;
            items.push(self.value(first, wanted, depth)?);
            next = self.parser.array_step().map_err(|error| flaw(&error))?;
        }
        Ok(Value::List(items))
    }

    fn object(&mut self, wanted: Option<&WantedFields>, depth: usize) -> Result<Value, Flaw> {
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
                    let value = self.value(first, below, depth).map_err(|flaw| flaw.within(&name))?;
                    fields.set(name, value);
                }
            }
        }
        Ok(fields.into_value())
    }

    /// The next name of an object and what is wanted of its value; `None` at the object's end.
    fn name<'w>(&mut self, place: Place, wanted: Option<&'w WantedFields>) -> Result<Option<Name<'w>>, Flaw> {
        let name = match place {
            Place::First => self.parser.known_object(),
            Place::Later => self.parser.next_key(),
        };
        let Some(name) = name.map_err(|error| flaw(&error))? else { return Ok(None) };
        let Some(wanted) = wanted else { return Ok(Some(Name::Whole(ByteString::from(name)))) };
        Ok(Some(match wanted.0.get(name) {
            None => Name::Skipped,
            Some(below) => Name::Wanted(ByteString::from(name), (!below.0.is_empty()).then_some(below)),
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

    /// A string; one without escapes shares the record's bytes.
    fn string(&mut self) -> Result<ByteString, Flaw> {
        let start = self.parser.current_index() + 1;
        let text = self.parser.known_str().map_err(|error| flaw(&error))?;
        let end = start + text.len();
        if self.text.get(start..end) == Some(text.as_bytes())
            && let Ok(shared) = ByteString::try_from(self.text.slice(start..end))
        {
            return Ok(shared);
        }
        Ok(ByteString::from(text))
    }

    /// A number: a plain integer of 64 bits, or the text of the source. `-0` is no integer: the sign would be lost.
    fn number(&mut self, first: Peek) -> Result<Value, Flaw> {
        let start = self.parser.current_index();
        self.parser.known_number_bytes(first).map_err(|error| flaw(&error))?;
        let source = self.text.slice(start..self.parser.current_index());
        let text = ByteString::try_from(source).map_err(|_| not_utf8())?;
        match text.parse::<i64>() {
            Ok(number) if &*text != "-0" => Ok(Value::Int(number)),
            _ => Ok(Value::Number(text)),
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
    Wanted(ByteString, Option<&'w WantedFields>),
}

fn not_utf8() -> Flaw {
    Flaw::new(Reason::InvalidUtf8, "not valid UTF-8")
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
        JiterErrorType::JsonError(JsonErrorType::InvalidUnicodeCodePoint) => not_utf8(),
        // The parser's messages name what it expected; they quote nothing of the text.
        JiterErrorType::JsonError(kind) => {
            Flaw::new(Reason::InvalidJson, format!("not valid JSON at byte {at}: {kind}"))
        }
        JiterErrorType::WrongType { .. } => {
            Flaw::new(Reason::InvalidJson, format!("not valid JSON at byte {at}: expected value"))
        }
    }
}
