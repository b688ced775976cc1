//! A projection's tables and indexes: made where they are missing, verified where they are there.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::PostgresStore;
use super::catalogue::{self, ColumnFacts, Relation};
use super::errors::{Complaint, sqlstate};
use super::gaps::Gaps;
use super::names;
use super::positions::get;
use super::types;
use super::work::{Parameters, Work};
use crate::config::settings::DdlMode;
use crate::projection::{Column, ColumnType, Declaration, Index, Nullability, Table};
use crate::store::StoreError;
use crate::store::sql::{AGGREGATE, key_columns, quote, quote_list};

/// The statement that makes a table.
pub(super) fn create_table(schema: &str, table: &Table, version: u32) -> String {
    let mut lines: Vec<String> = table.columns.iter().map(column_line).collect();
    if table.stores_aggregate() {
        lines.push(format!("{} text not null", quote(AGGREGATE)));
    }
    lines.push(format!("primary key ({})", quote_list(key_names(table))));
    format!(
        "create table {}.{} (\n  {}\n)",
        quote(schema),
        quote(&table.physical_name(version)),
        lines.join(",\n  ")
    )
}

fn column_line(column: &Column) -> String {
    let mut line = format!("{} {}", quote(&column.name), types::sql_name(&column.kind));
    // Writing to a String cannot fail.
    if let Some(expression) = &column.generated {
        let _ = write!(line, " generated always as ({expression}) stored");
    } else if types::default_of(column) != "null" {
        let _ = write!(line, " default {}", types::default_of(column));
    }
    if column.nullability == Nullability::NotNull {
        line.push_str(" not null");
    }
    line
}

fn key_names(table: &Table) -> impl Iterator<Item = &str> {
    key_columns(table).map(|column| column.name.as_str())
}

/// Names and statements of a table's indexes.
pub(super) fn create_indexes(schema: &str, table: &Table, version: u32) -> Vec<(String, String)> {
    let physical = table.physical_name(version);
    let create = |index: &Index| {
        let what = match &index.expression {
            Some(expression) => format!("(({expression}))"),
            None => {
                format!("({})", quote_list(index.columns.iter().map(String::as_str)))
            }
        };
        let method =
            index.method.as_ref().map(|method| format!(" using {}", quote(method))).unwrap_or_default();
        let condition = index.condition.as_ref().map(|sql| format!(" where {sql}")).unwrap_or_default();
        let unique = if index.unique { "unique " } else { "" };
        let body = format!("on {}.{}{method} {what}{condition}", quote(schema), quote(&physical));
        let name = index_name(&physical, &format!("{unique}{body}"));
        let sql = format!("create {unique}index {} {body}", quote(&name));
        (name, sql)
    };
    table.indexes.iter().map(create).collect()
}

/// A name that stays the same while the index does, wherever it stands in the list.
fn index_name(physical: &str, definition: &str) -> String {
    let digest = Sha256::digest(format!("{physical} {definition}"));
    let mark = digest.iter().take(4).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    });
    let mut end = physical.len().min(names::LONGEST - 12);
    while !physical.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}_ix_{mark}", &physical[..end])
}

/// Refuses names that PostgreSQL would cut.
pub(super) fn check_names(table: &Table, version: u32) -> Result<(), StoreError> {
    names::check("table", &table.physical_name(version))?;
    for column in &table.columns {
        names::check("column", &column.name)?;
        if column.name.starts_with("projector_") {
            return Err(StoreError::Layout {
                problem: format!(
                    "column {}.{} has a name that the projector keeps for itself",
                    table.name, column.name
                ),
                fix: "call it something else".to_owned(),
            });
        }
    }
    Ok(())
}

/// Whether a table was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It has just been made.
    Made,
    /// It was there, and is as declared.
    Found,
}

/// The physical names of a declaration's tables.
pub(super) fn physical_names(declaration: &Declaration) -> Vec<String> {
    declaration.tables.iter().map(|table| table.physical_name(declaration.version)).collect()
}

/// Makes or verifies a table and its indexes.
pub(super) async fn make_table(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    table: &Table,
    version: u32,
) -> Result<Presence, StoreError> {
    check_names(table, version)?;
    let physical = table.physical_name(version);
    let presence = if let Some(relation) = catalogue::relation(work, &store.schema, &physical).await? {
        verify(work, &physical, table, &relation).await?;
        Presence::Found
    } else {
        let sql = create_table(&store.schema, table, version);
        let missing = format!("table {physical} is missing");
        let what = format!("table {}", table.name);
        declared(store, work, gaps, Presence::Made, &what, &missing, &sql).await?;
        gaps.made().tables.push(physical.clone());
        Presence::Made
    };
    for (name, sql) in create_indexes(&store.schema, table, version) {
        match catalogue::index(work, &store.schema, &name).await? {
            Some(facts) if facts.is_valid => {}
            Some(_) => {
                return Err(differs(
                    format!("the index {name} of table {physical} is not valid"),
                    "drop it, so that it is made anew",
                ));
            }
            None => {
                let what = format!("an index of table {}", table.name);
                let missing = format!("index {name} is missing");
                declared(store, work, gaps, presence, &what, &missing, &sql).await?;
            }
        }
    }
    Ok(presence)
}

/// Runs DDL that contains SQL of the projection's author, and says so where the database does not take it.
async fn declared(
    store: &PostgresStore,
    work: &mut Work<'_>,
    gaps: &mut Gaps,
    table: Presence,
    what: &str,
    missing: &str,
    sql: &str,
) -> Result<(), StoreError> {
    if store.ddl == DdlMode::Verify {
        gaps.add(missing, sql);
        return Ok(());
    }
    let done = match table {
        Presence::Made => work.declared(sql).await?,
        // An index of a table with rows: what is said of it may quote one.
        Presence::Found => work.attempt(sql).await?.map_err(Complaint::from),
    };
    done.map_err(|complaint| refused(what, &complaint))
}

/// Whether an error is one of the SQL itself.
pub(super) fn is_about_sql(code: &str) -> bool {
    let others = ["42501", "42P06", "42P07", "42710"];
    !others.contains(&code) && ["42", "22", "2B", "0A"].iter().any(|class| code.starts_with(class))
}

/// The database's refusal of something declared, where it is one.
pub(super) fn refused(what: &str, complaint: &Complaint) -> StoreError {
    let fix = match sqlstate(&complaint.error) {
        Some("42501") => {
            "let the role of `store.url` (or `store.admin_url`) create in the schema and own what it is to change there"
        }
        Some("42P06" | "42P07" | "42710") => "drop what has that name, or choose another one",
        Some(code) if is_about_sql(code) => {
            "correct its declaration; `projector ddl NAME` prints the SQL to try by hand"
        }
        _ => return complaint.error.clone(),
    };
    StoreError::Layout {
        problem: format!("{what} cannot be made: {}", complaint.text()),
        fix: fix.to_owned(),
    }
}

async fn verify(
    work: &mut Work<'_>,
    physical: &str,
    table: &Table,
    relation: &Relation,
) -> Result<(), StoreError> {
    if relation.kind != "r" && relation.kind != "p" {
        return Err(differs(format!("{physical} is no table"), "drop it or rename the table"));
    }
    for column in &table.columns {
        let Some(facts) = relation.columns.iter().find(|facts| facts.name == column.name) else {
            let kind = types::sql_name(&column.kind);
            return Err(differs(
                format!("table {physical} has no column {}", column.name),
                &format!("add it: {kind}"),
            ));
        };
        let is_key = key_names(table).any(|name| name == column.name);
        verify_column(work, physical, column, facts, is_key).await?;
    }
    if table.stores_aggregate() {
        let aggregate = relation.columns.iter().find(|facts| facts.name == AGGREGATE);
        if !aggregate.is_some_and(|facts| facts.base_type == "text" && facts.is_not_null) {
            let problem = format!("table {physical} has no column {AGGREGATE} of type text not null");
            return Err(differs(problem, "drop the table so that it is made anew"));
        }
    }
    let declared = |facts: &&ColumnFacts| {
        table.column(&facts.name).is_some() || (table.stores_aggregate() && facts.name == AGGREGATE)
    };
    if let Some(extra) = relation.columns.iter().find(|facts| !declared(facts)) {
        let problem = format!("table {physical} has the column {}, which is not declared", extra.name);
        return Err(differs(problem, "drop it, or declare it in a new version"));
    }
    if !relation.primary_key.iter().map(String::as_str).eq(key_names(table)) {
        let (is, should) = (relation.primary_key.join(", "), key_names(table).collect::<Vec<_>>().join(", "));
        let problem = format!("the primary key of table {physical} is ({is}); it should be ({should})");
        return Err(differs(problem, "make the key as declared, not deferrable"));
    }
    Ok(())
}

fn differs(problem: String, fix: &str) -> StoreError {
    StoreError::Layout { problem, fix: fix.to_owned() }
}

async fn verify_column(
    work: &mut Work<'_>,
    physical: &str,
    column: &Column,
    facts: &ColumnFacts,
    is_key: bool,
) -> Result<(), StoreError> {
    let name = format!("{physical}.{}", column.name);
    let fix = "change it, or declare what is there in a new version";
    let should = types::sql_name(&column.kind);
    let base = catalogue::type_name(work, &should).await?;
    if base.as_deref() != Some(facts.base_type.as_str())
        || !same_length(&column.kind, &should, &facts.full_type)
    {
        return Err(differs(format!("column {name} is {}; it should be {should}", facts.full_type), fix));
    }
    // A column of a primary key is NOT NULL whether or not it says so.
    let should_be_not_null = is_key || column.nullability == Nullability::NotNull;
    if should_be_not_null != facts.is_not_null {
        let (is, should) =
            if facts.is_not_null { ("is not null", "nullable") } else { ("may be null", "not null") };
        return Err(differs(format!("column {name} {is}; it should be {should}"), fix));
    }
    if facts.is_generated != column.generated.is_some() {
        let (is, should) = if facts.is_generated { ("generated", "plain") } else { ("plain", "generated") };
        return Err(differs(format!("column {name} is {is}; it should be {should}"), fix));
    }
    if column.generated.is_none() {
        verify_default(work, &name, column, facts, &should).await?;
    }
    Ok(())
}

/// Compares what stands in parentheses: the catalogue spells types in its own way, but lengths alike.
fn same_length(kind: &ColumnType, declared: &str, full: &str) -> bool {
    let length = |text: &str| {
        let inner = text.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(inner, _)| inner);
        inner.map(|inner| inner.chars().filter(|character| !character.is_whitespace()).collect::<String>())
    };
    match (length(declared), length(full)) {
        (None, Some(one)) => matches!(kind, ColumnType::Catalogue(_)) && one == "1",
        // `numeric(5)` is shown with its scale.
        (Some(declared), Some(full)) => declared == full || format!("{declared},0") == full,
        (declared, full) => declared == full,
    }
}

async fn verify_default(
    work: &mut Work<'_>,
    name: &str,
    column: &Column,
    facts: &ColumnFacts,
    kind: &str,
) -> Result<(), StoreError> {
    let should = types::default_of(column);
    let is = facts.expression.as_deref().unwrap_or("null");
    let fix = "change it, or declare what is there in a new version";
    let differs = || Err(differs(format!("column {name} has the default {is}; it should be {should}"), fix));
    if is == should {
        return Ok(());
    }
    if (is == "null") != (should == "null") {
        return differs();
    }
    // Only an expression without calls is evaluated: a default such as nextval() would have effects.
    if !is_constant(is) {
        return differs();
    }
    let sql = format!("select ({is})::{kind}::text is not distinct from ({should})::{kind}::text");
    let rows = work.rows(&sql, Parameters::new()).await?;
    let same: bool = rows.first().map_or(Ok(false), |row| get(row, 0))?;
    if same { Ok(()) } else { differs() }
}

/// Whether an expression of the catalogue is made of literals, casts, signs and the sums that our own literals of dates and
/// times are.
fn is_constant(expression: &str) -> bool {
    let mut outside = String::new();
    for (index, part) in expression.split('\'').enumerate() {
        if index % 2 == 0 {
            outside.push_str(part);
        }
    }
    // A call is a word right before an opening parenthesis; `numeric(10,2)` and its like are types.
    let mut before = "";
    for (index, part) in outside.split('(').enumerate() {
        let word = before.rsplit(|character: char| !character.is_alphanumeric() && character != '_').next();
        if index > 0 && !word.is_none_or(str::is_empty) {
            let is_type = ["numeric", "varying", "character", "timestamp", "time", "interval", "bit"];
            if !word.is_some_and(|word| is_type.contains(&word)) {
                return false;
            }
        }
        before = part;
    }
    let mentions = |word: &str| outside.to_ascii_lowercase().contains(word);
    !["current_", "localtime", "session_user", "user"].into_iter().any(mentions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_told_from_calls() {
        for constant in
            ["0", "'-1'::integer", "'a (b)'::character varying", "1.50", "true", "('1970-01-01'::date + 5)"]
        {
            assert!(is_constant(constant), "{constant}");
        }
        for call in
            ["now()", "nextval('s'::regclass)", "CURRENT_TIMESTAMP", "CURRENT_USER", "gen_random_uuid()"]
        {
            assert!(!is_constant(call), "{call}");
        }
    }

    #[test]
    fn index_names_are_short_and_differ() {
        let long = "ä".repeat(31);
        let (a, b) = (index_name(&long, "on (a)"), index_name(&long, "on (b)"));
        assert!(a.len() <= names::LONGEST && a != b, "{a} {b}");
    }
}
