//! One suite of tests that every store passes: the contract of [`ReadStore`](super::ReadStore) as behaviour.
//!
//! A store's own tests bring a [`Harness`] and say `store_contract!(fresh)`, where `async fn fresh() -> impl Harness` makes
//! an empty database; that gives one test for each behaviour. The behaviours are functions of the modules below:
//!
//! - [`layout`]: the projector's tables, registering, tables that differ, retiring.
//! - [`views`]: made, changed and dropped with their version.
//! - [`positions`]: claims, fences, unknown COMMITs, quarantines, observations, status.
//! - [`rows`]: what changes do to rows; order, refusals, size.
//! - [`values`]: every type of column at the ends of its range.
//! - [`random`]: random changes against a small model of a table.
//! - [`letters`]: dead letters, byte for byte.

pub(crate) mod guards;
pub(crate) mod layout;
pub(crate) mod letters;
pub(crate) mod positions;
pub(crate) mod random;
pub(crate) mod rows;
pub(crate) mod values;
pub(crate) mod views;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Advance, Applied, ClaimRequest, Claimed, InstanceId, LogIdentity, PartitionStart, PositionRow,
    QuarantineChange, Registration, SharedStore, StoreError, Transaction, VersionKey,
};
use crate::dead_letter::DeadLetter;
use crate::fold::{Absent, Assign, Assignments, Change, FoldedTable, Key, Present, RowChange};
use crate::position::{Fence, NextOffset};
use crate::projection::{
    Column, ColumnId, ColumnType, Datum, Declaration, Nullability, OnError, Ownership, Table, TableId,
    UnknownEvents, View, ViewBody,
};
use crate::record::TopicPartition;

/// What the tests of one store bring along: a fresh database, and a way to look into it beside the trait.
#[async_trait]
pub(crate) trait Harness: Send + Sync {
    /// The store under test, over an empty database. The same one each time.
    fn store(&self) -> SharedStore;

    /// The rows of a query. Names without schema are found in the store's schema. NULL is `NULL`, bytes are lower-case
    /// hexadecimal, all else is the database's own text.
    async fn rows(&self, sql: &str) -> Vec<Vec<String>>;

    /// Runs a statement; names without schema are found in the store's schema.
    async fn execute(&self, sql: &str);

    /// Makes a foreign key from a column of an empty table to the primary key of another table, checked at once.
    async fn add_foreign_key(&self, table: &str, column: &str, parent: &str);

    /// An SQL expression that gives a column in the form that all stores share: boolean as `0` or `1`, `timestamptz` as
    /// microseconds since 1970-01-01 UTC, `timestamp` as `YYYY-MM-DDTHH:MM:SS.ffffff` without zeros at the end (nor a point
    /// before nothing), all else as [`Harness::rows`] shows it.
    fn shared_form(&self, column: &str, kind: &ColumnType) -> String;

    /// Drops what the test made.
    async fn finish(&self);
}

/// One `#[tokio::test]` for each behaviour of the contract, over the harness that `$fresh` makes.
macro_rules! store_contract {
    ($fresh:path) => {
        $crate::store::contract::store_contract! { @each $fresh:
            layout::laying_out_again_changes_nothing,
            layout::a_missing_column_of_the_projectors_tables_is_named,
            layout::what_is_not_the_projectors_is_told_so,
            layout::a_table_of_somebody_else_is_told_from_ours,
            layout::an_index_of_the_projectors_tables_that_differs_is_named,
            layout::a_store_of_a_newer_program_is_refused,
            layout::a_version_is_new_once_and_known_afterwards,
            layout::another_mapping_version_cluster_or_group_is_refused_with_advice,
            layout::a_table_that_differs_is_named_with_its_column,
            layout::a_table_that_is_gone_is_named,
            layout::a_table_with_rows_of_nobody_is_refused,
            layout::a_name_of_another_projection_is_refused,
            views::a_view_that_cannot_be_made_is_named_before_anything_runs,
            layout::indexes_and_views_that_are_new_are_added,
            views::a_view_that_was_changed_is_as_declared_after_a_start,
            views::a_changed_declaration_of_a_view_is_taken_over,
            views::a_view_that_is_no_longer_declared_is_dropped,
            views::a_view_of_somebody_else_is_left_alone,
            views::a_view_before_the_version_is_live_is_refused,
            layout::the_printed_ddl_is_what_registering_expects,
            layout::the_printed_layout_is_what_laying_out_expects,
            layout::odd_names_are_kept_exactly,
            layout::views_appear_with_the_first_promotion,
            layout::views_hide_the_projectors_columns,
            layout::a_view_is_read_in_order,
            layout::retiring_drops_everything_and_frees_the_number,
            positions::a_claim_raises_the_epoch_and_fences_the_older_owner,
            positions::a_partition_that_appeared_later_begins_at_zero,
            positions::a_claim_of_a_retired_version_is_gone,
            positions::a_transaction_advances_position_and_revision_by_one_step,
            positions::a_position_that_is_not_as_expected_rolls_everything_back,
            positions::the_fenced_partitions_are_told_by_index,
            positions::an_unknown_commit_is_decided_by_the_row,
            positions::a_quarantine_survives_claims_and_ends_by_a_transaction,
            positions::a_request_reaches_the_owner_and_ends_with_the_quarantine,
            positions::a_fault_of_the_log_is_not_ended_by_resume,
            positions::an_older_owners_observation_never_replaces_a_newer_one,
            positions::status_has_the_numbers_of_every_partition,
            positions::the_status_view_judges_as_status_does,
            rows::a_patch_keeps_what_it_does_not_name,
            rows::adding_counts_from_the_stored_value_the_default_or_zero,
            rows::replacing_resets_what_is_not_assigned,
            rows::deleting_removes_the_row_or_does_nothing,
            rows::present_and_absent_rows_are_told_apart,
            rows::a_patch_without_a_required_column_needs_the_row,
            rows::many_shapes_in_one_transaction,
            rows::rounds_are_applied_in_order,
            rows::parents_are_written_first_and_deleted_last,
            rows::a_row_of_another_aggregate_is_refused,
            rows::a_unique_violation_is_told_by_names_only,
            rows::no_error_quotes_a_value,
            rows::a_sum_out_of_range_is_refused,
            rows::two_partitions_add_to_the_same_row,
            guards::the_newest_of_two_partitions_stays,
            guards::equal_and_older_events_leave_the_row,
            guards::an_update_that_finds_no_row_is_counted,
            rows::a_big_batch_is_one_transaction,
            rows::an_empty_transaction_moves_the_position,
            values::every_type_is_kept_at_the_ends_of_its_range,
            values::every_type_of_key_finds_its_row_again,
            random::random_changes_equal_the_model,
            random::random_changes_of_shared_rows_equal_the_model,
            random::random_changes_of_aggregates_equal_the_model,
            letters::a_dead_letter_is_kept_byte_for_byte,
            letters::a_dead_letter_that_is_there_stays_as_it_is,
            letters::unpublished_letters_come_in_pages_until_they_are_marked,
            letters::letters_are_found_by_every_part_of_the_filter,
        }
    };
    (@each $fresh:path: $($module:ident::$name:ident,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let harness = $fresh().await;
                $crate::store::contract::$module::$name(&harness).await;
                $crate::store::contract::Harness::finish(&harness).await;
            }
        )+
    };
}
pub(crate) use store_contract;

/// The instance that claims in these tests.
pub(crate) fn instance(name: &str) -> InstanceId {
    InstanceId(name.into())
}

/// A partition of the topic of these tests.
pub(crate) fn partition(number: i32) -> TopicPartition {
    TopicPartition::new("shop.items", number)
}

/// A column that may be NULL.
pub(crate) fn column(name: &str, kind: ColumnType) -> Column {
    Column { name: name.into(), kind, nullability: Nullability::Nullable, default: None, generated: None }
}

/// A column that may not be NULL.
pub(crate) fn required(name: &str, kind: ColumnType) -> Column {
    Column { nullability: Nullability::NotNull, ..column(name, kind) }
}

/// A column with a default.
pub(crate) fn defaulted(name: &str, kind: ColumnType, default: Datum) -> Column {
    Column { default: Some(default), ..column(name, kind) }
}

/// `text`
pub(crate) const TEXT: ColumnType = ColumnType::Text { max_chars: None };

/// A table whose first column is its primary key.
pub(crate) fn table(name: &str, ownership: Ownership, columns: Vec<Column>) -> Table {
    Table { name: name.into(), ownership, primary_key: vec![ColumnId(0)], columns, indexes: Vec::new() }
}

/// A small table: `id`, `name` (required), `price`, `stock` (default 5), `note` (default `'-'`).
pub(crate) fn items() -> Table {
    table(
        "items",
        Ownership::OwnedByKey,
        vec![
            required("id", ColumnType::BigInt),
            required("name", TEXT),
            column("price", ColumnType::BigInt),
            defaulted("stock", ColumnType::BigInt, Datum::Int(5)),
            defaulted("note", TEXT, text("-")),
        ],
    )
}

/// The columns of [`items`].
pub(crate) const NAME: usize = 1;
/// See [`NAME`].
pub(crate) const PRICE: usize = 2;
/// See [`NAME`].
pub(crate) const STOCK: usize = 3;
/// See [`NAME`].
pub(crate) const NOTE: usize = 4;

/// A text.
pub(crate) fn text(text: &str) -> Datum {
    Datum::Text(text.into())
}

/// Sets a column.
pub(crate) fn set(column: usize, datum: Datum) -> (ColumnId, Assign) {
    (ColumnId(column), Assign::Set(datum))
}

/// Adds to a column.
pub(crate) fn add(column: usize, delta: i64) -> (ColumnId, Assign) {
    (ColumnId(column), Assign::Add(Datum::Int(delta)))
}

/// Makes a row again where it is there, else makes it.
pub(crate) fn replace(assignments: Assignments) -> Change {
    Change::new(Present::Replace(assignments), Absent::InsertSame)
}

/// A change of the row with the number `id` of the table at `index`.
pub(crate) fn at(index: usize, id: i64, change: Change) -> RowChange {
    RowChange { table: TableId(index), key: Box::new([Datum::Int(id)]), aggregate: None, change }
}

/// A change of a row of the first table.
pub(crate) fn item(id: i64, change: Change) -> RowChange {
    at(0, id, change)
}

/// A declaration of these tables, each with its view.
pub(crate) fn declaration(tables: Vec<Table>) -> Declaration {
    let views = tables
        .iter()
        .enumerate()
        .map(|(index, table)| View { name: table.name.clone(), body: ViewBody::Table(TableId(index)) })
        .collect();
    Declaration {
        name: "shop".into(),
        version: 1,
        sources: Vec::new(),
        tables,
        views,
        unknown_events: UnknownEvents::Ignore,
        on_error: OnError::DeadLetter,
        staleness: Duration::from_mins(2),
        text: "projection: shop".into(),
        digest: "d1".into(),
    }
}

/// A registration of partitions 0 and 1, from 0 to a boundary of 10.
pub(crate) fn registration(declaration: Declaration) -> Registration {
    let start = |number| PartitionStart {
        partition: partition(number),
        topic_id: Some("topic-1".into()),
        start: NextOffset::ZERO,
        boundary: NextOffset::new(10),
    };
    Registration {
        declaration: Arc::new(declaration),
        log: LogIdentity { cluster_id: "cluster-1".into(), consumer_group: "group-1".into() },
        partitions: vec![start(0), start(1)],
    }
}

/// An advance by nothing but what is named.
pub(crate) fn advance(number: i32, expected: Fence, to: i64) -> Advance {
    Advance {
        partition: partition(number),
        expected,
        to: NextOffset::new(to),
        topic_id: None,
        leader_epoch: None,
        quarantine: QuarantineChange::Keep,
    }
}

/// A registered version whose partition 0 is owned.
pub(crate) struct Scene<'h> {
    pub(crate) harness: &'h dyn Harness,
    pub(crate) store: SharedStore,
    pub(crate) declaration: Arc<Declaration>,
    pub(crate) version: VersionKey,
    /// Of partition 0.
    pub(crate) fence: Fence,
}

impl<'h> Scene<'h> {
    pub(crate) async fn of_tables(harness: &'h dyn Harness, tables: Vec<Table>) -> Self {
        Self::of(harness, declaration(tables)).await
    }

    pub(crate) async fn of(harness: &'h dyn Harness, declaration: Declaration) -> Self {
        let store = harness.store();
        store.lay_out().await.expect("laid out");
        let registration = registration(declaration);
        store.register(&registration).await.expect("registered");
        let declaration = registration.declaration;
        let version =
            VersionKey { projection: declaration.name.as_str().into(), version: declaration.version };
        let nowhere = Fence {
            position: NextOffset::ZERO,
            epoch: crate::position::Epoch::ZERO,
            revision: crate::position::Revision::ZERO,
        };
        let mut scene = Self { harness, store, declaration, version, fence: nowhere };
        scene.fence = scene.owned(0).await.fence;
        scene
    }

    pub(crate) async fn claim(&self, number: i32, by: &str) -> Claimed {
        let request = ClaimRequest {
            version: self.version.clone(),
            partition: partition(number),
            topic_id: Some("topic-1".into()),
            digest: self.declaration.digest.clone(),
            instance: instance(by),
        };
        self.store.claim(&request).await.expect("claimed")
    }

    /// The row of a partition after a claim.
    pub(crate) async fn owned(&self, number: i32) -> PositionRow {
        match self.claim(number, "instance-1").await {
            Claimed::Owned(row) => row,
            other => panic!("expected to own partition {number}: {other:?}"),
        }
    }

    /// Applies rounds of changes with the next position of partition 0.
    pub(crate) async fn apply_rounds(&mut self, rounds: &[Vec<RowChange>]) -> Result<Applied, StoreError> {
        let advances = [advance(0, self.fence, self.fence.position.get() + 1)];
        let applied = self.transact(rounds, &[], &advances).await?;
        if let Applied::Committed { .. } = applied {
            self.fence = self.fence.advanced_to(advances[0].to);
        }
        Ok(applied)
    }

    /// Applies one round of changes.
    pub(crate) async fn apply(&mut self, changes: Vec<RowChange>) -> Result<Applied, StoreError> {
        self.apply_rounds(&[changes]).await
    }

    /// Applies one round of changes, which must be accepted.
    pub(crate) async fn accept(&mut self, changes: Vec<RowChange>) {
        let applied = self.apply(changes).await;
        assert!(matches!(applied, Ok(Applied::Committed { .. })), "{applied:?}");
    }

    /// Applies an advance of partition 0 and nothing else.
    pub(crate) async fn advance(&mut self, advance: Advance) {
        let applied = self.transact(&[], &[], std::slice::from_ref(&advance)).await;
        assert_eq!(applied, Ok(Applied::Committed { missed_updates: 0 }));
        self.fence = advance.expected.advanced_to(advance.to);
    }

    pub(crate) async fn transact(
        &self,
        rounds: &[Vec<RowChange>],
        letters: &[DeadLetter],
        advances: &[Advance],
    ) -> Result<Applied, StoreError> {
        let transaction = Transaction {
            version: &self.version,
            tables: &self.declaration.tables,
            rounds: rounds.iter().map(|changes| folded(changes)).collect(),
            dead_letters: letters.iter().collect(),
            advances,
        };
        self.store.apply(&transaction).await
    }

    /// The rows of a query.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        self.harness.rows(sql).await
    }

    /// All of [`items`], by `id`.
    pub(crate) async fn items(&self) -> Vec<Vec<String>> {
        self.rows("select id, name, price, stock, note from items__v1 order by id").await
    }
}

/// A round as the fold hands it over: by table and ascending key, no key twice.
fn folded(changes: &[RowChange]) -> Vec<FoldedTable<'_>> {
    let mut sorted: Vec<&RowChange> = changes.iter().collect();
    sorted.sort_by(|a, b| (a.table, &a.key).cmp(&(b.table, &b.key)));
    sorted
        .chunk_by(|a, b| a.table == b.table)
        .map(|rows| {
            let row = |row: &&'_ RowChange| (row.table, row.key.clone());
            let mut keys: Vec<(TableId, Key)> = rows.iter().map(row).collect();
            keys.dedup();
            assert_eq!(keys.len(), rows.len(), "a key twice in a round");
            FoldedTable {
                table: rows[0].table,
                rows: rows.iter().map(|row| (&row.key, row.aggregate.as_ref(), &row.change)).collect(),
            }
        })
        .collect()
}
