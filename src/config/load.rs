//! Finds `projector.yaml`, reads it, and checks every section.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::agreement::Surrounding;
use super::properties::ClientLibrary;
use super::reader::{Reader, Section};
use super::settings::{DeadLetterSettings, HeaderStyle, HttpSettings, LimitSettings, Settings};
use super::substitute::{Process, Surroundings, read_bounded};
use super::yaml::{self, Mistake, Node, Place};
use super::{kafka, registry, store};
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
    let store_section = reader.section(root, "store", store::KEYS);
    let limits = limits(reader, limits_section);
    let store = store::store(reader, store_section);
    let timeout = store.as_ref().map_or(store::DEFAULT_STATEMENT_TIMEOUT, |store| store.statement_timeout);
    let max_record_bytes = u64::try_from(limits.record.max_record_bytes).unwrap_or(u64::MAX);
    let surrounding = Surrounding {
        statement_timeout: (timeout, store_section.place_of("statement_timeout")),
        max_record_bytes: (max_record_bytes, limits_section.place_of("max_record_bytes")),
    };
    let kafka = kafka::kafka(reader, root, &surrounding, library);
    let schema_registry = registry::schema_registry(reader, root);
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
        projections_place: root.place_of("projections").clone(),
        dead_letter,
        limits,
        http,
        shutdown_grace,
    })
}

/// Seconds.
pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Whether a text can begin the name of a topic and of a group.
pub(super) fn is_topic_part(text: &str) -> bool {
    text.len() <= 100 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
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
