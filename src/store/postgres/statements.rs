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
//!   many shapes, and for guards that compare what is not stored.
//!
//! The number of statements is bounded either way: see [`Statements`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use super::types::{self, Wire};
use crate::fold::{Assign, Guard};
use crate::projection::{Column, ColumnId, ColumnType, Datum, Table};
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
    /// It becomes the larger of both.
    Max,
    /// It becomes the smaller of both.
    Min,
    /// It is set where it is NULL.
    SetOnce,
}

impl Effect {
    pub(super) const fn of(assign: &Assign) -> Self {
        match assign {
            Assign::Set(_) => Self::Set,
            Assign::Add(_) => Self::Add,
            Assign::Max(_) => Self::Max,
            Assign::Min(_) => Self::Min,
            Assign::SetOnce(_) => Self::SetOnce,
        }
    }
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
    /// A row that is there is written only where these columns, all of them set, are greater than before.
    pub(super) newer: Vec<ColumnId>,
}

/// The columns that a guard compares.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct GuardShape {
    /// In the order of comparison.
    pub(super) newer: Vec<ColumnId>,
    pub(super) only_if: Vec<ColumnId>,
}

impl GuardShape {
    pub(super) fn of(guard: Option<&Guard>) -> Self {
        let ids = |list: &[(ColumnId, Datum)]| list.iter().map(|(id, _)| *id).collect();
        guard.map_or_else(Self::default, |guard| Self {
            newer: ids(&guard.newer),
            only_if: ids(&guard.only_if),
        })
    }
}

/// What a statement by mask does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MaskWay {
    pub(super) present: ToPresent,
    pub(super) absent: ToAbsent,
    pub(super) guard: GuardShape,
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
    /// Writes rows of any shape; returns how many were there and changed, how many were inserted, and how many were there
    /// and kept by their guard.
    ByMask(MaskWay),
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
            Statement::ByMask(way) => self.by_mask(way),
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
        let mut conditions = Vec::new();
        if self.table.stores_aggregate() {
            let own = format!("{0} = excluded.{0}", quote(AGGREGATE));
            if sets.is_empty() {
                // Without anything to set, the row is touched all the same: to see whose it is.
                sets.push(own.clone());
            }
            conditions.push(format!("t.{own}"));
        }
        conditions
            .extend(self.is_older(&shape.newer, |_, column| format!("excluded.{}", quote(&column.name))));
        let action = if sets.is_empty() {
            "do nothing".to_owned()
        } else {
            let set = format!("do update set {}", sets.join(", "));
            if conditions.is_empty() { set } else { format!("{set} where {}", conditions.join(" and ")) }
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
    fn by_mask(&self, way: &MaskWay) -> String {
        let (present, absent) = (way.present, way.absent);
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
        let guard = self.guard(&mut rows, &way.guard);
        let (table, join) = (&self.qualified, format!("{}{guard}", self.join()));
        let touched = match present {
            ToPresent::Keep => "select null::bigint as n where false".to_owned(),
            ToPresent::Delete => format!("delete from {table} as t using s where {join} returning s.n"),
            ToPresent::Update => {
                format!("update {table} as t set {} from s where {join} returning s.n", sets.join(", "))
            }
        };
        // A row that is there and not touched must not even be tried to insert: a missing NOT NULL would be noticed first.
        let is_there = format!("exists (select from {table} as t where {})", self.join_by_key());
        let untouched = if present == ToPresent::Keep || self.table.stores_aggregate() || !guard.is_empty() {
            format!(" and not {is_there}")
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
        let kept = if guard.is_empty() {
            "0::bigint".to_owned()
        } else {
            format!(
                "(select count(*) from s where not exists (select from u where u.n = s.n) and {is_there})"
            )
        };
        format!(
            "with s as materialized (select * from {}), u as ({touched}), i as ({inserted}) \
             select (select count(*) from u), (select count(*) from i), {kept}",
            rows.numbered("s"),
        )
    }

    /// The condition of a guard, with its arrays added to those of `rows`; empty where there is none.
    fn guard(&self, rows: &mut Rows, guard: &GuardShape) -> String {
        let mut arrays = |letter: char, ids: &[ColumnId]| -> Vec<String> {
            let columns = ids.iter().filter_map(|id| self.column(*id)).enumerate();
            columns.map(|(index, column)| rows.value(format!("{letter}{index}"), &column.kind)).collect()
        };
        let newer = arrays('g', &guard.newer);
        let only_if = arrays('o', &guard.only_if);
        let older = self.is_older(&guard.newer, |index, _| newer[index].clone());
        let equal = guard.only_if.iter().filter_map(|id| self.column(*id)).zip(only_if);
        let equal =
            equal.map(|(column, value)| format!("t.{} is not distinct from {value}", quote(&column.name)));
        let conditions: Vec<String> = older.into_iter().chain(equal).collect();
        if conditions.is_empty() { String::new() } else { format!(" and {}", conditions.join(" and ")) }
    }

    /// That the stored values of some columns are less, as a tuple with NULL as the smallest, than `value` says; nothing
    /// where there are no columns.
    fn is_older(&self, ids: &[ColumnId], value: impl Fn(usize, &Column) -> String) -> Option<String> {
        let columns: Vec<&Column> = ids.iter().filter_map(|id| self.column(*id)).collect();
        columns.iter().enumerate().rev().fold(None, |rest, (index, column)| {
            let (name, value) = (quote(&column.name), value(index, column));
            let less = format!(
                "(t.{name}{collate} < {value} or t.{name} is null and {value} is not null",
                collate = collation(&column.kind)
            );
            Some(match rest {
                None => format!("{less})"),
                Some(rest) => format!("{less} or t.{name} is not distinct from {value} and {rest})"),
            })
        })
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

/// How text is compared: by bytes, as the fold does it.
const fn collation(kind: &ColumnType) -> &'static str {
    match kind {
        ColumnType::Text { .. } => " collate \"C\"",
        _ => "",
    }
}

/// Whether a new row holds something where nothing is assigned.
pub(super) fn has_default(column: &Column) -> bool {
    column.default.as_ref().is_some_and(|default| !default.is_null())
}

/// What a new row holds.
fn inserted(column: &Column, effect: Effect, value: &str) -> String {
    match effect {
        Effect::Set => value.to_owned(),
        Effect::Add => sum(column, value),
        Effect::AddIfAny => format!("coalesce({}, {})", sum(column, value), types::default_of(column)),
        _ if !has_default(column) => value.to_owned(),
        Effect::Max | Effect::Min => chosen(column, effect, &types::default_of(column), value),
        Effect::SetOnce => types::default_of(column),
    }
}

/// The larger or the smaller of two values, or the one that is not NULL.
fn chosen(column: &Column, effect: Effect, stored: &str, value: &str) -> String {
    let function = if effect == Effect::Max { "greatest" } else { "least" };
    format!("{function}({stored}{}, {value})", collation(&column.kind))
}

/// What a row that was there holds afterwards. Of the row that was to be inserted only its values can be seen, so that a
/// delta is what they differ by from the default; a value that is compared with a default could not be told from it: see
/// [`has_default`].
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
        Effect::Max | Effect::Min => {
            chosen(column, effect, &format!("t.{name}"), &format!("excluded.{name}"))
        }
        Effect::SetOnce => format!("coalesce(t.{name}, excluded.{name})"),
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
    /// It becomes the larger of both.
    Max = 3,
    /// It becomes the smaller of both.
    Min = 4,
    /// It is set where it is NULL.
    SetOnce = 5,
    /// Its default.
    Reset = 10,
    /// Its default, added to.
    AddToDefault = 12,
    /// The larger of its default and the value.
    MaxOfDefault = 13,
    /// The smaller of both.
    MinOfDefault = 14,
    /// Its default, else the value.
    SetOnceOfDefault = 15,
}

impl Mode {
    /// What an effect does to a row that is there.
    pub(super) const fn merging(effect: Effect) -> Self {
        match effect {
            Effect::Set => Self::Set,
            Effect::Add | Effect::AddIfAny => Self::Add,
            Effect::Max => Self::Max,
            Effect::Min => Self::Min,
            Effect::SetOnce => Self::SetOnce,
        }
    }

    /// What it does to one that is made.
    pub(super) const fn making(effect: Effect) -> Self {
        match effect {
            Effect::Set => Self::Set,
            Effect::Add | Effect::AddIfAny => Self::AddToDefault,
            Effect::Max => Self::MaxOfDefault,
            Effect::Min => Self::MinOfDefault,
            Effect::SetOnce => Self::SetOnceOfDefault,
        }
    }
}

/// The effects, but for `set`, that a column can have.
fn effects_on(column: &Column) -> impl Iterator<Item = Effect> {
    let compared = column.kind.is_ordered();
    [(Effect::Add, is_sum(column)), (Effect::Max, compared), (Effect::Min, compared), (Effect::SetOnce, true)]
        .into_iter()
        .filter_map(|(effect, possible)| possible.then_some(effect))
}

fn updated(column: &Column, mode: &str, value: &str) -> String {
    let name = quote(&column.name);
    let mut text = format!("case {mode} when {} then {value}", Mode::Set as i16);
    for effect in effects_on(column) {
        let stored = if has_default(column) && effect != Effect::SetOnce {
            format!("coalesce(t.{name}, {})", types::default_of(column))
        } else {
            format!("t.{name}")
        };
        let changed = match effect {
            Effect::Max | Effect::Min => chosen(column, effect, &stored, value),
            Effect::SetOnce => format!("coalesce({stored}, {value})"),
            Effect::Set | Effect::Add | Effect::AddIfAny => format!("coalesce({stored}, 0) + {value}"),
        };
        let fresh = inserted(column, effect, value);
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            " when {} then {changed} when {} then {fresh}",
            Mode::merging(effect) as i16,
            Mode::making(effect) as i16
        );
    }
    let _ = write!(text, " when {} then {} else t.{name} end", Mode::Reset as i16, types::default_of(column));
    text
}

fn made(column: &Column, mode: &str, value: &str) -> String {
    let mut text = format!("case {mode} when {} then {value}", Mode::Set as i16);
    for effect in effects_on(column) {
        let fresh = inserted(column, effect, value);
        for mode in [Mode::merging(effect), Mode::making(effect)] {
            // Writing to a String cannot fail.
            let _ = write!(text, " when {} then {fresh}", mode as i16);
        }
    }
    let _ = write!(text, " else {} end", types::default_of(column));
    text
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
