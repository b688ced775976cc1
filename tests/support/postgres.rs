//! The real database: a schema for each test, and rows as text.

use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Row};

use super::{service, unique};

/// A schema of a test's own; dropped at the end where the test passes.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) pool: PgPool,
}

impl Database {
    pub(crate) async fn create() -> Self {
        let url = service("PROJECTOR_TEST_POSTGRES");
        let pool = PgPoolOptions::new().max_connections(4).connect(&url).await.expect("the database answers");
        let schema = unique("t");
        let database = Self { url, schema, pool };
        database.run(&format!("create schema {}", database.schema)).await;
        database
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.expect("valid SQL");
    }

    /// Rows of a query whose columns are all text; NULL is `∅`. `{s}` stands for the schema.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_rows(sql).await.expect("valid SQL")
    }

    pub(crate) async fn try_rows(&self, sql: &str) -> Result<Vec<Vec<String>>, sqlx::Error> {
        let sql = sql.replace("{s}", &self.schema);
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&self.pool).await?;
        Ok(rows
            .iter()
            .map(|row| {
                (0..row.len())
                    .map(|column| row.get::<Option<String>, _>(column).unwrap_or_else(|| "∅".to_owned()))
                    .collect()
            })
            .collect())
    }

    /// The only value of a query, as text.
    pub(crate) async fn one(&self, sql: &str) -> String {
        let rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "one row of {sql}");
        rows[0][0].clone()
    }

    /// Drops the schema.
    pub(crate) async fn drop(self) {
        self.run(&format!("drop schema {} cascade", self.schema)).await;
        self.pool.close().await;
    }
}
