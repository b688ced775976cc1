//! What is missing or differs: made at once, or, where somebody else makes it (`store.ddl: verify`), gathered, so that one
//! error names all of it with the SQL that ends it.

use super::PostgresStore;
use super::work::Work;
use crate::config::settings::DdlMode;
use crate::store::StoreError;

/// Things that somebody else has yet to make.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<Gap>);

#[derive(Debug)]
struct Gap {
    /// "table x is missing"
    what: String,
    /// Statements that end it, without the last semicolon.
    sql: String,
}

impl Gaps {
    /// Runs `sql`, or keeps it for the error.
    pub(super) async fn make(
        &mut self,
        store: &PostgresStore,
        work: &mut Work<'_>,
        what: &str,
        sql: &str,
    ) -> Result<(), StoreError> {
        match store.ddl {
            DdlMode::Apply => work.script(sql).await,
            DdlMode::Verify => {
                self.add(what, sql);
                Ok(())
            }
        }
    }

    /// Keeps something for the error.
    pub(super) fn add(&mut self, what: impl Into<String>, sql: impl Into<String>) {
        self.0.push(Gap { what: what.into(), sql: sql.into() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is wrong, in one line.
    fn what(&self) -> String {
        self.0.iter().map(|gap| gap.what.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// One error that names everything, where there is anything.
    pub(super) fn into_result(self, store: &PostgresStore) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        let sql = self.0.iter().map(|gap| gap.sql.as_str()).collect::<Vec<_>>().join(";\n");
        Err(StoreError::Layout {
            problem: format!("not all is in schema {} as it should be: {}", store.schema, self.what()),
            fix: format!(
                "`store.ddl` is `verify`, so somebody else makes it; `projector ddl` prints everything, and this is what is lacking:\n{sql};"
            ),
        })
    }

    /// The same where a version that has caught up lacks its views. Short, since it is said while the projector runs.
    pub(super) fn into_promotion(self, store: &PostgresStore, projection: &str) -> Result<(), StoreError> {
        if self.is_empty() {
            return Ok(());
        }
        Err(StoreError::Layout {
            problem: format!("it waits for its views in schema {}: {}", store.schema, self.what()),
            fix: format!(
                "`store.ddl` is `verify`: run what `projector ddl {projection} --views` prints, and it goes live by itself"
            ),
        })
    }
}
