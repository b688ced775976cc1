//! The section `store` of the configuration: which stores a `url` can name, and what only one of them has.

use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;

use super::load::secs;
use super::reader::{Reader, Section};
use super::settings::{DdlMode, StoreSettings};
use super::yaml::Mistake;

/// The keys of the section.
pub(super) const KEYS: &[&str] =
    &["url", "admin_url", "schema", "writers", "readers", "ddl", "statement_timeout"];
/// `store.statement_timeout` where the file has none.
pub(super) const DEFAULT_STATEMENT_TIMEOUT: Duration = secs(20);

/// The two kinds of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    PostgreSql,
    Sqlite,
}

/// What is wrong with a url, and what to write instead. Quotes nothing beyond the scheme.
#[derive(Debug, PartialEq, Eq)]
struct UrlMistake {
    message: String,
    fix: &'static str,
}

const FIX: &str = "write `postgres://user:password@host:5432/database` or `sqlite:PATH`";

/// Reads the section.
pub(super) fn store(reader: &mut Reader<'_>, section: Section<'_>) -> Option<StoreSettings> {
    let url = store_url(reader, section, "url", true);
    let admin_url = store_url(reader, section, "admin_url", false);
    let kind = url.as_ref().map_or(StoreKind::PostgreSql, |(kind, _)| *kind);
    if let Some((StoreKind::Sqlite, _)) = admin_url {
        let message = "`store.admin_url` is for PostgreSQL";
        reader.add(Mistake::new(section.place_of("admin_url"), message).fix("remove it"));
    }
    if kind == StoreKind::Sqlite {
        for (key, why) in
            [("schema", "has no schemas"), ("readers", "has no roles"), ("admin_url", "has no roles")]
        {
            if section.get(key).is_some() {
                let message = format!("`store.{key}`: SQLite {why}");
                reader.add(Mistake::new(section.place_of(key), message).fix("remove it"));
            }
        }
    }
    let (default_writers, most_writers) = if kind == StoreKind::Sqlite { (1, 1) } else { (2, 64) };
    let schema = reader.parsed(
        section,
        "schema",
        "public".to_owned(),
        "a schema's name",
        "use letters, digits and `_`, at most 63, not beginning with `pg_`",
        |text| is_schema(text).then(|| text.to_owned()),
    );
    let ddl =
        reader.parsed(
            section,
            "ddl",
            DdlMode::Apply,
            "known",
            "write `apply` or `verify`",
            |text| match text {
                "apply" => Some(DdlMode::Apply),
                "verify" => Some(DdlMode::Verify),
                _ => None,
            },
        );
    let writers = reader.number(section, "writers", default_writers, 1..=most_writers);
    let statement_timeout =
        reader.duration(section, "statement_timeout", DEFAULT_STATEMENT_TIMEOUT, secs(1)..=secs(3_600));
    Some(StoreSettings {
        readers: readers(reader, section),
        url: url?.1,
        admin_url: admin_url.map(|(_, url)| url),
        schema,
        writers,
        ddl,
        statement_timeout,
    })
}

fn store_url(
    reader: &mut Reader<'_>,
    section: Section<'_>,
    key: &str,
    required: bool,
) -> Option<(StoreKind, SecretString)> {
    let scalar = if required {
        reader.required(section, key, "url: postgres://user:${env:PGPASSWORD}@host:5432/database")?
    } else {
        reader.text(section, key)?
    };
    match url(&scalar.text, reader.folder()) {
        Ok(url) => Some(url),
        Err(mistake) => {
            let message = format!("`store.{key}`: {}", mistake.message);
            reader.add(Mistake::new(scalar.place, message).fix(mistake.fix));
            None
        }
    }
}

fn readers(reader: &mut Reader<'_>, section: Section<'_>) -> Vec<String> {
    let mut readers = Vec::new();
    for role in reader.list(section, "readers") {
        if is_role(&role.text) {
            readers.push(role.text);
        } else {
            let message = "an item of `store.readers` is empty or longer than 63 bytes";
            reader.add(Mistake::new(role.place, message).fix("write the role's exact name"));
        }
    }
    readers
}

/// Checks a store's url. A SQLite path that is not absolute is taken from `folder`.
fn url(text: &str, folder: &Path) -> Result<(StoreKind, SecretString), UrlMistake> {
    let mistake = |message: &str, fix| Err(UrlMistake { message: message.into(), fix });
    let Some((scheme, rest)) = text.split_once(':') else {
        return mistake("the url has no scheme", FIX);
    };
    match scheme {
        "postgres" | "postgresql" => {
            let Some(authority) = rest.strip_prefix("//") else {
                return mistake("the url lacks `//` behind its scheme", FIX);
            };
            if authority.is_empty() || authority.contains(char::is_whitespace) {
                return mistake("the url names no host and database, or contains a blank", FIX);
            }
            Ok((StoreKind::PostgreSql, SecretString::from(text.to_owned())))
        }
        "sqlite" => {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            if path.is_empty() || path.starts_with(':') || path.contains("mode=memory") {
                let fix = "name a file, as in `sqlite:shop.db`: positions must survive the process";
                return mistake("the url names no file", fix);
            }
            let Some(path) = folder.join(path).to_str().map(str::to_owned) else {
                return mistake("the path is not valid UTF-8", FIX);
            };
            Ok((StoreKind::Sqlite, SecretString::from(format!("sqlite:{path}"))))
        }
        "mysql" | "mariadb" | "mssql" | "sqlserver" | "oracle" | "mongodb" | "redis" | "jdbc" => {
            mistake(&format!("`{scheme}` is not a store that projector writes"), FIX)
        }
        // Not quoted: without a scheme, what stands before the colon may be a user's name.
        _ => mistake("the url's scheme is not one of postgres, postgresql, sqlite", FIX),
    }
}

/// Whether `name` can be PostgreSQL's schema: an identifier without need of escapes, not one of the system's.
fn is_schema(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= 63
        && !name.starts_with("pg_")
        && name != "information_schema"
}

/// Whether `name` can be a role: not empty, not longer than an identifier, without NUL.
fn is_role(name: &str) -> bool {
    !name.is_empty() && name.len() <= 63 && !name.contains('\0')
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn read(text: &str) -> Result<(StoreKind, String), UrlMistake> {
        url(text, Path::new("/etc/p")).map(|(kind, url)| (kind, url.expose_secret().to_owned()))
    }

    #[test]
    fn postgresql_and_sqlite_are_known() {
        for text in
            ["postgres://u:p@h:5432/db", "postgresql://h/db?sslmode=require", "postgres:///db?host=/run"]
        {
            assert_eq!(read(text), Ok((StoreKind::PostgreSql, text.into())));
        }
        for (text, expected) in [
            ("sqlite:shop.db", "sqlite:/etc/p/shop.db"),
            ("sqlite://data/shop.db", "sqlite:/etc/p/data/shop.db"),
            ("sqlite:/var/shop.db", "sqlite:/var/shop.db"),
            ("sqlite:///var/shop.db", "sqlite:/var/shop.db"),
        ] {
            assert_eq!(read(text), Ok((StoreKind::Sqlite, expected.into())), "{text}");
        }
    }

    #[test]
    fn others_are_refused_without_quoting_them() {
        for text in [
            "mysql://u:SECRET@h/db",
            "SECRET:SECRET@h/db",
            "host=h password=SECRET",
            "postgres:SECRET",
            "postgres://",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:SECRET?mode=memory",
            "",
        ] {
            let mistake = read(text).expect_err(text);
            assert!(!mistake.message.contains("SECRET") && !mistake.fix.contains("SECRET"), "{mistake:?}");
        }
    }

    #[test]
    fn a_schema_is_an_identifier() {
        for name in ["public", "Sales", "_x1"] {
            assert!(is_schema(name), "{name}");
        }
        for name in ["", "1a", "a-b", "a b", "a\"b", "pg_temp", "information_schema", "ä", &"a".repeat(64)] {
            assert!(!is_schema(name), "{name}");
        }
    }
}
