//! The SQL that writes rows of one table: generated here and nowhere else.
//!
//! Rows travel as parameters of a VALUES list, several rows a statement. There are two ways to write:
//!
//! - **At once.** `insert … on conflict do update`, for rows that are written whether or not they are there.
//! - **Apart.** An `update` of the rows that are there, then an `insert` of those that are not. For rows that the first
//!   cannot write: what is inserted differs from what is merged; a required column is not assigned, for which an insert is
//!   refused even where it would find the row; a sum counts from a default, which may leave the range where the stored
//!   value does not; or there is a guard.
//!
//! No other transaction writes meanwhile, so that nothing comes between two statements.

use super::types;
use crate::fold::{Absent, Assign, Assignments, Change, Guard, Present};
use crate::projection::{Column, ColumnId, Datum, Table};
use crate::store::sql::{self, AGGREGATE, quote};

/// What is done to one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    Set,
    Add,
    Max,
    Min,
    SetOnce,
}

/// Columns and what is done to them, by ascending column.
pub(super) type Effects = Vec<(ColumnId, Effect)>;

/// A borrowed [`Effects`].
type EffectList = [(ColumnId, Effect)];

/// What happens to rows that are there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ToPresent {
    Keep,
    Delete,
    Merge(Effects),
    Replace(Effects),
}

/// What happens where there is no row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ToAbsent {
    Nothing,
    /// Inserts the values of [`ToPresent`].
    InsertSame,
    /// Inserts values of its own.
    Insert(Effects),
}

/// What the changes of rows that share statements have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) present: ToPresent,
    pub(super) absent: ToAbsent,
    pub(super) guard: GuardShape,
}

/// The columns that a guard compares.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct GuardShape {
    /// In the order of comparison.
    pub(super) newer: Vec<ColumnId>,
    pub(super) only_if: Vec<ColumnId>,
}

impl GuardShape {
    fn of(guard: Option<&Guard>) -> Self {
        let ids = |list: &[(ColumnId, Datum)]| list.iter().map(|(id, _)| *id).collect();
        guard.map_or_else(Self::default, |guard| Self {
            newer: ids(&guard.newer),
            only_if: ids(&guard.only_if),
        })
    }

    fn is_of(&self, guard: Option<&Guard>) -> bool {
        let same =
            |ids: &[ColumnId], list: &[(ColumnId, Datum)]| ids.iter().eq(list.iter().map(|(id, _)| id));
        match guard {
            None => self.is_empty(),
            Some(guard) => same(&self.newer, &guard.newer) && same(&self.only_if, &guard.only_if),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.only_if.is_empty()
    }

    /// How many values it compares.
    pub(super) const fn width(&self) -> usize {
        self.newer.len() + self.only_if.len()
    }
}

impl Shape {
    pub(super) fn of(change: &Change) -> Self {
        let present = match &change.present {
            Present::Keep => ToPresent::Keep,
            Present::Delete => ToPresent::Delete,
            Present::Merge(assignments) => ToPresent::Merge(effects(assignments)),
            Present::Replace(assignments) => ToPresent::Replace(effects(assignments)),
        };
        let absent = match (&change.absent, &change.present) {
            (Absent::Nothing, _) => ToAbsent::Nothing,
            // Without assignments to be the same as, a row of defaults.
            (Absent::InsertSame, Present::Keep | Present::Delete) => ToAbsent::Insert(Vec::new()),
            (Absent::InsertSame, _) => ToAbsent::InsertSame,
            (Absent::Insert(assignments), _) => ToAbsent::Insert(effects(assignments)),
        };
        Self { present, absent, guard: GuardShape::of(change.guard.as_deref()) }
    }

    /// Whether this is the shape of `change`; cheaper than to make another one.
    pub(super) fn is_of(&self, change: &Change) -> bool {
        let present = match (&self.present, &change.present) {
            (ToPresent::Keep, Present::Keep) | (ToPresent::Delete, Present::Delete) => true,
            (ToPresent::Merge(effects), Present::Merge(assignments))
            | (ToPresent::Replace(effects), Present::Replace(assignments)) => is_same(effects, assignments),
            _ => false,
        };
        present
            && self.guard.is_of(change.guard.as_deref())
            && match (&self.absent, &change.absent) {
                (ToAbsent::Nothing, Absent::Nothing) | (ToAbsent::InsertSame, Absent::InsertSame) => true,
                (ToAbsent::Insert(effects), Absent::Insert(assignments)) => is_same(effects, assignments),
                _ => false,
            }
    }

    /// Whether rows are only deleted, where their guard says so.
    pub(super) fn is_guarded_delete(&self) -> bool {
        (&self.present, &self.absent) == (&ToPresent::Delete, &ToAbsent::Nothing)
    }

    /// Whether one statement writes such rows whether or not they are there.
    pub(super) fn is_at_once(&self, table: &Table) -> bool {
        let covers = |effects: &Effects| {
            sql::required(table).all(|id| effects.binary_search_by_key(&id, |(id, _)| *id).is_ok())
                && effects.iter().all(|(id, effect)| {
                    let column = table.columns.get(id.0);
                    match effect {
                        Effect::Set => true,
                        Effect::Add => column.is_none_or(|column| types::base(column).is_none()),
                        Effect::Max | Effect::Min | Effect::SetOnce => column.is_none_or(|c| !has_default(c)),
                    }
                })
        };
        if !self.guard.is_empty() {
            return false;
        }
        match (&self.present, &self.absent) {
            (ToPresent::Merge(effects), ToAbsent::InsertSame) => covers(effects),
            // The row is made again in any case. Each value must be used, since it is a parameter: the default of a column
            // that is set once stands in the way of its value.
            (ToPresent::Replace(effects), ToAbsent::InsertSame) => effects.iter().all(|(id, effect)| {
                *effect != Effect::SetOnce
                    || table.columns.get(id.0).is_none_or(|column| !has_default(column))
            }),
            _ => false,
        }
    }

    /// The columns whose values travel: of what is done to present rows, and of what is inserted by itself.
    pub(super) fn travelling(&self) -> (&EffectList, &EffectList) {
        let present: &EffectList = match &self.present {
            ToPresent::Keep | ToPresent::Delete => &[],
            ToPresent::Merge(effects) | ToPresent::Replace(effects) => effects,
        };
        let absent: &EffectList = match &self.absent {
            ToAbsent::Nothing | ToAbsent::InsertSame => &[],
            ToAbsent::Insert(effects) => effects,
        };
        (present, absent)
    }
}

const fn effect_of(assign: &Assign) -> Effect {
    match assign {
        Assign::Set(_) => Effect::Set,
        Assign::Add(_) => Effect::Add,
        Assign::Max(_) => Effect::Max,
        Assign::Min(_) => Effect::Min,
        Assign::SetOnce(_) => Effect::SetOnce,
    }
}

fn effects(assignments: &Assignments) -> Effects {
    assignments.iter().map(|(id, assign)| (*id, effect_of(assign))).collect()
}

fn is_same(effects: &Effects, assignments: &Assignments) -> bool {
    effects.len() == assignments.len()
        && effects
            .iter()
            .zip(assignments)
            .all(|((id, effect), (other, assign))| id == other && *effect == effect_of(assign))
}

/// A table to write to.
pub(super) struct Target<'a> {
    pub(super) table: &'a Table,
    physical: String,
    keys: Vec<String>,
}

impl<'a> Target<'a> {
    pub(super) fn new(table: &'a Table, version: u32) -> Self {
        Self {
            table,
            physical: quote(&table.physical_name(version)),
            keys: sql::key_columns(table).map(|column| quote(&column.name)).collect(),
        }
    }

    /// Parameters that each row has before its values: those of the key, and of the aggregate where rows carry it.
    pub(super) fn leading(&self) -> usize {
        self.keys.len() + usize::from(self.table.stores_aggregate())
    }

    /// Writes `count` rows whether or not they are there.
    pub(super) fn at_once(&self, shape: &Shape, count: usize) -> String {
        let (effects, _) = shape.travelling();
        let aggregate = self.table.stores_aggregate().then(|| quote(AGGREGATE));
        let mut names: Vec<String> = self.keys.iter().cloned().chain(aggregate.clone()).collect();
        let mut holes: Vec<String> = names.iter().map(|_| "?".to_owned()).collect();
        let mut sets = Vec::new();
        for (column, effect) in self.columns(effects) {
            let name = quote(&column.name);
            holes.push(made(column, effect, "?"));
            if matches!(shape.present, ToPresent::Merge(_)) {
                sets.push(match effect {
                    Effect::Set => format!("{name} = excluded.{name}"),
                    Effect::Add => format!("{name} = coalesce(t.{name}, 0) + excluded.{name}"),
                    Effect::Max | Effect::Min => {
                        let chosen = chosen(effect, &[&format!("t.{name}")], &format!("excluded.{name}"));
                        format!("{name} = {chosen}")
                    }
                    Effect::SetOnce => format!("{name} = coalesce(t.{name}, excluded.{name})"),
                });
            }
            names.push(name);
        }
        if matches!(shape.present, ToPresent::Replace(_)) {
            let all = sql::assignable(self.table).map(|(_, column)| quote(&column.name));
            sets.extend(all.map(|name| format!("{name} = excluded.{name}")));
        }
        let own =
            aggregate.as_ref().map(|name| format!(" where t.{name} = excluded.{name}")).unwrap_or_default();
        if sets.is_empty() {
            // Touched all the same where rows carry their aggregate: to see whose the row is.
            sets.extend(aggregate.map(|name| format!("{name} = excluded.{name}")));
        }
        let action = if sets.is_empty() {
            "nothing".to_owned()
        } else {
            format!("update set {}{own}", sets.join(", "))
        };
        format!(
            "insert into {} as t ({}) values {} on conflict ({}) do {action}",
            self.physical,
            names.join(", "),
            repeated(&holes, count),
            self.keys.join(", "),
        )
    }

    /// Changes those of `count` rows that are there; `None` where nothing is done to them.
    pub(super) fn update(&self, shape: &Shape, count: usize) -> Option<String> {
        let (effects, _) = shape.travelling();
        let value = |index: usize| format!("s.v{index}");
        let mut sets: Vec<String> = Vec::new();
        match &shape.present {
            ToPresent::Keep | ToPresent::Delete => return None,
            ToPresent::Merge(_) => {
                sets.extend(self.columns(effects).enumerate().map(|(index, (column, effect))| {
                    let (name, value) = (quote(&column.name), value(index));
                    match effect {
                        Effect::Set => format!("{name} = {value}"),
                        Effect::Add => {
                            let base = types::base(column).unwrap_or_else(|| "0".to_owned());
                            format!("{name} = coalesce(t.{name}, {base}) + {value}")
                        }
                        Effect::Max | Effect::Min => {
                            let stored = format!("t.{name}");
                            let default = has_default(column).then(|| types::default_of(column));
                            let counts_as: Vec<&str> = [Some(&stored), default.as_ref()]
                                .into_iter()
                                .flatten()
                                .map(String::as_str)
                                .collect();
                            format!("{name} = {}", chosen(effect, &counts_as, &value))
                        }
                        Effect::SetOnce => format!("{name} = coalesce(t.{name}, {value})"),
                    }
                }));
            }
            ToPresent::Replace(_) => sets.extend(sql::assignable(self.table).map(|(id, column)| {
                let assigned = effects.iter().position(|(other, _)| *other == id);
                let new = assigned.map_or_else(
                    || types::default_of(column),
                    |index| made(column, effects[index].1, &value(index)),
                );
                format!("{} = {new}", quote(&column.name))
            })),
        }
        if sets.is_empty() {
            return None;
        }
        Some(format!(
            "{} update {} as t set {} from s where {}{}",
            self.source(shape, count),
            self.physical,
            sets.join(", "),
            self.join(),
            self.guard(&shape.guard),
        ))
    }

    /// Inserts those of `count` rows that are not there; `None` where none is made.
    pub(super) fn insert(&self, shape: &Shape, count: usize) -> Option<String> {
        let (present, absent) = shape.travelling();
        let (effects, letter) = match shape.absent {
            ToAbsent::Nothing => return None,
            ToAbsent::InsertSame => (present, 'v'),
            ToAbsent::Insert(_) => (absent, 'w'),
        };
        let mut names = self.keys.clone();
        let mut values: Vec<String> = (0..self.keys.len()).map(|index| format!("s.k{index}")).collect();
        if self.table.stores_aggregate() {
            names.push(quote(AGGREGATE));
            values.push("s.a".to_owned());
        }
        for (index, (column, effect)) in self.columns(effects).enumerate() {
            names.push(quote(&column.name));
            values.push(made(column, effect, &format!("s.{letter}{index}")));
        }
        Some(format!(
            "{} insert into {table} ({}) select {} from s where not exists (select 1 from {table} as t where {})",
            self.source(shape, count),
            names.join(", "),
            values.join(", "),
            self.join(),
            table = self.physical,
        ))
    }

    /// Removes rows by key; each has the parameters of its key only.
    pub(super) fn delete(&self, count: usize) -> String {
        format!("delete{}", self.by_key(count))
    }

    /// A row for each of `count` keys that is there; each has the parameters of its key only.
    pub(super) fn there(&self, count: usize) -> String {
        format!("select 1{}", self.by_key(count))
    }

    fn by_key(&self, count: usize) -> String {
        let holes: Vec<String> = self.keys.iter().map(|_| "?".to_owned()).collect();
        let (key, rows) = match self.keys.as_slice() {
            [key] => (key.clone(), vec!["?"; count].join(", ")),
            keys => (format!("({})", keys.join(", ")), format!("values {}", repeated(&holes, count))),
        };
        format!(" from {} where {key} in ({rows})", self.physical)
    }

    /// Removes those of `count` rows that are there and that their guard lets go.
    pub(super) fn guarded_delete(&self, shape: &Shape, count: usize) -> String {
        let places: Vec<String> = (0..self.keys.len()).map(|index| format!("s.k{index}")).collect();
        format!(
            "{source} delete from {table} where ({keys}) in (select {places} from s join {table} as t on {join}{guard})",
            source = self.source(shape, count),
            table = self.physical,
            keys = self.keys.join(", "),
            places = places.join(", "),
            join = self.join(),
            guard = self.guard(&shape.guard),
        )
    }

    /// The condition of a guard; empty where there is none.
    fn guard(&self, guard: &GuardShape) -> String {
        let named = |ids: &[ColumnId], letter: char| -> Vec<(String, String)> {
            let columns = ids.iter().filter_map(|id| self.table.columns.get(id.0)).enumerate();
            columns.map(|(index, column)| (quote(&column.name), format!("s.{letter}{index}"))).collect()
        };
        // As a tuple, with NULL as the smallest.
        let older = named(&guard.newer, 'g').into_iter().rev().fold(None, |rest, (name, value)| {
            let less = format!("(t.{name} < {value} or t.{name} is null and {value} is not null");
            Some(match rest {
                None => format!("{less})"),
                Some(rest) => format!("{less} or t.{name} is {value} and {rest})"),
            })
        });
        let equal =
            named(&guard.only_if, 'o').into_iter().map(|(name, value)| format!("t.{name} is {value}"));
        let conditions: Vec<String> = older.into_iter().chain(equal).collect();
        if conditions.is_empty() { String::new() } else { format!(" and {}", conditions.join(" and ")) }
    }

    /// Whether one of `count` rows belongs to another aggregate; each has the leading parameters only.
    pub(super) fn any_foreign(&self, count: usize) -> String {
        let names: Vec<String> =
            (0..self.keys.len()).map(|index| format!("k{index}")).chain(["a".to_owned()]).collect();
        format!(
            "with {} select 1 from s join {} as t on {} where t.{} <> s.a limit 1",
            listed(&names, count),
            self.physical,
            self.join(),
            quote(AGGREGATE),
        )
    }

    /// Whether a row is there; it has the parameters of its key only.
    pub(super) fn exists(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(|key| format!("{key} = ?")).collect();
        format!("select 1 from {} where {}", self.physical, keys.join(" and "))
    }

    /// The rows as `s`, with everything that travels.
    fn source(&self, shape: &Shape, count: usize) -> String {
        let (present, absent) = shape.travelling();
        let mut names: Vec<String> = (0..self.keys.len()).map(|index| format!("k{index}")).collect();
        if self.table.stores_aggregate() {
            names.push("a".to_owned());
        }
        names.extend((0..present.len()).map(|index| format!("v{index}")));
        names.extend((0..absent.len()).map(|index| format!("w{index}")));
        names.extend((0..shape.guard.newer.len()).map(|index| format!("g{index}")));
        names.extend((0..shape.guard.only_if.len()).map(|index| format!("o{index}")));
        format!("with {}", listed(&names, count))
    }

    fn join(&self) -> String {
        let equal = self.keys.iter().enumerate().map(|(index, key)| format!("t.{key} = s.k{index}"));
        equal.collect::<Vec<_>>().join(" and ")
    }

    fn columns(&self, effects: &[(ColumnId, Effect)]) -> impl Iterator<Item = (&'a Column, Effect)> {
        let table = self.table;
        effects.iter().filter_map(move |(id, effect)| Some((table.columns.get(id.0)?, *effect)))
    }
}

/// Whether a new row holds something where nothing is assigned.
fn has_default(column: &Column) -> bool {
    column.default.as_ref().is_some_and(|default| !default.is_null())
}

/// What a new row holds in a column.
fn made(column: &Column, effect: Effect, value: &str) -> String {
    match effect {
        Effect::Set => value.to_owned(),
        Effect::Add => {
            types::base(column).map_or_else(|| value.to_owned(), |base| format!("{base} + {value}"))
        }
        _ if !has_default(column) => value.to_owned(),
        // The value stands here once: it may be a parameter.
        Effect::Max | Effect::Min => format!("{}({}, {value})", function(effect), types::default_of(column)),
        Effect::SetOnce => types::default_of(column),
    }
}

/// The larger or the smaller of the first value that is not NULL and `value`, which is none.
fn chosen(effect: Effect, counts_as: &[&str], value: &str) -> String {
    format!("{}(coalesce({}, {value}), {value})", function(effect), counts_as.join(", "))
}

const fn function(effect: Effect) -> &'static str {
    match effect {
        Effect::Max => "max",
        _ => "min",
    }
}

/// `s(a, b) as (values (?, ?), …)`
fn listed(names: &[String], count: usize) -> String {
    let holes: Vec<String> = names.iter().map(|_| "?".to_owned()).collect();
    format!("s({}) as (values {})", names.join(", "), repeated(&holes, count))
}

/// `(…), (…)`
fn repeated(row: &[String], count: usize) -> String {
    vec![format!("({})", row.join(", ")); count].join(", ")
}
