//! The SQL of a view with row sources in the place of `{table}`, and which part of it came from where.

use crate::projection::{Declaration, Table};

/// The SQL of a view as the database gets it.
#[derive(Debug)]
pub(super) struct ViewText<'s> {
    /// The text for the database.
    pub(super) text: String,
    /// The SQL as it is declared.
    sql: &'s str,
    pieces: Vec<Piece>,
}

/// A part of the text: where it begins there and in the declared SQL, in bytes.
#[derive(Debug)]
struct Piece {
    text_at: usize,
    sql_at: usize,
    is_copied: bool,
}

/// What stands around a `{table}`.
pub(super) struct Around<'s> {
    pub(super) before: &'s str,
    pub(super) after: &'s str,
}

impl<'s> ViewText<'s> {
    /// Puts row sources in place of `{table}`. Braces around anything that is no table of the declaration stay as they are,
    /// and a semicolon at the end is dropped. `source` gives what stands for a table.
    pub(super) fn new(
        declaration: &Declaration,
        sql: &'s str,
        source: impl Fn(&Table, &Around<'_>) -> String,
    ) -> Self {
        let start = sql.len() - sql.trim_start().len();
        let body = sql.trim().trim_end_matches(';');
        let mut made = Self { text: String::with_capacity(body.len()), sql, pieces: Vec::new() };
        // What has been read, and from where on it has not been copied yet.
        let (mut read, mut copied) = (0, 0);
        while let Some(open) = body[read..].find('{').map(|at| read + at) {
            read = open + 1;
            let Some((name, after)) = body[read..].split_once('}') else { break };
            let Some(table) = declaration.tables.iter().find(|table| table.name == name.trim()) else {
                continue;
            };
            made.copy(&body[copied..open], start + copied);
            made.pieces.push(Piece { text_at: made.text.len(), sql_at: start + open, is_copied: false });
            made.text.push_str(&source(table, &Around { before: &body[..open], after }));
            read = body.len() - after.len();
            copied = read;
        }
        made.copy(&body[copied..], start + copied);
        made
    }

    fn copy(&mut self, part: &str, sql_at: usize) {
        self.pieces.push(Piece { text_at: self.text.len(), sql_at, is_copied: true });
        self.text.push_str(part);
    }

    /// Line and column in the declared SQL, both from 1 and in characters, of a character of the text, from 0. What stands
    /// for a table is where its `{table}` is.
    pub(super) fn place(&self, character: usize) -> (usize, usize) {
        let at = self.text.char_indices().nth(character).map_or(self.text.len(), |(at, _)| at);
        let piece = self.pieces.iter().rev().find(|piece| piece.text_at <= at);
        let at = piece.map_or(0, |piece| piece.sql_at + if piece.is_copied { at - piece.text_at } else { 0 });
        let before = self.sql.get(..at).unwrap_or(self.sql);
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract;

    #[test]
    fn only_declared_tables_are_put_into_a_views_sql() {
        let declaration = contract::declaration(vec![contract::items()]);
        let put = |sql: &str| ViewText::new(&declaration, sql, |table, _| format!("(<{}>)", table.name)).text;
        assert_eq!(put("select 1 from {items} i, { items };\n"), "select 1 from (<items>) i, (<items>)");
        assert_eq!(put("'{a}' {itemz} {items"), "'{a}' {itemz} {items");
        assert_eq!(put("'{\"a\": {items}}'"), "'{\"a\": (<items>)}'");
    }

    #[test]
    fn a_place_in_the_text_is_found_in_the_sql() {
        let declaration = contract::declaration(vec![contract::items()]);
        let sql = "\n  select ä.x\nfrom {items} ä,\n  {items} b where c\n";
        let text = ViewText::new(&declaration, sql, |_, _| "(select 1)".to_owned());
        let place = |part: &str| {
            let at = text.text.rfind(part).expect("there");
            text.place(text.text[..at].chars().count())
        };
        assert_eq!(text.place(0), (2, 3), "blanks in front are dropped");
        assert_eq!((place(".x"), place("from")), ((2, 11), (3, 1)));
        assert_eq!(place("(select 1) b"), (4, 3));
        assert_eq!(place("1) b"), (4, 3), "inside of what stands for a table");
        assert_eq!(place("c"), (4, 19));
        assert_eq!(text.place(usize::MAX), (4, 20));
    }
}
