//! The transaction of a batch: rows by round, dead letters, positions.
//!
//! SQLite has one writer, so a row is written by looking whether it is there: no other transaction can come between.

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{AssertSqlSafe, Row, Sqlite};

use super::connection::Verdict;
use super::ddl::{AGGREGATE, quote};
use super::errors::failed;
use super::{dead_letters, positions};
use crate::fold::{Absent, Assign, Assignments, Change, FoldedTable, Key, Present, canonical};
use crate::projection::{Column, ColumnId, Datum, Table};
use crate::store::{Applied, StoreError, Transaction};

const ACTION: &str = "write rows";

pub(super) async fn apply(
    connection: &mut SqliteConnection,
    transaction: &Transaction<'_>,
) -> Result<Verdict<Applied>, StoreError> {
    for round in &transaction.rounds {
        for rows in round {
            write(connection, transaction, rows, Pass::Upserts).await?;
        }
        for rows in round.iter().rev() {
            write(connection, transaction, rows, Pass::Deletes).await?;
        }
    }
    dead_letters::insert(connection, &transaction.dead_letters).await?;
    dead_letters::mark(connection, &transaction.published).await?;
    let fenced = positions::advance(connection, transaction.version, transaction.advances).await?;
    if fenced.is_empty() {
        Ok(Verdict::Commit(Applied::Committed))
    } else {
        Ok(Verdict::RollBack(Applied::Fenced(fenced)))
    }
}

/// Upserts come in declared order, deletes in reverse, so that rows that others refer to are there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Upserts,
    Deletes,
}

async fn write(
    connection: &mut SqliteConnection,
    transaction: &Transaction<'_>,
    rows: &FoldedTable<'_>,
    pass: Pass,
) -> Result<(), StoreError> {
    let Some(table) = transaction.tables.get(rows.table.0) else {
        return Err(StoreError::Bug {
            action: ACTION,
            detail: "a change names a table that is not declared".to_owned(),
        });
    };
    let writer = RowWriter::new(table, transaction.version.version);
    for (key, aggregate, change) in &rows.rows {
        let is_delete = matches!((&change.present, &change.absent), (Present::Delete, Absent::Nothing));
        if is_delete == (pass == Pass::Deletes) {
            writer.write(connection, key, *aggregate, change).await?;
        }
    }
    Ok(())
}

struct RowWriter<'a> {
    table: &'a Table,
    name: String,
    by_key: String,
}

impl<'a> RowWriter<'a> {
    fn new(table: &'a Table, version: u32) -> Self {
        let key: Vec<String> = table
            .primary_key
            .iter()
            .filter_map(|id| table.columns.get(id.0))
            .map(|column| format!("{} = ?", quote(&column.name)))
            .collect();
        Self { table, name: quote(&table.physical_name(version)), by_key: key.join(" and ") }
    }

    async fn write(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        aggregate: Option<&Datum>,
        change: &Change,
    ) -> Result<(), StoreError> {
        let is_there = self.is_there(connection, key, aggregate).await?;
        if is_there {
            match &change.present {
                Present::Keep => Ok(()),
                Present::Delete => self.delete(connection, key).await,
                Present::Merge(assignments) => self.update(connection, key, assignments, None).await,
                Present::Replace(assignments) => {
                    let resets = self.others(assignments);
                    self.update(connection, key, assignments, Some(&resets)).await
                }
            }
        } else {
            match (&change.absent, &change.present) {
                (Absent::Nothing, _) => Ok(()),
                (Absent::Insert(assignments), _)
                | (Absent::InsertSame, Present::Merge(assignments) | Present::Replace(assignments)) => {
                    self.insert(connection, key, aggregate, assignments).await
                }
                (Absent::InsertSame, Present::Keep | Present::Delete) => {
                    self.insert(connection, key, aggregate, &Vec::new()).await
                }
            }
        }
    }

    /// Whether the row is there; a row of another aggregate is refused.
    async fn is_there(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        aggregate: Option<&Datum>,
    ) -> Result<bool, StoreError> {
        let owner = if self.table.stores_aggregate() { quote(AGGREGATE) } else { "null".to_owned() };
        let sql = format!("select {owner} from {} where {}", self.name, self.by_key);
        let row = bind_key(sqlx::query(AssertSqlSafe(sql)), key)?
            .fetch_optional(connection)
            .await
            .map_err(failed(ACTION))?;
        let Some(row) = row else { return Ok(false) };
        let found: Option<String> = row.get(0);
        let expected = aggregate.and_then(canonical);
        if self.table.stores_aggregate() && found != expected {
            return Err(StoreError::ForeignRow { table: self.table.name.clone() });
        }
        Ok(true)
    }

    async fn delete(&self, connection: &mut SqliteConnection, key: &Key) -> Result<(), StoreError> {
        let sql = format!("delete from {} where {}", self.name, self.by_key);
        let query = bind_key(sqlx::query(AssertSqlSafe(sql)), key)?;
        query.execute(connection).await.map(drop).map_err(failed(ACTION))
    }

    /// Columns that can be written and are not among the assignments: a row that is made again has their defaults.
    fn others(&self, assignments: &Assignments) -> Vec<&'a Column> {
        let is_written = |id: ColumnId| assignments.iter().any(|(other, _)| *other == id);
        let is_key = |id: ColumnId| self.table.primary_key.contains(&id);
        self.table
            .columns
            .iter()
            .enumerate()
            .filter(|(index, column)| {
                column.generated.is_none() && !is_key(ColumnId(*index)) && !is_written(ColumnId(*index))
            })
            .map(|(_, column)| column)
            .collect()
    }

    async fn update(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        assignments: &Assignments,
        resets: Option<&[&Column]>,
    ) -> Result<(), StoreError> {
        let mut sets = Vec::new();
        let mut values = Vec::new();
        for (id, assign) in assignments {
            let column = self.column(*id)?;
            let name = quote(&column.name);
            match assign {
                Assign::Set(datum) => {
                    sets.push(format!("{name} = ?"));
                    values.push(datum.clone());
                }
                Assign::Add(delta) if resets.is_some() => {
                    sets.push(format!("{name} = ?"));
                    values.push(from_default(column, delta)?);
                }
                Assign::Add(Datum::Numeric(delta)) => {
                    sets.push(format!("{name} = ?"));
                    values.push(self.numeric_sum(connection, key, column, delta).await?);
                }
                Assign::Add(delta) => {
                    let base = column.default.as_ref().map_or_else(|| "0".to_owned(), super::ddl::literal);
                    let base = if base == "null" { "0".to_owned() } else { base };
                    sets.push(format!("{name} = coalesce({name}, {base}) + ?"));
                    values.push(delta.clone());
                }
            }
        }
        for column in resets.unwrap_or_default() {
            sets.push(format!("{} = ?", quote(&column.name)));
            values.push(column.default.clone().unwrap_or(Datum::Null));
        }
        if sets.is_empty() {
            return Ok(());
        }
        let sql = format!("update {} set {} where {}", self.name, sets.join(", "), self.by_key);
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for value in &values {
            query = bind(query, value)?;
        }
        bind_key(query, key)?.execute(connection).await.map(drop).map_err(failed(ACTION))
    }

    /// Decimals are text here: the sum is made by us, exactly.
    async fn numeric_sum(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        column: &Column,
        delta: &bigdecimal::BigDecimal,
    ) -> Result<Datum, StoreError> {
        let sql = format!("select {} from {} where {}", quote(&column.name), self.name, self.by_key);
        let row = bind_key(sqlx::query(AssertSqlSafe(sql)), key)?
            .fetch_one(connection)
            .await
            .map_err(failed(ACTION))?;
        let stored: Option<String> = row.get(0);
        match stored {
            None => from_default(column, &Datum::Numeric(delta.clone())),
            Some(text) => text.parse::<bigdecimal::BigDecimal>().map_or_else(
                |_| {
                    Err(StoreError::Bug {
                        action: ACTION,
                        detail: "a stored decimal cannot be read".to_owned(),
                    })
                },
                |stored| Ok(Datum::Numeric((stored + delta).normalized())),
            ),
        }
    }

    async fn insert(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        aggregate: Option<&Datum>,
        assignments: &Assignments,
    ) -> Result<(), StoreError> {
        let mut names = Vec::new();
        let mut values = Vec::new();
        for (id, datum) in self.table.primary_key.iter().zip(key.iter()) {
            names.push(quote(&self.column(*id)?.name));
            values.push(datum.clone());
        }
        if let (true, Some(aggregate)) = (self.table.stores_aggregate(), aggregate) {
            names.push(quote(AGGREGATE));
            values.push(aggregate.clone());
        }
        for (id, assign) in assignments {
            let column = self.column(*id)?;
            names.push(quote(&column.name));
            values.push(match assign {
                Assign::Set(datum) => datum.clone(),
                Assign::Add(delta) => from_default(column, delta)?,
            });
        }
        let marks = vec!["?"; values.len()].join(", ");
        let sql = format!("insert into {} ({}) values ({marks})", self.name, names.join(", "));
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for value in &values {
            query = bind(query, value)?;
        }
        query.execute(connection).await.map(drop).map_err(failed(ACTION))
    }

    fn column(&self, id: ColumnId) -> Result<&'a Column, StoreError> {
        let missing = || StoreError::Bug {
            action: ACTION,
            detail: "a change names a column that is not there".to_owned(),
        };
        self.table.columns.get(id.0).ok_or_else(missing)
    }
}

/// What adding to the default, else to 0, gives.
fn from_default(column: &Column, delta: &Datum) -> Result<Datum, StoreError> {
    let mismatch =
        || StoreError::Bug { action: ACTION, detail: format!("column {} cannot be added to", column.name) };
    match (column.default.as_ref().unwrap_or(&Datum::Null), delta) {
        (Datum::Null, delta) => Ok(delta.clone()),
        // A sum that is no integer of 64 bits: the same refusal as the database gives.
        (Datum::Int(base), Datum::Int(delta)) => {
            base.checked_add(*delta).map(Datum::Int).ok_or_else(|| StoreError::Database {
                action: ACTION,
                code: crate::store::DatabaseCode::Sqlite(3091),
                place: crate::store::error::ErrorPlace::default(),
            })
        }
        (Datum::Numeric(base), Datum::Numeric(delta)) => Ok(Datum::Numeric((base + delta).normalized())),
        _ => Err(mismatch()),
    }
}

type Bound<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind_key<'q>(query: Bound<'q>, key: &Key) -> Result<Bound<'q>, StoreError> {
    key.iter().try_fold(query, bind)
}

fn bind<'q>(query: Bound<'q>, datum: &Datum) -> Result<Bound<'q>, StoreError> {
    Ok(match datum {
        Datum::Null => query.bind(None::<i64>),
        Datum::Bool(flag) => query.bind(i64::from(*flag)),
        Datum::Int(number) | Datum::TimestampTz(number) => query.bind(*number),
        Datum::Double(number) => query.bind(*number),
        Datum::Bytes(bytes) => query.bind(bytes.to_vec()),
        Datum::Catalogue(_) => {
            let detail = "a type of PostgreSQL's own has come to SQLite".to_owned();
            return Err(StoreError::Bug { action: ACTION, detail });
        }
        text => query.bind(canonical(text)),
    })
}
