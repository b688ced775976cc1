//! The SQL that writes the rows of one table: generated here and nowhere else.
//!
//! Rows travel as one array for each column, by ascending key, and are unfolded by `unnest`. There are two ways to write:
//!
//! - **By shape.** `insert … on conflict do update`, for rows that all assign the same columns in the same way. One
//!   statement for each shape; it waits for a row that another transaction is making, so that no `add` to a shared table is
//!   lost.
//! - **By mask.** `update` and `insert` in one statement, each column with an array that says what is done to it in which
//!   row. For rows that the first cannot write: what is inserted differs from what is merged, or a column that must not be
//!   NULL is not assigned, for which an insert is refused even where it would find the row. Also where there would be too
//!   many shapes.
//!
//! The number of statements is bounded either way: see [`Statements`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::types::{self, Wire};
use crate::projection::{Column, ColumnId, ColumnType, Table};
use crate::store::sql::{self, AGGREGATE, key_columns, quote, quote_list};

/// Shapes of one table that get a statement of their own; rows of further shapes are written by mask.
const MOST_SHAPES: usize = 12;

/// What is done to one column in a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    /// It is set.
    Set,
    /// It is added to.
    Add,
    /// It is added to where the delta is not NULL.
    AddIfAny,
}

/// What happens to the columns of a present row that a shape does not assign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rest {
    /// They stay.
    Stays,
    /// They take their defaults.
    Resets,
}

/// Columns, what is done to them and to the rest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) rest: Rest,
    pub(super) columns: Vec<(ColumnId, Effect)>,
}

/// What a statement by mask does to rows that are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ToPresent {
    Keep,
    Delete,
    Update,
}

/// What a statement by mask does where there is no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ToAbsent {
    Nothing,
    /// Inserts from the arrays of the update.
    InsertSame,
    /// Inserts from arrays of its own.
    Insert,
}

/// A statement of one table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    /// Writes rows of one shape.
    ByShape(Shape),
    /// Writes rows of any shape; returns how many were there and how many were inserted.
    ByMask(ToPresent, ToAbsent),
    /// Removes rows.
    Delete,
    /// Says whether any of the rows belongs to another aggregate.
    AnyForeign,
    /// Locks the rows that are there, in the order of the arrays.
    Lock,
}

/// The statements generated so far, by physical table.
#[derive(Default)]
pub(super) struct Statements {
    by_table: Mutex<HashMap<String, HashMap<Statement, Arc<str>>>>,
}

impl Statements {
    /// The text of a statement; `None` for a new shape of a table that has too many.
    pub(super) fn get(&self, target: &Target<'_>, statement: Statement) -> Option<Arc<str>> {
        let mut tables = self.by_table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = tables.entry(target.physical.clone()).or_default();
        if let Some(text) = known.get(&statement) {
            return Some(text.clone());
        }
        let is_shape = |statement: &Statement| matches!(statement, Statement::ByShape(_));
        if is_shape(&statement) && known.keys().filter(|statement| is_shape(statement)).count() >= MOST_SHAPES
        {
            return None;
        }
        let text: Arc<str> = target.text(&statement).into();
        known.insert(statement, text.clone());
        Some(text)
    }

    /// How many statements a table has.
    #[cfg(test)]
    pub(super) fn count(&self, target: &Target<'_>) -> usize {
        let tables = self.by_table.lock().unwrap_or_else(PoisonError::into_inner);
        tables.get(&target.physical).map_or(0, HashMap::len)
    }

    /// Forgets everything: tables have been made or dropped.
    pub(super) fn forget(&self) {
        self.by_table.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A table to write to.
pub(super) struct Target<'a> {
    pub(super) table: &'a Table,
    pub(super) physical: String,
    /// Schema and table, quoted.
    qualified: String,
}

impl<'a> Target<'a> {
    pub(super) fn new(schema: &str, table: &'a Table, version: u32) -> Self {
        let physical = table.physical_name(version);
        let qualified = format!("{}.{}", quote(schema), quote(&physical));
        Self { table, physical, qualified }
    }

    pub(super) fn column(&self, id: ColumnId) -> Option<&'a Column> {
        self.table.columns.get(id.0)
    }

    /// The columns that can be assigned, in declared order.
    pub(super) fn writable(&self) -> impl Iterator<Item = (ColumnId, &'a Column)> {
        sql::assignable(self.table)
    }

    /// Columns that an insert must name: NOT NULL, without a default.
    pub(super) fn required(&self) -> impl Iterator<Item = ColumnId> {
        sql::required(self.table)
    }

    fn text(&self, statement: &Statement) -> String {
        match statement {
            Statement::ByShape(shape) => self.by_shape(shape),
            Statement::ByMask(present, absent) => self.by_mask(*present, *absent),
            Statement::Delete => self.delete(),
            Statement::AnyForeign => self.any_foreign(),
            Statement::Lock => self.lock(),
        }
    }

    fn by_shape(&self, shape: &Shape) -> String {
        let mut rows = self.keyed();
        let mut sets = Vec::new();
        for (index, (id, effect)) in shape.columns.iter().enumerate() {
            let Some(column) = self.column(*id) else { continue };
            let value = rows.value(format!("v{index}"), &column.kind);
            let name = quote(&column.name);
            rows.insert(column, inserted(column, *effect, &value));
            sets.push(match shape.rest {
                Rest::Stays => format!("{name} = {}", merged(column, *effect, &name)),
                // The row is made again, from what would be inserted.
                Rest::Resets => format!("{name} = excluded.{name}"),
            });
        }
        if shape.rest == Rest::Resets {
            let rest = self.writable().filter(|(id, _)| !shape.columns.iter().any(|(other, _)| other == id));
            sets.extend(rest.map(|(_, column)| format!("{} = default", quote(&column.name))));
        }
        let (where_own, touch) = if self.table.stores_aggregate() {
            let aggregate = quote(AGGREGATE);
            // Without anything to set, the row is touched all the same: to see whose it is.
            (
                format!(" where t.{aggregate} = excluded.{aggregate}"),
                Some(format!("{aggregate} = excluded.{aggregate}")),
            )
        } else {
            (String::new(), None)
        };
        if sets.is_empty() {
            sets.extend(touch);
        }
        let action = if sets.is_empty() {
            "do nothing".to_owned()
        } else {
            format!("do update set {}{where_own}", sets.join(", "))
        };
        format!(
            "insert into {} as t ({}) select {} from {} on conflict ({}) {action}",
            self.qualified,
            rows.names.join(", "),
            rows.expressions.join(", "),
            rows.source("s"),
            self.key_list(),
        )
    }

    /// The modes of the masks are those of [`Mode`].
    fn by_mask(&self, present: ToPresent, absent: ToAbsent) -> String {
        let mut rows = self.keyed();
        let mut sets = Vec::new();
        for (index, (_, column)) in self.writable().enumerate() {
            let name = quote(&column.name);
            if present == ToPresent::Update || absent == ToAbsent::InsertSame {
                let mode = rows.mode(format!("m{index}"));
                let value = rows.value(format!("v{index}"), &column.kind);
                sets.push(format!("{name} = {}", updated(column, &mode, &value)));
                if absent == ToAbsent::InsertSame {
                    rows.insert(column, made(column, &mode, &value));
                }
            }
            if absent == ToAbsent::Insert {
                let mode = rows.mode(format!("n{index}"));
                let value = rows.value(format!("w{index}"), &column.kind);
                rows.insert(column, made(column, &mode, &value));
            }
        }
        if sets.is_empty() {
            // Only a key: written to itself, so that the row counts as there.
            sets.extend(
                key_columns(self.table).take(1).map(|column| format!("{0} = t.{0}", quote(&column.name))),
            );
        }
        let (table, join) = (&self.qualified, self.join());
        let touched = match present {
            ToPresent::Keep => "select null::bigint as n where false".to_owned(),
            ToPresent::Delete => format!("delete from {table} as t using s where {join} returning s.n"),
            ToPresent::Update => {
                format!("update {table} as t set {} from s where {join} returning s.n", sets.join(", "))
            }
        };
        // A row that is there and not touched must not even be tried to insert: a missing NOT NULL would be noticed first.
        let untouched = if present == ToPresent::Keep || self.table.stores_aggregate() {
            format!(" and not exists (select from {table} as t where {})", self.join_by_key())
        } else {
            String::new()
        };
        let inserted = if absent == ToAbsent::Nothing {
            "select 1 where false".to_owned()
        } else {
            format!(
                "insert into {table} ({}) select {} from s where not exists (select from u where u.n = s.n){untouched} \
                 order by s.n on conflict ({}) do nothing returning 1",
                rows.names.join(", "),
                rows.expressions.join(", "),
                self.key_list(),
            )
        };
        format!(
            "with s as materialized (select * from {}), u as ({touched}), i as ({inserted}) \
             select (select count(*) from u), (select count(*) from i)",
            rows.numbered("s"),
        )
    }

    fn delete(&self) -> String {
        let rows = self.keyed();
        format!("delete from {} as t using {} where {}", self.qualified, rows.source("s"), self.join())
    }

    fn any_foreign(&self) -> String {
        let rows = self.keyed();
        format!(
            "select exists (select from {} as t join {} on {} where t.{aggregate} is distinct from s.a)",
            self.qualified,
            rows.source("s"),
            self.join_by_key(),
            aggregate = quote(AGGREGATE),
        )
    }

    fn lock(&self) -> String {
        let rows = self.keyed();
        format!(
            "select from {} as t join {} on {} order by s.n for no key update of t",
            self.qualified,
            rows.numbered("s"),
            self.join_by_key(),
        )
    }

    /// The arrays that every statement begins with: those of the key and, where rows carry it, of the aggregate.
    fn keyed(&self) -> Rows {
        let mut rows = Rows::default();
        for (index, column) in key_columns(self.table).enumerate() {
            let value = rows.value(format!("k{index}"), &column.kind);
            rows.insert(column, value);
        }
        if self.table.stores_aggregate() {
            let value = rows.value("a".to_owned(), &ColumnType::Text { max_chars: None });
            rows.names.push(quote(AGGREGATE));
            rows.expressions.push(value);
        }
        rows
    }

    fn join(&self) -> String {
        let own = self.table.stores_aggregate().then(|| format!(" and t.{} = s.a", quote(AGGREGATE)));
        format!("{}{}", self.join_by_key(), own.unwrap_or_default())
    }

    fn join_by_key(&self) -> String {
        let equal = key_columns(self.table).enumerate().map(|(index, column)| {
            format!("t.{} = {}", quote(&column.name), cast(&format!("s.k{index}"), &column.kind))
        });
        equal.collect::<Vec<_>>().join(" and ")
    }

    fn key_list(&self) -> String {
        quote_list(key_columns(self.table).map(|column| column.name.as_str()))
    }
}

/// The arrays of a statement, and what is inserted from them.
#[derive(Default)]
struct Rows {
    /// Parameters: `$1::text[]`.
    parameters: Vec<String>,
    /// What the columns of the unfolded rows are called.
    aliases: Vec<String>,
    /// The columns that an insert names, and what it puts there.
    names: Vec<String>,
    expressions: Vec<String>,
}

impl Rows {
    /// Adds an array of values, and returns the expression of its value in a row.
    fn value(&mut self, alias: String, kind: &ColumnType) -> String {
        let array = array_name(Wire::of(kind));
        let value = cast(&format!("s.{alias}"), kind);
        self.push(alias, array);
        value
    }

    /// Adds a mask.
    fn mode(&mut self, alias: String) -> String {
        let mode = format!("s.{alias}");
        self.push(alias, "int2");
        mode
    }

    fn push(&mut self, alias: String, array: &str) {
        self.parameters.push(format!("${}::{array}[]", self.parameters.len() + 1));
        self.aliases.push(alias);
    }

    fn insert(&mut self, column: &Column, expression: String) {
        self.names.push(quote(&column.name));
        self.expressions.push(expression);
    }

    /// The rows, in the order of the arrays.
    fn source(&self, name: &str) -> String {
        format!("unnest({}) as {name}({})", self.parameters.join(", "), self.aliases.join(", "))
    }

    /// The rows with their number, `n`.
    fn numbered(&self, name: &str) -> String {
        let mut text = format!("unnest({}) with ordinality", self.parameters.join(", "));
        // Writing to a String cannot fail.
        let _ = write!(text, " as {name}({}, n)", self.aliases.join(", "));
        text
    }
}

const fn array_name(wire: Wire) -> &'static str {
    match wire {
        Wire::Bool => "bool",
        Wire::Int2 => "int2",
        Wire::Int4 => "int4",
        Wire::Int8 => "int8",
        Wire::Float4 => "float4",
        Wire::Float8 => "float8",
        Wire::Text => "text",
        Wire::Bytes => "bytea",
        Wire::Uuid => "uuid",
        Wire::Date => "date",
        Wire::Time => "time",
        Wire::Timestamp => "timestamp",
        Wire::TimestampTz => "timestamptz",
    }
}

fn cast(value: &str, kind: &ColumnType) -> String {
    types::cast(kind).map_or_else(|| value.to_owned(), |name| format!("{value}::{name}"))
}

/// What a new row holds.
fn inserted(column: &Column, effect: Effect, value: &str) -> String {
    match effect {
        Effect::Set => value.to_owned(),
        Effect::Add => sum(column, value),
        Effect::AddIfAny => format!("coalesce({}, {})", sum(column, value), types::default_of(column)),
    }
}

/// What a row that was there holds afterwards. Of the row that was to be inserted only its values can be seen, so that a
/// delta is what they differ by from the default.
fn merged(column: &Column, effect: Effect, name: &str) -> String {
    let delta = match types::base(column) {
        None => format!("excluded.{name}"),
        Some(base) => format!("(excluded.{name} - {base})"),
    };
    let base = types::base(column).unwrap_or_else(|| "0".to_owned());
    let sum = format!("coalesce(t.{name}, {base}) + {delta}");
    match effect {
        Effect::Set => format!("excluded.{name}"),
        Effect::Add => sum,
        Effect::AddIfAny => {
            let none = types::default_of(column);
            format!("case when excluded.{name} is not distinct from {none} then t.{name} else {sum} end")
        }
    }
}

/// What a mask says of one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Present: it stays. Absent: its default.
    Leave = 0,
    /// It is set.
    Set = 1,
    /// It is added to.
    Add = 2,
    /// Its default.
    Reset = 3,
    /// Its default, added to.
    AddToDefault = 4,
}

fn updated(column: &Column, mode: &str, value: &str) -> String {
    let name = quote(&column.name);
    let add = if is_sum(column) {
        let base = types::base(column).unwrap_or_else(|| "0".to_owned());
        let sum = sum(column, value);
        format!("when 2 then coalesce(t.{name}, {base}) + {value} when 4 then {sum} ")
    } else {
        String::new()
    };
    let default = types::default_of(column);
    format!("case {mode} when 1 then {value} {add}when 3 then {default} else t.{name} end")
}

fn made(column: &Column, mode: &str, value: &str) -> String {
    let add = if is_sum(column) {
        let sum = sum(column, value);
        format!("when 2 then {sum} when 4 then {sum} ")
    } else {
        String::new()
    };
    format!("case {mode} when 1 then {value} {add}else {} end", types::default_of(column))
}

/// The default, else 0, and a delta.
fn sum(column: &Column, delta: &str) -> String {
    types::base(column).map_or_else(|| delta.to_owned(), |base| format!("{base} + {delta}"))
}

/// Whether `add` can be used on the column.
const fn is_sum(column: &Column) -> bool {
    matches!(
        column.kind,
        ColumnType::SmallInt | ColumnType::Integer | ColumnType::BigInt | ColumnType::Numeric { .. }
    )
}
