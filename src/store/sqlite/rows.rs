//! Writing the rows of a round: which statement writes which rows, and in which order.

use ahash::AHashMap as HashMap;

use super::connections::{Parameters, Work};
use super::errors::{MISMATCH, bug};
use super::rehearsal;
use super::statements::{Effect, Shape, Target, ToAbsent, ToPresent};
use super::types::{self, Unfit};
use crate::fold::{Absent, Assign, Assignments, Change, FoldedTable, Key, Present};
use crate::projection::{Column, ColumnId, Datum};
use crate::store::error::ErrorPlace;
use crate::store::{DatabaseCode, StoreError, Transaction, sql};

const APPLY: &str = "apply a batch";

/// Rows of one statement: as many as one of these, the largest that is left. Few sizes, so that few statements are prepared.
const CHUNKS: [usize; 3] = [64, 8, 1];

/// Parameters of one statement, at most; SQLite takes 32,766.
const MOST_PARAMETERS: usize = 30_000;

/// A row to write: its key, the aggregate that it must belong to, and its change.
type Row<'a> = (&'a Key, Option<&'a Datum>, &'a Change);

/// Writes a round: by table in declared order what makes or changes rows, then in reverse what only deletes them.
pub(super) async fn write_round(
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
    round: &[FoldedTable<'_>],
) -> Result<(), StoreError> {
    let mut tables: Vec<_> = round.iter().collect();
    tables.sort_by_key(|folded| folded.table);
    let mut last = Vec::new();
    for folded in tables {
        let Some(table) = transaction.tables.get(folded.table.0) else {
            return Err(bug(APPLY, "rows of a table that is not declared"));
        };
        let target = Target::new(table, transaction.version.version);
        let (groups, deletes) = grouped(&folded.rows);
        for (shape, rows) in &groups {
            Writer { work, target: &target }.write(shape, rows).await?;
        }
        last.push((target, deletes));
    }
    for (target, rows) in last.iter().rev() {
        Writer { work, target }.delete(rows).await?;
    }
    Ok(())
}

/// Rows by the shape of their change, in the order in which shapes first occur, and rows that are only deleted. Each list
/// keeps the order of keys.
fn grouped<'r, 'a>(rows: &'r [Row<'a>]) -> (Vec<(Shape, Vec<&'r Row<'a>>)>, Vec<&'r Row<'a>>) {
    let mut groups: Vec<(Shape, Vec<&Row<'_>>)> = Vec::new();
    let mut places: HashMap<Shape, usize> = HashMap::new();
    let mut deletes = Vec::new();
    let mut last = 0;
    for row in rows {
        match (&row.2.present, &row.2.absent) {
            (Present::Keep, Absent::Nothing) => continue,
            (Present::Delete, Absent::Nothing) => {
                deletes.push(row);
                continue;
            }
            _ => {}
        }
        // Neighbours mostly have the same shape.
        if !groups.get(last).is_some_and(|(shape, _)| shape.is_of(row.2)) {
            let shape = Shape::of(row.2);
            last = *places.entry(shape).or_insert_with_key(|shape| {
                groups.push((shape.clone(), Vec::new()));
                groups.len() - 1
            });
        }
        groups[last].1.push(row);
    }
    (groups, deletes)
}

/// Writes to one table.
struct Writer<'w, 'c> {
    work: &'w mut Work<'c>,
    target: &'w Target<'w>,
}

impl Writer<'_, '_> {
    async fn write(&mut self, shape: &Shape, rows: &[&Row<'_>]) -> Result<(), StoreError> {
        let (present, absent) = shape.travelling();
        for (id, _) in present.iter().chain(absent).filter(|(_, effect)| *effect == Effect::Add) {
            let column = self.column(*id)?;
            // Of projections in YAML it has been found before; here it is for those written in Rust.
            if let Some((problem, fix)) = rehearsal::refuse_sum(self.target.table, column) {
                return Err(StoreError::Refused { problem, fix });
            }
        }
        if shape.present == ToPresent::Delete && shape.absent != ToAbsent::Nothing {
            return self.toggle(shape, rows).await;
        }
        let width = self.target.leading() + present.len() + absent.len();
        if shape.is_at_once(self.target.table) {
            for part in chunks(rows, width) {
                let parameters = self.full(shape, part)?;
                let written = self.work.run(&self.target.at_once(shape, part.len()), parameters).await?;
                // Where rows carry their aggregate, one that was found and not written is another's.
                if self.target.table.stores_aggregate() && written < part.len() as u64 {
                    return Err(self.foreign());
                }
            }
            return Ok(());
        }
        for part in chunks(rows, width) {
            if shape.present != ToPresent::Keep {
                self.refuse_foreign(part).await?;
            }
            if let Some(sql) = self.target.update(shape, part.len()) {
                self.work.run(&sql, self.full(shape, part)?).await?;
            }
            if let Some(sql) = self.target.insert(shape, part.len()) {
                self.work.run(&sql, self.full(shape, part)?).await?;
            }
        }
        Ok(())
    }

    /// Removes rows that are there and makes those that are not: one by one, since either undoes the other.
    async fn toggle(&mut self, shape: &Shape, rows: &[&Row<'_>]) -> Result<(), StoreError> {
        for row in rows {
            let one = std::slice::from_ref(row);
            let there = self.work.rows(&self.target.exists(), self.keys(one)?).await?;
            if !there.is_empty() {
                self.delete(one).await?;
            } else if let Some(sql) = self.target.insert(shape, 1) {
                self.work.run(&sql, self.full(shape, one)?).await?;
            }
        }
        Ok(())
    }

    async fn delete(&mut self, rows: &[&Row<'_>]) -> Result<(), StoreError> {
        for part in chunks(rows, self.target.leading()) {
            self.refuse_foreign(part).await?;
            self.work.run(&self.target.delete(part.len()), self.keys(part)?).await?;
        }
        Ok(())
    }

    async fn refuse_foreign(&mut self, rows: &[&Row<'_>]) -> Result<(), StoreError> {
        if !self.target.table.stores_aggregate() {
            return Ok(());
        }
        let mut parameters = Parameters::with_capacity(rows.len() * self.target.leading());
        for row in rows {
            self.push_leading(&mut parameters, row)?;
        }
        let found = self.work.rows(&self.target.any_foreign(rows.len()), parameters).await?;
        if found.is_empty() { Ok(()) } else { Err(self.foreign()) }
    }

    fn foreign(&self) -> StoreError {
        StoreError::ForeignRow { table: self.target.table.name.clone() }
    }

    fn column(&self, id: ColumnId) -> Result<&Column, StoreError> {
        self.target.table.columns.get(id.0).ok_or_else(|| bug(APPLY, "a column that is not declared"))
    }

    /// The parameters of rows with everything that travels.
    fn full(&self, shape: &Shape, rows: &[&Row<'_>]) -> Result<Parameters, StoreError> {
        let (present, absent) = shape.travelling();
        let width = self.target.leading() + present.len() + absent.len();
        let mut parameters = Parameters::with_capacity(rows.len() * width);
        for row in rows {
            self.push_leading(&mut parameters, row)?;
            if let Present::Merge(assignments) | Present::Replace(assignments) = &row.2.present {
                self.push_values(&mut parameters, assignments)?;
            }
            if let Absent::Insert(assignments) = &row.2.absent {
                self.push_values(&mut parameters, assignments)?;
            }
        }
        Ok(parameters)
    }

    fn keys(&self, rows: &[&Row<'_>]) -> Result<Parameters, StoreError> {
        let mut parameters = Parameters::with_capacity(rows.len() * self.target.leading());
        for row in rows {
            self.push_key(&mut parameters, row)?;
        }
        Ok(parameters)
    }

    fn push_leading(&self, parameters: &mut Parameters, row: &Row<'_>) -> Result<(), StoreError> {
        self.push_key(parameters, row)?;
        if self.target.table.stores_aggregate() {
            match row.1 {
                Some(Datum::Text(aggregate)) => parameters.push(aggregate.to_string()),
                _ => return Err(bug(APPLY, "a row without its aggregate")),
            }
        }
        Ok(())
    }

    fn push_key(&self, parameters: &mut Parameters, row: &Row<'_>) -> Result<(), StoreError> {
        let columns = sql::key_columns(self.target.table);
        if row.0.len() != self.target.table.primary_key.len() {
            return Err(bug(APPLY, "a key of another length"));
        }
        for (column, datum) in columns.zip(row.0.iter()) {
            self.push(parameters, column, datum)?;
        }
        Ok(())
    }

    fn push_values(&self, parameters: &mut Parameters, assignments: &Assignments) -> Result<(), StoreError> {
        for (id, Assign::Set(datum) | Assign::Add(datum)) in assignments {
            self.push(parameters, self.column(*id)?, datum)?;
        }
        Ok(())
    }

    fn push(&self, parameters: &mut Parameters, column: &Column, datum: &Datum) -> Result<(), StoreError> {
        types::push(parameters, &column.kind, datum).map_err(|unfit| match unfit {
            Unfit::Mismatch => bug(APPLY, "a value is not of its column's type"),
            // As if SQLite said so: it would keep NULL without a word.
            Unfit::NotANumber => StoreError::Database {
                action: APPLY,
                code: DatabaseCode::Sqlite(MISMATCH),
                place: ErrorPlace {
                    constraint: None,
                    table: Some(self.target.table.name.clone()),
                    column: Some(column.name.clone()),
                },
            },
        })
    }
}

/// Cuts rows into the parts that one statement each takes.
fn chunks<T>(rows: &[T], width: usize) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let fits = |size: &usize| *size <= rest.len() && *size * width <= MOST_PARAMETERS;
        // A single row goes in any case: a table has no more columns than SQLite takes.
        let size = CHUNKS.into_iter().find(fits).unwrap_or_else(|| rest.len().min(1));
        let (part, others) = rest.split_at(size);
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_into_few_sizes_and_none_is_lost() {
        let rows: Vec<usize> = (0..150).collect();
        let sizes = |width| chunks(&rows, width).map(<[usize]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(12), [64, 64, 8, 8, 1, 1, 1, 1, 1, 1]);
        assert_eq!(sizes(2000)[0], 8);
        assert_eq!(sizes(40_000), vec![1; 150]);
        assert!(chunks(&rows, 12).flatten().copied().eq(0..150));
    }
}
