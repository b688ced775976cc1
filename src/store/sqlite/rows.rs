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
/// Returns how many updates found no row.
pub(super) async fn write_round(
    work: &mut Work<'_>,
    transaction: &Transaction<'_>,
    round: &[FoldedTable<'_>],
) -> Result<u64, StoreError> {
    let mut missed = 0;
    let mut tables: Vec<_> = round.iter().collect();
    tables.sort_by_key(|folded| folded.table);
    let mut last = Vec::new();
    for folded in tables {
        let Some(table) = transaction.tables.get(folded.table.0) else {
            return Err(bug(APPLY, "rows of a table that is not declared"));
        };
        let target = Target::new(table, transaction.version.version);
        let (groups, deletes) = grouped(&folded.rows);
        let (guarded_deletes, groups): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|(shape, _)| shape.is_guarded_delete());
        for (shape, rows) in &groups {
            missed += Writer { work, target: &target }.write(shape, rows).await?;
        }
        last.push((target, deletes, guarded_deletes));
    }
    for (target, rows, guarded) in last.iter().rev() {
        let mut writer = Writer { work, target };
        writer.delete(rows).await?;
        for (shape, rows) in guarded {
            writer.guarded_delete(shape, rows).await?;
        }
    }
    Ok(missed)
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
            (Present::Delete, Absent::Nothing) if row.2.guard.is_none() => {
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
    /// Returns how many rows were to be updated and are not there.
    async fn write(&mut self, shape: &Shape, rows: &[&Row<'_>]) -> Result<u64, StoreError> {
        let (present, absent) = shape.travelling();
        // Of projections in YAML it has been found before; here it is for those written in Rust.
        for (id, effect) in present.iter().chain(absent) {
            let column = self.column(*id)?;
            let refusal = match effect {
                Effect::Add => rehearsal::refuse_sum(self.target.table, column),
                Effect::Max | Effect::Min => rehearsal::refuse_comparison(self.target.table, column),
                Effect::Set | Effect::SetOnce => None,
            };
            if let Some((problem, fix)) = refusal {
                return Err(StoreError::Refused { problem, fix });
            }
        }
        self.refuse_comparisons(shape)?;
        if shape.present == ToPresent::Delete && shape.absent != ToAbsent::Nothing {
            self.toggle(shape, rows).await?;
            return Ok(0);
        }
        let width = self.target.leading() + present.len() + absent.len() + shape.guard.width();
        if shape.is_at_once(self.target.table) {
            for part in chunks(rows, width) {
                let parameters = self.full(shape, part)?;
                let written = self.work.run(&self.target.at_once(shape, part.len()), parameters).await?;
                // Where rows carry their aggregate, one that was found and not written is another's.
                if self.target.table.stores_aggregate() && written < part.len() as u64 {
                    return Err(self.foreign());
                }
            }
            return Ok(0);
        }
        let mut missed = 0;
        for part in chunks(rows, width) {
            if shape.present != ToPresent::Keep {
                self.refuse_foreign(part).await?;
            }
            let mut changed = 0;
            if let Some(sql) = self.target.update(shape, part.len()) {
                changed = self.work.run(&sql, self.full(shape, part)?).await?;
            }
            if let Some(sql) = self.target.insert(shape, part.len()) {
                self.work.run(&sql, self.full(shape, part)?).await?;
            } else if changed < part.len() as u64 && shape.present != ToPresent::Keep {
                missed += self.missing(part).await?;
            }
        }
        Ok(missed)
    }

    /// How many of the rows are not there.
    async fn missing(&mut self, rows: &[&Row<'_>]) -> Result<u64, StoreError> {
        let found = self.work.rows(&self.target.there(rows.len()), self.keys(rows)?).await?;
        Ok((rows.len() - found.len()) as u64)
    }

    fn refuse_comparisons(&self, shape: &Shape) -> Result<(), StoreError> {
        for id in &shape.guard.newer {
            if let Some((problem, fix)) = rehearsal::refuse_comparison(self.target.table, self.column(*id)?) {
                return Err(StoreError::Refused { problem, fix });
            }
        }
        Ok(())
    }

    async fn guarded_delete(&mut self, shape: &Shape, rows: &[&Row<'_>]) -> Result<(), StoreError> {
        self.refuse_comparisons(shape)?;
        for part in chunks(rows, self.target.leading() + shape.guard.width()) {
            self.refuse_foreign(part).await?;
            let parameters = self.full(shape, part)?;
            self.work.run(&self.target.guarded_delete(shape, part.len()), parameters).await?;
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
        let width = self.target.leading() + present.len() + absent.len() + shape.guard.width();
        let mut parameters = Parameters::with_capacity(rows.len() * width);
        for row in rows {
            self.push_leading(&mut parameters, row)?;
            if let Present::Merge(assignments) | Present::Replace(assignments) = &row.2.present {
                self.push_values(&mut parameters, assignments)?;
            }
            if let Absent::Insert(assignments) = &row.2.absent {
                self.push_values(&mut parameters, assignments)?;
            }
            if let Some(guard) = &row.2.guard {
                for (id, datum) in &guard.newer {
                    self.push_compared(&mut parameters, self.column(*id)?, datum)?;
                }
                for (id, datum) in &guard.only_if {
                    self.push(&mut parameters, self.column(*id)?, datum)?;
                }
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
        for (id, assign) in assignments {
            let column = self.column(*id)?;
            match assign {
                Assign::Max(datum) | Assign::Min(datum) => self.push_compared(parameters, column, datum)?,
                other => self.push(parameters, column, other.datum())?,
            }
        }
        Ok(())
    }

    /// Adds a value that SQLite is to compare.
    fn push_compared(
        &self,
        parameters: &mut Parameters,
        column: &Column,
        datum: &Datum,
    ) -> Result<(), StoreError> {
        if types::is_ordered(datum) { self.push(parameters, column, datum) } else { Err(self.misfit(column)) }
    }

    fn push(&self, parameters: &mut Parameters, column: &Column, datum: &Datum) -> Result<(), StoreError> {
        types::push(parameters, &column.kind, datum).map_err(|unfit| match unfit {
            Unfit::Mismatch => bug(APPLY, "a value is not of its column's type"),
            // As if SQLite said so: it would keep NULL without a word.
            Unfit::NotANumber => self.misfit(column),
        })
    }

    /// As if SQLite had refused a value.
    fn misfit(&self, column: &Column) -> StoreError {
        StoreError::Database {
            action: APPLY,
            code: DatabaseCode::Sqlite(MISMATCH),
            place: ErrorPlace {
                constraint: None,
                table: Some(self.target.table.name.clone()),
                column: Some(column.name.clone()),
            },
        }
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
