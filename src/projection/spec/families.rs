//! What all operations on a table must agree on.
//!
//! A column belongs to one family of effects, so that what several events do to it is one effect again (design: section 4).
//! And in a shared table every `if_newer` compares and sets the same columns, so that the newest event wins as a whole,
//! whichever comes last.

use super::event::HandlerDraft;
use super::notes::Notes;
use super::operation::Operation;
use super::table::TableDraft;
use crate::config::yaml::Place;
use crate::projection::change::Effect;
use crate::projection::{ColumnId, TableId};

/// What is done to a column, over all operations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Sum,
    Largest,
    Smallest,
    Once,
    Newest,
}

impl Family {
    const fn of(effect: Effect) -> Self {
        match effect {
            Effect::Set | Effect::Add | Effect::Subtract => Self::Sum,
            Effect::Max => Self::Largest,
            Effect::Min => Self::Smallest,
            Effect::SetOnce => Self::Once,
        }
    }
}

/// Checks the operations of each table against each other.
pub(super) fn check(
    tables: &[TableDraft],
    handlers: &[HandlerDraft],
    tombstones: &[Vec<Operation>],
    notes: &mut Notes<'_>,
) {
    for (id, draft) in tables.iter().enumerate() {
        let handled = handlers.iter().flat_map(|handler| &handler.operations);
        let all = handled.chain(tombstones.iter().flatten());
        let mut operations: Vec<&Operation> =
            all.filter(|operation| operation.table == TableId(id)).collect();
        operations.sort_by_key(|operation| &operation.place);
        one_family(draft, &operations, notes);
        if draft.is_shared() {
            one_comparison(draft, &operations, notes);
        }
    }
}

fn one_family(draft: &TableDraft, operations: &[&Operation], notes: &mut Notes<'_>) {
    let mut families: Vec<Option<(Family, &str, &Place)>> = vec![None; draft.table.columns.len()];
    let effects = operations.iter().flat_map(|operation| {
        let assigned = operation.assigned.iter();
        let assigned =
            assigned.map(|one| (one.column, Family::of(one.effect), one.effect.word(), &one.value.place));
        let newer = operation.if_newer.iter();
        assigned.chain(newer.map(|(id, mapped)| (*id, Family::Newest, "if_newer", &mapped.place)))
    });
    for (column, family, word, place) in effects {
        match families[column.0] {
            None => families[column.0] = Some((family, word, place)),
            Some((known, ..)) if known == family => {}
            Some((_, other, at)) => {
                let name = format!("{}.{}", draft.table.name, draft.table.columns[column.0].name);
                let message = format!("`{word}` of `{name}`, which line {} writes by `{other}`", at.line);
                let fix = "write a column by one of: set, add and subtract; max; min; set_once; if_newer";
                notes.mistake(place, message, fix);
            }
        }
    }
}

fn one_comparison(draft: &TableDraft, operations: &[&Operation], notes: &mut Notes<'_>) {
    let compared = |operation: &Operation| -> Vec<ColumnId> {
        let mut set: Vec<ColumnId> = operation.assigned.iter().map(|one| one.column).collect();
        set.sort_unstable();
        operation.if_newer.iter().map(|(id, _)| *id).chain(set).collect()
    };
    let mut guarded = operations.iter().filter(|operation| !operation.if_newer.is_empty());
    let Some(first) = guarded.next() else { return };
    for other in guarded {
        if compared(other) != compared(first) {
            let message = format!(
                "table `{}` is shared, and this operation compares or sets other columns than that of line {}",
                draft.table.name, first.place.line
            );
            let fix = "let every operation with `if_newer` compare and set the same columns, or write one table for each";
            notes.mistake(&other.place, message, fix);
        }
    }
}
