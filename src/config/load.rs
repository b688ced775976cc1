//! Finds `projector.yaml`, reads it, and checks every section.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;

use super::properties::{self, ClientLibrary, Properties, Property, Surrounding};
use super::reader::{Reader, Section};
use super::settings::{
    DdlMode, DeadLetterSettings, HeaderStyle, HttpSettings, KafkaSettings, LimitSettings, RegistrySettings,
    Settings, StoreSettings,
};
use super::store::{self, StoreKind};
use super::substitute::{Process, Surroundings, read_bounded};
use super::yaml::{self, Mistake, Node, Place};
use crate::decode::Limits;

/// The variable that names the configuration.
const VARIABLE: &str = "PROJECTOR_CONFIG";
/// Where the configuration is looked for when nothing names it.
const FILES: [&str; 2] = ["./projector.yaml", "/etc/projector/projector.yaml"];
/// The largest configuration, in bytes.
const MAX_FILE: u64 = 1 << 20;
const MIB: usize = 1 << 20;

const ROOT_KEYS: &[&str] =
    &["kafka", "schema_registry", "store", "projections", "dead_letter", "limits", "http", "shutdown_grace"];
const KAFKA_KEYS: &[&str] =
    &["bootstrap_servers", "group_prefix", "properties", "consumer_properties", "producer_properties"];
const REGISTRY_KEYS: &[&str] = &["url", "username", "password", "timeout", "unknown_id_wait"];
const STORE_KEYS: &[&str] = &["url", "admin_url", "schema", "writers", "readers", "ddl", "statement_timeout"];
const DEAD_LETTER_KEYS: &[&str] = &["topic", "headers", "max_waiting"];
const LIMIT_KEYS: &[&str] =
    &["max_record_bytes", "max_depth", "max_items", "batch_records", "memory", "queue"];
const HTTP_KEYS: &[&str] = &["listen"];

/// Loads the configuration: the file at `path`, else the one that `$PROJECTOR_CONFIG` names, else `./projector.yaml`, else
/// `/etc/projector/projector.yaml`.
///
/// `library` says which Kafka properties there are. Secrets in files are read here, once: a process that should know a rotated
/// one has to be started again.
///
/// # Errors
/// Every mistake in the file, in its order; or where a file was looked for in vain.
pub fn load(path: Option<&Path>, library: &dyn ClientLibrary) -> Result<Settings, Vec<Mistake>> {
    load_from(path, &Process, library)
}

/// Like [`load`], with variables and secret files from `surroundings`.
///
/// # Errors
/// As [`load`].
pub fn load_from(
    path: Option<&Path>,
    surroundings: &dyn Surroundings,
    library: &dyn ClientLibrary,
) -> Result<Settings, Vec<Mistake>> {
    let file = find(path, surroundings, FILES.map(Path::new)).map_err(|mistake| vec![mistake])?;
    let text = read_file(&file).map_err(|mistake| vec![mistake])?;
    read(&file, &text, surroundings, library)
}

fn find(path: Option<&Path>, surroundings: &dyn Surroundings, files: [&Path; 2]) -> Result<PathBuf, Mistake> {
    if let Some(path) = path {
        return Ok(path.to_owned());
    }
    let named = surroundings
        .variable(VARIABLE)
        .map_err(|why| Mistake::new(&beginning(files[0]), format!("${VARIABLE} cannot be used: {why}")))?;
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    if let Some(file) = files.iter().find(|file| file.is_file()) {
        return Ok((*file).to_owned());
    }
    let [here, system] = files.map(Path::display);
    let message = format!(
        "there is no configuration: ${VARIABLE} is not set, and neither {here} nor {system} is there"
    );
    Err(Mistake::new(&beginning(files[0]), message)
        .fix(format!("name the file with `-c FILE`, set ${VARIABLE}, or make {here}")))
}

fn read_file(file: &Path) -> Result<String, Mistake> {
    let mistake = |why: String| {
        Mistake::new(&beginning(file), format!("the configuration cannot be read: {why}"))
            .fix(format!("name another file with `-c FILE` or ${VARIABLE}"))
    };
    read_bounded(file, MAX_FILE).map_err(mistake)
}

fn beginning(file: &Path) -> Place {
    Place { file: Arc::from(file), line: 1, column: 1 }
}

/// Reads the `text` of a configuration; paths in it are relative to the folder of `file`.
///
/// # Errors
/// Every mistake, in the order of the file.
pub fn read(
    file: &Path,
    text: &str,
    surroundings: &dyn Surroundings,
    library: &dyn ClientLibrary,
) -> Result<Settings, Vec<Mistake>> {
    let tree = yaml::parse(file, text).map_err(|mistake| vec![mistake])?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut reader = Reader::new(folder, surroundings);
    let settings = settings(&mut reader, file, &tree, library);
    let mistakes = reader.finish();
    match settings {
        Some(settings) if mistakes.is_empty() => Ok(settings),
        _ => Err(mistakes),
    }
}

fn settings(
    reader: &mut Reader<'_>,
    file: &Path,
    tree: &Node,
    library: &dyn ClientLibrary,
) -> Option<Settings> {
    let root = reader.root(tree, ROOT_KEYS);
    let limits_section = reader.section(root, "limits", LIMIT_KEYS);
    let store_section = reader.section(root, "store", STORE_KEYS);
    let limits = limits(reader, limits_section);
    let store = store(reader, store_section);
    let timeout = store.as_ref().map_or(DEFAULT_STATEMENT_TIMEOUT, |store| store.statement_timeout);
    let max_record_bytes = u64::try_from(limits.record.max_record_bytes).unwrap_or(u64::MAX);
    let surrounding = Surrounding {
        statement_timeout: (timeout, store_section.place_of("statement_timeout")),
        max_record_bytes: (max_record_bytes, limits_section.place_of("max_record_bytes")),
    };
    let kafka = kafka(reader, root, &surrounding, library);
    let schema_registry = schema_registry(reader, root);
    let projections = projections(reader, root);
    let dead_letter = dead_letter(reader, root);
    let http = http(reader, root);
    let shutdown_grace = reader.duration(root, "shutdown_grace", secs(10), secs(1)..=secs(600));
    Some(Settings {
        file: file.to_owned(),
        kafka: kafka?,
        schema_registry: schema_registry?,
        store: store?,
        projections,
        dead_letter,
        limits,
        http,
        shutdown_grace,
    })
}

const DEFAULT_STATEMENT_TIMEOUT: Duration = secs(20);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn kafka(
    reader: &mut Reader<'_>,
    root: Section<'_>,
    surrounding: &Surrounding<'_>,
    library: &dyn ClientLibrary,
) -> Option<KafkaSettings> {
    let section = reader.section(root, "kafka", KAFKA_KEYS);
    let servers = bootstrap_servers(reader, section);
    let prefix = reader.required(section, "group_prefix", "group_prefix: my_team").and_then(|prefix| {
        if is_topic_part(&prefix.text) {
            return Some(prefix.text);
        }
        let message = "`kafka.group_prefix` may have letters, digits, `.`, `_` and `-` only, at most 100";
        reader.add(
            Mistake::new(prefix.place, message).fix("it begins the names of groups and dead-letter topics"),
        );
        None
    });
    let mut properties = Properties::default();
    for (key, into) in [
        ("properties", &mut properties.every),
        ("consumer_properties", &mut properties.consumer),
        ("producer_properties", &mut properties.producer),
    ] {
        into.extend(reader.pairs(section, key).into_iter().map(|(entry, value)| Property {
            name: entry.key.clone(),
            place: entry.place.clone(),
            value: value.text,
        }));
    }
    for mistake in properties::all_mistakes(&properties, surrounding, library) {
        reader.add(mistake);
    }
    Some(KafkaSettings {
        bootstrap_servers: servers?,
        group_prefix: prefix?,
        properties: properties::secret(properties.every),
        consumer_properties: properties::secret(properties.consumer),
        producer_properties: properties::secret(properties.producer),
    })
}

/// One text with commas, or a list.
fn bootstrap_servers(reader: &mut Reader<'_>, section: Section<'_>) -> Option<String> {
    const KEY: &str = "bootstrap_servers";
    let before = section.get(KEY).is_some();
    let items = reader.list(section, KEY);
    let servers: Vec<&str> = items.iter().flat_map(|item| item.text.split(',')).map(str::trim).collect();
    if before && items.is_empty() && !matches!(section.get(KEY).map(|node| node.list("")), Some(Ok([]))) {
        return None; // The mistake has been reported.
    }
    if servers.is_empty() || servers.contains(&"") {
        let problem = if before { "names no server, or an empty one" } else { "is missing" };
        let mistake = Mistake::new(section.place_of(KEY), format!("`kafka.{KEY}` {problem}"));
        reader.add(mistake.fix("write `bootstrap_servers: kafka-1:9092,kafka-2:9092`"));
        return None;
    }
    Some(servers.join(","))
}

/// Whether a text can begin the name of a topic and of a group.
fn is_topic_part(text: &str) -> bool {
    text.len() <= 100 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// The outer `None` is a mistake, the inner one a configuration without a registry.
#[expect(clippy::option_option, reason = "only here, and named")]
fn schema_registry(reader: &mut Reader<'_>, root: Section<'_>) -> Option<Option<RegistrySettings>> {
    if root.get("schema_registry").is_none() {
        return Some(None);
    }
    let section = reader.section(root, "schema_registry", REGISTRY_KEYS);
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

fn store(reader: &mut Reader<'_>, section: Section<'_>) -> Option<StoreSettings> {
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
        |text| store::is_schema(text).then(|| text.to_owned()),
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
    match store::url(&scalar.text, reader.folder()) {
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
        if store::is_role(&role.text) {
            readers.push(role.text);
        } else {
            let message = "an item of `store.readers` is empty or longer than 63 bytes";
            reader.add(Mistake::new(role.place, message).fix("write the role's exact name"));
        }
    }
    readers
}

fn projections(reader: &mut Reader<'_>, root: Section<'_>) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for item in reader.list(root, "projections") {
        let file = reader.folder().join(&item.text);
        let problem = if item.text.is_empty() {
            "is empty"
        } else if files.contains(&file) {
            "stands twice"
        } else if !file.is_file() {
            "is not there, or is no file"
        } else {
            files.push(file);
            continue;
        };
        let message = format!("the projection file `{}` {problem}", item.shown);
        reader.add(Mistake::new(item.place, message).fix("paths are relative to this file's own folder"));
    }
    files
}

fn dead_letter(reader: &mut Reader<'_>, root: Section<'_>) -> DeadLetterSettings {
    let section = reader.section(root, "dead_letter", DEAD_LETTER_KEYS);
    let topic = reader.parsed(
        section,
        "topic",
        Some("{group_prefix}.{projection}.dlq".to_owned()),
        "a topic's name",
        "use letters, digits, `.`, `_`, `-`, `{group_prefix}` and `{projection}`; or write `none`",
        |text| match text {
            "none" => Some(None),
            text => is_topic_template(text).then(|| Some(text.to_owned())),
        },
    );
    let mut headers = vec![HeaderStyle::Projector];
    for item in reader.list(section, "headers") {
        let style = match item.text.as_str() {
            "projector" => HeaderStyle::Projector,
            "connect" => HeaderStyle::Connect,
            "spring" => {
                let message = "the dead-letter headers `spring` are not in this release";
                reader.add(Mistake::new(item.place, message).fix("use `projector` and `connect`"));
                continue;
            }
            _ => {
                let message = format!("`{}` is not a style of dead-letter headers", item.shown);
                reader.add(Mistake::new(item.place, message).fix("use `projector` and `connect`"));
                continue;
            }
        };
        if !headers.contains(&style) {
            headers.push(style);
        }
    }
    let max_waiting = reader.number(section, "max_waiting", 10_000, 1..=100_000_000);
    DeadLetterSettings { topic, headers, max_waiting }
}

/// Whether the text is the name of a topic once the two names have been put in.
fn is_topic_template(text: &str) -> bool {
    let plain = text.replace("{group_prefix}", "g").replace("{projection}", "p");
    is_topic_part(&plain) && !plain.is_empty() && plain != "." && plain != ".."
}

fn limits(reader: &mut Reader<'_>, section: Section<'_>) -> LimitSettings {
    let default = Limits::default();
    let record = Limits {
        max_record_bytes: reader.size(
            section,
            "max_record_bytes",
            default.max_record_bytes,
            1024..=1024 * MIB,
        ),
        max_depth: reader.number(section, "max_depth", default.max_depth, 1..=256),
        max_items: reader.number(section, "max_items", default.max_items, 1..=100_000_000),
    };
    let batch_records = reader.number(section, "batch_records", 20_000, 1..=10_000_000);
    let queue = reader.size(section, "queue", 8 * MIB, 64 * 1024..=2047 * MIB);
    let memory = reader.size(section, "memory", 64 * MIB, MIB..=1024 * 1024 * MIB);
    if memory / 2 < record.max_record_bytes {
        let message = format!(
            "`limits.memory` ({memory} bytes) must be at least twice `limits.max_record_bytes` ({} bytes)",
            record.max_record_bytes
        );
        let key = if section.has("memory") { "memory" } else { "max_record_bytes" };
        reader.add(
            Mistake::new(section.place_of(key), message).fix("a record is held together with its changes"),
        );
    }
    LimitSettings { record, batch_records, memory, queue }
}

fn http(reader: &mut Reader<'_>, root: Section<'_>) -> HttpSettings {
    let section = reader.section(root, "http", HTTP_KEYS);
    let default = Some(SocketAddr::from(([127, 0, 0, 1], 4196)));
    let form = "write an IP address and a port, such as 0.0.0.0:4196, or `none`";
    let listen = reader.parsed(section, "listen", default, "an address", form, |text| match text {
        "none" => Some(None),
        text => text.parse().ok().map(Some),
    });
    HttpSettings { listen }
}

#[cfg(test)]
mod tests;
