//! What the SQL stores share: quoted names, what a store keeps of a declaration, and the words in its tables.

use serde_json::{Value, json};

use super::{OperatorAction, VersionState};
use crate::fault::{Reason, Stage};
use crate::projection::{Column, ColumnId, Declaration, Nullability, Table};
use crate::record::RecordTimestamp;

/// The column that stores a row's aggregate.
pub(super) const AGGREGATE: &str = "projector_aggregate";

/// A name as SQL reads it, exactly.
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Names as a list, quoted.
pub(super) fn quote_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(quote).collect::<Vec<_>>().join(", ")
}

/// The columns of a table's primary key, in the key's order.
pub(super) fn key_columns(table: &Table) -> impl Iterator<Item = &Column> {
    table.primary_key.iter().filter_map(|id| table.columns.get(id.0))
}

/// The columns that can be assigned, in declared order: neither of the primary key nor generated.
pub(super) fn assignable(table: &Table) -> impl Iterator<Item = (ColumnId, &Column)> {
    let columns = table.columns.iter().enumerate().map(|(index, column)| (ColumnId(index), column));
    columns.filter(|(id, column)| column.generated.is_none() && !table.primary_key.contains(id))
}

/// The columns that an insert must name: NOT NULL and without a default.
pub(super) fn required(table: &Table) -> impl Iterator<Item = ColumnId> {
    let is_required = |column: &Column| {
        column.nullability == Nullability::NotNull
            && column.default.as_ref().is_none_or(crate::projection::Datum::is_null)
    };
    assignable(table).filter(move |(_, column)| is_required(column)).map(|(id, _)| id)
}

/// What a store keeps of a declaration, in `projector_versions.declaration`: the names of what it made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DeclaredNames {
    /// The physical names of the tables, in declared order.
    pub(super) tables: Vec<String>,
    /// The names of the views, in declared order.
    pub(super) views: Vec<String>,
}

/// `{"tables": [{"name": …, "physical": …}], "views": [name, …]}`
pub(super) fn declaration_json(declaration: &Declaration) -> String {
    let tables: Vec<Value> = declaration
        .tables
        .iter()
        .map(|table| json!({"name": table.name, "physical": table.physical_name(declaration.version)}))
        .collect();
    let views: Vec<&str> = declaration.views.iter().map(|view| view.name.as_str()).collect();
    json!({"tables": tables, "views": views}).to_string()
}

impl DeclaredNames {
    /// Reads what [`declaration_json`] wrote; `None` where it is something else.
    pub(super) fn parse(json: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(json).ok()?;
        let list = |key: &str| value.get(key)?.as_array();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Self {
            tables: list("tables")?
                .iter()
                .map(|table| text(table.get("physical")?))
                .collect::<Option<_>>()?,
            views: list("views")?.iter().map(text).collect::<Option<_>>()?,
        })
    }
}

/// The state with this name.
pub(super) fn version_state(name: &str) -> Option<VersionState> {
    [VersionState::Building, VersionState::CaughtUp, VersionState::Live, VersionState::Retired]
        .into_iter()
        .find(|state| state.as_str() == name)
}

/// The reason with this name.
pub(super) fn reason(name: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == name)
}

/// The stage with this name.
pub(super) fn stage(name: &str) -> Option<Stage> {
    [
        Stage::Consume,
        Stage::Decode,
        Stage::Map,
        Stage::Validate,
        Stage::Judge,
        Stage::Fold,
        Stage::Apply,
        Stage::Commit,
    ]
    .into_iter()
    .find(|stage| stage.as_str() == name)
}

/// The name of an operator's request.
pub(super) const fn action_name(action: OperatorAction) -> &'static str {
    match action {
        OperatorAction::Resume => "resume",
        OperatorAction::ResumeWithDeadLetter => "resume_with_dead_letter",
    }
}

/// The operator's request with this name.
pub(super) fn action(name: &str) -> Option<OperatorAction> {
    [OperatorAction::Resume, OperatorAction::ResumeWithDeadLetter]
        .into_iter()
        .find(|action| action_name(*action) == name)
}

/// The name of who set a record's time.
pub(super) const fn timestamp_type(timestamp: RecordTimestamp) -> &'static str {
    match timestamp {
        RecordTimestamp::Create(_) => "create",
        RecordTimestamp::LogAppend(_) => "log_append",
        RecordTimestamp::Absent => "absent",
    }
}

/// A record's time from its stored parts.
pub(super) fn timestamp(kind: &str, millis: Option<i64>) -> Option<RecordTimestamp> {
    match (kind, millis) {
        ("create", Some(millis)) => Some(RecordTimestamp::Create(millis)),
        ("log_append", Some(millis)) => Some(RecordTimestamp::LogAppend(millis)),
        ("absent", None) => Some(RecordTimestamp::Absent),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract;

    #[test]
    fn names_are_quoted() {
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote_list(["a", "b c"]), "\"a\", \"b c\"");
    }

    #[test]
    fn what_is_kept_of_a_declaration_is_read_back() {
        let declaration = contract::declaration(vec![contract::items()]);
        let names = DeclaredNames { tables: vec!["items__v1".into()], views: vec!["items".into()] };
        assert_eq!(DeclaredNames::parse(&declaration_json(&declaration)), Some(names));
        assert_eq!(DeclaredNames::parse("[]"), None);
    }

    #[test]
    fn stored_words_find_their_way_back() {
        for reason in Reason::ALL {
            assert_eq!(super::reason(reason.as_str()), Some(*reason));
        }
        for name in ["consume", "decode", "map", "validate", "judge", "fold", "apply", "commit"] {
            assert_eq!(stage(name).map(Stage::as_str), Some(name));
        }
        for time in [RecordTimestamp::Create(-5), RecordTimestamp::LogAppend(0), RecordTimestamp::Absent] {
            assert_eq!(timestamp(timestamp_type(time), time.millis()), Some(time));
        }
        assert_eq!(timestamp("create", None), None);
        assert_eq!((reason("?"), stage("?"), action("?"), version_state("?")), (None, None, None, None));
    }
}
