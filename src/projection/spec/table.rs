//! `tables:` and `views:`

use super::column;
use super::column_type::CUT;
use super::notes::{Later, MAX_IDENTIFIER, Notes};
use crate::config::yaml::{Entry, Kind, Node, Place, suggestion};
use crate::projection::{
    Column, ColumnId, ColumnType, Index, Nullability, Ownership, Table, TableId, View, ViewBody,
};

/// A table as read; who owns its rows is known once the handlers are bound.
pub(super) struct TableDraft {
    pub(super) place: Place,
    pub(super) table: Table,
    /// Whether its columns could be read at all, so that what names one stays silent where not.
    pub(super) has_columns: bool,
    /// Where each column stands.
    pub(super) column_places: Vec<Place>,
    /// Where the type of each column stands.
    pub(super) type_places: Vec<Place>,
    /// Where each index stands.
    pub(super) index_places: Vec<Place>,
    /// Whether something in it was refused, so that checks which build on it stay silent.
    pub(super) broken: bool,
}

impl TableDraft {
    pub(super) fn is_shared(&self) -> bool {
        self.table.ownership == Ownership::Shared
    }

    pub(super) fn column_names(&self) -> Vec<&str> {
        self.table.columns.iter().map(|column| column.name.as_str()).collect()
    }
}

const KEYS: &[&str] = &["shared", "primary_key", "columns", "indexes"];
const LATER: &[Later] = &[
    ("existing", "leave it out: the table is made under the projection's own name"),
    ("parent", "write the children as a table of their own, with events of their own"),
];

/// Reads all tables, in declared order.
pub(super) fn read(root: &Node, version: u32, notes: &mut Notes<'_>) -> Vec<TableDraft> {
    let Some(node) = root.get("tables") else {
        notes.mistake(
            &root.place,
            "`tables` is missing",
            "write tables: { name: { primary_key: […], columns: {…} } }",
        );
        return Vec::new();
    };
    let Some(entries) = notes.keep(node.map("tables")) else { return Vec::new() };
    if entries.is_empty() {
        notes.mistake(&node.place, "`tables` is empty", "declare at least one table");
    }
    let tables: Vec<TableDraft> = entries.iter().map(|entry| one(entry, version, notes)).collect();
    for (index, draft) in tables.iter().enumerate() {
        let name = &draft.table.name;
        let alike = |other: &&TableDraft| other.table.name.to_lowercase() == name.to_lowercase();
        if tables[..index].iter().any(|other| alike(&other)) {
            notes.warn(
                &draft.place,
                format!("table `{name}` differs from another by case only, which SQLite refuses"),
            );
        }
    }
    tables
}

fn one(entry: &Entry, version: u32, notes: &mut Notes<'_>) -> TableDraft {
    let before = notes.mistakes.len();
    let (name, node) = (&entry.key, &entry.value);
    notes.check_identifier(&entry.place, "table", name);
    let mut draft = TableDraft {
        place: entry.place.clone(),
        table: Table {
            name: name.clone(),
            ownership: Ownership::OwnedStored,
            primary_key: Vec::new(),
            columns: Vec::new(),
            indexes: Vec::new(),
        },
        has_columns: false,
        column_places: Vec::new(),
        type_places: Vec::new(),
        index_places: Vec::new(),
        broken: false,
    };
    let physical = draft.table.physical_name(version);
    if physical.len() > MAX_IDENTIFIER && name.len() <= MAX_IDENTIFIER {
        let message =
            format!("the table is stored as `{physical}`, which is longer than {MAX_IDENTIFIER} bytes");
        notes.mistake(&entry.place, message, "use a shorter name");
    }
    if notes.keep(node.map("a table")).is_some() {
        notes.only_keys(node, "a table", KEYS, LATER);
        if node.get("shared").and_then(|shared| notes.flag(shared, "shared")) == Some(true) {
            draft.table.ownership = Ownership::Shared;
        }
        columns(entry, &mut draft, notes);
        primary_key(entry, &mut draft, notes);
        if let Some(indexes) = node.get("indexes") {
            let read = read_indexes(indexes, &draft, notes);
            (draft.table.indexes, draft.index_places) = read.into_iter().unzip();
        }
    }
    draft.broken = notes.mistakes.len() > before;
    draft
}

fn columns(entry: &Entry, draft: &mut TableDraft, notes: &mut Notes<'_>) {
    let Some(node) = entry.value.get("columns") else {
        notes.mistake(&entry.place, "a table without `columns`", "write columns: { name: text, … }");
        return;
    };
    let entries = node.map("columns").map_err(|mistake| mistake.fix("write columns: { name: type, … }"));
    let Some(entries) = notes.keep(entries) else { return };
    draft.has_columns = true;
    let mut cut = false;
    for column_entry in entries {
        let name = &column_entry.key;
        // What a comma has cut off is no column.
        if cut && column_entry.value.is_null() {
            continue;
        }
        notes.check_identifier(&column_entry.place, "column", name);
        let alike = |column: &Column| column.name.to_lowercase() == name.to_lowercase();
        if draft.table.columns.iter().any(alike) {
            let message = format!("column `{name}` differs from another by case only, which SQLite refuses");
            notes.warn(&column_entry.place, message);
        }
        let value = &column_entry.value;
        let parsed = notes.keep(value.text("a column")).map(|sql| column::parse(name, sql));
        let column = match parsed {
            Some(Ok(column)) => column,
            refused => {
                if let Some(Err((message, fix))) = refused {
                    cut = message.contains(CUT);
                    notes.mistake(&value.place, format!("column `{name}`: {message}"), fix);
                }
                // Stands in, so that what names the column is not refused as well.
                Column {
                    name: name.clone(),
                    kind: ColumnType::Text { max_chars: None },
                    nullability: Nullability::Nullable,
                    default: None,
                    generated: None,
                }
            }
        };
        draft.table.columns.push(column);
        draft.column_places.push(column_entry.place.clone());
        draft.type_places.push(value.place.clone());
    }
}

fn primary_key(entry: &Entry, draft: &mut TableDraft, notes: &mut Notes<'_>) {
    let Some(node) = entry.value.get("primary_key") else {
        notes.mistake(&entry.place, "a table without `primary_key`", "write primary_key: [column]");
        return;
    };
    let names = notes.names(node, "primary_key");
    if !draft.has_columns {
        return;
    }
    if names.is_empty() && node.list("primary_key").is_ok_and(<[Node]>::is_empty) {
        notes.mistake(&node.place, "`primary_key` is empty", "name at least one column");
    }
    for (name, place) in names {
        let Some(id) = draft.table.column(&name) else {
            let message = format!("the key column `{name}` is not among the columns");
            notes.mistake(&place, message, suggestion(&name, &draft.column_names()));
            continue;
        };
        let column = &mut draft.table.columns[id.0];
        if column.generated.is_some() {
            notes.mistake(
                &place,
                format!("the key column `{name}` is generated"),
                "map the key from the event",
            );
        }
        if !column.kind.is_key() {
            let message = format!(
                "the key column `{name}` has type {}, whose equality differs between stores",
                column.kind
            );
            notes.mistake(
                &place,
                message,
                "use text, an integer, numeric, boolean, uuid, date, time or bytes",
            );
        }
        column.nullability = Nullability::NotNull;
        draft.table.primary_key.push(id);
    }
}

fn read_indexes(node: &Node, draft: &TableDraft, notes: &mut Notes<'_>) -> Vec<(Index, Place)> {
    let Some(items) = notes.keep(node.list("indexes")) else { return Vec::new() };
    items.iter().filter_map(|item| Some((one_index(item, draft, notes)?, item.place.clone()))).collect()
}

fn one_index(item: &Node, draft: &TableDraft, notes: &mut Notes<'_>) -> Option<Index> {
    let mut index =
        Index { columns: Vec::new(), expression: None, unique: false, method: None, condition: None };
    match &item.kind {
        Kind::List(_) => index.columns = index_columns(item, draft, notes),
        Kind::Map(_) => {
            notes.only_keys(item, "an index", &["columns", "expression", "using", "unique", "where"], &[]);
            match (item.get("columns"), item.get("expression")) {
                (Some(columns), None) => index.columns = index_columns(columns, draft, notes),
                (None, Some(expression)) => {
                    index.expression = Some(notes.keep(expression.text("expression"))?.to_owned());
                }
                _ => {
                    notes.mistake(
                        &item.place,
                        "an index has either `columns` or `expression`",
                        "write one of the two",
                    );
                    return None;
                }
            }
            index.unique = item.get("unique").and_then(|unique| notes.flag(unique, "unique")) == Some(true);
            index.method = index_method(item, notes);
            if let Some(condition) = item.get("where") {
                index.condition = Some(notes.keep(condition.text("where"))?.to_owned());
            }
        }
        Kind::Scalar { text, .. } => {
            notes.mistake(&item.place, "an index is a list of columns", format!("write [{text}]"));
            return None;
        }
    }
    if index.unique {
        notes.warn(
            &item.place,
            "a unique index beside the key may refuse a row depending on what is stored at that moment, and so on how \
             batches are cut; such a record becomes a dead letter",
        );
    }
    Some(index)
}

fn index_columns(node: &Node, draft: &TableDraft, notes: &mut Notes<'_>) -> Vec<String> {
    let known = draft.column_names();
    let names = notes.names(node, "an index");
    if names.is_empty() && node.list("an index").is_ok() {
        notes.mistake(&node.place, "an index without columns", "name at least one column");
    }
    for (name, place) in &names {
        if draft.has_columns && !known.contains(&name.as_str()) {
            let message = format!("table `{}` has no column `{name}`", draft.table.name);
            notes.mistake(place, message, suggestion(name, &known));
        }
    }
    names.into_iter().map(|(name, _)| name).collect()
}

fn index_method(item: &Node, notes: &mut Notes<'_>) -> Option<String> {
    let node = item.get("using")?;
    let method = notes.keep(node.text("using"))?;
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        notes.mistake(&node.place, "`using` is no name of an access method", "write using: gin");
        return None;
    }
    Some(method.to_owned())
}

/// Reads the views, each with its place: one a table by default, replaced, added to or removed by the file.
pub(super) fn views(
    root: &Node,
    version: u32,
    tables: &[TableDraft],
    notes: &mut Notes<'_>,
) -> Vec<(View, Place)> {
    let default = |(id, draft): (usize, &TableDraft)| {
        let view = View { name: draft.table.name.clone(), body: ViewBody::Table(TableId(id)) };
        (view, draft.place.clone())
    };
    let mut views: Vec<(View, Place)> = tables.iter().enumerate().map(default).collect();
    let entries = root.get("views").and_then(|node| notes.keep(node.map("views"))).unwrap_or(&[]);
    for entry in entries {
        let name = &entry.key;
        let removed = matches!(&entry.value.kind, Kind::Scalar { text, .. } if text == "none");
        if removed {
            if !tables.iter().any(|draft| draft.table.name == *name) {
                let known: Vec<&str> = tables.iter().map(|draft| draft.table.name.as_str()).collect();
                notes.mistake(
                    &entry.place,
                    format!("there is no table `{name}` whose view could be removed"),
                    suggestion(name, &known),
                );
            }
            views.retain(|(view, _)| view.name != *name);
            continue;
        }
        notes.check_identifier(&entry.place, "view", name);
        let Some((sql, place)) = view_sql(entry, tables, notes) else { continue };
        let view = View { name: name.clone(), body: ViewBody::Sql(sql) };
        match views.iter_mut().find(|(view, _)| view.name == *name) {
            Some(default) => *default = (view, place),
            None => views.push((view, place)),
        }
    }
    for draft in tables {
        let physical = draft.table.physical_name(version);
        if views.iter().any(|(view, _)| view.name == physical) {
            let message = format!("a view has the name `{physical}`, under which this table is stored");
            notes.mistake(&draft.place, message, "use another name for the view or table of that name");
        }
    }
    views
}

fn view_sql(entry: &Entry, tables: &[TableDraft], notes: &mut Notes<'_>) -> Option<(String, Place)> {
    if !matches!(entry.value.kind, Kind::Map(_)) {
        notes.mistake(
            &entry.value.place,
            "a view is `none` or has `sql`",
            "write { sql: select … from {table} }",
        );
        return None;
    }
    notes.only_keys(&entry.value, "a view", &["sql"], &[]);
    let Some(node) = entry.value.get("sql") else {
        notes.mistake(&entry.place, "a view without `sql`", "write sql: select … from {table}");
        return None;
    };
    let sql = notes.keep(node.text("sql"))?;
    if sql.trim().is_empty() || sql.trim_end().ends_with(';') {
        notes.mistake(
            &node.place,
            "the SQL of a view is one select without `;`",
            "write select … from {table}",
        );
        return None;
    }
    let known: Vec<&str> = tables.iter().map(|draft| draft.table.name.as_str()).collect();
    let names = sources_of(sql);
    for name in &names {
        if !known.contains(&name.as_str()) {
            let message =
                format!("`{{{name}}}` in the SQL of view `{}` is no table of this projection", entry.key);
            notes.mistake(&node.place, message, suggestion(name, &known));
        }
    }
    if names.is_empty() {
        notes.warn(
            &node.place,
            format!("view `{}` reads no table of this projection: write tables as {{name}}", entry.key),
        );
    }
    Some((sql.trim().to_owned(), node.place.clone()))
}

/// The names that stand as `{name}` in view SQL, outside of quoted texts.
fn sources_of(sql: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (index, part) in sql.split('\'').enumerate() {
        // Every second part is inside of quotes; a doubled quote gives an empty part between.
        if index % 2 == 1 {
            continue;
        }
        let mut rest = part;
        while let Some((_, after)) = rest.split_once('{') {
            let Some((name, next)) = after.split_once('}') else { break };
            if !name.is_empty() && !name.contains(char::is_whitespace) {
                names.push(name.to_owned());
            }
            rest = next;
        }
    }
    names
}

/// The id of a column, for other parts of the file that name one.
pub(super) fn column_id(
    draft: &TableDraft,
    name: &str,
    place: &Place,
    notes: &mut Notes<'_>,
) -> Option<ColumnId> {
    let id = draft.table.column(name);
    if id.is_none() && draft.has_columns {
        let message = format!("table `{}` has no column `{name}`", draft.table.name);
        notes.mistake(place, message, suggestion(name, &draft.column_names()));
    }
    id
}
