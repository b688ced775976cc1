//! What commands print: tables and JSON on standard output, progress on standard error; colour only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::exit::Failure;

/// Whether results are for people or for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Tables and sentences.
    Text,
    /// JSON.
    Json,
}

/// Where a command's result goes.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    /// The shape that `--json` chooses.
    pub shape: Shape,
    colour: Colour,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colour {
    Plain,
    Ansi,
}

impl Output {
    /// Standard output. Colour where it is a terminal and `NO_COLOR` is not set.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let is_colourful = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { shape, colour: if is_colourful { Colour::Ansi } else { Colour::Plain } }
    }

    /// Prints an object as one JSON document.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn json<T: Serialize>(self, object: &T) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(object).map_err(unwritable)?;
        text.push('\n');
        print(&text)
    }

    /// Prints an object as one line of JSON, of a verb whose output is JSON lines.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn json_line<T: Serialize>(self, object: &T) -> Result<(), Failure> {
        let mut text = serde_json::to_string(object).map_err(unwritable)?;
        text.push('\n');
        print(&text)
    }

    /// Prints text as it is.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn text(self, text: &str) -> Result<(), Failure> {
        print(text)
    }

    /// Prints text about states, with the words for states in colour.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn states(self, text: &str) -> Result<(), Failure> {
        match self.colour {
            Colour::Plain => print(text),
            Colour::Ansi => print(&painted(text)),
        }
    }
}

fn unwritable(error: impl Into<anyhow::Error>) -> Failure {
    Failure::failed(error.into().context("cannot write to standard output"), "see where standard output goes")
}

/// A reader that has gone away (`| head`) is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(unwritable),
    }
}

/// Words for states and their colours. They are painted once the table is laid out, so that widths stay right.
const COLOURS: &[(&str, &str)] = &[
    ("ready", "32"),
    ("flowing", "32"),
    ("catching_up", "33"),
    ("blocked", "33"),
    ("unavailable", "31"),
    ("unowned", "31"),
    ("quarantined", "31"),
];

fn painted(text: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        match COLOURS.iter().find(|(name, _)| *name == word) {
            Some((_, colour)) => {
                out.push_str("\x1b[");
                out.push_str(colour);
                out.push('m');
                out.push_str(word);
                out.push_str("\x1b[0m");
            }
            None => out.push_str(word),
        }
        let between = after.find(is_word).unwrap_or(after.len());
        out.push_str(&after[..between]);
        rest = &after[between..];
    }
    out
}

/// A table without borders, as wide as its content: easy to read, easy to cut. `right` are columns of numbers.
#[must_use]
pub fn table(header: &[&str], right: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().map(|name| name.to_uppercase()));
    for row in rows {
        table.add_row(row.iter().map(|cell| printable(cell)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Without characters that a terminal would obey: names of topics and texts of brokers come from elsewhere.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A number with a fraction digit and its unit, or a dash.
#[must_use]
pub fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}s"))
}

/// A number, or a dash.
#[must_use]
pub fn number<T: ToString>(number: Option<T>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

/// Progress of long work: a bar on a terminal, a line every few seconds elsewhere, nothing with `--json`.
#[derive(Debug)]
pub struct Progress {
    what: &'static str,
    shape: Shape,
    bar: ProgressBar,
    last_line: Mutex<Option<Instant>>,
}

const LINE_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    /// Progress of `what`, on standard error.
    #[must_use]
    pub fn new(what: &'static str, shape: Shape) -> Self {
        let is_drawn = shape == Shape::Text && io::stderr().is_terminal();
        let target = if is_drawn { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {human_pos}/{human_len} {per_sec} {eta}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(what);
        Self { what, shape, bar, last_line: Mutex::new(None) }
    }

    /// `done` of `total` are done.
    pub fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.shape == Shape::Json || !self.bar.is_hidden() {
            return;
        }
        let mut last = self.last_line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= LINE_EVERY) || done == total {
            *last = Some(Instant::now());
            complain(&format!("{}: {done} of {total}", self.what));
        }
    }

    /// Says something in between.
    pub fn note(&self, text: &str) {
        if self.shape == Shape::Json {
            return;
        }
        self.bar.suspend(|| complain(text));
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line on standard error; where that cannot be written there is nobody to tell.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_no_borders_and_no_trailing_blanks() {
        let rows = vec![vec!["orders@1".into(), "12".into()], vec!["stock\x1b[2J".into(), "7".into()]];
        let text = table(&["name", "lag"], &[1], rows);
        assert!(text.lines().all(|line| line == line.trim_end() && !line.contains('|')), "{text}");
        assert!(!text.contains('\x1b'), "a terminal must not obey what it is shown");
        insta::assert_snapshot!(text, @"
        NAME       LAG
        orders@1    12
        stock�[2J    7
        ");
    }

    #[test]
    fn only_whole_words_are_painted_and_widths_stay() {
        let text = painted("ready  not-ready already quarantined: x\n");
        assert_eq!(text, "\x1b[32mready\x1b[0m  not-ready already \x1b[31mquarantined\x1b[0m: x\n");
    }
}
