//! What is found while a projection file is read: mistakes, collected so that one run shows all of them, and warnings.

use std::fmt;

use crate::config::yaml::{Kind, Mistake, Node, Place, Style, suggestion};
use crate::projection::expression::{self, Expression, SourceText};

/// Something in a projection file that works, but perhaps not as its author thinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where it stands.
    pub place: Place,
    /// What may surprise: a lower-case fragment.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: warning: {}", self.place, self.message)
    }
}

/// A key or a value that a later release has: its name, and what to use until then.
pub(super) type Later = (&'static str, &'static str);

/// Mistakes and warnings so far.
pub(super) struct Notes<'t> {
    pub(super) source: SourceText<'t>,
    pub(super) mistakes: Vec<Mistake>,
    pub(super) warnings: Vec<Warning>,
}

impl<'t> Notes<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { source: SourceText(text), mistakes: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn mistake(&mut self, place: &Place, message: impl Into<String>, fix: impl Into<String>) {
        self.mistakes.push(Mistake::new(place, message).fix(fix));
    }

    pub(super) fn warn(&mut self, place: &Place, message: impl Into<String>) {
        self.warnings.push(Warning { place: place.clone(), message: message.into() });
    }

    /// The value, or nothing and one mistake more.
    pub(super) fn keep<T>(&mut self, result: Result<T, Mistake>) -> Option<T> {
        result.map_err(|mistake| self.mistakes.push(mistake)).ok()
    }

    /// Refuses every key that is not known, with the nearest one, and those of later releases by name.
    pub(super) fn only_keys(&mut self, node: &Node, what: &str, known: &[&str], later: &[Later]) {
        let Some(entries) = self.keep(node.map(what)) else { return };
        for entry in entries {
            let key = entry.key.as_str();
            if known.contains(&key) {
                continue;
            }
            if let Some((_, instead)) = later.iter().find(|(name, _)| *name == key) {
                self.mistake(&entry.place, format!("`{key}` in {what} is not in this release"), *instead);
            } else {
                let message = format!("unknown key `{key}` in {what}");
                self.mistake(&entry.place, message, suggestion(key, known));
            }
        }
    }

    /// One of several words.
    pub(super) fn choice<T: Clone>(
        &mut self,
        node: &Node,
        what: &str,
        choices: &[(&str, T)],
        later: &[Later],
    ) -> Option<T> {
        let text = self.keep(node.text(what))?;
        if let Some((_, chosen)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(chosen.clone());
        }
        if let Some((_, instead)) = later.iter().find(|(name, _)| *name == text) {
            self.mistake(&node.place, format!("`{what}: {text}` is not in this release"), *instead);
            return None;
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.mistake(&node.place, format!("`{what}: {text}` is not known"), suggestion(text, &names));
        None
    }

    /// An unquoted `true` or `false`.
    pub(super) fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        match &node.kind {
            Kind::Scalar { text, style: Style::Plain } if text == "true" => Some(true),
            Kind::Scalar { text, style: Style::Plain } if text == "false" => Some(false),
            _ => {
                self.mistake(&node.place, format!("`{what}` must be true or false"), "write true or false");
                None
            }
        }
    }

    /// A list of names.
    pub(super) fn names(&mut self, node: &Node, what: &str) -> Vec<(String, Place)> {
        let Some(items) = self.keep(node.list(what)) else { return Vec::new() };
        let mut names: Vec<(String, Place)> = Vec::with_capacity(items.len());
        for item in items {
            let Some(name) = self.keep(item.text(what)) else { continue };
            if names.iter().any(|(known, _)| known == name) {
                self.mistake(
                    &item.place,
                    format!("`{name}` stands twice in {what}"),
                    "remove one of the two",
                );
            } else {
                names.push((name.to_owned(), item.place.clone()));
            }
        }
        names
    }

    /// An expression.
    pub(super) fn expression(&mut self, node: &Node) -> Option<Expression> {
        let source = self.source;
        self.keep(expression::expression(node, source))
    }

    /// Refuses names that no database would keep as they are, and those that are the program's own.
    pub(super) fn check_identifier(&mut self, place: &Place, what: &str, name: &str) {
        if name.is_empty() || name.contains('\0') {
            self.mistake(place, format!("the name of a {what} is empty or has a NUL"), "give it a name");
        } else if name.len() > MAX_IDENTIFIER {
            let message = format!("the {what} name `{name}` is longer than {MAX_IDENTIFIER} bytes");
            self.mistake(place, message, "use a shorter name; databases cut longer ones");
        } else if name.to_lowercase().starts_with("projector_") {
            let message =
                format!("the {what} name `{name}` begins with `projector_`, as the program's own do");
            self.mistake(place, message, "use another name");
        }
    }
}

/// The longest identifier that PostgreSQL keeps, in bytes.
pub(super) const MAX_IDENTIFIER: usize = 63;
