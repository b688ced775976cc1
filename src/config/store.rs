//! Which stores a `url` can name, and what only one of them has.

use std::path::Path;

use secrecy::SecretString;

/// The two kinds of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    PostgreSql,
    Sqlite,
}

/// What is wrong with a url, and what to write instead. Quotes nothing beyond the scheme.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UrlMistake {
    pub(super) message: String,
    pub(super) fix: &'static str,
}

const FIX: &str = "write `postgres://user:password@host:5432/database` or `sqlite:PATH`";

/// Checks a store's url. A SQLite path that is not absolute is taken from `folder`.
pub(super) fn url(text: &str, folder: &Path) -> Result<(StoreKind, SecretString), UrlMistake> {
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
pub(super) fn is_schema(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= 63
        && !name.starts_with("pg_")
        && name != "information_schema"
}

/// Whether `name` can be a role: not empty, not longer than an identifier, without NUL.
pub(super) fn is_role(name: &str) -> bool {
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
