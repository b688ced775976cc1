//! FOLD: many changes of one row become an ordered list of few, normally one.
//!
//! [`Folded`] takes validated changes in the order of the log and keeps, for each row, the list of changes that gives the
//! same row as applying all of them one by one (promise P3). Apply works in rounds: round *k* writes the *k*-th change of
//! every row that has one, in one set of statements.
//!
//! A row's list has more than one change in two cases. The two do not compose, since a sum of theirs is not a value of its
//! column or a guard's outcome depends on the stored row: only the database can say what writing one after the other gives. Or the changes belong to different aggregates: they are never
//! composed, so that the store still meets the second one on a row of the first and refuses it as foreign, and bisection
//! finds the record that wrote it.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use ahash::AHashMap as HashMap;

use super::change::Composed;
use super::{Change, ColumnRules, Key, RowChange};
use crate::projection::{Datum, Table, TableId};

/// What a row costs beside its key and changes, in bytes: its place in the hash table and its lists.
const ROW_OVERHEAD: usize = 96;

/// The folded changes of a batch, or of several batches of one version.
#[derive(Debug, Clone, Default)]
pub struct Folded {
    columns: Arc<[ColumnRules]>,
    tables: Vec<HashMap<Key, FoldedRow>>,
    size: usize,
}

/// The folded changes of one row, to be applied in this order; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedRow {
    changes: Vec<FoldedChange>,
}

/// One folded change of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedChange {
    /// The aggregate that the change belongs to, in tables that store it.
    pub aggregate: Option<Datum>,
    /// What to do.
    pub change: Change,
}

/// The rows of one table that one round writes, sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedTable<'a> {
    /// The table.
    pub table: TableId,
    /// Key, owning aggregate and change of each row, by ascending key; no key twice.
    pub rows: Vec<(&'a Key, Option<&'a Datum>, &'a Change)>,
}

impl Folded {
    /// Nothing folded yet, for the tables of a declaration in their order.
    #[must_use]
    pub fn new(tables: &[Table]) -> Self {
        let columns = tables.iter().map(ColumnRules::of).collect();
        Self { columns, tables: vec![HashMap::new(); tables.len()], size: 0 }
    }

    /// Nothing folded yet, for the same tables as this one has; cheaper than [`Folded::new`].
    #[must_use]
    pub fn empty_like(&self) -> Self {
        Self { columns: self.columns.clone(), tables: vec![HashMap::new(); self.tables.len()], size: 0 }
    }

    /// Adds the next change in the order of the log.
    ///
    /// # Panics
    /// The table is not one of those given to [`Folded::new`]; validation refuses such changes.
    pub fn push(&mut self, change: RowChange) {
        let RowChange { table, key, aggregate, change } = change;
        self.fold(table, key, FoldedChange { aggregate, change });
    }

    /// Adds everything of `other`, which comes after all that is here. Of two partitions either may come first where
    /// their rows differ, as those of owned tables do, or their changes commute, as those of shared tables do.
    ///
    /// # Panics
    /// `other` is folded for other tables.
    pub fn merge(&mut self, other: Self) {
        if self.is_empty() && self.tables.len() == other.tables.len() {
            *self = other;
            return;
        }
        for (index, rows) in other.tables.into_iter().enumerate() {
            self.tables[index].reserve(rows.len());
            for (key, row) in rows {
                let mut changes = row.changes.into_iter();
                let last = changes.next_back();
                for change in changes {
                    self.fold(TableId(index), key.clone(), change);
                }
                if let Some(last) = last {
                    self.fold(TableId(index), key, last);
                }
            }
        }
    }

    fn fold(&mut self, table: TableId, key: Key, next: FoldedChange) {
        if next.change.is_nothing() {
            return;
        }
        match self.tables[table.0].entry(key) {
            Entry::Vacant(vacant) => {
                self.size += ROW_OVERHEAD + size_of_key(vacant.key()) + next.size();
                vacant.insert(FoldedRow { changes: vec![next] });
            }
            Entry::Occupied(mut row) => {
                append(&mut row.get_mut().changes, next, &self.columns[table.0], &mut self.size);
            }
        }
    }

    /// What each round writes, by ascending table and key. Round 0 writes the first change of every row, round *k* that of
    /// the rows that have more than *k*. Tables without rows in a round are left out; nothing folded gives no round.
    #[must_use]
    pub fn rounds(&self) -> Vec<Vec<FoldedTable<'_>>> {
        let mut left: Vec<(TableId, Vec<(&Key, &FoldedRow)>)> = Vec::new();
        for (index, rows) in self.tables.iter().enumerate() {
            if !rows.is_empty() {
                let mut rows: Vec<_> = rows.iter().collect();
                rows.sort_unstable_by_key(|(key, _)| *key);
                left.push((TableId(index), rows));
            }
        }
        let mut rounds = Vec::new();
        while !left.is_empty() {
            let round = rounds.len();
            rounds.push(left.iter().map(|(table, rows)| FoldedTable::of(*table, rows, round)).collect());
            left.retain_mut(|(_, rows)| {
                rows.retain(|(_, row)| row.changes.len() > round + 1);
                !rows.is_empty()
            });
        }
        rounds
    }

    /// How many rows have changes, in all tables.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.tables.iter().map(|rows| rows.len()).sum()
    }

    /// Bytes that all of this occupies, nearly: for the bounds of a batch and of the process.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|rows| rows.is_empty())
    }
}

/// Appends `next` to the changes of a row, composed with those before it as far as that is possible, so that no two
/// neighbours of the list can be composed. Keeps `size` in step.
fn append(changes: &mut Vec<FoldedChange>, mut next: FoldedChange, columns: &ColumnRules, size: &mut usize) {
    while let Some(last) = changes.pop_if(|last| last.aggregate == next.aggregate) {
        *size -= last.size();
        let aggregate = last.aggregate;
        match last.change.then(next.change, columns) {
            Composed::One(change) => next = FoldedChange { aggregate, change },
            Composed::Two(first, second) => {
                let first = FoldedChange { aggregate: aggregate.clone(), change: first };
                *size += first.size();
                changes.push(first);
                next = FoldedChange { aggregate, change: second };
                break;
            }
        }
    }
    *size += next.size();
    changes.push(next);
}

fn size_of_key(key: &Key) -> usize {
    key.iter().map(Datum::size).sum()
}

impl FoldedChange {
    fn size(&self) -> usize {
        size_of::<Option<Datum>>() + self.aggregate.as_ref().map_or(0, Datum::size) + self.change.size()
    }
}

impl FoldedRow {
    /// The changes, to be applied in this order; never empty.
    #[must_use]
    pub fn changes(&self) -> &[FoldedChange] {
        &self.changes
    }
}

impl<'a> FoldedTable<'a> {
    /// The changes of one round of rows that all have more than `round` changes.
    fn of(table: TableId, rows: &[(&'a Key, &'a FoldedRow)], round: usize) -> Self {
        let rows = rows
            .iter()
            .map(|(key, row)| {
                let FoldedChange { aggregate, change } = &row.changes[round];
                (*key, aggregate.as_ref(), change)
            })
            .collect();
        Self { table, rows }
    }
}
