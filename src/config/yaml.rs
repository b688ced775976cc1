//! YAML as a tree of nodes that keep their place, their source text and whether they were quoted.
//!
//! Both of projector's YAML files are read through this tree: a scalar is never turned into a number or a boolean here
//! (`1.10`, `on` and `0x1F` stay text), every mistake can name its line and column, and unknown keys are refused with
//! the nearest known one. Anchors, aliases, tags and several documents in a file are refused: none of our files needs
//! them, and an alias bomb is then no concern.

mod hint;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span};

pub use super::mistake::{Mistake, Place};

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Where the node begins.
    pub place: Place,
    /// What it is.
    pub kind: Kind,
}

/// The three kinds of node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A scalar with its source text, not interpreted.
    Scalar {
        /// The text: of a quoted or block scalar, its content.
        text: String,
        /// Whether it was written without quotes and not as a block.
        style: Style,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order of the file; no key twice.
    Map(Vec<Entry>),
}

/// How a scalar was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without quotes.
    Plain,
    /// In single or double quotes, or as a block (`|`, `>`).
    Quoted,
}

/// One entry of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// Where the key stands.
    pub place: Place,
    /// The value.
    pub value: Node,
}

/// The deepest nesting that is read.
const MAX_DEPTH: usize = 64;

/// Reads one YAML document.
///
/// # Errors
/// The first mistake of syntax, a key written twice, or a feature that our files don't use.
pub fn parse(file: &Path, text: &str) -> Result<Node, Mistake> {
    let file: Arc<Path> = Arc::from(PathBuf::from(file));
    let mut reader = Reader {
        file: file.clone(),
        text,
        parser: Parser::new_from_str(text),
        last: Place { file, line: 1, column: 1 },
    };
    let mut document = None;
    loop {
        let (event, place) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
            Event::StreamEnd => break,
            event if document.is_none() => document = Some(reader.node(event, place, 0)?),
            _ => {
                return Err(
                    Mistake::new(&place, "a second document in the file").fix("keep one document a file")
                );
            }
        }
    }
    document.ok_or_else(|| Mistake::new(&reader.last, "the file is empty"))
}

struct Reader<'input> {
    file: Arc<Path>,
    text: &'input str,
    parser: Parser<'input, granit_parser::StrInput<'input>>,
    last: Place,
}

impl<'input> Reader<'input> {
    fn place(&self, span: &Span) -> Place {
        Place { file: self.file.clone(), line: span.start.line(), column: span.start.col() + 1 }
    }

    /// The next event that is not a comment.
    fn next(&mut self) -> Result<(Event<'input>, Place), Mistake> {
        loop {
            match self.parser.next() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok((event, span))) => {
                    self.last = self.place(&span);
                    return Ok((event, self.last.clone()));
                }
                Some(Err(error)) => {
                    let marker = error.marker();
                    let (line, column) = (marker.line(), marker.col() + 1);
                    let place = Place { file: self.file.clone(), line, column };
                    let fix = hint::hint(self.text, line, column, &error.info());
                    return Err(Mistake {
                        fix,
                        ..Mistake::new(&place, format!("not valid YAML: {}", error.info()))
                    });
                }
                None => return Ok((Event::StreamEnd, self.last.clone())),
            }
        }
    }

    fn node(&mut self, event: Event<'input>, place: Place, depth: usize) -> Result<Node, Mistake> {
        if depth > MAX_DEPTH {
            return Err(Mistake::new(&place, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        if event.tag().is_some() || event.anchor_id().is_some() {
            return Err(
                Mistake::new(&place, "tags (`!`) and anchors (`&`) are not used here").fix("quote the text")
            );
        }
        match event {
            Event::Scalar(text, style, ..) => {
                let style = if style == ScalarStyle::Plain { Style::Plain } else { Style::Quoted };
                Ok(Node { place, kind: Kind::Scalar { text: text.into_owned(), style } })
            }
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => return Ok(Node { place, kind: Kind::List(items) }),
                        (event, at) => items.push(self.node(event, at, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => {
                let mut entries: Vec<Entry> = Vec::new();
                loop {
                    let (event, at) = self.next()?;
                    let key = match event {
                        Event::MappingEnd => return Ok(Node { place, kind: Kind::Map(entries) }),
                        Event::Scalar(key, ..) => key.into_owned(),
                        _ => return Err(Mistake::new(&at, "a key must be a plain text").fix("quote the key")),
                    };
                    if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                        let message =
                            format!("the key `{key}` stands twice, first in line {}", first.place.line);
                        let fix = "remove one of the two, or put what stands under both under one";
                        return Err(Mistake::new(&at, message).fix(fix));
                    }
                    let (event, value_at) = self.next()?;
                    let value = self.node(event, value_at, depth + 1)?;
                    entries.push(Entry { key, place: at, value });
                }
            }
            Event::Alias(..) | Event::UnresolvedAlias(..) => {
                Err(Mistake::new(&place, "aliases (`*`) are not used here").fix("quote the text"))
            }
            _ => Err(Mistake::new(&place, "the file ends in the middle of a value")),
        }
    }
}

impl Node {
    /// The text of a scalar, quoted or not.
    ///
    /// # Errors
    /// The node is a list or a mapping; `what` names it in the message.
    pub fn text(&self, what: &str) -> Result<&str, Mistake> {
        match &self.kind {
            Kind::Scalar { text, .. } => Ok(text),
            other => Err(Mistake::new(&self.place, format!("{what} must be a text, not {}", other.name()))
                .fix("write one value there, in quotes where it holds `: `, ` #` or brackets")),
        }
    }

    /// The items of a list.
    ///
    /// # Errors
    /// The node is something else.
    pub fn list(&self, what: &str) -> Result<&[Node], Mistake> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            other => Err(Mistake::new(&self.place, format!("{what} must be a list, not {}", other.name()))
                .fix(match other {
                    Kind::Scalar { text, style: Style::Plain } if !text.is_empty() => {
                        format!("write [{text}]")
                    }
                    _ => "begin each item with `- `, or write [a, b]".to_owned(),
                })),
        }
    }

    /// The entries of a mapping, in the order of the file.
    ///
    /// # Errors
    /// The node is something else.
    pub fn map(&self, what: &str) -> Result<&[Entry], Mistake> {
        match &self.kind {
            Kind::Map(entries) => Ok(entries),
            other => {
                Err(Mistake::new(&self.place, format!("{what} must be a mapping, not {}", other.name())).fix(
                    match other {
                        Kind::List(_) => "write one `key: value` a line, without `- ` in front",
                        _ => "write one `key: value` a line below it, or { key: value }",
                    },
                ))
            }
        }
    }

    /// The value of `key` in a mapping; `None` where the key is absent or the node is no mapping.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value),
            _ => None,
        }
    }

    /// Whether the node is an unquoted `null`, `~` or nothing at all.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, style: Style::Plain } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// Refuses keys outside `known`, with the nearest known key as the suggestion.
    ///
    /// # Errors
    /// The node is no mapping, or has a key that is not known.
    pub fn only_keys(&self, what: &str, known: &[&str]) -> Result<(), Mistake> {
        for entry in self.map(what)? {
            if !known.contains(&entry.key.as_str()) {
                let mistake = Mistake::new(&entry.place, format!("unknown key `{}` in {what}", entry.key));
                return Err(mistake.fix(suggestion(&entry.key, known)));
            }
        }
        Ok(())
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Scalar { .. } => "a single value",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// "did you mean …" where one of `known` is near to `word`, otherwise the whole list.
#[must_use]
pub fn suggestion(word: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4);
    match nearest {
        Some((_, candidate)) => format!("did you mean `{candidate}`?"),
        None if known.is_empty() => "declare it first".to_owned(),
        None => format!("use one of {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Node, Mistake> {
        parse(Path::new("p.yaml"), text)
    }

    #[test]
    fn scalars_keep_their_source_text_and_style() {
        let node = read("a: 1.10\nb: 'on'\nc: off\n").expect("valid");
        let a = node.get("a").expect("a");
        assert_eq!(a.kind, Kind::Scalar { text: "1.10".into(), style: Style::Plain });
        assert_eq!(node.get("b").expect("b").kind, Kind::Scalar { text: "on".into(), style: Style::Quoted });
        assert_eq!(node.get("c").expect("c").text("c"), Ok("off"));
    }

    #[test]
    fn an_unknown_key_is_refused_with_place_and_suggestion() {
        let node = read("sources:\n  - topik: x\n").expect("valid");
        let item = &node.get("sources").expect("sources").list("sources").expect("list")[0];
        let mistake = item.only_keys("a source", &["topic", "format"]).expect_err("unknown");
        assert_eq!(
            mistake.to_string(),
            "p.yaml:2:5: unknown key `topik` in a source\n    fix: did you mean `topic`?"
        );
    }

    #[test]
    fn a_key_written_twice_is_a_mistake_at_the_second() {
        let mistake = read("a: 1\nb: 2\na: 3\n").expect_err("twice");
        assert_eq!((mistake.place.line, mistake.place.column), (3, 1));
    }

    #[test]
    fn what_is_not_yaml_gets_a_fix_from_the_lines_around() {
        for (text, line, fix) in [
            (
                "a: 1\n  b: 2\n",
                2,
                "line 1 has a value already, so nothing can stand below it: give `b` 0 spaces, as line 1",
            ),
            (
                "e:\n  - u: s\n      k: 1\n",
                3,
                "line 2 has a value already, so nothing can stand below it: give `k` 4 spaces, as line 2",
            ),
            (
                "e:\n  P:\n    - u: s\n     k: 1\n",
                4,
                "it has 5 spaces in front, and no line that it can belong to: give it 6 spaces as line 3, \
                 or 2 spaces as line 2, or 0 spaces as line 1",
            ),
            (
                "s:\n  - t: a\n - t: b\n",
                3,
                "it has 1 space in front, and no line that it can belong to: give it 2 spaces as line 2",
            ),
            (
                "a: 1\n- b: 2\n",
                2,
                "remove the `- `: the lines around it are keys with values, not items of a list",
            ),
            ("a 1\nb: 2\n", 2, "line 1 is no `key: value`: put a colon behind its key"),
            ("a: 1\nb\nc: 2\n", 2, "write a key with its value: `key: value`"),
            ("a:\n\t- b\n", 2, "indent with spaces, not with tabs"),
            ("a: [{ b: 1 }\nc: 2\n", 2, "close the bracket `[` or `{` that is open in a line above"),
        ] {
            let mistake = read(text).expect_err(text);
            assert_eq!((mistake.place.line, mistake.fix.as_deref()), (line, Some(fix)), "{text}");
        }
        assert_eq!(read("a: b: c\n").expect_err("two").fix, None, "quotes are lacking, and no spaces");
    }

    #[test]
    fn aliases_anchors_and_tags_are_refused() {
        for text in ["a: &x 1\n", "a: !t 1\n", "a: *x\n"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_a_mistake_and_not_a_crash() {
        let text = "[".repeat(5000);
        assert!(read(&text).is_err());
    }
}
