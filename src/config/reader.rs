//! Reads sections of the tree and gathers every mistake on the way.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::substitute::{Substituted, Surroundings, substitute};
use super::units;
use super::yaml::{Entry, Kind, Mistake, Node, Place, suggestion};

/// A section of the file: a mapping, or nothing where the file has none.
#[derive(Clone, Copy)]
pub(super) struct Section<'n> {
    /// Its path in messages: `kafka`, `store`; of the file itself, nothing.
    name: &'static str,
    entries: &'n [Entry],
    /// Where it stands; where the file has none, where its parent does.
    place: &'n Place,
}

/// A scalar with everything put in.
pub(super) struct Scalar<'n> {
    /// Where it stands.
    pub(super) place: &'n Place,
    /// Its text.
    pub(super) text: String,
    /// What messages may quote.
    pub(super) shown: String,
}

/// What reading needs, and the mistakes so far.
pub(super) struct Reader<'a> {
    folder: &'a Path,
    surroundings: &'a dyn Surroundings,
    mistakes: Vec<Mistake>,
}

impl<'n> Section<'n> {
    /// Where the value of `key` stands; where it has none, the section.
    pub(super) fn place_of(&self, key: &str) -> &'n Place {
        self.get(key).map_or(self.place, |node| &node.place)
    }

    /// The value of `key`, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then_some(&entry.value)
    }

    /// Whether the file has the key, be it null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}

/// Keys that are described and not in this release: section, key, and what to do instead.
const LATER: &[(&str, &str, &str)] = &[
    (
        "the configuration",
        "promotion",
        "leave it out: a first version is shown once it has caught up; another one begins after `projector retire`",
    ),
    (
        "`dead_letter`",
        "breaker",
        "leave it out; `on_error: quarantine` in the projection stops at the first record that cannot be used",
    ),
    ("`dead_letter`", "retain", "leave it out: dead letters are kept until their version is retired"),
];

fn unknown_key(entry: &Entry, what: &str, known: &[&str]) -> Mistake {
    let key = entry.key.as_str();
    match LATER.iter().find(|(section, later, _)| *section == what && *later == key) {
        Some((.., instead)) => {
            Mistake::new(&entry.place, format!("`{key}` in {what} is not in this release")).fix(*instead)
        }
        None => {
            Mistake::new(&entry.place, format!("unknown key `{key}` in {what}")).fix(suggestion(key, known))
        }
    }
}

impl<'a> Reader<'a> {
    /// A reader for a file in `folder`.
    pub(super) const fn new(folder: &'a Path, surroundings: &'a dyn Surroundings) -> Self {
        Self { folder, surroundings, mistakes: Vec::new() }
    }

    /// Every mistake that was found, in the order of the file.
    pub(super) fn finish(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by(|a, b| a.place.cmp(&b.place));
        self.mistakes
    }

    /// Keeps a mistake.
    pub(super) fn add(&mut self, mistake: Mistake) {
        self.mistakes.push(mistake);
    }

    /// The file itself as a section with the keys `known`.
    pub(super) fn root<'n>(&mut self, node: &'n Node, known: &[&str]) -> Section<'n> {
        let entries = self.entries(node, "the configuration", known);
        Section { name: "", entries, place: &node.place }
    }

    /// The section `name` of the file, with the keys `known`; empty where the file has none.
    pub(super) fn section<'n>(
        &mut self,
        root: Section<'n>,
        name: &'static str,
        known: &[&str],
    ) -> Section<'n> {
        match root.get(name) {
            Some(node) => {
                let entries = self.entries(node, &format!("`{name}`"), known);
                Section { name, entries, place: &node.place }
            }
            None => Section { name, entries: &[], place: root.place },
        }
    }

    fn entries<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> &'n [Entry] {
        match node.map(what) {
            Ok(entries) => {
                for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
                    self.add(unknown_key(entry, what, known));
                }
                entries
            }
            Err(mistake) => {
                self.add(mistake);
                &[]
            }
        }
    }

    /// The scalar `node` with everything put in; `path` names it in messages.
    pub(super) fn scalar<'n>(&mut self, node: &'n Node, path: &str) -> Option<Scalar<'n>> {
        let text = node.text(&format!("`{path}`"));
        let substituted = text.and_then(|text| substitute(text, &node.place, self.folder, self.surroundings));
        match substituted {
            Ok(Substituted { text, shown }) => Some(Scalar { place: &node.place, text, shown }),
            Err(mistake) => {
                self.add(mistake);
                None
            }
        }
    }

    /// The text of `key`, if the file has it.
    pub(super) fn text<'n>(&mut self, section: Section<'n>, key: &str) -> Option<Scalar<'n>> {
        let node = section.get(key)?;
        self.scalar(node, &section.path(key))
    }

    /// The text of `key`, which must be there and not empty; `example` is a whole line.
    pub(super) fn required<'n>(
        &mut self,
        section: Section<'n>,
        key: &str,
        example: &str,
    ) -> Option<Scalar<'n>> {
        let missing = match section.get(key) {
            None => true,
            Some(node) => {
                let scalar = self.scalar(node, &section.path(key))?;
                if !scalar.text.trim().is_empty() {
                    return Some(scalar);
                }
                false
            }
        };
        let problem = if missing { "is missing" } else { "is empty" };
        let mistake = Mistake::new(section.place_of(key), format!("`{}` {problem}", section.path(key)));
        self.add(mistake.fix(format!("write `{example}`")));
        None
    }

    /// What `parse` makes of the text of `key`; `default` where the file has none or it is a mistake.
    pub(super) fn parsed<T>(
        &mut self,
        section: Section<'_>,
        key: &str,
        default: T,
        what: &str,
        form: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let Some(scalar) = self.text(section, key) else { return default };
        if let Some(value) = parse(&scalar.text) {
            return value;
        }
        let message = format!("`{}`: `{}` is not {what}", section.path(key), scalar.shown);
        self.add(Mistake::new(scalar.place, message).fix(form));
        default
    }

    /// A duration within `range`.
    pub(super) fn duration(
        &mut self,
        section: Section<'_>,
        key: &str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let value = self.parsed(section, key, default, "a duration", units::DURATION_FORM, units::duration);
        self.within(section, key, value, default, range, |duration| format!("{} ms", duration.as_millis()))
    }

    /// A size in bytes within `range`.
    pub(super) fn size(
        &mut self,
        section: Section<'_>,
        key: &str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        let parse = |text: &str| units::size(text).and_then(|size| usize::try_from(size).ok());
        let value = self.parsed(section, key, default, "a size", units::SIZE_FORM, parse);
        self.within(section, key, value, default, range, |size| format!("{size} bytes"))
    }

    /// A whole number within `range`.
    pub(super) fn number<T: std::str::FromStr + PartialOrd + Display + Copy>(
        &mut self,
        section: Section<'_>,
        key: &str,
        default: T,
        range: RangeInclusive<T>,
    ) -> T {
        let parse = |text: &str| text.parse().ok();
        let value =
            self.parsed(section, key, default, "a whole number", "write digits only, such as 1000", parse);
        self.within(section, key, value, default, range, |number| number.to_string())
    }

    fn within<T: PartialOrd + Copy>(
        &mut self,
        section: Section<'_>,
        key: &str,
        value: T,
        default: T,
        range: RangeInclusive<T>,
        show: impl Fn(T) -> String,
    ) -> T {
        if range.contains(&value) {
            return value;
        }
        let (least, most) = (show(*range.start()), show(*range.end()));
        let message = format!("`{}` must be from {least} to {most}", section.path(key));
        self.add(Mistake::new(section.place_of(key), message));
        default
    }

    /// The scalars of a list; a single one stands for a list of one.
    pub(super) fn list<'n>(&mut self, section: Section<'n>, key: &str) -> Vec<Scalar<'n>> {
        let path = section.path(key);
        match section.get(key).map(|node| (node, &node.kind)) {
            None => Vec::new(),
            Some((_, Kind::List(items))) => {
                items.iter().filter_map(|item| self.scalar(item, &format!("an item of `{path}`"))).collect()
            }
            Some((node, _)) => self.scalar(node, &path).into_iter().collect(),
        }
    }

    /// The entries of a mapping from names to scalars, with the place of each name.
    pub(super) fn pairs<'n>(&mut self, section: Section<'n>, key: &str) -> Vec<(&'n Entry, Scalar<'n>)> {
        let path = section.path(key);
        let Some(node) = section.get(key) else { return Vec::new() };
        let entries = match node.map(&format!("`{path}`")) {
            Ok(entries) => entries,
            Err(mistake) => {
                self.add(mistake);
                return Vec::new();
            }
        };
        let mut pairs = Vec::with_capacity(entries.len());
        for entry in entries {
            if entry.value.is_null() {
                let mistake =
                    Mistake::new(&entry.value.place, format!("`{path}.{}` has no value", entry.key));
                self.add(mistake.fix("give it one, or remove it"));
            } else if let Some(scalar) = self.scalar(&entry.value, &format!("{path}.{}", entry.key)) {
                pairs.push((entry, scalar));
            }
        }
        pairs
    }

    /// The folder of the file.
    pub(super) const fn folder(&self) -> &'a Path {
        self.folder
    }
}
