//! The type of a column: its name in SQL.

use super::column::Refused;
use super::type_names;
use crate::projection::ColumnType;

/// The type that the SQL names.
pub(super) fn column_type(sql: &str) -> Result<ColumnType, Refused> {
    let (name, arguments) = match sql.split_once('(') {
        Some((name, rest)) if rest.ends_with(')') => (name.trim_end(), Some(&rest[..rest.len() - 1])),
        // Brackets that a flow mapping has cut in two.
        Some((name, rest)) if !rest.contains(')') => return Err(cut(name, sql)),
        _ => (sql, None),
    };
    let lower = name.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    let plain = match lower.as_str() {
        "text" => ColumnType::Text { max_chars: None },
        "boolean" | "bool" => ColumnType::Boolean,
        "smallint" | "int2" => ColumnType::SmallInt,
        "integer" | "int" | "int4" => ColumnType::Integer,
        "bigint" | "int8" => ColumnType::BigInt,
        "real" | "float4" => ColumnType::Real,
        "double" | "double precision" | "float8" | "float" => ColumnType::Double,
        "date" => ColumnType::Date,
        "time" | "time without time zone" => ColumnType::Time,
        "timestamp" | "timestamp without time zone" => ColumnType::Timestamp,
        "timestamptz" | "timestamp with time zone" => ColumnType::TimestampTz,
        "uuid" => ColumnType::Uuid,
        "json" | "jsonb" => ColumnType::Json,
        "bytes" | "bytea" => ColumnType::Bytes,
        "varchar" | "character varying" => return varchar(arguments),
        "numeric" | "decimal" => return numeric(arguments),
        "serial" | "bigserial" | "smallserial" => {
            let fix = "map a value of the event: rows must follow from the log alone".to_owned();
            return Err((format!("`{lower}` numbers rows by itself"), fix));
        }
        _ => return catalogue(sql, &lower),
    };
    match arguments {
        None => Ok(plain),
        // `timestamp(3)` and the like would round: a type of the database's own.
        Some(_) => Err((
            format!("`{sql}` would round or cut values"),
            format!("write {plain}: a value is stored exactly or refused"),
        )),
    }
}

fn cut(name: &str, sql: &str) -> Refused {
    let fix = format!("between `{{` and `}}` quote it: '{name}(…, …)'; or write one column a line");
    (format!("`{sql}` {CUT}"), fix)
}

/// What is said of a type that is cut in two.
pub(super) const CUT: &str = "is cut at the comma";

/// A type that only the database knows.
fn catalogue(sql: &str, name: &str) -> Result<ColumnType, Refused> {
    let Some(meant) = type_names::meant(name) else { return Ok(ColumnType::Catalogue(sql.to_owned())) };
    let fix = format!("did you mean `{meant}`? a type of your own stands in quotes: '\"{name}\"'");
    Err((format!("there is no type `{name}`"), fix))
}

fn varchar(arguments: Option<&str>) -> Result<ColumnType, Refused> {
    let Some(arguments) = arguments else { return Ok(ColumnType::Text { max_chars: None }) };
    match arguments.trim().parse::<u32>() {
        Ok(max) if (1..=10_485_760).contains(&max) => Ok(ColumnType::Text { max_chars: Some(max) }),
        _ => Err((
            format!("`varchar({arguments})` has no usable length"),
            "write varchar(n), n from 1 to 10485760".into(),
        )),
    }
}

fn numeric(arguments: Option<&str>) -> Result<ColumnType, Refused> {
    let Some(arguments) = arguments else { return Ok(ColumnType::Numeric { precision_scale: None }) };
    let (precision, scale) = arguments.split_once(',').unwrap_or((arguments, "0"));
    match (precision.trim().parse::<u32>(), scale.trim().parse::<i32>()) {
        (Ok(precision @ 1..=1000), Ok(scale @ -1000..=1000)) => {
            Ok(ColumnType::Numeric { precision_scale: Some((precision, scale)) })
        }
        _ => Err((
            format!("`numeric({arguments})` has no usable precision and scale"),
            "write numeric(precision, scale), with a precision from 1 to 1000".into(),
        )),
    }
}
