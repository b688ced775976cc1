//! The SQL that writes rows of one table: generated here and nowhere else.
//!
//! Rows travel as parameters of a VALUES list, several rows a statement. There are two ways to write:
//!
//! - **At once.** `insert … on conflict do update`, for rows that are written whether or not they are there.
//! - **Apart.** An `update` of the rows that are there, then an `insert` of those that are not. For rows that the first
//!   cannot write: what is inserted differs from what is merged; a required column is not assigned, for which an insert is
//!   refused even where it would find the row; or a sum counts from a default, which may leave the range where the stored
//!   value does not.
//!
//! No other transaction writes meanwhile, so that nothing comes between two statements.

use super::types;
use crate::fold::{Absent, Assign, Assignments, Change, Present};
use crate::projection::{Column, ColumnId, Table};
use crate::store::sql::{self, AGGREGATE, quote};

/// What is done to one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    Set,
    Add,
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
        Self { present, absent }
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
            && match (&self.absent, &change.absent) {
                (ToAbsent::Nothing, Absent::Nothing) | (ToAbsent::InsertSame, Absent::InsertSame) => true,
                (ToAbsent::Insert(effects), Absent::Insert(assignments)) => is_same(effects, assignments),
                _ => false,
            }
    }

    /// Whether one statement writes such rows whether or not they are there.
    pub(super) fn is_at_once(&self, table: &Table) -> bool {
        let covers = |effects: &Effects| {
            sql::required(table).all(|id| effects.binary_search_by_key(&id, |(id, _)| *id).is_ok())
                && effects.iter().all(|(id, effect)| {
                    *effect == Effect::Set || table.columns.get(id.0).is_none_or(|c| types::base(c).is_none())
                })
        };
        match (&self.present, &self.absent) {
            (ToPresent::Merge(effects), ToAbsent::InsertSame) => covers(effects),
            // The row is made again in any case.
            (ToPresent::Replace(_), ToAbsent::InsertSame) => true,
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
            "{} update {} as t set {} from s where {}",
            self.source(shape, count),
            self.physical,
            sets.join(", "),
            self.join(),
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
        let holes: Vec<String> = self.keys.iter().map(|_| "?".to_owned()).collect();
        let (key, rows) = match self.keys.as_slice() {
            [key] => (key.clone(), vec!["?"; count].join(", ")),
            keys => (format!("({})", keys.join(", ")), format!("values {}", repeated(&holes, count))),
        };
        format!("delete from {} where {key} in ({rows})", self.physical)
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

/// What a new row holds in a column.
fn made(column: &Column, effect: Effect, value: &str) -> String {
    match (effect, types::base(column)) {
        (Effect::Add, Some(base)) => format!("{base} + {value}"),
        _ => value.to_owned(),
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
