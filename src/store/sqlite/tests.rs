//! The contract of every store on SQLite, and what is SQLite's own.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

use super::connections::{Purpose, Work};
use super::statements::{Shape, Target};
use super::{OpenMode, SqliteStore};
use crate::fold::{Absent, Assign, Change, Present};
use crate::projection::{ColumnId, ColumnType, Datum, Declaration, Index, Ownership, Table};
use crate::store::contract::{self, Harness, Scene, store_contract};
use crate::store::error::ErrorPlace;
use crate::store::{Applied, DatabaseCode, ReadStore as _, SharedStore, StoreError};

struct File {
    folder: tempfile::TempDir,
    store: Arc<SqliteStore>,
}

async fn fresh() -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let store = SqliteStore::open(&folder.path().join("test.sqlite"), OpenMode::Run).await.expect("opened");
    File { folder, store: Arc::new(store) }
}

impl File {
    fn path(&self) -> PathBuf {
        self.folder.path().join("test.sqlite")
    }

    /// A connection of somebody else.
    async fn connection(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .create_if_missing(true)
            .disable_statement_logging();
        options.connect().await.expect("connected")
    }
}

#[async_trait]
impl Harness for File {
    fn store(&self) -> SharedStore {
        self.store.clone()
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let rows =
            sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut self.connection().await).await.expect("rows");
        let text = |text: Option<String>| match text {
            None => "NULL".to_owned(),
            Some(text) => text.strip_prefix("\\x").map(str::to_owned).unwrap_or(text),
        };
        rows.iter()
            .map(|row| super::read::texts(row, row.len()).expect("texts").into_iter().map(text).collect())
            .collect()
    }

    async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut self.connection().await).await.expect("executed");
    }

    async fn add_foreign_key(&self, table: &str, column: &str, parent: &str) {
        let sql = format!("select sql from sqlite_schema where name = '{table}'");
        let create = self.rows(&sql).await.remove(0).remove(0);
        let (lines, _) = create.rsplit_once("\n)").expect("a list of columns");
        self.execute(&format!(
            "drop table {table}; {lines},\n foreign key ({column}) references {parent}\n) strict"
        ))
        .await;
    }

    fn shared_form(&self, column: &str, _kind: &ColumnType) -> String {
        column.to_owned()
    }

    async fn finish(&self) {
        self.store.close().await;
    }
}

store_contract!(fresh);

fn refused(result: Result<impl std::fmt::Debug, StoreError>) -> String {
    match result {
        Err(StoreError::Refused { problem, fix }) => format!("{problem}; {fix}"),
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[tokio::test]
async fn one_process_at_a_time_applies_to_a_file() {
    let file = fresh().await;
    let open = async |mode| SqliteStore::open(&file.path(), mode).await;
    assert!(refused(open(OpenMode::Run).await).contains("one process at a time"));
    file.store.lay_out().await.expect("laid out");
    let link = file.folder.path().join("link.sqlite");
    std::os::unix::fs::symlink(file.path(), &link).expect("linked");
    assert!(refused(SqliteStore::open(&link, OpenMode::Run).await).contains("one process at a time"));
    let other = open(OpenMode::Inspect).await.expect("opened");
    assert!(other.versions().await.expect("versions").is_empty());
    other.close().await;
    file.store.close().await;
    let next = open(OpenMode::Run).await.expect("free after closing");
    drop(next);
    open(OpenMode::Run).await.expect("free after dropping");
    assert!(matches!(file.store.versions().await, Err(StoreError::Connection { .. })), "closed");
}

#[tokio::test]
async fn looking_makes_no_file_and_no_tables() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("none.sqlite");
    let store = SqliteStore::open(&path, OpenMode::Inspect).await.expect("opened");
    assert!(refused(store.versions().await).contains("there is no database at"));
    assert!(!path.exists());
    std::fs::write(&path, b"").expect("an empty file");
    assert!(refused(store.status(None).await).contains("projector run"));
    let missing = SqliteStore::open(&folder.path().join("no/folder.sqlite"), OpenMode::Run).await;
    assert!(refused(missing).contains("folder"));
    std::fs::write(folder.path().join("text.sqlite"), b"not a database, but a text that is long enough")
        .expect("a text file");
    let text = SqliteStore::open(&folder.path().join("text.sqlite"), OpenMode::Run).await.expect("opened");
    let notadb = StoreError::Database {
        action: "lay out the store",
        code: DatabaseCode::Sqlite(26),
        place: ErrorPlace::default(),
    };
    assert_eq!(text.lay_out().await, Err(notadb));
}

#[tokio::test]
async fn the_file_is_in_wal_mode_and_its_foreign_keys_hold() {
    let file = fresh().await;
    file.store.lay_out().await.expect("laid out");
    assert_eq!(file.rows("pragma journal_mode").await, [["wal"]]);
    let mut work = Work::begin(&file.store.connections, Purpose::Read, "look").await.expect("begun");
    for (pragma, expected) in [("synchronous", 2), ("foreign_keys", 1)] {
        let rows = work.rows_once(&format!("pragma {pragma}")).await.expect("rows");
        assert_eq!(rows[0].get::<i64, _>(0), expected, "{pragma}");
    }
}

/// What is wrong, and how.
type Difference<'a> = (&'a str, &'a dyn Fn(&mut Table));

#[tokio::test]
async fn types_and_indexes_of_postgresql_only_are_named() {
    let file = fresh().await;
    file.store.lay_out().await.expect("laid out");
    let declared = |change: &dyn Fn(&mut Table)| {
        let mut table = contract::items();
        change(&mut table);
        contract::registration(contract::declaration(vec![table]))
    };
    let index = Index { columns: Vec::new(), expression: None, unique: false, method: None, condition: None };
    let cases: [Difference<'_>; 5] = [
        ("items.place", &|table| {
            table.columns.push(contract::column("place", ColumnType::Catalogue("inet".into())));
        }),
        ("gin", &|table| table.indexes.push(Index { method: Some("gin".into()), ..index.clone() })),
        ("nmae", &|table| table.indexes.push(Index { columns: vec!["nmae".into()], ..index.clone() })),
        ("projector_x", &|table| table.columns.push(contract::column("projector_x", ColumnType::BigInt))),
        ("duplicate column", &|table| table.columns.push(contract::column("NAME", ColumnType::BigInt))),
    ];
    for (named, change) in cases {
        match file.store.register(&declared(change)).await {
            Err(StoreError::Layout { problem, .. }) => assert!(problem.contains(named), "{problem}"),
            other => panic!("{named}: {other:?}"),
        }
    }
    assert!(file.store.versions().await.expect("versions").is_empty());
}

#[tokio::test]
async fn a_table_that_is_not_strict_is_refused() {
    let file = fresh().await;
    file.store.lay_out().await.expect("laid out");
    let declared = Declaration { views: Vec::new(), ..contract::declaration(vec![contract::items()]) };
    for statement in file.store.ddl(&declared) {
        file.execute(statement.trim_end_matches(" strict")).await;
    }
    match file.store.register(&contract::registration(declared)).await {
        Err(StoreError::Layout { problem, .. }) => {
            assert!(problem.contains("items__v1 is not strict"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_sqlite_would_change_silently_is_refused() {
    let file = fresh().await;
    let columns = vec![
        contract::required("id", ColumnType::BigInt),
        contract::column("price", ColumnType::Numeric { precision_scale: None }),
        contract::column("ratio", ColumnType::Double),
    ];
    let table = contract::table("odd", Ownership::OwnedByKey, columns);
    let mut scene = Scene::of_tables(&file, vec![table]).await;
    let upsert = |column, assign| vec![contract::item(1, Change::upsert(vec![(ColumnId(column), assign)]))];
    let add = Assign::Add(Datum::Numeric(bigdecimal::BigDecimal::from(1)));
    let text = refused(scene.apply(upsert(1, add)).await);
    assert!(text.contains("odd.price") && text.contains("bigint"), "{text}");
    match scene.apply(upsert(2, Assign::Set(Datum::Double(f64::NAN)))).await {
        Err(StoreError::Database { place, .. }) => assert_eq!(place.column.as_deref(), Some("ratio")),
        other => panic!("{other:?}"),
    }
    scene.accept(upsert(2, Assign::Set(Datum::Double(f64::INFINITY)))).await;
    assert_eq!(scene.rows("select ratio > 1e308 from odd__v1").await, [["1"]]);
}

#[tokio::test]
async fn a_transaction_that_is_dropped_half_way_leaves_nothing() {
    let file = fresh().await;
    let mut scene = Scene::of_tables(&file, vec![contract::items()]).await;
    let mut work = Work::begin(&file.store.connections, Purpose::Write, "test").await.expect("begun");
    work.script("insert into items__v1 (id, name) values (1, 'half')").await.expect("written");
    drop(work);
    let lamp = Change::upsert(vec![contract::set(contract::NAME, contract::text("lamp"))]);
    scene.accept(vec![contract::item(2, lamp)]).await;
    assert_eq!(scene.rows("select id from items__v1").await, [["2"]]);
}

#[tokio::test]
async fn readers_see_the_last_commit_while_a_transaction_is_open() {
    let file = fresh().await;
    let scene = Scene::of_tables(&file, vec![contract::items()]).await;
    let mut work = Work::begin(&file.store.connections, Purpose::Write, "test").await.expect("begun");
    work.script("update projector_positions set position = 7").await.expect("written");
    let positions = async || scene.store.status(None).await.expect("status")[0].position.get();
    assert_eq!(positions().await, 0);
    work.commit().await.expect("committed");
    assert_eq!(positions().await, 7);
}

/// Writing must cost as much as the rows that are written, whatever the table holds: no statement reads all of it.
#[tokio::test]
async fn every_statement_finds_its_rows_by_key() {
    let file = fresh().await;
    file.store.lay_out().await.expect("laid out");
    let columns = vec![
        contract::required("a", contract::TEXT),
        contract::required("b", ColumnType::BigInt),
        contract::required("name", contract::TEXT),
        contract::defaulted("n", ColumnType::BigInt, Datum::Int(5)),
    ];
    for keys in [vec![ColumnId(0)], vec![ColumnId(0), ColumnId(1)]] {
        let mut table = contract::table("wide", Ownership::OwnedStored, columns.clone());
        table.primary_key = keys;
        file.execute(&super::schema::create_table(&table, 1)).await;
        let target = Target::new(&table, 1);
        let count = Assign::Add(Datum::Int(1));
        let shapes = [
            Change::upsert(vec![(ColumnId(3), count.clone())]),
            Change::new(Present::Replace(vec![]), Absent::Insert(vec![(ColumnId(3), count)])),
        ];
        let mut statements = vec![target.delete(8), target.delete(1), target.any_foreign(8), target.exists()];
        for shape in shapes.iter().map(Shape::of) {
            statements.push(target.at_once(&shape, 8));
            statements.extend(target.update(&shape, 8));
            statements.extend(target.insert(&shape, 8));
        }
        assert_eq!(statements.len(), 10);
        for statement in statements {
            let plan = file.rows(&format!("explain query plan {statement}")).await;
            let reads_all =
                plan.iter().any(|step| step[3].starts_with("SCAN wide") || step[3].starts_with("SCAN t"));
            let searches = plan.iter().any(|step| step[3].starts_with("SEARCH"));
            assert!(searches || statement.contains("on conflict"), "{statement}\n{plan:#?}");
            assert!(!reads_all, "{statement}\n{plan:#?}");
        }
        file.execute("drop table wide__v1").await;
    }
}

/// Sets something on the connection that writes.
async fn tune(file: &File, pragma: &str) {
    let mut work = Work::begin(&file.store.connections, Purpose::Write, "test").await.expect("begun");
    work.rows_once(&format!("pragma {pragma}")).await.expect("set");
    work.commit().await.expect("committed");
}

fn code(result: Result<Applied, StoreError>) -> i32 {
    match result {
        Err(StoreError::Database { code: DatabaseCode::Sqlite(code), .. }) => code,
        other => panic!("expected an error of the database: {other:?}"),
    }
}

#[tokio::test]
async fn a_full_disk_rolls_back_and_the_store_goes_on_afterwards() {
    let file = fresh().await;
    let mut scene = Scene::of_tables(&file, vec![contract::items()]).await;
    let long = contract::text(&"x".repeat(10_000));
    let rows = |ids: std::ops::Range<i64>| {
        let row = |id| contract::item(id, Change::upsert(vec![contract::set(contract::NAME, long.clone())]));
        ids.map(row).collect::<Vec<_>>()
    };
    scene.accept(rows(0..1)).await;
    tune(&file, "max_page_count = 1").await;
    assert_eq!(code(scene.apply(rows(1..200)).await), 13);
    assert_eq!(scene.rows("select count(*) from items__v1").await, [["1"]]);
    tune(&file, "max_page_count = 1000000").await;
    scene.accept(rows(1..200)).await;
    assert_eq!(scene.rows("select count(*) from items__v1").await, [["200"]]);
}

#[tokio::test]
async fn another_process_that_holds_the_file_is_an_outage_and_passes() {
    let file = fresh().await;
    let mut scene = Scene::of_tables(&file, vec![contract::items()]).await;
    tune(&file, "busy_timeout = 1").await;
    let mut other = file.connection().await;
    sqlx::raw_sql("begin immediate").execute(&mut other).await.expect("begun");
    assert_eq!(code(scene.apply(Vec::new()).await) & 0xff, 5);
    sqlx::raw_sql("rollback").execute(&mut other).await.expect("rolled back");
    scene.accept(Vec::new()).await;
}

#[tokio::test]
async fn a_table_that_others_refer_to_is_not_dropped() {
    let file = fresh().await;
    let mut scene = Scene::of_tables(&file, vec![contract::items()]).await;
    let lamp = Change::upsert(vec![contract::set(contract::NAME, contract::text("lamp"))]);
    scene.accept(vec![contract::item(1, lamp)]).await;
    file.execute("create table notes (item INTEGER references items__v1); insert into notes values (1)")
        .await;
    let text = refused(scene.store.retire(&scene.version).await);
    assert!(text.contains("items__v1") && text.contains("refers to it"), "{text}");
    assert_eq!(scene.rows("select count(*) from items__v1").await, [["1"]]);
    assert_eq!(scene.store.versions().await.expect("versions").len(), 1);
    file.execute("drop table notes").await;
    scene.store.retire(&scene.version).await.expect("retired");
}

#[tokio::test]
async fn keys_and_not_null_of_the_projectors_tables_are_verified() {
    let file = fresh().await;
    file.store.lay_out().await.expect("laid out");
    let now = super::layout::NOW;
    for (subject, erased_at, end, words) in [
        (
            "not null",
            "not null",
            "strict",
            "the primary key of table projector_erasures is (); it should be (subject)",
        ),
        ("not null primary key", "", "strict", "column projector_erasures.erased_at is INTEGER default"),
        ("not null primary key", "not null", "", "table projector_erasures is not strict"),
    ] {
        file.execute(&format!(
            "drop table projector_erasures; create table projector_erasures \
             (subject TEXT {subject}, reason TEXT, erased_at INTEGER {erased_at} default {now}) {end}"
        ))
        .await;
        match file.store.lay_out().await {
            Err(StoreError::Layout { problem, .. }) => assert!(problem.contains(words), "{problem}"),
            other => panic!("{words}: {other:?}"),
        }
    }
    file.finish().await;
}
