//! The store on a real PostgreSQL. Each test has a schema of its own.

mod applying;
mod concurrency;
mod contract;
mod faults;
mod types;
mod versions;

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::PostgresStore;
use crate::config::settings::{DdlMode, StoreSettings};
use crate::fold::{Assign, Change, Folded, RowChange};
use crate::position::{Fence, NextOffset};
use crate::projection::{
    Column, ColumnType, Datum, Declaration, Nullability, OnError, Ownership, Table, TableId, UnknownEvents,
    View, ViewBody,
};
use crate::record::TopicPartition;
use crate::store::{
    Advance, Applied, ClaimRequest, Claimed, InstanceId, LogIdentity, PartitionStart, QuarantineChange,
    ReadStore, Registration, StoreError, Transaction, VersionKey,
};

/// A schema with a store in it, and a session beside it.
struct Place {
    schema: String,
    store: Arc<PostgresStore>,
}

fn url() -> String {
    std::env::var("PROJECTOR_TEST_POSTGRES")
        .expect("PROJECTOR_TEST_POSTGRES names a PostgreSQL as its superuser; tests/run starts one")
}

fn settings(schema: &str) -> StoreSettings {
    StoreSettings {
        url: SecretString::from(url()),
        admin_url: None,
        schema: schema.to_owned(),
        writers: 2,
        readers: Vec::new(),
        ddl: DdlMode::Apply,
        statement_timeout: Duration::from_secs(20),
    }
}

async fn session() -> PgConnection {
    PgConnection::connect(&url()).await.expect("the database answers")
}

fn unique(prefix: &str) -> String {
    format!("{prefix}_{}", uuid::Uuid::new_v4().simple())
}

impl Place {
    /// A new schema, laid out.
    async fn new() -> Self {
        let place = Self::bare();
        place.store.lay_out().await.unwrap();
        place
    }

    /// A name for a schema; the first `lay_out` makes it.
    fn bare() -> Self {
        Self::named(unique("t"))
    }

    fn named(schema: String) -> Self {
        let store = Arc::new(PostgresStore::connect(&settings(&schema)).unwrap());
        Self { schema, store }
    }

    fn with(&self, change: impl FnOnce(&mut StoreSettings)) -> PostgresStore {
        let mut settings = settings(&self.schema);
        change(&mut settings);
        PostgresStore::connect(&settings).unwrap()
    }

    /// Runs SQL in which `{s}` stands for the schema.
    async fn run(&self, sql: &str) {
        let mut session = session().await;
        let sql = self.store.sql(sql);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.unwrap();
    }

    async fn rows(&self, sql: &str) -> Vec<PgRow> {
        let mut session = session().await;
        sqlx::query(AssertSqlSafe(self.store.sql(sql))).fetch_all(&mut session).await.unwrap()
    }

    /// Rows of text columns, joined by `|`; NULL is `∅`.
    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.rows(sql).await;
        let text = |row: &PgRow, index| row.get::<Option<String>, _>(index).unwrap_or_else(|| "∅".to_owned());
        rows.iter()
            .map(|row| (0..row.len()).map(|index| text(row, index)).collect::<Vec<_>>().join("|"))
            .collect()
    }

    async fn count(&self, sql: &str) -> i64 {
        self.rows(sql).await[0].get(0)
    }

    /// How many indexes of this schema are defined with `text`. The view `pg_indexes` defines those of all schemas
    /// before it looks at the schema, and fails when another test drops one meanwhile.
    async fn count_indexes(&self, text: &str) -> i64 {
        let sql = "with mine as materialized ( \
                     select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                     where c.relkind = 'i' and n.nspname = $1) \
                   select count(*) from mine where strpos(pg_get_indexdef(oid), $2) > 0";
        let mut session = session().await;
        sqlx::query_scalar(sql).bind(&self.schema).bind(text).fetch_one(&mut session).await.unwrap()
    }

    /// Drops everything.
    async fn end(self) {
        self.store.close().await;
        self.run("drop schema {s} cascade").await;
    }

    async fn register(&self, declaration: &Declaration) {
        self.store.register(&registration(declaration, 2)).await.unwrap();
    }

    /// Registers, claims partition 0 and makes the views.
    async fn begin(&self, declaration: &Declaration) -> Writer {
        self.register(declaration).await;
        self.store.promote_first(declaration).await.unwrap();
        Writer::claim(self.store.clone(), declaration, 0).await
    }

    /// The rows of a view.
    async fn view(&self, name: &str) -> Vec<String> {
        let rows = self.store.read_view(name, 1000).await.unwrap().rows;
        let row = |row: Vec<Option<String>>| {
            row.into_iter().map(|value| value.unwrap_or_else(|| "∅".to_owned())).collect::<Vec<_>>().join("|")
        };
        rows.into_iter().map(row).collect()
    }
}

/// An owner of one partition that applies changes to it.
struct Writer {
    store: Arc<PostgresStore>,
    declaration: Declaration,
    partition: TopicPartition,
    fence: Fence,
}

impl Writer {
    async fn claim(store: Arc<PostgresStore>, declaration: &Declaration, number: i32) -> Self {
        let partition = TopicPartition::new("events", number);
        let claimed = store.claim(&claim(declaration, number)).await.unwrap();
        let Claimed::Owned(row) = claimed else { panic!("{claimed:?}") };
        Self { store, declaration: declaration.clone(), partition, fence: row.fence }
    }

    fn advance(&self, by: i64) -> Advance {
        Advance {
            partition: self.partition.clone(),
            expected: self.fence,
            to: NextOffset::new(self.fence.position.get() + by),
            topic_id: None,
            leader_epoch: None,
            quarantine: QuarantineChange::Keep,
        }
    }

    /// Applies changes as one batch of one record.
    async fn apply(&mut self, changes: Vec<RowChange>) -> Result<Applied, StoreError> {
        let mut folded = Folded::new(&self.declaration.tables);
        for change in changes {
            folded.push(change);
        }
        let advance = self.advance(1);
        let applied = {
            let version = key(&self.declaration);
            let transaction = Transaction {
                version: &version,
                tables: &self.declaration.tables,
                rounds: folded.rounds(),
                dead_letters: Vec::new(),
                advances: std::slice::from_ref(&advance),
            };
            self.store.apply(&transaction).await?
        };
        if let Applied::Committed { .. } = applied {
            self.fence = self.fence.advanced_to(advance.to);
        }
        Ok(applied)
    }

    async fn commit(&mut self, changes: Vec<RowChange>) {
        let applied = self.apply(changes).await;
        assert!(matches!(applied, Ok(Applied::Committed { .. })), "{applied:?}");
    }
}

fn key(declaration: &Declaration) -> VersionKey {
    VersionKey { projection: declaration.name.as_str().into(), version: declaration.version }
}

fn claim(declaration: &Declaration, number: i32) -> ClaimRequest {
    ClaimRequest {
        version: key(declaration),
        partition: TopicPartition::new("events", number),
        topic_id: Some("topic-id".into()),
        digest: declaration.digest.clone(),
        instance: InstanceId("instance-1".into()),
    }
}

fn declaration(tables: Vec<Table>) -> Declaration {
    let view = |(index, table): (usize, &Table)| View {
        name: table.name.clone(),
        body: ViewBody::Table(TableId(index)),
    };
    Declaration {
        name: "catalogue".into(),
        version: 1,
        sources: Vec::new(),
        views: tables.iter().enumerate().map(view).collect(),
        tables,
        unknown_events: UnknownEvents::Ignore,
        on_error: OnError::DeadLetter,
        staleness: Duration::from_mins(2),
        text: "projection: catalogue".into(),
        digest: "digest-1".into(),
    }
}

fn registration(declaration: &Declaration, partitions: i32) -> Registration {
    let start = |number| PartitionStart {
        partition: TopicPartition::new("events", number),
        topic_id: Some("topic-id".into()),
        start: NextOffset::ZERO,
        boundary: NextOffset::ZERO,
    };
    Registration {
        declaration: Arc::new(declaration.clone()),
        log: LogIdentity { cluster_id: "cluster-1".into(), consumer_group: "group.catalogue.v1".into() },
        partitions: (0..partitions).map(start).collect(),
    }
}

/// A table whose key is its first column.
fn table(name: &str, ownership: Ownership, columns: Vec<Column>) -> Table {
    Table {
        name: name.into(),
        ownership,
        primary_key: vec![crate::projection::ColumnId(0)],
        columns,
        indexes: Vec::new(),
    }
}

fn column(name: &str, kind: ColumnType) -> Column {
    Column { name: name.into(), kind, nullability: Nullability::Nullable, default: None, generated: None }
}

const TEXT: ColumnType = ColumnType::Text { max_chars: None };

fn not_null(column: Column) -> Column {
    Column { nullability: Nullability::NotNull, ..column }
}

fn with_default(column: Column, default: Datum) -> Column {
    Column { default: Some(default), ..column }
}

fn text(text: &str) -> Datum {
    Datum::Text(text.into())
}

/// A change of the row `id` of the first table.
fn row(id: Datum, change: Change) -> RowChange {
    RowChange { table: TableId(0), key: Box::new([id]), aggregate: None, change }
}

fn of(aggregate: &str, change: RowChange) -> RowChange {
    RowChange { aggregate: Some(text(aggregate)), ..change }
}

fn set(columns: Vec<(usize, Datum)>) -> Change {
    Change::upsert(
        columns
            .into_iter()
            .map(|(id, datum)| (crate::projection::ColumnId(id), Assign::Set(datum)))
            .collect(),
    )
}

fn add(columns: Vec<(usize, i64)>) -> Change {
    let assign = |(id, delta)| (crate::projection::ColumnId(id), Assign::Add(Datum::Int(delta)));
    Change::upsert(columns.into_iter().map(assign).collect())
}

fn products() -> Declaration {
    declaration(vec![table(
        "products",
        Ownership::OwnedByKey,
        vec![not_null(column("id", TEXT)), column("name", TEXT), column("price", ColumnType::BigInt)],
    )])
}
