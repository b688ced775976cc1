//! The contract of every store, on PostgreSQL.

use async_trait::async_trait;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::Place;
use crate::projection::ColumnType;
use crate::store::contract::{Harness, store_contract};
use crate::store::sql::quote;
use crate::store::{ReadStore, SharedStore};

async fn fresh() -> Place {
    let place = Place::bare();
    place.run("create schema {s}").await;
    place
}

impl Place {
    /// A session that finds names in the schema without being told.
    async fn inside(&self) -> PgConnection {
        let mut session = super::session().await;
        let sql = format!("set search_path = {}; set timezone = 'UTC'", quote(&self.schema));
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.expect("a search path");
        session
    }
}

#[async_trait]
impl Harness for Place {
    fn store(&self) -> SharedStore {
        self.store.clone()
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        let mut session = self.inside().await;
        // Over the simple protocol every value comes as the database's own text.
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut session).await.expect("rows");
        session.close().await.expect("closed");
        let text = |row: &PgRow, index: usize| {
            let value = row.try_get_raw(index).expect("a column");
            let text = sqlx::ValueRef::is_null(&value).then(|| "NULL".to_owned());
            let text = text.unwrap_or_else(|| value.as_str().expect("text").to_owned());
            text.strip_prefix("\\x").map(str::to_owned).unwrap_or(text)
        };
        rows.iter().map(|row| (0..row.len()).map(|index| text(row, index)).collect()).collect()
    }

    async fn execute(&self, sql: &str) {
        let mut session = self.inside().await;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session).await.expect("executed");
        session.close().await.expect("closed");
    }

    async fn add_foreign_key(&self, table: &str, column: &str, parent: &str) {
        self.execute(&format!("alter table {table} add foreign key ({column}) references {parent}")).await;
    }

    fn shared_form(&self, column: &str, kind: &ColumnType) -> String {
        match kind {
            ColumnType::Boolean => format!("{column}::int"),
            ColumnType::TimestampTz => format!("(extract(epoch from {column}) * 1000000)::int8"),
            ColumnType::Timestamp => {
                format!("rtrim(rtrim(to_char({column}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '0'), '.')")
            }
            _ => column.to_owned(),
        }
    }

    async fn finish(&self) {
        ReadStore::close(&*self.store).await;
        self.run("drop schema {s} cascade").await;
    }
}

store_contract!(fresh);
