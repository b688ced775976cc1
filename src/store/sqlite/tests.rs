//! The contract of every store on SQLite, and what is SQLite's own.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

use super::{OpenMode, SqliteStore};
use crate::projection::ColumnType;
use crate::store::SharedStore;
use crate::store::contract::{Harness, store_contract};

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
        let options = SqliteConnectOptions::new().filename(self.path()).disable_statement_logging();
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
        crate::store::ReadStore::close(&*self.store).await;
    }
}

store_contract!(fresh);
