//! What is written for people is true: files that they start from pass `projector check`, and ARCHITECTURE has the DDL and
//! the dependencies that there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::process::Workplace;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The YAML files below `folder`, by path.
fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Those of `files` that have `key` at the root.
fn with_root_key<'a>(files: &'a [PathBuf], key: &str) -> Vec<&'a PathBuf> {
    let has_key = |path: &&PathBuf| {
        fs::read_to_string(path).expect("readable").lines().any(|line| line.starts_with(key))
    };
    files.iter().filter(has_key).collect()
}

/// What docker-compose.yml mounts below /etc/projector: file in the repository, name there.
fn mounts() -> Vec<(String, String)> {
    let compose = fs::read_to_string(root().join("docker-compose.yml")).expect("readable");
    let mount = |line: &str| {
        let (file, target) = line.trim().strip_prefix("- ./")?.split_once(":/etc/projector/")?;
        Some((file.to_owned(), target.trim_end_matches(":ro").to_owned()))
    };
    compose.lines().filter_map(mount).collect()
}

/// Copies a configuration, with secrets of its own in the place of mounted ones and a value for each variable.
fn copy_configuration(workplace: &Workplace, file: &Path, name: &str) {
    let text = fs::read_to_string(file).expect("readable");
    let secrets = workplace.path().display().to_string();
    let text =
        text.replace("/etc/projector-secrets", &secrets).replace("${env:STORE_URL}", "postgres://h/db");
    workplace.write(name, &text);
    workplace.write("kafka_password", "secret\n");
    workplace.write("store_url", "postgres://projector:secret@h:5432/views\n");
}

#[test]
fn every_projection_of_the_project_is_valid_and_has_no_warnings() {
    let files: Vec<PathBuf> = [yaml_files("deploy"), yaml_files("examples")].concat();
    let projections = with_root_key(&files, "projection:");
    assert!(projections.len() >= 5, "{projections:?}");
    let workplace = Workplace::new();
    for file in projections {
        let file = file.to_str().expect("a path in UTF-8");
        let checked = workplace.run(&["check", file]).expect_code(0);
        assert!(checked.stdout.ends_with("no mistakes\n"), "{file}: {}", checked.stdout);
    }
}

#[test]
fn every_configuration_of_the_project_is_valid_where_it_is_mounted() {
    let files = yaml_files("deploy");
    let mounts = mounts();
    let configurations = with_root_key(&files, "kafka:");
    assert!(configurations.len() >= 2, "{configurations:?}");
    for file in configurations {
        let workplace = Workplace::new();
        copy_configuration(&workplace, file, "projector.yaml");
        let here = file.strip_prefix(root()).expect("below the root").to_str().expect("UTF-8");
        let is_mounted = mounts.iter().any(|(from, to)| from == here && to == "projector.yaml");
        if is_mounted {
            for (from, to) in mounts.iter().filter(|(_, to)| to != "projector.yaml") {
                fs::copy(root().join(from), workplace.path().join(to)).expect("copied");
            }
        } else {
            for beside in
                with_root_key(&files, "projection:").iter().filter(|path| path.parent() == file.parent())
            {
                fs::copy(beside, workplace.path().join(beside.file_name().expect("a name"))).expect("copied");
            }
        }
        let checked = workplace.run(&["check"]).expect_code(0);
        assert!(checked.stdout.contains("product_catalogue@1"), "{here}: {}", checked.stdout);
    }
}

#[test]
fn the_files_of_readme_are_valid() {
    let readme = fs::read_to_string(root().join("README.md")).expect("readable");
    let workplace = Workplace::new();
    let mut written = Vec::new();
    for part in readme.split("```yaml\n").skip(1) {
        let block = part.split("```").next().unwrap_or_default();
        let name = match block {
            block if block.starts_with("projection: customers\n") => "customers.v1.yaml",
            block if block.contains("customers.v1.yaml") => "projector.yaml",
            _ => continue,
        };
        workplace.write(name, block);
        written.push(name);
    }
    assert_eq!(written, ["projector.yaml", "customers.v1.yaml"]);
    let checked = workplace.run(&["check"]).expect_code(0);
    assert!(checked.stdout.contains("customers@1"), "{}", checked.stdout);
}

/// Words with single blanks between, without comments of SQL.
fn words(sql: &str) -> String {
    let lines = sql.lines().map(|line| line.split(" --").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_tables_of_architecture_are_those_of_the_store() {
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let block = architecture.split("```sql\n").nth(1).and_then(|rest| rest.split("```").next()).expect("SQL");
    let mut sources = String::new();
    for entry in fs::read_dir(root().join("src/store/postgres")).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.extension().is_some_and(|ending| ending == "rs") {
            sources.push_str(&words(&fs::read_to_string(&path).expect("readable").replace("{s}.", "")));
        }
    }
    let statements: Vec<String> = words(block).split(';').map(|sql| sql.trim().to_owned()).collect();
    let statements: Vec<&String> = statements.iter().filter(|sql| !sql.is_empty()).collect();
    assert!(statements.len() >= 10, "{statements:#?}");
    for statement in statements {
        assert!(sources.contains(statement.as_str()), "not in src/store/postgres: {statement}");
    }
}

#[test]
fn each_dependency_has_its_reason_in_architecture() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("readable");
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("readable");
    let table = architecture.split("## Dependencies").nth(1).expect("a section");
    let table = table.split("\n## ").next().unwrap_or_default();
    let explained: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split(", "))
        .filter(|name| *name != "Crate")
        .collect();
    let mut used = BTreeSet::new();
    let mut is_dependency = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependency = line.ends_with("dependencies]");
        } else if let (true, Some((name, _))) = (is_dependency, line.split_once(" = ")) {
            used.insert(name);
        }
    }
    assert_eq!(used, explained);
}
