//! What SQLite would refuse of a declaration, found without the file: what it lacks is known, and all the rest is made in a
//! database in memory, which ends with the look.

use super::connections::{Connections, Purpose, Work};
use super::schema;
use super::types;
use super::views;
use crate::projection::{Column, ColumnId, ColumnType, Declaration, Table, TableId};
use crate::store::StoreError;
use crate::store::sql::quote;

/// A part of a declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A table.
    Table(TableId),
    /// A column of a table.
    Column(TableId, ColumnId),
    /// An index of a table, by its order.
    Index(TableId, usize),
    /// A view, by its order.
    View(usize),
}

/// Something that SQLite does not have or take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What of the declaration.
    pub part: Part,
    /// What is wrong: a lower-case fragment, of names and of the declaration's own SQL.
    pub problem: String,
    /// What to do about it.
    pub fix: String,
}

/// Why nothing can be added to a column, and what to do about it; `None` where SQLite adds to it exactly.
#[must_use]
pub fn refuse_sum(table: &Table, column: &Column) -> Option<(String, String)> {
    let problem = || {
        let (table, name, kind) = (&table.name, &column.name, &column.kind);
        format!("{table}.{name} is {kind}, and SQLite does not add to such a column exactly")
    };
    let fix = "count in a bigint, such as one of cents, or use PostgreSQL";
    (!types::is_sum(&column.kind)).then(|| (problem(), fix.to_owned()))
}

/// Why the values of a column are not compared, and what to do about it; `None` where SQLite compares them as PostgreSQL does.
#[must_use]
pub fn refuse_comparison(table: &Table, column: &Column) -> Option<(String, String)> {
    let (table, name, kind) = (&table.name, &column.name, &column.kind);
    // Kept as text.
    matches!(column.kind, ColumnType::Numeric { .. }).then(|| {
        let problem = format!("{table}.{name} is {kind}, and SQLite does not compare such a column by value");
        (problem, "use a bigint, such as one of cents, or use PostgreSQL".to_owned())
    })
}

/// What SQLite would refuse of a declaration, in its order. Views are looked at where nothing else is refused; one that reads
/// a table of somebody else passes, since that may be in the file.
///
/// # Errors
/// The look itself failed.
pub async fn rehearse(declaration: &Declaration) -> Result<Vec<Refusal>, StoreError> {
    let mut refusals: Vec<Refusal> = Vec::new();
    for (id, table) in declaration.tables.iter().enumerate() {
        refusals.extend(schema::lacks(TableId(id), table));
    }
    if !refusals.is_empty() {
        return Ok(refusals);
    }
    let scratch = Connections::in_memory();
    let mut work = Work::begin(&scratch, Purpose::Write, "look what SQLite makes of a projection").await?;
    for (id, table) in declaration.tables.iter().enumerate() {
        let id = TableId(id);
        let create = schema::create_table(table, declaration.version);
        if let Err(why) = work.declared(&create).await? {
            refusals.push(refusal(Part::Table(id), format!("SQLite does not take the table: {why}")));
            continue;
        }
        for (index, (_, create)) in schema::create_indexes(table, declaration.version).iter().enumerate() {
            if let Err(why) = work.declared(create).await? {
                refusals
                    .push(refusal(Part::Index(id, index), format!("SQLite does not take the index: {why}")));
            }
        }
    }
    if refusals.is_empty() {
        for (index, view) in declaration.views.iter().enumerate() {
            let create = views::create_view(declaration, view);
            let mut made = work.declared(&create).await?;
            if made.is_ok() {
                // SQLite looks into a view only when it is read.
                made = work.declared(&format!("select * from {} limit 0", quote(&view.name))).await?;
            }
            if let Err(why) = made
                && !why.contains("no such table: ")
            {
                let problem = format!("SQLite does not take the view {}: {why}", view.name);
                refusals.push(refusal(Part::View(index), problem));
            }
        }
    }
    work.rollback().await;
    scratch.close().await;
    Ok(refusals)
}

fn refusal(part: Part, problem: String) -> Refusal {
    Refusal { part, problem, fix: "write it as SQLite has it, or use PostgreSQL".to_owned() }
}
