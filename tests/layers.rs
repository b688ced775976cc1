//! The layers of the design: imports go to lower layers only, and each library has its place.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules from the lowest layer up. Within a layer, modules may use each other's traits.
const LAYERS: &[(&str, u8)] = &[
    ("record", 0),
    ("position", 0),
    ("fault", 0),
    ("count", 0),
    ("config", 0),
    ("telemetry", 0),
    ("projection", 1),
    ("fold", 2),
    ("source", 3),
    ("decode", 3),
    ("store", 3),
    ("dead_letter", 3),
    ("pipeline", 4),
    ("status", 5),
    ("versions", 5),
    ("cli", 6),
    ("http", 6),
    ("demo", 6),
    ("app", 7),
    ("main", 7),
];

/// Uses of a higher layer that are meant: settings hold bounds of a record, telemetry labels carry a version's name, and
/// the verbs call the composition root.
const MEANT: &[(&str, &str)] =
    &[("config", "decode"), ("telemetry", "store"), ("cli", "app"), ("http", "app")];

/// Libraries and the only places that may import them.
const LIBRARIES: &[(&str, &[&str])] = &[
    ("rdkafka", &["source/", "demo/", "dead_letter/publisher.rs"]),
    ("rdkafka_sys", &["source/"]),
    ("sqlx", &["store/"]),
    ("apache_avro", &["decode/", "demo/"]),
    ("axum", &["http/"]),
    ("clap", &["cli/"]),
    ("clap_complete", &["cli/"]),
];

fn sources() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).expect("a readable file");
                // Tests may use whatever they need.
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
                files.push((path.strip_prefix(&root).expect("below src").to_owned(), code));
            }
        }
    }
    assert!(files.len() > 20, "the sources were not found");
    files
}

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// The module that a file belongs to: its first folder, or its own name.
fn module_of(file: &Path) -> String {
    let first = file.iter().next().expect("not empty").to_string_lossy();
    first.trim_end_matches(".rs").to_owned()
}

/// Words that follow `prefix` in the code, comments left out.
fn words_after<'a>(code: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(move |line| {
        line.match_indices(prefix).map(move |(at, _)| {
            let rest = &line[at + prefix.len()..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            &rest[..end]
        })
    })
}

#[test]
fn imports_go_to_lower_layers_only() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let module = module_of(&file);
        if module == "lib" {
            continue;
        }
        let own = layer(&module).unwrap_or_else(|| panic!("{module} has no layer: add it to the list"));
        for used in words_after(&code, "crate::") {
            let is_meant = MEANT.contains(&(module.as_str(), used));
            if layer(used).is_some_and(|used_layer| used_layer > own) && !is_meant {
                wrong.push(format!("{} uses {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports from a higher layer: {wrong:#?}");
}

#[test]
fn libraries_are_imported_in_their_places_only() {
    let mut wrong = Vec::new();
    for (file, code) in sources() {
        let name = file.to_string_lossy().into_owned();
        for (library, places) in LIBRARIES {
            let is_used = code.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
                line.match_indices(&format!("{library}::"))
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
            });
            if is_used && !places.iter().any(|place| name.starts_with(place)) {
                wrong.push(format!("{name} uses {library}"));
            }
        }
    }
    assert!(wrong.is_empty(), "libraries out of their place: {wrong:#?}");
}
