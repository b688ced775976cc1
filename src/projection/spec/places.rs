//! Where the parts of a projection stand in its file, for mistakes that are found once it has been read.

use super::source::SourceDraft;
use super::table::TableDraft;
use crate::config::yaml::Place;
use crate::projection::{ColumnId, TableId};

/// Places by the order of the declaration.
#[derive(Debug)]
pub struct Places {
    /// The projection's name.
    pub name: Place,
    /// The sources.
    pub sources: Vec<SourcePlaces>,
    /// The tables.
    pub tables: Vec<TablePlaces>,
    /// The views: the SQL or, of a default view, the table's name.
    pub views: Vec<Place>,
    /// Columns with which the store computes.
    pub used: Vec<UsedColumn>,
}

/// Places of a source.
#[derive(Debug)]
pub struct SourcePlaces {
    /// The source itself.
    pub source: Place,
    /// Its topic.
    pub topic: Place,
    /// Its schema files, in their order.
    pub schemas: Vec<Place>,
}

/// Places of a table.
#[derive(Debug)]
pub struct TablePlaces {
    /// Its name.
    pub name: Place,
    /// The types of its columns.
    pub columns: Vec<Place>,
    /// Its indexes.
    pub indexes: Vec<Place>,
}

/// A column with which the store computes, and an expression that makes it do so.
#[derive(Debug)]
pub struct UsedColumn {
    /// The table.
    pub table: TableId,
    /// The column.
    pub column: ColumnId,
    /// What is done.
    pub how: Use,
    /// Where the value stands.
    pub place: Place,
}

/// What a store does with the stored value of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It is added to.
    Added,
    /// It is compared.
    Compared,
}

impl SourcePlaces {
    pub(super) fn of(draft: &SourceDraft<'_>) -> Self {
        Self {
            source: draft.place.clone(),
            topic: draft.topic_place.clone(),
            schemas: draft.schema_places.clone(),
        }
    }
}

impl TablePlaces {
    pub(super) fn of(draft: &TableDraft) -> Self {
        Self {
            name: draft.place.clone(),
            columns: draft.type_places.clone(),
            indexes: draft.index_places.clone(),
        }
    }
}
