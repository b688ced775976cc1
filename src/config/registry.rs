//! The section `schema_registry` of the configuration.

use std::time::Duration;

use secrecy::SecretString;

use super::load::secs;
use super::reader::{Reader, Section};
use super::settings::RegistrySettings;
use super::yaml::Mistake;

const KEYS: &[&str] = &["url", "username", "password", "timeout", "unknown_id_wait"];

/// Reads the section. The outer `None` is a mistake, the inner one a configuration without a registry.
#[expect(clippy::option_option, reason = "only here, and named")]
pub(super) fn schema_registry(
    reader: &mut Reader<'_>,
    root: Section<'_>,
) -> Option<Option<RegistrySettings>> {
    if root.get("schema_registry").is_none() {
        return Some(None);
    }
    let section = reader.section(root, "schema_registry", KEYS);
    let url = reader.required(section, "url", "url: https://registry.example:8081");
    let url = url.and_then(|url| match registry_url(&url.text) {
        Ok(text) => Some(text),
        Err((message, fix)) => {
            reader.add(Mistake::new(url.place, format!("`schema_registry.url` {message}")).fix(fix));
            None
        }
    });
    let username = reader.text(section, "username");
    let password = reader.text(section, "password");
    let basic_auth = match (username, password) {
        (Some(username), Some(password)) => Some((username.text, SecretString::from(password.text))),
        (None, None) => None,
        (given, _) => {
            let (given, missing) =
                if given.is_some() { ("username", "password") } else { ("password", "username") };
            if !section.has(missing) {
                let message = format!("`schema_registry.{given}` without `{missing}`");
                reader.add(Mistake::new(section.place_of(given), message).fix("give both, or neither"));
            }
            None
        }
    };
    let timeout = reader.duration(section, "timeout", secs(5), Duration::from_millis(100)..=secs(60));
    let unknown_id_wait = reader.duration(section, "unknown_id_wait", secs(10), secs(0)..=secs(3_600));
    Some(Some(RegistrySettings { url: url?, basic_auth, timeout, unknown_id_wait }))
}

fn registry_url(url: &str) -> Result<String, (&'static str, &'static str)> {
    let Some(rest) = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")) else {
        return Err(("must begin with http:// or https://", "write `url: https://registry.example:8081`"));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() || url.contains(|c: char| c.is_whitespace() || c == '?' || c == '#') {
        return Err(("has no host, a blank or a query", "write `url: https://registry.example:8081`"));
    }
    if authority.contains('@') {
        return Err(("holds credentials", "put them under `username` and `password`"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}
