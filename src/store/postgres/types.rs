//! The types of columns in PostgreSQL: their names, how values travel, and literals.

use crate::projection::{Column, ColumnType, Datum};

/// How the values of a column travel: the element type of the array that carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Text,
    Bytes,
    Uuid,
    Date,
    Time,
    Timestamp,
    TimestampTz,
}

impl Wire {
    /// How values of `kind` travel; what has no simple binary form goes as text.
    pub(super) const fn of(kind: &ColumnType) -> Self {
        match kind {
            ColumnType::Boolean => Self::Bool,
            ColumnType::SmallInt => Self::Int2,
            ColumnType::Integer => Self::Int4,
            ColumnType::BigInt => Self::Int8,
            ColumnType::Real => Self::Float4,
            ColumnType::Double => Self::Float8,
            ColumnType::Bytes => Self::Bytes,
            ColumnType::Uuid => Self::Uuid,
            ColumnType::Date => Self::Date,
            ColumnType::Time => Self::Time,
            ColumnType::Timestamp => Self::Timestamp,
            ColumnType::TimestampTz => Self::TimestampTz,
            ColumnType::Text { .. }
            | ColumnType::Numeric { .. }
            | ColumnType::Json
            | ColumnType::Catalogue(_) => Self::Text,
        }
    }

    /// The element type's and the array type's number in the catalogue; the same in every server.
    pub(super) const fn oids(self) -> (u32, u32) {
        match self {
            Self::Bool => (16, 1000),
            Self::Bytes => (17, 1001),
            Self::Int8 => (20, 1016),
            Self::Int2 => (21, 1005),
            Self::Int4 => (23, 1007),
            Self::Text => (25, 1009),
            Self::Float4 => (700, 1021),
            Self::Float8 => (701, 1022),
            Self::Date => (1082, 1182),
            Self::Time => (1083, 1183),
            Self::Timestamp => (1114, 1115),
            Self::TimestampTz => (1184, 1185),
            Self::Uuid => (2950, 2951),
        }
    }
}

/// The SQL name of a column's type.
pub(super) fn sql_name(kind: &ColumnType) -> String {
    match kind {
        ColumnType::Double => "double precision".to_owned(),
        ColumnType::Json => "jsonb".to_owned(),
        ColumnType::Bytes => "bytea".to_owned(),
        other => other.to_string(),
    }
}

/// The type that a value which travels as text is cast to, without the length that a column adds to it.
pub(super) fn cast(kind: &ColumnType) -> Option<String> {
    match kind {
        ColumnType::Numeric { .. } => Some("numeric".to_owned()),
        ColumnType::Json => Some("jsonb".to_owned()),
        ColumnType::Catalogue(name) => Some(without_length(name)),
        _ => None,
    }
}

/// A type without its length: a cast to a type with one cuts without an error, where an assignment to the column refuses.
fn without_length(name: &str) -> String {
    let Some((start, end)) = name.find('(').zip(name.find(')')) else {
        return match name.trim().to_ascii_lowercase().as_str() {
            "char" | "character" => "bpchar".to_owned(),
            "bit" => "varbit".to_owned(),
            _ => name.to_owned(),
        };
    };
    let (base, rest) = (name[..start].trim(), name.get(end + 1..).unwrap_or_default());
    let base = match base.to_ascii_lowercase().as_str() {
        "char" | "character" => "bpchar",
        "bit" => "varbit",
        _ => base,
    };
    format!("{base}{rest}")
}

/// A value as a literal of its column's type.
pub(super) fn literal(kind: &ColumnType, datum: &Datum) -> String {
    let (text, type_name) = match datum {
        Datum::Null => return "null".to_owned(),
        Datum::Bool(flag) => return flag.to_string(),
        Datum::Int(number) => (number.to_string(), sql_name(kind)),
        Datum::Numeric(number) => (number.to_string(), "numeric".to_owned()),
        Datum::Double(number) => (format!("{number:e}"), sql_name(kind)),
        Datum::Text(text) => (text.to_string(), "text".to_owned()),
        Datum::Json(text) => (text.to_string(), "jsonb".to_owned()),
        Datum::Catalogue(text) => {
            (array_text(kind, text).unwrap_or_else(|| text.to_string()), sql_name(kind))
        }
        Datum::Bytes(bytes) => (format!("\\x{}", hex(bytes)), "bytea".to_owned()),
        Datum::Uuid(bytes) => (uuid::Uuid::from_bytes(*bytes).to_string(), "uuid".to_owned()),
        Datum::Date(days) => return format!("(date '1970-01-01' + {days})"),
        Datum::Time(micros) => return format!("(time '00:00' + {micros} * interval '1 microsecond')"),
        Datum::Timestamp(micros) => return instant("timestamp '1970-01-01'", *micros),
        Datum::TimestampTz(micros) => return instant("timestamptz '1970-01-01 00:00:00+00'", *micros),
    };
    format!("{}::{type_name}", quote_text(&text))
}

/// Whole days and the rest apart: an interval counts microseconds exactly only where they are few enough.
fn instant(epoch: &str, micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let (days, rest) = (micros.div_euclid(DAY), micros.rem_euclid(DAY));
    format!("({epoch} + {days} * interval '24 hours' + {rest} * interval '1 microsecond')")
}

/// A text literal, whatever `standard_conforming_strings` says.
pub(super) fn quote_text(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// What `add` counts from where the stored value is NULL or there is no row, as a literal; `None` stands for 0.
pub(super) fn base(column: &Column) -> Option<String> {
    match &column.default {
        None | Some(Datum::Null | Datum::Int(0)) => None,
        Some(default) => Some(literal(&column.kind, default)),
    }
}

/// The default of a column as an expression: its literal, or `null`.
pub(super) fn default_of(column: &Column) -> String {
    column.default.as_ref().map_or_else(|| "null".to_owned(), |default| literal(&column.kind, default))
}

/// A JSON list as the text form of an array; `None` where the type is no array or the text is no JSON list.
pub(super) fn array_text(kind: &ColumnType, text: &str) -> Option<String> {
    let ColumnType::Catalogue(name) = kind else { return None };
    if !name.trim_end().ends_with(']') || !text.starts_with('[') {
        return None;
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut out = String::with_capacity(text.len() + 2);
    write_array(&mut out, text)?;
    Some(out)
}

/// Writes a list that is known to be JSON.
fn write_array(out: &mut String, list: &str) -> Option<()> {
    out.push('{');
    for (index, item) in items(list).enumerate() {
        if index > 0 {
            out.push(',');
        }
        match item.as_bytes().first() {
            Some(b'[') => write_array(out, item)?,
            Some(b'"') => quote_item(out, &serde_json::from_str::<String>(item).ok()?),
            Some(b'n') => out.push_str("NULL"),
            // Numbers keep their digits; a record stays the JSON that it is.
            _ => quote_item(out, item),
        }
    }
    out.push('}');
    Some(())
}

/// The items of a JSON list, each as its text: cut at the commas that are in no string and no deeper list or record.
fn items(list: &str) -> impl Iterator<Item = &str> {
    let inner = list.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or_default();
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    inner
        .split(move |character| {
            match character {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                '[' | '{' if !in_string => depth += 1,
                ']' | '}' if !in_string => depth = depth.saturating_sub(1),
                ',' if !in_string => return depth == 0,
                _ => {}
            }
            false
        })
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

fn quote_item(out: &mut String, item: &str) {
    out.push('"');
    for character in item.chars() {
        if matches!(character, '"' | '\\') {
            out.push('\\');
        }
        out.push(character);
    }
    out.push('"');
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_literals_survive_quotes_and_backslashes() {
        assert_eq!(quote_text("it's"), "'it''s'");
        assert_eq!(quote_text(r"a\'b"), r"E'a\\''b'");
    }

    #[test]
    fn a_cast_carries_no_length() {
        let cast = |name: &str| cast(&ColumnType::Catalogue(name.into())).unwrap();
        assert_eq!(cast("char(3)"), "bpchar");
        assert_eq!(cast("character(3)[]"), "bpchar[]");
        assert_eq!(cast("timestamp(3) with time zone"), "timestamp with time zone");
        assert_eq!(cast("\"Odd Type\""), "\"Odd Type\"");
        assert_eq!(cast("bit varying(4)"), "bit varying");
    }

    #[test]
    fn a_json_list_becomes_an_array_and_other_texts_stay() {
        let array = ColumnType::Catalogue("text[]".into());
        let text = |text: &str| array_text(&array, text);
        assert_eq!(text(r#"["a","b \"c\" \\ {}",null,""]"#).unwrap(), r#"{"a","b \"c\" \\ {}",NULL,""}"#);
        assert_eq!(text(r"[[1,2.50],[3,4]]").unwrap(), r#"{{"1","2.50"},{"3","4"}}"#);
        assert_eq!(text("[]").unwrap(), "{}");
        assert_eq!(text("{a,b}"), None);
        assert_eq!(text("[0:1]={1,2}"), None);
        assert_eq!(array_text(&ColumnType::Catalogue("jsonb".into()), "[1]"), None);
    }
}
