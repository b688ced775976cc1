//! A column's SQL: `type [not null] [default literal] [generated always as (…) stored]`.

use super::column_type::column_type;
use super::default::{default_of, literal};
use crate::projection::{Column, Nullability};

/// Why a column's SQL is refused: what is wrong, and what to write instead.
pub(super) type Refused = (String, String);

/// Reads a column's SQL.
pub(super) fn parse(name: &str, sql: &str) -> Result<Column, Refused> {
    let (kind_sql, mut rest) = split_type(sql);
    if kind_sql.is_empty() {
        return Err(("a column without a type".into(), "write a type first: text not null".into()));
    }
    let kind = column_type(kind_sql)?;
    let mut column = Column {
        name: name.to_owned(),
        kind,
        nullability: Nullability::Nullable,
        default: None,
        generated: None,
    };
    while !rest.is_empty() {
        let (word, after) = word(rest);
        match word.to_ascii_lowercase().as_str() {
            "not" => {
                let (null, after) = self::word(after);
                if !null.eq_ignore_ascii_case("null") {
                    return Err(("`not` without `null`".into(), "write not null".into()));
                }
                column.nullability = Nullability::NotNull;
                rest = after;
            }
            "null" => rest = after,
            "default" => {
                let (literal, after) = literal(after)?;
                column.default = default_of(&column.kind, literal)?;
                rest = after;
            }
            "generated" => {
                let (expression, after) = generated(after)?;
                column.generated = Some(expression.to_owned());
                rest = after;
            }
            _ => return Err(unknown_clause(word)),
        }
    }
    if column.generated.is_some() && column.default.is_some() {
        return Err(("a generated column has no default".into(), "remove one of the two".into()));
    }
    Ok(column)
}

fn unknown_clause(word: &str) -> Refused {
    let fix = match word.to_ascii_lowercase().as_str() {
        "primary" => "name the key in primary_key: [column]",
        "unique" => "write an index: indexes: [{ columns: [column], unique: true }]",
        "references" | "check" | "constraint" => {
            "leave it out: a constraint that depends on state may refuse, depending on how batches are cut"
        }
        "collate" => "leave it out: text is compared by bytes",
        _ => "write: type [not null] [default literal] [generated always as (…) stored]",
    };
    (format!("`{word}` is not used in a column"), fix.to_owned())
}

/// The next word, and what follows it.
pub(super) fn word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let end = text.find(|c: char| c.is_whitespace() || c == '(').unwrap_or(text.len());
    let end = if end == 0 { text.chars().next().map_or(0, char::len_utf8) } else { end };
    (&text[..end], text[end..].trim_start())
}

/// The type's SQL, up to the first clause outside of brackets and quotes.
fn split_type(sql: &str) -> (&str, &str) {
    let sql = sql.trim();
    let mut depth = 0_u32;
    let mut quoted = false;
    let mut start_of_word = None;
    for (at, c) in sql.char_indices().chain([(sql.len(), ' ')]) {
        if quoted || depth > 0 || c == '"' || c == '(' || !(c.is_alphanumeric() || c == '_') {
            if let Some(start) = start_of_word.take() {
                let word = &sql[start..at];
                let clauses = [
                    "not",
                    "null",
                    "default",
                    "generated",
                    "primary",
                    "unique",
                    "references",
                    "check",
                    "constraint",
                    "collate",
                ];
                if clauses.iter().any(|clause| word.eq_ignore_ascii_case(clause)) {
                    return (sql[..start].trim_end(), &sql[start..]);
                }
            }
            match c {
                '"' => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
        } else if start_of_word.is_none() {
            start_of_word = Some(at);
        }
    }
    (sql, "")
}

/// `always as (…) stored`, after `generated`.
fn generated(text: &str) -> Result<(&str, &str), Refused> {
    let refused =
        || ("not a generated column".to_owned(), "write generated always as (expression) stored".to_owned());
    let (always, rest) = word(text);
    let (as_word, rest) = word(rest);
    if !always.eq_ignore_ascii_case("always") || !as_word.eq_ignore_ascii_case("as") || !rest.starts_with('(')
    {
        return Err(refused());
    }
    let end = closing_bracket(rest).ok_or_else(refused)?;
    let expression = rest[1..end].trim();
    let (stored, rest) = word(&rest[end + 1..]);
    if !stored.eq_ignore_ascii_case("stored") || expression.is_empty() {
        return Err(refused());
    }
    Ok((expression, rest))
}

/// Where the bracket that opens the text is closed, outside of quotes.
pub(super) fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::type_names::PORTABLE;
    use super::*;
    use crate::projection::{ColumnType, Datum};

    fn column(sql: &str) -> Column {
        parse("c", sql).unwrap_or_else(|refused| panic!("{sql}: {refused:?}"))
    }

    #[test]
    fn every_portable_type_is_read_and_printed_the_same() {
        for kind in PORTABLE {
            assert_eq!(column(kind).kind.to_string(), if *kind == "varchar" { "text" } else { kind });
        }
        assert_eq!(column("varchar(20)").kind, ColumnType::Text { max_chars: Some(20) });
        assert_eq!(column("NUMERIC( 10 , 2 )").kind, ColumnType::Numeric { precision_scale: Some((10, 2)) });
        assert_eq!(column("numeric(5)").kind, ColumnType::Numeric { precision_scale: Some((5, 0)) });
        assert_eq!(column("double  precision").kind, ColumnType::Double);
        assert_eq!(column("timestamp with time zone not null").kind, ColumnType::TimestampTz);
    }

    #[test]
    fn types_of_the_catalogue_keep_their_sql() {
        for sql in ["tsvector", "text[]", "\"Mood not null\"", "geometry(Point, 4326)", "int4range"] {
            assert_eq!(column(&format!("{sql} not null")).kind, ColumnType::Catalogue(sql.into()), "{sql}");
        }
    }

    #[test]
    fn clauses_come_in_any_order() {
        let column = column("bigint default 5 not null");
        assert_eq!((column.nullability, column.default), (Nullability::NotNull, Some(Datum::Int(5))));
        let generated =
            self::column("tsvector generated always as (to_tsvector('simple', coalesce(name, ')'))) stored");
        assert_eq!(generated.generated.as_deref(), Some("to_tsvector('simple', coalesce(name, ')'))"));
    }

    #[test]
    fn defaults_must_fit_exactly() {
        let default = |sql: &str| column(sql).default;
        assert_eq!(default("text default 'it''s'"), Some(Datum::Text("it's".into())));
        assert_eq!(
            default("numeric(5,2) default -1.50"),
            Some(Datum::Numeric("-1.5".parse().expect("number")))
        );
        assert_eq!(default("boolean default false"), Some(Datum::Bool(false)));
        assert_eq!(default("date default '1970-01-02'"), Some(Datum::Date(1)));
        assert_eq!(default("date default '1969-12-31'"), Some(Datum::Date(-1)));
        assert_eq!(
            default("timestamptz default '1970-01-01T00:00:01Z'"),
            Some(Datum::TimestampTz(1_000_000))
        );
        assert_eq!(default("text default null"), None);
        for refused in [
            "smallint default 40000",
            "integer default 2147483648",
            "bigint default 1.5",
            "numeric(3,2) default 12.5",
            "numeric(3,1) default 1.25",
            "varchar(2) default 'abc'",
            "text default 5",
            "timestamptz default now()",
            "uuid default 'x'",
            "text default current_date",
            "text default 'open",
        ] {
            assert!(parse("c", refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn what_a_column_does_not_take_is_refused_with_what_to_write() {
        for (sql, fix) in [
            ("text primary key", "name the key in primary_key: [column]"),
            ("text unique", "write an index: indexes: [{ columns: [column], unique: true }]"),
            ("strng not null", "did you mean `text`? a type of your own stands in quotes: '\"strng\"'"),
            ("numeric(10", "between `{` and `}` quote it: 'numeric(…, …)'; or write one column a line"),
            ("timestamp(3)", "write timestamp: a value is stored exactly or refused"),
            ("serial", "map a value of the event: rows must follow from the log alone"),
            ("numeric(0,2)", "write numeric(precision, scale), with a precision from 1 to 1000"),
            ("not null", "write a type first: text not null"),
        ] {
            assert_eq!(parse("c", sql).expect_err(sql).1, fix);
        }
    }
}
