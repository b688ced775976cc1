//! Which handler takes which type of which source, and who owns the rows of each table.
//!
//! An owned table is written from one topic only: that of a handler written as `topic/Type`, or of a tombstone, or the
//! only one that there is. A handler of plain `Type` then belongs to the topics of the tables that it writes.

use std::collections::{BTreeMap, BTreeSet};

use super::event::HandlerDraft;
use super::notes::Notes;
use super::operation::Operation;
use super::source::SourceDraft;
use super::table::TableDraft;
use crate::config::yaml::Place;
use crate::projection::{ColumnId, Nullability, Ownership, TableId, Wanted, WantedFields};

/// For each source, the handler of each type, by its index.
pub(super) type Bound = Vec<BTreeMap<String, usize>>;

/// Everything that binding looks at.
pub(super) struct Binder<'a, 'n, 't> {
    pub(super) sources: &'a mut [SourceDraft<'n>],
    pub(super) tables: &'a mut [TableDraft],
    pub(super) handlers: &'a [HandlerDraft],
    /// For each source, the operations of its tombstones.
    pub(super) tombstones: &'a [Vec<Operation>],
    pub(super) notes: &'a mut Notes<'t>,
}

impl Binder<'_, '_, '_> {
    /// Binds handlers to sources, then settles what follows from it: ownership, and what each source has to decode.
    pub(super) fn bind(mut self) -> Bound {
        let homes = self.homes();
        let bound = self.bound(&homes);
        self.settle_ownership(&bound);
        self.settle_reads(&bound);
        self.check_not_null();
        self.warn_unwritten();
        bound
    }

    /// The sources that a type can come from.
    fn candidates(&self, handler: &HandlerDraft) -> BTreeSet<usize> {
        let mut candidates = BTreeSet::new();
        for handled in &handler.types {
            match handled.source {
                Some(source) => {
                    candidates.insert(source);
                }
                None => candidates.extend(self.open_to(&handled.name)),
            }
        }
        candidates
    }

    /// The sources that may have events of this type, without those where another handler names topic and type.
    fn open_to(&self, name: &str) -> Vec<usize> {
        let qualified = |source: usize| {
            let types = self.handlers.iter().flat_map(|handler| &handler.types);
            types.into_iter().any(|handled| handled.source == Some(source) && handled.name == name)
        };
        (0..self.sources.len())
            .filter(|source| self.sources[*source].only_type().is_none_or(|only| only == name))
            .filter(|source| !qualified(*source))
            .collect()
    }

    /// The one source that writes each owned table.
    fn homes(&mut self) -> Vec<Option<usize>> {
        let mut homes = Vec::with_capacity(self.tables.len());
        for table in (0..self.tables.len()).map(TableId) {
            homes.push(if self.tables[table.0].is_shared() { None } else { self.home(table) });
        }
        homes
    }

    fn home(&mut self, table: TableId) -> Option<usize> {
        let mut certain: BTreeMap<usize, Place> = BTreeMap::new();
        let mut possible: BTreeMap<usize, Place> = BTreeMap::new();
        for (source, operations) in self.tombstones.iter().enumerate() {
            if let Some(operation) = operations.iter().find(|operation| operation.table == table) {
                certain.entry(source).or_insert_with(|| operation.place.clone());
            }
        }
        for handler in self.handlers {
            let Some(operation) = handler.operations.iter().find(|operation| operation.table == table) else {
                continue;
            };
            let candidates = self.candidates(handler);
            let named = handler.types.iter().all(|handled| handled.source.is_some());
            let into = if named || candidates.len() == 1 { &mut certain } else { &mut possible };
            for source in candidates {
                into.entry(source).or_insert_with(|| operation.place.clone());
            }
        }
        let name = self.tables[table.0].table.name.clone();
        let topics = |of: &BTreeMap<usize, Place>| {
            let topics: Vec<&str> =
                of.keys().map(|id| self.sources[*id].declaration.topic.as_str()).collect();
            topics.join(" and ")
        };
        if certain.len() > 1 {
            let message = format!(
                "table `{name}` is written from the topics {}, whose order is not known",
                topics(&certain)
            );
            let place = certain.values().max().cloned()?;
            self.notes.mistake(
                &place,
                message,
                format!("write shared: true in `{name}` and operations that commute, or one table for each topic and a view that joins them"),
            );
            return certain.keys().next().copied();
        }
        if let Some(home) = certain.keys().next() {
            return Some(*home);
        }
        if possible.len() > 1 {
            let message = format!("table `{name}` could be written from the topics {}", topics(&possible));
            let place = possible.values().next().cloned()?;
            let first = possible.keys().next().map_or("", |id| self.sources[*id].declaration.topic.as_str());
            let fix = format!(
                "name the topic in the handler, such as {first}/Type; or write shared: true in `{name}`"
            );
            self.notes.mistake(&place, message, fix);
        }
        possible.keys().next().copied()
    }

    fn bound(&mut self, homes: &[Option<usize>]) -> Bound {
        let mut bound: Bound = vec![BTreeMap::new(); self.sources.len()];
        for (index, handler) in self.handlers.iter().enumerate() {
            let owners: BTreeSet<usize> =
                handler.operations.iter().filter_map(|operation| homes[operation.table.0]).collect();
            for handled in &handler.types {
                let sources: Vec<usize> = if let Some(source) = handled.source {
                    vec![source]
                } else {
                    let open = self.open_to(&handled.name);
                    open.into_iter().filter(|source| owners.iter().all(|owner| owner == source)).collect()
                };
                let possible = |source: &usize| {
                    self.sources[*source].only_type().is_none_or(|only| only == handled.name)
                };
                if !sources.iter().any(possible) {
                    self.warn_never(handler, &handled.name, owners.len() > 1);
                }
                for source in sources {
                    bound[source].entry(handled.name.clone()).or_insert(index);
                }
            }
        }
        bound
    }

    fn warn_never(&mut self, handler: &HandlerDraft, name: &str, split: bool) {
        if split {
            let message = format!("the handler of `{name}` writes tables that are owned by different topics");
            self.notes.mistake(&handler.place, message, "handle the type once for each topic: topic/Type");
        } else if !handler.broken && !self.sources.is_empty() {
            let message = format!(
                "no source can have events of the type `{name}`: without `type`, the type of JSON events is the topic"
            );
            self.notes.warn(&handler.place, message);
        }
    }

    /// Every operation on a table, with its source.
    fn operations_on<'s>(
        &'s self,
        bound: &'s Bound,
        table: TableId,
    ) -> impl Iterator<Item = (usize, &'s Operation)> {
        let tombstones = self.tombstones.iter().enumerate();
        let tombstones =
            tombstones.flat_map(|(source, list)| list.iter().map(move |operation| (source, operation)));
        let handled = bound.iter().enumerate().flat_map(move |(source, handlers)| {
            let indexes: BTreeSet<usize> = handlers.values().copied().collect();
            indexes.into_iter().flat_map(move |index| {
                self.handlers[index].operations.iter().map(move |operation| (source, operation))
            })
        });
        tombstones.chain(handled).filter(move |(_, operation)| operation.table == table)
    }

    fn settle_ownership(&mut self, bound: &Bound) {
        for table in (0..self.tables.len()).map(TableId) {
            if self.tables[table.0].is_shared() {
                continue;
            }
            let by_key =
                self.operations_on(bound, table).all(|(source, operation)| match operation.key.as_slice() {
                    [only] => only.expression.canonical() == self.sources[source].aggregate.canonical(),
                    _ => false,
                });
            let ownership = if by_key { Ownership::OwnedByKey } else { Ownership::OwnedStored };
            self.tables[table.0].table.ownership = ownership;
        }
    }

    fn settle_reads(&mut self, bound: &Bound) {
        let mut reads = Vec::with_capacity(self.sources.len());
        for (source, (draft, handlers)) in self.sources.iter().zip(bound).enumerate() {
            let mut expressions = Vec::new();
            let indexes: BTreeSet<usize> = handlers.values().copied().collect();
            let handled = indexes.iter().flat_map(|index| &self.handlers[*index].operations);
            for operation in handled.chain(self.tombstones.get(source).into_iter().flatten()) {
                expressions.extend(operation.expressions().map(|mapped| mapped.expression.reads()));
                if self.tables[operation.table.0].table.stores_aggregate() {
                    expressions.push(draft.aggregate.reads());
                }
            }
            reads.push(expressions);
        }
        for (draft, expressions) in self.sources.iter_mut().zip(reads) {
            let mut fields = WantedFields::default();
            if let crate::projection::TypeRule::ValuePath(path) = &draft.declaration.event_type {
                fields.add(path);
            }
            for path in expressions.iter().flat_map(|reads| &reads.fields) {
                fields.add(path);
            }
            let whole = expressions.iter().any(|reads| reads.whole_value);
            draft.declaration.wanted = if whole { Wanted::All } else { Wanted::Fields(fields) };
            draft.declaration.reads_key = expressions.iter().any(|reads| reads.key);
        }
    }

    /// A column that must have a value gets one from somewhere.
    fn check_not_null(&mut self) {
        let upserts = || {
            let tombstones = self.tombstones.iter().flatten();
            let handled = self.handlers.iter().flat_map(|handler| &handler.operations);
            handled.chain(tombstones).filter(|operation| operation.makes_rows())
        };
        let mut never = Vec::new();
        let mut sometimes = Vec::new();
        for (id, draft) in self.tables.iter().enumerate().filter(|(_, draft)| !draft.broken) {
            for (index, column) in draft.table.columns.iter().enumerate() {
                let needs = column.nullability == Nullability::NotNull
                    && column.default.is_none()
                    && column.generated.is_none()
                    && !draft.table.primary_key.iter().any(|key| key.0 == index);
                if !needs {
                    continue;
                }
                let of_table: Vec<_> = upserts().filter(|operation| operation.table == TableId(id)).collect();
                let without: Vec<_> =
                    of_table.iter().filter(|operation| !operation.writes(ColumnId(index))).collect();
                let named = format!("`{}.{}`", draft.table.name, column.name);
                if without.len() == of_table.len() && !of_table.is_empty() {
                    never.push((draft.column_places[index].clone(), named));
                } else {
                    sometimes
                        .extend(without.iter().map(|operation| (operation.place.clone(), named.clone())));
                }
            }
        }
        if self.handlers.iter().any(|handler| handler.broken) {
            return;
        }
        for (place, named) in never {
            let message = format!("{named} is not null and has no default, and no upsert sets it");
            self.notes.mistake(&place, message, "set it, give it a default, or drop `not null`");
        }
        for (place, named) in sometimes {
            let message = format!(
                "this upsert does not set {named}, which is not null and has no default: where the row is not there yet, \
                 the event becomes a dead letter"
            );
            self.notes.warn(&place, message);
        }
    }

    fn warn_unwritten(&mut self) {
        if self.handlers.iter().any(|handler| handler.broken) {
            return;
        }
        for (id, draft) in self.tables.iter().enumerate() {
            let handled = self.handlers.iter().flat_map(|handler| &handler.operations);
            let mut all = handled.chain(self.tombstones.iter().flatten());
            if !all.any(|operation| operation.table == TableId(id)) {
                self.notes.warn(&draft.place, format!("nothing writes to table `{}`", draft.table.name));
            }
        }
    }
}
